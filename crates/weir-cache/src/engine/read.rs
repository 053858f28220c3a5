//! Hits: one read of the blocks that are asked for, and nothing beside it.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{Pacer, SharedBuf};
use weir_pacer::RequestKind;
use weir_seal::BlockKey;

use super::block::{RunAddress, apply, check_of, hash};
use super::cache::Cache;
use super::state::{Outcome, Reading};
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

/// Ends a read however its future ends.
struct Reader<'a> {
    cache: &'a Cache,
    reading: Reading,
    outcome: Outcome,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.cache.state().end_read(&self.reading.pin, self.outcome);
    }
}

impl ThreadCache {
    /// Blocks of a run, if the cache has them all. Waits for one read of the local disk.
    pub async fn read(
        &self,
        address: &RunAddress,
        blocks: Blocks,
        key: Option<&BlockKey>,
    ) -> Option<SharedBuf> {
        let open = self.current()?;
        open.read(address, blocks, key).await
    }
}

impl Open {
    async fn read(
        &self,
        address: &RunAddress,
        blocks: Blocks,
        key: Option<&BlockKey>,
    ) -> Option<SharedBuf> {
        let (first, count) = match blocks {
            Blocks::All => (0, None),
            Blocks::Some(range) => (*range.start(), Some(range.end() - range.start() + 1)),
        };
        let began = Instant::now();
        let reading = {
            let mut state = self.cache.state();
            if state.rests() {
                return None;
            }
            state.begin_read(address, first, count)?
        };
        let mut reader = Reader { cache: &self.cache, reading, outcome: Outcome::Dropped };
        let Reading { at, first, checks, .. } = &reader.reading;
        let (first, count) = (*first, checks.len());
        let offset = self.cache.superblock().block_offset(*at, first);
        let buf = self.env.buffers.alloc(count * BLOCK_LEN);
        let read = paced(&self.env.pacer, buf.len(), self.file.read_at(buf, offset));
        let failure = match tokio::time::timeout(READ_TIME_MAX, read).await {
            Ok((mut buf, Ok(()))) => {
                let numbered = (first..).zip(buf.chunks_mut(BLOCK_LEN)).zip(checks);
                for ((number, bytes), check) in numbered {
                    let is_good = check_of(&hash(bytes, address, number, key)) == *check
                        || weir_device::mutant("cache_serves_unchecked");
                    if !is_good {
                        reader.outcome = Outcome::Damaged;
                        tracing::warn!(
                            offset = offset + u64::from(number - first) * BLOCK_LEN as u64,
                            "a block of the cache is not what was written; it is read from the store"
                        );
                        return None;
                    }
                    if let Some(key) = key {
                        apply(key, address, number, bytes);
                    }
                }
                reader.outcome = Outcome::Good;
                return Some(buf.freeze());
            }
            Ok((_, Err(error))) => {
                reader.outcome = Outcome::Failed;
                error.to_string()
            }
            Err(_) => {
                self.cache.state().rest_until(Instant::now() + REST);
                format!("{}: a read takes longer than {READ_TIME_MAX:?}", self.file.display())
            }
        };
        drop(reader);
        let failed = self.cache.state().on_failed_read(began);
        tracing::warn!(error = failure, "reading the cache; the store is read instead");
        if failed >= FAILED_READS_MAX {
            self.cache.leave_out(&failure);
        }
        None
    }
}

/// A read that a client waits for: background work goes by what it feels.
async fn paced<T>(pacer: &Pacer, bytes: usize, read: impl Future<Output = T>) -> T {
    let request = pacer.request(RequestKind::Read, bytes as u64);
    let done = read.await;
    request.ended();
    done
}
