//! What is where, and who reads or writes it: everything under the lock of the cache, without I/O.

use std::collections::HashMap;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::block::{BAND_RUNS, RUN_BLOCKS, RunAddress};
use super::devices::{Devices, seed_of};
use super::scan::{FoundRun, Scan};
use super::shares::{self, Owner};
use super::status::CacheCounts;
use super::wear::Wear;
use crate::format::run::RunPlace;
use crate::geometry::{BAND_BLOCKS, Band, Geometry, Place};
use crate::policy::{SixFactor, Weights};
use crate::slots::Slots;
use crate::table::{Table, Use};

/// A place that somebody reads or writes.
#[derive(Debug, Default)]
struct Busy {
    /// Takings of the cache when this place was taken last.
    since: u64,
    /// Who uses what is there now, and who what was there before.
    users: u32,
    old_users: u32,
    /// Runs that are being written.
    writing: u32,
    /// Hear that the last old user is gone.
    waiting: Vec<oneshot::Sender<()>>,
}

/// Whom a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Somebody waits for it: it counts as a use, and says what clients feel.
    Client,
    /// It moves what is there, wanted or not: it counts as no use, and had leave of the pacer.
    Copy,
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It had what it should.
    Good,
    /// Nobody waited for it.
    Dropped,
    /// The blocks are not what they should be.
    Damaged,
    /// The disk gave none.
    Failed,
}

/// A use of a place. It is given back to [`State::end_read`] or [`State::end_fill`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a place that stays in use is never written again"]
pub(super) struct Pin {
    place: Place,
    takings: u64,
    run: u32,
}

impl Pin {
    /// Whether no place was taken between two uses.
    pub(super) fn is_as_old_as(&self, other: &Self) -> bool {
        self.takings == other.takings
    }
}

/// What the blocks of a run must be, from some block on.
pub(super) type Checks = SmallVec<[u32; RUN_BLOCKS as usize]>;

/// A read that may begin: where, and what the blocks must be.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) pin: Pin,
    pub(super) at: RunPlace,
    pub(super) first: u32,
    pub(super) checks: Checks,
}

/// A fill that may begin: where, once nobody uses what was there.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) pin: Pin,
    pub(super) at: RunPlace,
    pub(super) number: u64,
    pub(super) wait: Option<oneshot::Receiver<()>>,
}

/// Why nothing is looked up any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is being closed.
    Closing,
    /// Its disk failed.
    LeftOut(String),
}

/// See there.
#[derive(Debug)]
pub(super) struct State {
    pub(super) table: Table<SixFactor>,
    /// What each block must be: a part of its hash, set by set as the slots are.
    checks: Box<[u32]>,
    pub(super) devices: Devices,
    /// By index of the place; only those in use.
    busy: HashMap<usize, Busy>,
    takings: u64,
    next_fill: u64,
    /// While it is not known what is in the file.
    pub(super) scan: Option<Scan>,
    pub(super) ended: Option<Ended>,
    pub(super) blocks: u64,
    pub(super) counts: CacheCounts,
    pub(super) wear: Wear,
    /// Reads that failed one after the other, and when the last one did.
    failures: u32,
    failed_at: Option<Instant>,
    rests_until: Option<Instant>,
    /// When a read last was damaged or failed, or a write failed.
    pub(super) bad_at: Option<Instant>,
    /// Writes that hung since one went well.
    hanging: u32,
}

/// Bits of a run in those of its band.
fn of_run(bits: u64, run: u32) -> u32 {
    u32::try_from((bits >> (run * RUN_BLOCKS)) & ((1 << RUN_BLOCKS) - 1)).expect("16 bits")
}

fn to_band(bits: u32, run: u32) -> u64 {
    u64::from(bits) << (run * RUN_BLOCKS)
}

/// The first blocks of a run.
fn first_blocks(count: usize) -> u32 {
    debug_assert!(count <= RUN_BLOCKS as usize, "they fit the run");
    (1 << count) - 1
}

impl State {
    /// A cache of which nothing is known yet; fills are counted from `first_fill`.
    pub(super) fn new(geometry: Geometry, first_fill: u64, scan: Option<Scan>) -> Self {
        let bands = usize::try_from(geometry.bands()).expect("a table fits memory");
        Self {
            table: Table::new(geometry, SixFactor::new(geometry, Weights::DEFAULT)),
            checks: vec![0; bands * BAND_BLOCKS as usize].into_boxed_slice(),
            devices: Devices::default(),
            busy: HashMap::new(),
            takings: 0,
            next_fill: first_fill,
            scan,
            ended: None,
            blocks: 0,
            counts: CacheCounts::default(),
            wear: Wear::default(),
            failures: 0,
            failed_at: None,
            rests_until: None,
            bad_at: None,
            hanging: 0,
        }
    }

