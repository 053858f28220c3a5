//! What a map remembers of the ranges that are lost: to damage in a journal, or given up by a repair. The status of the
//! volume names them until they are written anew; a look through the whole map for each status would take too long.

use weir_extent::ExtentMap;

use super::objects::is_lost;

/// Ranges that are remembered.
const RANGES_MAX: usize = 16;

/// Ranges, as offset and length, that were lost when they were noted.
#[derive(Debug, Default)]
pub(crate) struct LostRanges {
    ranges: Vec<(u64, u64)>,
    /// There were more than are remembered.
    has_more: bool,
}

impl LostRanges {
    /// Remembers a range of `map`.
    pub(crate) fn note(&mut self, map: &ExtentMap, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        if let Some((at, known)) = self.ranges.last_mut()
            && *at + *known == offset
        {
            *known += len;
            return;
        }
        if self.ranges.len() == RANGES_MAX {
            self.ranges.retain(|(offset, len)| is_lost(map, *offset, *len));
        }
        match self.ranges.len() < RANGES_MAX {
            true => self.ranges.push((offset, len)),
            false => self.has_more = true,
        }
    }

    /// Those that are remembered. Some may have been written since.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Whether there were more.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }
}
