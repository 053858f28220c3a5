//! Frozen bytes, truncation, bounds. The hex is also in docs/formats/journal.md, and compared with it.

use proptest::prelude::*;
use weir_device::VolumeId;
use weir_disk::FileIdentity;
use weir_seal::KeyId;

use super::DecodeError;
use super::record::{Piece, PieceChecksum, PieceKind, RecordHeader, header_bytes};
use super::superblock::Superblock;
use crate::ids::{
    Announced, Epoch, Identity, JournalId, JournalPos, ManifestSeen, OpeningId, RecordSeq,
    WriteNumber,
};
use crate::limits::{ANNOUNCED_MAX, BLOCK_LEN, PIECES_PER_RECORD_MAX};

const PAGE: &str = include_str!("../../../../docs/formats/journal.md");

fn identity() -> Identity {
    Identity { volume: VolumeId(*b"volume-id-16byte"), journal: JournalId(*b"journalid-16byte") }
}

fn superblock() -> Superblock {
    Superblock {
        generation: 5,
        identity: identity(),
        boot_id: *b"boot-id--16bytes",
        epoch: Epoch(3),
        opening: Some(OpeningId(*b"opening-id-16byt")),
        announced: vec![Announced { opening: OpeningId(*b"announced-16byte"), epoch: Epoch(5) }],
        manifest: Some(ManifestSeen { number: 9, nonce: *b"manifest-16bytes" }),
        file: FileIdentity::from_parts(1, *b"file-digest-16by"),
        first_record: RecordSeq(21),
        first_position: JournalPos(0x0001_3000),
        first_write: WriteNumber(41),
        segment_bytes: 65536,
        tail_position: JournalPos(0x0001_0000),
        tail_record: RecordSeq(17),
        tail_write: WriteNumber(33),
        clean_end: None,
        flushed_through: RecordSeq(20),
        loss_accepted_through: RecordSeq(0),
        key: None,
        segments_physical: 3,
        segments: vec![1, 2],
    }
}

/// What a program before version 3 knew of it.
fn nameless(superblock: Superblock) -> Superblock {
    Superblock { opening: None, announced: Vec::new(), manifest: None, file: None, ..superblock }
}

fn record() -> (RecordHeader, Vec<u8>) {
    let payload = b"weir".to_vec();
    let crc = PieceChecksum::new(&identity()).of(RecordSeq(21), 4096, [&payload, &[]]);
    let header = RecordHeader {
        epoch: Epoch(3),
        record: RecordSeq(21),
        position: JournalPos(0x0001_3000),
        first_write: WriteNumber(41),
        acked_through: RecordSeq(20),
        flushed_through: RecordSeq(19),
        record_bytes: 4096,
        salt: None,
        pieces: vec![
            Piece {
                kind: PieceKind::Data,
                offset: 4096,
                len: 4,
                payload: 192,
                payload_crc: crc,
                tag: [0; 16],
            },
            Piece {
                kind: PieceKind::Discard,
                offset: 0,
                len: 512,
                payload: 0,
                payload_crc: 0,
                tag: [0; 16],
            },
        ],
    };
    (header, payload)
}

fn encoded(header: &RecordHeader) -> Vec<u8> {
    let mut bytes = vec![0; header_bytes(header.pieces.len(), header.salt.is_some())];
    header.encode(&identity(), &mut bytes);
    bytes
}

/// Hex lines as the page has them: offset, then sixteen bytes.
fn dump(bytes: &[u8], from: usize) -> String {
    let lines = bytes.chunks(16).enumerate().map(|(index, line)| {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x}  {}\n", from + index * 16, hex.join(" "))
    });
    lines.collect()
}

#[test]
fn the_page_shows_the_bytes_of_a_superblock() {
    let bytes = superblock().encode();
    let (begin, rest) = bytes.split_at(272);
    let (zeroes, rest) = rest.split_at(2176 - 272);
    let (announced, end) = rest.split_at(32);
    assert!(zeroes.iter().chain(end).all(|byte| *byte == 0));
    for hex in [dump(begin, 0), dump(announced, 2176)] {
        assert!(PAGE.contains(&hex), "docs/formats/journal.md must contain\n{hex}");
    }
    assert_eq!(Superblock::decode(&bytes).unwrap(), superblock());
}

