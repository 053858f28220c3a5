//! Warming: the frames of a range that the local disk does not have come from the store to it, as background work and
//! past memory, so that what clients use stays there. They are verified as for a read.
//!
//! An object may be given up by the collector while others are read. What lived of it is elsewhere then, so that who
//! warms looks at the map again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use weir_cache::engine::{BAND_RUNS, CacheStatus, Owner};
use weir_device::{DeviceError, ErrorKind, VolumeId};
use weir_pacer::{Class, Pace, Pressure};
use weir_store::Store;

use crate::error::LogError;
use crate::ids::ObjectId;
use crate::limits::{
    BLOCK_BYTES, FRAME_BYTES, PAYLOAD_BITS, RESOLVE_ATTEMPTS_MAX, WARMED_OBJECTS_MAX,
};
use crate::read::fetch::{self, Fetcher, Reader, collected_runs_of, frame_span, open_header};
use crate::read::history;
use crate::read::table::FrameTable;
use crate::read::{Part, Source};

/// Places for frames in an object.
const FRAMES_MAX: u32 = (1 << PAYLOAD_BITS) / FRAME_BYTES;

/// Bits of a word of [`Frames`].
const WORD_BITS: u32 = u64::BITS;

/// How often a cache that is being read after a crash is asked whether all of it is known.
const RECOVERY_LOOK: Duration = Duration::from_millis(100);

/// Bytes of a frame.
const FRAME: u64 = FRAME_BYTES as u64;

/// What a warming did. Bytes are those of frames of 64 KiB, or of the last one of an object: what the cache takes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmReport {
    /// Bytes that came into the cache.
    pub warmed_bytes: u64,
    /// Bytes that were there already.
    pub there_bytes: u64,
    /// Bytes of the range that the journal has, on the local disk as well.
    pub journal_bytes: u64,
    /// Bytes that are not in the cache in the end.
    pub left_bytes: u64,
    /// Why they are not.
    pub obstacle: Option<String>,
    /// Objects that were read.
    pub objects: u64,
    /// Reads of the store, of headers as well.
    pub requests: u64,
}

/// Frames of one object, a bit each: so an object costs the same however many of its frames are wanted.
#[derive(Clone, Copy, Debug, Default)]
struct Frames([u64; (FRAMES_MAX / WORD_BITS) as usize]);

impl Frames {
    fn add(&mut self, frames: RangeInclusive<u32>) {
        for frame in frames {
            self.0[(frame / WORD_BITS) as usize] |= 1 << (frame % WORD_BITS);
        }
    }

    fn has(&self, frame: u32) -> bool {
        self.0[(frame / WORD_BITS) as usize] & 1 << (frame % WORD_BITS) != 0
    }

    /// In order.
    fn iter(self) -> impl Iterator<Item = u32> {
        (0..FRAMES_MAX).filter(move |frame| self.has(*frame))
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Bands of the cache that they are of.
    fn bands(self) -> u64 {
        let firsts = (0..FRAMES_MAX).step_by(BAND_RUNS as usize);
        firsts.filter(|first| (*first..first + BAND_RUNS).any(|frame| self.has(frame))).count()
            as u64
    }
}

/// What a range is made of.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    objects: BTreeMap<ObjectId, Frames>,
    journal_bytes: u64,
}

impl Wanted {
    /// A part of the range, as a map says.
    pub(crate) fn add(&mut self, part: &Part) {
        match part.source {
            Source::Object { object, payload_offset } => {
                let (first, last) = frame_span(payload_offset, part.len);
                self.objects.entry(object).or_default().add(first..=last);
            }
            Source::Journal(_) => self.journal_bytes += part.len,
            // There is nothing to read of these.
            Source::Zero | Source::Hole | Source::Poison => {}
        }
    }

    fn bytes(&self) -> u64 {
        self.objects.values().map(Frames::count).sum::<u64>() * FRAME
    }

    /// A cache takes bands: of one, a single frame needs as much room as all of them. `share_of` says how many a stream
    /// may have of it: what is beyond would be read, and take the place of what was warmed before.
    fn check_room(
        &self,
        cache: &CacheStatus,
        share_of: impl Fn(VolumeId) -> Option<u64>,
    ) -> Result<(), DeviceError> {
        const BAND: u64 = BAND_RUNS as u64 * FRAME;
        let mut bands: BTreeMap<VolumeId, u64> = BTreeMap::new();
        for (object, frames) in &self.objects {
            *bands.entry(object.stream).or_default() += frames.bands();
        }
        let (takes, holds) = (bands.values().sum::<u64>() * BAND, cache.capacity_bytes);
        let refuse = |[takes, holds]: [u64; 2], whose: &str, way_out: &str| {
            let [has, takes, holds] = [self.bytes(), takes, holds].map(size);
            let message = format!(
                "the range has {has} of objects, which take {takes} of {whose}, and that holds {holds}: warm a part \
                 with --range FROM..TO, or {way_out}"
            );
            Err(DeviceError::new(ErrorKind::NoSpace, message))
        };
        if weir_device::mutant("warming_looks_at_no_room") {
            return Ok(());
        }
        if takes > holds {
            let whose = "the cache on the local disk";
            return refuse([takes, holds], whose, "give the process a larger --cache");
        }
        for (stream, takes) in bands {
            let share = share_of(stream).filter(|share| takes > *share);
            if let Some(share) = share {
                let whose = "the volume's share of the cache on the local disk";
                return refuse(
                    [takes * BAND, share * BAND],
                    whose,
                    "give it a larger --cache-share",
                );
            }
        }
        Ok(())
    }
}

