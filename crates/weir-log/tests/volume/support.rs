//! A host with a simulated disk, a store, and a volume on them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::LocalSet;
use tokio::time::Instant;
use weir_device::{
    BufferPool, Clock, Device, DeviceError, DeviceExt, Env, ErrorKind, FlushScope, IoHeader,
    Leases, Operation, Random, SharedBuf, Spawn, VolumeId,
};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_journal::{JournalConfig, ManifestSeen};
use weir_log::catalog::VolumeName;
use weir_log::format::manifest::Manifest;
use weir_log::{
    BatchLimits, CheckOptions, CheckReport, CheckpointLimits, FixedKeys, Keys, LeaseSettings,
    LogError, LogVolume, MemoryFrameCache, NodeLease, Obstacle, OpenArgs, OpenReport, Reopening,
    SnapshotView, Takeover, VolumeOptions, catalog, check,
};
use weir_seal::WrappingKey;
use weir_store::{Faults, Store};

pub(crate) const SIZE: u64 = 1 << 20;

struct SimClock {
    disk: SimDisk,
    started: Instant,
    /// Time that this clock does not know of.
    hidden: Rc<Cell<Duration>>,
}

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        Duration::from_secs(1_790_000_000) + self.started.elapsed()
    }
    fn boottime(&self) -> Duration {
        Duration::from_secs(1) + self.started.elapsed() - self.hidden.get()
    }
    fn boot_id(&self) -> [u8; 16] {
        self.disk.boot_id()
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
        tokio::task::spawn_local(aborting(task));
    }
    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::task::spawn_local(aborting(task));
    }
}

/// Ends the process where it is dropped, since a task panicked: the test that runs it would not learn of that.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A task whose panic ends the process, as it does in the product.
async fn aborting(mut task: Pin<Box<dyn Future<Output = ()> + '_>>) {
    std::future::poll_fn(|cx| {
        let abort = Abort;
        let polled = task.as_mut().poll(cx);
        std::mem::forget(abort);
        polled
    })
    .await;
}

pub(crate) struct Host {
    pub(crate) disk: SimDisk,
    pub(crate) store: Store,
    /// The same without this host's gate.
    pub(crate) open_store: Store,
    pub(crate) faults: Faults,
    pub(crate) env: Env,
    pub(crate) hidden: Rc<Cell<Duration>>,
    pub(crate) node: [u8; 16],
    pub(crate) id: VolumeId,
    pub(crate) keys: Keys,
    pub(crate) options: VolumeOptions,
}

pub(crate) fn options() -> VolumeOptions {
    VolumeOptions {
        batch: BatchLimits {
            bytes: 32 << 10,
            age: Duration::from_millis(200),
            rpo: Duration::from_secs(1),
            small_bytes: 1 << 10,
        },
        journal: JournalConfig {
            segment_bytes: 128 << 10,
            segments_max: 6,
            record_bytes_max: 64 << 10,
            ..JournalConfig::default()
        },
        checkpoint: CheckpointLimits { objects_min: 4, data_per_map_byte: 0, objects_max: 8 },
        ..VolumeOptions::default()
    }
}

/// Keys of which each has only one byte.
pub(crate) fn keys(bytes: &[u8]) -> Keys {
    let keys = bytes.iter().map(|byte| WrappingKey::of([*byte; 32])).collect();
    Keys::from(Arc::new(FixedKeys(keys)))
}

/// Length of every host's lease here.
pub(crate) const LEASE: Duration = Duration::from_secs(12);

