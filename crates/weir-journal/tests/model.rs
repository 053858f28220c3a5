//! Random appends, flushes, releases, reads, crashes and reopenings against an obvious model: the list of everything
//! that was appended, in order.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use common::*;
use weir_device::{Env, LocalBoxFuture};
use weir_disk::sim::{SimCounters, SimDisk, SimDiskOptions};
use weir_journal::{
    AcceptLoss, Epoch, Journal, JournalConfig, JournalPos, Payload, PieceKind, PlacedPiece,
    RecordSeq, RecordSink, RecoveredPiece, WriteNumber,
};

const SEEDS: u64 = 300;
const EPOCHS: u64 = 5;
const STEPS: u64 = 60;

/// One append. `len` shrinks when a crash kept only its begin.
#[derive(Clone, Debug)]
struct Op {
    id: u64,
    offset: u64,
    len: u64,
    kind: PieceKind,
    acked: bool,
    /// Nobody waits for the answer.
    dropped: bool,
    flushed: bool,
}

/// A place in the list of appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    op: usize,
    done: u64,
}

#[derive(Default)]
struct Model {
    ops: Vec<Op>,
    /// Where every known write begins.
    writes: BTreeMap<WriteNumber, Cursor>,
    placed: BTreeMap<WriteNumber, PlacedPiece>,
    /// Where the next write to become known begins.
    next: Cursor,
    last_write: WriteNumber,
    released: WriteNumber,
    forgotten_end: JournalPos,
    last_record: RecordSeq,
}

impl Model {
    /// The journal says that `piece` is the next one.
    fn advance(&mut self, piece: &PlacedPiece) {
        let op = &self.ops[self.next.op];
        assert_eq!(piece.kind, op.kind, "pieces come in the order of appends");
        assert_eq!(piece.offset, op.offset + self.next.done, "{piece:?} against {op:?}");
        assert!(piece.len <= op.len - self.next.done);
        assert!(piece.write > self.last_write, "write numbers rise");
        self.writes.insert(piece.write, self.next);
        self.placed.insert(piece.write, *piece);
        self.last_write = piece.write;
        self.next.done += piece.len;
        if self.next.done == op.len {
            self.next = Cursor { op: self.next.op + 1, done: 0 };
        }
    }

    fn bytes_of(&self, write: WriteNumber) -> Vec<u8> {
        let cursor = self.writes[&write];
        let op = &self.ops[cursor.op];
        let len = usize::try_from(self.placed[&write].len).expect("small");
        let done = usize::try_from(cursor.done).expect("small");
        pattern(op.id, done + len)[done..].to_vec()
    }
}

#[derive(Clone)]
struct Volume(Rc<RefCell<Model>>);

impl RecordSink for Volume {
    fn on_durable(&self, record: RecordSeq, pieces: &[PlacedPiece]) {
        let mut model = self.0.borrow_mut();
        assert_eq!(record, model.last_record.next(), "records come in order");
        model.last_record = record;
        for piece in pieces {
            model.advance(piece);
        }
    }

    fn forget(&self, start: JournalPos, end: JournalPos) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            milliseconds(2).await;
            let mut model = self.0.borrow_mut();
            let in_range =
                model.placed.values().filter(|p| p.position >= start && p.position < end);
            for piece in in_range {
                assert!(piece.write <= model.released, "only what was released is forgotten");
            }
            model.forgotten_end = end;
        })
    }
}

struct Run {
    seed: u64,
    random: TestRandom,
    disk: SimDisk,
    config: JournalConfig,
    env: Env,
    model: Rc<RefCell<Model>>,
    epoch: Epoch,
    next_id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Process,
    Power,
    Clean,
}

impl Run {
    fn new(seed: u64) -> Self {
        let random = TestRandom::new(seed);
        let options = SimDiskOptions {
            alignment: [1, 512, 4096][usize::try_from(random.below(3)).expect("small")],
            late_write_one_in: seed % 3,
            late_write_max: Duration::from_millis(200),
            ..SimDiskOptions::default()
        };
        let disk = SimDisk::new(seed, options);
        let config = JournalConfig {
            segment_bytes: SEGMENT * (1 + random.below(8)),
            segments_max: 1 + u32::try_from(random.below(5)).expect("small"),
            record_bytes_max: 32 << (10 + random.below(4)),
            resident_bytes_max: usize::try_from(random.below(200 << 10)).expect("small"),
            queue_bytes_max: 1 << 20,
        };
        let env = env_of(&disk);
        let model = Rc::new(RefCell::new(Model::default()));
        Self { seed, random, disk, config, env, model, epoch: Epoch(0), next_id: 1 }
    }

