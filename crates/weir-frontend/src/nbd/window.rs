//! The receive window: one system call brings many requests, and they are parsed where they lie.

use weir_nbd::limits::OPTION_BYTES_MAX;

/// Bytes of the window of a busy client. A unix socket holds 208 KiB, so that one call can empty it.
pub(super) const WINDOW_BYTES: usize = 256 << 10;

/// Bytes of the window of a client that sends little at a time, or nothing.
const SMALL_BYTES: usize = 4 << 10;

/// Bytes of the window of a handshake: an option fits.
const HANDSHAKE_BYTES: usize = 12 << 10;

/// Payloads from this size on are received into their own buffer instead of the window, in bytes. Below it a copy costs
/// less than a system call of its own.
pub(super) const DIRECT_BYTES_MIN: usize = 64 << 10;

/// Free space at the end of the window below which what is left moves to the front, in bytes.
const TAIL_BYTES_MIN: usize = 128 << 10;

const _: () = assert!(
    WINDOW_BYTES - TAIL_BYTES_MIN > DIRECT_BYTES_MIN + 32,
    "a request with a payload that is not received directly fits beside the tail"
);
const _: () = assert!(HANDSHAKE_BYTES > OPTION_BYTES_MAX + 16, "an option fits");

/// Received bytes that were not taken yet.
pub(super) struct Window {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Window {
    /// A window for a handshake.
    pub(super) fn new() -> Self {
        Self { memory: vec![0; HANDSHAKE_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// A small window that has received `bytes` already.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::holding(bytes, SMALL_BYTES)
    }

    fn holding(bytes: &[u8], capacity: usize) -> Self {
        let mut memory = vec![0; capacity.max(bytes.len())].into_boxed_slice();
        memory[..bytes.len()].copy_from_slice(bytes);
        Self { memory, start: 0, end: bytes.len() }
    }

    /// Bytes that fit.
    pub(super) fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Whether it is full, and what follows would fit a larger one.
    pub(super) fn wants_to_grow(&self) -> bool {
        self.end == self.memory.len() && self.memory.len() < WINDOW_BYTES
    }

    /// Makes room for as much as a socket holds.
    pub(super) fn grow(&mut self) {
        *self = Self::holding(self.unread(), WINDOW_BYTES);
    }

    /// Lets go of memory that an idle client does not need.
    pub(super) fn shrink(&mut self) {
        *self = Self::of(self.unread());
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "only received bytes can be taken");
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Where the next bytes go, at most `bytes_max` of them; never empty while a whole message has not arrived.
    pub(super) fn space(&mut self, bytes_max: usize) -> &mut [u8] {
        let tail_bytes_min = TAIL_BYTES_MIN.min(self.memory.len() / 2);
        if self.memory.len() - self.end < tail_bytes_min && self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let end = self.memory.len().min(self.end.saturating_add(bytes_max));
        &mut self.memory[self.end..end]
    }

    pub(super) fn received(&mut self, bytes: usize) {
        assert!(bytes <= self.memory.len() - self.end, "received bytes lie within the space");
        self.end += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Each case moves megabytes.
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Bytes come out as they went in, while no more than a request that is not whole is left before each receive.
        #[test]
        fn bytes_come_out_as_they_went_in(
            steps in proptest::collection::vec((1..WINDOW_BYTES, 0..DIRECT_BYTES_MIN + 32), 1..12),
        ) {
            let (mut window, mut model, mut next) = (Window::new(), VecDeque::new(), 0_u8);
            window.grow();
            for (bytes_max, left) in steps {
                let space = window.space(bytes_max);
                prop_assert!(!space.is_empty() && space.len() <= bytes_max);
                for byte in &mut *space {
                    *byte = next;
                    model.push_back(next);
                    next = next.wrapping_mul(5).wrapping_add(13);
                }
                let received = space.len();
                window.received(received);
                prop_assert!(window.unread().iter().eq(&model));
                let taken = model.len().saturating_sub(left);
                window.consume(taken);
                model.drain(..taken);
            }
            prop_assert!(window.unread().iter().eq(&model));
        }
    }

    #[test]
    fn a_window_goes_on_with_what_another_received() {
        let mut window = Window::of(b"abc");
        window.space(1)[0] = b'd';
        window.received(1);
        assert_eq!(window.unread(), b"abcd");
        assert_eq!(Window::of(&[7; WINDOW_BYTES]).unread().len(), WINDOW_BYTES);
    }

    #[test]
    fn a_window_grows_when_it_is_full_and_shrinks_again_with_what_is_in_it() {
        let mut window = Window::of(b"");
        let received = window.space(usize::MAX).len();
        window.space(usize::MAX).fill(5);
        assert!(!window.wants_to_grow());
        window.received(received);
        assert!(window.wants_to_grow());
        window.grow();
        assert_eq!((window.capacity(), window.unread()), (WINDOW_BYTES, &[5; SMALL_BYTES][..]));
        window.consume(SMALL_BYTES - 3);
        window.shrink();
        assert_eq!((window.capacity(), window.unread()), (SMALL_BYTES, &[5; 3][..]));
    }

    #[test]
    fn there_is_always_room_beside_a_request_that_is_not_whole() {
        let mut window = Window::new();
        window.grow();
        let received = window.space(usize::MAX).len();
        window.received(received);
        window.consume(received - DIRECT_BYTES_MIN - 31);
        assert!(window.space(usize::MAX).len() >= TAIL_BYTES_MIN);
        assert_eq!(window.unread().len(), DIRECT_BYTES_MIN + 31);
    }
}
