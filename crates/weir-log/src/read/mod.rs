//! Reads: overlay, then object map, then the block store (memory, local disk), then ranged GETs.

pub(crate) mod block_store;
pub(crate) mod bulk;
pub(crate) mod cache;
pub(crate) mod disk;
pub(crate) mod failed;
pub(crate) mod fetch;
pub(crate) mod history;
pub(crate) mod parts;
pub(crate) mod table;
pub(crate) mod warm;

use std::rc::Rc;

use smallvec::SmallVec;
use weir_device::{Data, DeviceError, ErrorKind, Extent, ExtentState, VolumeId};
use weir_journal::JournalPos;

use crate::ids::ObjectId;
use crate::limits::{PART_BYTES_MAX, READ_AHEAD_BYTES, READ_AHEAD_STREAK};
use crate::map::objects::{ObjectMap, ObjectPlace};
use crate::read::fetch::{Fetcher, frame_span, slices_of};
use crate::write::overlay::{Overlay, OverlayPlace};

/// Where a part of a read comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Journal(JournalPos),
    Object { object: ObjectId, payload_offset: u32 },
    Zero,
    Hole,
    Poison,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) source: Source,
}

/// Follows one sequential reader.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    end: u64,
    streak: u32,
    fetched_to: u64,
}

impl ReadAhead {
    /// A read of `offset..end` came; returns the range to fetch ahead, if the reader goes on sequentially.
    pub(crate) fn on_read(&mut self, offset: u64, end: u64) -> Option<(u64, u64)> {
        if offset == self.end {
            self.streak += 1;
        } else {
            self.streak = 0;
            self.fetched_to = 0;
        }
        self.end = end;
        let target = end + READ_AHEAD_BYTES;
        let from = self.fetched_to.max(end);
        // Half of the window is gone before more is asked for, so that GETs stay large.
        if self.streak < READ_AHEAD_STREAK || target - from < READ_AHEAD_BYTES / 2 {
            return None;
        }
        self.fetched_to = target;
        Some((from, target))
    }
}

/// Calls `visit` for consecutive parts that cover the range exactly; stops early when it returns `false`.
pub(crate) fn resolve(
    overlay: &Overlay,
    objects: &ObjectMap,
    offset: u64,
    len: u64,
    mut visit: impl FnMut(Part) -> bool,
) {
    let end = offset + len;
    let mut at = offset;
    for run in overlay.runs(offset, len) {
        if !resolve_objects(objects, at, run.offset, &mut visit) {
            return;
        }
        let source = match run.place {
            OverlayPlace::Journal(position) => Source::Journal(position),
            OverlayPlace::Zero => Source::Zero,
            OverlayPlace::Discard => Source::Hole,
            OverlayPlace::Poison => Source::Poison,
        };
        if !visit(Part { offset: run.offset, len: run.len, source }) {
            return;
        }
        at = run.offset + run.len;
    }
    resolve_objects(objects, at, end, &mut visit);
}

/// What the overlay does not know: `start..end` of the object map.
pub(crate) fn resolve_objects(
    objects: &ObjectMap,
    start: u64,
    end: u64,
    visit: &mut impl FnMut(Part) -> bool,
) -> bool {
    let mut at = start;
    let hole = |at: u64, to: u64| Part { offset: at, len: to - at, source: Source::Hole };
    if start == end {
        return true;
    }
    for run in objects.runs(start, end - start) {
        if run.offset > at && !visit(hole(at, run.offset)) {
            return false;
        }
        let source = match run.place {
            ObjectPlace::Object { index, payload_offset } => {
                Source::Object { object: objects.object(index), payload_offset }
            }
            ObjectPlace::Zero => Source::Zero,
            ObjectPlace::Poison => Source::Poison,
        };
        if !visit(Part { offset: run.offset, len: run.len, source }) {
            return false;
        }
        at = run.offset + run.len;
    }
    at == end || visit(hole(at, end))
}

pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("a length within one buffer fits the address space")
}