    fn append(&mut self, journal: &Journal) {
        let random = &self.random;
        let kind = match random.below(10) {
            0 => PieceKind::Zero,
            1 => PieceKind::Discard,
            2 => PieceKind::Poison,
            _ => PieceKind::Data,
        };
        let len = match random.below(4) {
            0 => 1 + random.below(700),
            1 => 4096 * (1 + random.below(4)),
            2 => 512 * (1 + random.below(40)),
            _ => 1 + random.below(100 << 10),
        };
        let op = Op {
            id: self.next_id,
            offset: random.below(1 << 30),
            len,
            kind,
            acked: false,
            dropped: false,
            flushed: false,
        };
        self.next_id += 1;
        let payload = match kind {
            PieceKind::Data => {
                let bytes = pattern(op.id, usize::try_from(len).expect("small"));
                Payload::Data(if random.one_in(2) {
                    shared(&bytes)
                } else {
                    shared_unaligned(&bytes)
                })
            }
            PieceKind::Zero => Payload::Zero,
            PieceKind::Discard => Payload::Discard,
            PieceKind::Poison => Payload::Poison,
        };
        let index = self.model.borrow().ops.len();
        let append = journal.append(op.offset, payload, len);
        self.model.borrow_mut().ops.push(op);
        let (model, id) = (self.model.clone(), self.next_id - 1);
        let fate = async move {
            append.await.expect("nothing fails here");
            let mut model = model.borrow_mut();
            assert_eq!(model.ops[index].id, id);
            model.ops[index].acked = true;
            // Acknowledgement is in order, and after the sink.
            let before = &model.ops[..index];
            assert!(before.iter().all(|op| op.acked || op.dropped), "an earlier append waits");
            assert!(model.next.op > index, "the sink hears first");
        };
        if random.one_in(10) {
            // The answer is dropped; the append is carried out all the same, which the order of the others shows.
            self.model.borrow_mut().ops[index].dropped = true;
            drop(fate);
        } else {
            tokio::task::spawn_local(fate);
        }
    }

    fn flush(&self, journal: &Journal) {
        let model = self.model.clone();
        let journal = journal.clone();
        let through = journal.status().last_write;
        tokio::task::spawn_local(async move {
            journal.flush().await.expect("nothing fails here");
            let mut model = model.borrow_mut();
            let Some(cursor) = model.writes.get(&through).copied() else { return };
            // The op of the last acknowledged write may go on in the next record.
            for op in &mut model.ops[..cursor.op] {
                op.flushed = true;
            }
        });
    }

    fn release(&self, journal: &Journal) {
        let mut model = self.model.borrow_mut();
        let known = model.last_write.0 - model.released.0;
        if known > 0 {
            let through = WriteNumber(model.released.0 + 1 + self.random.below(known));
            // Numbers may have been left out between epochs.
            let through = model.writes.range(..=through).next_back().map(|(write, _)| *write);
            let through = through.unwrap_or(model.released).max(model.released);
            model.released = through;
            drop(model);
            journal.release(through);
        }
    }

