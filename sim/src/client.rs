//! Clients: tasks that read and write at random and tell the oracle what they asked and what they were answered.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use weir_device::{
    AlignedBuf, Change, Device, DeviceError, DeviceExt, ErrorKind, FlushScope, IoHeader, Operation,
    Reply, Segment, SourceId, WriteZeroesFlags,
};
use weir_log::{BlockStore, NodeLease, VolumeStatus};
use weir_stack::Stack;

use crate::content::{self, Pattern, WriteId};
use crate::dice::Dice;
use crate::excuses::FailedRead;
use crate::heard::Heard;
use crate::nbd::{Access, Nbd, Way};
use crate::oracle::{Moment, Point};
use crate::world::World;

/// Longest write in bytes: more than a segment of most journals.
const LARGE_BYTES_MAX: u64 = 130 << 10;

/// Numbers of writes from here on are those of owners that were superseded.
const FOREIGN_WRITES: u32 = 1 << 31;

/// Extents that are asked for at once of a whole island.
const EXTENTS_MAX: usize = 1000;

/// Writes of which so many in a hundred are a batch of several.
const BATCH_PERCENT: u64 = 10;

/// Extents that a server tells at most.
const EXTENTS_MAX_NBD: usize = 4096;

/// Further than any volume grows while a request is on its way.
const FAR_BEYOND: u64 = 1 << 45;

/// Changes in a batch, fewer than so many.
const SEGMENTS_MAX: u64 = 9;

/// How often a client that was told to wait looks whether it may go on.
pub(crate) const PAUSE_STEP: Duration = Duration::from_millis(5);

/// Operations that a client tries on a volume that refuses writes or is being closed.
const REFUSALS_MAX: u64 = 12;

/// One life of the node, as its clients see it.
pub(crate) struct Life {
    pub(crate) world: Rc<World>,
    /// The volume, as its node serves it.
    pub(crate) stack: Rc<Stack>,
    /// What its owner heard of it.
    pub(crate) heard: Rc<Heard>,
    /// Where the process runs.
    pub(crate) host: usize,
    /// Of the process; other volumes may share them.
    pub(crate) lease: NodeLease,
    pub(crate) blocks: BlockStore,
    pub(crate) read_deadline: Duration,
    pub(crate) close_deadline: Duration,
    /// Clients begin nothing more.
    pub(crate) stopping: Cell<bool>,
    /// Clients wait before they begin the next operation.
    pub(crate) paused: Cell<bool>,
    /// Operations of clients that are under way.
    pub(crate) operating: Cell<u64>,
    /// When it last took writes again.
    pub(crate) thawed: Cell<Option<Instant>>,
    /// The volume is being grown or shrunk.
    pub(crate) resizing: Cell<bool>,
    /// Nothing more is done to store and disk: what hangs now, hangs for ever.
    pub(crate) calm: Cell<bool>,
    /// The volume is being closed: what is begun now may be refused.
    pub(crate) closing: Cell<bool>,
    /// The volume takes no writes while it is set back or shrunk.
    pub(crate) frozen: Cell<u64>,
    /// Longest write that its journal takes as one record.
    pub(crate) whole_bytes_max: u64,
    /// The disk was made to fail writes or syncs in this life.
    pub(crate) disk_failed: Cell<bool>,
    /// Another opening of the volume was completed: nothing that happens here counts any more.
    pub(crate) superseded: Cell<bool>,
    /// Its clock has hidden no time, so that it keeps its deadlines.
    pub(crate) honest: Cell<bool>,
    /// The volume may find itself superseded, or miss its deadline.
    pub(crate) may_be_fenced: Cell<bool>,
    /// It stops at its deadline.
    pub(crate) auto: Cell<bool>,
    /// When the volume first said that it refuses writes.
    pub(crate) refused_since: Cell<Option<Moment>>,
    /// Clients that are still at work.
    pub(crate) at_work: Cell<u64>,
    /// Tasks beside the clients that have not come to their end.
    pub(crate) beside: Cell<u64>,
    /// Operations, of the whole seed, at which this life has done its work.
    pub(crate) target: Cell<u64>,
    /// The target was reached, or a rule was broken.
    pub(crate) reached: Notify,
    /// The life ends before its target.
    pub(crate) cut: Cell<bool>,
    /// When that was.
    pub(crate) superseded_at: Cell<Option<Instant>>,
    /// How its clients reach the volume, if it is over NBD.
    pub(crate) nbd: RefCell<Option<Rc<Nbd>>>,
}

