//! How much presses the background work of a volume, for the pacer of the node: the fuller the journal, the older the
//! data, and under a load that goes on the more of it waits, the more uploads are pressed, and with them the copies
//! that they wait for. Pressure never makes clients wait; only a journal that is nearly full does
//! ([`Shared::throttle`]).

use std::cell::Cell;

use weir_pacer::{Class, Pace, Pressure};
use weir_store::Store;

use crate::limits::THROTTLE_FROM_PERCENT;
use crate::volume::load::Load;
use crate::volume::shared::{Shared, State, percent_full};

/// Share of the journal, in percent, up to which its fill does not press: bursts are taken in as they come.
pub(super) const CALM_UP_TO_PERCENT: u64 = 50;

/// Part of the journal that counts as memory for its copies at most.
const MEMORY_PART_MAX: u64 = 4;

/// Objects that wait for their deletion at which deletions are pressed fully: half a gigabyte with objects of 8 MiB.
/// Clients that overwrite the same bytes again and again make garbage faster than it goes in the background.
const DELETIONS_WAITING_MAX: u64 = 64;

/// What presses each class of a volume's work.
#[derive(Debug, Default)]
pub(crate) struct Pressures {
    upload: Pressure,
    copy: Pressure,
    delete: Pressure,
    /// Who waits for background work of the volume.
    awaited: Cell<u32>,
    /// `None` until it is looked at for the first time.
    load: Cell<Option<Load>>,
}

/// Somebody waits for background work as long as this lives: it goes at full speed.
pub(crate) struct Awaited<'a>(&'a Shared);

impl Pressures {
    /// What presses uploads.
    pub(crate) fn upload_thousandths(&self) -> u64 {
        self.upload.thousandths().into()
    }

    /// Whether uploads follow the writes, which ends with time alone.
    pub(crate) fn uploads_follow(&self) -> bool {
        self.load.get().is_some_and(|load| load.is_followed())
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let awaited = &self.0.pressures.awaited;
        awaited.set(awaited.get() - 1);
        // Whoever has the state borrowed calls `press` soon.
        if let Ok(state) = self.0.state.try_borrow() {
            self.0.press(&state);
        }
    }
}

impl Shared {
    /// Who asks the pacer for leave for background work of this class.
    pub(crate) fn pace(&self, class: Class) -> Pace {
        let pressure = match class {
            Class::Upload => &self.pressures.upload,
            Class::Copy => &self.pressures.copy,
            Class::Delete => &self.pressures.delete,
            Class::Fill => unreachable!("a volume sends nothing to the store for its cache"),
        };
        Pace::new(&self.env.pacer, class, pressure)
    }

    /// The store for background work of this class.
    pub(crate) fn background_store(&self, class: Class) -> Store {
        self.store.at_pace(self.pace(class))
    }