    async fn read_something(&self, journal: &Journal) {
        let some = {
            let model = self.model.borrow();
            let start = model.forgotten_end;
            let mut readable: Vec<_> = model
                .placed
                .values()
                .filter(|piece| piece.kind == PieceKind::Data && piece.position >= start)
                .filter(|piece| piece.epoch == self.epoch || piece.write > model.released)
                .collect();
            if readable.is_empty() {
                return;
            }
            readable.sort_unstable_by_key(|piece| piece.position);
            let index = usize::try_from(self.random.below(readable.len() as u64)).expect("small");
            let step = if self.random.one_in(2) { 1 } else { 3 };
            let some = readable[index..].iter().step_by(step).take(10);
            some.map(|piece| (**piece, model.bytes_of(piece.write))).collect::<Vec<_>>()
        };
        let pins: Vec<_> = some.iter().map(|(piece, _)| journal.pin(piece.position)).collect();
        let (piece, expected) = &some[0];
        if self.random.one_in(3) {
            // A reader that takes its time.
            milliseconds(self.random.below(100)).await;
        }
        let from = usize::try_from(self.random.below(piece.len)).expect("small");
        let mut bytes = vec![0; expected.len() - from];
        let position = piece.position.plus(from as u64);
        journal.read(position, &mut bytes).await.expect("verified");
        assert_eq!(bytes, expected[from..]);
        let parts = journal.read_parts(piece.position, expected.len()).await.expect("verified");
        assert!(parts.iter().flat_map(|part| &part[..]).eq(expected));
        let ranges: Vec<_> = some.iter().map(|(piece, _)| (piece.position, piece.len)).collect();
        let found = journal.read_ranges(&ranges).await;
        assert_eq!(found.len(), some.len());
        for (parts, (_, expected)) in found.into_iter().zip(&some) {
            let parts = parts.expect("verified");
            assert!(parts.iter().flat_map(|part| &part[..]).eq(expected));
        }
        drop(pins);
    }

    async fn work(&mut self, journal: &Journal) -> End {
        for _ in 0..STEPS {
            match self.random.below(12) {
                0..5 => self.append(journal),
                5 => self.flush(journal),
                6 | 7 => self.release(journal),
                8 | 9 => self.read_something(journal).await,
                _ => milliseconds(self.random.below(8)).await,
            }
            journal.check_invariants();
        }
        match self.random.below(5) {
            0 | 1 => End::Process,
            2 | 3 => End::Power,
            _ => {
                // A full ring drains only when something is released; what waits for that is refused by a close.
                let mut rounds = 0;
                while journal.status().queued_bytes > 0 {
                    rounds += 1;
                    assert!(rounds < 10_000, "seed {}: {journal:?} does not drain", self.seed);
                    milliseconds(5).await;
                    self.release(journal);
                }
                journal.close().await.expect("closed");
                tokio::task::yield_now().await;
                let mut model = self.model.borrow_mut();
                assert!(model.ops.iter().all(|op| op.acked || op.dropped), "a close drains");
                model.ops.iter_mut().for_each(|op| (op.acked, op.flushed) = (true, true));
                End::Clean
            }
        }
    }

    /// Compares what recovery found with the model, and makes it the model.
    fn check(&self, pieces: &[RecoveredPiece], end: End) {
        let mut model = self.model.borrow_mut();
        let mut fresh = Model { released: model.released, ..Model::default() };
        let seed = self.seed;
        let first = pieces.first().map(|found| found.piece.write);
        let start = match first {
            None => model.next,
            Some(first) => match model.writes.get(&first) {
                Some(cursor) => *cursor,
                None => model.next,
            },
        };
        let needed = model.writes.range(model.released.next()..).next().map(|(write, _)| *write);
        if let (Some(needed), Some(first)) = (needed, first) {
            assert!(first <= needed, "seed {seed}: the tail passed an unreleased write");
        }
        fresh.next = start;
        // A superblock that was never made durable can be lost again, and bring a released part back.
        fresh.writes = model
            .writes
            .range(..first.unwrap_or(WriteNumber(u64::MAX)))
            .map(|(write, cursor)| (*write, *cursor))
            .collect();
        fresh.ops.clone_from(&model.ops);
        fresh.last_write = WriteNumber(0);
        for found in pieces {
            assert!(!found.poisoned, "seed {seed}: no disk rotted");
            fresh.advance(&found.piece);
        }
        for (index, op) in model.ops.iter().enumerate() {
            let there = fresh.next.op > index;
            let must = match end {
                End::Process | End::Clean => op.acked,
                End::Power => op.flushed,
            };
            let released = model.released >= model.last_write && first.is_none();
            assert!(there || !must || released, "seed {seed}, {end:?}: op {index} {op:?} is gone");
        }
        // What did not survive never happened.
        let kept = fresh.next;
        fresh.ops.truncate(kept.op + usize::from(kept.done > 0));
        if kept.done > 0 {
            fresh.ops[kept.op].len = kept.done;
            fresh.next = Cursor { op: kept.op + 1, done: 0 };
        }
        fresh.last_write = fresh.last_write.max(model.released);
        fresh.forgotten_end = JournalPos(0);
        *model = fresh;
    }

