//! A client and devices for the tests of the NBD front end.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this module")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use weir_device::{
    Body, ByteRange, ChangedRun, Device, DeviceError, DeviceExt, DeviceInfo, ErrorKind, Extent,
    ExtentState, History, IoHeader, Lease, Leases, LocalBoxFuture, MemoryDevice, Operation,
    OperationKind, Reply as DeviceReply, SourceId, VolumeId,
};
use weir_frontend::nbd::{ConnectionOptions, Export, Exports, NbdError, serve_connection};
use weir_nbd::{
    ALLOCATION_CONTEXT, Agreement, Chunk, ClientHandshake, ClientStep, ClientWish, CommandCode,
    CommandFlags, Cookie, Decoded, ErrorCode, ExtentStatus, ReplyHeader, ReplyStyle, RequestHeader,
    decode_chunk, decode_reply,
};

/// Size of the device in most tests; not a multiple of anything.
pub const SIZE: u64 = (4 << 20) + 13;

pub const SOURCE: SourceId = SourceId(77);
pub const VOLUME: VolumeId = VolumeId([9; 16]);
pub const STYLES: [ReplyStyle; 3] =
    [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

/// What a call on the device was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub io: IoHeader,
    pub kind: OperationKind,
    pub offset: u64,
    pub len: u64,
    pub fua: bool,
    pub no_hole: bool,
    pub fast: bool,
}

/// A memory device that records calls, can hold them at a gate, and can fail them.
pub struct TestDevice {
    pub memory: MemoryDevice,
    pub calls: RefCell<Vec<Call>>,
    pub completed: Cell<usize>,
    pub in_flight: Cell<usize>,
    pub in_flight_max: Cell<usize>,
    pub bytes_in_flight: Cell<u64>,
    pub bytes_in_flight_max: Cell<u64>,
    gate: watch::Sender<bool>,
    /// Calls at these offsets wait for their own key instead of the gate.
    keys: RefCell<BTreeMap<u64, oneshot::Receiver<()>>>,
    pub failure: Cell<Option<ErrorKind>>,
    /// Replies may not leave any more.
    pub superseded: Rc<Superseded>,
    pub extents_max: Cell<usize>,
    /// Where it says that its data lies, if not where the memory has some.
    pub data: RefCell<Option<(u64, u64)>>,
}

impl TestDevice {
    pub fn new(size: u64) -> Rc<Self> {
        Rc::new(Self {
            memory: MemoryDevice::new(size),
            calls: RefCell::default(),
            completed: Cell::new(0),
            in_flight: Cell::new(0),
            in_flight_max: Cell::new(0),
            bytes_in_flight: Cell::new(0),
            bytes_in_flight_max: Cell::new(0),
            gate: watch::Sender::new(true),
            keys: RefCell::default(),
            failure: Cell::new(None),
            superseded: Rc::default(),
            extents_max: Cell::new(usize::MAX),
            data: RefCell::default(),
        })
    }

    pub fn close_gate(&self) {
        self.gate.send_replace(false);
    }

    pub fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Holds the next call at `offset` until the returned key is sent or dropped.
    pub fn hold(&self, offset: u64) -> oneshot::Sender<()> {
        let (key, lock) = oneshot::channel();
        self.keys.borrow_mut().insert(offset, lock);
        key
    }

    pub fn last_call(&self) -> Call {
        self.calls.borrow().last().expect("a call").clone()
    }

    async fn enter(&self, call: Call) -> Result<(), DeviceError> {
        let (offset, len) = (call.offset, call.len);
        self.calls.borrow_mut().push(call);
        self.in_flight.set(self.in_flight.get() + 1);
        self.bytes_in_flight.set(self.bytes_in_flight.get() + len);
        self.in_flight_max.set(self.in_flight_max.get().max(self.in_flight.get()));
        self.bytes_in_flight_max
            .set(self.bytes_in_flight_max.get().max(self.bytes_in_flight.get()));
        let key = self.keys.borrow_mut().remove(&offset);
        match key {
            // A dropped key opens as well.
            Some(lock) => drop(lock.await),
            None => {
                let mut gate = self.gate.subscribe();
                gate.wait_for(|open| *open).await.expect("the device owns the gate");
            }
        }
        self.in_flight.set(self.in_flight.get() - 1);
        self.bytes_in_flight.set(self.bytes_in_flight.get() - len);
        self.completed.set(self.completed.get() + 1);
        match self.failure.get() {
            Some(kind) => Err(DeviceError::new(kind, "the test asked for it")),
            None => Ok(()),
        }
    }

