//! The payload of an encrypted volume as it stands in the file: sealed piece by piece, under a key of this opening.
//!
//! Why no nonce is used twice (K1 of `weir_seal`): the key of an opening comes from the volume's data key, the names of
//! volume and journal, the epoch, and a salt of 128 random bits that [`Seals::begin`] draws; the salt stands in every
//! record. The nonce is the number of the record and the index of the piece in it. So two pieces could only share key
//! and nonce if one opening made two records with one number. It does not: `JournalState::start_record` counts up
//! whenever it has built a record, a record is built once, and one that could not be written poisons the journal for
//! good.
//!
//! Numbers of records do come back in another epoch: a record that recovery dropped gives its number to the first one
//! after it, and a directory that was copied and opened twice goes on from the same number twice, in the same epoch.
//! Neither repeats a nonce, because each opening has drawn a salt of its own. Segments that are used again, and write
//! numbers that jump (`Journal::continue_after`), play no part in key or nonce.
//!
//! The table of a record (offsets, lengths, kinds) is not secret. Checksums cover the sealed bytes, so that recovery
//! and a scrub need no key; the tag is verified whenever a piece is read back.

use std::rc::Rc;

use weir_device::mutant;
use weir_seal::{DataKey, Forged, NONCE_BYTES, Purpose, SealKey, TAG_BYTES, counter_nonce};

use crate::format::record::Salt;
use crate::ids::{Epoch, Identity, RecordSeq};

/// What opens one piece, besides its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceSeal {
    pub(crate) tag: [u8; TAG_BYTES],
    /// Index in the table of its record.
    pub(crate) index: u32,
    /// Index of the key.
    key: u32,
}

/// What a tag covers besides the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PiecePlace {
    pub(crate) record: RecordSeq,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug)]
struct OpeningKey {
    epoch: Epoch,
    salt: Salt,
    key: Rc<SealKey>,
}

/// The keys of the openings whose records are in the file.
#[derive(Debug)]
pub(crate) struct Seals {
    volume: DataKey,
    identity: Identity,
    keys: Vec<OpeningKey>,
}

/// The key that this opening seals with.
#[derive(Clone, Debug)]
pub(crate) struct Sealer {
    identity: Identity,
    pub(crate) salt: Salt,
    key: Rc<SealKey>,
    index: u32,
}

impl Seals {
    pub(crate) fn new(volume: DataKey, identity: Identity) -> Self {
        Self { volume, identity, keys: Vec::new() }
    }

    /// The key of an opening that wrote `salt` into its records.
    fn key_of(&mut self, epoch: Epoch, salt: Salt) -> u32 {
        let is_it = |key: &OpeningKey| key.epoch == epoch && key.salt == salt;
        // Records come in the order of openings.
        let found = self.keys.iter().rposition(is_it).unwrap_or_else(|| {
            let Identity { volume, journal } = self.identity;
            let context = [&volume.0[..], &journal.0, &epoch.0.to_le_bytes(), &salt];
            let key = Rc::new(self.volume.derive(Purpose::Journal, &context));
            self.keys.push(OpeningKey { epoch, salt, key });
            self.keys.len() - 1
        });
        u32::try_from(found).expect("a journal holds records of few openings")
    }

    /// What opens a piece that recovery found.
    pub(crate) fn found(
        &mut self,
        epoch: Epoch,
        salt: Salt,
        (index, tag): (u32, [u8; TAG_BYTES]),
    ) -> PieceSeal {
        PieceSeal { tag, index, key: self.key_of(epoch, salt) }
    }

    /// The key of the opening that begins; `salt` was drawn for it.
    pub(crate) fn begin(&mut self, epoch: Epoch, mut salt: Salt) -> Sealer {
        let mut of_epoch = epoch;
        if mutant("journal_key_used_again") {
            (of_epoch, salt) = (Epoch(0), [0; 16]);
        }
        let index = self.key_of(of_epoch, salt);
        let key = Rc::clone(&self.keys[usize::try_from(index).expect("a short list")].key);
        Sealer { identity: self.identity, salt, key, index }
    }

    /// Opens a piece where it is.
    pub(crate) fn open(
        &self,
        seal: &PieceSeal,
        place: &PiecePlace,
        bytes: &mut [u8],
    ) -> Result<(), Forged> {
        let OpeningKey { key, .. } = &self.keys[usize::try_from(seal.key).expect("a short list")];
        let nonce = counter_nonce(place.record.0, seal.index);
        key.open(nonce, &context(&self.identity, place), bytes, &seal.tag)
    }
}

impl Sealer {
    /// Seals a piece where it is.
    pub(crate) fn seal(&self, index: u32, place: &PiecePlace, bytes: &mut [u8]) -> PieceSeal {
        let nonce: [u8; NONCE_BYTES] = counter_nonce(place.record.0, index);
        let tag = self.key.seal(nonce, &context(&self.identity, place), bytes);
        PieceSeal { tag, index, key: self.index }
    }
}

fn context(identity: &Identity, place: &PiecePlace) -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[..16].copy_from_slice(&identity.volume.0);
    bytes[16..32].copy_from_slice(&identity.journal.0);
    bytes[32..40].copy_from_slice(&place.record.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&place.offset.to_le_bytes());
    bytes[48..].copy_from_slice(&place.len.to_le_bytes());
    bytes
}
