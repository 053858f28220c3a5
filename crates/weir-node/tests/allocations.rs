//! In steady state the thread of a volume asks the allocator for nothing: not for a write of 4 KiB on its way from the
//! socket to the journal and back, nor for a read.
//!
//! Now and then it must: a batch is sealed and its bytes are listed for the upload, a segment of the journal begins. So
//! operations are counted in windows far smaller than a batch. Most must be free of allocations, and all of them
//! together must come to less than one in twenty operations.
//!
//! Alone in its binary: the counter is the process's allocator.
#![allow(unsafe_code, reason = "a global allocator that counts; it only passes calls on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use weir_log::catalog::VolumeName;
use weir_log::{CollectLimits, VolumeOptions};
use weir_node::{
    ApiPlace, Closing, Consent, DataDirectory, EndpointKind, Home, Inherited, LimitSettings,
    NbdAddress, Node, NodeConfig, ServiceOptions, Stages, VolumeSet, VolumeSpec,
};

struct Counting;

/// The thread whose allocations count; 0 before there is one.
static COUNTED_THREAD: AtomicI32 = AtomicI32::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: Cell<i32> = const { Cell::new(0) };
}

fn count() {
    let counted = COUNTED_THREAD.load(Ordering::Relaxed);
    if counted == 0 {
        return;
    }
    let this = THREAD.get();
    let this = if this == 0 { rustix::thread::gettid().as_raw_nonzero().get() } else { this };
    THREAD.set(this);
    if this == counted {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; the counter touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on; `pointer` came from the system.
        unsafe { System.realloc(pointer, layout, len) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above with the same layout, which came from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;
const VOLUME_BLOCKS: u64 = 4096;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// A client that speaks just enough of the protocol.
struct Client {
    stream: UnixStream,
    random: u64,
}

impl Client {
    fn connect(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the socket listens");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        // Fixed newstyle without zeroes; GO without wishes for information.
        let name = export.as_bytes();
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT");
        hello.extend(7_u32.to_be_bytes());
        hello.extend((u32::try_from(name.len()).expect("short") + 6).to_be_bytes());
        hello.extend(u32::try_from(name.len()).expect("short").to_be_bytes());
        hello.extend(name);
        hello.extend(0_u16.to_be_bytes());
        stream.write_all(&hello).expect("the server listens");
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).expect("an answer to GO");
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four"));
            let mut data = vec![0; usize::try_from(word(16)).expect("short")];
            stream.read_exact(&mut data).expect("an answer to GO");
            match word(12) {
                1 => return Self { stream, random: 1 },
                3 => {}
                other => panic!("GO was answered with {other:#x}"),
            }
        }
    }

    fn next_block(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % VOLUME_BLOCKS
    }

    /// Sends `depth` requests for random blocks in one call and waits for all replies.
    fn round(&mut self, command: u16, depth: usize) {
        let mut requests = Vec::with_capacity(depth * (28 + BLOCK));
        for cookie in 0..depth as u64 {
            requests.extend(0x2560_9513_u32.to_be_bytes());
            requests.extend(0_u16.to_be_bytes());
            requests.extend(command.to_be_bytes());
            requests.extend(cookie.to_be_bytes());
            requests.extend((self.next_block() * BLOCK as u64).to_be_bytes());
            requests.extend(4096_u32.to_be_bytes());
            if command == WRITE {
                requests.extend([cookie.to_le_bytes()[0]; BLOCK]);
            }
        }
        self.stream.write_all(&requests).expect("the server listens");
        for _ in 0..depth {
            let mut reply = [0; 16];
            self.stream.read_exact(&mut reply).expect("a reply");
            assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a reply without error");
            if command == READ {
                self.stream.read_exact(&mut [0; BLOCK]).expect("data");
            }
        }
    }
}

/// The thread of this name in this process.
fn thread_id(name: &str) -> i32 {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads are listed");
    let mut found = threads.flatten().filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let thread = found.next().expect("there is a shard").file_name();
    thread.to_str().and_then(|id| id.parse().ok()).expect("threads are named by numbers")
}

const WINDOW_OPERATIONS: usize = 64;
const WINDOWS: usize = 400;

/// Allocations of the shard in each window of operations.
fn windows(client: &mut Client, command: u16, depth: usize) -> Vec<u64> {
    (0..WINDOWS)
        .map(|_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..WINDOW_OPERATIONS / depth).for_each(|_| client.round(command, depth));
            ALLOCATIONS.load(Ordering::Relaxed) - before
        })
        .collect()
}

