//! Reads: overlay, then object map, then frame cache, then ranged GETs.

pub(crate) mod cache;
pub(crate) mod fetch;

use std::rc::Rc;

use smallvec::SmallVec;
use weir_device::{Data, DeviceError, ErrorKind, Extent, ExtentState, VolumeId};
use weir_journal::{JournalPos, Pin};

use crate::collect::garbage::ReadPin;
use crate::error::LogError;
use crate::ids::ObjectId;
use crate::limits::{READ_AHEAD_BYTES, READ_AHEAD_STREAK, RESOLVE_ATTEMPTS_MAX};
use crate::map::objects::{ObjectMap, ObjectPlace};
use crate::read::fetch::{Fetcher, frame_span, slices_of};
use crate::volume::{Shared, State};
use crate::write::overlay::OverlayPlace;

/// Where a part of a read comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Journal(JournalPos),
    Object { object: ObjectId, payload_offset: u32 },
    Zero,
    Hole,
    Poison,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    len: u64,
    source: Source,
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
    fn on_read(&mut self, offset: u64, end: u64) -> Option<(u64, u64)> {
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
fn resolve(state: &State, offset: u64, len: u64, mut visit: impl FnMut(Part) -> bool) {
    let end = offset + len;
    let mut at = offset;
    for run in state.overlay.runs(offset, len) {
        if !resolve_objects(&state.objects, at, run.offset, &mut visit) {
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
    resolve_objects(&state.objects, at, end, &mut visit);
}

/// What the overlay does not know: `start..end` of the object map.
fn resolve_objects(
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

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("a length within one buffer fits the address space")
}

/// The read of the device contract, within the bounds of the volume.
pub(crate) async fn read(shared: &Rc<Shared>, offset: u64, len: u64) -> Result<Data, DeviceError> {
    // What another node writes is not known here.
    shared.check_owned()?;
    for attempt in 1.. {
        match read_once(shared, offset, len).await {
            // The object may have gone because its bytes moved: look where they are now.
            Err(error) if error.kind() == ErrorKind::NotFound && attempt < RESOLVE_ATTEMPTS_MAX => {
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DeviceError::new(ErrorKind::Corrupt, error.to_string()));
            }
            Err(error) => return Err(error),
            Ok(data) => {
                read_ahead(shared, offset, offset + len);
                return Ok(data);
            }
        }
    }
    unreachable!("the last attempt returns")
}

async fn read_once(shared: &Rc<Shared>, start: u64, len: u64) -> Result<Data, DeviceError> {
    // Most reads have one part, and then nothing is allocated.
    let mut parts: SmallVec<[(Part, Option<Pin>); 2]> = SmallVec::new();
    // Pinned before anything can run that might reuse a segment or delete an object.
    let _pin = {
        let mut state = shared.state.borrow_mut();
        let mut reads_objects = false;
        resolve(&state, start, len, |part| {
            let pin = match part.source {
                Source::Journal(position) => Some(shared.journal.pin(position)),
                _ => None,
            };
            reads_objects |= matches!(part.source, Source::Object { .. });
            parts.push((part, pin));
            true
        });
        reads_objects.then(|| ReadPin::new(shared, &mut state.garbage))
    };
    if let [(Part { source: Source::Object { object, payload_offset }, len, .. }, _)] = &parts[..] {
        return read_frames(&shared.fetcher, *object, *payload_offset, *len).await;
    }
    let mut buf = shared.env.buffers.alloc(to_usize(len));
    fill(shared, parts, &mut buf).await?;
    Ok(buf.into())
}

/// Copies the parts, one behind the other, into a buffer.
async fn fill(
    shared: &Rc<Shared>,
    parts: SmallVec<[(Part, Option<Pin>); 2]>,
    buf: &mut [u8],
) -> Result<(), DeviceError> {
    let mut from_objects = Vec::new();
    let mut rest = buf;
    for (part, pin) in parts {
        let (target, behind) = rest.split_at_mut(to_usize(part.len));
        rest = behind;
        match part.source {
            Source::Zero | Source::Hole => target.fill(0),
            Source::Poison => return Err(poisoned(shared.id, &part)),
            Source::Journal(position) => {
                let read = shared.journal.read(position, target).await;
                drop(pin);
                read.map_err(|error| from_journal(shared, &part, error))?;
            }
            Source::Object { object, payload_offset } => {
                let frames = read_frames(&shared.fetcher, object, payload_offset, part.len);
                from_objects.push(async move {
                    frames.await?.copy_to(target);
                    Ok::<(), DeviceError>(())
                });
            }
        }
    }
    match from_objects.len() {
        0 => Ok(()),
        1 => from_objects.remove(0).await,
        _ => futures_util::future::try_join_all(from_objects).await.map(|_| ()),
    }
}

/// Bytes of one object, where the cache has them: nothing is copied.
async fn read_frames(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
    payload_offset: u32,
    len: u64,
) -> Result<Data, DeviceError> {
    let (first, last) = frame_span(payload_offset, len);
    if first == last
        && let Some(frame) = fetcher.cached(object, first)
    {
        return Ok(slices_of(&[frame], payload_offset, len));
    }
    let frames = fetch::frames(fetcher, object, first, last).await?;
    Ok(slices_of(&frames, payload_offset, len))
}

fn poisoned(volume: VolumeId, part: &Part) -> DeviceError {
    let message = format!(
        "volume {volume}: {} bytes at {} were lost to damage and fail until they are overwritten",
        part.len, part.offset
    );
    DeviceError::new(ErrorKind::Corrupt, message)
}

fn from_journal(shared: &Shared, part: &Part, error: weir_journal::JournalError) -> DeviceError {
    tracing::error!(
        volume = %shared.id, offset = part.offset, len = part.len, %error,
        "bytes cannot be read from the journal"
    );
    DeviceError::from(LogError::Journal(error))
}

fn read_ahead(shared: &Rc<Shared>, offset: u64, end: u64) {
    let mut spans = Vec::new();
    {
        let mut guard = shared.state.borrow_mut();
        let size = guard.size;
        let Some((from, to)) = guard.read_ahead.on_read(offset, end) else { return };
        let (from, to) = (from.min(size), to.min(size));
        resolve(&guard, from, to - from, |part| {
            if let Source::Object { object, payload_offset } = part.source {
                spans.push((object, frame_span(payload_offset, part.len)));
            }
            true
        });
    }
    for (object, (first, last)) in spans {
        fetch::prefetch(&shared.fetcher, object, first, last);
    }
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
pub(crate) fn extents(state: &State, offset: u64, len: u64, extents_max: usize) -> Vec<Extent> {
    let mut found = Found { extents: Vec::new(), extents_max };
    resolve(state, offset, len, |part| found.add(part));
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
