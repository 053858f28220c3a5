//! The one that was not used for longest goes.

use super::replacement::Replacement;
use crate::geometry::{Band, Place};
use crate::slots::Slots;

/// Least recently used.
#[derive(Clone, Debug, Default)]
pub struct Lru;

impl Replacement for Lru {
    fn used(&mut self, _: &Slots, _: Place) {}

    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place> {
        let set = slots.set(slots.home(band).column);
        set.max_by_key(|(_, slot)| slots.age(slot.used)).map(|(place, _)| place)
    }

    fn comes(&mut self, _: &Slots, _: Place, _: Band) {}
}
