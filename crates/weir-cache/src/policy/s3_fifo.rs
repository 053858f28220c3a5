//! Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), set by set.

use super::queues::Queues;
use super::replacement::Replacement;
use crate::geometry::{Band, Geometry, Place};
use crate::slots::Slots;

/// Three queues, first in, first out.
#[derive(Clone, Debug)]
pub struct S3Fifo(Queues);

impl S3Fifo {
    /// For an empty table.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self(Queues::new(geometry))
    }
}

impl Replacement for S3Fifo {
    fn used(&mut self, slots: &Slots, place: Place) {
        self.0.used(slots, place);
    }

    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place> {
        self.0.victim(slots, slots.home(band).column, &|candidate| candidate.recency)
    }

    fn comes(&mut self, slots: &Slots, place: Place, band: Band) {
        self.0.comes(slots, place, band);
    }
}
