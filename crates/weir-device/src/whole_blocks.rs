//! Changes of what takes whole blocks only: what lies beside them is read first.

use crate::{BufferPool, ByteRange, Data, DeviceError, SharedBuf};

/// The blocks around a range, with `data` in it, and beside it what `read` finds in the first and in the last of them.
/// Whoever calls it has these blocks locked until they are written: what others change there meanwhile would be undone.
///
/// # Errors
/// Those of `read`.
pub async fn whole_blocks(
    buffers: &BufferPool,
    (range, data): (ByteRange, &[u8]),
    block_bytes: u64,
    read: impl AsyncFn(ByteRange) -> Result<Data, DeviceError>,
) -> Result<SharedBuf, DeviceError> {
    let around = range.blocks_around(block_bytes);
    let at = |offset: u64| {
        usize::try_from(offset - around.start).expect("what is in memory fits the address space")
    };
    let mut whole = buffers.alloc(at(around.end));
    let first = ByteRange::new(around.start, around.start + block_bytes);
    let last = ByteRange::new(around.end - block_bytes, around.end);
    if range.start > around.start || (range.end < around.end && first == last) {
        read(first).await?.copy_to(&mut whole[at(first.start)..at(first.end)]);
    }
    if range.end < around.end && first != last {
        read(last).await?.copy_to(&mut whole[at(last.start)..at(last.end)]);
    }
    whole[at(range.start)..at(range.end)].copy_from_slice(data);
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::testing;

    #[test]
    fn beside_a_change_is_what_was_there_and_no_block_in_between_is_read() {
        const BLOCK: usize = 4;
        let (device, env) = ([9; 4 * BLOCK], testing::env(1));
        for start in 0..device.len() {
            for end in start + 1..=device.len() {
                let range = ByteRange::new(start as u64, end as u64);
                let blocks = RefCell::new(Vec::new());
                let read = async |block: ByteRange| {
                    blocks.borrow_mut().push(block.start / BLOCK as u64);
                    Ok(SharedBuf::copy_of(&[9; BLOCK]).into())
                };
                let data = vec![1; end - start];
                let whole = whole_blocks(&env.buffers, (range, &data), BLOCK as u64, read);
                let whole = futures_util::FutureExt::now_or_never(whole).expect("nothing waits");
                let mut expected = device;
                expected[start..end].fill(1);
                let around = start / BLOCK * BLOCK..end.next_multiple_of(BLOCK);
                assert_eq!(whole.expect("read")[..], expected[around], "{range:?}");
                let mut partly = vec![];
                partly.extend((start % BLOCK > 0).then_some((start / BLOCK) as u64));
                partly.extend((end % BLOCK > 0).then_some((end / BLOCK) as u64));
                partly.dedup();
                assert_eq!(blocks.into_inner(), partly, "{range:?}");
            }
        }
    }
}
