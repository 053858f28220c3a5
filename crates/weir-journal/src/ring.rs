//! Which physical segment holds which part of the endless logical sequence. Pure accounting, no I/O.
//!
//! A physical segment goes round: free -> listed (a durable superblock names it) -> retired (released and no longer
//! listed, but its bytes are still there and readable) -> forgotten (nobody points into it) -> listed again under a
//! new logical number, which is never used twice.
//!
//! Invariants
//!  R1. Every physical segment is free or carries exactly one logical number.
//!  R2. Records go only into a segment that a durable superblock lists.
//!  R3. Only a segment that takes no more records, and all of whose writes were released, is taken off the list.
//!  R4. A physical segment gets a new logical number only when its old one is forgotten, unpinned, and off the list;
//!      the superblock that says both is durable before a byte is written over.
//!  R5. Logical numbers are consecutive and only rise.

use std::collections::{BTreeSet, VecDeque};

use weir_device::mutant;

use crate::format::{to_u64, to_usize};
use crate::ids::{JournalPos, RecordSeq, WriteNumber};
use crate::limits::{BLOCK_BYTES, DATA_START};

/// A logical segment whose bytes are still in the file.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) physical: u32,
    /// Its first record and write, once it has one.
    pub(crate) first: Option<(RecordSeq, WriteNumber)>,
    pub(crate) last_write: WriteNumber,
    pub(crate) pins: u32,
    pub(crate) forgotten: bool,
}

impl Segment {
    pub(crate) fn empty(physical: u32) -> Self {
        Self { physical, first: None, last_write: WriteNumber(0), pins: 0, forgotten: false }
    }
}

/// What must happen next to keep a segment ahead of the head and the tail short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, until something changes.
    Idle,
    /// Have the sink forget everything that points into this logical segment.
    Forget(u64),
    /// Make the file longer by this physical segment.
    Grow(u32),
    /// Write a superblock that says this.
    Publish(Plan),
}

/// A change of the segment list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// First logical segment that stays on the list.
    pub(crate) listed_from: u64,
    /// Physical segment that joins the list at its end.
    pub(crate) join: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Ring {
    segment_bytes: u64,
    segments_max: u32,
    physical_count: u32,
    free: BTreeSet<u32>,
    /// Retired segments, then the listed ones; logical numbers from `first_logical` on.
    known: VecDeque<Segment>,
    first_logical: u64,
    listed_from: u64,
    /// Where the next record goes; at the end of a segment until the next one is entered.
    head: JournalPos,
    head_segment: u64,
    /// The head's segment has no room for what comes next, and no segment follows it.
    exhausted: bool,
    released: WriteNumber,
    growth_blocked: bool,
}

impl Ring {
    /// A ring whose listed segments are `physical`, from logical number `first_logical` on.
    pub(crate) fn new(
        segment_bytes: u64,
        segments_max: u32,
        physical_count: u32,
        first_logical: u64,
        physical: &[u32],
    ) -> Self {
        let free = (0..physical_count).filter(|index| !physical.contains(index)).collect();
        Self {
            segment_bytes,
            segments_max,
            physical_count,
            free,
            known: physical.iter().map(|index| Segment::empty(*index)).collect(),
            first_logical,
            listed_from: first_logical,
            head: JournalPos(first_logical * segment_bytes),
            head_segment: first_logical,
            exhausted: false,
            released: WriteNumber(0),
            growth_blocked: false,
        }
    }

    pub(crate) fn segment_of(&self, position: JournalPos) -> u64 {
        position.0 / self.segment_bytes
    }

    pub(crate) fn start_of(&self, logical: u64) -> JournalPos {
        JournalPos(logical * self.segment_bytes)
    }

    fn last_logical(&self) -> u64 {
        self.first_logical + to_u64(self.known.len()) - 1
    }

    pub(crate) fn get(&self, logical: u64) -> Option<&Segment> {
        let index = logical.checked_sub(self.first_logical)?;
        self.known.get(usize::try_from(index).ok()?)
    }

    fn get_mut(&mut self, logical: u64) -> Option<&mut Segment> {
        let index = logical.checked_sub(self.first_logical)?;
        self.known.get_mut(usize::try_from(index).ok()?)
    }

    /// Byte of the file at which `position` is, if its segment is still there.
    pub(crate) fn file_offset(&self, position: JournalPos) -> Option<u64> {
        let segment = self.get(self.segment_of(position))?;
        let within = position.0 % self.segment_bytes;
        Some(self.physical_start(segment.physical) + within)
    }

    pub(crate) fn physical_start(&self, physical: u32) -> u64 {
        DATA_START + u64::from(physical) * self.segment_bytes
    }

    pub(crate) fn head(&self) -> JournalPos {
        self.head
    }

