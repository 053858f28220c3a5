//! Messages on their way out: headers back to back, data where its owner put it, all in one gathered write.

use std::collections::VecDeque;
use std::io::IoSlice;

use weir_device::{BufferPool, Data, Slice, mutant};

/// Slices of one gathered write. The kernel takes 1024; past this many, one call more is noise.
const SLICES_MAX: usize = 64;

/// Sent headers that are kept in front of unsent ones at most, in bytes, before the memory is used again.
const SENT_BYTES_MAX: usize = 64 << 10;

/// One message: bytes of the common header memory, then its data.
#[derive(Debug)]
struct Message {
    head_bytes: usize,
    data: Data,
    /// The data shares no memory with caches and devices.
    is_detached: bool,
    cost_bytes: usize,
}

impl Message {
    fn len(&self) -> usize {
        self.head_bytes + self.data.len()
    }
}

/// Whether the memory of the data is held by nobody else, and is no more than the data needs.
fn is_own(data: &Data) -> bool {
    data.slices().iter().all(|slice| match slice {
        Slice::Buffer(bytes) => {
            !bytes.is_shared() && bytes.memory_bytes() <= BufferPool::bytes_for(bytes.len())
        }
        Slice::Cached(_) => false,
    })
}

/// Messages that were not sent yet, in the order of their completion.
#[derive(Debug, Default)]
pub struct Outgoing {
    heads: Vec<u8>,
    /// Where the headers of the first unsent message begin in `heads`.
    heads_start: usize,
    messages: VecDeque<Message>,
    /// Bytes of the first message that were sent.
    first_sent: usize,
}

impl Outgoing {
    /// Messages that were not sent whole.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether everything was sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Queues a message, or a part of one, whose header `put_head` appends. `cost_bytes` comes back when it was sent.
    ///
    /// # Panics
    /// If there is neither a header nor data.
    pub fn push(&mut self, data: Data, cost_bytes: usize, put_head: impl FnOnce(&mut Vec<u8>)) {
        let before = self.heads.len();
        put_head(&mut self.heads);
        let head_bytes = self.heads.len() - before;
        let has_bytes = head_bytes > 0 || !data.is_empty();
        assert!(has_bytes, "there is something to send");
        let is_detached = data.is_empty();
        self.messages.push_back(Message { head_bytes, data, is_detached, cost_bytes });
    }

    /// Copies what is queued into buffers of the connection: its client does not take it, and must not hold the memory
    /// of a cache or the room of a journal meanwhile. The cost of a message covers its copy.
    pub fn detach(&mut self, pool: &BufferPool) {
        for message in self.messages.iter_mut().rev() {
            if std::mem::replace(&mut message.is_detached, true) || is_own(&message.data) {
                continue;
            }
            let mut copy = pool.alloc(message.data.len());
            message.data.copy_to(&mut copy);
            message.data = copy.into();
        }
    }

