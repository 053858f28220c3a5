//! Hits: one read of the blocks that are asked for, and nothing beside it.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;
use weir_device::{AlignedBuf, Pacer, SharedBuf};
use weir_disk::DiskError;
use weir_pacer::RequestKind;
use weir_seal::BlockKey;

use super::block::{BAND_RUNS, RUN_BYTES, RunAddress, apply, check_of, hash};
use super::cache::Cache;
use super::state::{For, Outcome, Reading};
use super::thread::{Open, ThreadCache};
use crate::format::BLOCK_LEN;

/// A read that takes longer is not waited for: its disk hangs, and the store may answer.
const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// After one, the disk is left alone for as long.
const REST: Duration = Duration::from_secs(1);

/// Reads that fail one after the other before the cache is left out.
const FAILED_READS_MAX: u32 = 16;

/// Blocks of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// All that the run has.
    All,
    /// These.
    Some(RangeInclusive<u32>),
}

/// A read that is on its way. However its future ends, it ends.
struct Reader<'a> {
    cache: &'a Cache,
    whom: For,
    address: RunAddress,
    reading: Reading,
    outcome: Outcome,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.cache.state().end_read(&self.reading.pin, self.whom, self.outcome);
    }
}

impl Reader<'_> {
    fn offset(&self) -> u64 {
        self.cache.superblock().block_offset(self.reading.at, self.reading.first)
    }

    fn bytes(&self) -> usize {
        self.reading.checks.len() * BLOCK_LEN
    }

    /// Whether another one is of the run behind, on the device and on the disk, and only a header lies between them.
    fn is_before(&self, next: &Self) -> bool {
        let (at, behind) = (self.reading.at, next.reading.at);
        self.address.run + 1 == next.address.run
            && (at.place, at.run + 1) == (behind.place, behind.run)
            && self.bytes() == RUN_BYTES
    }

    /// The blocks as they were before they were sealed, if they are what they must be.
    fn open(&mut self, mut buf: AlignedBuf, key: Option<&BlockKey>) -> Option<SharedBuf> {
        let Reading { first, checks, .. } = &self.reading;
        for ((number, bytes), check) in (*first..).zip(buf.chunks_mut(BLOCK_LEN)).zip(checks) {
            let is_good = check_of(&hash(bytes, &self.address, number, key)) == *check
                || weir_device::mutant("cache_serves_unchecked");
            if !is_good {
                let offset = self.offset() + u64::from(number - first) * BLOCK_LEN as u64;
                self.outcome = Outcome::Damaged;
                let damaged = self.cache.state().counts.damaged + 1;
                // A file that somebody replaced has nothing else: the sum is enough then.
                if damaged.is_power_of_two() {
                    tracing::warn!(
                        offset,
                        damaged,
                        "a block of the cache is not what was written; it is read from the store"
                    );
                }
                return None;
            }
            if let Some(key) = key {
                apply(key, &self.address, number, bytes);
            }
        }
        self.outcome = Outcome::Good;
        Some(buf.freeze())
    }
}

/// Reads of runs that lie behind each other.
type Readers<'a> = SmallVec<[Reader<'a>; BAND_RUNS as usize]>;

/// What was found of them.
type Runs = SmallVec<[Option<SharedBuf>; BAND_RUNS as usize]>;

impl ThreadCache {
    /// Blocks of a run, if the cache has them all. Waits for one read of the local disk.
    pub async fn read(
        &self,
        address: &RunAddress,
        blocks: Blocks,
        key: Option<&BlockKey>,
    ) -> Option<SharedBuf> {
        let open = self.current()?;
        let (first, count) = match blocks {
            Blocks::All => (0, None),
            Blocks::Some(range) => (*range.start(), Some(range.end() - range.start() + 1)),
        };
        let mut reader = open.begin_read(For::Client, address, first, count)?;
        let buf = open.env.buffers.alloc(reader.bytes());
        match open.timed(For::Client, buf.len(), open.file.read_at(buf, reader.offset())).await {
            Ok(buf) => reader.open(buf, key),
            Err(outcome) => {
                reader.outcome = outcome;
                None
            }
        }
    }

    /// So many runs from `first` on, each of which is there or not. Waits for one read of the local disk for those of a
    /// band.
    pub async fn read_runs(
        &self,
        first: &RunAddress,
        count: u32,
        key: Option<&BlockKey>,
    ) -> Vec<Option<SharedBuf>> {
        self.runs_for(For::Client, first, count, key).await
    }

    /// The same for whoever moves what is there, and has leave of the pacer for that. The policy does not see it: what
    /// is moved in bulk is not what clients use.
    pub async fn copy_runs(
        &self,
        first: &RunAddress,
        count: u32,
        key: Option<&BlockKey>,
    ) -> Vec<Option<SharedBuf>> {
        self.runs_for(For::Copy, first, count, key).await
    }

