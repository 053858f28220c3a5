//! The root of the directory: sorted runs of uniform tables, and tables of 1024 upper slots.
//!
//! A table covers 512 GiB, so volumes of usual size have a few dozen entries, while a range operation over
//! exabytes that were never written, or are one run, costs a step per entry and not per slot.
//!
//! Invariants
//!  R1. Entries are sorted and do not overlap; what no entry covers is unmapped and clean.
//!  R2. A table entry covers one table.
//!  R3. A uniform entry that is unmapped is dirty.

use crate::limits::{TABLE_BYTES, TABLE_SLOTS};
use crate::mapping::Target;
use crate::slot::{Piece, Upper};

/// What an entry of the root means.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Every piece of every table is this one run (or unmapped), advancing across them.
    Uniform { target: Option<Target>, dirty: bool },
    /// One table.
    Table(Box<[Upper; TABLE_SLOTS]>),
}

/// Some consecutive tables.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Number of the first table.
    pub(crate) first: u64,
    /// How many tables.
    pub(crate) tables: u64,
    pub(crate) kind: Kind,
}

impl Entry {
    pub(crate) fn end(&self) -> u64 {
        self.first + self.tables
    }
}

/// Where a table number falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Inside the entry with this index.
    Entry(usize),
    /// Before the entry with index `next`, or after all of them.
    Gap { next: usize },
}

/// The sorted entries.
#[derive(Debug, Default)]
pub(crate) struct Root {
    pub(crate) entries: Vec<Entry>,
}

impl Root {
    /// The entry of a table, or the gap it lies in.
    #[inline]
    pub(crate) fn find(&self, table: u64) -> Found {
        // A volume written from its beginning has entry `n` at index `n`.
        let guess = crate::bits::size(table);
        if let Some(entry) = self.entries.get(guess)
            && entry.first == table
        {
            return Found::Entry(guess);
        }
        let next = self.entries.partition_point(|entry| entry.first <= table);
        match next.checked_sub(1) {
            Some(at) if table < self.entries[at].end() => Found::Entry(at),
            _ => Found::Gap { next },
        }
    }

    /// The first table at or after the gap before entry `next` that an entry covers.
    pub(crate) fn gap_end(&self, next: usize) -> u64 {
        self.entries.get(next).map_or(u64::MAX, |entry| entry.first)
    }

    /// The slots of entry `at`, which must be a table.
    #[inline]
    pub(crate) fn table(&self, at: usize) -> &[Upper; TABLE_SLOTS] {
        match &self.entries[at].kind {
            Kind::Table(slots) => slots,
            Kind::Uniform { .. } => unreachable!("callers look at the kind first"),
        }
    }

    /// As [`Self::table`], to change it.
    #[inline]
    pub(crate) fn table_mut(&mut self, at: usize) -> &mut [Upper; TABLE_SLOTS] {
        match &mut self.entries[at].kind {
            Kind::Table(slots) => slots,
            Kind::Uniform { .. } => unreachable!("callers look at the kind first"),
        }
    }

    /// Puts an empty table into a gap; returns its index.
    pub(crate) fn insert_table(&mut self, next: usize, table: u64) -> usize {
        let kind = Kind::Table(Box::new([Upper::EMPTY; TABLE_SLOTS]));
        self.entries.insert(next, Entry { first: table, tables: 1, kind });
        next
    }

    /// Cuts `first..first + tables` out of the uniform entry `at`, puts `kind` there, and returns its index.
    fn carve(&mut self, at: usize, first: u64, tables: u64, kind: Kind) -> usize {
        let entry = &self.entries[at];
        let Kind::Uniform { target, dirty } = entry.kind else {
            unreachable!("only uniform entries are cut");
        };
        let end = first + tables;
        let before = first - entry.first;
        let part = |from: u64, tables: u64| {
            let moved = (from - entry.first).saturating_mul(TABLE_BYTES);
            let target = target.map(|target| target.advance(moved));
            Entry { first: from, tables, kind: Kind::Uniform { target, dirty } }
        };
        let mut parts = Vec::with_capacity(3);
        if before > 0 {
            parts.push(part(entry.first, before));
        }
        let after = (entry.end() > end).then(|| part(end, entry.end() - end));
        let index = at + parts.len();
        parts.push(Entry { first, tables, kind });
        parts.extend(after);
        self.entries.splice(at..=at, parts);
        index
    }

    /// Turns one table of the uniform entry `at` into a table with slots; returns its index.
    pub(crate) fn split_table(&mut self, at: usize, table: u64) -> usize {
        let entry = &self.entries[at];
        let Kind::Uniform { target, dirty } = entry.kind else {
            unreachable!("only uniform entries are split");
        };
        let mut moved = (table - entry.first).saturating_mul(TABLE_BYTES);
        let mut slots = Box::new([Upper::EMPTY; TABLE_SLOTS]);
        for slot in slots.iter_mut() {
            let here = target.map(|target| target.advance(moved));
            let upper = Upper::new(Piece::Uniform(here));
            *slot = if dirty { upper.dirty() } else { upper };
            moved += TABLE_BYTES / 1024;
        }
        self.carve(at, table, 1, Kind::Table(slots))
    }

    /// Replaces part of the uniform entry `at` by a dirty uniform entry.
    pub(crate) fn replace_uniform(
        &mut self,
        at: usize,
        first: u64,
        tables: u64,
        target: Option<Target>,
    ) {
        let at = self.carve(at, first, tables, Kind::Uniform { target, dirty: true });
        self.join_before(at);
    }

    /// Puts a dirty uniform entry into a gap.
    pub(crate) fn insert_uniform(&mut self, next: usize, first: u64, tables: u64, target: Target) {
        let kind = Kind::Uniform { target: Some(target), dirty: true };
        self.entries.insert(next, Entry { first, tables, kind });
        self.join_before(next);
    }

    /// Joins entry `at` to the one before it if that continues into it; returns whether it did.
    fn join_before(&mut self, at: usize) {
        let Some(before) = at.checked_sub(1) else { return };
        let (left, right) = (&self.entries[before], &self.entries[at]);
        let (Kind::Uniform { target: a, dirty: x }, Kind::Uniform { target: b, dirty: y }) =
            (&left.kind, &right.kind)
        else {
            return;
        };
        let length = left.tables.saturating_mul(TABLE_BYTES);
        let same = x == y && a.map(|target| target.advance(length)) == *b;
        if same && left.end() == right.first {
            self.entries[before].tables += self.entries[at].tables;
            self.entries.remove(at);
        }
    }

    /// Bytes taken from the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let tables =
            self.entries.iter().filter(|entry| matches!(entry.kind, Kind::Table(_))).count();
        self.entries.capacity() * size_of::<Entry>() + tables * size_of::<[Upper; TABLE_SLOTS]>()
    }
}
