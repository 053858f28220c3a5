//! Reads in bulk, for the collector: nothing of them stays in memory, and they are no use of what the local disk has.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weir_cache::engine::BAND_RUNS;
use weir_device::{DeviceError, ErrorKind};
use weir_pacer::{Leave, Pace};

use crate::error::LogError;
use crate::format::frame::{self, Codec};
use crate::ids::ObjectId;
use crate::limits::FRAME_BYTES;
use crate::read::cache::{FrameKey, ObjectKey};
use crate::read::fetch::{
    Fetcher, Reader, collected_runs_of, frame_span, get_frames, slices_of, table_of,
};
use crate::read::table::{FramePlace, FrameTable};
use crate::read::{parts, to_usize};

/// Frames of an object by their number.
type Frames = BTreeMap<u32, Bytes>;

/// Copies of payload bytes of an object, given as offset and length. Frames come from memory and the local disk where
/// these have them, and from the store. What may have been on the local disk, as what is in memory beside one may have
/// been, is copied only where the object's own checksums say that it is the object's.
///
/// # Errors
/// As [`crate::read::fetch::frames`].
pub(crate) async fn pieces(
    fetcher: &Rc<Fetcher>,
    pace: &Pace,
    object: ObjectId,
    pieces: Vec<(u32, u64)>,
) -> Result<Vec<Bytes>, DeviceError> {
    let table = table_of(fetcher, object).await?;
    let spans = pieces.iter().map(|(offset, len)| frame_span(*offset, *len));
    let mut missing: BTreeSet<u32> = spans.flat_map(|(first, last)| first..=last).collect();
    let key = fetcher.key_of(object);
    let (mut frames, mut unvouched) = from_memory(fetcher, &table, key, &missing);
    missing.retain(|index| !frames.contains_key(index));
    let on_disk = missing.iter().copied().filter(|index| !unvouched.contains_key(index)).collect();
    unvouched.extend(from_disk(fetcher, pace, &table, object, &on_disk).await);
    let store = match weir_device::mutant("stored_copies_read_without_leave") {
        true => fetcher.store.clone(),
        false => fetcher.store.at_pace(pace.clone()),
    };
    let reader = Reader::at(fetcher, object, store);
    let cache = Arc::clone(&fetcher.cache);
    let got = fetcher.env.background(async move {
        for (index, frame) in unvouched {
            if let Some(frame) = vouched(&table, object, index, frame) {
                missing.remove(&index);
                frames.insert(index, frame);
            }
        }
        let to_fetch: Vec<u32> = missing.into_iter().collect();
        let mut runs = collected_runs_of(&to_fetch);
        while let Some((first, last)) = runs.pop() {
            let needed: Vec<u32> =
                to_fetch.iter().copied().filter(|index| (first..=last).contains(index)).collect();
            let read = || get_frames(&reader, &table, first, last);
            match reader.retry(read).await {
                Ok(fetched) => {
                    let fetched = (first..=last).zip(fetched);
                    frames.extend(fetched.filter(|(index, _)| needed.contains(index)));
                }
                // The damaged frame may only bridge a gap: the frames that are needed are read alone.
                Err(error) if error.kind() == ErrorKind::Corrupt && first < last => {
                    runs.extend(needed.iter().map(|index| (*index, *index)));
                }
                // And its damaged block may be one that nobody needs.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let blocks = parts::blocks_of(&pieces, first);
                    let frame = parts::patched(&reader, &table, first, &blocks, error).await?;
                    if weir_device::mutant("patched_frame_is_kept") {
                        cache.keep(FrameKey::whole(key, first), frame.clone());
                    }
                    frames.insert(first, frame);
                }
                Err(error) => return Err(error),
            }
        }
        let copy = |(offset, len): &(u32, u64)| {
            let (first, last) = frame_span(*offset, *len);
            let frames: Vec<Bytes> = frames.range(first..=last).map(|(_, f)| f.clone()).collect();
            Ok::<_, LogError>(Bytes::from(slices_of(object, &frames, *offset, *len)?.to_vec()))
        };
        pieces.iter().map(copy).collect()
    });
    Ok(got.await.ok_or(LogError::ShuttingDown)??)
}

/// What memory has of these frames: those of the store, and those that may have come from the local disk, as far as the
/// object can vouch for them.
fn from_memory(
    fetcher: &Fetcher,
    table: &FrameTable,
    key: ObjectKey,
    wanted: &BTreeSet<u32>,
) -> (Frames, Frames) {
    let look = |index: &u32| Some((*index, fetcher.cache.get(&FrameKey::whole(key, *index))?));
    if !fetcher.disk.was_there() || weir_device::mutant("copies_from_memory_unchecked") {
        return (wanted.iter().filter_map(look).collect(), Frames::new());
    }
    let can_vouch = |index: &&u32| can_vouch(table, **index);
    (Frames::new(), wanted.iter().filter(can_vouch).filter_map(look).collect())
}

