//! The table and its policies against models that are easy to see through.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use weir_cache::policy::{Arc, Lru, Replacement, S3Fifo, SixFactor, SixFactorAlone, Weights};
use weir_cache::replay::Policy;
use weir_cache::{BAND_BYTES, Band, Geometry, Place, Slots, Table, Use};

/// A table of one set.
const ROWS: u32 = 10;
const ONE_SET: Geometry = Geometry { rows: ROWS, columns: 1 };

fn band(number: u64) -> Band {
    Band { device: 0, number }
}

/// Uses bands one after the other, and says which were there.
fn hits<P: Replacement>(policy: P, numbers: &[u64]) -> Vec<bool> {
    let mut table = Table::new(ONE_SET, policy);
    let each = numbers.iter().map(|number| {
        let is_there = table.use_band(band(*number), Use::Read).is_some();
        if !is_there {
            table.take_in(band(*number));
        }
        is_there
    });
    each.collect()
}

/// The least recently used of ten.
fn lru_model(numbers: &[u64]) -> Vec<bool> {
    let mut queue = VecDeque::new();
    let each = numbers.iter().map(|number| {
        let found = queue.iter().position(|known| known == number);
        if let Some(at) = found {
            queue.remove(at);
        }
        queue.push_back(*number);
        if queue.len() > ROWS as usize {
            queue.pop_front();
        }
        found.is_some()
    });
    each.collect()
}

/// S3-FIFO as its authors write it down, with a small queue of one and a main one of nine.
#[derive(Default)]
struct S3Model {
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<u64>,
    uses: BTreeMap<u64, u8>,
}

impl S3Model {
    fn evict(&mut self) {
        while !self.small.is_empty() || self.main.is_empty() {
            let oldest = self.small.pop_front().expect("the cache is full");
            if self.uses[&oldest] > 1 {
                self.uses.insert(oldest, 0);
                self.main.push_back(oldest);
            } else {
                self.uses.remove(&oldest);
                self.ghosts.push_back(oldest);
                if self.ghosts.len() > ROWS as usize {
                    self.ghosts.pop_front();
                }
                return;
            }
        }
        loop {
            let oldest = self.main.pop_front().expect("it is not empty");
            let uses = self.uses.get_mut(&oldest).expect("it is cached");
            if *uses == 0 {
                self.uses.remove(&oldest);
                return;
            }
            *uses -= 1;
            self.main.push_back(oldest);
        }
    }

    fn hit(&mut self, number: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&number) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        if self.uses.len() == ROWS as usize {
            self.evict();
        }
        self.uses.insert(number, 0);
        if let Some(at) = self.ghosts.iter().position(|ghost| *ghost == number) {
            self.ghosts.remove(at);
            self.main.push_back(number);
        } else {
            self.small.push_back(number);
        }
        false
    }
}

/// ARC by its four lists, as in figure 4 of the paper; the least recently used first.
#[derive(Default)]
struct ArcModel {
    once: VecDeque<u64>,
    often: VecDeque<u64>,
    ghosts_once: VecDeque<u64>,
    ghosts_often: VecDeque<u64>,
    target: usize,
}

fn take(list: &mut VecDeque<u64>, number: u64) -> bool {
    let found = list.iter().position(|known| *known == number);
    found.is_some_and(|at| list.remove(at).is_some())
}

impl ArcModel {
    fn replace(&mut self, was_often: bool) {
        let is_more =
            self.once.len() > self.target || (was_often && self.once.len() == self.target);
        if !self.once.is_empty() && is_more {
            self.ghosts_once.extend(self.once.pop_front());
        } else if let Some(oldest) = self.often.pop_front() {
            self.ghosts_often.push_back(oldest);
        } else {
            self.ghosts_once.extend(self.once.pop_front());
        }
    }

    fn hit(&mut self, number: u64) -> bool {
        let rows = ROWS as usize;
        if take(&mut self.once, number) || take(&mut self.often, number) {
            self.often.push_back(number);
            return true;
        }
        let (once, often) = (self.ghosts_once.len(), self.ghosts_often.len());
        // Until the set is full nobody makes room, and nothing is remembered.
        let is_full = self.once.len() + self.often.len() == rows;
        if take(&mut self.ghosts_once, number) {
            self.target = (self.target + (often / once).max(1)).min(rows);
            self.replace(false);
            self.often.push_back(number);
        } else if take(&mut self.ghosts_often, number) {
            self.target = self.target.saturating_sub((once / often).max(1));
            self.replace(true);
            self.often.push_back(number);
        } else {
            if is_full && self.once.len() + once >= rows {
                if self.once.len() < rows {
                    self.ghosts_once.pop_front();
                    self.replace(false);
                } else {
                    self.once.pop_front();
                }
            } else if is_full {
                if rows + once + often >= 2 * rows {
                    self.ghosts_often.pop_front();
                }
                self.replace(false);
            }
            self.once.push_back(number);
        }
        false
    }
}

