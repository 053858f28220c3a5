//! How much presses the background work of a volume, for the pacer of the node: the fuller the journal and the older
//! the data, the more uploads are pressed, and with them the copies that they wait for. Pressure never makes clients
//! wait; only a journal that is nearly full does ([`Shared::throttle`]).

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;
use weir_pacer::{Class, Pace, Pressure};
use weir_store::Store;

use crate::limits::THROTTLE_FROM_PERCENT;
use crate::volume::shared::{Shared, State, percent_full};

/// Share of the journal, in percent, up to which its fill does not press: bursts are taken in as they come.
const CALM_UP_TO_PERCENT: u64 = 50;

/// Share of the journal, in percent, at which writes are no burst any more: uploads follow them at full speed from then
/// on, so that they find their bytes in memory. What memory does not have is read from the journal's disk, a third
/// transfer of every byte, and a load that goes on gains nothing from waiting.
const FOLLOW_FROM_PERCENT: u64 = 60;

/// A load of a volume that uploads follow is looked at over so long.
const LOAD_TIME: Duration = Duration::from_secs(10);

/// Part of the journal that a light load closes in that time at most: it would take minutes to be followed again.
const LIGHT_LOAD_PART: u64 = 16;

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
    /// Uploads follow the writes: begun when the journal reaches [`FOLLOW_FROM_PERCENT`], ended once everything is in
    /// the store and the load is light, or the journal is empty and no client of the node is there.
    follows: Cell<Option<Load>>,
}

/// The load of a volume that uploads follow.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// When it was looked at last, and the bytes in batches that were closed by then.
    looked_at: Instant,
    closed_bytes: u64,
    is_light: bool,
}

impl Load {
    fn new(closed_bytes: u64) -> Self {
        Self { looked_at: Instant::now(), closed_bytes, is_light: false }
    }

    /// Looks at it again, if it is time to. `journal_bytes`: what the journal may hold.
    fn look(self, closed_bytes: u64, journal_bytes: u64) -> Self {
        if self.looked_at.elapsed() < LOAD_TIME {
            return self;
        }
        let bytes = closed_bytes - self.closed_bytes;
        Self { is_light: bytes <= journal_bytes / LIGHT_LOAD_PART, ..Self::new(closed_bytes) }
    }
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
        self.follows.get().is_some()
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
        let unsent = &state.writes.unsent;
        let (closed_bytes, is_stored) =
            (unsent.closed_bytes(), unsent.closed_oldest_age().is_none());
        let so_far = self.pressures.follows.get().map(|load| load.look(closed_bytes, capacity));
        let is_light = is_stored
            && so_far.is_some_and(|load| load.is_light)
            && !weir_device::mutant("light_load_is_followed");
        let is_empty = used <= self.options.batch.bytes;
        let rests = || is_light || is_empty && self.env.pacer.seen().bytes_per_second.is_none();
        let followed = follows(so_far.is_some(), full, rests);
        let load = followed.then(|| so_far.unwrap_or_else(|| Load::new(closed_bytes)));
        self.pressures.follows.set(load);
        let hurries = hurries || followed;
        let age = state.writes.age_pressure(&self.options.batch);
        let upload = if hurries { Pressure::FULL } else { upload_pressure(full, age) };
        let of_share = state.collector.pressure(&state.head.objects, &self.options.collect);
        let is_ahead_of_data = state.collector.in_flight() > 0;
        let copy = copy_pressure(of_share, upload, is_ahead_of_data || hurries);
        let is_out_of_room = state.writes.upload_note.is_some();
        let delete = delete_pressure(self.garbage.pending(), is_out_of_room, hurries);
        self.pressures.upload.set(upload);
        self.pressures.copy.set(copy);
        self.pressures.delete.set(delete);
    }
}

/// Whether uploads follow the writes. Once they do, an empty journal alone is no end of it: where uploads keep up with
/// a load that goes on, it is empty now and then. Nor are clients of other volumes a reason to go on.
fn follows(so_far: bool, percent_full: u64, rests: impl Fn() -> bool) -> bool {
    let goes_on = so_far && !rests() && !weir_device::mutant("uploads_never_follow");
    percent_full >= FOLLOW_FROM_PERCENT || goes_on
}

/// What presses uploads while nobody waits for them.
fn upload_pressure(percent_full: u64, age: u32) -> u32 {
    let fill = match weir_device::mutant("full_journal_presses_nothing") {
        true => 0,
        false => Pressure::between(percent_full, CALM_UP_TO_PERCENT, THROTTLE_FROM_PERCENT),
    };
    fill.max(if weir_device::mutant("age_presses_nothing") { 0 } else { age })
}

/// What presses copies. Data waits for objects of the collector that are numbered before it.
fn copy_pressure(of_share: u32, upload: u32, data_waits: bool) -> u32 {
    let data_waits = data_waits && !weir_device::mutant("copies_hold_back_data");
    if data_waits { of_share.max(upload) } else { of_share }
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
    fn uploads_follow_from_a_full_journal_on_until_clients_rest() {
        let (rests, goes_on) = (|| true, || false);
        assert!(!follows(false, 59, goes_on) && follows(false, 60, goes_on));
        assert!(follows(true, 1, goes_on) && !follows(true, 1, rests));
        assert!(follows(true, 60, rests), "it is not empty");
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
