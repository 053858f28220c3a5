//! What an open journal knows, and every change of it that needs no waiting.
//!
//! Invariants
//!  J1. A record is acknowledged only when it and every earlier record are on disk.
//!  J2. The sink learns of a record before its writers do.
//!  J3. `flushed_through <= acked_through`: a sync covers only what was complete when it started.
//!  J4. After a failed write or sync nothing is acknowledged any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use weir_device::{BufferPool, mutant};
use weir_disk::{DiskError, FileIdentity};

use crate::config::JournalConfig;
use crate::error::JournalError;
use crate::format::record::{PieceChecksum, Salt};
use crate::format::superblock::Superblock;
use crate::format::to_u64;
use crate::group_commit::{Builder, Built, Place, PlacedPiece, Queue, Shape, Spare, build};
use crate::ids::{
    Announced, Epoch, Identity, JournalPos, ManifestSeen, OpeningId, RecordSeq, WriteNumber,
};
use crate::limits::{ANNOUNCED_MAX, RECORDS_IN_FLIGHT_MAX, SECOND_RECORD_BYTES_MIN};
use crate::pieces::{PieceEntry, PieceTable, Resident};
use crate::ring::{Plan, Ring, Step};
use crate::seal::{PieceSeal, Sealer, Seals};

/// Number of an append, in the order of calls; the first is 0.
pub(crate) type Ticket = u64;

/// What the journal is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Recovered; takes no appends yet.
    Recovered,
    /// Takes appends.
    Open,
    /// Takes no new appends, finishes the old ones.
    Draining,
    /// Tasks end when they can.
    Stopping,
}

/// A record that was handed to the disk.
#[derive(Debug)]
struct InFlight {
    record: RecordSeq,
    segment: u64,
    written: bool,
    placed: Vec<PlacedPiece>,
    payloads: Vec<(PieceEntry, Option<PieceSeal>, Resident)>,
    tickets_end: Ticket,
}

/// A record that a lane must write now.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) record: RecordSeq,
    pub(crate) buffers: Vec<weir_device::SharedBuf>,
    pub(crate) file_offset: u64,
}

/// Counters for the status.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) fsyncs: u64,
    pub(crate) records: u64,
    pub(crate) bytes_written: u64,
}

#[derive(Debug)]
pub(crate) struct JournalState {
    pub(crate) file_name: Arc<str>,
    pub(crate) identity: Identity,
    pub(crate) phase: Phase,
    pub(crate) ring: Ring,
    pub(crate) pieces: PieceTable,
    pub(crate) queue: Queue,
    pub(crate) shape: Shape,
    pub(crate) queue_bytes_max: u64,
    pub(crate) counters: Counters,
    pub(crate) poisoned: Option<DiskError>,
    /// The file could not grow the last time.
    pub(crate) no_space: bool,
    /// The last growth was refused, whether or not what it has is enough by now.
    pub(crate) cannot_grow: bool,
    pub(crate) flushed_through: RecordSeq,
    /// Last write that a good sync of this opening covers.
    pub(crate) flushed_write: WriteNumber,
    pub(crate) flush_wanted: RecordSeq,
    /// A client is among those who want the next sync.
    pub(crate) client_flushes: bool,
    pub(crate) acked_through: RecordSeq,
    pub(crate) acked_write: WriteNumber,
    pub(crate) next_record: RecordSeq,
    pub(crate) next_write: WriteNumber,
    pub(crate) tasks: usize,
    /// Opens what is sealed; none where the volume is not encrypted.
    pub(crate) seals: Option<Seals>,
    /// Seals what is written, from the begin of the epoch on.
    sealer: Option<Sealer>,
    superblock: Superblock,
    /// Which copy of the superblock recovery went by, until both are the same and durable.
    pub(crate) recovered_from: Option<usize>,
    /// The file itself, which the next superblock of an epoch names.
    file: Option<FileIdentity>,
    loss_accepted_through: RecordSeq,
    checksum: PieceChecksum,
    /// For heads of records and for reads.
    pub(crate) pool: BufferPool,
    spare: Spare,
    in_flight: VecDeque<InFlight>,
    unwritten: usize,
    tickets_given: Ticket,
    tickets_done: Ticket,
    /// Appends from here on were refused when the journal was closed.
    refused_from: Option<Ticket>,
    wakers: VecDeque<Option<Waker>>,
}