    fn extents_of(&self, (offset, len): (u64, u64), extents_max: usize) -> Option<Vec<Extent>> {
        let (from, to) = (*self.data.borrow())?;
        let end = offset + len;
        let mut extents = Vec::new();
        let edges =
            [(from, ExtentState::Hole), (to, ExtentState::Data), (u64::MAX, ExtentState::Hole)];
        let mut at = offset;
        for (edge, state) in edges {
            let stop = edge.min(end);
            if stop > at {
                extents.push(Extent { len: stop - at, state });
                at = stop;
            }
        }
        extents.truncate(extents_max);
        Some(extents)
    }
}

/// What the replies of a test device depend on.
#[derive(Default)]
pub struct Superseded(Cell<bool>);

impl Superseded {
    pub fn set(&self, is_superseded: bool) {
        self.0.set(is_superseded);
    }
}

impl Lease for Superseded {
    fn check(&self) -> Result<(), DeviceError> {
        match self.0.get() {
            true => Err(DeviceError::new(ErrorKind::Fenced, "superseded")),
            false => Ok(()),
        }
    }
}

fn call_of(io: IoHeader, operation: &Operation) -> Call {
    let (offset, len) = operation.span();
    let (fua, no_hole, fast) = match operation {
        Operation::Write { fua, .. } | Operation::Batch { fua, .. } => (*fua, false, false),
        Operation::WriteZeroes { flags, .. } => (flags.fua, flags.no_hole, flags.fast),
        _ => (false, false, false),
    };
    Call { io, kind: operation.kind(), offset, len, fua, no_hole, fast }
}

impl Device for TestDevice {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    async fn call(
        &self,
        io: IoHeader,
        mut operation: Operation,
    ) -> Result<DeviceReply, DeviceError> {
        if let Operation::Write { data, .. } = &operation {
            assert!(data.is_aligned_to(4096), "payloads arrive in buffers of their own");
        }
        self.enter(call_of(io, &operation)).await?;
        let mut told = None;
        let span = operation.span();
        if let Operation::Extents { extents_max, .. } = &mut operation {
            *extents_max = (*extents_max).min(self.extents_max.get());
            told = self.extents_of(span, *extents_max);
        }
        let mut reply = match told {
            Some(extents) => DeviceReply::new(Body::Extents(extents)),
            None => self.memory.call(io, operation).await?,
        };
        reply.leases = Leases::of(Rc::clone(&self.superseded) as Rc<dyn Lease>);
        Ok(reply)
    }
}

/// Earlier states by what changed since: all of it, every other 4 KiB, one byte, and one that is gone.
pub const EARLIER: [&str; 4] = ["all", "odd", "byte", "gone"];

/// Where the byte is that changed since the state `byte`.
pub const CHANGED_BYTE: u64 = 5000;

impl History for TestDevice {
    fn earlier(&self) -> Vec<String> {
        EARLIER.map(str::to_owned).to_vec()
    }