    fn slots(&self) -> &Slots {
        self.table.slots()
    }

    fn geometry(&self) -> Geometry {
        self.slots().geometry()
    }

    /// Where the checks of a place begin.
    fn first_check(&self, place: Place) -> usize {
        self.geometry().index(place) * BAND_BLOCKS as usize
    }

    /// What the blocks of a place must be.
    pub(super) fn checks_of(&self, place: Place) -> &[u32] {
        let first = self.first_check(place);
        &self.checks[first..first + BAND_BLOCKS as usize]
    }

    /// The set of a device's band, whether or not the cache has heard of the device.
    fn column_of(&self, address: &RunAddress) -> u32 {
        self.geometry().home(seed_of(&address.device), address.band()).column
    }

    /// The band of an address, if the cache has anything of its device, and its set is known.
    fn band_of(&mut self, address: &RunAddress) -> Option<Band> {
        if self.ended.is_some() {
            return None;
        }
        if self.scan.is_some() {
            let column = self.column_of(address);
            if !self.scan.as_mut().is_none_or(|scan| scan.is_known(column)) {
                return None;
            }
        }
        let device = self.devices.number(&address.device)?;
        Some(Band { device, number: address.band() })
    }

    /// Where that band is.
    fn place_of(&mut self, address: &RunAddress) -> Option<Place> {
        let band = self.band_of(address)?;
        self.slots().find(band)
    }

    fn pin(&mut self, place: Place, run: u32) -> Pin {
        let (index, takings) = (self.geometry().index(place), self.takings);
        self.busy.entry(index).or_default().users += 1;
        Pin { place, takings, run }
    }

    /// Ends a use. Whether the place still is what it was.
    fn unpin(&mut self, pin: &Pin) -> bool {
        let index = self.geometry().index(pin.place);
        let busy = self.busy.get_mut(&index).expect("a pinned place is busy");
        let is_current = pin.takings >= busy.since;
        if is_current {
            busy.users -= 1;
        } else {
            busy.old_users -= 1;
            if busy.old_users == 0 {
                for waiting in busy.waiting.drain(..) {
                    // Whoever waited may be gone.
                    let _ = waiting.send(());
                }
            }
        }
        if busy.users == 0 && busy.old_users == 0 {
            self.busy.remove(&index);
        }
        is_current
    }