/// Where recovery ended, or a fresh journal begins.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) superblock: Superblock,
    /// Which copy of it recovery went by.
    pub(crate) recovered_from: Option<usize>,
    pub(crate) file: Option<FileIdentity>,
    pub(crate) ring: Ring,
    pub(crate) pieces: PieceTable,
    pub(crate) last_record: RecordSeq,
    pub(crate) last_write: WriteNumber,
    pub(crate) loss_accepted_through: RecordSeq,
    pub(crate) seals: Option<Seals>,
}

impl JournalState {
    pub(crate) fn new(
        file_name: Arc<str>,
        alignment: usize,
        config: &JournalConfig,
        pool: BufferPool,
        start: Start,
    ) -> Self {
        let superblock = start.superblock;
        let segment_bytes = superblock.segment_bytes;
        Self {
            file_name,
            identity: superblock.identity,
            phase: Phase::Recovered,
            ring: start.ring,
            pieces: start.pieces,
            queue: Queue::default(),
            shape: config.shape(alignment, segment_bytes, start.seals.is_some()),
            queue_bytes_max: config.queue_bytes_max,
            counters: Counters::default(),
            poisoned: None,
            no_space: false,
            cannot_grow: false,
            // What recovery has read survived so far, but only begin_epoch makes it durable.
            flushed_through: superblock.flushed_through.min(start.last_record),
            flushed_write: WriteNumber(0),
            flush_wanted: RecordSeq(0),
            client_flushes: false,
            acked_through: start.last_record,
            acked_write: start.last_write,
            next_record: start.last_record.next(),
            next_write: start.last_write.next(),
            tasks: 0,
            checksum: PieceChecksum::new(&superblock.identity),
            seals: start.seals,
            sealer: None,
            loss_accepted_through: superblock
                .loss_accepted_through
                .max(start.loss_accepted_through),
            file: start.file,
            recovered_from: start.recovered_from,
            superblock,
            pool,
            spare: Spare::default(),
            in_flight: VecDeque::new(),
            unwritten: 0,
            tickets_given: 0,
            tickets_done: 0,
            refused_from: None,
            wakers: VecDeque::new(),
        }
    }

