//! Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003), set by set.

use std::collections::VecDeque;

use super::replacement::Replacement;
use crate::geometry::{Band, Geometry, Place};
use crate::slots::Slots;

/// What a set remembers.
#[derive(Clone, Debug, Default)]
struct Set {
    /// Bands that went and had been used once, or more often; the latest last.
    once: VecDeque<Band>,
    often: VecDeque<Band>,
    /// How many of the rows those that were used once may have.
    target: u32,
    /// The band that a victim was asked for was one of `often`, or of either.
    is_known: bool,
}

/// Adaptive replacement cache.
#[derive(Clone, Debug)]
pub struct Arc {
    sets: Vec<Set>,
    /// Whether what is in a place was used more than once.
    is_often: Vec<bool>,
}

fn forget(ghosts: &mut VecDeque<Band>, band: Band) -> bool {
    let found = ghosts.iter().position(|ghost| *ghost == band);
    found.is_some_and(|at| ghosts.remove(at).is_some())
}

fn count(ghosts: &VecDeque<Band>) -> u32 {
    u32::try_from(ghosts.len()).expect("no more than twice the rows")
}

impl Arc {
    /// For an empty table.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let bands = usize::try_from(geometry.bands()).expect("a table fits memory");
        Self { sets: vec![Set::default(); geometry.columns as usize], is_often: vec![false; bands] }
    }

    /// The least recently used one of those that were used once, or more often.
    fn oldest(&self, slots: &Slots, column: u32, is_often: bool) -> Option<Place> {
        let geometry = slots.geometry();
        let of_kind = slots
            .set(column)
            .filter(|(place, _)| self.is_often[geometry.index(*place)] == is_often);
        of_kind.max_by_key(|(_, slot)| slots.age(slot.used)).map(|(place, _)| place)
    }

    fn used_once(&self, slots: &Slots, column: u32) -> u32 {
        let rows = slots.geometry().rows;
        let once = (0..rows).filter(|&row| {
            let place = Place { row, column };
            slots.at(place).band().is_some() && !self.is_often[slots.geometry().index(place)]
        });
        u32::try_from(once.count()).expect("no more than the rows")
    }
}

impl Replacement for Arc {
    fn used(&mut self, slots: &Slots, place: Place) {
        self.is_often[slots.geometry().index(place)] = true;
    }

    fn victim(&mut self, slots: &Slots, band: Band) -> Option<Place> {
        let (rows, column) = (slots.geometry().rows, slots.home(band).column);
        let once = self.used_once(slots, column);
        let set = &mut self.sets[column as usize];
        let (ghosts_once, ghosts_often) = (count(&set.once), count(&set.often));
        let mut was_often = false;
        set.is_known = true;
        if forget(&mut set.once, band) {
            let step = (ghosts_often / ghosts_once.max(1)).max(1);
            set.target = (set.target + step).min(rows);
        } else if forget(&mut set.often, band) {
            let step = (ghosts_once / ghosts_often.max(1)).max(1);
            set.target = set.target.saturating_sub(step);
            was_often = true;
        } else {
            set.is_known = false;
            if once + ghosts_once >= rows {
                if ghosts_once > 0 {
                    set.once.pop_front();
                } else {
                    // All of the set was used once: the oldest goes, and is not remembered.
                    return self.oldest(slots, column, false);
                }
            } else if rows + ghosts_once + ghosts_often >= 2 * rows {
                set.often.pop_front();
            }
        }
        let takes_once = once > 0 && (once > set.target || (was_often && once == set.target));
        let victim = self.oldest(slots, column, !takes_once);
        let victim = victim.or_else(|| self.oldest(slots, column, takes_once))?;
        let gone = slots.at(victim).band()?;
        let is_often = self.is_often[slots.geometry().index(victim)];
        let set = &mut self.sets[column as usize];
        if is_often {
            set.often.push_back(gone)
        } else {
            set.once.push_back(gone)
        }
        Some(victim)
    }

    fn comes(&mut self, slots: &Slots, place: Place, _: Band) {
        let set = &mut self.sets[place.column as usize];
        self.is_often[slots.geometry().index(place)] = std::mem::take(&mut set.is_known);
    }
}
