//! What a client of the remote volume may read, cell by cell.
//!
//! The model: a cell has the numbers of all changes that were asked for, in order; no two of one cell are under way at
//! a time. It is at least as new as `floor`: the newest one that was acknowledged. What came later may be there (it is
//! under way, or failed) or not. A client that ends takes with it what it kept for a server that loses its power: then
//! the floor falls to what was flushed.

use std::ops::Range;

use super::medium::SIZE;

/// Bytes of a cell: the number of a change.
pub(super) const CELL_BYTES: u64 = 8;

/// Cells of the volume.
pub(super) const CELLS: u64 = SIZE / CELL_BYTES;

#[derive(Clone, Debug)]
struct Cell {
    /// What was asked for, in order; the first one is the beginning.
    asked: Vec<u64>,
    floor: usize,
    /// The client whose change that is.
    life: u64,
    durable: usize,
    is_busy: bool,
    /// Times that the floor fell.
    falls: u64,
}

impl Cell {
    /// Where a change stands that was asked for. Another client's may have been asked for since.
    fn place_of(&self, number: u64) -> usize {
        self.asked.iter().rposition(|asked| *asked == number).expect("it was asked for")
    }

    fn fall(&mut self) {
        if self.durable < self.floor {
            (self.floor, self.falls) = (self.durable, self.falls + 1);
        }
    }
}

/// A read under way: for each cell the oldest that it may show.
#[derive(Debug)]
pub(super) struct Reading {
    cells: Range<usize>,
    floors: Vec<Floor>,
}

/// The floor of a cell at some time, and how often it had fallen by then.
#[derive(Clone, Copy, Debug)]
struct Floor {
    at: usize,
    falls: u64,
}

impl From<&Cell> for Floor {
    fn from(cell: &Cell) -> Self {
        Self { at: cell.floor, falls: cell.falls }
    }
}

/// A flush under way: what it makes durable at least.
#[derive(Debug)]
pub(super) struct Flushing {
    floors: Vec<Floor>,
    life: u64,
    losses: u64,
}

#[derive(Debug)]
pub(super) struct Oracle {
    cells: Vec<Cell>,
    numbers: u64,
    life: u64,
    /// Losses of power of the server, and those until the last flush that succeeded was asked for. An answer that was
    /// on its way when the power went comes later.
    losses: u64,
    losses_at_flush: u64,
    /// Changes that a client which is gone may have had under way, sent again or for the first time: a slow server may
    /// carry them out behind those of the next one, which belongs to another session.
    stray: Vec<u64>,
}

impl Default for Oracle {
    fn default() -> Self {
        let cell = Cell { asked: vec![0], floor: 0, life: 0, durable: 0, is_busy: false, falls: 0 };
        let cells = vec![cell; usize::try_from(CELLS).expect("few")];
        Self { cells, numbers: 0, life: 0, losses: 0, losses_at_flush: 0, stray: Vec::new() }
    }
}

impl Oracle {
    /// A change of cells is asked for, of which none is being changed; its number.
    pub(super) fn change(&mut self, cells: Range<usize>, is_zero: bool) -> Option<u64> {
        if self.cells[cells.clone()].iter().any(|cell| cell.is_busy) {
            return None;
        }
        self.numbers += 1;
        let number = if is_zero { 0 } else { self.numbers };
        for cell in &mut self.cells[cells] {
            cell.asked.push(number);
            cell.is_busy = true;
        }
        Some(number)
    }

    /// It ended; `fua` where it was to survive by itself.
    pub(super) fn changed(&mut self, cells: Range<usize>, number: u64, succeeded: bool, fua: bool) {
        for cell in &mut self.cells[cells] {
            cell.is_busy = false;
            if succeeded {
                (cell.floor, cell.life) = (cell.place_of(number), self.life);
                if fua {
                    cell.durable = cell.floor;
                }
            }
        }
    }

    /// Another client changes cells, now that it may; the number of its change.
    pub(super) fn intrude(&mut self, cells: Range<usize>) -> u64 {
        self.numbers += 1;
        self.cells[cells].iter_mut().for_each(|cell| cell.asked.push(self.numbers));
        self.numbers
    }

    /// Its change was acknowledged, or flushed: nothing older is seen from then on.
    pub(super) fn intruded(&mut self, cells: Range<usize>, number: u64, is_durable: bool) {
        for cell in &mut self.cells[cells] {
            let at = cell.place_of(number);
            (cell.floor, cell.life) = (cell.floor.max(at), u64::MAX);
            if is_durable {
                cell.durable = cell.durable.max(at);
            }
        }
    }

    pub(super) fn begin_read(&self, cells: Range<usize>) -> Reading {
        let floors = self.cells[cells.clone()].iter().map(Floor::from).collect();
        Reading { cells, floors }
    }

    /// What is wrong with what was read, if something is.
    pub(super) fn judge(&self, reading: &Reading, found: &[u64]) -> Option<String> {
        let cells = self.cells[reading.cells.clone()].iter();
        let all = cells.zip(&reading.floors).zip(found).zip(reading.cells.clone());
        for (((cell, floor), value), index) in all {
            let floor =
                if floor.falls == cell.falls { floor.at } else { floor.at.min(cell.durable) };
            if !cell.asked[floor..].contains(value) && !self.stray.contains(value) {
                let place = cell.asked.iter().rposition(|asked| asked == value);
                return Some(format!(
                    "cell {index} shows change {value} ({place:?}), and {} ({floor}) was acknowledged of {}",
                    cell.asked[floor],
                    cell.asked.len() - 1,
                ));
            }
        }
        None
    }

    pub(super) fn begin_flush(&mut self) -> Flushing {
        let floors = self.cells.iter().map(Floor::from).collect();
        Flushing { floors, life: self.life, losses: self.losses }
    }

    pub(super) fn flushed(&mut self, flushing: &Flushing) {
        if flushing.life != self.life {
            return;
        }
        for (cell, floor) in self.cells.iter_mut().zip(&flushing.floors) {
            if cell.falls == floor.falls {
                cell.durable = cell.durable.max(floor.at);
            }
        }
        self.losses_at_flush = self.losses_at_flush.max(flushing.losses);
    }

    /// The server lost its power. A client that lives has what it lost of its own changes, if it sends again.
    pub(super) fn power_lost(&mut self, client_sends_again: bool) {
        self.losses += 1;
        let life = self.life;
        let is_lost = |cell: &&mut Cell| !client_sends_again || cell.life != life;
        self.cells.iter_mut().filter(is_lost).for_each(Cell::fall);
    }

    /// The client is gone, with what it had under way.
    pub(super) fn client_ended(&mut self, server_is_late: bool) {
        self.life += 1;
        if self.losses > self.losses_at_flush {
            self.cells.iter_mut().for_each(Cell::fall);
        }
        for cell in &mut self.cells {
            cell.is_busy = false;
            if server_is_late {
                // It may have been sending again what was not flushed.
                self.stray.extend(&cell.asked[cell.durable + 1..]);
            }
        }
    }
}
