//! Sealed bytes: AES-256-GCM under a key that belongs to one thing alone.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::keys::KEY_BYTES;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 12;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// The bytes are not what was sealed: another key, another place, or changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag does not match")]
pub struct Forged;

/// The nonce of two counters.
#[must_use]
pub fn counter_nonce(major: u64, minor: u32) -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    nonce[..8].copy_from_slice(&major.to_le_bytes());
    nonce[8..].copy_from_slice(&minor.to_le_bytes());
    nonce
}

/// A key of one object, or of one opening of a journal.
pub struct SealKey {
    key: LessSafeKey,
    #[cfg(feature = "audit")]
    fingerprint: [u8; KEY_BYTES],
}

impl SealKey {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        let unbound = UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes");
        Self {
            key: LessSafeKey::new(unbound),
            #[cfg(feature = "audit")]
            fingerprint: *key,
        }
    }

    /// Seals `bytes` where they are; their tag. `context` is covered by it and not stored.
    ///
    /// # Panics
    /// Beyond 64 GiB, which nothing here comes near.
    #[must_use]
    pub fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        context: &[u8],
        bytes: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let sealing = Nonce::assume_unique_for_key(nonce);
        let sealed = self.key.seal_in_place_separate_tag(sealing, Aad::from(context), bytes);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(sealed.expect("far below the limit of GCM").as_ref());
        #[cfg(feature = "audit")]
        audit::note(&self.fingerprint, nonce, tag);
        tag
    }

    /// Opens `bytes` where they are.
    ///
    /// # Errors
    /// [`Forged`]; then `bytes` are of no use.
    pub fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        context: &[u8],
        bytes: &mut [u8],
        tag: &[u8],
    ) -> Result<(), Forged> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place_separate_tag(nonce, Aad::from(context), tag, bytes);
        opened.map(drop).map_err(|_| Forged)
    }

    /// Opens sealed bytes with their tag into `out`, which is as long as they are.
    ///
    /// # Errors
    /// [`Forged`]; then what is in `out` is of no use.
    pub fn open_into(
        &self,
        nonce: [u8; NONCE_BYTES],
        context: &[u8],
        (sealed, tag): (&[u8], &[u8]),
        out: &mut [u8],
    ) -> Result<(), Forged> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_separate_gather(nonce, Aad::from(context), sealed, tag, out);
        opened.map_err(|_| Forged)
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// Counts breaches of K1 on this thread. For the simulation, whose keys protect nothing.
#[cfg(feature = "audit")]
pub mod audit {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::{KEY_BYTES, NONCE_BYTES, TAG_BYTES};

    type Use = ([u8; KEY_BYTES], [u8; NONCE_BYTES]);
    type Seen = (HashMap<Use, [u8; TAG_BYTES]>, u64);

    thread_local! {
        static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
    }

    /// Begins to watch, and forgets what was seen.
    pub fn begin() {
        SEEN.set(Some((HashMap::new(), 0)));
    }

    /// Texts sealed since [`begin`], and how many of them under a nonce that had sealed another text.
    #[must_use]
    pub fn seen() -> (usize, u64) {
        SEEN.with_borrow(|seen| seen.as_ref().map_or((0, 0), |(uses, again)| (uses.len(), *again)))
    }

    pub(super) fn note(key: &[u8; KEY_BYTES], nonce: [u8; NONCE_BYTES], tag: [u8; TAG_BYTES]) {
        SEEN.with_borrow_mut(|seen| {
            let Some((uses, again)) = seen else { return };
            if uses.insert((*key, nonce), tag).is_some_and(|before| before != tag) {
                *again += 1;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_shows_nothing_of_itself() {
        assert_eq!(format!("{:?}", SealKey::new(&[0xab; 32])), "SealKey");
    }

    #[test]
    fn every_byte_of_both_counters_makes_another_nonce() {
        let mut seen = std::collections::BTreeSet::from([counter_nonce(0, 0)]);
        for bit in 0..64 {
            assert!(seen.insert(counter_nonce(1 << bit, 0)), "bit {bit} of the first");
        }
        for bit in 0..32 {
            assert!(seen.insert(counter_nonce(0, 1 << bit)), "bit {bit} of the second");
        }
    }

    #[cfg(feature = "audit")]
    #[test]
    fn the_audit_counts_nonces_that_seal_two_texts() {
        let (key, other) = (SealKey::new(&[1; 32]), SealKey::new(&[2; 32]));
        let seal = |key: &SealKey, nonce, text: &[u8]| _ = key.seal(nonce, b"", &mut text.to_vec());
        seal(&key, counter_nonce(0, 0), b"before it watches");
        assert_eq!(audit::seen(), (0, 0));
        audit::begin();
        seal(&key, counter_nonce(0, 0), b"one");
        seal(&key, counter_nonce(0, 1), b"one");
        seal(&other, counter_nonce(0, 0), b"two");
        // What is encoded once more gives the same bytes, and breaks nothing.
        seal(&key, counter_nonce(0, 0), b"one");
        assert_eq!(audit::seen(), (3, 0));
        seal(&key, counter_nonce(0, 1), b"two");
        seal(&key, counter_nonce(0, 0), b"three");
        assert_eq!(audit::seen(), (3, 2));
        audit::begin();
        assert_eq!(audit::seen(), (0, 0));
    }

    #[test]
    fn nothing_opens_but_what_was_sealed() {
        let (key, other) = (SealKey::new(&[1; 32]), SealKey::new(&[2; 32]));
        let nonce = counter_nonce(5, 6);
        let text = *b"weir holds the water back";
        let mut sealed = text;
        let tag = key.seal(nonce, b"place", &mut sealed);
        let open = |key: &SealKey, nonce, context: &[u8], sealed: &[u8], tag: &[u8]| {
            let mut out = vec![0; sealed.len()];
            let into = key.open_into(nonce, context, (sealed, tag), &mut out).map(|()| out);
            let mut place = sealed.to_vec();
            let in_place = key.open(nonce, context, &mut place, tag).map(|()| place);
            assert_eq!(into, in_place);
            into
        };
        assert_eq!(open(&key, nonce, b"place", &sealed, &tag).unwrap(), text);
        assert!(open(&other, nonce, b"place", &sealed, &tag).is_err());
        assert!(open(&key, counter_nonce(6, 5), b"place", &sealed, &tag).is_err());
        assert!(open(&key, nonce, b"Place", &sealed, &tag).is_err());
        assert!(open(&key, nonce, b"place", &sealed[1..], &tag).is_err());
        assert!(open(&key, nonce, b"place", &sealed, &tag[1..]).is_err());
        for bit in 0..(sealed.len() + TAG_BYTES) * 8 {
            let (mut bytes, mut marks) = (sealed, tag);
            match bit / 8 {
                at if at < bytes.len() => bytes[at] ^= 1 << (bit % 8),
                at => marks[at - bytes.len()] ^= 1 << (bit % 8),
            }
            assert_eq!(open(&key, nonce, b"place", &bytes, &marks), Err(Forged), "bit {bit}");
        }
    }
}
