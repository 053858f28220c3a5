//! Reading and writing big-endian integers. Every read is checked; the wire is never trusted.

use crate::limits::STRING_BYTES_MAX;

/// What a decoder made of the bytes it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<T> {
    /// At least so many more bytes are needed.
    NeedMore(usize),
    /// A whole message, and the bytes it took.
    Message {
        /// What was sent.
        message: T,
        /// Bytes to remove from the input.
        consumed: usize,
    },
}

impl<T> Decoded<T> {
    /// Applies `f` to the message.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Decoded<U> {
        match self {
            Self::NeedMore(bytes) => Decoded::NeedMore(bytes),
            Self::Message { message, consumed } => {
                Decoded::Message { message: f(message), consumed }
            }
        }
    }
}

/// A cursor over received bytes. Every method answers `None` when the bytes run out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(head)
    }
}

/// A string of the protocol: UTF-8, bounded, no NUL.
pub(crate) fn string(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > STRING_BYTES_MAX || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

pub(crate) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// The length of something that a limit keeps far below 4 GiB.
pub(crate) fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("limits keep every encoded length below 4 GiB")
}
