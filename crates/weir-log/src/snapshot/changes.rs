//! Which bytes differ between two snapshots, from their checkpoints alone (paper, section 3.5: a snapshot is a map).
//!
//! Where both maps point at the same bytes of the same object, nothing has changed. The converse is conservative: bytes
//! that the collector copied count as changed where the first snapshot does not hold their object, and so do the few
//! that it copies to fill a hole. A backup that is told too much copies a few bytes more; one that is told too little
//! would be wrong.
//!
//! Snapshots share the pieces of their checkpoints that did not change, so the cost is that of what changed.

use std::rc::Rc;

use weir_device::{Env, VolumeId};
use weir_extent::PIECE_BYTES;
use weir_store::Store;

use crate::catalog::names::VolumeName;
use crate::error::LogError;
use crate::format::manifest::{Manifest, SnapshotRecord};
use crate::ids::ObjectId;
use crate::keys::Keys;
use crate::map::objects::ObjectPlace;
use crate::map::pieces::{PieceIndex, PieceReader, differing};
use crate::own::manifests;

/// Pieces of the maps in memory at a time: some 64 MiB at the most.
const PIECES_AT_A_TIME: usize = 32;

/// A run of bytes that is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it reads as zeroes now.
    pub zero: bool,
}

/// What a comparison of two snapshots came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Size of the volume in the first snapshot, in bytes.
    pub from_size: u64,
    /// Size of the volume in the second snapshot, in bytes.
    pub to_size: u64,
    /// Bytes that changed to data.
    pub data_bytes: u64,
    /// Bytes that changed to zeroes.
    pub zero_bytes: u64,
}

/// What a byte of a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Zero,
    Lost,
    /// This byte of an object's payload.
    Stored(ObjectId, u64),
}

impl Content {
    fn advance(self, bytes: u64) -> Self {
        match self {
            Self::Stored(object, at) => Self::Stored(object, at + bytes),
            other => other,
        }
    }
}

/// A run of one content.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    start: u64,
    content: Content,
}

/// Gives `on_change` every run that differs between the snapshots `from` and `to` of a volume, in order, within
/// the size of `to`. Needs nothing but the store. Runs on the calling thread but for the reading; keep it away from a
/// thread that serves clients.
///
/// # Errors
/// [`LogError::NoSuchSnapshot`], or what the store says, also where a snapshot is damaged. What was reported until then
/// is right, but not all.
pub async fn changes(
    store: &Store,
    env: &Env,
    (volume, keys): (VolumeId, &Keys),
    (from, to): (&VolumeName, &VolumeName),
    mut on_change: impl AsyncFnMut(Change),
) -> Result<Changes, LogError> {
    let manifest = manifests::newest(store, env, volume).await?;
    let key = keys.open(volume, manifest.encryption.as_ref()).await?;
    let key = key.as_ref();
    let [from, to] = [find(&manifest, from)?, find(&manifest, to)?];
    let before = Rc::new(PieceIndex::read(store, env, key, from.root(volume)).await?);
    let after = Rc::new(PieceIndex::read(store, env, key, to.root(volume)).await?);
    let numbers = differing(&before, &after);
    let mut before = PieceReader::new(store, env, before);
    let mut after = PieceReader::new(store, env, after);
    let mut sum = Changes { from_size: from.size, to_size: to.size, ..Changes::default() };
    let mut open: Option<Change> = None;
    for numbers in numbers.chunks(PIECES_AT_A_TIME) {
        before.fetch(numbers).await?;
        after.fetch(numbers).await?;
        for number in numbers {
            for change in changes_of(&before, &after, *number, to.size)? {
                match &mut open {
                    Some(last)
                        if last.offset + last.len == change.offset && last.zero == change.zero =>
                    {
                        last.len += change.len;
                    }
                    _ => sum.give(open.replace(change), &mut on_change).await,
                }
            }
        }
    }
    sum.give(open, &mut on_change).await;
    Ok(sum)
}