    /// Fills `slices` with what goes out next; how many were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        // Headers of neighbouring messages without data are one slice.
        let mut head_start = self.heads_start;
        let mut head_end = self.heads_start;
        let mut skip = self.first_sent;
        for message in &self.messages {
            if count + 2 > SLICES_MAX {
                break;
            }
            let head_sent = skip.min(message.head_bytes);
            if head_start == head_end && !mutant("head_sent_twice") {
                head_start += head_sent;
            }
            head_end += message.head_bytes;
            skip -= head_sent;
            if !message.data.is_empty() {
                if head_start < head_end {
                    slices[count] = IoSlice::new(&self.heads[head_start..head_end]);
                    count += 1;
                }
                head_start = head_end;
            }
            for slice in message.data.slices() {
                if skip >= slice.len() {
                    skip -= slice.len();
                    continue;
                }
                if count == SLICES_MAX {
                    return count;
                }
                slices[count] = IoSlice::new(&slice[skip..]);
                count += 1;
                skip = 0;
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
    #[must_use]
    pub fn no_slices<'a>() -> [IoSlice<'a>; SLICES_MAX] {
        [IoSlice::new(&[]); SLICES_MAX]
    }

    /// Takes note that `bytes` were sent; the cost of the messages that are complete now.
    ///
    /// # Panics
    /// If more was sent than was queued.
    pub fn sent(&mut self, bytes: usize) -> usize {
        let mut cost_bytes = 0;
        self.first_sent += bytes;
        while let Some(message) = self.messages.front() {
            if self.first_sent < message.len() {
                break;
            }
            self.first_sent -= message.len();
            self.heads_start += message.head_bytes;
            cost_bytes += message.cost_bytes;
            self.messages.pop_front();
        }
        if self.messages.is_empty() {
            assert!(self.first_sent == 0, "no more can be sent than was queued");
            self.heads.clear();
            self.heads_start = 0;
        } else if self.heads_start > SENT_BYTES_MAX {
            self.heads.drain(..self.heads_start);
            self.heads_start = 0;
        }
        cost_bytes
    }

    /// Lets go of memory that an idle client does not need.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Forgets everything: nobody is there to read it. The cost of what was forgotten.
    pub fn clear(&mut self) -> usize {
        std::mem::take(self).messages.iter().map(|message| message.cost_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of a reply with a header of `head` bytes and `data` bytes of data, all of them `mark`.
    fn push(outgoing: &mut Outgoing, model: &mut VecDeque<u8>, head: usize, data: usize, mark: u8) {
        let mut slices = Data::default();
        let part = data.div_ceil(1 + usize::from(mark) % 3).max(1);
        for from in (0..data).step_by(part) {
            let bytes = vec![mark; part.min(data - from)];
            slices.append(weir_device::SharedBuf::copy_of(&bytes).into());
        }
        outgoing.push(slices, head + data, |out| out.resize(out.len() + head, mark));
        model.resize(model.len() + head + data, mark);
    }

    /// Sends up to `bytes_max`, as a socket would take them; the cost that came back.
    fn send(outgoing: &mut Outgoing, model: &mut VecDeque<u8>, bytes_max: usize) -> usize {
        let mut slices = Outgoing::no_slices();
        let count = outgoing.slices(&mut slices);
        let offered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        assert!(slices[..count].iter().all(|slice| !slice.is_empty()), "no empty slices");
        assert_eq!(offered.is_empty(), model.is_empty(), "something is offered while there is any");
        let bytes = bytes_max.min(offered.len());
        let expected: Vec<u8> = model.drain(..bytes).collect();
        assert_eq!(offered[..bytes], expected);
        outgoing.sent(bytes)
    }

    proptest! {
        // Each case moves hundreds of kilobytes.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn replies_leave_whole_and_in_order_however_the_socket_takes_them(
            steps in proptest::collection::vec(
                (proptest::collection::vec((1..50_usize, 0..3_usize, 1..6000_usize), 0..40),
                 1..40_000_usize), 1..20),
        ) {
            let (mut outgoing, mut model) = (Outgoing::default(), VecDeque::new());
            let (mut cost_in, mut cost_out, mut mark) = (0, 0, 0_u8);
            let pool = BufferPool::new(1 << 20);
            for (replies, bytes_max) in steps {
                for (head, has_data, data) in replies {
                    let data = if has_data == 0 { data } else { 0 };
                    push(&mut outgoing, &mut model, head, data, mark);
                    mark = mark.wrapping_add(1);
                    cost_in += head + data;
                }
                cost_out += send(&mut outgoing, &mut model, bytes_max);
                if bytes_max % 2 == 0 {
                    outgoing.detach(&pool);
                }
            }
            while !outgoing.is_empty() {
                cost_out += send(&mut outgoing, &mut model, usize::MAX);
            }
            prop_assert!(model.is_empty());
            prop_assert_eq!(cost_in, cost_out);
        }
    }

    #[test]
    fn memory_of_sent_headers_is_used_again_though_the_queue_never_empties() {
        let (mut outgoing, mut model) = (Outgoing::default(), VecDeque::new());
        push(&mut outgoing, &mut model, 300, 0, 0);
        for mark in 0..10_000_u16 {
            push(&mut outgoing, &mut model, 300, 0, mark.to_le_bytes()[0]);
            send(&mut outgoing, &mut model, 300);
        }
        assert_eq!(outgoing.len(), 1);
        assert!(outgoing.heads.len() <= SENT_BYTES_MAX + 1000, "{} bytes", outgoing.heads.len());
    }

    #[test]
    fn what_is_forgotten_gives_its_cost_back() {
        let (mut outgoing, mut model) = (Outgoing::default(), VecDeque::new());
        push(&mut outgoing, &mut model, 10, 20, 1);
        push(&mut outgoing, &mut model, 5, 0, 2);
        assert_eq!(send(&mut outgoing, &mut model, 12), 0);
        assert_eq!(outgoing.clear(), 35);
        assert!(outgoing.is_empty());
    }
}
