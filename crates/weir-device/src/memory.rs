//! A device in memory: the simplest endpoint, and the reference of the conformance suite.

use std::cell::RefCell;

use crate::{
    AlignedBuf, Body, Change, Data, Device, DeviceError, DeviceInfo, Extent, ExtentState, IoHeader,
    Operation, Reply,
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

    fn read(&self, offset: u64, len: u64) -> Data {
        let mut buf = AlignedBuf::zeroed(to_usize(len));
        let pages = self.pages.borrow();
        for part in page_parts(offset, len) {
            if let Some(page) = pages.get(&part.page) {
                buf[part.in_buffer].copy_from_slice(&page[part.within]);
            }
        }
        buf.into()
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        for part in page_parts(offset, data.len() as u64) {
            let page = pages
                .entry(part.page)
                .or_insert_with(|| vec![0; to_usize(PAGE_BYTES)].into_boxed_slice());
            page[part.within].copy_from_slice(&data[part.in_buffer]);
        }
    }

    fn clear(&self, offset: u64, len: u64) {
        let end = offset + len;
        let mut pages = self.pages.borrow_mut();
        let whole = offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        if whole.start < whole.end {
            let mut tail = pages.split_off(&whole.start);
            pages.append(&mut tail.split_off(&whole.end));
        }
        for edge in [offset / PAGE_BYTES, end / PAGE_BYTES] {
            if let Some(page) = pages.get_mut(&edge) {
                let start = offset.max(edge * PAGE_BYTES) - edge * PAGE_BYTES;
                let stop = end.min((edge + 1) * PAGE_BYTES) - edge * PAGE_BYTES;
                if start < stop {
                    page[to_usize(start)..to_usize(stop)].fill(0);
                }
            }
        }
    }

    fn extents(&self, offset: u64, len: u64, extents_max: usize) -> Vec<Extent> {
        let pages = self.pages.borrow();
        let mut extents: Vec<Extent> = Vec::new();
        for part in page_parts(offset, len) {
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
        extents
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::local(self.size)
    }

    async fn call(&self, _io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(self.size)?;
        let body = match operation {
            Operation::Read { offset, len } => Body::Data(self.read(offset, len)),
            Operation::Write { offset, data, .. } => {
                self.write(offset, &data);
                Body::Done
            }
            Operation::WriteZeroes { offset, len, .. } | Operation::Discard { offset, len } => {
                self.clear(offset, len);
                Body::Done
            }
            Operation::Batch { segments, .. } => {
                for segment in segments {
                    match segment.change {
                        Change::Data(data) => self.write(segment.offset, &data),
                        Change::Zeroes(len) | Change::Discard(len) => {
                            self.clear(segment.offset, len);
                        }
                    }
                }
                Body::Done
            }
            Operation::Flush(_) => Body::Done,
            Operation::Extents { offset, len, extents_max } => {
                Body::Extents(self.extents(offset, len, extents_max))
            }
        };
        Ok(Reply::new(body))
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
