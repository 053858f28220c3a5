//! One simulated file: what reads see, and what would be left of it after a loss of power.
//!
//! The bytes are the newest state. Every write that is not durable has an entry in the undo log
//! with the bytes that it replaced, in the order in which the writes reached the disk; a crash
//! walks the log backwards and puts back, sector by sector, what the lost writes replaced.
//!
//! Invariants
//!  M1. Undoing all of `log` and then all of `doomed`, newest first, gives the durable bytes.
//!  M2. An entry leaves the log only through a sync that started after the write ended, a failed
//!      sync, or a crash.
//!  M3. `durable_len <= len`.

use std::collections::VecDeque;
use std::ops::Range;

use super::content::{Content, SparseBytes, index};
use super::random::SimRandom;

/// A write that is not durable.
#[derive(Debug)]
struct Undo {
    offset: u64,
    len: u64,
    /// What the write replaced; `None` is zeroes.
    old: Option<Box<[u8]>>,
    /// Neither the old nor the new bytes are anything but zeroes: only the length of the file
    /// changed.
    only_length: bool,
}

/// What happened to unsynced writes in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) writes_kept: u64,
    pub(super) writes_lost: u64,
    pub(super) writes_torn: u64,
    pub(super) sectors_kept: u64,
    pub(super) sectors_lost: u64,
}

/// How a crash chooses among unsynced writes. Each crash of each file draws one: independent coins
/// per sector alone would almost never keep or lose everything.
#[derive(Clone, Copy, Debug)]
enum Fate {
    KeepAll,
    LoseAll,
    /// Whole writes; kept this many times in 256.
    PerWrite(u64),
    /// Single sectors; kept this many times in 256.
    PerSector(u64),
    /// All before this entry are kept, this one is torn, all after it are lost.
    Prefix(usize),
}

/// What becomes of one write.
#[derive(Clone, Copy)]
enum WriteFate {
    Keep,
    Lose,
    Tear(u64),
}

impl Fate {
    fn draw(random: &mut SimRandom, entries: usize) -> Self {
        match random.below(6) {
            0 => Self::KeepAll,
            1 => Self::LoseAll,
            2 => Self::PerWrite(random.within(16..240)),
            3 | 4 => Self::PerSector(random.within(16..240)),
            _ => Self::Prefix(index(random.below(entries as u64 + 1))),
        }
    }

    fn of_write(self, number: usize, random: &mut SimRandom) -> WriteFate {
        match self {
            Self::KeepAll => WriteFate::Keep,
            Self::LoseAll => WriteFate::Lose,
            Self::PerWrite(kept) if random.chance(kept, 256) => WriteFate::Keep,
            Self::PerWrite(_) => WriteFate::Lose,
            Self::PerSector(kept) => WriteFate::Tear(kept),
            Self::Prefix(torn) if number < torn => WriteFate::Keep,
            Self::Prefix(torn) if number > torn => WriteFate::Lose,
            Self::Prefix(_) => WriteFate::Tear(128),
        }
    }
}

/// A set of sectors within a range.
struct SectorSet {
    first: u64,
    words: Vec<u64>,
}

impl SectorSet {
    fn covering(entries: &[&Undo], sector_bytes: u64) -> Self {
        let first = entries.iter().map(|e| e.offset / sector_bytes).min().unwrap_or(0);
        let end = entries.iter().map(|e| (e.offset + e.len).div_ceil(sector_bytes)).max();
        let sectors = end.unwrap_or(first) - first;
        Self { first, words: vec![0; index(sectors.div_ceil(64))] }
    }

    fn contains(&self, sector: u64) -> bool {
        let bit = sector - self.first;
        self.words[index(bit / 64)] & (1 << (bit % 64)) != 0
    }

    /// Adds a sector; one outside the range does not matter to anybody.
    fn insert(&mut self, sector: u64) {
        let Some(bit) = sector.checked_sub(self.first) else { return };
        if let Some(word) = self.words.get_mut(index(bit / 64)) {
            *word |= 1 << (bit % 64);
        }
    }
}

/// The parts of a byte range that lie in one sector each.
fn sectors_of(offset: u64, len: u64, sector_bytes: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let end = offset + len;
    (offset / sector_bytes..end.div_ceil(sector_bytes)).map(move |sector| {
        let start = sector * sector_bytes;
        (sector, offset.max(start)..end.min(start + sector_bytes))
    })
}

/// One file.
#[derive(Debug)]
pub(super) struct Medium {
    bytes: SparseBytes,
    len: u64,
    durable_len: u64,
    log: VecDeque<Undo>,
    /// Entries that have left the log since the file was made: names an entry for good.
    log_start: u64,
    /// Writes that a failed sync gave up: still visible, durable only by luck.
    doomed: Vec<Undo>,
    /// Ranges made durable after writes were doomed, with the count of doomed writes then.
    settled: Vec<(usize, Range<u64>)>,
    sector_bytes: u64,
}

