//! The I/O header that travels with every call, from the front end to the endpoint.

use std::fmt;

use tokio::time::Instant;

use crate::RangeToken;

/// Random 128-bit identity of a volume. Keys, maps and caches use it, never the name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub [u8; 16]);

impl VolumeId {
    /// Parses the 32 lower-case hex digits that [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        Some(Self(u128::from_str_radix(text, 16).ok()?.to_be_bytes()))
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeId({self})")
    }
}

/// Who asked: the authenticated client of a front end. Filled in by the front end, never rewritten below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SourceId(pub u64);

/// Whether a rule has judged an operation already (sRoute section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Admission {
    /// It has just come in.
    #[default]
    New,
    /// A switch admitted it under this version of its rules.
    Admitted(u64),
    /// It comes from inside the process, such as a copier or a verb: rules for clients do not hold for it.
    Internal,
}

/// Stages that an operation may pass at most: more are a circle.
pub const HOPS_MAX: u8 = 16;

/// What travels with an operation from the front end to the endpoint: who asks, on whose behalf, until when. What is
/// asked, and of which bytes, is in the [`Operation`](crate::Operation) alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoHeader {
    /// The authenticated client, as the front end knows it. Never rewritten below.
    pub source: SourceId,
    /// The volume addressed by the client.
    pub volume: VolumeId,
    /// Whether a rule has judged it.
    pub admission: Admission,
    /// Devices that may still hand it on to another host.
    pub hops: u8,
    /// When nobody waits for the answer any more, on the clock of `tokio::time`.
    pub deadline: Option<Instant>,
    /// The range lock under which it is made: a copier's own calls do not wait for the range that it holds.
    pub lock: Option<RangeToken>,
}

impl IoHeader {
    /// A header of an operation that a client asked for.
    #[must_use]
    pub fn of_client(source: SourceId, volume: VolumeId) -> Self {
        let (admission, hops) = (Admission::New, HOPS_MAX);
        Self { source, volume, admission, hops, deadline: None, lock: None }
    }

    /// A header of an operation that comes from inside the process, not from a client (tests, verbs, copiers).
    #[must_use]
    pub fn internal() -> Self {
        let admission = Admission::Internal;
        Self { admission, ..Self::of_client(SourceId(0), VolumeId([0; 16])) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        let text = "0123456789abcdef00000000000000ff";
        let id = VolumeId::parse(text).expect("32 digits");
        assert_eq!(id.0[..2], [0x01, 0x23]);
        assert_eq!((id.to_string(), format!("{id:?}")), (text.into(), format!("VolumeId({text})")));
        for wrong in
            [&text[1..], &format!("{text}0"), "", &text.to_uppercase(), &text.replace('f', "g")]
        {
            assert_eq!(VolumeId::parse(wrong), None, "{wrong}");
        }
    }
}
