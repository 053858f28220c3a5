//! The same code on real files, with every engine that this machine offers.

#![allow(clippy::print_stdout, reason = "says why a test was skipped")]

mod common;

use std::rc::Rc;
use std::time::Duration;

use common::*;
use weir_device::{BufferPool, Clock, Env};
use weir_disk::{Disks, EngineChoice};
use weir_journal::{AcceptLoss, Epoch, Journal, JournalConfig, Payload, PlacedPiece, WriteNumber};

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

/// The bytes of a piece: the upper half of its offset is the number of the write, the lower its begin within it.
fn written(piece: &PlacedPiece) -> Vec<u8> {
    let (id, from) = (piece.offset >> 32, piece.offset & 0xFFFF_FFFF);
    let index = |at: u64| usize::try_from(at).expect("small");
    pattern(id, index(from + piece.len))[index(from)..].to_vec()
}

async fn round(engine: EngineChoice) {
    let env = Env {
        clock: Rc::new(Host),
        random: Rc::new(TestRandom::new(1)),
        spawn: Rc::new(LocalSpawn),
        network: Rc::new(weir_device::NoNetwork),
        buffers: BufferPool::new(64 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    };
    let place = tempfile::tempdir().expect("a directory");
    let disks = match Disks::new(engine) {
        Ok(disks) => disks,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none_or(|ci| ci != "true"),
                "not tested in CI: {error}"
            );
            println!("skipped: {error}");
            return;
        }
    };
    let directory = disks.directory(place.path()).expect("a directory");
    let config = JournalConfig {
        segment_bytes: 1 << 20,
        segments_max: 8,
        record_bytes_max: 1 << 20,
        resident_bytes_max: 0,
        ..small_config()
    };
    let created = Journal::create(&directory, NAME, IDENTITY, None, config, &env).await;
    let journal = created.expect("created").journal;
    let ear = listen(&journal);
    journal.begin_epoch(Epoch(1), OPENING).await.expect("epoch");
    let mut writers = Vec::new();
    for id in 0..600_u64 {
        let len = 1 + usize::try_from(id * 37 % 20_000).expect("small");
        let payload = Payload::Data(shared(&pattern(id, len)));
        writers.push(tokio::task::spawn_local(journal.append(id << 32, payload, len as u64)));
        if id % 50 == 49 {
            for writer in writers.drain(..) {
                writer.await.expect("ran").expect("appended");
            }
            journal.flush().await.expect("flushed");
            journal.release(WriteNumber(last_write(&ear).0 / 2));
        }
    }
    let all = ear.pieces.borrow().clone();
    for piece in all.iter().rev().take(100) {
        assert!(read(&journal, piece).await.expect("verified") == written(piece));
    }
    drop(journal);
    let recovered =
        Journal::recover(&directory, NAME, VOLUME, None, config, AcceptLoss::No, &env).await;
    let recovered = recovered.expect("recovered");
    let found: Vec<_> = recovered.pieces.iter().map(|found| found.piece).collect();
    assert_eq!(found[..], all[all.len() - found.len()..]);
    assert!(found.len() >= all.len() / 2);
    for piece in &found {
        assert!(read(&recovered.journal, piece).await.expect("verified") == written(piece));
    }
    recovered.journal.begin_epoch(Epoch(2), OPENING).await.expect("epoch");
    recovered.journal.close().await.expect("closed");
}

fn real(engine: EngineChoice) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, round(engine));
}

#[test]
fn a_journal_works_on_real_files_with_threads() {
    real(EngineChoice::Threads);
}

#[test]
fn a_journal_works_on_real_files_with_io_uring() {
    real(EngineChoice::Uring);
}
