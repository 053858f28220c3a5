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

/// Makes the words of one write.
#[derive(Clone, Copy)]
struct Words {
    key: u64,
    filler: u64,
    pattern: Pattern,
}

impl Words {
    fn new(id: WriteId, pattern: Pattern) -> Self {
        let key = u64::from(id.0).wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self { key, filler: mix(key), pattern }
    }

    /// The eight bytes at a place that is a multiple of eight.
    fn at(self, index: u64) -> u64 {
        match self.pattern {
            Pattern::Noise => (self.key ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_mul(0xff51_afd7_ed55_8ccd)
                .rotate_right(29)
                .wrapping_mul(0xc4ce_b9fe_1a85_ec53),
            Pattern::Text if index.is_multiple_of(8) => mix(self.key ^ index),
            Pattern::Text => self.filler,
            Pattern::Zero | Pattern::Hole => 0,
        }
    }

    fn byte(self, at: u64) -> u8 {
        self.at(at / 8).to_le_bytes()[(at % 8) as usize]
    }
}

/// Bytes before the first place that is a multiple of eight.
fn head_len(offset: u64, len: usize) -> usize {
    let head = usize::try_from(offset.next_multiple_of(8) - offset).expect("below eight");
    head.min(len)
}

/// Writes the bytes of `id` at `offset` into `target`.
pub(crate) fn fill(id: WriteId, pattern: Pattern, offset: u64, target: &mut [u8]) {
    if pattern.is_zero() {
        target.fill(0);
        return;
    }
    let words = Words::new(id, pattern);
    let (head, rest) = target.split_at_mut(head_len(offset, target.len()));
    for (byte, at) in head.iter_mut().zip(offset..) {
        *byte = words.byte(at);
    }
    let mut index = (offset + head.len() as u64) / 8;
    let mut chunks = rest.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&words.at(index).to_le_bytes());
        index += 1;
    }
    for (byte, at) in chunks.into_remainder().iter_mut().zip(index * 8..) {
        *byte = words.byte(at);
    }
}

/// How many of the first bytes of `seen`, read at `offset`, are those of `id`.
pub(crate) fn matching_len(id: WriteId, pattern: Pattern, offset: u64, seen: &[u8]) -> usize {
    let words = Words::new(id, pattern);
    let bytes_equal = |bytes: &[u8], from: u64| {
        bytes.iter().zip(from..).take_while(|(byte, at)| **byte == words.byte(*at)).count()
    };
    let (head, rest) = seen.split_at(head_len(offset, seen.len()));
    let equal = bytes_equal(head, offset);
    if equal < head.len() {
        return equal;
    }
    let mut done = head.len();
    let mut index = (offset + head.len() as u64) / 8;
    for chunk in rest.chunks_exact(8) {
        if u64::from_le_bytes(chunk.try_into().expect("eight bytes")) != words.at(index) {
            break;
        }
        index += 1;
        done += 8;
    }
    done + bytes_equal(&seen[done..seen.len().min(done + 8)], index * 8)
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
