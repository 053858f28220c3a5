//! Measures 4 KiB writes, syncs and reads of both engines: time and processor time per operation.
//!
//! Usage: `cargo run --release -p weir-disk --example measure_engines -- [DIRECTORY] [SECONDS]`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement tool, not part of the product"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::LocalSet;
use weir_device::{AlignedBuf, SharedBuf};
use weir_disk::{Disks, EngineChoice, File, OpenMode};

const FILE_BYTES: u64 = 64 << 20;

/// User and system time of the process with all its threads, helpers of the kernel included.
fn processor_time() -> Duration {
    let fields = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = fields.rsplit_once(')').unwrap().1;
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|f| f.parse::<u64>().unwrap()).sum();
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Duration::from_micros(ticks * 1_000_000 / ticks_per_second)
}

#[derive(Clone, Copy)]
enum What {
    Write,
    WriteThenSync,
    Sync,
    Read,
}

async fn once(file: &File, what: What, number: u64, piece: &SharedBuf) {
    let blocks = FILE_BYTES / 4096;
    let offset = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks * 4096;
    match what {
        What::Write => file.write_at(vec![piece.clone()], offset).await.1.unwrap(),
        What::WriteThenSync => {
            file.write_at(vec![piece.clone()], offset).await.1.unwrap();
            file.sync().await.unwrap();
        }
        What::Sync => file.sync().await.unwrap(),
        What::Read => file.read_at(AlignedBuf::zeroed(4096), offset).await.1.unwrap(),
    }
}

async fn measure(file: &File, name: &str, what: What, depth: u64, time: Duration) {
    let piece = SharedBuf::copy_of(&[7; 4096]);
    let (start, processor) = (Instant::now(), processor_time());
    let mut latencies = Vec::new();
    let mut running = FuturesUnordered::new();
    let mut number = 0;
    loop {
        while running.len() < usize::try_from(depth).unwrap() && start.elapsed() < time {
            number += 1;
            let (piece, begun) = (&piece, Instant::now());
            running.push(async move {
                once(file, what, number, piece).await;
                begun.elapsed()
            });
        }
        match running.next().await {
            Some(latency) => latencies.push(latency),
            None => break,
        }
    }
    let (elapsed, processor) = (start.elapsed(), processor_time() - processor);
    latencies.sort();
    let count = u32::try_from(latencies.len()).unwrap();
    println!(
        "{name:<18} depth {depth:<3} {:>8.0} /s  p50 {:>7.1} us  p99 {:>7.1} us  \
         processor {:>6.1} us",
        f64::from(count) / elapsed.as_secs_f64(),
        latencies[latencies.len() / 2].as_secs_f64() * 1e6,
        latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e6,
        processor.as_secs_f64() * 1e6 / f64::from(count),
    );
}

async fn run(choice: EngineChoice, root: PathBuf, time: Duration) {
    let disks = Disks::new(choice).unwrap();
    let directory = disks.directory(root).unwrap();
    let name = format!("measure-{}", std::process::id());
    let file = directory.open(&name, OpenMode::CreateNew).await.unwrap();
    println!("{} (alignment {})", disks.engine_name(), file.alignment());
    let start = Instant::now();
    file.extend_zeroed(0, FILE_BYTES).await.unwrap();
    println!("extend by 64 MiB   {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    for (name, what, depth) in [
        ("write 4k", What::Write, 1),
        ("write 4k + sync", What::WriteThenSync, 1),
        ("sync alone", What::Sync, 1),
        ("read 4k", What::Read, 1),
        ("write 4k", What::Write, 32),
        ("read 4k", What::Read, 32),
    ] {
        measure(&file, name, what, depth, time).await;
    }
    directory.remove(&name).await.unwrap();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = arguments.next().map_or(2, |seconds| seconds.parse().unwrap());
    for choice in [EngineChoice::Uring, EngineChoice::Threads] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let time = Duration::from_secs(seconds);
        // Spawned, as the tasks of a shard are: a task is woken more cheaply than the main future.
        LocalSet::new().block_on(&runtime, async {
            tokio::task::spawn_local(run(choice, root.clone(), time)).await.unwrap();
        });
    }
}