/// Bytes of one object, where the cache has them: nothing is copied. A part of a frame is read in blocks where a
/// request costs less than bytes.
pub(crate) async fn read_frames(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    payload_offset: u32,
    len: u64,
) -> Result<Data, DeviceError> {
    if fetcher.looks_for_blocks() && len <= PART_BYTES_MAX {
        return match parts::read_at_once(fetcher, object, payload_offset, len) {
            Ok(data) => Ok(data),
            // Boxed: whatever else a client asks for would carry the room for it.
            Err(missing) => Box::pin(missing.read(fetcher, object, payload_offset, len)).await,
        };
    }
    let (first, last) = frame_span(payload_offset, len);
    if first == last
        && let Some(frame) = fetcher.cached(object, first)
    {
        return Ok(slices_of(object, &[frame], payload_offset, len)?);
    }
    match Box::pin(fetch::frames(fetcher, object, first, last)).await {
        Ok(frames) => Ok(slices_of(object, &frames, payload_offset, len)?),
        // What is damaged may be a block that nobody asked for.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            Box::pin(parts::read(fetcher, object, payload_offset, len, Some(error))).await
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn poisoned(volume: VolumeId, part: &Part) -> DeviceError {
    let message = format!(
        "volume {volume}: {} bytes at {} were lost to damage and fail until they are overwritten",
        part.len, part.offset
    );
    DeviceError::new(ErrorKind::Corrupt, message)
}

/// Reads what a map says that never changes.
pub(crate) async fn read_objects(
    fetcher: &Rc<Fetcher>,
    objects: &ObjectMap,
    start: u64,
    len: u64,
) -> Result<Data, DeviceError> {
    let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
    resolve_objects(objects, start, start + len, &mut |part| {
        parts.push(part);
        true
    });
    if let [Part { source: Source::Object { object, payload_offset }, len, .. }] = &parts[..] {
        return read_frames(fetcher, *object, *payload_offset, *len).await;
    }
    let mut buf = fetcher.env.buffers.alloc(to_usize(len));
    let mut rest = &mut buf[..];
    for part in parts {
        let (target, behind) = rest.split_at_mut(to_usize(part.len));
        rest = behind;
        match part.source {
            Source::Object { object, payload_offset } => {
                let bytes = read_frames(fetcher, object, payload_offset, part.len).await?;
                bytes.copy_to(target);
            }
            Source::Poison => return Err(poisoned(fetcher.volume, &part)),
            Source::Zero | Source::Hole | Source::Journal(_) => target.fill(0),
        }
    }
    Ok(buf.into())
}

/// The extents of the device contract, of a map that never changes.
pub(crate) fn object_extents(
    objects: &ObjectMap,
    offset: u64,
    len: u64,
    extents_max: usize,
) -> Vec<Extent> {
    let mut found = Found { extents: Vec::new(), extents_max };
    resolve_objects(objects, offset, offset + len, &mut |part| found.add(part));
    found.extents
}

/// The extents of the device contract.
pub(crate) fn extents(
    overlay: &Overlay,
    objects: &ObjectMap,
    offset: u64,
    len: u64,
    extents_max: usize,
) -> Vec<Extent> {
    let mut found = Found { extents: Vec::new(), extents_max };
    resolve(overlay, objects, offset, len, |part| found.add(part));
    found.extents
}

/// Extents in order, neighbours of one state merged.
struct Found {
    extents: Vec<Extent>,
    extents_max: usize,
}

impl Found {
    /// `false` when there is no room for the part.
    fn add(&mut self, part: Part) -> bool {
        let kind = match part.source {
            Source::Hole => ExtentState::Hole,
            Source::Zero => ExtentState::Zero,
            // What was lost is not known to be zero.
            Source::Journal(_) | Source::Object { .. } | Source::Poison => ExtentState::Data,
        };
        let full = self.extents.len() == self.extents_max;
        match self.extents.last_mut() {
            Some(last) if last.state == kind => last.len += part.len,
            _ if full => return false,
            _ => self.extents.push(Extent { len: part.len, state: kind }),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_begins_after_a_streak_and_asks_in_large_steps() {
        let mut ahead = ReadAhead::default();
        let mut asked = Vec::new();
        for step in 1..100 {
            let offset = step * 65536;
            asked.extend(ahead.on_read(offset, offset + 65536));
        }
        assert_eq!(asked[0].0, 4 * 65536, "the first two sequential reads only make the streak");
        assert!(asked.windows(2).all(|w| w[0].1 == w[1].0), "no gap and no byte twice");
        assert!(asked[1..].iter().all(|(from, to)| to - from >= READ_AHEAD_BYTES / 2));
        assert_eq!(ahead.on_read(0, 10), None, "a jump ends it");
    }
}
