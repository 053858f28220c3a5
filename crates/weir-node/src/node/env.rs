//! [`weir_device::Env`] of a real host: its clocks and sockets, the kernel's random numbers, tokio's tasks.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use rustix::rand::GetRandomFlags;
use rustix::time::ClockId;
use tokio::runtime::Handle;
use weir_device::{BufferPool, Clock, Env, FileReads, Pacer, Random, Spawn};
use weir_net::HostNetwork;

use crate::error::NodeError;

/// Where Linux says which boot this is.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Where Linux says how the machine is called.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Makes the environment of one shard thread, whose background tasks run on `workers`.
pub(crate) fn real(
    workers: Handle,
    boot_id: [u8; 16],
    buffers: BufferPool,
    files: Rc<dyn FileReads>,
    pacer: Pacer,
) -> Env {
    Env {
        clock: Rc::new(HostClock { boot_id }),
        random: Rc::new(KernelRandom),
        spawn: Rc::new(Tasks { workers }),
        network: Rc::new(HostNetwork),
        buffers,
        files,
        pacer,
    }
}

/// Identity of this boot: the kernel's, 32 hex digits with dashes between them.
pub(crate) fn read_boot_id() -> Result<[u8; 16], NodeError> {
    let text = std::fs::read_to_string(BOOT_ID_FILE)
        .map_err(|source| NodeError::io("reading", BOOT_ID_FILE, source))?;
    let digits: String = text.trim().replace('-', "");
    let id = weir_device::VolumeId::parse(&digits);
    id.map(|id| id.0).ok_or_else(|| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "not an identity");
        NodeError::io("reading", BOOT_ID_FILE, source)
    })
}

/// How this machine is called.
pub(crate) fn read_node_name() -> Result<String, NodeError> {
    std::fs::read_to_string(HOST_NAME_FILE)
        .map(|name| name.trim().to_owned())
        .map_err(|source| NodeError::io("reading", HOST_NAME_FILE, source))
}

#[derive(Debug)]
struct HostClock {
    boot_id: [u8; 16],
}

fn now(id: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

impl Clock for HostClock {
    fn wall(&self) -> Duration {
        now(ClockId::Realtime)
    }

    fn boottime(&self) -> Duration {
        now(ClockId::Boottime)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
}

#[derive(Debug)]
struct KernelRandom;

impl Random for KernelRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            // An interrupted call is made again; the kernel has no other way to fail once it has booted.
            if let Ok(count) =
                rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty())
            {
                filled += count;
            }
        }
    }
}

#[derive(Debug)]
struct Tasks {
    workers: Handle,
}

impl Spawn for Tasks {
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(task);
    }

    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.workers.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use weir_device::NoFileReads;

    use super::*;

    #[tokio::test]
    async fn the_host_has_clocks_an_identity_and_randomness() {
        let boot_id = read_boot_id().expect("Linux has a boot id");
        let env = real(
            Handle::current(),
            boot_id,
            BufferPool::new(0),
            Rc::new(NoFileReads),
            Pacer::default(),
        );
        assert_ne!(env.clock.boot_id(), [0; 16]);
        assert!(env.clock.wall() > Duration::from_secs(1_700_000_000));
        let before = env.clock.boottime();
        assert!(env.clock.boottime() >= before);
        let mut bytes = [0; 1000];
        env.random.fill(&mut bytes);
        assert!(bytes.iter().filter(|&&b| b == 0).count() < 100);
        assert_eq!(env.background(async { 7 }).await, Some(7));
    }
}
