//! The encoding of pieces: round trips, frozen bytes, damage.

use proptest::prelude::*;
use weir_extent::{
    ADDRESS_END, BLOCK_BYTES, DecodeError, ExtentMap, PIECE_BYTES, REGION_BYTES, TARGET_MAX, Target,
};

use crate::common::{Dice, Pair};

fn encode(map: &ExtentMap, piece: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    map.encode_piece(piece, &mut bytes);
    bytes
}

/// Every piece of a map, moved into a new one.
fn copy(map: &ExtentMap, pieces: impl Iterator<Item = u64>) -> ExtentMap {
    let mut fresh = ExtentMap::new();
    for piece in pieces {
        fresh.decode_piece(piece, &encode(map, piece)).expect("what was encoded decodes");
    }
    fresh
}

fn mappings(map: &ExtentMap) -> Vec<weir_extent::Mapping> {
    map.iter_range(0, ADDRESS_END).collect()
}

/// A map with sparse, listed, dense, crowded and uniform regions in three pieces.
fn mixed(seed: u64) -> ExtentMap {
    let mut dice = Dice(seed);
    let mut map = ExtentMap::new();
    map.insert(PIECE_BYTES - 7, PIECE_BYTES + 99, Target::Linear(123_456_789), |_| {});
    map.insert(PIECE_BYTES / 2, REGION_BYTES * 5 + 5, Target::Fixed(3), |_| {});
    for _ in 0..4000 {
        let block = dice.roll(3) * PIECE_BYTES + dice.roll(2000) * BLOCK_BYTES;
        map.insert(block, BLOCK_BYTES, Target::Linear(dice.roll(1 << 55)), |_| {});
        let offset = REGION_BYTES * 40 + dice.roll(REGION_BYTES * 10);
        map.insert(offset, 1 + dice.roll(5000), Target::Linear(dice.roll(1 << 30)), |_| {});
        let offset = REGION_BYTES * 60 + dice.roll(9000);
        map.insert(offset, 1 + dice.roll(9), Target::Fixed(dice.roll(TARGET_MAX)), |_| {});
        map.remove(dice.roll(3 * PIECE_BYTES), 1 + dice.roll(9000), |_| {});
    }
    map
}

#[test]
fn every_piece_survives_a_round_trip() {
    for seed in 1..6 {
        let map = mixed(seed * 0x9e37_79b9);
        let mut copied = copy(&map, 0..4);
        assert_eq!(mappings(&map), mappings(&copied));
        copied.check_invariants();
        assert!(!copied.is_dirty(), "what was decoded equals its checkpoint");
        for piece in 0..4 {
            assert_eq!(encode(&map, piece), encode(&copied, piece));
        }
        let mut crowded = copied.take_crowded(1 << 20);
        crowded.retain(|block| copied.iter_range(*block, BLOCK_BYTES).count() > 16);
        assert!(!crowded.is_empty(), "crowded blocks are noticed while decoding");
        // The copy goes on as the original would.
        copied.remove(0, ADDRESS_END, |_| {});
        copied.check_invariants();
        assert_eq!(copied.extents(), 0);
    }
}

#[test]
fn a_uniform_piece_costs_one_slot() {
    let mut map = ExtentMap::new();
    map.insert(0, PIECE_BYTES, Target::Linear(1 << 40), |_| {});
    let copied = copy(&map, 0..1);
    assert_eq!(copied.extents(), 1);
    assert_eq!(mappings(&copied), mappings(&map));
    copied.check_invariants();
}

#[test]
fn random_blocks_take_at_most_twelve_bytes() {
    let mut dice = Dice(4711);
    let mut map = ExtentMap::new();
    for _ in 0..30_000 {
        let block = dice.roll(PIECE_BYTES / BLOCK_BYTES);
        map.insert(block * BLOCK_BYTES, BLOCK_BYTES, Target::Linear(dice.roll(1 << 55)), |_| {});
    }
    let count = map.iter_range(0, PIECE_BYTES).count();
    let bytes = encode(&map, 0).len();
    assert!(bytes <= 12 * count, "{bytes} bytes for {count} extents");
}

/// The example of docs/formats/extent-piece.md.
#[test]
fn the_documented_example_is_what_is_written() {
    let mut map = ExtentMap::new();
    map.insert(8192, 4096, Target::Linear(0x12_3456), |_| {});
    map.insert(12_288, 4096, Target::Linear(0x12_4556), |_| {});
    map.insert(20_000, 100, Target::Fixed(1), |_| {});
    map.insert(1 << 20, 512 << 10, Target::Linear(0), |_| {});
    #[rustfmt::skip]
    let expected = [
        0x01, 0x04, 0x00, 0x00, 0x00,
        0x63, 0x02, 0x01, 0x56, 0x34, 0x12,
        0xca, 0x00, 0x01,
        0x39, 0xa0, 0x1c, 0x64, 0x01,
        0x20, 0xfc, 0xe2, 0x3e, 0x80, 0x80, 0x20,
    ];
    assert_eq!(encode(&map, 0), expected, "{:02x?}", encode(&map, 0));
    let copied = copy(&map, 0..1);
    assert_eq!(mappings(&copied), mappings(&map));
}

#[test]
fn an_empty_piece_is_its_header() {
    let map = ExtentMap::new();
    assert_eq!(encode(&map, 9), [1, 0, 0, 0, 0]);
    let copied = copy(&map, 0..9);
    assert_eq!(copied.extents(), 0);
}