    /// Every byte that was found is the byte that was written.
    async fn check_bytes(&self, journal: &Journal, pieces: &[RecoveredPiece]) {
        for found in pieces.iter().filter(|found| found.piece.kind == PieceKind::Data) {
            let expected = self.model.borrow().bytes_of(found.piece.write);
            assert_eq!(read(journal, &found.piece).await.expect("verified"), expected);
        }
    }

    fn crash(&self, end: End) {
        match end {
            End::Process => self.disk.crash_process(),
            End::Power => self.disk.crash_power(),
            End::Clean => {}
        }
    }

    /// Recovers after `end` and checks; now and then crashes once more before or while the next epoch begins.
    async fn reopen(&mut self, end: End) -> Journal {
        let mut end = end;
        loop {
            // The process is gone: nothing it left behind may touch the model of the next one.
            let old = std::mem::take(&mut *self.model.borrow_mut());
            self.model = Rc::new(RefCell::new(old));
            let recovered = try_recover(&self.disk, self.config, AcceptLoss::No).await;
            let recovered = recovered.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
            assert!(recovered.report.damage.is_empty());
            let journal = recovered.journal;
            self.check(&recovered.pieces, end);
            self.check_bytes(&journal, &recovered.pieces).await;
            self.model.borrow_mut().last_record = recovered.report.last_record;
            if self.random.one_in(4) {
                end = if self.random.one_in(2) { End::Process } else { End::Power };
                self.crash(end);
                continue;
            }
            if self.random.one_in(4) {
                self.epoch = self.epoch.next();
                let released = self.model.borrow().released;
                journal.continue_after(released);
                let patience = Duration::from_millis(self.random.below(15));
                let begun =
                    tokio::time::timeout(patience, journal.begin_epoch(self.epoch, OPENING)).await;
                if begun.is_ok() {
                    self.all_is_durable();
                }
                end = if self.random.one_in(2) { End::Process } else { End::Power };
                self.crash(end);
                continue;
            }
            return journal;
        }
    }

    /// An epoch has begun on what was recovered.
    fn all_is_durable(&self) {
        let mut model = self.model.borrow_mut();
        model.ops.iter_mut().for_each(|op| (op.acked, op.flushed) = (true, true));
    }

    async fn go(&mut self) {
        let directory = self.disk.directory();
        let created =
            Journal::create(&directory, NAME, IDENTITY, key().as_ref(), self.config, &self.env)
                .await;
        let mut journal = created.expect("created").journal;
        for _ in 0..EPOCHS {
            self.epoch = self.epoch.next();
            journal.set_sink(Rc::new(Volume(self.model.clone())));
            let released = self.model.borrow().released;
            journal.continue_after(released);
            journal.begin_epoch(self.epoch, OPENING).await.expect("epoch");
            self.all_is_durable();
            // As a volume does once it knows what the object stream holds.
            journal.release(released);
            let end = self.work(&journal).await;
            self.crash(end);
            drop(journal);
            journal = self.reopen(end).await;
        }
    }
}

#[test]
fn random_runs_keep_what_was_promised() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let only = number("WEIR_SEED");
    let seeds = 0..number("WEIR_SEEDS").unwrap_or(SEEDS);
    let mut total = SimCounters::default();
    for seed in only.map_or(seeds, |seed| seed..seed + 1) {
        seal_journals(seed % 3 == 0);
        run(async {
            let mut run = Run::new(seed);
            run.go().await;
            let counters = run.disk.counters();
            total.process_crashes += counters.process_crashes;
            total.power_crashes += counters.power_crashes;
            total.in_flight_torn += counters.in_flight_torn;
            total.sectors_lost += counters.sectors_lost;
            total.late_writes += counters.late_writes;
            total.lock_waits += counters.lock_waits;
        });
    }
    if only.is_none() {
        assert!(total.process_crashes > 100 && total.power_crashes > 100, "{total:?}");
        assert!(total.in_flight_torn > 0 && total.sectors_lost > 0, "{total:?}");
        assert!(total.late_writes > 0 && total.lock_waits > 0, "{total:?}");
    }
}