#[test]
fn the_page_shows_the_bytes_of_older_superblocks() {
    let superblock = nameless(superblock());
    let bytes = superblock.encode_before_openings();
    let (shown, rest) = bytes.split_at(272);
    assert!(rest.iter().all(|byte| *byte == 0));
    let hex = dump(shown, 0);
    assert!(PAGE.contains(&hex), "docs/formats/journal.md must contain\n{hex}");
    assert_eq!(Superblock::decode(&bytes).unwrap(), superblock);
    let sealed = nameless(sealed_superblock());
    let bytes = sealed.encode_before_openings();
    let hex = dump(&bytes[..208], 0);
    assert!(PAGE.contains(&hex), "docs/formats/journal.md must contain\n{hex}");
    assert_eq!(Superblock::decode(&bytes).unwrap(), sealed);
}

#[test]
fn the_page_shows_the_bytes_of_a_record() {
    let (header, payload) = record();
    let mut bytes = encoded(&header);
    bytes.extend_from_slice(&payload);
    let hex = dump(&bytes, 0);
    assert!(PAGE.contains(&hex), "docs/formats/journal.md must contain\n{hex}");
    let decoded = RecordHeader::decode(&identity(), header.position, &bytes).unwrap();
    assert_eq!(decoded, header);
    assert_eq!((decoded.last_write(), decoded.end()), (WriteNumber(42), JournalPos(0x0001_4000)));
}

fn sealed_superblock() -> Superblock {
    Superblock { key: Some(KeyId(*b"name of data key")), ..superblock() }
}

/// The record of the page, sealed: tags and sealed bytes are made up.
fn sealed_record() -> (RecordHeader, Vec<u8>) {
    let (mut header, _) = record();
    let payload = b"\xc0\xff\xee\x11".to_vec();
    header.salt = Some(*b"salt of 16 bytes");
    header.pieces[0].payload = 224;
    header.pieces[0].payload_crc =
        PieceChecksum::new(&identity()).of(RecordSeq(21), 4096, [&payload, &[]]);
    header.pieces[0].tag = *b"tag of a payload";
    (header, payload)
}

#[test]
fn the_page_shows_what_is_different_where_it_is_sealed() {
    let bytes = sealed_superblock().encode();
    let hex = dump(&bytes[..240], 0);
    assert!(PAGE.contains(&hex), "docs/formats/journal.md must contain\n{hex}");
    assert_eq!(Superblock::decode(&bytes).unwrap(), sealed_superblock());
    let (header, payload) = sealed_record();
    let mut bytes = encoded(&header);
    bytes.extend_from_slice(&payload);
    let hex = dump(&bytes, 0);
    assert!(PAGE.contains(&hex), "docs/formats/journal.md must contain\n{hex}");
    let decoded = RecordHeader::decode(&identity(), header.position, &bytes);
    assert_eq!(decoded.unwrap(), header);
}

/// One of every version.
fn superblocks() -> [Box<[u8]>; 4] {
    let old = [superblock(), sealed_superblock()].map(|s| nameless(s).encode_before_openings());
    let [plain, sealed] = old;
    [superblock().encode(), sealed_superblock().encode(), plain, sealed]
}