    /// Bytes left for records in the head's segment.
    pub(crate) fn room(&self) -> u64 {
        if self.exhausted {
            return 0;
        }
        self.start_of(self.head_segment + 1).0 - self.head.0
    }

    /// Whether a record found no room, and no segment has come since.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Enters the next segment, if one is listed. Otherwise remembers that the head cannot go on.
    pub(crate) fn advance(&mut self) -> bool {
        if self.head_segment < self.last_logical() {
            self.head_segment += 1;
            self.head = self.start_of(self.head_segment);
            self.exhausted = false;
            return true;
        }
        self.exhausted = true;
        false
    }

    /// Takes room for a record at the head; answers its byte in the file.
    pub(crate) fn place(
        &mut self,
        record: RecordSeq,
        first_write: WriteNumber,
        last_write: WriteNumber,
        bytes: u64,
    ) -> u64 {
        assert!(bytes <= self.room(), "R2: a record stays inside the head's segment");
        assert!(bytes.is_multiple_of(BLOCK_BYTES), "records are whole blocks");
        assert!(self.head_segment >= self.listed_from, "R2: the head's segment is listed");
        let position = self.head;
        let offset = self.file_offset(position).expect("R2: the head's segment is known");
        self.note_record(position, record, first_write, last_write);
        self.head = position.plus(bytes);
        offset
    }

    /// Recovery found this record.
    pub(crate) fn note_record(
        &mut self,
        position: JournalPos,
        record: RecordSeq,
        first_write: WriteNumber,
        last_write: WriteNumber,
    ) {
        let logical = self.segment_of(position);
        let segment = self.get_mut(logical).expect("R1: a record lies in a known segment");
        segment.first.get_or_insert((record, first_write));
        segment.last_write = segment.last_write.max(last_write);
    }

    /// Whether there is any record, released or not.
    pub(crate) fn has_records(&self) -> bool {
        self.known.iter().any(|segment| segment.first.is_some())
    }

    /// Recovery says where the records end, and in which segment the last one is.
    pub(crate) fn set_head(&mut self, head: JournalPos, head_segment: u64) {
        let (start, end) = (self.start_of(head_segment), self.start_of(head_segment + 1));
        assert!(self.get(head_segment).is_some(), "R2: the head's segment is known");
        assert!(start <= head && head <= end, "R2: the head lies in its segment");
        self.head_segment = head_segment;
        self.head = head;
    }

    pub(crate) fn release(&mut self, through: WriteNumber) {
        self.released = self.released.max(through);
        self.growth_blocked = false;
    }

    pub(crate) fn pin(&mut self, logical: u64) {
        let segment = self.get_mut(logical).expect("R4: a pinned position is still there");
        assert!(
            !segment.forgotten || mutant("reuse_pinned_segment"),
            "R4: nobody points into a forgotten segment"
        );
        segment.pins += 1;
    }

    pub(crate) fn unpin(&mut self, logical: u64) {
        let Some(segment) = self.get_mut(logical) else {
            assert!(mutant("reuse_pinned_segment"), "R4: a pinned segment stays");
            return;
        };
        segment.pins -= 1;
    }

    /// Whether a segment takes no more records and all its writes were released (R3).
    fn is_done(&self, logical: u64) -> bool {
        let closed =
            logical < self.head_segment || (logical == self.head_segment && self.exhausted);
        closed && self.get(logical).is_some_and(|segment| segment.last_write <= self.released)
    }

    /// First listed segment that must stay on the list.
    fn done_end(&self) -> u64 {
        let mut logical = self.listed_from;
        while logical <= self.last_logical() && self.is_done(logical) {
            logical += 1;
        }
        logical
    }

    /// The first write in the segments that stay listed.
    pub(crate) fn first_write(&self) -> Option<WriteNumber> {
        let mut listed = (self.done_end()..=self.last_logical()).filter_map(|n| self.get(n));
        listed.find_map(|segment| segment.first).map(|(_, write)| write)
    }

    /// First listed segment that is not wholly released.
    pub(crate) fn first_unreleased(&self) -> u64 {
        self.done_end()
    }

    fn needs_segment(&self) -> bool {
        let past_half = self.head.0 - self.start_of(self.head_segment).0 >= self.segment_bytes / 2;
        self.head_segment == self.last_logical() && (self.exhausted || past_half)
    }

