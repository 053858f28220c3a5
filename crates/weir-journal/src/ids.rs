//! Names of things in a journal: records, writes, epochs, positions.

use std::fmt;

use weir_device::VolumeId;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);

        impl $name {
            /// The number after this one.
            ///
            /// # Panics
            /// After 2^64 of them.
            #[must_use]
            pub fn next(self) -> Self {
                self.plus(1)
            }

            /// The number `count` after this one.
            ///
            /// # Panics
            /// After 2^64 of them.
            #[must_use]
            pub fn plus(self, count: u64) -> Self {
                Self(self.0.checked_add(count).expect("64 bits outlast any journal"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// Number of a record. Consecutive over the life of the journal; the first is 1, and 0 means "none yet". A record
    /// that recovery dropped (it was never promised) gives its number to the first one of the next epoch.
    RecordSeq
}

number! {
    /// Number of one piece of a write, in the order of acknowledgement; the first is 1, and 0 means "none yet".
    /// Never goes back within an epoch; ordered together with the epoch.
    WriteNumber
}

number! {
    /// One opening of a volume by its owner. Every opening has a higher one.
    Epoch
}

number! {
    /// A place in the endless logical byte sequence of the journal: `logical segment * segment_bytes + offset in it`.
    /// Never used twice, so that a position found in an old copy of anything cannot mean newer bytes.
    JournalPos
}

/// Random 128-bit identity of one journal file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JournalId(pub [u8; 16]);

impl JournalId {
    /// Parses the 32 lower-case hex digits that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        VolumeId::parse(text).map(|id| Self(id.0))
    }
}

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JournalId({self})")
    }
}

/// Random 128-bit identity of one opening of a volume. Epochs order the openings of one history; where there are
/// several (a store that was set back, a copied journal), the same epoch belongs to different openings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpeningId(pub [u8; 16]);

impl OpeningId {
    /// Parses the 32 lower-case hex digits that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        VolumeId::parse(text).map(|id| Self(id.0))
    }
}

impl fmt::Display for OpeningId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for OpeningId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpeningId({self})")
    }
}

/// An opening that may be published, and the epoch it is published with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The opening.
    pub opening: OpeningId,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A version of the volume's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestSeen {
    /// Its number, from 1.
    pub number: u64,
    /// What tells it from another version of the same number, which a store that was set back may get.
    pub nonce: [u8; 16],
}

/// Whose journal a file is. Part of every checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The volume.
    pub volume: VolumeId,
    /// The file.
    pub journal: JournalId,
}