    /// From now on, and until that is dropped, somebody waits for background work.
    pub(crate) fn awaited(&self) -> Awaited<'_> {
        let awaited = &self.pressures.awaited;
        awaited.set(awaited.get() + 1);
        self.press(&self.state.borrow());
        Awaited(self)
    }

    /// Says anew how much presses. Cheap: called for each record of the journal and each object.
    pub(crate) fn press(&self, state: &State) {
        let is_awaited = self.pressures.awaited.get() > 0;
        let hurries = (is_awaited && !weir_device::mutant("awaited_work_waits"))
            || self.is_closing_or_frozen()
            || self.stopped.get()
            || self.journal.is_poisoned();
        let (used, capacity) = self.journal.used_and_capacity();
        let full = percent_full((used, capacity));
        let age = match weir_device::mutant("age_presses_nothing") {
            true => 0,
            false => state.writes.age_pressure(&self.options.batch),
        };
        // The age of what an earlier opening took in says nothing of the load.
        let is_old = age > 0 && !state.writes.unsent.is_age_unknown();
        let memory = self.memory_bytes(capacity);
        let behind = self.behind_bytes(memory);
        let load = self.load(state, (used, capacity), is_old, behind);
        let of_fill_and_age = upload_pressure(full, age);
        let of_data = |waiting_max: u64| match (hurries, load.is_followed()) {
            (true, _) => Pressure::FULL,
            (false, true) => of_fill_and_age.max(behind_pressure(state, waiting_max)),
            (false, false) => of_fill_and_age,
        };
        let upload = of_data(behind);
        let of_share = state.collector.pressure(&state.head.objects, &self.options.collect);
        let data_waits = state.collector.in_flight() > 0 || hurries;
        let copy = copy_pressure(of_share, of_data(memory), data_waits);
        let is_out_of_room = state.writes.upload_note.is_some();
        let delete = delete_pressure(self.garbage.pending(), is_out_of_room, hurries);
        self.pressures.upload.set(upload);
        self.pressures.copy.set(copy);
        self.pressures.delete.set(delete);
    }

    /// Memory for copies of the journal; of a small journal, as much as may wait. What waits is counted by payload: the
    /// copies of small writes take more.
    fn memory_bytes(&self, capacity: u64) -> u64 {
        let most = u64::try_from(self.options.journal.resident_bytes_max).unwrap_or(u64::MAX);
        most.min(capacity / MEMORY_PART_MAX)
    }

    /// Bytes that wait and press uploads that follow a load fully: two batches, as far as memory is neither much larger
    /// nor too small for them. With fewer, uploads keep up in short pieces, which clients hardly feel; with more, the
    /// next ones are soon no longer in memory. Copies that data waits for are pressed fully by all of the memory.
    fn behind_bytes(&self, memory: u64) -> u64 {
        self.options.batch.bytes.saturating_mul(2).clamp(memory / 4, memory / 2)
    }

    /// The load of the volume, looked at anew. `is_old`: the age of its data presses. `behind`: bytes that may wait
    /// once it is light.
    fn load(&self, state: &State, (used, capacity): (u64, u64), is_old: bool, behind: u64) -> Load {
        let unsent = &state.writes.unsent;
        let open_bytes = state.writes.batch.as_ref().map_or(0, |batch| batch.payload_bytes);
        let bytes = unsent.closed_bytes() + open_bytes;
        let mut load = self.pressures.load.get().unwrap_or_else(|| Load::new(bytes));
        load.look(bytes, capacity);
        let is_light = load.is_light()
            && unsent.waiting_bytes() <= behind
            && !weir_device::mutant("light_load_is_followed");
        let is_empty = used <= self.options.batch.bytes;
        let rests = load.is_followed()
            && (is_light || is_empty && self.env.pacer.seen().bytes_per_second.is_none());
        load.follow(percent_full((used, capacity)), is_old, rests);
        self.pressures.load.set(Some(load));
        load
    }
}

/// What presses uploads that follow a load, or copies that these wait for.
fn behind_pressure(state: &State, waiting_max: u64) -> u32 {
    if weir_device::mutant("what_is_behind_presses_nothing") {
        return 0;
    }
    Pressure::between(state.writes.unsent.waiting_bytes(), 0, waiting_max)
}

/// What presses uploads at least, whether they follow a load or not, while nobody waits for them.
fn upload_pressure(percent_full: u64, age: u32) -> u32 {
    let fill = match weir_device::mutant("full_journal_presses_nothing") {
        true => 0,
        false => Pressure::between(percent_full, CALM_UP_TO_PERCENT, THROTTLE_FROM_PERCENT),
    };
    fill.max(age)
}

/// What presses copies. Data waits for objects of the collector that are numbered before it, and presses them as well.
fn copy_pressure(of_share: u32, of_data: u32, data_waits: bool) -> u32 {
    let data_waits = data_waits && !weir_device::mutant("copies_hold_back_data");
    if data_waits { of_share.max(of_data) } else { of_share }
}

/// What presses deletions: how many wait, and a store that has no room for anything else before they are done.
fn delete_pressure(pending: u64, is_out_of_room: bool, hurries: bool) -> u32 {
    let is_out_of_room = is_out_of_room && !weir_device::mutant("full_store_presses_no_deletions");
    match hurries || is_out_of_room {
        true => Pressure::FULL,
        false => Pressure::between(pending, 0, DELETIONS_WAITING_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fill_of_the_journal_presses_between_two_bounds_and_so_does_age() {
        let found = [0, 50, 51, 60, 75, 100].map(|full| upload_pressure(full, 0));
        assert_eq!(found, [0, 0, 40, 400, 1000, 1000]);
        assert_eq!(upload_pressure(60, 700), 700);
        assert_eq!(upload_pressure(75, 700), 1000);
    }

    #[test]
    fn deletions_press_by_their_number_and_at_once_where_a_store_is_full() {
        let found = [0, 16, 64, 100].map(|pending| delete_pressure(pending, false, false));
        assert_eq!(found, [0, 250, 1000, 1000]);
        assert_eq!(
            (delete_pressure(1, true, false), delete_pressure(0, false, true)),
            (1000, 1000)
        );
    }

    #[test]
    fn copies_that_data_waits_for_are_pressed_as_data_is() {
        assert_eq!(copy_pressure(300, 900, false), 300);
        assert_eq!(copy_pressure(300, 900, true), 900);
        assert_eq!(copy_pressure(900, 300, true), 900);
    }
}
