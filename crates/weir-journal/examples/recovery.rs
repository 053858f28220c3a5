//! Measures a real disk: fills a journal with 4 KiB writes, then recovers it.
//! `cargo run --release -p weir-journal --example recovery -- DIR [MiB]`
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement of the real clock for a human"
)]

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_device::{AlignedBuf, BufferPool, Clock, Env, Random, Spawn, VolumeId};
use weir_disk::{Disks, EngineChoice};
use weir_journal::{
    AcceptLoss, Epoch, Identity, Journal, JournalConfig, JournalId, OpeningId, Payload,
};

struct Host;

impl Clock for Host {
    fn wall(&self) -> Duration {
        Duration::ZERO
    }
    fn boottime(&self) -> Duration {
        Duration::ZERO
    }
    fn boot_id(&self) -> [u8; 16] {
        [1; 16]
    }
}

impl Random for Host {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(4);
    }
}

impl Spawn for Host {
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(task);
    }
    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::task::spawn_local(task);
    }
}

const OPENING: OpeningId = OpeningId([7; 16]);
const WRITERS: u64 = 32;
const WRITE_BYTES: u64 = 4096;

async fn measure(directory: &str, mebibytes: u64) {
    let env = Env {
        clock: Rc::new(Host),
        random: Rc::new(Host),
        spawn: Rc::new(Host),
        network: Rc::new(weir_device::NoNetwork),
        buffers: BufferPool::new(64 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    };
    let disks = Disks::new(EngineChoice::Auto).expect("a disk engine");
    let directory = disks.directory(directory).expect("a directory");
    let name = "journal-measurement";
    let _ = directory.remove(name).await;
    let identity = Identity { volume: VolumeId([1; 16]), journal: JournalId([2; 16]) };
    let config = JournalConfig::default();
    let created = Journal::create(&directory, name, identity, None, config, &env).await;
    let journal = created.expect("created").journal;
    journal.begin_epoch(Epoch(1), OPENING).await.expect("epoch");
    for depth in [1, WRITERS] {
        let begin = Instant::now();
        let share = mebibytes << 20 >> 1;
        let until = journal.status().bytes_written + if depth == 1 { share / 8 } else { share };
        let count = Rc::new(Cell::new(0_u64));
        let writers: Vec<_> = (0..depth)
            .map(|writer| {
                let (journal, count) = (journal.clone(), count.clone());
                tokio::task::spawn_local(async move {
                    let mut offset = writer * (1 << 30);
                    while journal.status().bytes_written < until {
                        let mut buf = AlignedBuf::zeroed(4096);
                        buf[..8].copy_from_slice(&offset.to_le_bytes());
                        let payload = Payload::Data(buf.freeze());
                        journal.append(offset, payload, WRITE_BYTES).await.expect("append");
                        offset += WRITE_BYTES;
                        count.set(count.get() + 1);
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.expect("ran");
        }
        let (seconds, status) = (begin.elapsed().as_secs_f64(), journal.status());
        println!(
            "depth {depth}: {} writes, {:.0}/s, {} records so far, {} MiB in the file",
            count.get(),
            f64::from(u32::try_from(count.get()).expect("few")) / seconds,
            status.records,
            status.bytes_written >> 20,
        );
    }
    journal.flush().await.expect("flush");
    drop(journal);
    for _ in 0..3 {
        let begin = Instant::now();
        let volume = identity.volume;
        let recovered =
            Journal::recover(&directory, name, volume, None, config, AcceptLoss::No, &env).await;
        let recovered = recovered.expect("recovered");
        println!(
            "recovery: {} pieces, {} records, {} MiB read in {:.3} s",
            recovered.pieces.len(),
            recovered.report.records,
            recovered.report.bytes_scanned >> 20,
            begin.elapsed().as_secs_f64(),
        );
    }
    directory.remove(name).await.expect("removed");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let mebibytes = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1600);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, measure(&directory, mebibytes));
}