/// Some bands that are used often, some that are used once, and runs of them.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    let run = (0_u64..60, 1_u64..12).prop_map(|(from, len)| (from..from + len).collect());
    let part = prop_oneof![
        5 => (0_u64..14).prop_map(|number| vec![number]),
        2 => (0_u64..60).prop_map(|number| vec![number]),
        1 => run,
    ];
    proptest::collection::vec(part, 0..150).prop_map(|parts: Vec<Vec<u64>>| parts.concat())
}

/// Uses ranges of several devices, and checks after each that the table holds together.
fn holds_together<P: Replacement>(geometry: Geometry, policy: P, uses: &[(u32, u64)]) {
    let mut table = Table::new(geometry, policy);
    let mut cached: BTreeMap<Band, Place> = BTreeMap::new();
    for (device, number) in uses {
        let band = Band { device: *device, number: *number };
        let place = table.use_band(band, Use::Write);
        assert_eq!(place, cached.get(&band).copied(), "of {band:?}");
        if place.is_some() {
            continue;
        }
        let taken = table.take_in(band).expect("these policies refuse nothing");
        let home = geometry.home(band.device, band.number);
        assert!(taken.place.row < geometry.rows && taken.place.column == home.column);
        if let Some((gone, _)) = taken.evicted {
            assert_eq!(cached.remove(&gone), Some(taken.place), "of {gone:?}");
        }
        assert!(cached.values().all(|place| *place != taken.place), "a place has one band");
        cached.insert(band, taken.place);
        table.fill(taken.place, 1);
        assert_eq!(table.slots().at(taken.place).present, 1, "nothing is left of what was there");
    }
    let shown: BTreeMap<Band, Place> =
        table.slots().bands().map(|(place, band, _)| (band, place)).collect();
    assert_eq!(shown, cached);
}

