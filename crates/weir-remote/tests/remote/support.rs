//! A server whose memory can be lost, on a simulated network.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use weir_device::{
    Address, Body, ByteStream, Device, DeviceError, DeviceExt, DeviceInfo, Env, ErrorKind,
    IoHeader, MemoryDevice, Network, Operation, OperationKind, Reply, SharedBuf, SourceId,
    VolumeId, testing,
};
use weir_frontend::nbd::{ConnectionOptions, Export, Exports, Given, Instance, serve_connection};
use weir_net::sim::{SimNetwork, SimNetworkOptions};
use weir_remote::{RemoteArgs, RemoteUrl, RemoteVolume};

pub(crate) const SIZE: u64 = 300_001;

/// Time for a call.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A device that keeps what was flushed when it crashes, and of the rest what the dice say.
pub(crate) struct Volatile {
    now: RefCell<Rc<MemoryDevice>>,
    stable: RefCell<Rc<MemoryDevice>>,
    pending: RefCell<Vec<Operation>>,
    /// What it was asked for, in order.
    pub(crate) calls: RefCell<Vec<(OperationKind, u64)>>,
    gate: watch::Sender<bool>,
    /// The next change waits for it.
    held: RefCell<Option<oneshot::Receiver<()>>>,
    pub(crate) failing: Cell<Option<(OperationKind, ErrorKind)>>,
    /// Only what begins there fails.
    pub(crate) failing_at: Cell<Option<u64>>,
    dice: Cell<u64>,
}

async fn copy(from: &MemoryDevice, size: u64) -> Rc<MemoryDevice> {
    let both = usize::try_from(from.size().min(size)).expect("a small device");
    let mut bytes = vec![0; both];
    from.read(0, &mut bytes).await.expect("memory works");
    let copy = MemoryDevice::new(size);
    copy.write(0, SharedBuf::copy_of(&bytes)).await.expect("memory works");
    Rc::new(copy)
}

impl Volatile {
    fn new(size: u64, seed: u64) -> Self {
        Self {
            now: RefCell::new(Rc::new(MemoryDevice::new(size))),
            stable: RefCell::new(Rc::new(MemoryDevice::new(size))),
            pending: RefCell::default(),
            calls: RefCell::default(),
            gate: watch::Sender::new(true),
            held: RefCell::default(),
            failing: Cell::new(None),
            failing_at: Cell::new(None),
            dice: Cell::new(seed | 1),
        }
    }

    fn roll(&self) -> u64 {
        self.dice.set(self.dice.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        self.dice.get() >> 33
    }

    /// Calls wait until the gate is opened again.
    pub(crate) fn hold(&self, hold: bool) {
        self.gate.send_replace(!hold);
    }

    /// The next change waits until the key is sent or dropped; later ones do not.
    pub(crate) fn hold_next(&self) -> oneshot::Sender<()> {
        let (key, held) = oneshot::channel();
        self.held.replace(Some(held));
        key
    }

    async fn persist(&self) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        let stable = Rc::clone(&self.stable.borrow());
        for operation in pending {
            stable.internal(operation).await.expect("memory works");
        }
    }

    /// The power went away, and the device has this size when it comes back.
    pub(crate) async fn crash(&self, size: u64) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        let kept: Vec<_> = pending.into_iter().filter(|_| self.roll().is_multiple_of(2)).collect();
        self.pending.replace(kept);
        self.persist().await;
        let stable = Rc::clone(&self.stable.borrow());
        let (now, stable) = (copy(&stable, size).await, copy(&stable, size).await);
        (*self.now.borrow_mut(), *self.stable.borrow_mut()) = (now, stable);
    }

    /// A byte as the server has it.
    pub(crate) async fn byte(&self, offset: u64) -> u8 {
        let now = Rc::clone(&self.now.borrow());
        let mut byte = [0];
        now.read(offset, &mut byte).await.expect("memory works");
        byte[0]
    }

    pub(crate) fn count(&self, kind: OperationKind) -> usize {
        self.calls.borrow().iter().filter(|(found, _)| *found == kind).count()
    }
}