    /// What to do next. Changes nothing.
    pub(crate) fn next_step(&self) -> Step {
        let done_end = self.done_end();
        if self.needs_segment() {
            let oldest = self.known.front().expect("a journal has a segment");
            let reusable = self.first_logical < done_end;
            if let Some(physical) = self.free.first() {
                return Step::Publish(Plan { listed_from: done_end, join: Some(*physical) });
            }
            if reusable && !oldest.forgotten {
                return Step::Forget(self.first_logical);
            }
            if reusable && (oldest.pins == 0 || mutant("reuse_pinned_segment")) {
                return Step::Publish(Plan { listed_from: done_end, join: Some(oldest.physical) });
            }
            if self.physical_count < self.segments_max && !self.growth_blocked {
                return Step::Grow(self.physical_count);
            }
        }
        // The list never gets empty.
        let listed_from = done_end.min(self.last_logical());
        if listed_from > self.listed_from {
            return Step::Publish(Plan { listed_from, join: None });
        }
        Step::Idle
    }

    /// Whether [`Ring::next_step`] is worth asking, cheaper.
    pub(crate) fn has_work(&self) -> bool {
        self.needs_segment() || self.is_done(self.listed_from)
    }

    pub(crate) fn forgotten(&mut self, logical: u64) {
        assert!(self.is_done(logical), "R3: only what was released is forgotten");
        self.get_mut(logical).expect("R4: forgotten once").forgotten = true;
    }

    /// A physical segment was added to the file, zeroed and synced.
    pub(crate) fn grown(&mut self, physical: u32) {
        assert!(physical == self.physical_count, "R1: the file grows at its end");
        self.physical_count += 1;
        self.free.insert(physical);
    }

    /// The file cannot grow now; not tried again before something changes.
    pub(crate) fn growth_failed(&mut self) {
        self.growth_blocked = true;
    }

    pub(crate) fn retry_growth(&mut self) {
        self.growth_blocked = false;
    }

    pub(crate) fn growth_blocked(&self) -> bool {
        self.growth_blocked
    }

    /// The list that a superblock for `plan` names: first logical number, physical segments.
    pub(crate) fn list_of(&self, plan: &Plan) -> (u64, Vec<u32>) {
        let skip = to_usize(plan.listed_from - self.first_logical);
        let listed = self.known.iter().skip(skip).map(|segment| segment.physical);
        (plan.listed_from, listed.chain(plan.join).collect())
    }

    /// The superblock for `plan` is durable. Answers the logical segment whose place was taken.
    pub(crate) fn published(&mut self, plan: &Plan) -> Option<u64> {
        for logical in self.listed_from..plan.listed_from {
            assert!(self.is_done(logical), "R3: only a released segment leaves the list");
        }
        self.listed_from = plan.listed_from;
        let physical = plan.join?;
        let mut reused = None;
        if !self.free.remove(&physical) {
            let oldest = self.known.pop_front().expect("R1: what is not free is known");
            assert!(oldest.physical == physical, "R1: the oldest segment is reused first");
            assert!(self.first_logical < self.listed_from, "R4: off the list before reuse");
            if !mutant("reuse_pinned_segment") {
                assert!(oldest.forgotten, "R4: forgotten before reuse");
                assert!(oldest.pins == 0, "R4: unpinned before reuse");
            }
            reused = Some(self.first_logical);
            self.first_logical += 1;
        }
        self.known.push_back(Segment::empty(physical));
        if self.exhausted {
            self.advance();
        }
        reused
    }

    /// The plan of a superblock that changes nothing but drops what is done.
    pub(crate) fn closing_plan(&self) -> Plan {
        Plan { listed_from: self.done_end().min(self.last_logical()), join: None }
    }

    pub(crate) fn physical_count(&self) -> u32 {
        self.physical_count
    }

    pub(crate) fn listed_count(&self) -> u64 {
        self.last_logical() + 1 - self.listed_from
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        u64::from(self.segments_max.max(self.physical_count)) * self.segment_bytes
    }

    pub(crate) fn physical_bytes(&self) -> u64 {
        u64::from(self.physical_count) * self.segment_bytes
    }

    /// Bytes that cannot be written over yet: from the first segment that is not wholly released to the head.
    pub(crate) fn used_bytes(&self) -> u64 {
        let mut logical = self.listed_from;
        while logical < self.head_segment && self.is_done(logical) {
            logical += 1;
        }
        let all_released = logical == self.head_segment
            && self.get(logical).is_some_and(|segment| segment.last_write <= self.released);
        if all_released { 0 } else { self.head.0 - self.start_of(logical).0 }
    }

    /// O(n) check of R1, R2 and R5, for tests and the simulation.
    pub(crate) fn check_invariants(&self) {
        let mut seen = self.free.clone();
        for segment in &self.known {
            assert!(seen.insert(segment.physical), "R1: one place, one logical number");
        }
        let all: BTreeSet<u32> = (0..self.physical_count).collect();
        assert!(seen == all, "R1: every place is free or known");
        assert!(self.first_logical <= self.listed_from, "R5: retired before listed");
        assert!(self.listed_from <= self.head_segment, "R2: the head is listed");
        assert!(self.head_segment <= self.last_logical(), "R2: the head is known");
    }
}