#[test]
fn every_prefix_is_rejected() {
    for bytes in superblocks() {
        for len in 0..bytes.len() {
            assert!(Superblock::decode(&bytes[..len]).is_err(), "{len} bytes of a superblock");
        }
    }
    for (header, _) in [record(), sealed_record()] {
        let bytes = encoded(&header);
        for len in 0..bytes.len() {
            let decoded = RecordHeader::decode(&identity(), header.position, &bytes[..len]);
            assert!(decoded.is_err(), "{len} bytes of a record");
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    for good in superblocks() {
        for bit in (0..good.len() * 8).step_by(7) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
    }
    for (header, _) in [record(), sealed_record()] {
        let good = encoded(&header);
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let decoded = RecordHeader::decode(&identity(), header.position, &bytes);
            assert!(decoded.is_err(), "bit {bit}");
        }
    }
}

#[test]
fn a_record_in_another_place_or_journal_is_not_one() {
    let (header, _) = record();
    let bytes = encoded(&header);
    let elsewhere = RecordHeader::decode(&identity(), JournalPos(0), &bytes).unwrap_err();
    assert_eq!(elsewhere, DecodeError::Identity { field: "position" });
    let mut other = identity();
    other.volume = VolumeId([0; 16]);
    let foreign = RecordHeader::decode(&other, header.position, &bytes).unwrap_err();
    assert_eq!(foreign, DecodeError::Identity { field: "volume" });
}

#[test]
fn a_piece_checksum_covers_its_place() {
    let checksum = PieceChecksum::new(&identity());
    let good = checksum.of(RecordSeq(1), 0, [b"ab", b"cd"]);
    assert_eq!(good, checksum.of(RecordSeq(1), 0, [b"abcd", b""]));
    assert_ne!(good, checksum.of(RecordSeq(2), 0, [b"abcd", b""]));
    assert_ne!(good, checksum.of(RecordSeq(1), 4, [b"abcd", b""]));
    let mut other = identity();
    other.journal = JournalId([0; 16]);
    assert_ne!(good, PieceChecksum::new(&other).of(RecordSeq(1), 0, [b"abcd", b""]));
}

#[test]
fn a_newer_version_is_named_whatever_its_checksum() {
    let mut bytes = superblock().encode();
    bytes[8] = 9;
    let error = Superblock::decode(&bytes).unwrap_err();
    assert_eq!(error, DecodeError::Version { found: 9, known: 3 });
}

#[test]
fn records_of_a_newer_version_are_named() {
    let mut bytes = superblock().encode();
    bytes[204] = 3;
    seal_block(&mut bytes);
    let error = Superblock::decode(&bytes).unwrap_err();
    assert_eq!(error, DecodeError::RecordsVersion { found: 3, known: 2 });
}

#[test]
fn a_file_named_in_an_unknown_way_is_not_named() {
    let mut bytes = superblock().encode();
    bytes[208] = 9;
    seal_block(&mut bytes);
    assert_eq!(Superblock::decode(&bytes).unwrap(), Superblock { file: None, ..superblock() });
    bytes[208] = 0;
    seal_block(&mut bytes);
    let error = Superblock::decode(&bytes).unwrap_err();
    assert_eq!(error, DecodeError::Field { field: "file_kind", value: 0 });
}

fn seal_block(bytes: &mut [u8]) {
    let crc = super::crc32c(&[&bytes[..12], &bytes[16..]]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn announcements_and_reserved_bytes_are_checked() {
    let full =
        Superblock { announced: vec![superblock().announced[0]; ANNOUNCED_MAX], ..superblock() };
    assert_eq!(Superblock::decode(&full.encode()).unwrap(), full);
    // More than fit, one that has no name, bytes behind the last, and a version of the manifest without a number.
    for (at, byte) in [(228, 33), (2176, 0), (2200, 1), (232, 0), (2944, 1), (4095, 1)] {
        let mut bytes = superblock().encode();
        bytes[at] = byte;
        if at == 2176 {
            bytes[2176..2192].fill(0);
        }
        seal_block(&mut bytes);
        let error = Superblock::decode(&bytes).unwrap_err();
        assert!(matches!(error, DecodeError::Field { .. }), "byte {at}: {error}");
    }
}

#[test]
fn superblocks_that_contradict_themselves_are_rejected() {
    let wrong: [fn(&mut Superblock); 8] = [
        |s| s.segment_bytes = 4096,
        |s| s.segment_bytes = 65537,
        |s| s.segments = vec![1, 1],
        |s| s.segments = vec![1, 3],
        |s| s.tail_position = JournalPos(4096),
        |s| s.tail_position = JournalPos(u64::MAX / 65536 * 65536),
        |s| s.clean_end = Some(JournalPos(0)),
        |s| s.first_position = JournalPos(0x0004_0000),
    ];
    for (index, break_it) in wrong.iter().enumerate() {
        let mut superblock = superblock();
        break_it(&mut superblock);
        for bytes in [superblock.encode(), nameless(superblock).encode_before_openings()] {
            let error = Superblock::decode(&bytes).unwrap_err();
            assert!(matches!(error, DecodeError::Field { .. }), "case {index}: {error}");
        }
    }
}

#[test]
fn records_that_contradict_themselves_are_rejected() {
    let wrong: [fn(&mut RecordHeader); 8] = [
        |r| r.record_bytes = 4097,
        |r| r.record_bytes = 0,
        |r| r.pieces[0].len = 0,
        |r| r.pieces[0].len = 65537,
        |r| r.pieces[0].payload = 100,
        |r| r.pieces[0].payload = 4094,
        |r| r.pieces[1].payload = 192,
        |r| r.pieces[0].offset = u64::MAX - 1,
    ];
    for (index, break_it) in wrong.iter().enumerate() {
        let (mut header, _) = record();
        break_it(&mut header);
        let bytes = encoded(&header);
        let error = RecordHeader::decode(&identity(), header.position, &bytes).unwrap_err();
        assert!(matches!(error, DecodeError::Field { .. }), "case {index}: {error}");
    }
    let (mut header, _) = record();
    header.pieces[1] = Piece { payload: 195, ..header.pieces[0] };
    let error = RecordHeader::decode(&identity(), header.position, &encoded(&header)).unwrap_err();
    assert_eq!(error, DecodeError::Field { field: "payload", value: 0 }, "payloads overlap");
}

fn any_piece() -> impl Strategy<Value = Piece> {
    (0..4_u8, 0..1_u64 << 40, 1..=65536_u64, any::<u32>()).prop_map(|(kind, offset, len, crc)| {
        let kind = [PieceKind::Zero, PieceKind::Discard, PieceKind::Poison, PieceKind::Data]
            [usize::from(kind)];
        let payload_crc = if kind == PieceKind::Data { crc } else { 0 };
        Piece { kind, offset, len, payload: 0, payload_crc, tag: [0; 16] }
    })
}

proptest! {
    #[test]
    fn records_come_back_as_they_were(
        mut pieces in prop::collection::vec(any_piece(), 1..100),
        numbers in any::<[u32; 6]>(),
        salt in any::<Option<[u8; 16]>>(),
    ) {
        let mut at = header_bytes(pieces.len(), salt.is_some());
        for piece in pieces.iter_mut().filter(|piece| piece.kind == PieceKind::Data) {
            piece.payload = u32::try_from(at).unwrap();
            piece.tag = salt.unwrap_or_default();
            at += usize::try_from(piece.len).unwrap();
        }
        let header = RecordHeader {
            epoch: Epoch(u64::from(numbers[0])),
            record: RecordSeq(u64::from(numbers[1])),
            position: JournalPos(u64::from(numbers[2])),
            first_write: WriteNumber(u64::from(numbers[3])),
            acked_through: RecordSeq(u64::from(numbers[4])),
            flushed_through: RecordSeq(u64::from(numbers[5])),
            record_bytes: u32::try_from(at.next_multiple_of(BLOCK_LEN)).unwrap(),
            salt,
            pieces,
        };
        let bytes = encoded(&header);
        let decoded = RecordHeader::decode(&identity(), header.position, &bytes);
        prop_assert_eq!(decoded, Ok(header));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        magic in prop::bool::ANY,
        count in 0..2000_u32,
    ) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 128 {
            let (header, _) = record();
            let good = encoded(&header);
            bytes[..96].copy_from_slice(&good[..96]);
            bytes[100..104].copy_from_slice(&count.to_le_bytes());
        }
        let position = JournalPos(0x0001_3000);
        if let Ok(need) = RecordHeader::peek_bytes(&identity(), position, &bytes) {
            prop_assert!(need <= header_bytes(PIECES_PER_RECORD_MAX, true));
        }
        let _ = RecordHeader::decode(&identity(), position, &bytes);
        let _ = Superblock::decode(&bytes);
    }
}
