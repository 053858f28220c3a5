//! The device: operations as requests to the server, in its units.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use weir_device::{
    AlignedBuf, Body, ByteRange, Change, Data, Device, DeviceError, DeviceInfo, Env, ErrorKind,
    Event, Extent, ExtentState, IoHeader, Operation, RangeGuard, RangeMode, Reply, Segment,
    SharedBuf, WriteZeroesFlags, mutant, whole_blocks,
};
use weir_nbd::{Attachment, Command, TransmissionFlags};

use crate::answer::{Answer, allocation};
use crate::blocks::{Blocks, ZEROES_MAX};
use crate::error::RemoteError;
use crate::exported::{Exported, RemoteArgs};
use crate::session::Session;
use crate::status::RemoteStatus;
use crate::task::{Task, connect};
use crate::ticket::Answered;

/// Requests that one operation has under way at most.
const PIECES_MAX: usize = 16;

/// Zeroes in one write, for a server that cannot write zeroes by itself.
const ZERO_BYTES: u64 = 1 << 20;

/// How long exclusive access is asked for again where another client has it, or may write.
const LEAVING: Duration = Duration::from_secs(2);

/// Time for the flush when the volume is closed in a hurry.
const CLOSE_MIN: Duration = Duration::from_secs(5);

/// A device whose bytes are those of an export of another host.
///
/// A write is acknowledged when the server acknowledges it, and survives once a flush succeeded. Where a connection is
/// lost, calls wait for the next one, up to the deadline of [`RemoteArgs`]; what that promises without
/// [`RemoteArgs::resend`] is said there.
pub struct RemoteVolume {
    session: Rc<Session>,
}

impl fmt::Debug for RemoteVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteVolume({})", self.session.shown)
    }
}

/// A change to be made, and what is held for it.
struct Changing {
    guard: Rc<RangeGuard>,
    /// Answer only when it would survive a loss of power.
    fua: bool,
}