#[test]
fn every_truncation_is_refused_and_leaves_the_piece_empty() {
    let map = mixed(99);
    let bytes = encode(&map, 0);
    let mut fresh = ExtentMap::new();
    let step = |at: usize| if at < 300 || at + 300 > bytes.len() { 1 } else { 97 };
    let mut at = 0;
    while at < bytes.len() {
        let error = fresh.decode_piece(0, &bytes[..at]).expect_err("a prefix is not a piece");
        assert!(matches!(error, DecodeError::Truncated { .. }), "{at}: {error}");
        at += step(at);
    }
    fresh.check_invariants();
    assert_eq!(fresh.extents(), 0);
    assert!(!fresh.is_dirty());
    assert_eq!(fresh.crowded_blocks(), 0);
    fresh.decode_piece(0, &bytes).expect("the whole is");
}

#[test]
fn a_decode_needs_an_empty_piece_that_exists() {
    let mut map = ExtentMap::new();
    map.insert(PIECE_BYTES + 5, 1, Target::Fixed(0), |_| {});
    let bytes = encode(&map, 1);
    assert_eq!(map.decode_piece(1, &bytes), Err(DecodeError::Occupied { piece: 1 }));
    let last = ADDRESS_END / PIECE_BYTES;
    assert_eq!(map.decode_piece(last, &bytes), Err(DecodeError::PieceNumber { piece: last }));
    assert_eq!(map.decode_piece(last - 1, &bytes), Ok(()));
    map.check_invariants();
}

fn rule_broken(body: &[u8]) -> bool {
    let mut bytes = vec![1, 1, 0, 0, 0];
    bytes.extend_from_slice(body);
    matches!(ExtentMap::new().decode_piece(0, &bytes), Err(DecodeError::Entry { at: 5, .. }))
}

#[test]
fn entries_that_break_a_rule_are_refused() {
    assert!(rule_broken(&[0x00, 0x00]), "an empty extent");
    assert!(rule_broken(&[0x80]), "the same length as no extent before");
    assert!(rule_broken(&[0x20, 0x00, 0x01]), "a gap of nothing");
    assert!(rule_broken(&[0x00, 0x81, 0x00]), "a superfluous varint byte");
    assert!(rule_broken(&[0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), "a long varint");
    assert!(rule_broken(&[0x01, 0x01, 0x00]), "a superfluous value byte");
    assert!(rule_broken(&[0x40, 0x81, 0x80, 0x08]), "an extent past the piece");
    assert!(rule_broken(&[0x20, 0x80, 0x80, 0x80, 0x80, 0x02, 0x01]), "a gap past the piece");
    assert!(rule_broken(&[0x07, 0x02, 255, 255, 255, 255, 255, 255, 255]), "an address too high");
    assert!(rule_broken(&[0x11, 0x01, 0x01]), "an address below zero");
    assert!(!rule_broken(&[0x07, 0x01, 255, 255, 255, 255, 255, 255, 255]), "the last address");
}

#[test]
fn other_versions_and_trailing_bytes_are_refused() {
    let mut map = ExtentMap::new();
    assert_eq!(map.decode_piece(0, &[2, 0, 0, 0, 0]), Err(DecodeError::Version { found: 2 }));
    let trailing = map.decode_piece(0, &[1, 0, 0, 0, 0, 9]);
    assert_eq!(trailing, Err(DecodeError::Trailing { bytes: 1 }));
    let trailing = map.decode_piece(0, &[1, 1, 0, 0, 0, 0x18, 1, 0]);
    assert_eq!(trailing, Err(DecodeError::Trailing { bytes: 1 }));
    assert_eq!(map.extents(), 0);
    map.check_invariants();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn garbage_never_panics(
        count in 0..20u8,
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = vec![1, count, 0, 0, 0];
        bytes.extend(body);
        let mut map = ExtentMap::new();
        match map.decode_piece(3, &bytes) {
            Ok(()) => {
                // What decodes has one meaning, and can be written again.
                let copied = copy(&map, 3..4);
                prop_assert_eq!(mappings(&map), mappings(&copied));
            }
            Err(_) => prop_assert_eq!(map.extents(), 0),
        }
        map.check_invariants();
    }

    #[test]
    fn a_flipped_byte_never_panics(
        seed in 1..u64::MAX,
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let mut dice = Dice(seed);
        let mut map = ExtentMap::new();
        for _ in 0..dice.roll(300) {
            let offset = dice.roll(2 * REGION_BYTES);
            map.insert(offset, 1 + dice.roll(9000), Target::Linear(dice.roll(1 << 56) / 2), |_| {});
        }
        let mut bytes = encode(&map, 0);
        let at = at.index(bytes.len());
        bytes[at] = to;
        let mut fresh = ExtentMap::new();
        if fresh.decode_piece(0, &bytes).is_err() {
            prop_assert_eq!(fresh.extents(), 0);
        }
        fresh.check_invariants();
    }

    #[test]
    fn edits_after_a_decode_behave_like_the_model(
        edits in prop::collection::vec((0..4 * REGION_BYTES, 1..30_000u64, 0..4u64), 1..60),
    ) {
        let mut pair = Pair::default();
        for (step, (offset, len, kind)) in edits.into_iter().enumerate() {
            let target = (kind > 0).then_some(Target::Linear(offset + (kind << 40)));
            pair.replace(offset, len, target, usize::MAX);
            if step % 20 == 19 {
                pair.map = copy(&pair.map, 0..1);
            }
        }
        pair.check();
    }
}

#[test]
fn a_crowded_block_of_a_later_region_is_found_where_it_is() {
    let block = PIECE_BYTES + 3 * REGION_BYTES + 5 * BLOCK_BYTES;
    let mut map = ExtentMap::new();
    for step in 0..17 {
        map.insert(block + step * 10, 5, Target::Linear(step * 1000), |_| {});
    }
    assert_eq!(copy(&map, 1..2).take_crowded(9), [block]);
}
