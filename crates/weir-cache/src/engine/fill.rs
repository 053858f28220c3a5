//! Fills: what was read from below, or was written just now, is written here as background work. Too many at a time are
//! not taken; nobody waits for one.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use weir_pacer::{Class, Work};
use weir_seal::BlockKey;

use super::block::{BAND_RUNS, Encoded, RUN_BYTES, RunAddress, Written, encode};
use super::queue::{Offer, Pieces, Source, len_of};
use super::state::{Filling, Pin};
use super::thread::{Open, ThreadCache};
use crate::format::BLOCK_LEN;

/// Fills of a thread on their way at a time.
const FILLS_IN_FLIGHT_MAX: u32 = 4;

/// A write that takes longer counts as one that failed, and is waited for as long again.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

/// Writes that do so, with no good one in between, before the cache is left out: its disk hangs.
const FAILED_WRITES_MAX: u32 = 4;

/// Begin of the time that entries count from: 2020-01-01, after the Unix epoch.
const ENTRY_EPOCH: Duration = Duration::from_secs(1_577_836_800);

impl ThreadCache {
    /// Gives the cache a run of a device: all blocks of it, the last of which may be short. Returns at once; the cache
    /// takes it when it can, or not.
    pub fn offer(&self, address: RunAddress, source: Source, key: Option<Arc<BlockKey>>) {
        let Some(open) = self.current() else { return };
        {
            let mut state = open.cache.state();
            // Who read it looked here first.
            state.counts.misses += u64::from(matches!(source, Source::Kept(_)));
            if !state.wants(&address) {
                return;
            }
        }
        if !open.queue.push(Offer { address, source, key }) {
            open.cache.state().counts.dropped += 1;
            return;
        }
        let running = open.queue.fillers.get();
        if running < FILLS_IN_FLIGHT_MAX {
            open.queue.fillers.set(running + 1);
            let filler = Rc::clone(&open);
            open.env.spawn_local(async move { fill_all(&filler).await });
        }
    }
}

async fn fill_all(open: &Open) {
    while let Some(first) = open.queue.pop() {
        let mut offers = Offers::from_iter([first]);
        while let Some(next) = open.queue.pop_behind(&offers[offers.len() - 1]) {
            offers.push(next);
        }
        let bytes = (offers.len() * (RUN_BYTES + BLOCK_LEN)) as u64;
        let work = Work { class: Class::Fill, bytes, operations: 0 };
        let leave = open.env.pacer.leave(work, || open.queue.pressure()).await;
        let begun: Fills = offers.into_iter().filter_map(|offer| open.begin(offer)).collect();
        let is_used = !begun.is_empty();
        let mut begun = begun.into_iter().peekable();
        while let Some(first) = begun.next() {
            let mut fills = Fills::from_iter([first]);
            while let Some(next) = begun.next_if(|next| fills[fills.len() - 1].is_before(next)) {
                fills.push(next);
            }
            open.fill(fills).await;
        }
        if is_used {
            leave.used();
        }
    }
    open.queue.fillers.set(open.queue.fillers.get() - 1);
}

/// What waits and lies within one band.
type Offers = SmallVec<[Offer; BAND_RUNS as usize]>;

/// A run that is written, and where.
pub(super) struct Fill {
    pub(super) address: RunAddress,
    pub(super) frame: Pieces,
    pub(super) key: Option<Arc<BlockKey>>,
    pub(super) filling: Filling,
}

pub(super) type Fills = SmallVec<[Fill; BAND_RUNS as usize]>;

impl Fill {
    /// Whether another one lies right behind it on the disk, and one write does for both.
    fn is_before(&self, next: &Self) -> bool {
        // Of one taking of the place: those of a later one wait for those of an earlier one.
        let is_of_one = self.filling.pin.is_as_old_as(&next.filling.pin);
        let (at, next) = (self.filling.at, next.filling.at);
        let is_behind = (at.place, at.run + 1) == (next.place, next.run);
        is_of_one && is_behind && len_of(&self.frame) == RUN_BYTES
    }
}

impl Open {
    /// Takes a place for a run, if its bytes are still there and the cache wants it.
    fn begin(&self, Offer { address, source, key }: Offer) -> Option<Fill> {
        let Some(frame) = source.take() else {
            self.cache.state().counts.dropped += 1;
            return None;
        };
        let len = len_of(&frame);
        if len == 0 || len > RUN_BYTES {
            return None;
        }
        let filling = self.cache.state().begin_fill_of(&address, len)?;
        Some(Fill { address, frame, key, filling })
    }

