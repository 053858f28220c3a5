//! The state of a simulated disk: files, names, locks, operations in flight, and faults.
//!
//! Nothing runs in the background. An operation in flight has a due time; whoever touches the disk
//! next first carries out everything that has become due, in that order. So an operation ends
//! whether or not its future is still there.
//!
//! Invariants
//!  S1. An operation is either in flight, or finished and waiting for its future, or forgotten.
//!  S2. After a crash nothing of the process before it is finished, and its lock files are free. In flight of it are
//!      only late writes, which hold the locks of their files until they land.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;

use super::content::Content;
use super::counters::SimCounters;
use super::medium::{CopiedFile, Medium};
use super::options::SimDiskOptions;
use super::random::SimRandom;

/// A slow operation takes this many times longer: enough to be overtaken by everything around it.
const SLOW_FACTOR: u32 = 20;

/// Names a file for as long as the disk lives, also when it is no longer in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64);

/// Names an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperationId(u64);

/// Names one opening of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpenId(u64);

/// What an operation does when it is due.
#[derive(Debug)]
pub(super) enum Action {
    /// Nothing but taking time.
    Wait,
    Write {
        file: FileId,
        /// What the write was made through.
        open: OpenId,
        offset: u64,
        content: Content,
    },
    /// Covers the writes that had ended when it started: the file's log before `covered`.
    Sync {
        file: FileId,
        covered: u64,
        /// Syncs of the file that had failed by then.
        failures: u64,
    },
    CreateFile {
        path: Rc<str>,
    },
    CreateDirectory {
        path: Rc<str>,
    },
    Remove {
        path: Rc<str>,
    },
}

#[derive(Debug)]
struct InFlight {
    id: OperationId,
    due: Instant,
    action: Action,
    /// Its future was dropped.
    abandoned: bool,
}

#[derive(Debug)]
struct BadRange {
    path: Rc<str>,
    range: Range<u64>,
}

#[derive(Debug)]
struct SimFileState {
    medium: Medium,
    path: Rc<str>,
    sync_failures: u64,
    /// Tells it from every other file of this disk and of its copies.
    inode: u64,
}

/// Everything about one simulated disk.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: SimDiskOptions,
    pub(super) counters: SimCounters,
    pub(super) boot_id: [u8; 16],
    /// Counts processes: handles of an earlier one are dead.
    pub(super) process: u64,
    pub(super) read_only: bool,
    pub(super) syncs_to_fail: u32,
    random: SimRandom,
    files: BTreeMap<FileId, SimFileState>,
    names: BTreeMap<Rc<str>, FileId>,
    directories: BTreeSet<Rc<str>>,
    locks: BTreeMap<Rc<str>, u64>,
    /// Files that are open, by this process.
    open: BTreeSet<OpenId>,
    /// Which opening has locked a file. The lock is held while that is open, and while writes through it are in flight.
    file_locks: BTreeMap<FileId, OpenId>,
    /// Makes the inodes of one disk differ from those of others.
    inode_base: u64,
    bad_ranges: Vec<BadRange>,
    in_flight: Vec<InFlight>,
    finished: BTreeMap<OperationId, Result<(), Errno>>,
    next_id: u64,
}

impl State {
    pub(super) fn new(seed: u64, options: SimDiskOptions) -> Self {
        let mut state = Self {
            options,
            counters: SimCounters::default(),
            boot_id: [0; 16],
            process: 1,
            read_only: false,
            syncs_to_fail: 0,
            random: SimRandom::new(seed),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            directories: BTreeSet::new(),
            locks: BTreeMap::new(),
            open: BTreeSet::new(),
            file_locks: BTreeMap::new(),
            inode_base: SimRandom::new(!seed).next(),
            bad_ranges: Vec::new(),
            in_flight: Vec::new(),
            finished: BTreeMap::new(),
            next_id: 0,
        };
        state.boot();
        state
    }

    fn boot(&mut self) {
        for half in self.boot_id.chunks_exact_mut(8) {
            half.copy_from_slice(&self.random.next().to_le_bytes());
        }
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Starts an operation; says when it is due.
    pub(super) fn start(&mut self, action: Action) -> (OperationId, Instant) {
        let now = Instant::now();
        self.advance(now);
        let id = OperationId(self.fresh_id());
        let due = now + self.latency();
        self.in_flight.push(InFlight { id, due, action, abandoned: false });
        (id, due)
    }

    fn latency(&mut self) -> Duration {
        let (min, max) = (self.options.latency_min, self.options.latency_max);
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX - 1);
        let latency = min + Duration::from_nanos(self.random.below(span + 1));
        let slow = self.options.slow_one_in > 0 && self.random.chance(1, self.options.slow_one_in);
        if slow { latency * SLOW_FACTOR } else { latency }
    }

