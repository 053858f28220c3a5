//! The score of vStore (III-A.4, equation 1): the band of a set with the smallest one goes.

use super::queues::{Candidate, Queues};
use super::replacement::Replacement;
use crate::geometry::{Band, Geometry, Place};
use crate::slots::Slots;

/// How much each of the six factors counts; each factor lies between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// How recently it was used.
    pub recency: f64,
    /// How much of it is dirty.
    pub dirty: f64,
    /// How many of its neighbours on the device lie beside it.
    pub sequential: f64,
    /// How few neighbours of the new band lie beside the place.
    pub sequential_after: f64,
    /// How near it lies to its device's offset row.
    pub near: f64,
    /// How far the place is from the offset row of the new band's device.
    pub far_after: f64,
}

impl Weights {
    /// How many there are.
    pub const COUNT: usize = 6;

    /// In the order of the paper's factors.
    #[must_use]
    pub fn to_array(self) -> [f64; Self::COUNT] {
        let Self { recency, dirty, sequential, sequential_after, near, far_after } = self;
        [recency, dirty, sequential, sequential_after, near, far_after]
    }

    /// Found on traces ([`tune`](fn@crate::tune)).
    pub const DEFAULT: Self = Self { near: 0.5, far_after: 0.5, ..Self::EQUAL };

    /// All factors count alike, as in the paper.
    pub const EQUAL: Self = Self {
        recency: 1.0,
        dirty: 1.0,
        sequential: 1.0,
        sequential_after: 1.0,
        near: 1.0,
        far_after: 1.0,
    };
}

impl From<[f64; Weights::COUNT]> for Weights {
    fn from(weights: [f64; Weights::COUNT]) -> Self {
        let [recency, dirty, sequential, sequential_after, near, far_after] = weights;
        Self { recency, dirty, sequential, sequential_after, near, far_after }
    }
}

/// The score of a band that may make room for another one: the smaller, the sooner it goes.
fn score(weights: &Weights, slots: &Slots, new: Band, candidate: Candidate) -> f64 {
    let (geometry, place) = (slots.geometry(), candidate.place);
    let slot = slots.at(place);
    let Some(old) = slot.band() else { return f64::NEG_INFINITY };
    let farthest = f64::from((geometry.rows / 2).max(1));
    let from_home = |band| f64::from(geometry.distance(place.row, slots.home(band).row)) / farthest;
    let beside = |band| f64::from(slots.neighbours(place, band)) / 2.0;
    weights.recency * candidate.recency
        + weights.dirty * f64::from(slot.dirty.count_ones()) / f64::from(u64::BITS)
        + weights.sequential * beside(old)
        + weights.sequential_after * (1.0 - beside(new))
        + weights.near * (1.0 - from_home(old))
        + weights.far_after * from_home(new)
}

/// The six factors alone, over all bands of the set, as in the paper.
#[derive(Clone, Debug)]
pub struct SixFactorAlone(Weights);

impl SixFactorAlone {
    /// With these weights.
    #[must_use]
    pub fn new(weights: Weights) -> Self {
        Self(weights)
    }
}

impl Replacement for SixFactorAlone {
    fn used(&mut self, _: &Slots, _: Place) {}

    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place> {
        // Ages are compared by rank: hours and milliseconds count alike.
        let set = slots.set(slots.home(band).column);
        let mut ages: Vec<_> = set.map(|(place, slot)| (slots.age(slot.used), place)).collect();
        ages.sort_unstable_by(|one, other| other.cmp(one));
        let newest = f64::from(slots.geometry().rows.max(2) - 1);
        let scores = (0_u32..).zip(ages).map(|(rank, (_, place))| {
            let recency = f64::from(rank) / newest;
            (score(&self.0, slots, band, Candidate { place, recency }), place)
        });
        scores.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, place)| place)
    }

    fn comes(&mut self, _: &Slots, _: Place, _: Band) {}
}

/// The six factors among what the queues let go: what is new must be used again before it may displace what is.
#[derive(Clone, Debug)]
pub struct SixFactor {
    queues: Queues,
    weights: Weights,
}

impl SixFactor {
    /// For an empty table.
    #[must_use]
    pub fn new(geometry: Geometry, weights: Weights) -> Self {
        Self { queues: Queues::new(geometry), weights }
    }

    /// What is in a place goes, though nobody asked for a victim.
    pub(crate) fn goes(&mut self, place: Place) {
        self.queues.goes(place);
    }
}

impl Replacement for SixFactor {
    fn used(&mut self, slots: &Slots, place: Place) {
        self.queues.used(slots, place);
    }

    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place> {
        let column = slots.home(band).column;
        let score = |candidate| score(&self.weights, slots, band, candidate);
        self.queues.victim(slots, column, &score)
    }

    fn comes(&mut self, slots: &Slots, place: Place, band: Band) {
        self.queues.comes(slots, place, band);
    }

    fn restored(&mut self, _: &Slots, place: Place, _: Band, is_kept: bool) {
        self.queues.restored(place, is_kept);
    }

    fn is_kept(&self, place: Place) -> bool {
        self.queues.is_kept(place)
    }

    fn stays(&mut self, slots: &Slots, place: Place) {
        self.queues.stays(slots, place);
    }
}
