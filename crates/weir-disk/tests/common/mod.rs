//! Runs a test on every engine.
#![allow(
    clippy::print_stdout,
    dead_code,
    reason = "each test binary uses a part; failures name the engine"
)]

use std::future::Future;
use std::path::Path;

use tokio::task::LocalSet;
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_disk::{DirectIo, Directory, Disks, EngineChoice, File};

/// What a test gets.
pub(crate) struct Setup {
    pub(crate) directory: Directory,
}

/// A block that every engine takes.
pub(crate) fn aligned(file: &File) -> usize {
    file.alignment().max(512)
}

/// Bytes that tell where they came from.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, future)
}

pub(crate) fn block_on_paused<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, future)
}

/// Runs `test` on each engine, on a file system with direct I/O and on one in memory, and on a
/// simulated disk.
pub(crate) fn on_every_engine(test: impl AsyncFn(Setup)) {
    for choice in engines() {
        for direct in [DirectIo::WherePossible, DirectIo::Never] {
            run_real(&test, choice, direct, &std::env::temp_dir());
            run_real(&test, choice, direct, Path::new("/dev/shm"));
        }
    }
    for (seed, alignment) in [(1, 512), (2, 4096), (3, 1)] {
        println!("simulated, alignment {alignment}");
        let options = SimDiskOptions { alignment, ..SimDiskOptions::default() };
        let directory = SimDisk::new(seed, options).directory();
        block_on_paused(test(Setup { directory }));
    }
}

/// The engines that this machine has.
pub(crate) fn engines() -> Vec<EngineChoice> {
    let uring = block_on(async { Disks::new(EngineChoice::Uring) });
    match uring {
        Ok(_) => vec![EngineChoice::Uring, EngineChoice::Threads],
        Err(error) => {
            skipped(&error.to_string());
            vec![EngineChoice::Threads]
        }
    }
}

/// Says what this machine cannot test; in CI, where nothing may be missing, that is a failure.
#[track_caller]
fn skipped(reason: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "not tested in CI: {reason}");
    println!("skipped: {reason}");
}

fn run_real(test: &impl AsyncFn(Setup), choice: EngineChoice, direct: DirectIo, root: &Path) {
    println!("{choice:?}, direct I/O {direct:?}, in {}", root.display());
    let Ok(temporary) = tempfile::tempdir_in(root) else {
        return skipped(&format!("no directory in {}", root.display()));
    };
    block_on(async {
        let disks = Disks::new(choice).unwrap().with_direct_io(direct);
        let directory = disks.directory(temporary.path().join("a/b")).unwrap();
        test(Setup { directory }).await;
    });
}
