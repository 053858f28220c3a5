//! Bytes of simulated files: sparse, so that a file of zeroes costs nothing.

use std::collections::BTreeMap;

use weir_device::SharedBuf;

/// Granularity of the sparse store, in bytes. Unrelated to sectors.
const PAGE_BYTES: usize = 4096;

/// What a write brings.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Zeroes(u64),
    Pieces { pieces: Vec<SharedBuf>, len: u64 },
}

impl Content {
    pub(super) fn of_pieces(pieces: Vec<SharedBuf>) -> Self {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self::Pieces { pieces, len }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Zeroes(len) | Self::Pieces { len, .. } => *len,
        }
    }

    /// Copies the content's bytes `from..to`.
    pub(super) fn copy_to(&self, from: u64, to: u64, bytes: &mut [u8]) {
        self.for_each_run(from, to, |at, len, run| {
            let part = &mut bytes[index(at - from)..index(at + len - from)];
            match run {
                Some(run) => part.copy_from_slice(run),
                None => part.fill(0),
            }
        });
    }

    /// Calls `each` with the position and bytes of every run within `from..to`. Zeroes come as
    /// `None`.
    pub(super) fn for_each_run(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(u64, u64, Option<&[u8]>),
    ) {
        let Self::Pieces { pieces, .. } = self else {
            each(from, to - from, None);
            return;
        };
        let mut start = 0;
        for piece in pieces {
            let end = start + piece.len() as u64;
            let (first, last) = (from.max(start), to.min(end));
            if first < last {
                let bytes = &piece[index(first - start)..index(last - start)];
                each(first, last - first, Some(bytes));
            }
            start = end;
        }
    }
}

/// A position or length inside simulated memory as an index.
pub(super) fn index(value: u64) -> usize {
    usize::try_from(value).expect("simulated files fit the address space")
}

/// Pages that have been written; everything else is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseBytes {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

/// Page number, position inside it and length, for each page that a range touches.
fn pages_of(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let page_bytes = PAGE_BYTES as u64;
    let mut at = offset;
    let end = offset + len;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (page, start) = (at / page_bytes, at % page_bytes);
        let part = (page_bytes - start).min(end - at);
        at += part;
        Some((page, index(start), index(part)))
    })
}

impl SparseBytes {
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, start, part) in pages_of(offset, bytes.len() as u64) {
            let (head, tail) = rest.split_at(part);
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES]));
            page[start..start + part].copy_from_slice(head);
            rest = tail;
        }
    }

    pub(super) fn write_zeroes(&mut self, offset: u64, len: u64) {
        let page_bytes = PAGE_BYTES as u64;
        let (first, end) = (offset / page_bytes, (offset + len).div_ceil(page_bytes));
        let touched: Vec<u64> = self.pages.range(first..end).map(|(page, _)| *page).collect();
        for page in touched {
            let page_start = page * page_bytes;
            let from = index(offset.max(page_start) - page_start);
            let to = index((offset + len).min(page_start + page_bytes) - page_start);
            if to - from == PAGE_BYTES {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                bytes[from..to].fill(0);
            }
        }
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let len = bytes.len() as u64;
        let mut rest = bytes;
        for (page, start, part) in pages_of(offset, len) {
            let (head, tail) = rest.split_at_mut(part);
            match self.pages.get(&page) {
                Some(page) => head.copy_from_slice(&page[start..start + part]),
                None => head.fill(0),
            }
            rest = tail;
        }
    }

    /// A copy of a range, or `None` where nothing but zeroes was ever written.
    pub(super) fn copy_of(&self, offset: u64, len: u64) -> Option<Box<[u8]>> {
        let page_bytes = PAGE_BYTES as u64;
        let (first, end) = (offset / page_bytes, (offset + len).div_ceil(page_bytes));
        self.pages.range(first..end).next()?;
        let mut copy = vec![0; index(len)].into_boxed_slice();
        self.read(offset, &mut copy);
        Some(copy)
    }

    /// Flips the bits of `mask` in one byte.
    pub(super) fn flip(&mut self, offset: u64, mask: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        self.write(offset, &[byte[0] ^ mask]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sparse_bytes_equal_a_plain_array(
            operations in prop::collection::vec(
                (0u64..20_000, 0u64..9_000, any::<Option<u8>>()),
                1..20,
            )
        ) {
            let mut plain = vec![0u8; 30_000];
            let mut sparse = SparseBytes::default();
            for (offset, len, byte) in operations {
                plain[index(offset)..index(offset + len)].fill(byte.unwrap_or(0));
                match byte {
                    Some(byte) => sparse.write(offset, &vec![byte; index(len)]),
                    None => sparse.write_zeroes(offset, len),
                }
            }
            let mut all = vec![1; plain.len()];
            sparse.read(0, &mut all);
            prop_assert!(all == plain);
            let copy = sparse.copy_of(777, 5_000);
            prop_assert!(copy.unwrap_or(vec![0; 5_000].into()) == plain[777..5_777].into());
        }
    }

    #[test]
    fn runs_of_a_vectored_write_are_cut_to_the_range() {
        let content =
            Content::of_pieces(vec![SharedBuf::copy_of(b"abc"), SharedBuf::copy_of(b"defg")]);
        let mut seen = Vec::new();
        content.for_each_run(1, 5, |at, len, bytes| {
            seen.push((at, len, bytes.map(<[u8]>::to_vec)));
        });
        assert_eq!(seen, [(1, 2, Some(b"bc".to_vec())), (3, 2, Some(b"de".to_vec()))]);
    }
}