impl Device for Volatile {
    fn info(&self) -> DeviceInfo {
        self.now.borrow().info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let kind = operation.kind();
        self.calls.borrow_mut().push((kind, operation.span().0));
        self.gate.subscribe().wait_for(|open| *open).await.expect("the device has the gate");
        let held = if kind == OperationKind::Write { self.held.take() } else { None };
        if let Some(held) = held {
            let _ = held.await;
        }
        if let Some((failing, error)) = self.failing.get()
            && failing == kind
            && self.failing_at.get().is_none_or(|offset| offset == operation.span().0)
        {
            return Err(DeviceError::new(error, "the test asked for it"));
        }
        if kind == OperationKind::Flush {
            self.persist().await;
            return Ok(Reply::new(Body::Done));
        }
        let now = Rc::clone(&self.now.borrow());
        let reply = now.call(io, operation.clone()).await?;
        if !matches!(kind, OperationKind::Read | OperationKind::Extents) {
            let fua = matches!(
                &operation,
                Operation::Write { fua: true, .. } | Operation::Batch { fua: true, .. }
            );
            self.pending.borrow_mut().push(operation);
            if fua {
                self.persist().await;
            }
        }
        Ok(reply)
    }
}

struct Shelf {
    device: Rc<Volatile>,
    instance: Option<Instance>,
    given: Rc<Cell<Option<Given>>>,
}

impl Exports for Shelf {
    type Device = Volatile;

    fn find(&self, name: &str) -> Option<Export<Volatile>> {
        matches!(name, "disk" | "frozen").then(|| Export {
            name: name.to_owned(),
            description: String::new(),
            device: Rc::clone(&self.device),
            volume: VolumeId([9; 16]),
            read_only: name == "frozen",
            history: None,
        })
    }

    fn instance(&self) -> Option<Instance> {
        self.instance
    }

    async fn keep_given(&self, given: Option<Given>) -> Result<(), DeviceError> {
        self.given.set(given);
        Ok(())
    }

    fn list(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
}

/// The server and the network to it.
pub(crate) struct Server {
    pub(crate) network: SimNetwork,
    pub(crate) device: Rc<Volatile>,
    /// Whether it is a Weir, which tells its openings apart.
    pub(crate) is_weir: Cell<bool>,
    /// The smallest unit and the longest payload that it says, of connections that begin from now on.
    units: Rc<Cell<Option<(u32, u32)>>>,
    openings: Cell<u8>,
    clients: Cell<u8>,
    /// What it keeps of exclusive access over its restarts.
    given: Rc<Cell<Option<Given>>>,
    at: Address,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl Server {
    /// A server of NBD as any other.
    pub(crate) async fn start(seed: u64) -> Self {
        Self::start_as(seed, false).await
    }

    /// One that takes whole blocks of `minimum` bytes only, and no payload longer than this.
    pub(crate) async fn start_with_blocks(seed: u64, minimum: u32, payload_max: u32) -> Self {
        let server = Self::start(seed).await;
        server.units.set(Some((minimum, payload_max)));
        server.device.crash(u64::from(minimum) * 64).await;
        server
    }

    /// Another Weir.
    pub(crate) async fn start_weir(seed: u64) -> Self {
        Self::start_as(seed, true).await
    }

    async fn start_as(seed: u64, is_weir: bool) -> Self {
        let server = Self {
            network: SimNetwork::new(seed, SimNetworkOptions::default()),
            device: Rc::new(Volatile::new(SIZE, seed)),
            is_weir: Cell::new(is_weir),
            units: Rc::default(),
            openings: Cell::new(0),
            clients: Cell::new(0),
            given: Rc::default(),
            at: Address::Tcp("server:10809".to_owned()),
            task: RefCell::default(),
        };
        server.begin().await;
        server
    }

    /// Serves; nobody may be connected from before.
    pub(crate) async fn begin(&self) {
        let mut listener = self.network.listen(&self.at).await.expect("nobody else listens");
        self.openings.set(self.openings.get() + 1);
        let instance = self.is_weir.get().then_some([self.openings.get(); 16]);
        let (device, given) = (Rc::clone(&self.device), Rc::clone(&self.given));
        let options = ConnectionOptions::new(SourceId(7), "test");
        options.access.restore("disk", given.get());
        let shelf = Rc::new(Shelf { device, instance, given });
        let units = Rc::clone(&self.units);
        let task = tokio::task::spawn_local(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a client");
                let (exports, options) = (Rc::clone(&shelf), options.clone());
                let stream = Says { stream: accepted.stream, units: units.get() };
                let serving =
                    serve_connection(stream, exports, options, std::future::pending::<()>());
                connections.spawn_local(serving);
            }
        });
        self.task.replace(Some(task));
    }