#[derive(Clone, Copy)]
struct Range {
    offset: u64,
    len: u64,
}

/// A client at work until it is told to stop.
pub(crate) async fn run(life: Rc<Life>, access: Access, mut dice: Dice) {
    let profile = &life.world.profile;
    let mut patience = REFUSALS_MAX;
    while !life.stopping.get() && !life.world.is_violated() && patience > 0 {
        if dice.percent(profile.think_percent) {
            tokio::time::sleep(Duration::from_micros(dice.below(profile.think_us))).await;
            if life.stopping.get() {
                break;
            }
        }
        let Some(operating) = life.operate_when_let().await else { break };
        let way = access.way(&life).await;
        if let Some(way) = &way {
            life.operate(way, &mut dice).await;
        }
        drop(operating);
        let operations = life.world.operations.get() + u64::from(way.is_some());
        life.world.operations.set(operations);
        if way.is_none() {
            tokio::time::sleep(Duration::from_millis(dice.within(1..50))).await;
        }
        if operations >= life.target.get() || life.world.is_violated() {
            life.reached.notify_one();
        }
        if life.refused_since.get().is_some() || life.closing.get() {
            // What is refused costs no time; others must get a turn.
            tokio::time::sleep(Duration::from_millis(dice.within(5..50))).await;
            patience -= 1;
        }
    }
    life.at_work.set(life.at_work.get() - 1);
    life.reached.notify_one();
}

/// An operation of a client that is under way, also where its caller goes away.
struct Operating<'a>(&'a Life);

impl Drop for Operating<'_> {
    fn drop(&mut self) {
        self.0.operating.set(self.0.operating.get() - 1);
    }
}

/// Whether a write is one of an owner that was superseded.
pub(crate) fn is_foreign(id: WriteId) -> bool {
    id.0 > FOREIGN_WRITES
}

impl Life {
    /// Whether what left the process at that moment counts, though what leaves now does not.
    pub(crate) fn was_owner_at(&self, left: Option<Instant>) -> bool {
        let since = self.superseded_at.get();
        since.is_some_and(|since| left.is_some_and(|left| left <= since))
    }

    pub(crate) async fn until_target(&self) {
        while self.world.operations.get() < self.target.get()
            && !self.cut.get()
            && self.at_work.get() > 0
            && !self.world.is_violated()
        {
            self.reached.notified().await;
        }
    }

    /// A task that works on the volume beside its clients.
    pub(crate) fn beside_clients(
        self: &Rc<Self>,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let life = Rc::clone(self);
        life.beside.set(life.beside.get() + 1);
        async move {
            task.await;
            life.beside.set(life.beside.get() - 1);
        }
    }

    /// Writes somewhere, as a client does; whether that was answered with success. Nothing is written where clients are
    /// to stop while they may begin nothing.
    pub(crate) async fn write_somewhere(&self, dice: &mut Dice) -> bool {
        let Some(_operating) = self.operate_when_let().await else { return false };
        self.write(&Way::Device, dice).await
    }