impl Changes {
    async fn give(&mut self, change: Option<Change>, on_change: &mut impl AsyncFnMut(Change)) {
        let Some(change) = change else { return };
        let bytes = if change.zero { &mut self.zero_bytes } else { &mut self.data_bytes };
        *bytes += change.len;
        on_change(change).await;
    }
}

fn find(manifest: &Manifest, name: &VolumeName) -> Result<SnapshotRecord, LogError> {
    manifest.snapshot(name.as_str()).cloned().ok_or_else(|| LogError::NoSuchSnapshot {
        snapshot: name.to_string(),
        volume: manifest.name.clone(),
    })
}

/// What differs in a piece that both readers have fetched, up to `size`.
pub(crate) fn changes_of(
    before: &PieceReader<'_>,
    after: &PieceReader<'_>,
    number: u64,
    size: u64,
) -> Result<Vec<Change>, LogError> {
    Ok(compare(&runs(before, number)?, &runs(after, number)?, size))
}

/// A piece without holes.
fn runs(reader: &PieceReader<'_>, number: u64) -> Result<Vec<Run>, LogError> {
    let (mut at, end) = (number * PIECE_BYTES, (number + 1) * PIECE_BYTES);
    let mut runs = Vec::new();
    let mut push = |start: u64, end: u64, content| {
        if start < end {
            runs.push(Run { end, start, content });
        }
    };
    for (run, object) in reader.runs(number)? {
        let content = match (run.place, object) {
            (ObjectPlace::Object { payload_offset, .. }, Some(object)) => {
                Content::Stored(object, payload_offset.into())
            }
            (ObjectPlace::Zero, _) => Content::Zero,
            _ => Content::Lost,
        };
        push(at, run.offset, Content::Zero);
        at = run.offset + run.len;
        push(run.offset, at, content);
    }
    push(at, end, Content::Zero);
    Ok(runs)
}

/// Where two pieces without holes differ, up to `size`.
fn compare(was: &[Run], is: &[Run], size: u64) -> Vec<Change> {
    let mut changes = Vec::new();
    let (mut was, mut is) = (was.iter().peekable(), is.iter().peekable());
    let mut at = is.peek().map_or(0, |run| run.start);
    while let (Some(old), Some(new)) = (was.peek(), is.peek()) {
        let end = old.end.min(new.end).min(size);
        if at >= end {
            break;
        }
        let content = new.content.advance(at - new.start);
        let before = old.content.advance(at - old.start);
        let hidden = weir_device::mutant("change_to_zero_unsaid") && content == Content::Zero;
        if content != before && !hidden {
            changes.push(Change { offset: at, len: end - at, zero: content == Content::Zero });
        }
        at = end;
        was.next_if(|run| run.end == end);
        is.next_if(|run| run.end == end);
    }
    changes
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

    use super::*;
    use crate::ids::ObjectSeq;

    fn stored(seq: u64, at: u64) -> Content {
        let id = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        Content::Stored(id, at)
    }

    #[test]
    fn the_same_bytes_of_the_same_object_are_unchanged_however_the_runs_are_cut() {
        let run = |start, end, content| Run { end, start, content };
        let was = [run(0, 100, stored(1, 0)), run(100, 200, Content::Zero)];
        let is = [
            run(0, 40, stored(1, 0)),
            run(40, 60, stored(2, 0)),
            run(60, 100, stored(1, 60)),
            run(100, 120, Content::Zero),
            run(120, 200, Content::Lost),
        ];
        let change = |offset, len, zero| Change { offset, len, zero };
        assert_eq!(compare(&was, &is, 200), [change(40, 20, false), change(120, 80, false)]);
        assert_eq!(
            compare(&was, &is, 130)[1],
            change(120, 10, false),
            "up to the end of the volume"
        );
        assert_eq!(compare(&was, &was, 200), []);
        let moved = [run(0, 100, stored(1, 1)), run(100, 200, Content::Zero)];
        assert_eq!(compare(&was, &moved, 200), [change(0, 100, false)]);
        let gone = [run(0, 200, Content::Zero)];
        assert_eq!(compare(&was, &gone, 200), [change(0, 100, true)]);
    }
}