proptest! {
    #[test]
    fn lru_is_lru(numbers in numbers()) {
        prop_assert_eq!(hits(Lru, &numbers), lru_model(&numbers));
    }

    #[test]
    fn s3_fifo_is_s3_fifo(numbers in numbers()) {
        let mut model = S3Model::default();
        let expected: Vec<bool> = numbers.iter().map(|number| model.hit(*number)).collect();
        prop_assert_eq!(hits(S3Fifo::new(ONE_SET), &numbers), expected);
    }

    #[test]
    fn arc_is_arc(numbers in numbers()) {
        let mut model = ArcModel::default();
        let expected: Vec<bool> = numbers.iter().map(|number| model.hit(*number)).collect();
        prop_assert_eq!(hits(Arc::new(ONE_SET), &numbers), expected);
    }

    #[test]
    fn recency_alone_is_lru_or_s3_fifo(numbers in numbers()) {
        let weights = Weights::from([1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        prop_assert_eq!(hits(SixFactorAlone::new(weights), &numbers), lru_model(&numbers));
        let six_factor = SixFactor::new(ONE_SET, weights);
        prop_assert_eq!(hits(six_factor, &numbers), hits(S3Fifo::new(ONE_SET), &numbers));
    }

    #[test]
    fn every_policy_keeps_the_table(
        rows in 1_u32..9,
        columns in 1_u32..6,
        uses in proptest::collection::vec((0_u32..4, 0_u64..25), 0..400),
    ) {
        let geometry = Geometry { rows, columns };
        holds_together(geometry, Lru, &uses);
        holds_together(geometry, Arc::new(geometry), &uses);
        holds_together(geometry, S3Fifo::new(geometry), &uses);
        holds_together(geometry, SixFactor::new(geometry, Weights::DEFAULT), &uses);
        holds_together(geometry, SixFactorAlone::new(Weights::EQUAL), &uses);
    }
}

/// A full set, and what makes room in it for band 100 of device 1 under one factor alone.
fn victim(weights: [f64; 6], prepare: impl FnOnce(&mut Table<Choice>)) -> Option<Band> {
    let geometry = Geometry { rows: 4, columns: 3 };
    let mut table = Table::new(geometry, Choice(SixFactorAlone::new(Weights::from(weights))));
    prepare(&mut table);
    let new = Band { device: 1, number: 100 };
    table.take_in(new).and_then(|taken| taken.evicted).map(|(band, _)| band)
}

/// Only passes on.
struct Choice(SixFactorAlone);

impl Replacement for Choice {
    fn used(&mut self, slots: &Slots, place: Place) {
        self.0.used(slots, place);
    }

    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place> {
        self.0.victim(slots, band)
    }

    fn comes(&mut self, slots: &Slots, place: Place, band: Band) {
        self.0.comes(slots, place, band);
    }
}

/// The bands of one device that share the column of band 100 of device 1.
fn of_its_column() -> Vec<Band> {
    let geometry = Geometry { rows: 4, columns: 3 };
    let column = geometry.home(1, 100).column;
    let bands = (0..12).map(|number| Band { device: 0, number });
    bands.filter(|band| geometry.home(band.device, band.number).column == column).collect()
}

#[test]
fn a_factor_alone_chooses_what_it_says() {
    let bands = of_its_column();
    assert_eq!(bands.len(), 4);
    let fill = |table: &mut Table<Choice>| {
        for band in &bands {
            table.take_in(*band);
        }
    };
    let oldest_used = |table: &mut Table<Choice>| {
        fill(table);
        table.use_band(bands[0], Use::Read);
    };
    assert_eq!(victim([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], oldest_used), Some(bands[1]));
    // All but the third have their neighbour beside them.
    let with_neighbours = |table: &mut Table<Choice>| {
        fill(table);
        for band in [bands[0], bands[1], bands[3]] {
            table.take_in(Band { number: band.number + 1, ..band });
            if let Some(number) = band.number.checked_sub(1) {
                table.take_in(Band { number, ..band });
            }
        }
    };
    assert_eq!(victim([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], with_neighbours), Some(bands[2]));
    // The place that is nearest to where the new one belongs.
    let geometry = Geometry { rows: 4, columns: 3 };
    let home = geometry.home(1, 100);
    let there = bands.iter().find(|band| geometry.home(band.device, band.number) == home).copied();
    assert!(there.is_some());
    assert_eq!(victim([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], fill), there);
}

#[test]
fn a_scan_leaves_what_is_used_often() {
    let geometry = Geometry::of_bands(640);
    let hot = 500;
    let scanned = 3000;
    for (policy, least_permille) in [(Policy::SixFactor, 980), (Policy::S3Fifo, 980)] {
        let mut cache = policy.cache(geometry, Weights::DEFAULT);
        for _ in 0..6 {
            (0..hot)
                .for_each(|number| cache.request(0, number * BAND_BYTES, BAND_BYTES, Use::Read));
        }
        (0..scanned)
            .for_each(|number| cache.request(1, number * BAND_BYTES, BAND_BYTES, Use::Read));
        let before = cache.counts();
        (0..hot).for_each(|number| cache.request(0, number * BAND_BYTES, BAND_BYTES, Use::Read));
        let after = cache.counts();
        let permille = (after.hits - before.hits) * 1000 / (after.blocks - before.blocks);
        assert!(permille >= least_permille, "{}: {permille}", policy.name());
    }
}

#[test]
fn blocks_are_counted_one_by_one() {
    for policy in Policy::ALL {
        let mut cache = policy.cache(Geometry::of_bands(4), Weights::DEFAULT);
        // Bytes of three blocks, of two bands; then the last of them and one behind it.
        cache.request(0, BAND_BYTES - 5000, 5001, Use::Write);
        assert_eq!((cache.counts().blocks, cache.counts().hits), (3, 0), "{}", policy.name());
        cache.request(0, BAND_BYTES, 8192, Use::Read);
        assert_eq!((cache.counts().blocks, cache.counts().hits), (5, 1), "{}", policy.name());
        cache.request(0, BAND_BYTES - 8192, 12_288, Use::Read);
        assert_eq!((cache.counts().blocks, cache.counts().hits), (8, 4), "{}", policy.name());
        cache.request(0, 7 * BAND_BYTES, 0, Use::Read);
        assert_eq!(cache.counts().blocks, 8, "nothing is asked for: {}", policy.name());
    }
}
