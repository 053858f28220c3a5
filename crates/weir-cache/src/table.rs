//! The table with its policy: what is in the cache, and what is to be.

use crate::geometry::{Band, Geometry, Place};
use crate::policy::{Replacement, SixFactor};
use crate::slots::{Slot, Slots};

/// Whether something is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is read.
    Read,
    /// It is written.
    Write,
}

/// Where a band is taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its place.
    pub place: Place,
    /// What was there and goes.
    pub evicted: Option<(Band, Slot)>,
}

/// The table of bands.
#[derive(Clone, Debug)]
pub struct Table<P> {
    slots: Slots,
    policy: P,
}

impl<P: Replacement> Table<P> {
    /// An empty table.
    #[must_use]
    pub fn new(geometry: Geometry, policy: P) -> Self {
        Self { slots: Slots::new(geometry), policy }
    }

    /// What is in it.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// A band is used; where it is, if it is there.
    pub fn use_band(&mut self, band: Band, use_: Use) -> Option<Place> {
        let place = self.slots.find(band)?;
        self.policy.used(&self.slots, place);
        let used = self.slots.count_use();
        let slot = self.slots.at_mut(place);
        slot.used = used;
        let count = if use_ == Use::Read { &mut slot.reads } else { &mut slot.writes };
        *count = count.saturating_add(1);
        Some(place)
    }

    /// Somebody asked that what a place holds stays.
    pub(crate) fn stays(&mut self, place: Place) {
        self.slots.at_mut(place).used = self.slots.count_use();
        self.policy.stays(&self.slots, place);
    }

    /// A place for a band that is not there; `None` where it is not to be cached.
    pub fn take_in(&mut self, band: Band) -> Option<Taken> {
        debug_assert!(self.slots.find(band).is_none(), "a band has one place");
        let place = match self.slots.free(band) {
            Some(place) => place,
            None => self.policy.victim(&self.slots, band)?,
        };
        Some(self.take(place, band))
    }

    /// A place that the policy let go, or that is free, takes a band.
    fn take(&mut self, place: Place, band: Band) -> Taken {
        self.policy.comes(&self.slots, place, band);
        let old = self.slots.put(place, band);
        Taken { place, evicted: old.band().map(|band| (band, old)) }
    }

    /// Blocks came into a place.
    pub fn fill(&mut self, place: Place, blocks: u64) {
        self.slots.at_mut(place).present |= blocks;
    }

    /// Blocks of a place are not there any more.
    pub(crate) fn drop_blocks(&mut self, place: Place, blocks: u64) {
        self.slots.at_mut(place).present &= !blocks;
    }

    /// A band is found in a place, as after a restart, the oldest of a set first. The table does not have it, nor
    /// anything in that place.
    pub(crate) fn restore(&mut self, (place, is_kept): (Place, bool), band: Band, present: u64) {
        debug_assert!(self.slots.find(band).is_none() && self.slots.at(place).band().is_none());
        self.policy.restored(&self.slots, place, band, is_kept);
        self.slots.put(place, band);
        self.fill(place, present);
    }

    /// Whether the policy keeps what a place holds before what is new.
    pub(crate) fn is_kept(&self, place: Place) -> bool {
        self.policy.is_kept(place)
    }

    /// Bands of a device belong where `seed` says.
    pub(crate) fn set_seed(&mut self, device: u32, seed: u32) {
        self.slots.set_seed(device, seed);
    }
}

impl Table<SixFactor> {
    /// A band takes a place of its set that somebody else chose.
    pub(crate) fn take_place(&mut self, place: Place, band: Band) -> Taken {
        debug_assert!(self.slots.find(band).is_none(), "a band has one place");
        debug_assert_eq!(self.slots.home(band).column, place.column, "of its set");
        self.policy.goes(place);
        self.take(place, band)
    }
}