/// For people. What is less than a MiB is not rounded up to one.
fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

/// Bytes of the blocks that hold a frame, as the cache counts them.
fn block_bytes(frame: &Bytes) -> u64 {
    (frame.len() as u64).next_multiple_of(BLOCK_BYTES.into())
}

#[derive(Debug, Default)]
struct Counts {
    report: WarmReport,
    /// Frames that are done, by this look at the map.
    done: u64,
    /// Frames that cannot be read, and those of objects of which nobody knows what wrote them.
    damaged: u64,
    unknown: u64,
}

struct Warming<'a> {
    fetcher: &'a Rc<Fetcher>,
    store: Store,
    goes_on: &'a dyn Fn() -> Result<(), DeviceError>,
    on_progress: &'a dyn Fn(u64, u64),
    counts: RefCell<Counts>,
}

/// Brings the frames of a range to the local disk. `wanted` looks at the map, `goes_on` says whether the volume still
/// is what it was, and `on_progress` hears of bytes done and bytes in all.
///
/// # Errors
/// That there is no cache, or it is smaller than the range; what `goes_on` says; and what the store says once the read
/// deadline is over. What is damaged is no error: the report says so.
pub(crate) async fn warm(
    fetcher: &Rc<Fetcher>,
    wanted: impl AsyncFn() -> Result<Wanted, DeviceError>,
    goes_on: &dyn Fn() -> Result<(), DeviceError>,
    on_progress: &dyn Fn(u64, u64),
) -> Result<WarmReport, DeviceError> {
    let pace = Pace::new(&fetcher.env.pacer, Class::Fill, &Pressure::default());
    let (store, counts) = (fetcher.store.at_pace(pace), RefCell::default());
    let warming = Warming { fetcher, store, goes_on, on_progress, counts };
    // What is not known of it can neither be found nor be written.
    while warming.cache()?.recovery.is_some() {
        tokio::time::sleep(RECOVERY_LOOK).await;
        goes_on()?;
    }
    for attempt in 1.. {
        let wanted = wanted().await?;
        let share_of = |stream: VolumeId| fetcher.disk.share_limit(Owner(stream.0));
        wanted.check_room(&warming.cache()?, share_of)?;
        match warming.all(&wanted, attempt == 1).await? {
            None => return Ok(warming.report(&wanted)),
            // What lived of it was moved: look where it is now.
            Some(_) if attempt < RESOLVE_ATTEMPTS_MAX => {}
            Some(gone) => return Err(gone),
        }
    }
    unreachable!("the last attempt returns")
}