/// One file of a copy.
#[derive(Debug)]
pub(super) struct CopiedFile {
    /// Its path below the directory that was copied.
    pub(super) name: String,
    pub(super) medium: Medium,
    pub(super) inode: u64,
}

impl Medium {
    pub(super) fn new(sector_bytes: u64) -> Self {
        Self {
            bytes: SparseBytes::default(),
            len: 0,
            durable_len: 0,
            log: VecDeque::new(),
            log_start: 0,
            doomed: Vec::new(),
            settled: Vec::new(),
            sector_bytes,
        }
    }

    /// Another file with the bytes that reads see now, all of them durable.
    pub(super) fn copy(&self) -> Self {
        let mut copy = Self::new(self.sector_bytes);
        copy.bytes = self.bytes.clone();
        (copy.len, copy.durable_len) = (self.len, self.len);
        copy
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Where the undo log ends now: what a sync that starts now covers.
    pub(super) fn log_end(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.bytes.read(offset, bytes);
    }

    pub(super) fn flip(&mut self, offset: u64, mask: u8) {
        self.bytes.flip(offset, mask);
    }

    /// A write that reached the disk whole.
    pub(super) fn write(&mut self, offset: u64, content: &Content) {
        self.write_part(offset, content, 0..content.len());
    }

    /// A write for which there was room for its first `len` bytes only.
    pub(super) fn write_start(&mut self, offset: u64, content: &Content, len: u64) {
        self.write_part(offset, content, 0..len);
    }

    /// A write of which each sector reached the disk `kept` times in 256. Returns whether it was
    /// torn.
    pub(super) fn write_torn(
        &mut self,
        offset: u64,
        content: &Content,
        kept: u64,
        random: &mut SimRandom,
    ) -> bool {
        let (mut any_kept, mut any_lost) = (false, false);
        // Neighbours that are both kept go in one piece, so that a zeroed range does not become a
        // thousand entries.
        let mut run: Option<Range<u64>> = None;
        for (_, part) in sectors_of(offset, content.len(), self.sector_bytes) {
            if random.chance(kept, 256) {
                any_kept = true;
                run = Some(run.map_or(part.start, |run| run.start)..part.end);
            } else {
                any_lost = true;
                if let Some(run) = run.take() {
                    self.write_part(offset, content, run.start - offset..run.end - offset);
                }
            }
        }
        if let Some(run) = run {
            self.write_part(offset, content, run.start - offset..run.end - offset);
        }
        any_kept && any_lost
    }

    fn write_part(&mut self, offset: u64, content: &Content, part: Range<u64>) {
        let (start, len) = (offset + part.start, part.end - part.start);
        if len == 0 {
            return;
        }
        let old = self.bytes.copy_of(start, len);
        let only_length = old.is_none() && matches!(content, Content::Zeroes(_));
        self.log.push_back(Undo { offset: start, len, old, only_length });
        self.len = self.len.max(start + len);
        if !only_length {
            let bytes = &mut self.bytes;
            content.for_each_run(part.start, part.end, |at, len, run| match run {
                Some(run) => bytes.write(offset + at, run),
                None => bytes.write_zeroes(offset + at, len),
            });
        }
    }

    /// A sync that started when the log ended at `covered` has succeeded.
    pub(super) fn sync(&mut self, covered: u64) {
        let count = index(covered.saturating_sub(self.log_start)).min(self.log.len());
        self.log_start += count as u64;
        for entry in self.log.drain(..count) {
            self.durable_len = self.durable_len.max(entry.offset + entry.len);
            if !self.doomed.is_empty() {
                // Older writes given up there no longer matter: these bytes cover them.
                self.settled.push((self.doomed.len(), entry.offset..entry.offset + entry.len));
            }
        }
        assert!(self.durable_len <= self.len, "M3: durable bytes are within the file");
    }

    /// A sync failed, as Linux fails it: what it covered may stay as it is, may count as clean
    /// though it is not durable, or may be dropped at once.
    pub(super) fn fail_sync(&mut self, covered: u64, random: &mut SimRandom) {
        let count = index(covered.saturating_sub(self.log_start)).min(self.log.len());
        match random.below(3) {
            0 => {}
            1 => {
                self.log_start += count as u64;
                self.doomed.extend(self.log.drain(..count));
            }
            _ => {
                self.log_start += count as u64;
                let dropped: Vec<Undo> = self.log.drain(..count).collect();
                let fate = Fate::draw(random, count);
                self.undo(&dropped, &[], fate, random);
                // Sectors that were put back are durable; the others may be lost yet.
                self.doomed.extend(dropped);
            }
        }
    }

    /// The process died: whoever reads next reads from the disk again and finds out what a failed
    /// sync gave up. What is there then is there to stay.
    pub(super) fn settle_doomed(&mut self, random: &mut SimRandom) {
        let doomed = std::mem::take(&mut self.doomed);
        let settled = std::mem::take(&mut self.settled);
        if doomed.is_empty() {
            return;
        }
        let fate = Fate::draw(random, doomed.len());
        self.undo(&doomed, &settled, fate, random);
        let ends = doomed.iter().map(|entry| entry.offset + entry.len);
        self.durable_len = self.durable_len.max(ends.max().unwrap_or(0));
    }

    /// Puts back what some of `lost` replaced, except where a later write of the log covers it.
    fn undo(
        &mut self,
        lost: &[Undo],
        settled: &[(usize, Range<u64>)],
        fate: Fate,
        random: &mut SimRandom,
    ) {
        let entries: Vec<&Undo> = lost.iter().collect();
        let mut undoing = Undoing::new(&mut self.bytes, random, self.sector_bytes, &entries);
        for later in &self.log {
            undoing.settle(&(later.offset..later.offset + later.len));
        }
        undoing.walk(&entries, settled, fate);
    }

    /// Power was lost: every write in the log is kept or lost, sector by sector.
    pub(super) fn lose_power(&mut self, random: &mut SimRandom) -> Losses {
        if self.log.is_empty() && self.doomed.is_empty() {
            return Losses::default();
        }
        let log = std::mem::take(&mut self.log);
        let doomed = std::mem::take(&mut self.doomed);
        let settled = std::mem::take(&mut self.settled);
        self.log_start += log.len() as u64;
        let entries: Vec<&Undo> = doomed.iter().chain(&log).collect();
        let fate = Fate::draw(random, entries.len());
        let mut undoing = Undoing::new(&mut self.bytes, random, self.sector_bytes, &entries);
        let kept_end = undoing.walk(&entries, &settled, fate);
        let losses = undoing.losses;
        self.len = self.durable_len.max(kept_end);
        self.durable_len = self.len;
        losses
    }
}

/// A walk back through writes, newest first, that undoes some of them.
struct Undoing<'a> {
    bytes: &'a mut SparseBytes,
    random: &'a mut SimRandom,
    sector_bytes: u64,
    /// Sectors with a newer write that stays: older ones no longer matter there.
    settled: SectorSet,
    losses: Losses,
}

