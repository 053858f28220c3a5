//! A disk that exists in memory only and misbehaves from a seed, within what a disk may do.
//!
//! - Operations take random time and overtake each other. A read over a write in flight sees any
//!   mixture of sectors.
//! - [`SimDisk::crash_process`] is `kill -9`: what is in flight happens wholly, partly (by sector)
//!   or not at all. A write may also stay in flight and land long after, when a later process has written to the same
//!   place; until then it holds the lock of its file ([`crate::File::lock_exclusive`]).
//! - [`SimDisk::crash_power`] also loses any subset of the sectors whose writes no successful sync
//!   covers. A sync covers what had ended when it started; a write in flight beside it is not
//!   covered.
//! - A failed sync may drop what it should have made durable, at once or at the next loss of power,
//!   and the next sync succeeds all the same. A process that starts later reads what is really
//!   left. (Real files are kinder: after a failed sync, every later one on that handle fails too.)
//!
//! Creating, removing and locking files is durable when the call returns, as on real disks, where
//! each of them syncs the directory. Time is tokio's: run it on a paused clock. The same seed and
//! the same calls give the same bytes.

mod content;
mod copies;
mod counters;
pub(crate) mod handles;
mod medium;
mod options;
mod random;
mod state;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

pub use copies::{CopyAs, SimCopy};
pub use counters::SimCounters;
pub use options::SimDiskOptions;

use crate::directory::Directory;
use handles::{Mounted, SimDirectory};
use state::State;

/// A simulated disk. Cheap to clone; outlives the processes that use it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
}

impl SimDisk {
    /// An empty disk.
    ///
    /// # Panics
    /// If a sector has no bytes, or the alignment is no power of two.
    #[must_use]
    pub fn new(seed: u64, options: SimDiskOptions) -> Self {
        assert!(options.sector_bytes > 0, "a sector has bytes");
        assert!(options.alignment.is_power_of_two(), "alignments are powers of two");
        Self { state: Rc::new(RefCell::new(State::new(seed, options))) }
    }

    /// The root directory, for a process that starts now. Handles made from it die with the next
    /// crash.
    #[must_use]
    pub fn directory(&self) -> Directory {
        let process = self.state.borrow().process;
        let mounted = Mounted { state: Rc::clone(&self.state), process };
        Directory::simulated(SimDirectory::root(mounted))
    }

    /// Kills the process: what is in flight may happen, or not, or later; locks are released (those of files when
    /// nothing is in flight on them any more); its handles never answer again.
    pub fn crash_process(&self) {
        self.state.borrow_mut().crash_process();
    }

    /// Takes the power away: kills the process, and any part of what no sync covers is lost.
    pub fn crash_power(&self) {
        self.state.borrow_mut().crash_power();
    }

    /// Replaces the disk by an empty one, as a replaced host has it. Kills the process.
    pub fn lose_disk(&self) {
        self.state.borrow_mut().lose_disk();
    }

    /// Identity of this boot of the host: changes with [`SimDisk::crash_power`] and
    /// [`SimDisk::lose_disk`].
    #[must_use]
    pub fn boot_id(&self) -> [u8; 16] {
        self.state.borrow().boot_id
    }

    /// The next `count` syncs fail.
    pub fn fail_next_syncs(&self, count: u32) {
        self.state.borrow_mut().syncs_to_fail = count;
    }

    /// Makes the disk refuse writes, or take them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.state.borrow_mut().read_only = read_only;
    }

    /// Limits the lengths of all files together; more is ENOSPC. Files that are longer already stay
    /// so.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.state.borrow_mut().options.capacity_bytes = capacity_bytes;
    }

    /// Changes how the disk behaves from now on. The size of a sector stays what it was.
    pub fn change_options(&self, change: impl FnOnce(&mut SimDiskOptions)) {
        let mut state = self.state.borrow_mut();
        let sector_bytes = state.options.sector_bytes;
        change(&mut state.options);
        assert!(state.options.sector_bytes == sector_bytes, "a disk keeps its sector size");
    }

    /// Reads and writes that touch `range` of the file at `path` (`directory/name`) fail with EIO
    /// from now on.
    pub fn inject_eio(&self, path: &str, range: Range<u64>) {
        self.state.borrow_mut().add_bad_range(path, range);
    }

    /// Undoes every [`SimDisk::inject_eio`].
    pub fn clear_eio(&self) {
        self.state.borrow_mut().clear_bad_ranges();
    }

    /// What lies on the medium of the file at `path` from `offset` on, without what is in flight;
    /// zeroes beyond its end and where there is no such file.
    pub fn peek(&self, path: &str, offset: u64, bytes: &mut [u8]) {
        self.state.borrow().peek(path, offset, bytes);
    }

    /// Flips bits of one byte of the file at `path`, silently. Nothing happens beyond the end of
    /// the file.
    pub fn rot(&self, path: &str, offset: u64) {
        self.state.borrow_mut().rot(path, offset);
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> SimCounters {
        self.state.borrow().counters
    }
}