/// What the local disk has of these frames.
async fn from_disk(
    fetcher: &Fetcher,
    pace: &Pace,
    table: &FrameTable,
    object: ObjectId,
    wanted: &BTreeSet<u32>,
) -> Frames {
    let mut found = Frames::new();
    let is_there = |index: &&u32| can_vouch(table, **index) && fetcher.disk.has(object, **index);
    let mut wanted = wanted.iter().filter(is_there).copied().peekable();
    // Those that may lie behind each other are read at once.
    while let Some(first) = wanted.next() {
        let mut last = first;
        while let Some(next) = wanted.next_if(|next| *next == last + 1 && *next - first < BAND_RUNS)
        {
            last = next;
        }
        let bytes = u64::from((last - first + 1) * FRAME_BYTES);
        let leave = match weir_device::mutant("cached_copies_read_without_leave") {
            true => None,
            false => Some(pace.leave(bytes, 0).await),
        };
        let frames = fetcher.disk.copies(object, first, last).await;
        found.extend((first..).zip(frames).filter_map(|(index, frame)| Some((index, frame?))));
        leave.into_iter().for_each(Leave::used);
    }
    found
}

/// Whether the checksums of an object say what the bytes of a frame are: those of compressed and sealed ones say only
/// what is stored of it.
fn can_vouch(table: &FrameTable, index: u32) -> bool {
    let is_raw = |place: FramePlace<'_>| place.frame.codec == Codec::Raw;
    table.key.is_none() && table.frame(index).is_some_and(is_raw)
}

/// A frame of the local disk, or one that may have come from there, without what fills its last block up, if the
/// object's checksums say that it is the frame. What is copied lasts, and the cache's own check is made for reads.
fn vouched(table: &FrameTable, object: ObjectId, index: u32, bytes: Bytes) -> Option<Bytes> {
    let place = table.frame(index)?;
    let len = to_usize(place.frame.raw_len.into());
    let bytes = (len <= bytes.len()).then(|| bytes.slice(..len))?;
    if weir_device::mutant("copies_from_disk_unchecked") {
        return Some(bytes);
    }
    let verified = frame::verify(&object, index, &place.frame, place.blocks, &bytes);
    if let Err(error) = &verified {
        tracing::warn!(%object, index, %error, "the cache has other bytes than the object; the store is read instead");
    }
    verified.is_ok().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame::Compression;
    use crate::format::golden::{OPENING, spec_of};
    use crate::format::object::{
        self, Encoding, ExtentKind, ObjectExtent, ObjectKind, ObjectVersion,
    };
    use crate::random::splitmix;

    const FRAME: usize = FRAME_BYTES as usize;

    /// Frames that compress and frames that do not, in turn; the last one is short.
    fn payload() -> Bytes {
        let mut random = splitmix(7);
        let mut noise = |words| (0..words).flat_map(|_| random().to_le_bytes()).collect::<Vec<_>>();
        [vec![0; FRAME], noise(FRAME / 8), vec![0; FRAME], noise(100)].concat().into()
    }

    #[test]
    fn a_frame_of_the_local_disk_is_copied_if_the_object_says_that_it_is_its_own() {
        for version in [ObjectVersion::V2, ObjectVersion::V3, ObjectVersion::V4] {
            let mut spec = spec_of(ObjectKind::Data, Some(OPENING));
            let len = payload().len() as u64;
            spec.extents = vec![ObjectExtent { offset: 0, len, kind: ExtentKind::Data }];
            let encoding = Encoding { compression: Compression::Lz4, version };
            let encoded = object::encode(spec, &[payload()], encoding, None).expect("encoded");
            let (id, table) = (encoded.header.id, FrameTable::of(&encoded.header, None));
            assert_eq!(
                [0, 1, 2, 3, 4].map(|index| can_vouch(&table, index)),
                [false, true, false, true, false]
            );
            let frame = payload().slice(FRAME..2 * FRAME);
            let short = payload().slice(3 * FRAME..);
            let filled_up = Bytes::from([&short[..], &[0; 4096 - 800]].concat());
            assert_eq!(vouched(&table, id, 1, frame.clone()), Some(frame.clone()));
            assert_eq!(vouched(&table, id, 3, filled_up), Some(short.clone()));
            assert_eq!(vouched(&table, id, 3, short.slice(1..)), None, "too short");
            assert_eq!(vouched(&table, id, 3, frame.clone()), None, "of another place");
            let mut flipped = frame.to_vec();
            flipped[FRAME - 1] ^= 1;
            assert_eq!(vouched(&table, id, 1, flipped.into()), None, "a flipped bit");
            let other = ObjectId { seq: crate::ids::ObjectSeq(id.seq.0 + 1), ..id };
            assert_eq!(vouched(&table, other, 1, frame), None, "of another object");
        }
    }
}
