//! Frozen bytes, truncation, bounds. The hex is also in docs/formats/cache.md, and compared with it.

use proptest::prelude::*;

use super::index::{BAND_ENTRY_BYTES, HEAD_BYTES, IndexBand, IndexHead, decode_device};
use super::run::{DeviceIdentity, Entry, RANGES_MAX, RunHeader, RunPlace};
use super::superblock::{SavedIndex, Superblock};
use super::{BLOCK_LEN, CacheId, DecodeError, checksum};
use crate::geometry::{Geometry, Place};

const PAGE: &str = include_str!("../../../../docs/formats/cache.md");

const CACHE: CacheId = CacheId(*b"cache-id-16bytes");
const AT: RunPlace = RunPlace { place: Place { row: 2, column: 7 }, run: 1 };

fn superblock() -> Superblock {
    Superblock {
        generation: 5,
        cache: CACHE,
        geometry: Geometry { rows: 64, columns: 300 },
        run_blocks: 16,
        opening: 3,
        opening_salt: *b"opening-salt-16b",
        index: Some(SavedIndex { bytes: 8192, digest: *b"digest-of-the-index-of-32-bytes." }),
    }
}

fn entry() -> Entry {
    Entry {
        hash: *b"hash-of-16-bytes",
        tag: *b"tag--of-16-bytes",
        version: 9,
        ranges: [(0, 10), (20, 4096), (0, 0), (0, 0)],
        used: 77,
        reads: 4,
        writes: 2,
    }
}

fn header() -> RunHeader {
    RunHeader {
        at: AT,
        device: DeviceIdentity(*b"identity-of-a-device-of-32-bytes"),
        band: 11,
        fill: 13,
        opening_salt: *b"opening-salt-16b",
        key: *b"key-id-16-bytes.",
        attached: *b"attached-16bytes",
        entries: (0..16).map(|number| (number == 1).then(entry)).collect(),
        dirty: 2,
    }
}

fn decode(bytes: &[u8]) -> Result<RunHeader, DecodeError> {
    RunHeader::decode(bytes, CACHE, AT, 16)
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
fn the_page_shows_the_bytes() {
    let bytes = superblock().encode();
    assert!(bytes[128..].iter().all(|byte| *byte == 0));
    let hex = dump(&bytes[..128], 0);
    assert!(PAGE.contains(&hex), "docs/formats/cache.md must contain\n{hex}");
    assert_eq!(Superblock::decode(&bytes).unwrap(), superblock());
    let bytes = header().encode(CACHE);
    let is_zero = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 0);
    assert!(is_zero(160..2112) && is_zero(2176..4096));
    for hex in [dump(&bytes[..160], 0), dump(&bytes[2112..2176], 2112)] {
        assert!(PAGE.contains(&hex), "docs/formats/cache.md must contain\n{hex}");
    }
    assert_eq!(decode(&bytes).unwrap(), header());
}