impl<'a> Undoing<'a> {
    fn new(
        bytes: &'a mut SparseBytes,
        random: &'a mut SimRandom,
        sector_bytes: u64,
        entries: &[&Undo],
    ) -> Self {
        let settled = SectorSet::covering(entries, sector_bytes);
        Self { bytes, random, sector_bytes, settled, losses: Losses::default() }
    }

    fn settle(&mut self, range: &Range<u64>) {
        for (sector, _) in sectors_of(range.start, range.end - range.start, self.sector_bytes) {
            self.settled.insert(sector);
        }
    }

    /// Undoes writes as `fate` says. `settled` are ranges that became durable after so many of the
    /// writes. Returns where the last byte that was kept ends.
    fn walk(&mut self, entries: &[&Undo], settled: &[(usize, Range<u64>)], fate: Fate) -> u64 {
        let mut settled = settled.iter().rev().peekable();
        let mut kept_end = 0;
        for (number, entry) in entries.iter().enumerate().rev() {
            while let Some((_, range)) = settled.next_if(|(after, _)| number < *after) {
                self.settle(range);
            }
            let fate = fate.of_write(number, self.random);
            kept_end = kept_end.max(self.undo_entry(entry, fate));
        }
        kept_end
    }

    fn undo_entry(&mut self, entry: &Undo, fate: WriteFate) -> u64 {
        let (mut kept, mut lost, mut kept_end) = (0, 0, 0);
        for (sector, part) in sectors_of(entry.offset, entry.len, self.sector_bytes) {
            let keep = match fate {
                WriteFate::Keep => true,
                WriteFate::Lose => false,
                WriteFate::Tear(kept) => self.random.chance(kept, 256),
            };
            if keep {
                kept += 1;
                kept_end = part.end;
                self.settled.insert(sector);
            } else {
                lost += 1;
                if !entry.only_length && !self.settled.contains(sector) {
                    restore(entry, part, self.bytes);
                }
            }
        }
        self.losses.sectors_kept += kept;
        self.losses.sectors_lost += lost;
        match (kept, lost) {
            (_, 0) => self.losses.writes_kept += 1,
            (0, _) => self.losses.writes_lost += 1,
            _ => self.losses.writes_torn += 1,
        }
        kept_end
    }
}

fn restore(entry: &Undo, part: Range<u64>, bytes: &mut SparseBytes) {
    match &entry.old {
        Some(old) => {
            let within = index(part.start - entry.offset)..index(part.end - entry.offset);
            bytes.write(part.start, &old[within]);
        }
        None => bytes.write_zeroes(part.start, part.end - part.start),
    }
}
