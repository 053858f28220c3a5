//! The bytes of a reply: slices that share the memory where a device has them.

use std::ops::Deref;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{AlignedBuf, SharedBuf};

/// A run of bytes that never change, wherever they lie.
#[derive(Clone, Debug)]
pub enum Slice {
    /// In a buffer of its own, or that others share.
    Buffer(SharedBuf),
    /// In memory of a cache.
    Cached(Bytes),
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Buffer(bytes) => bytes,
            Self::Cached(bytes) => bytes,
        }
    }
}

/// The bytes of a reply, in order. A single slice takes no memory beside its own.
#[derive(Clone, Debug, Default)]
pub struct Data {
    slices: SmallVec<[Slice; 1]>,
}

impl Data {
    /// Appends a slice; an empty one is left out.
    pub fn push(&mut self, slice: Slice) {
        if !slice.is_empty() {
            self.slices.push(slice);
        }
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: Self) {
        self.slices.extend(other.slices);
    }

    /// The slices, none of them empty.
    #[must_use]
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slices.iter().map(|slice| slice.len()).sum()
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Copies all bytes into `buf`.
    ///
    /// # Panics
    /// If `buf` has another length.
    pub fn copy_to(&self, buf: &mut [u8]) {
        let mut rest = buf;
        for slice in &self.slices {
            let (target, behind) = rest.split_at_mut(slice.len());
            target.copy_from_slice(slice);
            rest = behind;
        }
        assert!(rest.is_empty(), "a reply is as long as what was asked for");
    }

    /// A copy of all bytes in one piece.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
        bytes
    }
}

impl From<AlignedBuf> for Data {
    fn from(buf: AlignedBuf) -> Self {
        buf.freeze().into()
    }
}

impl From<SharedBuf> for Data {
    fn from(bytes: SharedBuf) -> Self {
        let mut data = Self::default();
        data.push(Slice::Buffer(bytes));
        data
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        let mut data = Self::default();
        data.push(Slice::Cached(bytes));
        data
    }
}
