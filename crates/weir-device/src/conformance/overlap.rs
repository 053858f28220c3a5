//! Operations that are in flight together, and operations whose caller goes away.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::future::join_all;

use super::{Dice, OVERLAP_MAX, apply, changes, check_read, index, range_of};
use crate::{ByteRange, Device, DeviceExt, FlushScope, IoHeader, Operation, SharedBuf};

/// What each byte of a device may be while operations without an order are in flight.
struct Possible<'a> {
    before: &'a [u8],
    operations: &'a [Operation],
}

impl Possible<'_> {
    /// Rule 1 for bytes of a range that were read beside the operations, or after all of them (`is_over`).
    fn check(&self, range: ByteRange, bytes: &[u8], is_over: bool, context: &str) {
        let mut is_changed = vec![false; bytes.len()];
        let mut is_explained = vec![false; bytes.len()];
        for operation in self.operations {
            // A batch that goes over a byte twice may be seen in the middle.
            changes(operation, |changed, data| {
                let Some(part) = changed.intersect(range) else { return };
                let at = index(range_of(part.start - range.start, part.len()));
                let new =
                    data.map(|data| &data[index(range_of(part.start - changed.start, part.len()))]);
                is_changed[at.clone()].fill(true);
                for (nth, here) in at.enumerate() {
                    is_explained[here] |= bytes[here] == new.map_or(0, |new| new[nth]);
                }
            });
        }
        for (here, byte) in bytes.iter().enumerate() {
            let is_before =
                !(is_over && is_changed[here]) && *byte == self.before[index(range).start + here];
            let at = range.start + here as u64;
            assert!(
                is_before || is_explained[here],
                "rule 1: byte {at} is of no operation (over: {is_over}, {context})"
            );
        }
    }

    /// All that the operations change.
    fn hull(&self) -> ByteRange {
        let mut hull: Option<ByteRange> = None;
        for operation in self.operations {
            changes(operation, |range, _| {
                let so_far = hull.unwrap_or(range);
                hull =
                    Some(ByteRange::new(so_far.start.min(range.start), so_far.end.max(range.end)));
            });
        }
        hull.unwrap_or(ByteRange::new(0, 0))
    }
}

/// Several operations in flight at once, which often overlap. Their order is not known, so what is there afterwards
/// counts, if it can be explained.
pub(super) async fn together<D: Device>(
    device: &D,
    model: &mut [u8],
    dice: &mut Dice,
    size: u64,
    context: &str,
) {
    let near = dice.range(size);
    let count = 2 + dice.below(OVERLAP_MAX - 1);
    let operations: Vec<Operation> = (0..count)
        .map(|_| {
            let range = match dice.below(3) {
                0 => dice.range(size),
                1 => near,
                _ => ByteRange::new(near.start, near.start + dice.below(near.len() + 1)),
            };
            match dice.below(6) {
                0 | 1 => Operation::Read { offset: range.start, len: range.len() },
                2 => Operation::Flush(FlushScope::Local),
                _ => dice.change(range, size),
            }
        })
        .collect();
    let calls = operations.iter().map(|one| device.call(IoHeader::internal(), one.clone()));
    let replies = join_all(calls).await;
    let possible = Possible { before: model, operations: &operations };
    for (operation, reply) in operations.iter().zip(replies) {
        let reply = reply.unwrap_or_else(|e| panic!("{operation:?} failed ({context}): {e}"));
        if let Operation::Read { offset, len } = operation {
            let bytes = reply.into_data().expect("a read has data").to_vec();
            possible.check(range_of(*offset, *len), &bytes, false, context);
        }
    }
    let hull = possible.hull();
    let mut after = vec![0; index(hull).len()];
    device.read(hull.start, &mut after).await.expect("read");
    possible.check(hull, &after, true, context);
    model[index(hull)].copy_from_slice(&after);
}

/// An operation whose caller goes away after a few turns. It may have happened or not; but a write that comes later and
/// returns is not undone by it (rule 5).
pub(super) async fn given_up<D: Device>(
    device: &D,
    model: &mut [u8],
    dice: &mut Dice,
    range: ByteRange,
    context: &str,
) {
    let (offset, len) = (range.start, range.len());
    let size = model.len() as u64;
    let operation = match dice.below(6) {
        0 => Operation::Read { offset, len },
        1 => Operation::Extents { offset, len, extents_max: 5 },
        2 => Operation::Flush(FlushScope::Local),
        _ => dice.change(range, size),
    };
    let touched = operation.clone();
    polled(device.call(IoHeader::internal(), operation), dice.below(4)).await;
    let mut later = Vec::new();
    changes(&touched, |range, _| later.push(range));
    for range in later {
        let data = SharedBuf::copy_of(&vec![dice.byte(); index(range).len()]);
        let write = Operation::Write { offset: range.start, data, fua: false };
        apply(model, &write);
        device.internal(write).await.expect("written after one that was given up");
    }
    for _ in 0..dice.below(3) {
        tokio::task::yield_now().await;
    }
    let (start, len) = touched.span();
    let context = format!("{context}, after {:?} was given up", touched.kind());
    check_read(device, model, range_of(start, len), &context).await;
}

/// Polls a call so many times, and drops it.
async fn polled<T>(call: impl Future<Output = T>, turns: u64) {
    let mut call = pin!(call);
    for _ in 0..turns {
        let is_done = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        if is_done {
            return;
        }
        tokio::task::yield_now().await;
    }
}