impl RemoteVolume {
    /// Connects to the server, once.
    ///
    /// # Errors
    /// It cannot be reached, does not have the export, or offers less than is needed.
    pub async fn open(env: Env, args: RemoteArgs) -> Result<Rc<Self>, DeviceError> {
        let shown = args.url.to_string();
        let exclusive = args.exclusive;
        let mut attachment = Attachment { session: [0; 16], generation: 1, exclusive, known: None };
        env.random.fill(&mut attachment.session);
        let began = Instant::now();
        let connected = loop {
            match connect(&env, &args, attachment).await {
                // A client that has just left, such as the process before this one, may be counted still.
                Err(RemoteError::NotExclusive { .. }) if began.elapsed() < LEAVING => {
                    sleep(LEAVING / 20).await;
                }
                connecting => break connecting.map_err(|error| error.of_device(&shown))?,
            }
        };
        let session = Rc::new(Session::new(env.clone(), args, connected.found.exported.clone()));
        env.spawn_local(Task::new(Rc::clone(&session), connected, attachment).run());
        Ok(Rc::new(Self { session }))
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> RemoteStatus {
        self.session.status()
    }

    /// Has the server flush, and ends the connections. It takes `deadline`, or a few seconds if that is longer.
    ///
    /// # Errors
    /// What was acknowledged was not flushed. The volume is closed even then.
    pub async fn close(&self, deadline: Duration) -> Result<(), DeviceError> {
        let flushing = async {
            match self.session.status().unflushed_bytes {
                0 => Ok(()),
                _ => self.session.flush().await,
            }
        };
        let flushed = timeout(deadline.max(CLOSE_MIN), flushing).await.unwrap_or_else(|_| {
            let bytes = self.session.status().unflushed_bytes;
            let message = format!(
                "the server did not flush in time: {bytes} bytes that it acknowledged are lost if it ends now"
            );
            Err(self.session.error(ErrorKind::Unavailable, &message))
        });
        self.session.close();
        let over = timeout(deadline.max(CLOSE_MIN), self.session.until_over()).await;
        if over.is_err() {
            self.session.abandon();
            self.session.until_over().await;
        }
        flushed
    }

    fn blocks(&self) -> Blocks {
        self.session.exported(|exported| exported.blocks)
    }

    fn offers(&self, flag: TransmissionFlags) -> bool {
        self.session.exported(|exported| exported.offers(flag))
    }

    /// Submits a request per piece, a few at a time; the answers in order.
    async fn in_pieces(
        &self,
        pieces: impl Iterator<Item = ByteRange>,
        submit: impl Fn(ByteRange) -> Answered,
        mut on_answer: impl FnMut(ByteRange, Answer) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut pieces = pieces.peekable();
        let Some(first) = pieces.next() else { return Ok(()) };
        let answered = submit(first);
        if pieces.peek().is_none() {
            return on_answer(first, self.session.answer(answered).await?);
        }
        let mut under_way = VecDeque::from([(first, answered)]);
        let mut result = Ok(());
        loop {
            // After an error nothing more is begun, and what was begun is waited for: no piece is under way any more
            // when the caller is told.
            let next = if result.is_ok() { pieces.next() } else { None };
            let is_over = next.is_none();
            under_way.extend(next.map(|piece| (piece, submit(piece))));
            while under_way.len() >= if is_over { 1 } else { PIECES_MAX } {
                let Some((piece, answered)) = under_way.pop_front() else { break };
                let answered = self.session.answer(answered).await;
                let taken = answered.and_then(|answer| on_answer(piece, answer));
                result = match mutant("later_answer_hides_a_failure") {
                    true => taken,
                    false => result.and(taken),
                };
            }
            if is_over {
                return result;
            }
        }
    }

    async fn read(&self, range: ByteRange) -> Result<Data, DeviceError> {
        let blocks = self.blocks();
        let mut found = Data::default();
        let submit = |piece: ByteRange| {
            let (offset, length) = (piece.start, length(piece));
            let command = Command::Read { offset, length, unbroken: false };
            self.session.submit(command, SharedBuf::default(), None)
        };
        let around = if range.is_empty() { range } else { blocks.around(range) };
        self.in_pieces(around.pieces(blocks.payload_max), submit, |piece, answer| {
            let data = answer.into_data()?.freeze();
            if let Some(wanted) = piece.intersect(range) {
                let skip = to_usize(wanted.start - piece.start);
                found.append(data.slice(skip, to_usize(wanted.len())).into());
            }
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// Waits until a range may be changed.
    async fn changing(&self, range: ByteRange, fua: bool) -> Result<Changing, DeviceError> {
        if self.session.exported(Exported::is_read_only) {
            return Err(self.session.error(ErrorKind::ReadOnly, "the export is read-only"));
        }
        self.session.room_for_changes().await?;
        // Whole blocks: what lies beside a change is read and written with it.
        let range = match range.is_empty() || mutant("blocks_beside_a_change_not_locked") {
            true => range,
            false => self.blocks().around(range),
        };
        let mode = match mutant("changes_not_locked") {
            true => RangeMode::Shared,
            false => RangeMode::Exclusive,
        };
        // A request that is stuck at the server holds its range beyond its own deadline.
        let locking =
            timeout(self.session.args.deadline, self.session.locks.lock(range, mode)).await;
        let late = |_| self.session.overdue_error(&self.session.state.borrow());
        let guard = Rc::new(locking.map_err(late)?);
        Ok(Changing { guard, fua })
    }

    /// What a change needs after all its pieces, where the server cannot do it with each of them.
    async fn changed(&self, fua: bool) -> Result<(), DeviceError> {
        match fua && !self.offers(TransmissionFlags::SEND_FUA) {
            true => self.session.flush().await,
            false => Ok(()),
        }
    }

    async fn write(&self, offset: u64, data: SharedBuf, fua: bool) -> Result<(), DeviceError> {
        let range = ByteRange::new(offset, offset + data.len() as u64);
        let changing = self.changing(range, fua).await?;
        self.write_locked(&changing, range, data).await?;
        drop(changing);
        self.changed(fua).await
    }

    /// Writes a range whose blocks are locked. What lies beside it in its first and last block is read first, where
    /// the server takes whole blocks only.
    async fn write_locked(
        &self,
        changing: &Changing,
        range: ByteRange,
        data: SharedBuf,
    ) -> Result<(), DeviceError> {
        let blocks = self.blocks();
        if range.is_empty() || blocks.fits(range) {
            return self.write_blocks(changing, range, data).await;
        }
        let read = async |block| self.read(block).await;
        let (buffers, change) = (&self.session.env.buffers, (range, &data[..]));
        let whole = whole_blocks(buffers, change, blocks.minimum, read).await?;
        self.write_blocks(changing, blocks.around(range), whole).await
    }

    async fn write_blocks(
        &self,
        changing: &Changing,
        range: ByteRange,
        data: SharedBuf,
    ) -> Result<(), DeviceError> {
        let fua = changing.fua && self.offers(TransmissionFlags::SEND_FUA);
        let submit = |piece: ByteRange| {
            let command = Command::Write { offset: piece.start, length: length(piece), fua };
            let part = data.slice(to_usize(piece.start - range.start), to_usize(piece.len()));
            self.session.submit(command, part, Some(Rc::clone(&changing.guard)))
        };
        self.in_pieces(range.pieces(self.blocks().payload_max), submit, done).await
    }

    async fn zero(&self, range: ByteRange, flags: WriteZeroesFlags) -> Result<(), DeviceError> {
        let by_itself = self.offers(TransmissionFlags::SEND_WRITE_ZEROES);
        if flags.fast && !(by_itself && self.offers(TransmissionFlags::SEND_FAST_ZERO)) {
            let message = "the server cannot say whether zeroes are fast";
            return Err(self.session.error(ErrorKind::Unsupported, message));
        }
        let changing = self.changing(range, flags.fua).await?;
        let inside = self.blocks().inside(range);
        // What is no whole block is written.
        let edges = match inside.is_empty() {
            true => [range, ByteRange::new(range.end, range.end)],
            false => {
                [ByteRange::new(range.start, inside.start), ByteRange::new(inside.end, range.end)]
            }
        };
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            let zeroes = AlignedBuf::zeroed(to_usize(edge.len())).freeze();
            self.write_locked(&changing, edge, zeroes).await?;
        }
        if by_itself {
            let fua = flags.fua && self.offers(TransmissionFlags::SEND_FUA);
            let submit = |piece: ByteRange| {
                let (offset, length, no_hole) = (piece.start, piece.len(), flags.no_hole);
                let command =
                    Command::WriteZeroes { offset, length, fua, no_hole, fast: flags.fast };
                let guard = Some(Rc::clone(&changing.guard));
                self.session.submit(command, SharedBuf::default(), guard)
            };
            self.in_pieces(inside.pieces(ZEROES_MAX), submit, done).await?;
        } else {
            let longest = ZERO_BYTES.min(self.blocks().payload_max);
            let zeroes = AlignedBuf::zeroed(to_usize(longest.min(inside.len()))).freeze();
            for piece in inside.pieces(longest) {
                let part = zeroes.slice(0, to_usize(piece.len()));
                self.write_blocks(&changing, piece, part).await?;
            }
        }
        drop(changing);
        self.changed(flags.fua).await
    }

    async fn change(&self, segment: Segment) -> Result<(), DeviceError> {
        let range = ByteRange::new(segment.offset, segment.offset + segment.len());
        match segment.change {
            Change::Data(data) => self.write(segment.offset, data, false).await,
            Change::Zeroes(_) => {
                let flags = WriteZeroesFlags { no_hole: true, ..WriteZeroesFlags::default() };
                self.zero(range, flags).await
            }
            Change::Discard(_) => self.zero(range, WriteZeroesFlags::default()).await,
        }
    }

    async fn batch(&self, segments: Vec<Segment>, fua: bool) -> Result<(), DeviceError> {
        // Each takes its place in the queue for its range when it is first polled: in order.
        let changes = segments.into_iter().map(|segment| self.change(segment));
        join_all(changes).await.into_iter().collect::<Result<(), _>>()?;
        if fua { self.session.flush().await } else { Ok(()) }
    }

    async fn extents(
        &self,
        range: ByteRange,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        if range.is_empty() || extents_max == 0 {
            return Ok(Vec::new());
        }
        if !self.session.exported(Exported::tells_allocation) {
            return Ok(vec![Extent { len: range.len(), state: ExtentState::Data }]);
        }
        let around = self.blocks().around(range);
        let (offset, length) = (around.start, around.len().min(ZEROES_MAX));
        let command = Command::BlockStatus { offset, length, one: extents_max == 1 };
        let answered = self.session.submit(command, SharedBuf::default(), None);
        let told = self.session.answer(answered).await?.into_status()?;
        let mut found: Vec<Extent> = Vec::new();
        let mut at = offset;
        for extent in told {
            let (start, end) = (at, at.saturating_add(extent.length));
            at = end;
            let Some(part) = ByteRange::new(start, end).intersect(range) else { continue };
            let state = allocation(&extent);
            let count = found.len();
            match found.last_mut() {
                Some(last) if last.state == state => last.len += part.len(),
                _ if count == extents_max => break,
                _ => found.push(Extent { len: part.len(), state }),
            }
        }
        if found.is_empty() {
            let message = "the server told no block status of what it was asked for";
            return Err(self.session.error(ErrorKind::Unavailable, message));
        }
        Ok(found)
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("what is in memory fits the address space")
}

/// Length of a piece that is no longer than a payload.
fn length(piece: ByteRange) -> u32 {
    u32::try_from(piece.len()).expect("a payload is at most 32 MiB")
}

fn done(_: ByteRange, _: Answer) -> Result<(), DeviceError> {
    Ok(())
}

impl Device for RemoteVolume {
    fn info(&self) -> DeviceInfo {
        let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        self.session.exported(|exported| DeviceInfo {
            size: exported.size,
            block_bytes_min: small(exported.blocks.minimum),
            block_bytes_preferred: small(exported.blocks.preferred),
            is_slow_to_seek: true,
            is_exclusive: self.session.is_exclusive(),
            is_read_only: exported.is_read_only(),
        })
    }

    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let size = self.session.exported(|exported| exported.size);
        let range = operation.check_bounds(size)?;
        let body = match operation {
            Operation::Read { .. } => Body::Data(self.read(range).await?),
            Operation::Write { offset, data, fua } => {
                self.write(offset, data, fua).await?;
                Body::Done
            }
            Operation::WriteZeroes { flags, .. } => {
                self.zero(range, flags).await?;
                Body::Done
            }
            // Not `TRIM`: the protocol does not say what is read afterwards.
            Operation::Discard { .. } => {
                self.zero(range, WriteZeroesFlags::default()).await?;
                Body::Done
            }
            Operation::Batch { segments, fua } => {
                self.batch(segments, fua).await?;
                Body::Done
            }
            Operation::Flush(_) => {
                self.session.flush().await?;
                Body::Done
            }
            Operation::Extents { extents_max, .. } => {
                Body::Extents(self.extents(range, extents_max).await?)
            }
        };
        Ok(Reply::new(body))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.session.events.poll(cx)
    }
}

impl Drop for RemoteVolume {
    fn drop(&mut self) {
        self.session.close();
    }
}