#[test]
fn every_prefix_is_refused() {
    let (superblock, header) = (superblock().encode(), header().encode(CACHE));
    for length in 0..BLOCK_LEN {
        let short = DecodeError::Short { have: length };
        assert_eq!(Superblock::decode(&superblock[..length]), Err(short.clone()));
        assert_eq!(decode(&header[..length]), Err(short));
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    for bytes in [superblock().encode(), header().encode(CACHE)] {
        for at in 0..BLOCK_LEN * 8 {
            let mut flipped = bytes.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            Superblock::decode(&flipped).unwrap_err();
            decode(&flipped).unwrap_err();
        }
    }
}

#[test]
fn a_header_of_another_cache_or_place_is_not_this_one() {
    let bytes = header().encode(CACHE);
    let field = |error| match error {
        DecodeError::Identity { field } => field,
        other => panic!("{other}"),
    };
    let of = |cache, at| field(RunHeader::decode(&bytes, cache, at, 16).unwrap_err());
    assert_eq!(of(CacheId([1; 16]), AT), "the cache");
    assert_eq!(of(CACHE, RunPlace { run: 0, ..AT }), "the place");
    assert_eq!(of(CACHE, RunPlace { place: Place { row: 3, column: 7 }, ..AT }), "the place");
    assert_eq!(of(CACHE, RunPlace { place: Place { row: 2, column: 8 }, ..AT }), "the place");
    RunHeader::decode(&bytes, CACHE, AT, 8).unwrap_err();
}

/// Changes bytes, and makes the checksum right.
fn changed(mut bytes: Box<[u8]>, at: usize, new: &[u8]) -> Box<[u8]> {
    bytes[at..at + new.len()].copy_from_slice(new);
    let crc = checksum(&bytes).to_le_bytes();
    bytes[12..16].copy_from_slice(&crc);
    bytes
}

#[test]
fn fields_have_their_ranges() {
    let shape = |at: usize, value: u32| {
        Superblock::decode(&changed(superblock().encode(), at, &value.to_le_bytes())).unwrap_err()
    };
    for (at, values) in [
        (40, vec![0, 65]),
        (44, vec![0, (1 << 24) + 1]),
        (48, vec![0, 32, 128]),
        (52, vec![0, 3, 64]),
        (200, vec![1]),
    ] {
        for value in values {
            assert!(matches!(shape(at, value), DecodeError::Field { .. }), "{at}: {value}");
        }
    }
    // 1 had another hash for plain blocks.
    for found in [1, 3] {
        assert_eq!(shape(8, found), DecodeError::Version { found, known: 2 });
    }
    let open = changed(superblock().encode(), 80, &[0; 8]);
    assert!(matches!(
        Superblock::decode(&open),
        Err(DecodeError::Field { field: "index_digest", .. })
    ));
    let run =
        |at: usize, new: &[u8]| decode(&changed(header().encode(CACHE), at, new)).unwrap_err();
    for (at, new) in [
        (80, &u64::MAX.to_le_bytes()[..]),
        // A block behind the run, one that is dirty and not there, one that is there without an entry.
        (144, &[2, 0, 1, 0]),
        (148, &[1, 0, 0, 0]),
        (144, &[0, 0, 0, 0]),
        (1000, &[1]),
        // Ranges that overlap, are empty, or reach beyond the block; one behind the end.
        (2112 + 44, &[9, 0]),
        (2112 + 42, &[0, 0, 0, 0]),
        (2112 + 46, &[1, 16]),
        (2112 + 52, &[1, 0, 2, 0]),
    ] {
        assert!(matches!(run(at, new), DecodeError::Field { .. }), "{at}");
    }
}

prop_compose! {
    fn entries()(
        seeds in proptest::collection::vec(proptest::option::of(any::<u64>()), 16)
    ) -> Vec<Option<Entry>> {
        let entry = |seed: u64| {
            let bytes = [seed.to_le_bytes(), (!seed).to_le_bytes()].concat();
            let hash = bytes.try_into().expect("sixteen bytes");
            let from = u16::try_from(seed % 4000).expect("small");
            let mut ranges = [(0, 0); RANGES_MAX];
            ranges[0] = (from, from + 96);
            let small = u16::try_from(seed & 0xffff).expect("small");
            let used = u32::from(small);
            Entry { hash, tag: hash, version: seed, ranges, used, reads: small, writes: 1 }
        };
        seeds.into_iter().map(|seed| seed.map(entry)).collect()
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(entries in entries(), dirty in any::<u32>(), fill in any::<u64>()) {
        let there = (0..16).filter(|number| entries[*number].is_some());
        let dirty = dirty & there.fold(0, |bits, number| bits | 1 << number);
        let header = RunHeader { entries, dirty, fill, ..header() };
        prop_assert_eq!(decode(&header.encode(CACHE)).unwrap(), header);
    }
}

const GEOMETRY: Geometry = Geometry { rows: 64, columns: 300 };

fn index_band() -> IndexBand {
    let mut checks = [0; 64];
    (checks[0], checks[1]) = (0x0403_0201, 0x0807_0605);
    let place = Place { row: 2, column: 7 };
    IndexBand { device: 1, place, is_kept: true, band: 11, present: 3, checks }
}

#[test]
fn the_page_shows_the_bytes_of_an_index() {
    let head = IndexHead { devices: 2, bands: 1 };
    assert_eq!(head.index_bytes(), 24 + 2 * 32 + 288);
    assert_eq!(IndexHead::decode(&head.encode()).unwrap(), head);
    let band = index_band().encode();
    assert_eq!(IndexBand::decode(&band, GEOMETRY, 2).unwrap(), index_band());
    assert!(band[40..].iter().all(|byte| *byte == 0));
    for hex in [dump(&head.encode(), 0), dump(&band[..48], 0)] {
        assert!(PAGE.contains(&hex), "docs/formats/cache.md must contain\n{hex}");
    }
}

#[test]
fn an_index_is_read_within_its_bounds() {
    let head = IndexHead { devices: 2, bands: 1 }.encode();
    for len in 0..HEAD_BYTES {
        assert_eq!(IndexHead::decode(&head[..len]), Err(DecodeError::Short { have: len }));
    }
    let mut newer = head;
    newer[8] = 2;
    assert_eq!(IndexHead::decode(&newer), Err(DecodeError::Version { found: 2, known: 1 }));
    let mut other = head;
    other[0] ^= 1;
    assert_eq!(IndexHead::decode(&other), Err(DecodeError::Magic));
    assert!(decode_device(&[7; 31]).is_err() && decode_device(&[7; 32]).is_ok());
    let band = index_band().encode();
    assert!(IndexBand::decode(&band[..BAND_ENTRY_BYTES - 1], GEOMETRY, 2).is_err());
    assert!(IndexBand::decode(&band, GEOMETRY, 1).is_err(), "there is no such device");
    for (rows, columns) in [(2, 300), (64, 7)] {
        assert!(IndexBand::decode(&band, Geometry { rows, columns }, 2).is_err());
    }
    // Flags that nobody knows, and a band beyond any device.
    for (at, value) in [(12, 2), (13, 1), (16 + 7, 1)] {
        let mut wrong = band;
        wrong[at] = value;
        assert!(IndexBand::decode(&wrong, GEOMETRY, 2).is_err(), "{at}");
    }
}

#[test]
fn counters_of_a_superblock_have_room_for_one_more() {
    for (generation, opening) in [(u64::MAX, 3), (5, (1 << 24) - 1)] {
        let superblock = Superblock { generation, opening, ..superblock() };
        assert!(matches!(Superblock::decode(&superblock.encode()), Err(DecodeError::Field { .. })));
    }
}
