//! After a crash: what the headers of the runs say, set by set, those first that somebody looks into.

use futures_util::stream::{FuturesUnordered, StreamExt};
use weir_pacer::{Class, Work};

use super::block::{BAND_RUNS, RUN_BLOCKS, RunAddress, check_of};
use super::scan::{FoundRun, Scan};
use super::thread::{Open, ThreadCache};
use crate::format::BLOCK_LEN;
use crate::format::run::{RunHeader, RunPlace};
use crate::geometry::Place;

/// Headers that are read at a time.
const READS_IN_FLIGHT_MAX: usize = 64;

impl ThreadCache {
    /// Finds out what is in the file after a crash, set by set, while the cache is served from: on one thread of the
    /// node. Returns at once where it is known.
    pub async fn recover(&self) {
        if let Some(open) = self.current() {
            run(&open).await;
        }
    }
}

/// Reads set after set until all are known, or the cache ended.
async fn run(open: &Open) {
    let headers = u64::from(open.cache.superblock().geometry.rows) * u64::from(BAND_RUNS);
    let work = Work { class: Class::Fill, bytes: headers * BLOCK_LEN as u64, operations: 0 };
    let pressure = || open.cache.state().scan.as_ref().map_or(0.0, Scan::pressure);
    loop {
        // Before it is chosen what to read: what is asked for meanwhile comes first.
        let leave = open.env.pacer.leave(work, pressure).await;
        let next = {
            let mut state = open.cache.state();
            let is_open = state.ended.is_none();
            state.scan.as_mut().filter(|_| is_open).and_then(Scan::take)
        };
        let Some(column) = next else { return };
        let found = read_set(open, column).await;
        leave.used();
        open.cache.state().restore_set(column, found);
    }
}

/// The runs of a set whose headers can be read; others are as good as empty.
async fn read_set(open: &Open, column: u32) -> Vec<FoundRun> {
    let rows = open.cache.superblock().geometry.rows;
    let mut places = (0..rows).flat_map(|row| {
        (0..BAND_RUNS).map(move |run| RunPlace { place: Place { row, column }, run })
    });
    let mut found = Vec::new();
    let mut reads = FuturesUnordered::new();
    loop {
        while reads.len() < READS_IN_FLIGHT_MAX {
            let Some(at) = places.next() else { break };
            reads.push(read_run(open, at));
        }
        match reads.next().await {
            Some(run) => found.extend(run),
            None => return found,
        }
    }
}

async fn read_run(open: &Open, at: RunPlace) -> Option<FoundRun> {
    let superblock = open.cache.superblock();
    let buf = open.env.buffers.alloc(BLOCK_LEN);
    let (buf, read) = open.file.read_at(buf, superblock.run_offset(at)).await;
    read.ok()?;
    let header = RunHeader::decode(&buf, superblock.cache, at, RUN_BLOCKS).ok()?;
    let entries = header.entries.iter().map_while(Option::as_ref);
    let checks: Vec<u32> = entries.map(|entry| check_of(&entry.hash)).collect();
    let run = header.band * u64::from(BAND_RUNS) + u64::from(at.run);
    let address = RunAddress { device: header.device, run };
    (!checks.is_empty()).then_some(FoundRun { at, address, fill: header.fill, checks })
}
