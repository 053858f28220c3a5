//! Versions of the format of objects.

use crate::format::DecodeError;
use crate::format::blocks;
use crate::format::frame::{Codec, Frame};

/// Version of the format of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectVersion {
    /// Without an opening.
    V1,
    /// With one. Checkpoints are still of it.
    V2,
    /// Raw frames in blocks, and extents that keep their place modulo 4 KiB.
    V3,
    /// Compressed frames in blocks as well, where they are read so.
    #[default]
    V4,
}

impl ObjectVersion {
    /// The newest that this code reads.
    const NEWEST: Self = Self::V4;

    pub(super) fn code(self) -> u16 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
            Self::V4 => 4,
        }
    }

    /// The number that a manifest says, so that programs that do not read such objects refuse the volume.
    pub(crate) fn if_older_programs_refuse(self) -> Option<u32> {
        (self >= Self::V3).then(|| self.code().into())
    }

    /// Whether a frame of this codec is read in blocks.
    pub(crate) fn has_blocks(self, codec: Codec) -> bool {
        match codec {
            Codec::Raw => self >= Self::V3,
            Codec::Lz4Blocks => true,
            Codec::Lz4 | Codec::Zstd => false,
        }
    }

    /// How many checksums of blocks, and how many lengths, the header of an object has of a frame.
    pub(crate) fn in_tables(self, frame: &Frame, is_sealed: bool) -> (u32, u32) {
        let of = |has: bool| if has { blocks::count(frame.raw_len) } else { 0 };
        (of(self.has_blocks(frame.codec) && !is_sealed), of(frame.codec == Codec::Lz4Blocks))
    }

    pub(super) fn from_code(code: u16) -> Result<Self, DecodeError> {
        match code {
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            3 => Ok(Self::V3),
            4 => Ok(Self::V4),
            _ => {
                let (found, known) = (code.into(), Self::NEWEST.code().into());
                Err(DecodeError::Version { what: "object header", found, known })
            }
        }
    }
}