    /// Writes runs that lie behind each other.
    pub(super) async fn fill(&self, mut fills: Fills) {
        let pins: SmallVec<[Pin; BAND_RUNS as usize]> =
            fills.iter().map(|fill| fill.filling.pin).collect();
        let mut is_free = true;
        for fill in &mut fills {
            // The last one who uses what was there says so. Where somebody else took the place meanwhile, nobody does.
            if let Some(wait) = fill.filling.wait.take() {
                is_free &= wait.await.is_ok();
            }
        }
        let offset = self.cache.superblock().run_offset(fills[0].filling.at);
        let encoded = if is_free { self.encode(fills).await } else { None };
        let Some(runs) = encoded else {
            let mut state = self.cache.state();
            pins.iter().for_each(|pin| state.end_fill(pin, None));
            return;
        };
        let (pieces, checks): (Vec<_>, Vec<_>) =
            runs.into_iter().map(|run| (run.bytes, run.checks)).unzip();
        let (cache, file) = (self.cache.clone(), self.file.clone());
        let mut write = Box::pin(async move {
            let (_, written) = file.write_at(pieces, offset).await;
            {
                let mut state = cache.state();
                for (pin, checks) in pins.iter().zip(&checks) {
                    state.end_fill(pin, written.is_ok().then_some(&checks[..]));
                }
            }
            if let Err(error) = written {
                cache.state().on_failed_write();
                cache.leave_out(&error.to_string());
            }
        });
        while tokio::time::timeout(WRITE_TIME_MAX, &mut write).await.is_err() {
            if self.is_given_up() {
                // Its place is in use until it ends, and nobody waits for that.
                return self.env.spawn_local(write);
            }
        }
    }

    /// A write takes too long: whether the cache is left out by now.
    fn is_given_up(&self) -> bool {
        let (hanging, in_all) = {
            let mut state = self.cache.state();
            (state.on_failed_write(), state.counts.failed_fills)
        };
        let why = format!("{}: a write takes longer than {WRITE_TIME_MAX:?}", self.file.display());
        if in_all.is_power_of_two() {
            tracing::warn!(error = why.as_str(), in_all, "writing the cache");
        }
        let is_too_much = hanging >= FAILED_WRITES_MAX;
        if is_too_much && !weir_device::mutant("cache_writes_hang_for_ever") {
            self.cache.leave_out(&why);
        }
        self.cache.state().ended.is_some()
    }

    /// Hashing and sealing takes a worker some 10 us per run. `None` where the workers are gone.
    async fn encode(&self, fills: Fills) -> Option<Vec<Encoded>> {
        let (superblock, buffers) = (self.cache.superblock(), self.env.buffers.clone());
        let since = self.env.clock.wall().saturating_sub(ENTRY_EPOCH).as_secs();
        let used = u32::try_from(since).unwrap_or(u32::MAX);
        let encoded = self.env.background(async move {
            let encode = |fill: &Fill| {
                let written = Written {
                    cache: superblock.cache,
                    at: fill.filling.at,
                    address: fill.address,
                    fill: fill.filling.number,
                    opening_salt: superblock.opening_salt,
                    used,
                    key: fill.key.as_deref(),
                };
                encode(&written, &fill.frame, &buffers)
            };
            fills.iter().map(encode).collect()
        });
        encoded.await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use weir_disk::sim::{SimDisk, SimDiskOptions};

    use super::*;
    use crate::engine::{CacheSize, Owner};
    use crate::format::run::DeviceIdentity;

    #[test]
    fn runs_of_a_band_that_lost_its_place_and_has_it_again_are_not_written_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let disk =
                SimDisk::new(1, SimDiskOptions { alignment: 4096, ..SimDiskOptions::default() });
            let thread = ThreadCache::default();
            let env = weir_device::testing::env(1);
            let size = CacheSize::Exactly(24 << 20);
            let (cache, _) = thread.open(&disk.directory(), &env, size).await.expect("opens");
            cache.limit_share(Owner([1; 16]), Some(1));
            let open = thread.current().expect("open");
            let begin = |run| {
                let address = RunAddress { device: DeviceIdentity([1; 32]), run };
                let source = Source::Here(Pieces::from_iter([Bytes::from(vec![1; RUN_BYTES])]));
                open.begin(Offer { address, source, key: None }).expect("begins")
            };
            // Another thread takes the place between the two.
            let (first, other, second) = (begin(0), begin(8), begin(1));
            if first.is_before(&second) {
                let filled = open.fill(Fills::from_iter([first, second]));
                let filled = tokio::time::timeout(Duration::from_secs(1000), filled);
                let (filled, ()) =
                    futures_util::join!(filled, open.fill(Fills::from_iter([other])));
                filled.expect("it waits for itself");
            }
        });
    }
}
