//! Random rot after a random run: nothing wrong is ever read as right, and nothing promised vanishes without a word.

mod common;

use common::*;
use weir_device::AlignedBuf;
use weir_disk::OpenMode;
use weir_disk::sim::SimDisk;
use weir_journal::limits::DATA_START;
use weir_journal::{
    AcceptLoss, DamageKind, JournalConfig, JournalError, Payload, PlacedPiece, RecoveredPiece,
};

#[derive(Default, Debug)]
struct Met {
    poisoned: u32,
    refused: u32,
    unharmed: u32,
    last_records: u32,
}

fn config() -> JournalConfig {
    JournalConfig { resident_bytes_max: 0, ..small_config() }
}

/// Appends of all sizes from several writers; a crash of the process. Answers what was acknowledged.
async fn some_run(disk: &SimDisk, random: &TestRandom) -> Vec<PlacedPiece> {
    let journal = create(disk, config()).await;
    let ear = listen(&journal);
    for id in 1..30 + random.below(30) {
        let len = 1 + random.below(20_000);
        let bytes = pattern(id, usize::try_from(len).expect("small"));
        // The offset tells which write it was.
        let append = journal.append(id << 32, Payload::Data(shared(&bytes)), len);
        tokio::task::spawn_local(append);
        if random.one_in(3) {
            milliseconds(random.below(6)).await;
        }
        if random.one_in(8) {
            journal.flush().await.expect("flush");
        }
        if random.one_in(4) && last_write(&ear).0 > 0 {
            journal.release(weir_journal::WriteNumber(last_write(&ear).0 / 2));
        }
    }
    disk.crash_process();
    ear.pieces.borrow().clone()
}

/// Where the file has what looks like a record.
async fn headers_of(disk: &SimDisk) -> Vec<u64> {
    let file = disk.directory().open(NAME, OpenMode::Existing).await.expect("there");
    let len = usize::try_from(file.len().await.expect("known")).expect("small");
    let (bytes, result) = file.read_at(AlignedBuf::zeroed(len), 0).await;
    result.expect("read");
    let blocks = bytes.chunks(4096).enumerate();
    let records = blocks.filter(|(_, block)| block.starts_with(b"WEIR-JRC"));
    records.map(|(index, _)| index as u64 * 4096).collect()
}

async fn check_bytes(journal: &weir_journal::Journal, found: &RecoveredPiece) {
    let piece = &found.piece;
    let (id, skip) = (piece.offset >> 32, piece.offset & 0xFFFF_FFFF);
    let end = usize::try_from(skip + piece.len).expect("small");
    let expected = &pattern(id, end)[usize::try_from(skip).expect("small")..];
    match read(journal, piece).await {
        Ok(bytes) => {
            assert_eq!(bytes, expected, "what verifies is what was written");
            assert!(!found.poisoned, "what is poisoned does not verify");
        }
        Err(error) => {
            assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
            assert!(found.poisoned, "recovery says what will not verify");
        }
    }
}

async fn one(seed: u64, met: &mut Met) {
    let random = TestRandom::new(seed);
    let disk = SimDisk::new(seed, Default::default());
    let acked = some_run(&disk, &random).await;
    let headers = headers_of(&disk).await;
    let offset = if random.one_in(2) && !headers.is_empty() {
        headers[usize::try_from(random.below(headers.len() as u64)).expect("small")]
    } else {
        DATA_START + random.below(4 * SEGMENT) / 512 * 512
    };
    for byte in 0..512 {
        disk.rot(NAME, offset + byte);
    }
    let recovered = match try_recover(&disk, config(), AcceptLoss::No).await {
        Ok(recovered) => recovered,
        Err(error) => {
            assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
            met.refused += 1;
            let recovered = try_recover(&disk, config(), AcceptLoss::Yes).await.expect("accepted");
            assert_eq!(recovered.report.damage[0].kind, DamageKind::Records);
            for found in &recovered.pieces {
                check_bytes(&recovered.journal, found).await;
            }
            return;
        }
    };
    for found in &recovered.pieces {
        check_bytes(&recovered.journal, found).await;
    }
    let poisoned = recovered.pieces.iter().filter(|found| found.poisoned).count();
    assert_eq!(poisoned, recovered.report.damage.len());
    met.poisoned += u32::from(poisoned > 0);
    met.unharmed += u32::from(poisoned == 0);
    let Some(last_acked) = acked.last() else { return };
    let last_found = recovered.report.last_record;
    if last_found < last_acked.record {
        // Only a record that no later one could witness may be taken for the end: the last acknowledged one, and
        // what was acknowledged together with it.
        assert!(
            last_found.0 + 2 >= last_acked.record.0,
            "seed {seed}: it ends at {last_found}, {last_acked:?} was acknowledged"
        );
        met.last_records += 1;
    }
}

#[test]
fn rot_is_never_read_as_data_and_never_passed_over() {
    let mut met = Met::default();
    for seed in 0..300 {
        seal_journals(seed % 3 == 0);
        run(one(seed, &mut met));
    }
    assert!(met.poisoned > 10 && met.refused > 10 && met.unharmed > 10, "{met:?}");
}
