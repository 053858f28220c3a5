//! A host with a simulated disk, a store, and a volume on them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::Instant;
use weir_device::{
    BufferPool, Clock, DeviceError, DeviceExt, Env, LocalBoxFuture, Random, SharedBuf, Spawn,
    VolumeId,
};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_log::catalog::{self, VolumeName};
use weir_log::{
    Keys, LeaseSettings, MemoryFrameCache, NodeLease, OpenArgs, Takeover, VolumeOptions,
};
use weir_stack::{EndpointSpec, Stack, StackSpec, StageSpec, TraceSink};
use weir_store::{Faults, Store};

pub(crate) const SIZE: u64 = 1 << 20;

struct SimClock(SimDisk, Instant);

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        Duration::from_secs(1_790_000_000) + self.1.elapsed()
    }
    fn boottime(&self) -> Duration {
        Duration::from_secs(1) + self.1.elapsed()
    }
    fn boot_id(&self) -> [u8; 16] {
        self.0.boot_id()
    }
}

struct Seeded(Cell<u64>);

impl Random for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        for byte in bytes {
            let next = self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0.set(next);
            *byte = next.to_be_bytes()[0];
        }
    }
}

struct OnThisThread;

impl Spawn for OnThisThread {
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(task);
    }
    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::task::spawn_local(task);
    }
}

/// One host.
pub(crate) struct Host {
    disk: SimDisk,
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) env: Env,
    pub(crate) id: VolumeId,
    node: u8,
    pub(crate) options: VolumeOptions,
}

impl Host {
    pub(crate) async fn new() -> Self {
        let disk = SimDisk::new(1, SimDiskOptions::default());
        let faults = Faults::new(2);
        let store = Store::open("memory://").expect("opens").with_faults(faults.clone());
        let env = env(3, &disk);
        let name = name("demo");
        let created = catalog::create_as(&store, &env, &name, SIZE, Takeover::Manual, None);
        let id = created.await.expect("created");
        Self { disk, store, faults, env, id, node: 3, options: VolumeOptions::default() }
    }

    /// Another host with a disk of its own, over the same store.
    pub(crate) fn other(&self) -> Self {
        let disk = SimDisk::new(9, SimDiskOptions::default());
        let (store, faults) = (self.store.clone(), self.faults.clone());
        let options = self.options.clone();
        Self { env: env(9, &disk), disk, store, faults, id: self.id, node: 9, options }
    }

    pub(crate) fn endpoint(&self) -> EndpointSpec {
        let settings = LeaseSettings::of_length(Duration::from_secs(12));
        let node = [self.node; 16];
        let lease = NodeLease::start(self.store.clone(), &self.env, node, "test", settings);
        EndpointSpec::Log(Box::new(OpenArgs {
            store: self.store.clone(),
            id: self.id,
            directory: self.disk.directory(),
            env: self.env.clone(),
            options: self.options.clone(),
            blocks: Arc::new(MemoryFrameCache::new(256 << 10)).into(),
            keys: Keys::default(),
            lease,
            accept_loss: false,
            take_over: false,
            discard_journal: false,
            adopt_journal: false,
            incomplete: false,
            on_wait: None,
        }))
    }

    /// The volume with these stages.
    pub(crate) async fn open(&self, stages: Vec<StageSpec>) -> Rc<Stack> {
        let spec = StackSpec { endpoint: self.endpoint(), stages };
        Box::pin(Stack::open(&self.env, spec)).await.expect("opens").0
    }
}

/// The stages over memory.
pub(crate) async fn in_memory(size: u64, stages: Vec<StageSpec>) -> Rc<Stack> {
    let env = env(7, &SimDisk::new(1, SimDiskOptions::default()));
    let spec = StackSpec { endpoint: EndpointSpec::Memory(size), stages };
    Stack::open(&env, spec).await.expect("memory opens").0
}

fn env(seed: u64, disk: &SimDisk) -> Env {
    Env {
        clock: Rc::new(SimClock(disk.clone(), Instant::now())),
        random: Rc::new(Seeded(Cell::new(seed))),
        spawn: Rc::new(OnThisThread),
        network: Rc::new(weir_device::NoNetwork),
        buffers: BufferPool::new(1 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    }
}

pub(crate) fn name(text: &str) -> VolumeName {
    VolumeName::new(text).expect("valid")
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(36_000), test).await.expect("the test hangs");
    });
}

pub(crate) async fn write(stack: &Stack, offset: u64, byte: u8) -> Result<(), DeviceError> {
    stack.write(offset, SharedBuf::copy_of(&[byte; 4096])).await
}

/// The first byte of what is there, all of it being the same.
pub(crate) async fn read(stack: &Stack, offset: u64) -> Result<u8, DeviceError> {
    let mut buf = [0; 4096];
    stack.read(offset, &mut buf).await?;
    assert!(buf.iter().all(|byte| *byte == buf[0]), "torn");
    Ok(buf[0])
}

/// Keeps a trace in memory.
#[derive(Default)]
pub(crate) struct MemorySink(pub(crate) RefCell<Vec<u8>>);

impl TraceSink for MemorySink {
    fn append<'a>(&'a self, lines: &'a [u8]) -> LocalBoxFuture<'a, Result<(), DeviceError>> {
        Box::pin(async move {
            self.0.borrow_mut().extend_from_slice(lines);
            Ok(())
        })
    }
}