    /// The result of an operation that is due.
    pub(super) fn finish(&mut self, id: OperationId) -> Result<(), Errno> {
        self.advance(Instant::now());
        self.finished.remove(&id).expect("S1: a due operation of this process is finished")
    }

    /// The future of an operation is gone; the operation itself goes on.
    pub(super) fn abandon(&mut self, id: OperationId) {
        if let Some(operation) = self.in_flight.iter_mut().find(|operation| operation.id == id) {
            operation.abandoned = true;
        }
        self.finished.remove(&id);
    }

    /// Carries out everything that is due.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(index) = self.first_due(now) {
            let operation = self.in_flight.swap_remove(index);
            let result = self.carry_out(operation.action);
            if !operation.abandoned {
                self.finished.insert(operation.id, result);
            }
        }
    }

    fn first_due(&self, now: Instant) -> Option<usize> {
        let due = self.in_flight.iter().enumerate().filter(|(_, operation)| operation.due <= now);
        due.min_by_key(|(_, operation)| (operation.due, operation.id)).map(|(index, _)| index)
    }

    fn carry_out(&mut self, action: Action) -> Result<(), Errno> {
        match action {
            Action::Wait => Ok(()),
            Action::Write { file, offset, content, .. } => self.write(file, offset, &content),
            Action::Sync { file, covered, failures } => self.sync(file, covered, failures),
            Action::CreateFile { path } => self.create_file(&path),
            Action::CreateDirectory { path } => self.create_directory(&path),
            Action::Remove { path } => self.remove(&path),
        }
    }

    fn write(&mut self, file: FileId, offset: u64, content: &Content) -> Result<(), Errno> {
        let result = self.write_allowed(file, offset, content.len());
        let rate = self.options.write_errors_per_million;
        let result = result.and_then(|()| self.unlucky(rate));
        let free = self.free_bytes();
        let Some(state) = self.files.get_mut(&file) else { return Err(Errno::IO) };
        match result {
            Ok(()) => {
                self.counters.writes += 1;
                state.medium.write(offset, content);
                Ok(())
            }
            Err(Errno::ROFS) => Err(Errno::ROFS),
            Err(errno) => {
                self.counters.writes_failed += 1;
                if errno == Errno::NOSPC {
                    let room = (state.medium.len() + free).saturating_sub(offset);
                    let room = room / self.options.sector_bytes * self.options.sector_bytes;
                    state.medium.write_start(offset, content, room.min(content.len()));
                } else {
                    let kept = self.random.within(0..256);
                    state.medium.write_torn(offset, content, kept, &mut self.random);
                }
                Err(errno)
            }
        }
    }

    fn write_allowed(&self, file: FileId, offset: u64, len: u64) -> Result<(), Errno> {
        let Some(state) = self.files.get(&file) else { return Err(Errno::IO) };
        if self.read_only {
            return Err(Errno::ROFS);
        }
        let growth = (offset + len).saturating_sub(state.medium.len());
        let capacity = self.options.capacity_bytes.unwrap_or(u64::MAX);
        if growth > 0 && self.used_bytes() + growth > capacity {
            return Err(Errno::NOSPC);
        }
        if self.is_bad(&state.path, offset, len) { Err(Errno::IO) } else { Ok(()) }
    }

    fn unlucky(&mut self, errors_per_million: u64) -> Result<(), Errno> {
        let unlucky = self.random.chance(errors_per_million, 1_000_000);
        if unlucky { Err(Errno::IO) } else { Ok(()) }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let capacity = self.options.capacity_bytes.unwrap_or(u64::MAX);
        capacity.saturating_sub(self.used_bytes())
    }

    fn used_bytes(&self) -> u64 {
        self.files.values().map(|file| file.medium.len()).sum()
    }

    fn is_bad(&self, path: &str, offset: u64, len: u64) -> bool {
        self.bad_ranges.iter().any(|bad| {
            *bad.path == *path && bad.range.start < offset + len && offset < bad.range.end
        })
    }

    /// A sync that another one overtook and failed beside must fail too: it covers the same lost
    /// writes.
    fn sync(&mut self, file: FileId, covered: u64, failures: u64) -> Result<(), Errno> {
        let rate = self.options.sync_errors_per_million;
        let mut result = self.unlucky(rate);
        if self.syncs_to_fail > 0 {
            self.syncs_to_fail -= 1;
            result = Err(Errno::IO);
        }
        let Some(state) = self.files.get_mut(&file) else { return Err(Errno::IO) };
        if state.sync_failures != failures {
            result = Err(Errno::IO);
        }
        match result {
            Ok(()) => {
                self.counters.syncs += 1;
                state.medium.sync(covered);
            }
            Err(_) => {
                self.counters.syncs_failed += 1;
                state.sync_failures += 1;
                state.medium.fail_sync(covered, &mut self.random);
            }
        }
        result
    }

    /// Reads from a file what is there now. A write in flight over the range shows in any of its
    /// sectors.
    pub(super) fn read(
        &mut self,
        file: FileId,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), Errno> {
        let rate = self.options.read_errors_per_million;
        self.unlucky(rate)?;
        let len = bytes.len() as u64;
        let Some(state) = self.files.get(&file) else { return Err(Errno::IO) };
        if self.is_bad(&state.path, offset, len) {
            return Err(Errno::IO);
        }
        self.counters.reads += 1;
        state.medium.read(offset, bytes);
        let sector_bytes = self.options.sector_bytes;
        for operation in &self.in_flight {
            let Action::Write { file: target, offset: start, content, .. } = &operation.action
            else {
                continue;
            };
            let overlap = offset.max(*start)..(offset + len).min(start + content.len());
            if *target != file || overlap.is_empty() {
                continue;
            }
            let mut at = overlap.start;
            while at < overlap.end {
                let end = overlap.end.min((at / sector_bytes + 1) * sector_bytes);
                if self.random.coin() {
                    content.copy_to(at - start, end - start, &mut bytes[range(at, end, offset)]);
                }
                at = end;
            }
        }
        Ok(())
    }

    /// Length of a file.
    pub(super) fn len(&self, file: FileId) -> Result<u64, Errno> {
        self.files.get(&file).map(|state| state.medium.len()).ok_or(Errno::IO)
    }

    /// A sync that starts now.
    pub(super) fn start_sync(&mut self, file: FileId) -> Action {
        self.advance(Instant::now());
        let state = self.files.get(&file);
        let covered = state.map_or(0, |state| state.medium.log_end());
        let failures = state.map_or(0, |state| state.sync_failures);
        Action::Sync { file, covered, failures }
    }

    pub(super) fn lookup(&self, path: &str) -> Result<FileId, Errno> {
        match self.names.get(path) {
            Some(file) => Ok(*file),
            None if self.directories.contains(path) => Err(Errno::ISDIR),
            None => Err(Errno::NOENT),
        }
    }

    fn create_file(&mut self, path: &Rc<str>) -> Result<(), Errno> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        if self.names.contains_key(path) || self.directories.contains(path) {
            return Err(Errno::EXIST);
        }
        let file = FileId(self.fresh_id());
        let medium = Medium::new(self.options.sector_bytes);
        self.insert_file(file, path, medium, None);
        Ok(())
    }

    fn insert_file(&mut self, file: FileId, path: &Rc<str>, medium: Medium, inode: Option<u64>) {
        let inode = inode.unwrap_or(self.inode_base.wrapping_add(file.0));
        let state = SimFileState { medium, path: Rc::clone(path), sync_failures: 0, inode };
        self.files.insert(file, state);
        self.names.insert(Rc::clone(path), file);
    }

    fn create_directory(&mut self, path: &Rc<str>) -> Result<(), Errno> {
        if self.directories.contains(path) {
            return Ok(());
        }
        if self.names.contains_key(path) {
            return Err(Errno::NOTDIR);
        }
        if self.read_only {
            return Err(Errno::ROFS);
        }
        self.directories.insert(Rc::clone(path));
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), Errno> {
        let file = self.lookup(path)?;
        if self.read_only {
            return Err(Errno::ROFS);
        }
        // The file itself stays for those who have it open; the next crash takes it away.
        self.names.remove(path);
        assert!(self.files.contains_key(&file), "a name belongs to a file");
        Ok(())
    }

    /// Names in the directory `prefix`, which is empty or ends in a slash.
    pub(super) fn list(&self, prefix: &str) -> Vec<String> {
        let paths = self.names.keys().chain(&self.directories);
        let names = paths.filter_map(|path| path.strip_prefix(prefix));
        let mut names: Vec<String> =
            names.filter(|name| !name.contains('/')).map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Takes a lock; `Err` holds the process that has it.
    pub(super) fn lock(&mut self, path: &Rc<str>) -> Result<u64, u64> {
        if let Some(holder) = self.locks.get(path) {
            return Err(*holder);
        }
        let id = self.fresh_id();
        self.locks.insert(Rc::clone(path), id);
        Ok(id)
    }

    pub(super) fn unlock(&mut self, path: &str, id: u64) {
        if self.locks.get(path) == Some(&id) {
            self.locks.remove(path);
        }
    }

    /// Opens a file for this process.
    pub(super) fn open(&mut self) -> OpenId {
        let id = OpenId(self.fresh_id());
        self.open.insert(id);
        id
    }

    /// The last handle of an opening is gone.
    pub(super) fn close(&mut self, open: OpenId) {
        self.open.remove(&open);
    }

    /// Locks a file for an opening of it; false while another one has it.
    pub(super) fn lock_file(&mut self, file: FileId, open: OpenId) -> bool {
        self.advance(Instant::now());
        if let Some(holder) = self.file_locks.get(&file)
            && *holder != open
            && self.holds_locks(*holder)
        {
            self.counters.lock_waits += 1;
            return false;
        }
        self.file_locks.insert(file, open);
        true
    }

    fn holds_locks(&self, open: OpenId) -> bool {
        let mut actions = self.in_flight.iter().map(|operation| &operation.action);
        self.open.contains(&open)
            || actions.any(|action| matches!(action, Action::Write { open: by, .. } if *by == open))
    }

    /// What tells a file from others.
    pub(super) fn inode(&self, file: FileId) -> Result<u64, Errno> {
        self.files.get(&file).map(|state| state.inode).ok_or(Errno::IO)
    }

    /// The process dies: what is in flight may happen, wholly, partly or not at all, or later; locks go, but for those
    /// of files that are yet to be written to.
    pub(super) fn crash_process(&mut self) {
        self.end_process(true);
    }

    fn end_process(&mut self, writes_may_be_late: bool) {
        self.advance(Instant::now());
        self.counters.process_crashes += 1;
        let mut in_flight = std::mem::take(&mut self.in_flight);
        in_flight.sort_by_key(|operation| operation.id);
        while !in_flight.is_empty() {
            let chosen = self.random.below(in_flight.len() as u64);
            let operation = in_flight.swap_remove(super::content::index(chosen));
            if writes_may_be_late && self.is_late(&operation.action) {
                self.postpone(operation);
            } else {
                self.half_carry_out(operation.action);
            }
        }
        self.finished.clear();
        self.locks.clear();
        self.open.clear();
        self.process += 1;
        let names = &self.names;
        self.files.retain(|file, state| names.get(&state.path) == Some(file));
        for file in self.files.values_mut() {
            file.medium.settle_doomed(&mut self.random);
        }
    }

    fn is_late(&mut self, action: &Action) -> bool {
        let one_in = self.options.late_write_one_in;
        one_in > 0 && matches!(action, Action::Write { .. }) && self.random.chance(1, one_in)
    }

    /// The disk has the write, and carries it out long after its process is gone.
    fn postpone(&mut self, operation: InFlight) {
        let span = u64::try_from(self.options.late_write_max.as_nanos()).unwrap_or(u64::MAX - 1);
        let due = Instant::now() + Duration::from_nanos(self.random.below(span + 1));
        self.counters.late_writes += 1;
        self.in_flight.push(InFlight { due: due.max(operation.due), abandoned: true, ..operation });
    }

    fn half_carry_out(&mut self, action: Action) {
        let fate = self.random.below(3);
        match action {
            Action::Write { file, offset, content, .. } if fate == 1 => {
                let growth_allowed = self.write_allowed(file, offset, content.len()).is_ok();
                if let (true, Some(state)) = (growth_allowed, self.files.get_mut(&file)) {
                    let kept = self.random.within(16..240);
                    let torn = state.medium.write_torn(offset, &content, kept, &mut self.random);
                    self.counters.in_flight_torn += u64::from(torn);
                }
            }
            action if fate == 2 => {
                // Its result has nobody to go to any more.
                let _ = self.carry_out(action);
            }
            _ => self.counters.in_flight_lost += 1,
        }
    }

    /// The host loses power: the process dies, and unsynced writes are kept or lost by sector.
    pub(super) fn crash_power(&mut self) {
        self.end_process(false);
        self.counters.power_crashes += 1;
        for file in self.files.values_mut() {
            let losses = file.medium.lose_power(&mut self.random);
            self.counters.writes_kept += losses.writes_kept;
            self.counters.writes_lost += losses.writes_lost;
            self.counters.writes_torn += losses.writes_torn;
            self.counters.sectors_kept += losses.sectors_kept;
            self.counters.sectors_lost += losses.sectors_lost;
        }
        self.boot();
    }

    /// The disk is replaced by an empty one.
    pub(super) fn lose_disk(&mut self) {
        self.end_process(false);
        self.files.clear();
        self.names.clear();
        self.directories.clear();
        self.bad_ranges.clear();
        self.boot();
    }

    /// The files below `prefix`, which is empty or ends in a slash, as whoever reads them now finds them.
    pub(super) fn copy_files(&mut self, prefix: &str) -> Vec<CopiedFile> {
        self.advance(Instant::now());
        let below = self.names.iter().filter_map(|(path, file)| {
            let name = path.strip_prefix(prefix)?;
            let state = self.files.get(file)?;
            Some(CopiedFile {
                name: name.to_owned(),
                medium: state.medium.copy(),
                inode: state.inode,
            })
        });
        below.collect()
    }

    /// Replaces what is below `prefix`. Whoever has a file open that was there keeps that one.
    pub(super) fn put_files(&mut self, prefix: &str, copies: &[CopiedFile], keep_inodes: bool) {
        self.remove_files(prefix);
        for copy in copies {
            let path: Rc<str> = Rc::from(format!("{prefix}{}", copy.name));
            for (at, _) in path.match_indices('/') {
                self.directories.insert(Rc::from(&path[..at]));
            }
            let file = FileId(self.fresh_id());
            let inode = keep_inodes.then_some(copy.inode);
            self.insert_file(file, &path, copy.medium.copy(), inode);
        }
    }

    fn remove_files(&mut self, prefix: &str) {
        self.names.retain(|path, _| !path.starts_with(prefix));
    }

    /// Gives everything below `from` a name below `to` instead. The files stay what they are.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        self.remove_files(to);
        let moved: Vec<(Rc<str>, FileId)> = self
            .names
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, file)| (Rc::clone(path), *file))
            .collect();
        for (path, file) in moved {
            let new: Rc<str> = Rc::from(format!("{to}{}", &path[from.len()..]));
            self.names.remove(&path);
            self.names.insert(Rc::clone(&new), file);
            if let Some(state) = self.files.get_mut(&file) {
                state.path = new;
            }
        }
        let directories = std::mem::take(&mut self.directories);
        self.directories = directories
            .into_iter()
            .map(|path| match format!("{path}/").strip_prefix(from) {
                Some(rest) => Rc::from(format!("{to}{rest}").trim_end_matches('/')),
                None => path,
            })
            .collect();
    }

    pub(super) fn add_bad_range(&mut self, path: &str, range: Range<u64>) {
        self.bad_ranges.push(BadRange { path: Rc::from(path), range });
    }

    pub(super) fn clear_bad_ranges(&mut self) {
        self.bad_ranges.clear();
    }

    /// Flips at least one bit of a byte.
    pub(super) fn peek(&self, path: &str, offset: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        if let Ok(file) = self.lookup(path)
            && let Some(state) = self.files.get(&file)
        {
            state.medium.read(offset, bytes);
        }
    }

    pub(super) fn rot(&mut self, path: &str, offset: u64) {
        let Ok(file) = self.lookup(path) else { return };
        let mask = u8::try_from(self.random.within(1..256)).expect("a byte");
        if let Some(state) = self.files.get_mut(&file)
            && offset < state.medium.len()
        {
            state.medium.flip(offset, mask);
            self.counters.bytes_rotted += 1;
        }
    }
}

fn range(start: u64, end: u64, base: u64) -> Range<usize> {
    super::content::index(start - base)..super::content::index(end - base)
}