    /// Ends as by `kill -9`: everybody is disconnected, nobody listens.
    pub(crate) async fn kill(&self) {
        let task = self.task.borrow_mut().take().expect("it serves");
        task.abort();
        let _ = task.await;
        for connection in self.network.connections() {
            self.network.reset(connection);
        }
    }

    /// Loses its power, and comes back.
    pub(crate) async fn reboot(&self) {
        self.kill().await;
        self.device.crash(SIZE).await;
        self.begin().await;
    }

    /// Loses all connections.
    pub(crate) fn cut(&self) {
        for connection in self.network.connections() {
            self.network.reset(connection);
        }
    }

    /// A client that sends again nothing that it was not told to.
    pub(crate) async fn open_plain(&self) -> Rc<RemoteVolume> {
        self.open(|args| args.resend = false).await
    }

    pub(crate) async fn open(&self, change: impl FnOnce(&mut RemoteArgs)) -> Rc<RemoteVolume> {
        self.try_open("disk", change).await.expect("it opens")
    }

    pub(crate) async fn try_open(
        &self,
        export: &str,
        change: impl FnOnce(&mut RemoteArgs),
    ) -> Result<Rc<RemoteVolume>, DeviceError> {
        let url = RemoteUrl::parse(&format!("nbd://server/{export}")).expect("an address");
        let mut args = RemoteArgs {
            url,
            tls: None,
            connections: 1,
            deadline: DEADLINE,
            resend: true,
            exclusive: false,
        };
        change(&mut args);
        self.clients.set(self.clients.get() + 1);
        RemoteVolume::open(env(&self.network, self.clients.get()), args).await
    }
}

/// What the server sends, with other units than Weir's in what it says of the export.
struct Says {
    stream: Box<dyn ByteStream>,
    units: Option<(u32, u32)>,
}

/// The units as Weir says them: the length and the number of the information, and the smallest unit.
const SAYS_BLOCKS: [u8; 10] = [0, 0, 0, 14, 0, 3, 0, 0, 0, 1];

impl AsyncWrite for Says {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let found = buf.windows(SAYS_BLOCKS.len()).position(|window| window == SAYS_BLOCKS);
        let (Some(at), Some((minimum, payload_max))) = (found, self.units) else {
            return Pin::new(&mut self.stream).poll_write(cx, buf);
        };
        let mut said = buf.to_vec();
        said[at + 6..at + 10].copy_from_slice(&minimum.to_be_bytes());
        said[at + 14..at + 18].copy_from_slice(&payload_max.to_be_bytes());
        Pin::new(&mut self.stream).poll_write(cx, &said)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Says {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

/// What a client works with; each has random bytes of its own.
fn env(network: &SimNetwork, client: u8) -> Env {
    Env { network: Rc::new(network.clone()), ..testing::env(client) }
}

/// Runs a test on one thread with a clock that jumps when everything waits.
pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

pub(crate) async fn byte(volume: &RemoteVolume, offset: u64) -> Result<u8, DeviceError> {
    let mut byte = [0];
    volume.read(offset, &mut byte).await.map(|()| byte[0])
}

pub(crate) async fn fill(
    volume: &RemoteVolume,
    offset: u64,
    len: usize,
    mark: u8,
) -> Result<(), DeviceError> {
    volume.write(offset, SharedBuf::copy_of(&vec![mark; len])).await
}
