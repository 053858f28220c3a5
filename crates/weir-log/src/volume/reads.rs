//! Reads of an open volume. What a read has resolved to is pinned, in the journal and in the store, until the read has
//! its bytes.

use std::rc::Rc;

use smallvec::SmallVec;
use weir_device::{Data, DeviceError, ErrorKind};
use weir_journal::Pin;

use crate::collect::garbage::ReadPin;
use crate::error::LogError;
use crate::limits::RESOLVE_ATTEMPTS_MAX;
use crate::map::lost::LostLook;
use crate::read::fetch::{self, frame_span};
use crate::read::{Part, Source, poisoned, read_frames, resolve, to_usize};
use crate::volume::shared::{Shared, State};

/// Bytes that are read at a time of what could not be read before.
const AGAIN_BYTES: u64 = 64 << 10;

/// The read of the device contract, within the bounds of the volume.
pub(crate) async fn read(shared: &Rc<Shared>, offset: u64, len: u64) -> Result<Data, DeviceError> {
    // Another node may have written since the lease was lost, which this one would not know.
    shared.check_owned()?;
    // Reads come in the order of the client and end in any order: only as they come does one follow the other.
    read_ahead(shared, offset, offset + len);
    for attempt in 1.. {
        match read_once(shared, offset, len).await {
            // The object may have gone because its bytes moved: look where they are now.
            Err(error) if error.kind() == ErrorKind::NotFound && attempt < RESOLVE_ATTEMPTS_MAX => {
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tracing::error!(volume = %shared.id, offset, len, %error, "bytes are missing from the store");
                return Err(DeviceError::new(ErrorKind::Corrupt, error.to_string()));
            }
            Err(error) => return Err(error),
            Ok(data) => {
                forget_failed(shared, offset, offset + len);
                return Ok(data);
            }
        }
    }
    unreachable!("the last attempt returns")
}

/// Reads once more what could not be read, in pieces, so that what is there again is no trouble any more and the status
/// names what is left of it. Where more is lost than is remembered, it is looked for.
pub(crate) async fn again(shared: &Rc<Shared>) {
    let failed = {
        let State { failed_reads, writes, head, .. } = &mut *shared.state.borrow_mut();
        failed_reads.worth_another_read(AGAIN_BYTES, &writes.overlay, &head.objects)
    };
    for (at, len) in failed {
        // What fails is remembered again.
        let _ = read(shared, at, len).await;
    }
    let mut look = LostLook::default();
    while look_for_lost(shared, &mut look) {
        tokio::task::yield_now().await;
    }
}

/// Takes one step of a look for what is lost, if more is than is remembered; whether the look goes on.
fn look_for_lost(shared: &Shared, look: &mut LostLook) -> bool {
    let objects = &mut shared.state.borrow_mut().head.objects;
    let steps = shared.options.map.map_step_budget;
    objects.lost().has_more() && !objects.look_for_lost(look, steps)
}

async fn read_once(shared: &Rc<Shared>, start: u64, len: u64) -> Result<Data, DeviceError> {
    // Most reads have one part, and then nothing is allocated.
    let mut parts: SmallVec<[(Part, Option<Pin>); 2]> = SmallVec::new();
    // Pinned before anything can run that might reuse a segment or delete an object.
    let _pin = {
        let state = shared.state.borrow();
        let mut reads_objects = false;
        resolve(&state.writes.overlay, &state.head.objects, start, len, |part| {
            let pin = match part.source {
                Source::Journal(position) => Some(shared.journal.pin(position)),
                _ => None,
            };
            reads_objects |= matches!(part.source, Source::Object { .. });
            parts.push((part, pin));
            true
        });
        reads_objects.then(|| ReadPin::new(&shared.garbage))
    };
    if let [(part @ Part { source: Source::Object { object, payload_offset }, .. }, _)] = &parts[..]
    {
        let frames = read_frames(&shared.fetcher, *object, *payload_offset, part.len).await;
        return frames.inspect_err(|error| note_failed(shared, part, error));
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
            Source::Poison => {
                let error = poisoned(shared.id, &part);
                note_failed(shared, &part, &error);
                return Err(error);
            }
            Source::Journal(position) => {
                let read = shared.journal.read(position, target).await;
                drop(pin);
                read.map_err(|error| from_journal(shared, &part, error))?;
            }
            Source::Object { object, payload_offset } => {
                let frames = read_frames(&shared.fetcher, object, payload_offset, part.len);
                from_objects.push(async move {
                    let frames = frames.await;
                    frames.inspect_err(|error| note_failed(shared, &part, error))?.copy_to(target);
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

pub(crate) fn note_failed(shared: &Shared, part: &Part, error: &DeviceError) {
    if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) {
        let state = &mut *shared.state.borrow_mut();
        state.failed_reads.note(*part, error, &state.writes.overlay, &state.head.objects);
    }
}

/// A read that got everything in a range has got what failed there before.
fn forget_failed(shared: &Shared, start: u64, end: u64) {
    shared.state.borrow_mut().failed_reads.forget(start, end);
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
        resolve(&guard.writes.overlay, &guard.head.objects, from, to - from, |part| {
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