    async fn runs_for(
        &self,
        whom: For,
        first: &RunAddress,
        count: u32,
        key: Option<&BlockKey>,
    ) -> Vec<Option<SharedBuf>> {
        let mut found = vec![None; count as usize];
        let Some(open) = self.current() else { return found };
        let runs = first.run..first.run + u64::from(count);
        let readers =
            runs.filter_map(|run| open.begin_read(whom, &RunAddress { run, ..*first }, 0, None));
        let mut groups: Vec<Readers<'_>> = Vec::new();
        for reader in readers {
            match groups.last_mut() {
                Some(group) if group[group.len() - 1].is_before(&reader) => group.push(reader),
                _ => groups.push(Readers::from_iter([reader])),
            }
        }
        let begins: Vec<u64> = groups.iter().map(|group| group[0].address.run).collect();
        let reads = groups.into_iter().map(|group| open.read_group(group, key));
        for (begin, runs) in begins.into_iter().zip(join_all(reads).await) {
            let at = usize::try_from(begin - first.run).expect("below the count");
            for (slot, run) in found[at..].iter_mut().zip(runs) {
                *slot = run;
            }
        }
        found
    }
}

impl Open {
    fn begin_read(
        &self,
        whom: For,
        address: &RunAddress,
        first: u32,
        count: Option<u32>,
    ) -> Option<Reader<'_>> {
        let mut state = self.cache.state();
        if state.rests() {
            return None;
        }
        let reading = state.begin_read(whom, address, first, count)?;
        drop(state);
        let (cache, address, outcome) = (&self.cache, *address, Outcome::Dropped);
        Some(Reader { cache, whom, address, reading, outcome })
    }

    async fn read_group(&self, mut group: Readers<'_>, key: Option<&BlockKey>) -> Runs {
        let offset = group[0].offset();
        let mut pieces = Vec::with_capacity(2 * group.len());
        for (number, reader) in group.iter().enumerate() {
            if number > 0 {
                // The header between two runs. It says nothing that is not known.
                pieces.push(self.env.buffers.alloc(BLOCK_LEN));
            }
            pieces.push(self.env.buffers.alloc(reader.bytes()));
        }
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        match self.timed(group[0].whom, bytes, self.file.read_pieces_at(pieces, offset)).await {
            Ok(pieces) => {
                let runs = pieces.into_iter().step_by(2);
                group.iter_mut().zip(runs).map(|(reader, buf)| reader.open(buf, key)).collect()
            }
            Err(outcome) => {
                for reader in &mut group {
                    reader.outcome = outcome;
                }
                group.iter().map(|_| None).collect()
            }
        }
    }

    /// What a read of the file gave, or how it ended: it is waited for, but not for long.
    async fn timed<T>(
        &self,
        whom: For,
        bytes: usize,
        read: impl Future<Output = (T, Result<(), DiskError>)>,
    ) -> Result<T, Outcome> {
        let began = Instant::now();
        let read = felt(&self.env.pacer, whom, bytes, read);
        let (failure, outcome) = match tokio::time::timeout(READ_TIME_MAX, read).await {
            Ok((done, Ok(()))) => return Ok(done),
            Ok((_, Err(error))) => {
                let is_shorter = matches!(error, DiskError::Short { .. });
                if is_shorter && !weir_device::mutant("cache_shorter_stays") {
                    self.cache.leave_out(&format!("its file is shorter than it was: {error}"));
                }
                (error.to_string(), Outcome::Failed)
            }
            Err(_) => {
                self.cache.state().rest_until(Instant::now() + REST);
                let path = self.file.display();
                (format!("{path}: a read takes longer than {READ_TIME_MAX:?}"), Outcome::Dropped)
            }
        };
        let (failed, in_all) = {
            let mut state = self.cache.state();
            (state.on_failed_read(began), state.counts.failed_reads)
        };
        // Many fail at once: the sum is enough then.
        if in_all.is_power_of_two() {
            let error = failure.as_str();
            tracing::warn!(error, in_all, "reading the cache; the store is read instead");
        }
        if failed >= FAILED_READS_MAX {
            self.cache.leave_out(&failure);
        }
        Err(outcome)
    }
}

/// Background work goes by what the reads feel that clients wait for.
async fn felt<T>(pacer: &Pacer, whom: For, bytes: usize, read: impl Future<Output = T>) -> T {
    if whom == For::Copy {
        return read.await;
    }
    let request = pacer.request(RequestKind::Read, bytes as u64);
    let done = read.await;
    request.ended();
    done
}
