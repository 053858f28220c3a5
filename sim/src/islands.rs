//! Where the bytes that clients use lie on the volume.

use crate::dice::Dice;

/// Distance of two islands: the unit of checkpointing of the extent map, so that a checkpoint has several pieces and
/// later ones refer to pieces of earlier ones.
const STRIDE_BYTES: u64 = 512 << 20;

/// Where the bytes that clients use lie on the volume. The oracle sees them side by side; on the volume they are
/// islands far apart, with nothing between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Islands {
    /// Bytes of an island.
    bytes: u64,
    /// Where the first one begins.
    shift: u64,
}

impl Islands {
    /// No seas.
    #[cfg(test)]
    pub(crate) fn one(bytes: u64) -> Self {
        Self { bytes, shift: 0 }
    }

    pub(crate) fn draw(dice: &mut Dice, volume_bytes: u64) -> Self {
        let count = dice.pick(&[1, 1, 1, 2, 4]);
        let bytes = volume_bytes.div_ceil(count);
        // Some lie across the border of two pieces.
        let across = STRIDE_BYTES - bytes / 2;
        let shift = if count == 1 { dice.pick(&[0, 0, across]) } else { dice.pick(&[0, across]) };
        Self { bytes, shift }
    }

    /// Byte of the volume for a byte of the oracle.
    pub(crate) fn place(&self, offset: u64) -> u64 {
        let island = offset / self.bytes;
        self.shift + island * STRIDE_BYTES + offset % self.bytes
    }

    /// Where the island of `offset` ends.
    pub(crate) fn end(&self, offset: u64) -> u64 {
        (offset / self.bytes + 1) * self.bytes
    }

    /// Whether a write covers what lies between two islands, and touches the piece of the map that `at` is in.
    pub(crate) fn spans_piece_of(&self, at: u64, (offset, len): (u64, u64)) -> bool {
        let piece = |offset| self.place(offset) / STRIDE_BYTES;
        self.end(offset) < offset + len
            && (piece(offset)..=piece(offset + len - 1)).contains(&piece(at))
    }

    /// Bytes on the volume that `len` bytes of the oracle span, with all that lies between them.
    pub(crate) fn span(&self, offset: u64, len: u64) -> u64 {
        if len == 0 { 0 } else { self.place(offset + len - 1) + 1 - self.place(offset) }
    }
}