#[test]
fn the_steady_state_of_a_volume_allocates_nothing_and_a_layer_once_per_operation() {
    // No limit that is ever reached: what it costs to have one.
    let limit = LimitSettings::checked(Some(1_000_000_000), None, None).expect("valid");
    for (layers, stages) in [(0, Stages::default()), (1, Stages { limit, ..Stages::default() })] {
        COUNTED_THREAD.store(0, Ordering::Relaxed);
        steady_state(layers, stages).iter().for_each(|line| println!("{line}"));
    }
}

/// The counts of the twenty worst windows.
fn worst(mut counted: Vec<u64>) -> Vec<u64> {
    counted.sort_unstable_by(|a, b| b.cmp(a));
    counted.truncate(20);
    counted
}

/// Counts with so many layers over the endpoint; what was found.
fn home(data: DataDirectory) -> Home {
    Home {
        store_url: data.store_url(),
        store_options: Default::default(),
        data,
        keys: Default::default(),
        encrypt: false,
    }
}

fn steady_state(layers: u64, stages: Stages) -> Vec<String> {
    let mut lines = Vec::new();
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let socket = place.path().join("nbd.sock");
    let data = DataDirectory::at(&place.path().join("data")).expect("a directory");
    // The collector allocates for each object that it copies, beside the operations that are counted here.
    let never = CollectLimits { start_percent: 0, ..CollectLimits::default() };
    let spec = VolumeSpec {
        name: VolumeName::new("steady").expect("a name"),
        size: Some(VOLUME_BLOCKS * BLOCK as u64),
        size_must_match: true,
        read_only: false,
        consent: Consent::default(),
        options: VolumeOptions { collect: never, ..VolumeOptions::default() },
        endpoint: EndpointKind::Log,
        stages,
        replica: None,
        allowed: Default::default(),
    };
    let options = ServiceOptions {
        home: home(data),
        template: Box::new(spec.clone()),
        volumes: VolumeSet::Listed(vec![spec]),
        nbd: vec![NbdAddress::Unix(socket.clone())],
        nbd_access: Default::default(),
        api: ApiPlace::Volume,
        api_tcp: None,
        tls: None,
        limits: Default::default(),
        cache: Default::default(),
        cache_wear: None,
        inherited: Inherited::default(),
        left: Vec::new(),
    };
    let node = Node::start(NodeConfig { shards: Some(1), ..NodeConfig::default() });
    let node = node.expect("threads start");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let served = runtime.block_on(node.serve(options)).expect("the volume opens");
    let mut client = Client::connect(&socket, "steady");
    // Lists and buffers reach their sizes: more than once round the journal's first segment.
    (0..1000).for_each(|_| client.round(WRITE, 32));
    COUNTED_THREAD.store(thread_id("shard-0"), Ordering::Relaxed);
    for (command, depth) in [(WRITE, 1), (WRITE, 32), (READ, 1), (READ, 32)] {
        // What was pushed out of the journal is fetched once.
        (0..1000).for_each(|_| client.round(command, depth.max(8)));
        let counted = windows(&mut client, command, depth);
        let free = counted.iter().filter(|count| **count == 0).count();
        let all: u64 = counted.iter().sum();
        let operations = (WINDOWS * WINDOW_OPERATIONS) as u64;
        let name = if command == WRITE { "writes" } else { "reads" };
        lines.push(format!(
            "{operations} {name} at depth {depth}, {layers} layers: {free} of {WINDOWS} windows without \
             an allocation, {all} in all"
        ));
        let is_free = free * 10 >= WINDOWS * 6;
        assert!(is_free || layers > 0, "{name} at depth {depth}: {free} windows are free");
        let more = all.saturating_sub(layers * operations);
        let most = worst(counted);
        assert!(
            more * 20 <= operations,
            "{name} at depth {depth}: {all} allocations, in the worst windows {most:?}"
        );
    }
    runtime.block_on(served.stop(Closing::ToStore)).expect("it closes");
    node.shut_down();
    lines
}