    /// Whether nobody reads or writes.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.is_empty()
    }

    /// Blocks of a run from `first` on: `count` of them, or as many as there are.
    pub(super) fn begin_read(
        &mut self,
        whom: For,
        address: &RunAddress,
        first: u32,
        count: Option<u32>,
    ) -> Option<Reading> {
        let band = self.band_of(address)?;
        let place = match whom {
            For::Client => self.table.use_band(band, Use::Read)?,
            For::Copy => self.slots().find(band)?,
        };
        let run = address.in_band();
        // A run has the first blocks of its frame, all that the frame has, or none.
        let present = of_run(self.slots().at(place).present, run).trailing_ones();
        let count = count.unwrap_or(present.saturating_sub(first));
        if count == 0 || first + count > present {
            return None;
        }
        let begin = self.first_check(place) + (run * RUN_BLOCKS + first) as usize;
        let checks = Checks::from_slice(&self.checks[begin..begin + count as usize]);
        let pin = self.pin(place, run);
        Some(Reading { pin, at: RunPlace { place, run }, first, checks })
    }

    /// A read is over. What is not what it should be is dropped with its run.
    pub(super) fn end_read(&mut self, pin: &Pin, whom: For, outcome: Outcome) {
        let is_current = self.unpin(pin);
        if outcome == Outcome::Damaged {
            self.counts.damaged += 1;
            self.bad_at = Some(Instant::now());
        }
        if outcome == Outcome::Good {
            self.failures = 0;
            match whom {
                For::Client => self.counts.hits += 1,
                For::Copy => self.counts.copied += 1,
            }
        }
        if is_current && matches!(outcome, Outcome::Damaged | Outcome::Failed) {
            self.drop_run(pin.place, pin.run);
        }
    }

    fn drop_run(&mut self, place: Place, run: u32) {
        let present = of_run(self.slots().at(place).present, run);
        self.blocks -= u64::from(present.count_ones());
        self.table.drop_blocks(place, to_band(present, run));
    }

    /// Whether a run would be taken in.
    pub(super) fn wants(&mut self, address: &RunAddress) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let column = self.column_of(address);
        if self.scan.as_mut().is_some_and(|scan| !scan.is_known(column)) {
            return false;
        }
        let Some(device) = self.devices.number(&address.device) else { return true };
        let band = Band { device, number: address.band() };
        let Some(place) = self.slots().find(band) else { return true };
        let run = address.in_band();
        of_run(self.slots().at(place).present, run) == 0 && !self.is_writing(place, run)
    }

    fn is_writing(&self, place: Place, run: u32) -> bool {
        let busy = self.busy.get(&self.geometry().index(place));
        busy.is_some_and(|busy| busy.writing & (1 << run) != 0)
    }

    /// Whether a fill of a run is on its way.
    pub(super) fn is_being_filled(&mut self, address: &RunAddress) -> bool {
        self.place_of(address).is_some_and(|place| self.is_writing(place, address.in_band()))
    }

    /// Whether a run is there. It does not count as used.
    pub(super) fn has(&mut self, address: &RunAddress) -> bool {
        let place = self.place_of(address);
        place.is_some_and(|place| of_run(self.slots().at(place).present, address.in_band()) != 0)
    }

    /// Blocks that are there of a run. Somebody asks for its band, which is to stay.
    pub(super) fn stay(&mut self, address: &RunAddress) -> u32 {
        let Some(place) = self.place_of(address) else { return 0 };
        self.table.stays(place);
        of_run(self.slots().at(place).present, address.in_band()).trailing_ones()
    }

    /// Takes a place for a run, and what was there out.
    pub(super) fn begin_fill(&mut self, address: &RunAddress) -> Option<Filling> {
        if !self.wants(address) {
            return None;
        }
        let known = self.devices.number(&address.device);
        let found =
            known.and_then(|device| self.slots().find(Band { device, number: address.band() }));
        let place = match found {
            Some(place) => place,
            None => self.take_in(address)?,
        };
        let run = address.in_band();
        let pin = self.pin(place, run);
        let number = self.next_fill;
        self.next_fill += 1;
        let index = self.geometry().index(place);
        let busy = self.busy.get_mut(&index).expect("it was pinned just now");
        busy.writing |= 1 << run;
        let waits = busy.old_users > 0 && !weir_device::mutant("cache_fill_under_readers");
        let wait = waits.then(|| {
            let (sender, receiver) = oneshot::channel();
            busy.waiting.push(sender);
            receiver
        });
        Some(Filling { pin, at: RunPlace { place, run }, number, wait })
    }

    /// The band of an address that is about to come: its device has one more. `None` where there are too many devices.
    fn add_band(&mut self, address: &RunAddress) -> Option<Band> {
        let (device, is_new) = self.devices.add(&address.device)?;
        if is_new {
            self.table.set_seed(device, seed_of(&address.device));
        }
        Some(Band { device, number: address.band() })
    }

    fn take_in(&mut self, address: &RunAddress) -> Option<Place> {
        let is_full = self.devices.shares.is_full(Owner::of(&address.device))
            && !weir_device::mutant("cache_shares_not_limited");
        let band = self.add_band(address)?;
        let own = || shares::own_place(self.table.slots(), &self.devices, band);
        let taken = match is_full {
            true => own().map(|place| self.table.take_place(place, band)),
            false => self.table.take_in(band),
        };
        let Some(taken) = taken else {
            self.devices.remove(band.device);
            let count =
                if is_full { &mut self.counts.over_share } else { &mut self.counts.refused };
            *count += 1;
            return None;
        };
        self.takings += 1;
        if let Some((old, slot)) = taken.evicted {
            self.devices.remove(old.device);
            self.blocks -= u64::from(slot.present.count_ones());
            self.counts.evictions += 1;
        }
        let index = self.geometry().index(taken.place);
        if let Some(busy) = self.busy.get_mut(&index) {
            busy.old_users += std::mem::take(&mut busy.users);
            busy.since = self.takings;
            busy.writing = 0;
            // Fills that wait are among the old users now, and would wait for themselves: they are given up.
            if !weir_device::mutant("cache_fill_waits_for_itself") {
                busy.waiting.clear();
            }
        }
        Some(taken.place)
    }

    /// A fill is over: what its blocks must be, or nothing where it came to nothing.
    pub(super) fn end_fill(&mut self, pin: &Pin, written: Option<&[u32]>) {
        let index = self.geometry().index(pin.place);
        if let Some(busy) = self.busy.get_mut(&index)
            && pin.takings >= busy.since
        {
            busy.writing &= !(1 << pin.run);
        }
        if !self.unpin(pin) {
            return;
        }
        let Some(checks) = written else { return };
        self.hanging = 0;
        let begin = self.first_check(pin.place) + (pin.run * RUN_BLOCKS) as usize;
        self.checks[begin..begin + checks.len()].copy_from_slice(checks);
        self.table.fill(pin.place, to_band(first_blocks(checks.len()), pin.run));
        self.blocks += checks.len() as u64;
        self.counts.fills += 1;
        self.counts.filled_bytes += ((1 + checks.len()) * crate::format::BLOCK_LEN) as u64;
    }

    /// A band of a device is in a place, by the saved index.
    pub(super) fn restore(
        &mut self,
        (place, is_kept): (Place, bool),
        address: &RunAddress,
        present: u64,
        checks: &[u32],
    ) -> bool {
        let home = self.column_of(address);
        if home != place.column || self.slots().at(place).band().is_some() {
            return false;
        }
        let Some(band) = self.add_band(address) else { return false };
        if self.slots().find(band).is_some() {
            self.devices.remove(band.device);
            return false;
        }
        self.table.restore((place, is_kept), band, present);
        self.blocks += u64::from(present.count_ones());
        let first = self.first_check(place);
        self.checks[first..first + checks.len()].copy_from_slice(checks);
        true
    }

    /// What was found in the places of a set. It is known from now on.
    pub(super) fn restore_set(&mut self, column: u32, mut found: Vec<FoundRun>) {
        // A place belongs to the band that was filled into it last, and a band is where it was filled last (C4).
        found.sort_unstable_by_key(|run| std::cmp::Reverse(run.fill));
        if weir_device::mutant("cache_oldest_fill_counts") {
            found.reverse();
        }
        let mut owners: Vec<(Place, RunAddress)> = Vec::new();
        for run in &found {
            let is_taken = |(place, address): &(Place, RunAddress)| {
                *place == run.at.place
                    || (address.device, address.band()) == (run.address.device, run.address.band())
            };
            if !owners.iter().any(is_taken) {
                owners.push((run.at.place, run.address));
            }
        }
        // The oldest first, as they came.
        for (place, address) in owners.iter().rev() {
            let (mut present, mut checks) = (0, [0; BAND_BLOCKS as usize]);
            let is_of = |run: &&FoundRun| {
                run.at.place == *place
                    && (run.address.device, run.address.band()) == (address.device, address.band())
            };
            for run in found.iter().filter(is_of) {
                let begin = (run.at.run * RUN_BLOCKS) as usize;
                checks[begin..begin + run.checks.len()].copy_from_slice(&run.checks);
                present |= to_band(first_blocks(run.checks.len()), run.at.run);
            }
            // Headers do not say what was kept.
            self.restore((*place, false), address, present, &checks);
        }
        if self.scan.as_mut().is_some_and(|scan| scan.end(column)) {
            self.scan = None;
        }
    }

    /// A read that began then failed, or took too long; how many did so one after the other since one went well. Those
    /// that were on their way together count once.
    pub(super) fn on_failed_read(&mut self, began: Instant) -> u32 {
        self.counts.failed_reads += 1;
        self.bad_at = Some(Instant::now());
        if self.failed_at.is_none_or(|failed_at| began >= failed_at) {
            self.failures += 1;
            self.failed_at = Some(Instant::now());
        }
        self.failures
    }

    /// A write took too long once more, or failed; how many did so since one went well.
    pub(super) fn on_failed_write(&mut self) -> u32 {
        self.counts.failed_fills += 1;
        self.bad_at = Some(Instant::now());
        self.hanging += 1;
        self.hanging
    }

    /// The disk hangs: nothing is read from it until then.
    pub(super) fn rest_until(&mut self, then: Instant) {
        self.rests_until = Some(then);
    }

    pub(super) fn rests(&mut self) -> bool {
        self.rests_until.take_if(|until| Instant::now() >= *until);
        self.rests_until.is_some()
    }

    /// Nothing is looked up any more; whether that is new.
    pub(super) fn leave_out(&mut self, why: &str) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.ended = Some(Ended::LeftOut(why.to_owned()));
        true
    }
}

const _: () = assert!(BAND_RUNS * RUN_BLOCKS == BAND_BLOCKS);

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
