//! Replies on their way out: headers back to back, read data where the device put it, all in one gathered write.

use std::collections::VecDeque;
use std::io::IoSlice;

use weir_device::AlignedBuf;

/// Slices of one gathered write. The kernel takes 1024; past this many, one call more is noise.
const SLICES_MAX: usize = 64;

/// Sent headers that are kept in front of unsent ones at most, in bytes, before the memory is used again.
const SENT_BYTES_MAX: usize = 64 << 10;

/// One reply: bytes of the common header memory, then its data.
struct Reply {
    head_bytes: usize,
    data: Option<AlignedBuf>,
    cost_bytes: usize,
}

impl Reply {
    fn len(&self) -> usize {
        self.head_bytes + self.data.as_ref().map_or(0, |data| data.len())
    }
}

/// Replies that were not sent yet, in the order of their completion.
#[derive(Default)]
pub(super) struct Outgoing {
    heads: Vec<u8>,
    /// Where the headers of the first unsent reply begin in `heads`.
    heads_start: usize,
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that were sent.
    first_sent: usize,
}

impl Outgoing {
    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Queues a reply whose header `put_head` appends. `cost_bytes` comes back when it was sent.
    pub(super) fn push(
        &mut self,
        data: Option<AlignedBuf>,
        cost_bytes: usize,
        put_head: impl FnOnce(&mut Vec<u8>),
    ) {
        let before = self.heads.len();
        put_head(&mut self.heads);
        let head_bytes = self.heads.len() - before;
        assert!(head_bytes > 0, "every reply begins with a header");
        self.replies.push_back(Reply { head_bytes, data, cost_bytes });
    }

    /// Fills `slices` with what goes out next; how many were filled.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        // Headers of neighbouring replies without data are one slice.
        let mut head_start = self.heads_start;
        let mut head_end = self.heads_start;
        let mut skip = self.first_sent;
        for reply in &self.replies {
            if count + 2 > SLICES_MAX {
                break;
            }
            let head_sent = skip.min(reply.head_bytes);
            if head_start == head_end {
                head_start += head_sent;
            }
            head_end += reply.head_bytes;
            skip -= head_sent;
            if let Some(data) = &reply.data {
                if head_start < head_end {
                    slices[count] = IoSlice::new(&self.heads[head_start..head_end]);
                    count += 1;
                }
                head_start = head_end;
                slices[count] = IoSlice::new(&data[skip..]);
                count += 1;
            }
            skip = 0;
        }
        if head_start < head_end {
            slices[count] = IoSlice::new(&self.heads[head_start..head_end]);
            count += 1;
        }
        count
    }

    /// An array for [`Self::slices`].
    pub(super) fn no_slices<'a>() -> [IoSlice<'a>; SLICES_MAX] {
        [IoSlice::new(&[]); SLICES_MAX]
    }

    /// Takes note that `bytes` were sent; the cost of the replies that are complete now.
    pub(super) fn sent(&mut self, bytes: usize) -> usize {
        let mut cost_bytes = 0;
        self.first_sent += bytes;
        while let Some(reply) = self.replies.front() {
            if self.first_sent < reply.len() {
                break;
            }
            self.first_sent -= reply.len();
            self.heads_start += reply.head_bytes;
            cost_bytes += reply.cost_bytes;
            self.replies.pop_front();
        }
        if self.replies.is_empty() {
            assert!(self.first_sent == 0, "no more can be sent than was queued");
            self.heads.clear();
            self.heads_start = 0;
        } else if self.heads_start > SENT_BYTES_MAX {
            self.heads.drain(..self.heads_start);
            self.heads_start = 0;
        }
        cost_bytes
    }

    /// Forgets everything: nobody is there to read it. The cost of what was forgotten.
    pub(super) fn clear(&mut self) -> usize {
        std::mem::take(self).replies.iter().map(|reply| reply.cost_bytes).sum()
    }
}
