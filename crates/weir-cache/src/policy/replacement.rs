//! What a policy is asked.

use crate::geometry::{Band, Place};
use crate::slots::Slots;

/// A policy of replacement. It sees every use of what is in the table, and what comes and goes.
pub trait Replacement {
    /// What a place holds was used again.
    fn used(&mut self, slots: &Slots, place: Place);

    /// The place of a full set that a band may have; `None` where it is not to be cached.
    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place>;

    /// A place is about to take a band; what was there goes.
    fn comes(&mut self, slots: &Slots, place: Place, band: Band);

    /// A place has a band as before a restart: one that was kept, or not. Of a set they come oldest first.
    fn restored(&mut self, slots: &Slots, place: Place, band: Band, is_kept: bool) {
        let _ = is_kept;
        self.comes(slots, place, band);
    }

    /// Whether what a place holds is kept before what is new.
    fn is_kept(&self, place: Place) -> bool {
        let _ = place;
        false
    }
}
