//! Time, randomness and tasks of tests.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{BufferPool, Clock, Env, Random, Spawn};

struct Paused(Instant);

impl Clock for Paused {
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

struct Seeded(Cell<u8>);

impl Random for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.replace(self.0.get().wrapping_add(1)));
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

pub(crate) fn env() -> Env {
    Env {
        clock: Rc::new(Paused(Instant::now())),
        random: Rc::new(Seeded(Cell::new(0))),
        spawn: Rc::new(Here),
        network: Rc::new(weir_device::NoNetwork),
        buffers: BufferPool::new(1 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    }
}
