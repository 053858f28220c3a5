//! Surroundings for tests of devices: a clock that follows tokio's, which may be paused, random bytes from a seed, and
//! tasks of the test's own `LocalSet`.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use weir_pacer::Pacer;

use crate::{BufferPool, Clock, Env, NoFileReads, NoNetwork, Random, Spawn};

/// Bytes that the pool keeps.
const POOL_BYTES: usize = 1 << 20;

struct Tokio(Instant);

impl Clock for Tokio {
    fn wall(&self) -> Duration {
        Duration::from_secs(1_790_000_000) + self.0.elapsed()
    }
    fn boottime(&self) -> Duration {
        self.0.elapsed()
    }
    fn boot_id(&self) -> [u8; 16] {
        [1; 16]
    }
}

struct Counting(Cell<u8>);

impl Random for Counting {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.replace(self.0.get().wrapping_add(71)));
    }
}

struct Here;

impl Spawn for Here {
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(task);
    }
    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::task::spawn_local(task);
    }
}

/// Surroundings without a network. Its random bytes follow from the seed. Call it within a `LocalSet`.
#[must_use]
pub fn env(seed: u8) -> Env {
    Env {
        clock: Rc::new(Tokio(Instant::now())),
        random: Rc::new(Counting(Cell::new(seed))),
        spawn: Rc::new(Here),
        network: Rc::new(NoNetwork),
        buffers: BufferPool::new(POOL_BYTES),
        files: Rc::new(NoFileReads),
        pacer: Pacer::default(),
    }
}