    /// Waits while clients may begin nothing, and counts one operation until what it returns is dropped; nothing is
    /// returned where they are to stop meanwhile. A write beside a shrink could be answered just before the shrink,
    /// which would be taken for a promise that the store has it.
    async fn operate_when_let(&self) -> Option<Operating<'_>> {
        while self.paused.get() {
            if self.stopping.get() {
                return None;
            }
            tokio::time::sleep(PAUSE_STEP).await;
        }
        self.operating.set(self.operating.get() + 1);
        Some(Operating(self))
    }

    /// A write to the last bytes.
    pub(crate) async fn write_at_end(&self, dice: &mut Dice) {
        let size = self.bytes();
        let offset = size - dice.within(1..size.min(4096) + 1);
        let len = (size - offset).min(self.world.profile.islands.end(offset) - offset);
        self.write_range(&Way::Device, dice, Range { offset, len }).await;
    }

    /// The volume is to be cut off at `left`: nothing may show beyond once it is.
    pub(crate) fn begin_cut(&self, left: u64) -> WriteId {
        let len = self.world.profile.volume_bytes - left;
        self.begin_write(Range { offset: left, len }, Pattern::Hole)
    }

    /// Where a range of the oracle is on the volume: first byte and length.
    fn place(&self, range: Range) -> (u64, u64) {
        let islands = &self.world.profile.islands;
        (islands.place(range.offset), islands.span(range.offset, range.len))
    }

    /// The volume as NBD serves it, if it does.
    pub(crate) fn nbd(&self) -> Option<Rc<Nbd>> {
        self.nbd.borrow().clone()
    }

    /// The log volume at a glance.
    pub(crate) fn status(&self) -> VolumeStatus {
        self.stack.log_status().expect("a log volume")
    }

    /// Of an operation that a client asks for without a connection.
    fn header(&self) -> IoHeader {
        IoHeader::of_client(SourceId(2), self.world.id.get())
    }

    /// The volume's own answer.
    pub(crate) async fn answer(&self, operation: Operation) -> Result<Reply, DeviceError> {
        self.stack.call(self.header(), operation).await
    }

    /// What reaches a client of an operation: its leases are checked when the answer is handed to the socket. `None`
    /// if its connection was lost.
    async fn ask(&self, way: &Way, operation: Operation) -> Option<Result<Reply, DeviceError>> {
        way.call(self, operation).await.map(replied)
    }

    async fn operate(&self, way: &Way, dice: &mut Dice) {
        match dice.weighted(&self.world.profile.mix) {
            0 if dice.percent(BATCH_PERCENT) && way.is_nbd() => self.burst(way, dice).await,
            0 if dice.percent(BATCH_PERCENT) => self.batch(dice).await,
            0 => {
                self.write(way, dice).await;
            }
            1 => {
                let range = self.range(dice);
                self.read(way, range).await;
            }
            2 => self.write_zeroes(way, dice).await,
            3 => self.discard(way, dice).await,
            4 => self.flush_by(way).await,
            5 => self.extents(way, dice).await,
            6 => self.flush_remote().await,
            _ => self.out_of_bounds(way, dice).await,
        }
    }

    /// Bytes of the oracle that the volume has now, as every client can tell.
    fn bytes(&self) -> u64 {
        self.world.bytes_within(self.stack.size())
    }

    fn range(&self, dice: &mut Dice) -> Range {
        let profile = &self.world.profile;
        let size = self.bytes();
        let (len, align) = match dice.weighted(&profile.sizes) {
            0 => (dice.within(1..600), 1),
            1 => (dice.within(1..9) * 4096, 4096),
            2 => (dice.within(1..20_000), dice.pick(&[1, 512])),
            _ => (dice.within(20_000..LARGE_BYTES_MAX), dice.pick(&[1, 4096])),
        };
        let area = if dice.percent(profile.hot_percent) { profile.hot_bytes } else { size };
        let offset = dice.below(area.min(size)) / align * align;
        Range { offset, len: len.min(size - offset).min(profile.islands.end(offset) - offset) }
    }

    /// A range of zeroes, which may span what lies between islands.
    fn wide_range(&self, dice: &mut Dice) -> Range {
        if !dice.percent(15) {
            return self.range(dice);
        }
        let size = self.bytes();
        let offset = dice.below(size);
        Range { offset, len: dice.within(1..size - offset + 1) }
    }

    async fn write(&self, way: &Way, dice: &mut Dice) -> bool {
        let range = self.range(dice);
        self.write_range(way, dice, range).await
    }

    async fn write_range(&self, way: &Way, dice: &mut Dice, range: Range) -> bool {
        let fua = dice.percent(self.world.profile.fua_percent);
        let pattern = if dice.percent(60) { Pattern::Noise } else { Pattern::Text };
        let id = self.begin_write(range, pattern);
        let mut data = AlignedBuf::zeroed(usize::try_from(range.len).expect("small"));
        content::fill(id, pattern, range.offset, &mut data);
        self.world.note("write", [id.0.into(), range.offset, range.len]);
        let (offset, data) = (self.place(range).0, data.freeze());
        let write = way.call(self, Operation::Write { offset, data, fua });
        let result = if dice.percent(2) {
            let patience = Duration::from_micros(dice.below(8_000));
            match tokio::time::timeout(patience, write).await {
                Ok(result) => result,
                Err(_) => {
                    self.world.note("reply dropped", [id.0.into(), 0, 0]);
                    return false;
                }
            }
        } else {
            write.await
        };
        let Some(result) = result else {
            way.lost_write(id);
            return false;
        };
        if self.is_beyond(&[range], &result) {
            return false;
        }
        let done = result.is_ok();
        if fua && done {
            self.world.events.borrow_mut().count("write with FUA", 1);
        }
        self.changed(id, fua, result);
        done
    }

    /// Whether an operation was refused because it had waited until a shrink was over.
    fn is_beyond(&self, ranges: &[Range], result: &Result<Reply, DeviceError>) -> bool {
        let is_refused = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
        let end = ranges.iter().map(|range| range.offset + range.len).max();
        let is_beyond = is_refused && end.is_some_and(|end| end > self.bytes());
        if is_beyond {
            self.world.note("refused beyond a shrink", [0; 3]);
        }
        is_beyond
    }

    /// Several changes in one operation.
    async fn batch(&self, dice: &mut Dice) {
        let fua = dice.percent(self.world.profile.fua_percent);
        let mut segments = Vec::new();
        let (mut ids, mut ranges) = (Vec::new(), Vec::new());
        for _ in 0..dice.within(1..SEGMENTS_MAX) {
            let range = self.range(dice);
            ranges.push(range);
            let (offset, len) = self.place(range);
            let pattern = dice.pick(&[
                Pattern::Noise,
                Pattern::Noise,
                Pattern::Text,
                Pattern::Zero,
                Pattern::Hole,
            ]);
            let id = self.begin_write(range, pattern);
            self.world.note("write in a batch", [id.0.into(), range.offset, range.len]);
            ids.push(id);
            let change = match pattern {
                Pattern::Zero => Change::Zeroes(len),
                Pattern::Hole => Change::Discard(len),
                Pattern::Noise | Pattern::Text => {
                    let mut data = AlignedBuf::zeroed(usize::try_from(len).expect("small"));
                    content::fill(id, pattern, range.offset, &mut data);
                    Change::Data(data.freeze())
                }
            };
            segments.push(Segment { offset, change });
        }
        self.world.events.borrow_mut().count("batch", 1);
        let batch = Operation::Batch { segments, fua };
        let result = self.stack.call(self.header(), batch).await;
        if self.is_beyond(&ranges, &result) {
            return;
        }
        for id in ids {
            self.changed(id, fua, result.clone());
        }
    }

    /// Several writes at once on one connection.
    async fn burst(&self, way: &Way, dice: &mut Dice) {
        let writes = (0..dice.within(2..SEGMENTS_MAX)).map(|_| {
            let (range, mut dice) = (self.range(dice), Dice::new(dice.next(), 43));
            async move { self.write_range(way, &mut dice, range).await }
        });
        let writes: Vec<_> = writes.collect();
        futures_util::future::join_all(writes).await;
        self.world.events.borrow_mut().count("burst", 1);
    }

    async fn write_zeroes(&self, way: &Way, dice: &mut Dice) {
        let range = self.wide_range(dice);
        let flags = WriteZeroesFlags {
            fua: dice.percent(self.world.profile.fua_percent),
            no_hole: dice.percent(50),
            fast: dice.percent(30),
        };
        let pattern = if flags.no_hole { Pattern::Zero } else { Pattern::Hole };
        let id = self.begin_write(range, pattern);
        self.world.note("write zeroes", [id.0.into(), range.offset, range.len]);
        let result = {
            let (offset, len) = self.place(range);
            way.call(self, Operation::WriteZeroes { offset, len, flags }).await
        };
        match result {
            Some(result) if self.is_beyond(&[range], &result) => {}
            Some(result) => self.changed(id, flags.fua, result),
            None => way.lost_write(id),
        }
    }

    async fn discard(&self, way: &Way, dice: &mut Dice) {
        let range = self.wide_range(dice);
        let id = self.begin_write(range, Pattern::Hole);
        self.world.note("discard", [id.0.into(), range.offset, range.len]);
        let (offset, len) = self.place(range);
        match way.call(self, Operation::Discard { offset, len }).await {
            Some(result) if self.is_beyond(&[range], &result) => {}
            Some(result) => self.changed(id, false, result),
            None => way.lost_write(id),
        }
    }

    /// A write that counts, or one of an owner that was superseded: nothing may ever show it.
    fn begin_write(&self, range: Range, pattern: Pattern) -> WriteId {
        if self.superseded.get() {
            let number = self.world.foreign_writes.get() + 1;
            self.world.foreign_writes.set(number);
            return WriteId(FOREIGN_WRITES + number);
        }
        self.world.oracle.borrow_mut().begin_write(
            range.offset,
            range.len,
            pattern,
            self.whole_bytes_max,
        )
    }

    /// Whether an answer does not count, because the volume belongs to another by now. One that stops at its deadline
    /// must not give any.
    fn is_late<T>(&self, what: &str, result: &Result<T, DeviceError>) -> bool {
        if !self.superseded.get() {
            return false;
        }
        match result {
            Ok(_) if self.auto.get() && self.honest.get() => {
                self.world.violate(format!("{what} was answered by an owner that was superseded"));
            }
            Ok(_) => self.world.note("superseded: answered, and void", [0; 3]),
            Err(error) if error.kind() == ErrorKind::Fenced => {
                self.refused(ErrorKind::Fenced);
                self.world.note("superseded: fenced", [0; 3]);
            }
            Err(error) => {
                // Its disk failed before anybody could tell it.
                if error.kind() == ErrorKind::Poisoned && self.disk_failed.get() {
                    self.refused(ErrorKind::Poisoned);
                }
                self.world.note("superseded: failed", [0; 3]);
            }
        }
        true
    }

    fn refused(&self, kind: ErrorKind) {
        // What the journal refuses for a failed disk, the volume knows only when all that was flushed is in the store.
        if kind == ErrorKind::Fenced && !self.closing.get() {
            self.expect_failure(kind);
        }
        if self.refused_since.get().is_none() {
            self.refused_since.set(Some(self.world.oracle.borrow_mut().tick()));
            self.world.note("volume refuses writes", [0; 3]);
        }
    }

    /// A write was answered.
    fn changed(&self, id: content::WriteId, fua: bool, result: Result<Reply, DeviceError>) {
        let result = replied(result);
        if self.is_late("a write", &result) || id.0 > FOREIGN_WRITES {
            return;
        }
        match result {
            Ok(_) => {
                let issued = self.world.oracle.borrow().write(id).issued;
                self.not_refused(issued, "a write");
                self.world.detail("  answered", [id.0.into(), 0, 0]);
                self.world.oracle.borrow_mut().end_write(id, fua);
            }
            Err(error) => self.failed("write", id.0.into(), &error),
        }
    }

    /// A volume that has refused writes must take none that is issued later.
    fn not_refused(&self, issued: Moment, what: &str) {
        if self.refused_since.get().is_some_and(|since| since < issued) {
            self.world.violate(format!("{what} was answered by a volume that refuses writes"));
        }
    }

    /// Whether what needs no store may fail like this.
    pub(crate) fn may_fail(&self, error: &DeviceError) -> bool {
        match error.kind() {
            ErrorKind::Poisoned => self.disk_failed.get(),
            ErrorKind::Unavailable => self.closing.get() || self.frozen.get() > 0,
            ErrorKind::Fenced => self.may_be_fenced.get(),
            _ => false,
        }
    }

    /// A write or flush was answered with an error.
    fn failed(&self, what: &str, number: u64, error: &DeviceError) {
        self.world.note("operation refused", [number, 0, 0]);
        if !self.may_fail(error) {
            self.world.violate(format!("{what} {number} failed without a reason: {error:?}"));
        }
        if matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::Fenced) {
            self.refused(error.kind());
        }
    }

    async fn read(&self, way: &Way, range: Range) {
        let failed = self.read_checked(way, range.offset, range.len).await;
        self.world.events.borrow_mut().count("read excused", u64::from(failed.is_err()));
    }

    /// Reads, tells the oracle, and returns what it read; `Err` for an error that is excused.
    async fn read_checked(&self, way: &Way, offset: u64, len: u64) -> Result<(), ()> {
        let world = &self.world;
        let begun = world.oracle.borrow_mut().begin_read();
        world.note("read", [begun, offset, len]);
        let bytes = self.read_by(way, begun, Point::at(begun), (offset, len)).await?;
        world.detail("  read", [begun, 0, 0]);
        let checked = world.oracle.borrow_mut().end_read(begun, offset, &bytes);
        world.check(checked);
        Ok(())
    }

    /// Reads a range; `Err` for an error that is excused.
    pub(crate) async fn try_read(
        &self,
        begun: Moment,
        point: Point,
        offset: u64,
        len: u64,
    ) -> Result<Vec<u8>, ()> {
        self.read_by(&Way::Device, begun, point, (offset, len)).await
    }

    async fn read_by(
        &self,
        way: &Way,
        begun: Moment,
        point: Point,
        (offset, len): (u64, u64),
    ) -> Result<Vec<u8>, ()> {
        let world = &self.world;
        let faults_before = world.faults_before_read();
        let range = Range { offset, len };
        let (at, bytes) = self.place(range);
        let asked = self.ask(way, Operation::Read { offset: at, len: bytes }).await;
        let Some(asked) = asked.filter(|asked| !self.is_beyond(&[range], asked)) else {
            world.oracle.borrow_mut().abandon_read(begun);
            return Err(());
        };
        let result = asked.and_then(Reply::into_data);
        if self.is_late("a read", &result) {
            world.oracle.borrow_mut().abandon_read(begun);
            return Err(());
        }
        match result {
            Ok(data) => Ok(data.to_vec()),
            Err(error) if error.kind() == ErrorKind::Fenced && self.may_be_fenced.get() => {
                world.oracle.borrow_mut().abandon_read(begun);
                self.refused(ErrorKind::Fenced);
                Err(())
            }
            Err(error) if error.kind() == ErrorKind::Unavailable && self.closing.get() => {
                world.oracle.borrow_mut().abandon_read(begun);
                Err(())
            }
            Err(error) => {
                world.oracle.borrow_mut().abandon_read(begun);
                world.detail("  read failed", [begun, offset, len]);
                let deadline = self.read_deadline;
                let host = self.host;
                let read = FailedRead { point, faults_before, offset, len, deadline, host };
                // Whoever takes a volume with `takeover = manual` deletes what its holder stored beyond the prefix, and
                // the holder is told by its next version only.
                let taken =
                    self.may_be_fenced.get() && error.to_string().contains("no such object");
                if !taken && !world.excuses_read(&read, &error) {
                    world.violate(format!(
                        "a read of {len} bytes at {offset} failed without a reason: {error:?}"
                    ));
                }
                Err(())
            }
        }
    }

    pub(crate) async fn flush(&self) {
        self.flush_by(&Way::Device).await;
    }

    async fn flush_by(&self, way: &Way) {
        let begun = self.world.oracle.borrow_mut().begin_flush();
        self.world.note("flush", [begun, 0, 0]);
        let Some(result) = self.ask(way, Operation::Flush(FlushScope::Local)).await else { return };
        let result = result.map(|_| ());
        if self.is_late("a flush", &result) {
            return;
        }
        match result {
            Ok(()) => {
                self.not_refused(begun, "a flush");
                self.world.detail("  flushed", [begun, 0, 0]);
                self.world.oracle.borrow_mut().end_flush(begun);
            }
            Err(error) => self.failed("flush", begun, &error),
        }
    }

    pub(crate) async fn flush_remote(&self) {
        let begun = self.world.oracle.borrow_mut().begin_flush();
        self.world.note("remote flush", [begun, 0, 0]);
        self.meets_dirty("remote flush");
        let result = self.stack.flush(FlushScope::Store).await;
        if self.superseded.get() {
            let wrong = result.is_ok() && self.honest.get();
            if wrong {
                self.world.violate("a remote flush of a superseded owner succeeded");
            }
            return;
        }
        match result {
            Ok(()) if !self.honest.get() => self.world.note("remote flush not believed", [0; 3]),
            Ok(()) => {
                self.world.detail("  flushed remotely", [begun, 0, 0]);
                self.world.oracle.borrow_mut().end_remote_flush(begun);
            }
            Err(error) => self.failed("remote flush", begun, &error),
        }
    }

    async fn extents(&self, way: &Way, dice: &mut Dice) {
        let range = self.range(dice);
        let extents_max = usize::try_from(dice.within(1..20)).expect("small");
        let way = if way.has_extents() && range.len > 0 { way } else { &Way::Device };
        self.extents_of(way, range, extents_max).await;
    }

    /// Asks for the extents of everything.
    pub(crate) async fn extents_of_all(&self) {
        let (mut at, size) = (0, self.bytes());
        while at < size {
            let end = self.world.profile.islands.end(at).min(size);
            self.extents_of(&Way::Device, Range { offset: at, len: end - at }, EXTENTS_MAX).await;
            at = end;
        }
    }

    async fn extents_of(&self, way: &Way, range: Range, extents_max: usize) {
        let begun = self.world.oracle.borrow_mut().begin_read();
        self.world.note("extents", [begun, range.offset, range.len]);
        let (offset, len) = self.place(range);
        let extents_max = if way.is_nbd() { EXTENTS_MAX_NBD } else { extents_max };
        let operation = Operation::Extents { offset, len, extents_max };
        let asked = self.ask(way, operation).await;
        // What could show when it was asked for is kept until it is judged.
        self.judge_extents(way, begun, range, extents_max, asked);
        self.world.oracle.borrow_mut().abandon_read(begun);
    }

    fn judge_extents(
        &self,
        way: &Way,
        begun: Moment,
        range: Range,
        extents_max: usize,
        asked: Option<Result<Reply, DeviceError>>,
    ) {
        let Some(asked) = asked else { return };
        if self.is_beyond(&[range], &asked) {
            return;
        }
        let result = asked.and_then(Reply::into_extents);
        if self.is_late("extents", &result) {
            return;
        }
        let extents = match result {
            Ok(extents) => extents,
            Err(error) if error.kind() == ErrorKind::Fenced && self.may_be_fenced.get() => {
                return self.refused(ErrorKind::Fenced);
            }
            Err(error) if error.kind() == ErrorKind::Unavailable && self.closing.get() => return,
            Err(error) => return self.world.violate(format!("extents failed: {error:?}")),
        };
        let total: u64 = extents.iter().map(|extent| extent.len).sum();
        let shape = total <= range.len
            && extents.len() <= extents_max
            && (range.len == 0 || total > 0)
            && extents.iter().all(|extent| extent.len > 0);
        if !shape {
            return self.world.violate(format!("extents of a wrong shape: {extents:?}"));
        }
        let checked = self.world.oracle.borrow().check_extents(
            begun,
            (range.offset, &self.world.profile.islands),
            &extents,
            !way.is_nbd(),
        );
        self.world.check(checked);
    }

    async fn out_of_bounds(&self, way: &Way, dice: &mut Dice) {
        let size = self.stack.size();
        // It may grow while a request is on its way.
        let may_wait = way.is_nbd() || self.world.profile.stages.any();
        let size = if may_wait { size + FAR_BEYOND } else { size };
        let offset = size - dice.below(size.min(4096));
        let bytes = size - offset + dice.within(1..5000);
        self.world.note("out of bounds", [0, offset, bytes]);
        let len = usize::try_from(bytes).expect("small");
        let result = if dice.percent(50) {
            let mut data = AlignedBuf::zeroed(len);
            data.fill(0xee);
            let data = data.freeze();
            self.ask(way, Operation::Write { offset, data, fua: false }).await
        } else {
            self.ask(way, Operation::Read { offset, len: bytes }).await
        };
        let Some(result) = result else { return };
        let is_closed =
            |error: &DeviceError| error.kind() == ErrorKind::Unavailable && self.closing.get();
        let is_refused =
            |error: &DeviceError| error.kind() == ErrorKind::Invalid || is_closed(error);
        if !result.as_ref().is_err_and(is_refused) {
            self.world.violate(format!("an operation past the end returned {result:?}"));
        }
    }
}

/// What reaches the client of an answer: its leases are checked when it is handed to the socket.
fn replied(result: Result<Reply, DeviceError>) -> Result<Reply, DeviceError> {
    let reply = result?;
    reply.leases.check()?;
    Ok(reply)
}
