//! Fills: what was read from below, or was written just now, is written here as background work. Too many at a time are
//! not taken; nobody waits for one.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_pacer::{Class, Work};
use weir_seal::BlockKey;

use super::block::{Encoded, RUN_BYTES, RunAddress, Written, encode};
use super::queue::{Offer, Pieces, Source, len_of};
use super::state::Filling;
use super::thread::{Open, ThreadCache};
use crate::format::BLOCK_LEN;

/// Fills of a thread on their way at a time.
const FILLS_IN_FLIGHT_MAX: u32 = 4;

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
    while let Some(Offer { address, source, key }) = open.queue.pop() {
        let bytes = (RUN_BYTES + BLOCK_LEN) as u64;
        let work = Work { class: Class::Fill, bytes, operations: 0 };
        let leave = open.env.pacer.leave(work, || open.queue.pressure()).await;
        let Some(frame) = source.take() else {
            open.cache.state().counts.dropped += 1;
            continue;
        };
        let len = len_of(&frame);
        if len == 0 || len > RUN_BYTES {
            continue;
        }
        let begun = open.cache.state().begin_fill_of(&address, len);
        if let Some(filling) = begun {
            open.fill((address, frame, key), filling).await;
            leave.used();
        }
    }
    open.queue.fillers.set(open.queue.fillers.get() - 1);
}

/// What is written.
type Run = (RunAddress, Pieces, Option<Arc<BlockKey>>);

impl Open {
    async fn fill(&self, run: Run, mut filling: Filling) {
        // The last one who uses what was there says so. Where somebody else took the place meanwhile, nobody does.
        if let Some(wait) = filling.wait.take()
            && wait.await.is_err()
        {
            self.cache.state().end_fill(&filling.pin, None);
            return;
        }
        let Some(Encoded { bytes, checks }) = self.encode(run, &filling).await else {
            self.cache.state().end_fill(&filling.pin, None);
            return;
        };
        let offset = self.cache.superblock().run_offset(filling.at);
        let (_, written) = self.file.write_at(vec![bytes], offset).await;
        self.cache.state().end_fill(&filling.pin, written.is_ok().then_some(&checks[..]));
        if let Err(error) = written {
            self.cache.leave_out(&error.to_string());
        }
    }

    /// Hashing and sealing takes a worker some 50 us. `None` where the workers are gone.
    async fn encode(&self, (address, frame, key): Run, filling: &Filling) -> Option<Encoded> {
        let (superblock, buffers) = (self.cache.superblock(), self.env.buffers.clone());
        let (at, fill) = (filling.at, filling.number);
        let since = self.env.clock.wall().saturating_sub(ENTRY_EPOCH).as_secs();
        let used = u32::try_from(since).unwrap_or(u32::MAX);
        let encoded = self.env.background(async move {
            let written = Written {
                cache: superblock.cache,
                at,
                address,
                fill,
                opening_salt: superblock.opening_salt,
                used,
                key: key.as_deref(),
            };
            encode(&written, &frame, &buffers)
        });
        encoded.await
    }
}
