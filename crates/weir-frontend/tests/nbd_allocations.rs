//! The steady state of a connection asks the allocator for nothing.
//!
//! Alone in its binary: the counter is the process's allocator.
#![allow(unsafe_code, reason = "a global allocator that counts; it only passes calls on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_device::{
    Body, BufferPool, Device, DeviceError, DeviceInfo, IoHeader, Operation, Reply, SourceId,
    VolumeId,
};
use weir_frontend::nbd::{ConnectionOptions, Export, Exports, serve_connection};
use weir_nbd::{
    CommandCode, CommandFlags, Cookie, OptionRequest, ReplyStyle, RequestHeader, encode_option,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; the counter touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above with the same layout, which came from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Answers everything, the second time it is asked if `is_slow`.
struct NullDevice {
    is_slow: bool,
    pool: BufferPool,
}

impl Device for NullDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::local(1 << 30)
    }
    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        if self.is_slow {
            tokio::task::yield_now().await;
        }
        Ok(Reply::new(match operation {
            Operation::Read { len, .. } => {
                let mut buf = self.pool.alloc(usize::try_from(len).expect("small"));
                buf.fill(7);
                Body::Data(buf.into())
            }
            _ => Body::Done,
        }))
    }
}

impl Exports for NullDevice {
    type Device = Self;
    fn find(&self, _name: &str) -> Option<Export<Self>> {
        Some(Export {
            name: "null".to_owned(),
            description: String::new(),
            device: Rc::new(Self { is_slow: self.is_slow, pool: self.pool.clone() }),
            volume: VolumeId([0; 16]),
            read_only: false,
            history: None,
        })
    }
    fn list(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A client that says `prelude`, then `batch` again and again, and never listens.
struct Script {
    prelude: Vec<u8>,
    batch: Vec<u8>,
    at: usize,
    batches_left: usize,
    warm_up: usize,
    /// The allocator's counter when the warm-up was over.
    counted: Rc<std::cell::Cell<u64>>,
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.at == self.batch.len() && self.batches_left > 0 {
            self.at = 0;
            self.batches_left -= 1;
            if self.batches_left == self.warm_up {
                self.counted.set(ALLOCATIONS.load(Ordering::Relaxed));
            }
        }
        let source = if self.prelude.is_empty() { &self.batch[self.at..] } else { &self.prelude };
        let bytes = source.len().min(into.remaining());
        into.put_slice(&source[..bytes]);
        if self.prelude.is_empty() {
            self.at += bytes;
        } else {
            self.prelude.drain(..bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

const REQUESTS_PER_BATCH: u64 = 32;
const BATCHES: usize = 200;
const WARM_UP: usize = 100;

fn script(command: CommandCode, length: u32, counted: &Rc<std::cell::Cell<u64>>) -> Script {
    let mut prelude = vec![0, 0, 0, 3];
    encode_option(&OptionRequest::StructuredReply, &mut prelude).expect("short");
    encode_option(&OptionRequest::Go { name: "", facts: Vec::new() }, &mut prelude).expect("short");
    let mut batch = Vec::new();
    for index in 0..REQUESTS_PER_BATCH {
        let flags = CommandFlags::default();
        let cookie = Cookie(index);
        let header =
            RequestHeader { flags, command, cookie, offset: index * 4096, length: length.into() };
        header.encode(ReplyStyle::Structured, &mut batch).expect("short");
        if command == CommandCode::WRITE {
            batch.resize(batch.len() + usize::try_from(length).expect("it fits"), 1);
        }
    }
    Script {
        prelude,
        at: batch.len(),
        batch,
        batches_left: BATCHES,
        warm_up: BATCHES - WARM_UP,
        counted: Rc::clone(counted),
    }
}

/// Allocations per thousand requests, after the warm-up.
fn allocations_per_mille(is_slow: bool, command: CommandCode, length: u32) -> u64 {
    let counted = Rc::new(std::cell::Cell::new(0));
    let stream = script(command, length, &counted);
    let options = ConnectionOptions::new(SourceId(0), "script");
    let pool = BufferPool::new(64 << 20);
    let exports = Rc::new(NullDevice { is_slow, pool });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local
        .block_on(&runtime, serve_connection(stream, exports, options, std::future::pending()))
        .expect("the script ends between two requests");
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - counted.get();
    let requests = (BATCHES - WARM_UP) as u64 * REQUESTS_PER_BATCH;
    allocations * 1000 / requests
}

#[test]
fn the_steady_state_does_not_allocate() {
    for is_slow in [false, true] {
        for (command, length) in [
            (CommandCode::READ, 4096),
            (CommandCode::READ, 131_072),
            (CommandCode::WRITE, 4096),
            (CommandCode::WRITE, 131_072),
            (CommandCode::TRIM, 4096),
            (CommandCode::WRITE_ZEROES, 4096),
        ] {
            let found = allocations_per_mille(is_slow, command, length);
            assert!(
                found <= 10,
                "{found} allocations per 1000 requests: {command:?} of {length}, slow: {is_slow}"
            );
        }
    }
}
