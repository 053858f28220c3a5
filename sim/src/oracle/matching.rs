//! Which writes the bytes of a segment are of.

use super::{Item, Oracle};
use crate::content::{Pattern, WriteId, matching_len};

/// Neighbouring bytes that are of one of the same writes.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    /// Whose the bytes are: more than one where they cannot be told apart; none where the range cannot be read.
    pub(super) items: Vec<Item>,
}

/// Whether `bytes` at `at` are those of a write.
pub(super) fn shows(id: WriteId, pattern: Pattern, at: u64, bytes: &[u8]) -> bool {
    matching_len(id, pattern, at, bytes) == bytes.len()
}

/// Cuts `bytes`, which stand at `start`, into runs of the `allowed` writes; the first byte of none is the error.
///
/// A segment shows one write as a rule. After a crash a write in flight may show in part, so what does not match as a
/// whole is matched piece by piece, the longest match first.
pub(super) fn match_segment(
    oracle: &Oracle,
    start: u64,
    bytes: &[u8],
    allowed: &[Item],
    runs: &mut Vec<Run>,
) -> Result<(), u64> {
    let mut done = 0;
    while done < bytes.len() {
        let at = start + done as u64;
        let rest = &bytes[done..];
        let mut longest = 0;
        let mut items = Vec::new();
        for item in allowed {
            let len = matching_len(item.id, oracle.write(item.id).pattern, at, rest);
            if len > longest {
                longest = len;
                items.clear();
            }
            if len == longest && len > 0 {
                items.push(*item);
            }
        }
        if longest == 0 {
            return Err(at);
        }
        done += longest;
        runs.push(Run { start: at, items });
    }
    Ok(())
}