    /// See [`crate::Journal::used_and_capacity`].
    pub(crate) fn used_and_capacity(&self) -> (u64, u64) {
        let ring = &self.ring;
        let cannot_grow = self.cannot_grow && !mutant("no_space_is_room");
        match (cannot_grow, ring.is_exhausted()) {
            (false, _) => (ring.used_bytes(), ring.capacity_bytes()),
            (true, false) => (ring.used_bytes(), ring.physical_bytes()),
            (true, true) => (ring.physical_bytes(), ring.physical_bytes()),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.superblock.epoch
    }

    pub(crate) fn checksum(&self) -> &PieceChecksum {
        &self.checksum
    }

    /// Why no write can be taken, if so.
    pub(crate) fn refusal(&self) -> Option<JournalError> {
        let file = Arc::clone(&self.file_name);
        if let Some(cause) = &self.poisoned {
            return Some(JournalError::Poisoned { file, cause: cause.clone() });
        }
        match self.phase {
            Phase::Recovered => Some(JournalError::NotBegun { file }),
            Phase::Open => None,
            Phase::Draining | Phase::Stopping => Some(JournalError::Closed { file }),
        }
    }

    // --- superblocks ---------------------------------------------------------------------------------------------

    pub(crate) fn announced(&self) -> &[Announced] {
        &self.superblock.announced
    }

    /// Announces an opening; answers the superblock that must be durable before it is published, or nothing if there is
    /// no room. All else in the superblock stays what recovery found: the opening before is still the one in force.
    pub(crate) fn announce(&mut self, opening: OpeningId, epoch: Epoch) -> Option<Superblock> {
        let announced = &mut self.superblock.announced;
        let known = announced.iter().position(|known| known.opening == opening);
        match known {
            Some(known) => announced[known].epoch = announced[known].epoch.max(epoch),
            None if announced.len() == ANNOUNCED_MAX => return None,
            None => announced.push(Announced { opening, epoch }),
        }
        self.superblock.generation += 1;
        Some(self.superblock.clone())
    }

    /// The next superblock says that the store has this version of the manifest.
    pub(crate) fn set_manifest(&mut self, seen: ManifestSeen) {
        self.superblock.manifest = Some(seen);
    }

    /// The superblock that is in force, with a newer version of the manifest. Its segments are those of the last one:
    /// call it while no other is being written. It is written in any case: that a version is known here does not say
    /// that it is durable.
    pub(crate) fn note_manifest(&mut self, seen: ManifestSeen) -> Superblock {
        if self.superblock.manifest.is_none_or(|known| known.number < seen.number) {
            self.superblock.manifest = Some(seen);
        }
        self.superblock.generation += 1;
        self.superblock.clone()
    }

    /// See [`crate::Journal::continue_after`].
    pub(crate) fn continue_after(&mut self, last: WriteNumber) {
        if self.ring.has_records() || mutant("empty_journal_keeps_its_numbers") {
            self.next_write = self.next_write.max(last.next());
            return;
        }
        self.acked_write = last;
        // An announcement may have synced what the journal knew as its last write.
        self.flushed_write = self.flushed_write.min(last);
        self.next_write = last.next();
    }

    /// Makes `epoch` the current one; answers the superblock that must be durable before the first append.
    pub(crate) fn begin_epoch(
        &mut self,
        (epoch, opening): (Epoch, OpeningId),
        boot_id: [u8; 16],
        salt: Salt,
        plan: &Plan,
    ) -> Superblock {
        assert!(epoch > self.superblock.epoch, "every opening has a higher epoch");
        self.superblock.epoch = epoch;
        self.superblock.opening = Some(opening);
        self.superblock.announced.clear();
        self.superblock.file = self.file;
        self.superblock.loss_accepted_through = self.loss_accepted_through;
        self.superblock.boot_id = boot_id;
        self.superblock.first_record = self.next_record;
        self.superblock.first_position = self.ring.head();
        self.superblock.first_write = self.next_write;
        self.sealer = self.seals.as_mut().map(|seals| seals.begin(epoch, salt));
        self.superblock_for(plan)
    }

    /// The next superblock, with the segment list of `plan`.
    pub(crate) fn superblock_for(&mut self, plan: &Plan) -> Superblock {
        let (first_logical, segments) = self.ring.list_of(plan);
        let tail = self.ring.get(first_logical).and_then(|segment| segment.first);
        let (tail_record, tail_write) = tail.unwrap_or((self.next_record, self.next_write));
        self.superblock.generation += 1;
        self.superblock.tail_position = self.ring.start_of(first_logical);
        self.superblock.tail_record = tail_record;
        self.superblock.tail_write = tail_write;
        self.superblock.flushed_through = self.flushed_through;
        self.superblock.segments_physical = self.ring.physical_count();
        self.superblock.segments = segments;
        self.superblock.clean_end = None;
        self.superblock.clone()
    }

    /// The superblock of a journal that was drained and flushed.
    pub(crate) fn clean_superblock(&mut self) -> Superblock {
        assert!(self.in_flight.is_empty(), "a clean end has nothing in flight");
        assert!(self.flushed_through == self.acked_through, "a clean end is durable");
        let plan = self.ring.closing_plan();
        let mut superblock = self.superblock_for(&plan);
        superblock.clean_end = Some(self.ring.head());
        superblock
    }

    // --- writing -------------------------------------------------------------------------------------------------

    pub(crate) fn enqueue(
        &mut self,
        offset: u64,
        payload: crate::group_commit::Payload,
        len: u64,
    ) -> Ticket {
        let ticket = self.tickets_given;
        self.tickets_given += 1;
        self.queue.push(offset, payload, len);
        ticket
    }

    /// Whether a lane that looks now would find a record to write.
    pub(crate) fn may_start(&self) -> bool {
        let limit =
            if self.queue.bytes() >= SECOND_RECORD_BYTES_MIN { RECORDS_IN_FLIGHT_MAX } else { 1 };
        !self.queue.is_empty() && self.unwritten < limit && self.poisoned.is_none()
    }

    /// Builds the next record, if there is something to write and room for it.
    pub(crate) fn start_record(&mut self) -> Option<Outgoing> {
        if !self.may_start() {
            return None;
        }
        let gathered = loop {
            let room = self.ring.room();
            if let Some(gathered) = self.queue.gather(&self.shape, room, &mut self.spare) {
                break gathered;
            }
            if !self.ring.advance() {
                return None;
            }
        };
        let (record, first_write) = (self.next_record, self.next_write);
        let pieces = to_u64(gathered.pieces());
        let bytes = gathered.record_bytes();
        let position = self.ring.head();
        let segment = self.ring.segment_of(position);
        let last_write = first_write.plus(pieces - 1);
        let file_offset = self.ring.place(record, first_write, last_write, bytes);
        let tickets_end = self.tickets_in_records() + gathered.appends_ended;
        let place = Place {
            epoch: self.superblock.epoch,
            record,
            position,
            segment_start: self.ring.start_of(segment),
            first_write,
            acked_through: self.acked_through,
            flushed_through: self.flushed_through,
        };
        let (checksum, sealer) = (&self.checksum, self.sealer.as_ref());
        let builder = Builder { identity: &self.identity, checksum, sealer };
        let Built { buffers, placed, payloads } =
            build(gathered, &builder, &place, &self.pool, &mut self.spare);
        self.next_record = record.next();
        self.next_write = last_write.next();
        self.counters.records += 1;
        self.counters.bytes_written += bytes;
        self.unwritten += 1;
        self.in_flight.push_back(InFlight {
            record,
            segment,
            written: false,
            placed,
            payloads,
            tickets_end,
        });
        Some(Outgoing { record, buffers, file_offset })
    }

    fn tickets_in_records(&self) -> Ticket {
        self.in_flight.back().map_or(self.tickets_done, |record| record.tickets_end)
    }

    /// The disk has written `record` from `buffers`. Adds whom to wake, which only a mutant does this early.
    pub(crate) fn record_written(
        &mut self,
        record: RecordSeq,
        buffers: Vec<weir_device::SharedBuf>,
        woken: &mut Vec<Waker>,
    ) {
        self.spare.keep_buffers(buffers);
        let mut found = self.in_flight.iter_mut().filter(|in_flight| in_flight.record == record);
        let in_flight = found.next().expect("J1: a record is written once");
        assert!(!in_flight.written, "J1: a record is written once");
        in_flight.written = true;
        self.unwritten -= 1;
        if mutant("ack_before_earlier") {
            self.complete_record(record, woken);
        }
    }

    /// The mutants' acknowledgement of one record (and with it of everything before it).
    pub(crate) fn complete_record(&mut self, record: RecordSeq, woken: &mut Vec<Waker>) {
        let found = self.in_flight.iter().find(|in_flight| in_flight.record == record);
        let end = found.map_or(self.tickets_done, |in_flight| in_flight.tickets_end);
        self.complete_tickets(end, woken);
    }

    /// Moves the next record that may be acknowledged into the piece table; its pieces go to the sink before
    /// [`JournalState::acknowledge`].
    pub(crate) fn next_durable(&mut self) -> Option<(RecordSeq, Vec<PlacedPiece>)> {
        if self.poisoned.is_some() {
            return None;
        }
        let record = self.in_flight.front_mut()?;
        if !record.written {
            return None;
        }
        for (entry, seal, resident) in record.payloads.drain(..) {
            self.pieces.push(record.segment, entry, seal, Some(resident));
        }
        Some((record.record, std::mem::take(&mut record.placed)))
    }

    /// The sink knows of the `pieces` of `record` (J2): its writers may be answered. Adds whom to wake.
    pub(crate) fn acknowledge(
        &mut self,
        record: RecordSeq,
        pieces: Vec<PlacedPiece>,
        woken: &mut Vec<Waker>,
    ) {
        let front = self.in_flight.pop_front().expect("J1: acknowledged in order");
        assert!(front.record == record && front.written, "J1: acknowledged in order, when written");
        assert!(record == self.acked_through.next(), "J1: acknowledged in order");
        self.acked_through = record;
        self.acked_write = pieces.last().expect("a record has a piece").write;
        self.complete_tickets(front.tickets_end, woken);
        self.spare.keep_lists(pieces, front.payloads);
    }

    fn complete_tickets(&mut self, end: Ticket, woken: &mut Vec<Waker>) {
        while self.tickets_done < end {
            self.tickets_done += 1;
            woken.extend(self.wakers.pop_front().flatten());
        }
    }

    pub(crate) fn is_acknowledged(&self, ticket: Ticket) -> bool {
        ticket < self.tickets_done
    }

    /// Remembers whom to wake when the append with this ticket is acknowledged.
    pub(crate) fn wait_for(&mut self, ticket: Ticket, waker: &Waker) {
        let index = usize::try_from(ticket - self.tickets_done).expect("appends fit memory");
        if self.wakers.len() <= index {
            self.wakers.resize(index + 1, None);
        }
        let slot = &mut self.wakers[index];
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    /// Whether more may be queued, or waiting for that is in vain.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.bytes() <= self.queue_bytes_max || self.refusal().is_some()
    }

    /// Whether nothing waits and nothing is in flight.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// Whether what waits cannot get into a record: nothing is in flight that could make room, and the ring has
    /// nothing to do. Only the release of writes could help.
    pub(crate) fn is_stuck(&self) -> bool {
        let waiting = !self.queue.is_empty() && self.in_flight.is_empty();
        waiting && self.ring.is_exhausted() && self.ring.next_step() == Step::Idle
    }

    /// Refuses the appends that are not wholly in records, which are never answered otherwise; answers whom to wake.
    pub(crate) fn refuse_waiting(&mut self) -> Vec<Waker> {
        self.queue.clear();
        self.refused_from = Some(self.tickets_in_records());
        std::mem::take(&mut self.wakers).into_iter().flatten().collect()
    }

    pub(crate) fn is_refused(&self, ticket: Ticket) -> bool {
        self.refused_from.is_some_and(|first| ticket >= first)
    }

    /// Refuses everything from here on (J4); returns the wakers of those who wait.
    pub(crate) fn poison(&mut self, cause: DiskError) -> Vec<Waker> {
        if self.poisoned.is_some() {
            return Vec::new();
        }
        self.poisoned = Some(cause);
        self.queue.clear();
        std::mem::take(&mut self.wakers).into_iter().flatten().collect()
    }

    // --- syncs and releases --------------------------------------------------------------------------------------

    /// What a sync that starts now covers.
    pub(crate) fn acked(&self) -> (RecordSeq, WriteNumber) {
        (self.acked_through, self.acked_write)
    }

    /// A sync that started when `acked_at_start` was acknowledged has succeeded.
    pub(crate) fn synced(&mut self, acked_at_start: (RecordSeq, WriteNumber)) {
        let (through, write) =
            if mutant("flush_joins_running") { self.acked() } else { acked_at_start };
        assert!(through <= self.acked_through, "J3: nothing is flushed before it is complete");
        self.flushed_through = self.flushed_through.max(through);
        self.flushed_write = self.flushed_write.max(write);
    }

    /// The first write of the segments that stay listed; the next write where they have none.
    pub(crate) fn holds_from(&self) -> WriteNumber {
        self.ring.first_write().unwrap_or(self.next_write)
    }

    pub(crate) fn release(&mut self, through: WriteNumber) {
        assert!(through < self.next_write, "nothing is released that was never written");
        let from = self.ring.first_unreleased();
        self.ring.release(through);
        for logical in from..self.ring.first_unreleased() {
            self.pieces.drop_resident(logical);
        }
    }

    /// The superblock for `plan` is durable.
    pub(crate) fn published(&mut self, plan: &Plan) {
        if let Some(reused) = self.ring.published(plan) {
            self.pieces.remove(reused);
        }
    }

    /// First position of a segment, and one past its last.
    pub(crate) fn bounds_of(&self, logical: u64) -> (JournalPos, JournalPos) {
        (self.ring.start_of(logical), self.ring.start_of(logical + 1))
    }
}
