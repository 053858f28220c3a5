//! Journals of encrypted volumes: nothing of the payload shows, only their own key opens them, and nothing forged does.

mod common;

use common::*;
use weir_device::{AlignedBuf, SharedBuf};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_disk::{File, OpenMode};
use weir_journal::format::record::{PieceChecksum, PieceKind, RecordHeader};
use weir_journal::limits::DATA_START;
use weir_journal::{AcceptLoss, Epoch, Journal, JournalConfig, JournalError, JournalPos, Payload};
use weir_seal::DataKey;

/// Nothing stays in memory, so that every read comes from the disk.
fn config() -> JournalConfig {
    JournalConfig { resident_bytes_max: 0, ..small_config() }
}

async fn file(disk: &SimDisk) -> File {
    disk.directory().open(NAME, OpenMode::Existing).await.expect("there")
}

async fn content(disk: &SimDisk) -> AlignedBuf {
    let file = file(disk).await;
    let len = usize::try_from(file.len().await.expect("known")).expect("small");
    let (bytes, result) = file.read_at(AlignedBuf::zeroed(len), 0).await;
    result.expect("read");
    bytes
}

fn shows(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

/// Writes of all sizes and alignments, each full of `mark`.
async fn write_marks(journal: &Journal, mark: &[u8; 16]) {
    for (at, blocks) in [(0, 1), (1 << 20, 4), (2 << 20, 7)] {
        let bytes = mark.repeat(256 * blocks);
        let len = bytes.len() as u64;
        journal.append(at, Payload::Data(shared(&bytes)), len).await.expect("append");
        let bytes = &bytes[..bytes.len() - 16 * 3];
        let payload = Payload::Data(shared_unaligned(bytes));
        journal.append(at + (1 << 19), payload, len - 48).await.expect("append");
    }
}

#[test]
fn nothing_of_the_payload_shows_and_all_of_it_comes_back() {
    let mark = b"marked plaintext";
    for sealed in [false, true] {
        seal_journals(sealed);
        run(async {
            let disk = steady_disk(1);
            let journal = create(&disk, config()).await;
            let ear = listen(&journal);
            write_marks(&journal, mark).await;
            let pieces = ear.pieces.borrow().clone();
            for piece in &pieces {
                let bytes = read(&journal, piece).await.expect("reads");
                assert_eq!(bytes, mark.repeat(bytes.len() / 16));
            }
            assert_eq!(shows(&content(&disk).await, mark), !sealed);
            disk.crash_process();
            let recovered = recover(&disk, config()).await;
            assert_eq!(recovered.pieces.len(), pieces.len());
            for found in &recovered.pieces {
                let bytes = read(&recovered.journal, &found.piece).await.expect("reads");
                assert_eq!(bytes, mark.repeat(bytes.len() / 16));
            }
        });
    }
}

#[test]
fn another_key_or_none_is_refused_and_nothing_is_changed() {
    let other = DataKey::draw(|bytes| bytes.fill(1));
    for sealed in [true, false] {
        seal_journals(sealed);
        run(async {
            let disk = steady_disk(2);
            write(&create(&disk, config()).await, 0, 1, 5000).await;
            disk.crash_process();
            let before = content(&disk).await.to_vec();
            let wrong = if sealed { vec![None, Some(&other)] } else { vec![Some(&other)] };
            for key in wrong {
                let (directory, env) = (disk.directory(), env_of(&disk));
                let accept = AcceptLoss::Yes;
                let refused =
                    Journal::recover(&directory, NAME, VOLUME, key, config(), accept, &env).await;
                let error = refused.expect_err("refused");
                assert!(matches!(error, JournalError::OtherKey { .. }), "{error}");
                assert!(error.to_string().contains("no key") || sealed, "{error}");
            }
            assert_eq!(&content(&disk).await[..], before);
            assert_eq!(recover(&disk, config()).await.pieces.len(), 2);
        });
    }
}

/// The sealed bytes of the first piece behind `begin`, with its header.
fn first_piece(bytes: &[u8], position: u64) -> (RecordHeader, Vec<u8>) {
    let at = usize::try_from(DATA_START + position).expect("small");
    let header = RecordHeader::decode(&IDENTITY, JournalPos(position), &bytes[at..]).expect("one");
    let piece = header.pieces[0];
    let payload = at + usize::try_from(piece.payload).expect("small");
    let sealed = bytes[payload..payload + usize::try_from(piece.len).expect("small")].to_vec();
    (header, sealed)
}

#[test]
fn a_record_number_that_comes_again_seals_under_another_key() {
    seal_journals(true);
    let mut seen = Vec::new();
    // The same directory, opened again and again from the same state, as a copied machine would.
    for epoch in [2, 2, 3] {
        run(async {
            let disk = SimDisk::new(3, SimDiskOptions::default());
            drop(create(&disk, config()).await);
            disk.crash_process();
            let env = env_drawing(&disk, u64::try_from(seen.len()).expect("few"));
            let (directory, key) = (disk.directory(), key());
            let accept = AcceptLoss::No;
            let recovered =
                Journal::recover(&directory, NAME, VOLUME, key.as_ref(), config(), accept, &env);
            let journal = recovered.await.expect("recovers").journal;
            journal.begin_epoch(Epoch(epoch), OPENING).await.expect("begins");
            write(&journal, 0, 1, 4096).await;
            let (header, sealed) = first_piece(&content(&disk).await, 0);
            assert_eq!((header.record.0, header.epoch), (1, Epoch(epoch)));
            seen.push(sealed);
        });
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
}

/// Whoever can write the disk can make checksums right, but no tags.
#[test]
fn a_forged_piece_does_not_read_though_its_checksum_is_right() {
    for (forge_tag, sealed) in [(false, true), (true, true), (false, false)] {
        seal_journals(sealed);
        run(async {
            let disk = steady_disk(4);
            write(&create(&disk, config()).await, 0, 1, 4096).await;
            disk.crash_process();
            let mut bytes = content(&disk).await;
            let (mut header, mut payload) = first_piece(&bytes, 0);
            if forge_tag {
                header.pieces[0].tag[3] ^= 1;
            } else {
                payload[77] ^= 1;
            }
            let at = usize::try_from(DATA_START).expect("small");
            let piece = &mut header.pieces[0];
            assert_eq!(piece.kind, PieceKind::Data);
            piece.payload_crc =
                PieceChecksum::new(&IDENTITY).of(header.record, piece.offset, [&payload, &[]]);
            let begin = at + usize::try_from(piece.payload).expect("small");
            bytes[begin..begin + payload.len()].copy_from_slice(&payload);
            header.encode(&IDENTITY, &mut bytes[at..]);
            let forged = SharedBuf::copy_of(&bytes[at..at + 16384]);
            file(&disk).await.write_at(vec![forged], DATA_START).await.1.expect("written");
            let recovered = recover(&disk, config()).await;
            assert!(!recovered.pieces[0].poisoned, "checksums are right");
            let read = read(&recovered.journal, &recovered.pieces[0].piece).await;
            match read {
                Err(JournalError::Corrupt { .. }) => assert!(sealed),
                Err(error) => panic!("{error}"),
                Ok(bytes) => assert!(!sealed && bytes != pattern(1, 4096)),
            }
        });
    }
}

/// Plain records that somebody put into a sealed journal are none.
#[test]
fn a_plain_record_in_a_sealed_journal_is_none() {
    let mut planted = Vec::new();
    for sealed in [false, true] {
        seal_journals(sealed);
        run(async {
            let disk = steady_disk(5);
            let journal = create(&disk, config()).await;
            if !sealed {
                write(&journal, 0, 1, 4096).await;
                let at = usize::try_from(DATA_START).expect("small");
                planted = content(&disk).await[at..at + 8192].to_vec();
                return;
            }
            drop(journal);
            disk.crash_process();
            let planted = SharedBuf::copy_of(&planted);
            file(&disk).await.write_at(vec![planted], DATA_START).await.1.expect("written");
            assert_eq!(recover(&disk, config()).await.pieces, []);
        });
    }
}
