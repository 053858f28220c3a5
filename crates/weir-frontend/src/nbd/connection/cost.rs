//! How much memory a request stands for.

use weir_device::{BufferPool, SharedBuf};
use weir_nbd::{Command, ContextStatus};

use crate::nbd::operation::CACHE_PIECE_BYTES;

/// Memory that a queued reply without data stands for, in bytes: its header and, at worst, its message.
pub(super) const REPLY_BYTES: usize = 512;

/// The head of one chunk of a block status, in bytes.
const STATUS_HEAD_BYTES: usize = 40;

/// Memory that the buffers of a command and its reply take, payload and answer together.
pub(super) fn cost_bytes(command: &Command) -> usize {
    let to_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    REPLY_BYTES
        + match command {
            Command::Write { length, .. } | Command::Read { length, .. } => {
                BufferPool::bytes_for(to_usize(u64::from(*length)))
            }
            Command::Cache { length, .. } => {
                BufferPool::bytes_for(to_usize(CACHE_PIECE_BYTES.min(*length)))
            }
            Command::BlockStatus { .. } => to_usize(command.reply_payload_bytes_max()),
            Command::WriteZeroes { .. } | Command::Trim { .. } | Command::Flush => 0,
        }
}

/// Memory of the future that `operate` makes.
pub(super) fn size_of_future<F>(_operate: &impl FnMut(Command, SharedBuf) -> F) -> usize {
    size_of::<Option<F>>()
}

/// Memory that a queued block status stands for, beside [`REPLY_BYTES`].
pub(super) fn status_bytes(statuses: &[ContextStatus]) -> usize {
    statuses.iter().map(|status| STATUS_HEAD_BYTES + 16 * status.extents.len()).sum()
}