impl Warming<'_> {
    /// # Errors
    /// There is no cache, or not any more.
    fn cache(&self) -> Result<CacheStatus, DeviceError> {
        let refuse = |message| Err(DeviceError::new(ErrorKind::Unavailable, message));
        let Some(status) = self.fetcher.disk.status() else {
            return refuse(
                "this process has no cache on the local disk: give it one with --cache".to_owned(),
            );
        };
        match status.left_out {
            Some(why) => refuse(format!(
                "the cache on the local disk is left out until the next start, because its disk failed: {why}"
            )),
            None => Ok(status),
        }
    }

    /// All of them; the error of an object that is gone, if one is.
    async fn all(
        &self,
        wanted: &Wanted,
        is_first: bool,
    ) -> Result<Option<DeviceError>, DeviceError> {
        {
            let counts = &mut *self.counts.borrow_mut();
            (counts.done, counts.damaged, counts.unknown) = (0, 0, 0);
        }
        let total = wanted.bytes();
        (self.on_progress)(0, total);
        let mut gone = self.learn(wanted).await?;
        let objects = wanted.objects.iter();
        let objects = objects.map(|(object, frames)| self.object(*object, *frames, is_first));
        let mut objects = stream::iter(objects).buffer_unordered(WARMED_OBJECTS_MAX);
        while let Some(warmed) = objects.next().await {
            match warmed {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => gone = Some(error),
                Err(error) => return Err(error),
            }
            (self.on_progress)(self.counts.borrow().done * FRAME, total);
        }
        Ok(gone)
    }

    /// Finds out which openings wrote the objects, by one header of each epoch that is not known. Those of which no
    /// header can be read stay unknown. The error of an object that is gone, if one is.
    async fn learn(&self, wanted: &Wanted) -> Result<Option<DeviceError>, DeviceError> {
        let mut gone = None;
        for object in wanted.objects.keys() {
            if !self.fetcher.disk.is_unknown(*object) {
                continue;
            }
            self.check()?;
            self.counts.borrow_mut().report.requests += 1;
            match history::learn(self.fetcher, *object).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => gone = Some(error),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let volume = self.fetcher.volume;
                    tracing::error!(%volume, %object, %error, "an object's header cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    async fn object(
        &self,
        object: ObjectId,
        frames: Frames,
        is_first: bool,
    ) -> Result<(), DeviceError> {
        self.check()?;
        if self.fetcher.disk.is_unknown(object) {
            self.counts.borrow_mut().unknown += frames.count();
            return Ok(());
        }
        let mut missing = Vec::new();
        for index in frames.iter() {
            match self.fetcher.disk.keep(object, index) {
                Some(0) => missing.push(index),
                // Also where it takes none of the object: the report says what is not there.
                there => {
                    let counts = &mut *self.counts.borrow_mut();
                    counts.done += 1;
                    if is_first {
                        let blocks = u64::from(there.unwrap_or_default());
                        counts.report.there_bytes += blocks * u64::from(BLOCK_BYTES);
                    }
                }
            }
        }
        let mut to_read = Vec::new();
        for index in missing {
            match self.fetcher.cached(object, index) {
                Some(frame) => self.put(object, index, frame).await,
                None => to_read.push(index),
            }
        }
        if to_read.is_empty() { Ok(()) } else { self.read(object, &to_read).await }
    }

    /// Whether it goes on: with the volume, and with the cache.
    fn check(&self) -> Result<(), DeviceError> {
        (self.goes_on)()?;
        self.cache().map(drop)
    }

    /// Whether the cache may be written to: without that, what is read is read in vain.
    fn may_write(&self) -> Result<bool, DeviceError> {
        let run_bytes = FRAME + u64::from(BLOCK_BYTES);
        Ok(self.cache()?.wear.is_none_or(|(left, _)| left >= run_bytes))
    }

    async fn read(&self, object: ObjectId, to_read: &[u32]) -> Result<(), DeviceError> {
        if !self.may_write()? {
            self.counts.borrow_mut().done += to_read.len() as u64;
            return Ok(());
        }
        self.counts.borrow_mut().report.objects += 1;
        let table = match self.table(object).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.damaged(object, to_read.len() as u64, &error);
                return Ok(());
            }
            table => table?,
        };
        let mut runs = collected_runs_of(to_read);
        runs.reverse();
        while let Some((first, last)) = runs.pop() {
            self.check()?;
            let needed = to_read.iter().copied().filter(|index| (first..=last).contains(index));
            match self.frames(object, &table, first, last).await {
                Ok(frames) => {
                    for index in needed {
                        self.put(object, index, frames[(index - first) as usize].clone()).await;
                    }
                }
                // What is damaged may only bridge a gap, and the others are good: each is read alone.
                Err(error) if error.kind() == ErrorKind::Corrupt && first < last => {
                    runs.extend(needed.map(|index| (index, index)));
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => self.damaged(object, 1, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn damaged(&self, object: ObjectId, frames: u64, error: &DeviceError) {
        let volume = self.fetcher.volume;
        tracing::error!(%volume, %object, frames, %error, "object frames cannot be read, and are not warmed");
        let counts = &mut *self.counts.borrow_mut();
        counts.damaged += frames;
        counts.done += frames;
    }

    /// Where the frames of an object are. Memory does not keep it: once they are on the local disk nobody asks.
    async fn table(&self, object: ObjectId) -> Result<Arc<FrameTable>, DeviceError> {
        let fetcher = self.fetcher;
        if let Some(table) = fetcher.cache.table(&fetcher.key_of(object)) {
            return Ok(table);
        }
        self.counts.borrow_mut().report.requests += 1;
        let reader = self.reader(object);
        let got = fetcher.env.background_while_awaited(async move {
            let read = || open_header(&reader.store, object, reader.key.as_ref());
            let (header, key) = reader.retry(read).await?;
            Ok::<_, LogError>(Arc::new(FrameTable::of(&header, key)))
        });
        Ok(got.await.ok_or(LogError::ShuttingDown)??)
    }

    async fn frames(
        &self,
        object: ObjectId,
        table: &Arc<FrameTable>,
        first: u32,
        last: u32,
    ) -> Result<Vec<Bytes>, DeviceError> {
        self.counts.borrow_mut().report.requests += 1;
        let (reader, table) = (self.reader(object), Arc::clone(table));
        let got = self.fetcher.env.background_while_awaited(async move {
            let read = || fetch::get_frames(&reader, &table, first, last);
            reader.retry(read).await
        });
        Ok(got.await.ok_or(LogError::ShuttingDown)??)
    }

    fn reader(&self, object: ObjectId) -> Reader {
        Reader::at(self.fetcher, object, self.store.clone())
    }

    async fn put(&self, object: ObjectId, index: u32, frame: Bytes) {
        let bytes = block_bytes(&frame);
        if weir_device::mutant("warming_fills_memory") {
            self.fetcher.cache.keep(self.fetcher.frame_key(object, index), frame.clone());
        }
        self.fetcher.disk.put(object, index, frame).await;
        let is_there = self.fetcher.disk.keep(object, index) > Some(0);
        let counts = &mut *self.counts.borrow_mut();
        counts.report.warmed_bytes += if is_there { bytes } else { 0 };
        counts.done += 1;
    }

    /// What came of it. The cache may have given up some of it again: what it holds now is what counts.
    fn report(self, wanted: &Wanted) -> WarmReport {
        let (mut refused, mut missing) = (0, 0);
        for (object, frames) in &wanted.objects {
            for index in frames.iter() {
                match self.fetcher.disk.keep(*object, index) {
                    None => refused += 1,
                    Some(0) => missing += 1,
                    Some(_) => {}
                }
            }
        }
        let Counts { mut report, damaged, unknown, .. } = self.counts.into_inner();
        let because = [
            (
                missing - damaged.min(missing),
                "are not in the cache: it is too small, or the volume's share or the limit on wear is used up, as \
                 `weir cache show` says; warm a part with --range FROM..TO, or raise what holds it back",
            ),
            (damaged + unknown, "cannot be read: weir volume check says what is damaged"),
            (
                refused - unknown.min(refused),
                "are in objects of an older program, which the cache does not take",
            ),
        ];
        let because = because.iter().filter(|(frames, _)| *frames > 0);
        let obstacles: Vec<String> =
            because.map(|(frames, why)| format!("{} {why}", size(frames * FRAME))).collect();
        report.journal_bytes = wanted.journal_bytes;
        report.left_bytes = (missing + refused) * FRAME;
        // Some of what was written has made room for the rest.
        let kept = wanted.bytes().saturating_sub(report.there_bytes + report.left_bytes);
        report.warmed_bytes = report.warmed_bytes.min(kept);
        report.obstacle = (!obstacles.is_empty()).then(|| obstacles.join("; "));
        report
    }
}

#[cfg(test)]
mod tests {
    use weir_journal::Epoch;

    use super::*;
    use crate::ids::ObjectSeq;

    fn cache(capacity_bytes: u64) -> CacheStatus {
        CacheStatus {
            capacity_bytes,
            file_bytes: 0,
            bytes: 0,
            bands: 0,
            band_places: capacity_bytes / (4 * FRAME),
            open_for: Duration::ZERO,
            recovery: None,
            bad_for: None,
            left_out: None,
            memory_bytes: 0,
            wear: None,
            counts: weir_cache::engine::CacheCounts::default(),
        }
    }

    #[test]
    fn a_range_takes_the_bands_that_its_frames_are_of() {
        let mut wanted = Wanted::default();
        let object =
            |seq| ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        let mut add = |seq, frame: u32, len| {
            let source =
                Source::Object { object: object(seq), payload_offset: frame * FRAME_BYTES };
            wanted.add(&Part { offset: 0, len, source });
        };
        add(1, 3, 2 * FRAME);
        add(1, 3, 1);
        add(2, 1023, FRAME);
        wanted.add(&Part { offset: 0, len: 77, source: Source::Hole });
        assert_eq!((wanted.bytes(), wanted.journal_bytes), (3 * FRAME, 0));
        let frames: Vec<Vec<u32>> = wanted.objects.values().map(|f| f.iter().collect()).collect();
        assert_eq!(frames, [vec![3, 4], vec![1023]]);
        // Two bands of the first object, and one of the second.
        let check = |bands: u64, share| wanted.check_room(&cache(bands * 4 * FRAME), |_| share);
        check(3, None).expect("fits");
        check(3, Some(3)).expect("fits its share");
        for (bands, share, way_out) in
            [(2, None, "a larger --cache"), (9, Some(2), "--cache-share")]
        {
            let error = check(bands, share).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            assert!(error.to_string().contains("--range"), "{error}");
            assert!(error.to_string().ends_with(way_out), "{error}");
        }
    }
}
