//! The queues of a set, which keep a scan from washing out what is used again and again: Yang et al., "FIFO queues are
//! all you need for cache eviction" (SOSP 2023).
//!
//! What is new waits in a small queue. Used again, it goes on to the main one; otherwise it goes, and is remembered for
//! a while, so that it goes straight to the main one if it comes again. Which of a queue goes is the score's to say.

use std::collections::VecDeque;

use crate::geometry::{Band, Geometry, Place};
use crate::slots::Slots;

/// A tenth of a set takes what is new.
const SMALL_ONE_IN: usize = 10;

/// Uses that are counted.
const USES_MAX: u8 = 3;

/// Uses after which something new goes on to the main queue.
const USES_TO_STAY: u8 = 2;

/// A row in a queue: a byte, of which a large cache has one for each band.
type Row = u8;

/// The queues of one set, the oldest first, by row.
#[derive(Clone, Debug, Default)]
struct Set {
    small: VecDeque<Row>,
    main: VecDeque<Row>,
    /// What went from the small queue, by [`fingerprint`]; no more of them than rows.
    ghosts: VecDeque<u32>,
}

/// A band in four bytes. One that is taken for another stays longer, or goes sooner, than it should.
fn fingerprint(band: Band) -> u32 {
    let mixed = band.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(band.device);
    u32::try_from(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32).expect("32 bits are left")
}

fn row(place: Place) -> Row {
    Row::try_from(place.row).expect("a table has at most 64 rows")
}

/// The queues of all sets.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    sets: Vec<Set>,
    /// Uses since it came, or since it was last let go on.
    uses: Vec<u8>,
}

/// One that may go: its place, and how recent it is among those of its queue, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) place: Place,
    pub(super) recency: f64,
}

/// Where in a queue the one with the least score is; of equal ones the oldest.
fn least(
    queue: &VecDeque<Row>,
    column: u32,
    may_go: impl Fn(Place) -> bool,
    score: &impl Fn(Candidate) -> f64,
) -> Option<usize> {
    let newest = u32::try_from(queue.len().max(2) - 1).expect("no more than the rows");
    let places = (0_u32..).zip(queue).map(|(at, &row)| (at, Place { row: row.into(), column }));
    let scores = places.filter(|(_, place)| may_go(*place)).map(|(at, place)| {
        (at as usize, score(Candidate { place, recency: f64::from(at) / f64::from(newest) }))
    });
    scores.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(at, _)| at)
}

impl Queues {
    pub(super) fn new(geometry: Geometry) -> Self {
        let bands = usize::try_from(geometry.bands()).expect("a table fits memory");
        Self { sets: vec![Set::default(); geometry.columns as usize], uses: vec![0; bands] }
    }

    pub(super) fn used(&mut self, slots: &Slots, place: Place) {
        let uses = &mut self.uses[slots.geometry().index(place)];
        *uses = (*uses + 1).min(USES_MAX);
    }

    /// The place of a full set that makes room.
    pub(super) fn victim(
        &mut self,
        slots: &Slots,
        column: u32,
        score: &impl Fn(Candidate) -> f64,
    ) -> Option<Place> {
        let geometry = slots.geometry();
        let small_max = (geometry.rows as usize / SMALL_ONE_IN).max(1);
        let set = &mut self.sets[column as usize];
        while set.small.len() >= small_max || set.main.is_empty() {
            let at = least(&set.small, column, |_| true, score)?;
            let row = set.small.remove(at)?;
            let place = Place { row: row.into(), column };
            let uses = &mut self.uses[geometry.index(place)];
            if *uses < USES_TO_STAY {
                set.ghosts.extend(slots.at(place).band().map(fingerprint));
                if set.ghosts.len() > geometry.rows as usize {
                    set.ghosts.pop_front();
                }
                return Some(place);
            }
            *uses = 0;
            set.main.push_back(row);
        }
        loop {
            let uses = &mut self.uses;
            let is_unused = |place| uses[geometry.index(place)] == 0;
            let found = least(&set.main, column, is_unused, score);
            let victim = found.and_then(|at| set.main.remove(at));
            // Those that it passed over because they were used go behind the others.
            let mut spared = 0;
            for _ in 0..found.unwrap_or(set.main.len()) {
                let place = Place { row: set.main[spared].into(), column };
                let uses = &mut uses[geometry.index(place)];
                if *uses == 0 {
                    spared += 1;
                } else {
                    *uses -= 1;
                    set.main.remove(spared);
                    set.main.push_back(row(place));
                }
            }
            if let Some(row) = victim {
                return Some(Place { row: row.into(), column });
            }
        }
    }

    /// What is in a place goes.
    pub(super) fn goes(&mut self, place: Place) {
        let set = &mut self.sets[place.column as usize];
        set.small.retain(|other| *other != row(place));
        set.main.retain(|other| *other != row(place));
    }

    /// A place has a band as before a restart.
    pub(super) fn restored(&mut self, place: Place, is_kept: bool) {
        let set = &mut self.sets[place.column as usize];
        if is_kept { &mut set.main } else { &mut set.small }.push_back(row(place));
    }

    /// Whether what a place holds is in the main queue.
    pub(super) fn is_kept(&self, place: Place) -> bool {
        self.sets[place.column as usize].main.contains(&row(place))
    }

    /// What a place holds counts as used often: it does not wait in the small queue.
    pub(super) fn stays(&mut self, slots: &Slots, place: Place) {
        let set = &mut self.sets[place.column as usize];
        if let Some(at) = set.small.iter().position(|small| *small == row(place)) {
            set.small.remove(at);
            set.main.push_back(row(place));
        }
        self.uses[slots.geometry().index(place)] = USES_MAX;
    }

    /// A place takes a band.
    pub(super) fn comes(&mut self, slots: &Slots, place: Place, band: Band) {
        let set = &mut self.sets[place.column as usize];
        self.uses[slots.geometry().index(place)] = 0;
        let known = set.ghosts.iter().position(|ghost| *ghost == fingerprint(band));
        if let Some(at) = known {
            set.ghosts.remove(at);
            set.main.push_back(row(place));
        } else {
            set.small.push_back(row(place));
        }
    }
}
