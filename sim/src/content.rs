//! What a write writes: bytes that follow from the number of the write and their place on the volume, so that a byte
//! of another write, or of another place, is recognised.

use crate::dice::mix;

/// Identity of a write or discard within one seed. 0 is the blank volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WriteId(pub(crate) u32);

/// How bytes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// No two words alike.
    Noise,
    /// One word in eight tells the place; compresses well.
    Text,
    /// Zeroes that stay provisioned.
    Zero,
    /// Zeroes of a discard or a blank volume.
    Hole,
}

impl Pattern {
    pub(crate) fn is_zero(self) -> bool {
        matches!(self, Self::Zero | Self::Hole)
    }
}

/// The eight bytes of a write at a place that is a multiple of eight.
fn word(id: WriteId, pattern: Pattern, index: u64) -> u64 {
    let key = u64::from(id.0).wrapping_mul(0xd6e8_feb8_6659_fd93);
    match pattern {
        Pattern::Noise => (key ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_right(29)
            .wrapping_mul(0xc4ce_b9fe_1a85_ec53),
        Pattern::Text if index.is_multiple_of(8) => mix(key ^ index),
        Pattern::Text => mix(key),
        Pattern::Zero | Pattern::Hole => 0,
    }
}

/// Calls `each` with the words that make `offset..offset + len`, as (range within it, bytes).
fn for_words(
    id: WriteId,
    pattern: Pattern,
    offset: u64,
    len: usize,
    mut each: impl FnMut(usize, &[u8]) -> bool,
) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let skip = (at % 8) as usize;
        let take = (8 - skip).min(len - done);
        let bytes = word(id, pattern, at / 8).to_le_bytes();
        if !each(done, &bytes[skip..skip + take]) {
            return;
        }
        done += take;
    }
}

/// Writes the bytes of `id` at `offset` into `target`.
pub(crate) fn fill(id: WriteId, pattern: Pattern, offset: u64, target: &mut [u8]) {
    if pattern.is_zero() {
        target.fill(0);
        return;
    }
    let len = target.len();
    for_words(id, pattern, offset, len, |at, bytes| {
        target[at..at + bytes.len()].copy_from_slice(bytes);
        true
    });
}

/// How many of the first bytes of `seen`, read at `offset`, are those of `id`.
pub(crate) fn matching_len(id: WriteId, pattern: Pattern, offset: u64, seen: &[u8]) -> usize {
    if pattern.is_zero() {
        let words = seen.chunks_exact(8);
        let clean = words.take_while(|word| **word == [0; 8]).count() * 8;
        return clean + seen[clean..].iter().take_while(|byte| **byte == 0).count();
    }
    let mut matching = seen.len();
    for_words(id, pattern, offset, seen.len(), |at, bytes| {
        if seen[at..at + bytes.len()] == *bytes {
            return true;
        }
        let equal = bytes.iter().zip(&seen[at..]).take_while(|(a, b)| a == b).count();
        matching = at + equal;
        false
    });
    matching
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_from_write_and_place_alone() {
        for pattern in [Pattern::Noise, Pattern::Text] {
            let mut whole = vec![0; 1000];
            fill(WriteId(7), pattern, 3, &mut whole);
            let mut part = vec![0; 100];
            fill(WriteId(7), pattern, 503, &mut part);
            assert_eq!(whole[500..600], part);
            assert_eq!(matching_len(WriteId(7), pattern, 3, &whole), 1000);
            whole[777] ^= 1;
            assert_eq!(matching_len(WriteId(7), pattern, 3, &whole), 777);
            assert!(matching_len(WriteId(8), pattern, 3, &whole) < 4);
        }
        assert_eq!(matching_len(WriteId(1), Pattern::Zero, 0, &[0, 0, 0, 1]), 3);
        assert_eq!(matching_len(WriteId(1), Pattern::Hole, 0, &[0; 33]), 33);
    }
}
