//! A device in memory: the simplest endpoint, and the reference of the conformance suite.

use std::cell::RefCell;

use crate::{
    Device, DeviceError, Extent, ExtentState, IoHeader, SharedBuf, WriteFlags, WriteZeroesFlags,
    check_bounds,
};

/// Bytes per page; a page that was never written takes no memory.
const PAGE_BYTES: u64 = 64 << 10;

/// A sparse device in memory. Nothing survives the process; every flush is a promise kept only within it.
#[derive(Debug)]
pub struct MemoryDevice {
    size: u64,
    pages: RefCell<std::collections::BTreeMap<u64, Box<[u8]>>>,
}

/// The part of a page that a range covers.
struct PagePart {
    page: u64,
    within: std::ops::Range<usize>,
    in_buffer: std::ops::Range<usize>,
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("a length within one page or buffer fits the address space")
}

fn page_parts(offset: u64, len: u64) -> impl Iterator<Item = PagePart> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let page = at / PAGE_BYTES;
        let stop = ((page + 1) * PAGE_BYTES).min(end);
        let part = PagePart {
            page,
            within: to_usize(at % PAGE_BYTES)..to_usize(stop - page * PAGE_BYTES),
            in_buffer: to_usize(at - offset)..to_usize(stop - offset),
        };
        at = stop;
        Some(part)
    })
}

impl MemoryDevice {
    /// A device of `size` bytes, all zero.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size, pages: RefCell::default() }
    }

    fn clear(&self, io: &IoHeader) -> Result<(), DeviceError> {
        let range = check_bounds(io, self.size)?;
        let mut pages = self.pages.borrow_mut();
        let whole = range.start.div_ceil(PAGE_BYTES)..range.end / PAGE_BYTES;
        if whole.start < whole.end {
            let mut tail = pages.split_off(&whole.start);
            pages.append(&mut tail.split_off(&whole.end));
        }
        for edge in [range.start / PAGE_BYTES, range.end / PAGE_BYTES] {
            if let Some(page) = pages.get_mut(&edge) {
                let start = range.start.max(edge * PAGE_BYTES) - edge * PAGE_BYTES;
                let stop = range.end.min((edge + 1) * PAGE_BYTES) - edge * PAGE_BYTES;
                page[to_usize(start)..to_usize(stop)].fill(0);
            }
        }
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    async fn read(&self, io: IoHeader, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_bounds(&io, self.size)?;
        let pages = self.pages.borrow();
        for part in page_parts(io.offset, buf.len() as u64) {
            match pages.get(&part.page) {
                Some(page) => buf[part.in_buffer].copy_from_slice(&page[part.within]),
                None => buf[part.in_buffer].fill(0),
            }
        }
        Ok(())
    }

    async fn write(
        &self,
        io: IoHeader,
        data: SharedBuf,
        _flags: WriteFlags,
    ) -> Result<(), DeviceError> {
        check_bounds(&io, self.size)?;
        let mut pages = self.pages.borrow_mut();
        for part in page_parts(io.offset, data.len() as u64) {
            let page = pages
                .entry(part.page)
                .or_insert_with(|| vec![0; to_usize(PAGE_BYTES)].into_boxed_slice());
            page[part.within].copy_from_slice(&data[part.in_buffer]);
        }
        Ok(())
    }

    async fn write_zeroes(
        &self,
        io: IoHeader,
        _flags: WriteZeroesFlags,
    ) -> Result<(), DeviceError> {
        self.clear(&io)
    }

    async fn discard(&self, io: IoHeader) -> Result<(), DeviceError> {
        self.clear(&io)
    }

    async fn flush(&self, _io: IoHeader) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn extents(&self, io: IoHeader, extents_max: usize) -> Result<Vec<Extent>, DeviceError> {
        check_bounds(&io, self.size)?;
        let pages = self.pages.borrow();
        let mut extents: Vec<Extent> = Vec::new();
        for part in page_parts(io.offset, io.len) {
            let state =
                if pages.contains_key(&part.page) { ExtentState::Data } else { ExtentState::Hole };
            let len = part.in_buffer.len() as u64;
            let full = extents.len() == extents_max;
            match extents.last_mut() {
                Some(last) if last.state == state => last.len += len,
                _ if full => break,
                _ => extents.push(Extent { len, state }),
            }
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_device_conforms() {
        for seed in 0..20 {
            let device = MemoryDevice::new(1_000_003);
            crate::conformance::run(&device, seed, 300).await;
        }
    }
}