fn env(seed: u64, disk: &SimDisk, hidden: &Rc<Cell<Duration>>) -> Env {
    let (disk, started, hidden) = (disk.clone(), Instant::now(), Rc::clone(hidden));
    Env {
        clock: Rc::new(SimClock { disk, started, hidden }),
        random: Rc::new(Seeded(Cell::new(seed))),
        spawn: Rc::new(OnThisThread),
        network: Rc::new(weir_device::NoNetwork),
        buffers: BufferPool::new(1 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    }
}

impl Host {
    pub(crate) async fn new() -> Self {
        Self::over("memory://", false).await
    }

    /// A host with an encrypted volume.
    pub(crate) async fn encrypted() -> Self {
        Self::over("memory://", true).await
    }

    /// A host with a volume in this store.
    pub(crate) async fn over(url: &str, encrypt: bool) -> Self {
        let disk = SimDisk::new(1, SimDiskOptions::default());
        let faults = Faults::new(2);
        let store = Store::open(url).expect("opens").with_faults(faults.clone());
        let hidden = Rc::default();
        let env = env(3, &disk, &hidden);
        let name = catalog::VolumeName::new("demo").expect("valid");
        let keys = keys(&[0x0f]);
        let encryption = match encrypt {
            true => Some(keys.encryption(&env).await.expect("there is a key")),
            false => None,
        };
        let takeover = Takeover::Manual;
        let created = catalog::create_as(&store, &env, &name, SIZE, takeover, encryption);
        let id = created.await.expect("created");
        let (open_store, node, options) = (store.clone(), [3; 16], options());
        Self { disk, store, open_store, faults, env, hidden, node, id, keys, options }
    }

    /// Another host with a disk of its own, over the same store.
    pub(crate) fn other(&self, seed: u64) -> Self {
        let disk = SimDisk::new(seed, SimDiskOptions::default());
        let hidden = Rc::default();
        Self {
            env: env(seed, &disk, &hidden),
            hidden,
            node: [u8::try_from(seed).expect("small seeds"); 16],
            disk,
            store: self.open_store.clone(),
            open_store: self.open_store.clone(),
            faults: self.faults.clone(),
            id: self.id,
            keys: self.keys.clone(),
            options: self.options.clone(),
        }
    }

    /// Cuts this host off the store alone, from its next process on.
    pub(crate) fn with_gate(mut self) -> (Self, Faults) {
        let gate = Faults::new(4);
        self.store = self.store.with_faults(gate.clone());
        (self, gate)
    }

    /// A checkpoint is begun after so many objects, whatever the size of the map.
    pub(crate) fn checkpoint_every(&mut self, objects: u64) {
        let checkpoint = &mut self.options.checkpoint;
        (checkpoint.objects_min, checkpoint.objects_max) = (objects, objects);
    }

    /// As of a process that begins now.
    pub(crate) fn args(&self) -> OpenArgs {
        let settings = LeaseSettings::of_length(LEASE);
        let lease = NodeLease::start(self.store.clone(), &self.env, self.node, "test", settings);
        OpenArgs {
            store: self.store.clone(),
            id: self.id,
            directory: self.disk.directory(),
            env: self.env.clone(),
            options: self.options.clone(),
            blocks: Arc::new(MemoryFrameCache::new(256 << 10)).into(),
            keys: self.keys.clone(),
            lease,
            accept_loss: false,
            take_over: false,
            discard_journal: false,
            adopt_journal: false,
            incomplete: false,
            on_wait: None,
        }
    }

    pub(crate) async fn open(&self) -> (Rc<LogVolume>, OpenReport) {
        self.try_open(|_| {}).await.expect("opens")
    }

    pub(crate) async fn try_open(
        &self,
        change: impl FnOnce(&mut OpenArgs),
    ) -> Result<(Rc<LogVolume>, OpenReport), LogError> {
        let mut args = self.args();
        change(&mut args);
        Box::pin(LogVolume::open(args)).await
    }

    /// Opens in a process of its own, does `work`, and is killed in the middle of whatever goes on.
    pub(crate) async fn in_killed_process<F, T>(&self, work: impl FnOnce(Rc<LogVolume>) -> F) -> T
    where
        F: Future<Output = T>,
    {
        let process = LocalSet::new();
        let result = process
            .run_until(async {
                let (volume, _) = self.open().await;
                work(volume).await
            })
            .await;
        self.disk.crash_process();
        drop(process);
        result
    }
}

/// Opens `openings` times in a process that is cut off at another moment each time, and calls `look` after each. Some
/// come about, none is refused, and in the end what was acknowledged before is still there, with its journal.
pub(crate) async fn open_and_cut_off(host: &Host, openings: u32, mut look: impl AsyncFnMut()) {
    host.in_killed_process(|volume| async move {
        write(&volume, 0, &[1; 4096]).await.expect("written");
        volume.flush_remote().await.expect("stored");
        write(&volume, 0, &[2; 4096]).await.expect("written");
        flush(&volume).await.expect("flushed");
    })
    .await;
    let answer = Duration::from_millis(100);
    host.faults.change(|plan| plan.latency = answer..=answer);
    let mut opened = 0;
    for step in 0..openings {
        let process = LocalSet::new();
        let limit = (1 + step % 50) * answer;
        let done = process.run_until(tokio::time::timeout(limit, host.try_open(|_| {}))).await;
        match done {
            Err(_) => {}
            Ok(Ok(_)) => opened += 1,
            // Where a version of an opening before landed late, it began again.
            Ok(Err(error)) => panic!("{error}"),
        }
        host.disk.crash_power();
        drop(process);
        // What was on its way lands.
        tokio::time::sleep(2 * answer).await;
        look().await;
    }
    assert!(opened > 0, "the longest are long enough");
    host.faults.calm();
    let (volume, report) = host.open().await;
    assert!(!report.new_journal);
    expect_bytes(&volume, 0, &[2; 4096]).await;
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

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

pub(crate) async fn write(volume: &LogVolume, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
    volume.write(offset, SharedBuf::copy_of(data)).await
}

pub(crate) async fn read(
    volume: &LogVolume,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, DeviceError> {
    let mut buf = vec![0xee; len];
    volume.read(offset, &mut buf).await.map(|()| buf)
}

/// What a reply of now depends on.
pub(crate) async fn leases(volume: &LogVolume) -> Leases {
    let read = Operation::Read { offset: 0, len: 0 };
    volume.call(IoHeader::internal(), read).await.expect("read").leases
}

pub(crate) async fn discard(volume: &LogVolume, offset: u64, len: u64) {
    volume.discard(offset, len).await.expect("discarded");
}

pub(crate) async fn flush(volume: &LogVolume) -> Result<(), DeviceError> {
    volume.flush(FlushScope::Local).await
}

/// What [`fill`] writes. Most blocks compress, each to another length.
pub(crate) fn filling(seed: u64) -> Vec<u8> {
    let mut data = pattern(seed, usize::try_from(SIZE).expect("small"));
    for (number, block) in data.chunks_mut(4096).enumerate().filter(|(n, _)| n % 5 != 0) {
        block[500 + number * 613 % 3000..].fill(0x77);
    }
    data
}

/// Fills the whole volume in writes of 5,000 bytes.
pub(crate) async fn fill(volume: &LogVolume, seed: u64) -> Vec<u8> {
    let data = filling(seed);
    let size = data.len();
    for start in (0..size).step_by(5000) {
        let end = (start + 5000).min(size);
        write(volume, start as u64, &data[start..end]).await.expect("written");
    }
    data
}

/// Fills the volume and leaves it closed, so that its newest root shows all of it.
pub(crate) async fn filled(host: &Host, seed: u64) -> Vec<u8> {
    let (volume, _) = host.open().await;
    let data = fill(&volume, seed).await;
    volume.close().await.expect("closed");
    data
}

pub(crate) async fn expect_bytes(volume: &LogVolume, offset: u64, expected: &[u8]) {
    let there = read(volume, offset, expected.len()).await.expect("read");
    if let Some(at) = (0..there.len()).find(|i| there[*i] != expected[*i]) {
        panic!("byte {} is {:#x}, not {:#x}", offset + at as u64, there[at], expected[at]);
    }
}

/// A check of the volume with its keys.
pub(crate) async fn try_check(host: &Host) -> Result<CheckReport, LogError> {
    check(&host.store, &host.env, (host.id, &host.keys), &CheckOptions::default(), |_| {}).await
}

pub(crate) async fn checked(host: &Host) -> CheckReport {
    try_check(host).await.expect("the store answers")
}

/// Nothing damaged, nothing forgotten.
pub(crate) async fn expect_whole(host: &Host) {
    let report = checked(host).await;
    assert_eq!((report.damage.len(), report.orphans.len()), (0, 0), "{report:?}");
}

/// All that is in a store, to set it back to.
pub(crate) struct Backup(Vec<(String, Bytes)>);

impl Backup {
    pub(crate) async fn of(store: &Store) -> Self {
        let mut files = Vec::new();
        for listed in store.list("", None).await.expect("listed") {
            let bytes = store.get(&listed.key).await.expect("read");
            files.push((listed.key, bytes));
        }
        Self(files)
    }

    /// Puts it in the place of everything that is there.
    pub(crate) async fn restore(&self, store: &Store) {
        for listed in store.list("", None).await.expect("listed") {
            store.delete(&listed.key).await.expect("deleted");
        }
        for (key, bytes) in &self.0 {
            store.put_create(key, vec![bytes.clone()]).await.expect("put");
        }
    }
}

/// Key of one of the volume's objects in the store.
pub(crate) fn object_key(host: &Host, sequence: u64, epoch: u64) -> String {
    format!("{}/log/{sequence:016x}-{epoch:016x}", host.id)
}

/// The newest version of the volume's manifest in the store.
pub(crate) async fn newest_manifest(host: &Host) -> Manifest {
    let listed = host.open_store.list(&format!("{}/manifest/", host.id), None).await;
    let newest = listed.expect("listed").pop().expect("there is one");
    serde_json::from_slice(&host.open_store.get(&newest.key).await.expect("read"))
        .expect("a manifest")
}

/// What keeps the volume of a host from being opened again under this name.
pub(crate) async fn obstacle(
    host: &Host,
    called: &str,
    known: Option<ManifestSeen>,
) -> Option<Obstacle> {
    let (called, keys) = (name(called), Keys::default());
    let volume = Reopening { id: host.id, name: &called, known, keys: Some(&keys) };
    let found = weir_log::obstacle_to_opening(&host.store, &host.env, volume).await;
    found.expect("it answers")
}

/// Puts `bytes` in the place of what the store has under `key`.
pub(crate) async fn replace(host: &Host, key: &str, bytes: impl Into<Bytes>) {
    host.store.delete(key).await.expect("deleted");
    host.store.put_create(key, vec![bytes.into()]).await.expect("put");
}

/// Keys of the volume's objects in the store.
pub(crate) async fn objects(host: &Host) -> Vec<String> {
    let prefix = format!("{}/log/", host.id);
    host.store.list(&prefix, None).await.expect("listed").into_iter().map(|l| l.key).collect()
}

/// The keys of the volume's objects and manifests, and of all renewals.
pub(crate) async fn stored(host: &Host) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for prefix in [format!("{}/", host.id), "nodes/".to_owned()] {
        let listed = host.open_store.list(&prefix, None).await.expect("listed");
        keys.extend(listed.into_iter().map(|object| object.key));
    }
    keys
}

pub(crate) fn name(text: &str) -> VolumeName {
    VolumeName::new(text).expect("valid")
}

/// What a snapshot shows, read from the store alone.
pub(crate) async fn show(host: &Host, snapshot: &str) -> Vec<u8> {
    let cache = Arc::new(MemoryFrameCache::new(256 << 10));
    let deadline = Duration::from_secs(30);
    let (store, env, volume) = (&host.store, &host.env, (host.id, &host.keys));
    let view =
        SnapshotView::open(store, env, volume, &name(snapshot), cache.into(), deadline).await;
    let view = view.expect("opens");
    let mut bytes = vec![0xee; usize::try_from(view.size()).expect("small")];
    view.read(0, &mut bytes).await.expect("read");
    let refused = view.write(0, SharedBuf::copy_of(&[1])).await;
    assert_eq!(refused.expect_err("takes no writes").kind(), ErrorKind::ReadOnly);
    bytes
}