    fn changed<'a>(
        &'a self,
        since: &'a str,
        range: ByteRange,
        runs_max: usize,
    ) -> LocalBoxFuture<'a, Result<Vec<ChangedRun>, DeviceError>> {
        Box::pin(async move {
            let (offset, len, extents_max) = (range.start, range.len(), runs_max);
            let asked = Operation::Extents { offset, len, extents_max };
            self.enter(call_of(IoHeader::of_client(SOURCE, VOLUME), &asked)).await?;
            match since {
                "all" => Ok(vec![ChangedRun { len, changed: true }]),
                "odd" => Ok(odd(offset, len).take(runs_max).collect()),
                "byte" => {
                    let parts = [
                        (0, CHANGED_BYTE, false),
                        (CHANGED_BYTE, CHANGED_BYTE + 1, true),
                        (CHANGED_BYTE + 1, u64::MAX, false),
                    ];
                    let within = parts.map(|(from, to, changed)| {
                        let (from, to) = (from.max(offset), to.min(offset + len));
                        ChangedRun { len: to.saturating_sub(from), changed }
                    });
                    Ok(within.into_iter().filter(|run| run.len > 0).take(runs_max).collect())
                }
                _ => Err(DeviceError::new(ErrorKind::NotFound, "it is gone")),
            }
        })
    }
}

/// Runs of 4 KiB, of which every other changed.
pub fn odd(offset: u64, len: u64) -> impl Iterator<Item = ChangedRun> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at;
        at = (at / 4096 + 1) * 4096;
        let len = at.min(offset + len).checked_sub(start).filter(|len| *len > 0)?;
        Some(ChangedRun { len, changed: start / 4096 % 2 == 1 })
    })
}

/// One device as `disk` (and the default), and the same read-only as `frozen`.
pub struct Shelf(pub Rc<TestDevice>);

impl Exports for Shelf {
    type Device = TestDevice;

    fn find(&self, name: &str) -> Option<Export<TestDevice>> {
        matches!(name, "" | "disk" | "frozen").then(|| Export {
            name: if name.is_empty() { "disk" } else { name }.to_owned(),
            description: "a test disk".to_owned(),
            device: Rc::clone(&self.0),
            volume: VOLUME,
            read_only: name == "frozen",
            history: (name == "frozen").then(|| Rc::clone(&self.0) as Rc<dyn History>),
        })
    }

    fn list(&self) -> Vec<String> {
        vec!["disk".to_owned(), "frozen".to_owned()]
    }
}

/// One connection being served, as the test sees it from outside.
pub struct Served {
    pub task: JoinHandle<Result<(), NbdError>>,
    pub stop: oneshot::Sender<()>,
}

impl Served {
    pub async fn ended(self) -> Result<(), NbdError> {
        self.task.await.expect("the connection does not panic")
    }
}

pub fn options() -> ConnectionOptions {
    ConnectionOptions::new(SOURCE, "test")
}

/// Serves `device` on one end of a pipe of `pipe_bytes`, and hands the other end back.
pub fn serve_with(
    device: &Rc<TestDevice>,
    options: ConnectionOptions,
    pipe_bytes: usize,
) -> (DuplexStream, Served) {
    let (ours, theirs) = tokio::io::duplex(pipe_bytes);
    let exports = Rc::new(Shelf(Rc::clone(device)));
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let task = tokio::task::spawn_local(serve_connection(theirs, exports, options, shutdown));
    (ours, Served { task, stop })
}

pub fn serve(device: &Rc<TestDevice>) -> (DuplexStream, Served) {
    serve_with(device, options(), 1 << 20)
}

