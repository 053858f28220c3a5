//! A journal on a simulated disk, under a paused clock.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{
    AlignedBuf, BufferPool, Clock, Env, LocalBoxFuture, Random, SharedBuf, Spawn, VolumeId,
};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_journal::{
    AcceptLoss, Epoch, Identity, Journal, JournalConfig, JournalError, JournalId, JournalPos,
    OpeningId, Payload, PlacedPiece, RecordSeq, RecordSink, Recovered, WriteNumber,
};
use weir_seal::DataKey;

pub(crate) const NAME: &str = "journal";
pub(crate) const VOLUME: VolumeId = VolumeId([7; 16]);
pub(crate) const OPENING: OpeningId = OpeningId([7; 16]);
pub(crate) const IDENTITY: Identity = Identity { volume: VOLUME, journal: JournalId([9; 16]) };
pub(crate) const SEGMENT: u64 = 64 << 10;

pub(crate) struct SimClock(pub(crate) SimDisk);

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        Duration::ZERO
    }
    fn boottime(&self) -> Duration {
        Duration::ZERO
    }
    fn boot_id(&self) -> [u8; 16] {
        self.0.boot_id()
    }
}

/// Small and seeded; good enough to choose test cases.
pub(crate) struct TestRandom(Cell<u64>);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }
}

impl Random for TestRandom {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

pub(crate) struct LocalSpawn;

impl Spawn for LocalSpawn {
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(task);
    }
    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::task::spawn_local(task);
    }
}

pub(crate) fn env_of(disk: &SimDisk) -> Env {
    env_drawing(disk, 1)
}

/// An environment that draws the random numbers of this seed.
pub(crate) fn env_drawing(disk: &SimDisk, seed: u64) -> Env {
    Env {
        clock: Rc::new(SimClock(disk.clone())),
        random: Rc::new(TestRandom::new(seed)),
        spawn: Rc::new(LocalSpawn),
        network: Rc::new(weir_device::NoNetwork),
        buffers: BufferPool::new(1 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    }
}

/// Runs a test on a paused clock.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

pub(crate) fn small_config() -> JournalConfig {
    JournalConfig {
        segment_bytes: SEGMENT,
        segments_max: 4,
        record_bytes_max: 64 << 10,
        resident_bytes_max: 1 << 20,
        queue_bytes_max: 1 << 20,
    }
}

/// Quick and predictable: one millisecond for every operation.
pub(crate) fn steady_disk(seed: u64) -> SimDisk {
    disk_that_takes(seed, Duration::from_millis(1))
}

/// Predictable: so long for every operation.
pub(crate) fn disk_that_takes(seed: u64, latency: Duration) -> SimDisk {
    SimDisk::new(
        seed,
        SimDiskOptions {
            latency_min: latency,
            latency_max: latency,
            slow_one_in: 0,
            ..SimDiskOptions::default()
        },
    )
}

thread_local! {
    static KEY: RefCell<Option<DataKey>> = const { RefCell::new(None) };
}

/// The journals of this test are sealed from here on, or plain.
pub(crate) fn seal_journals(sealed: bool) {
    KEY.set(sealed.then(|| DataKey::draw(|bytes| bytes.fill(0x77))));
}

/// The key of this test's journals, if they are sealed.
pub(crate) fn key() -> Option<DataKey> {
    KEY.with_borrow(Option::clone)
}

pub(crate) async fn create(disk: &SimDisk, config: JournalConfig) -> Journal {
    let (directory, key, env) = (disk.directory(), key(), env_of(disk));
    let created = Journal::create(&directory, NAME, IDENTITY, key.as_ref(), config, &env);
    let journal = created.await.expect("a fresh journal").journal;
    journal.begin_epoch(Epoch(1), OPENING).await.expect("first epoch");
    journal
}

pub(crate) async fn try_recover(
    disk: &SimDisk,
    config: JournalConfig,
    accept: AcceptLoss,
) -> Result<Recovered, JournalError> {
    let (directory, key, env) = (disk.directory(), key(), env_of(disk));
    Journal::recover(&directory, NAME, VOLUME, key.as_ref(), config, accept, &env).await
}

pub(crate) async fn recover(disk: &SimDisk, config: JournalConfig) -> Recovered {
    try_recover(disk, config, AcceptLoss::No).await.expect("recovery")
}

/// Bytes that tell which write they belong to and where in it they are.
pub(crate) fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    TestRandom::new(id).fill(&mut bytes);
    bytes
}

pub(crate) fn shared(bytes: &[u8]) -> SharedBuf {
    SharedBuf::copy_of(bytes)
}

/// The same bytes in memory that is not aligned.
pub(crate) fn shared_unaligned(bytes: &[u8]) -> SharedBuf {
    let mut buf = AlignedBuf::zeroed(bytes.len() + 1);
    buf[1..].copy_from_slice(bytes);
    buf.freeze().slice(1, bytes.len())
}

pub(crate) async fn write(journal: &Journal, offset: u64, id: u64, len: usize) {
    let payload = Payload::Data(shared(&pattern(id, len)));
    journal.append(offset, payload, len as u64).await.expect("append");
}

/// Remembers what it hears.
#[derive(Default)]
pub(crate) struct Ear {
    pub(crate) no_space: std::cell::Cell<u32>,
    pub(crate) pieces: RefCell<Vec<PlacedPiece>>,
    pub(crate) records: RefCell<Vec<RecordSeq>>,
    pub(crate) forgotten: RefCell<Vec<(JournalPos, JournalPos)>>,
}

impl RecordSink for Ear {
    fn on_no_space(&self) {
        self.no_space.set(self.no_space.get() + 1);
    }

    fn on_durable(&self, record: RecordSeq, pieces: &[PlacedPiece]) {
        self.records.borrow_mut().push(record);
        self.pieces.borrow_mut().extend_from_slice(pieces);
    }

    fn forget(&self, start: JournalPos, end: JournalPos) -> LocalBoxFuture<'_, ()> {
        self.forgotten.borrow_mut().push((start, end));
        Box::pin(async {})
    }
}

pub(crate) fn listen(journal: &Journal) -> Rc<Ear> {
    let ear = Rc::new(Ear::default());
    journal.set_sink(ear.clone());
    ear
}

pub(crate) async fn read(journal: &Journal, piece: &PlacedPiece) -> Result<Vec<u8>, JournalError> {
    let mut bytes = vec![0; usize::try_from(piece.len).expect("small")];
    let _pin = journal.pin(piece.position);
    journal.read(piece.position, &mut bytes).await?;
    Ok(bytes)
}

pub(crate) fn last_write(ear: &Ear) -> WriteNumber {
    ear.pieces.borrow().last().map_or(WriteNumber(0), |piece| piece.write)
}

pub(crate) async fn milliseconds(count: u64) {
    tokio::time::sleep(Duration::from_millis(count)).await;
}