/// Runs a test on one thread with a clock that jumps when everything waits.
pub fn run<F: Future<Output = ()>>(test: F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Runs a test on one thread with real sockets, whose time is that of the clock.
pub fn run_on_sockets<F: Future<Output = ()>>(test: F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Lets every other task of the thread go as far as it can.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: Option<ErrorCode>,
    pub message: String,
    pub data: Vec<u8>,
    /// Bytes of it that came in chunks.
    pub data_bytes: usize,
    /// In `base:allocation`.
    pub extents: Vec<ExtentStatus>,
    /// In further contexts, by their numbers.
    pub statuses: BTreeMap<u32, Vec<ExtentStatus>>,
}

impl Reply {
    /// The data or extents of a request that must have succeeded.
    pub fn ok(self) -> Self {
        assert_eq!(self.error, None, "{}", self.message);
        self
    }
}

pub struct Client<S> {
    pub stream: S,
    pub agreement: Agreement,
    received: Vec<u8>,
    cookie: u64,
    /// Offset and length of reads in flight, by cookie.
    reads: BTreeMap<u64, (u64, usize)>,
}

pub fn wish(export: &str, style_max: ReplyStyle) -> ClientWish {
    ClientWish {
        tls: false,
        attachment: None,
        export: export.to_owned(),
        style_max,
        contexts: vec![ALLOCATION_CONTEXT.to_owned()],
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub async fn connect(stream: S, wish: ClientWish) -> Self {
        Self::connect_under(stream, wish, async |_| panic!("nobody asked for TLS")).await
    }

    /// The same; where the server agrees to TLS, `secure` begins it.
    pub async fn connect_under(
        mut stream: S,
        wish: ClientWish,
        secure: impl AsyncFn(S) -> S,
    ) -> Self {
        let mut handshake = ClientHandshake::new(wish);
        let (mut received, mut out) = (Vec::new(), Vec::new());
        let agreement = loop {
            let progress = handshake.advance(&received, &mut out).expect("a good server");
            received.drain(..progress.consumed);
            stream.write_all(&out).await.expect("a server that listens");
            out.clear();
            match progress.step {
                ClientStep::Again => {}
                ClientStep::StartTls => {
                    assert!(received.is_empty(), "nothing is said behind the answer");
                    stream = secure(stream).await;
                }
                ClientStep::Transmit(agreement) => break agreement,
                ClientStep::NeedMore(_) => {
                    let bytes = stream.read_buf(&mut received).await.expect("a server that talks");
                    assert!(bytes > 0, "the server left during the handshake");
                }
            }
        };
        Self { stream, agreement, received, cookie: 0, reads: BTreeMap::new() }
    }

    pub fn style(&self) -> ReplyStyle {
        self.agreement.session.style
    }

    /// The bytes of a request with the next cookie.
    pub fn encode(
        &mut self,
        command: CommandCode,
        flags: CommandFlags,
        offset: u64,
        length: u64,
    ) -> (u64, Vec<u8>) {
        self.cookie += 1;
        let payload = command == CommandCode::WRITE && self.style() == ReplyStyle::Extended;
        let flags = if payload { flags.with(CommandFlags::PAYLOAD_LEN) } else { flags };
        let cookie = Cookie(self.cookie);
        let header = RequestHeader { flags, command, cookie, offset, length };
        if command == CommandCode::READ {
            let length = usize::try_from(length).expect("a read that fits");
            self.reads.insert(self.cookie, (offset, length));
        }
        let mut bytes = Vec::new();
        header.encode(self.style(), &mut bytes).expect("a length that fits");
        (self.cookie, bytes)
    }

    pub async fn send(
        &mut self,
        command: CommandCode,
        flags: CommandFlags,
        offset: u64,
        length: u64,
    ) -> u64 {
        let (cookie, bytes) = self.encode(command, flags, offset, length);
        self.stream.write_all(&bytes).await.expect("a server that listens");
        self.stream.flush().await.expect("a server that listens");
        cookie
    }

    pub async fn send_write(&mut self, flags: CommandFlags, offset: u64, data: &[u8]) -> u64 {
        let (cookie, mut bytes) = self.encode(CommandCode::WRITE, flags, offset, data.len() as u64);
        bytes.extend(data);
        self.stream.write_all(&bytes).await.expect("a server that listens");
        self.stream.flush().await.expect("a server that listens");
        cookie
    }

    /// Waits for the next complete reply, whichever request it answers.
    pub async fn receive(&mut self) -> Reply {
        self.try_receive().await.expect("the server hung up")
    }

    /// `None` if the server hangs up first.
    pub async fn try_receive(&mut self) -> Option<Reply> {
        let mut reply: Option<Reply> = None;
        loop {
            let header = self.receive_header().await?;
            let (ReplyHeader::Simple { cookie, .. } | ReplyHeader::Chunk { cookie, .. }) = header;
            let reply = reply.get_or_insert_with(|| Reply {
                cookie: cookie.0,
                error: None,
                message: String::new(),
                data: Vec::new(),
                data_bytes: 0,
                extents: Vec::new(),
                statuses: BTreeMap::new(),
            });
            assert_eq!(reply.cookie, cookie.0, "this server sends replies whole");
            match header {
                ReplyHeader::Simple { error, .. } => {
                    let read = self.reads.remove(&cookie.0);
                    reply.error = error;
                    if let (None, Some((_, length))) = (error, read) {
                        assert_eq!(self.style(), ReplyStyle::Simple, "reads come in chunks");
                        reply.data = self.receive_bytes(length).await?;
                    }
                    return Some(reply.clone());
                }
                ReplyHeader::Chunk { flags, code, length, .. } => {
                    let length = usize::try_from(length).expect("a chunk fits");
                    let payload = self.receive_bytes(length).await?;
                    let read = self.reads.get(&cookie.0).copied();
                    add_chunk(reply, decode_chunk(code, &payload).expect("a sound chunk"), read);
                    if flags.contains(weir_nbd::ChunkFlags::DONE) {
                        if let (None, Some((_, length))) =
                            (reply.error, self.reads.remove(&cookie.0))
                        {
                            assert_eq!(reply.data_bytes, length, "every byte once");
                        }
                        return Some(reply.clone());
                    }
                }
            }
        }
    }

    async fn receive_header(&mut self) -> Option<ReplyHeader> {
        loop {
            match decode_reply(self.style(), &self.received).expect("a sound reply") {
                Decoded::Message { message, consumed } => {
                    self.received.drain(..consumed);
                    return Some(message);
                }
                Decoded::NeedMore(_) => self.receive_more().await?,
            }
        }
    }

    async fn receive_bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.received.len() < length {
            self.receive_more().await?;
        }
        Some(self.received.drain(..length).collect())
    }

    async fn receive_more(&mut self) -> Option<()> {
        let bytes = self.stream.read_buf(&mut self.received).await.ok()?;
        (bytes > 0).then_some(())
    }

    /// Sends a request and waits for its reply; nothing else may be in flight.
    pub async fn call(
        &mut self,
        command: CommandCode,
        flags: CommandFlags,
        offset: u64,
        length: u64,
    ) -> Reply {
        let cookie = self.send(command, flags, offset, length).await;
        let reply = self.receive().await;
        assert_eq!(reply.cookie, cookie);
        reply
    }

    pub async fn read(&mut self, offset: u64, length: u64) -> Reply {
        self.call(CommandCode::READ, CommandFlags::default(), offset, length).await
    }

    pub async fn write(&mut self, flags: CommandFlags, offset: u64, data: &[u8]) -> Reply {
        let cookie = self.send_write(flags, offset, data).await;
        let reply = self.receive().await;
        assert_eq!(reply.cookie, cookie);
        reply
    }

    pub async fn flush(&mut self) -> Reply {
        self.call(CommandCode::FLUSH, CommandFlags::default(), 0, 0).await
    }

    pub async fn disconnect(&mut self) {
        self.send(CommandCode::DISC, CommandFlags::default(), 0, 0).await;
    }
}

fn add_chunk(reply: &mut Reply, chunk: Chunk<'_>, read: Option<(u64, usize)>) {
    match chunk {
        Chunk::None => {}
        Chunk::Data { offset, data } => {
            let (start, length) = read.expect("data answers a read");
            let at = usize::try_from(offset - start).expect("within the read");
            reply.data.resize(length, 0);
            reply.data[at..at + data.len()].copy_from_slice(data);
            reply.data_bytes += data.len();
        }
        Chunk::Hole { .. } => panic!("this server sends zeroes as data"),
        Chunk::Status { context, extents } => {
            let before = match context {
                1 => std::mem::replace(&mut reply.extents, extents),
                _ => reply.statuses.insert(context, extents).unwrap_or_default(),
            };
            assert!(before.is_empty(), "one chunk for each context");
        }
        Chunk::Error { code, message, .. } => {
            reply.error = Some(code);
            reply.message = message.to_owned();
        }
    }
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// What the memory behind a test device holds.
pub async fn content(device: &TestDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.memory.read(offset, &mut bytes).await.expect("within the device");
    bytes
}
