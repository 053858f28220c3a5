//! The map against an obvious model, with ranges from a byte to the whole address space.

use proptest::prelude::*;
use weir_extent::{
    ADDRESS_END, BLOCK_BYTES, ExtentMap, PIECE_BYTES, REGION_BYTES, TARGET_MAX, Target,
};

use crate::common::{Dice, Pair};

const TABLE_BYTES: u64 = PIECE_BYTES * 1024;

/// Few places, so that operations meet.
fn offset() -> impl Strategy<Value = u64> {
    let anchor = prop_oneof![
        8 => Just(0),
        4 => Just(REGION_BYTES),
        2 => Just(REGION_BYTES * 5),
        3 => Just(PIECE_BYTES),
        2 => Just(PIECE_BYTES * 3),
        3 => Just(TABLE_BYTES),
        1 => Just(TABLE_BYTES * 7),
        1 => Just(ADDRESS_END - TABLE_BYTES * 2),
    ];
    let distance = prop_oneof![
        3 => 0..5u64,
        4 => (0..16u64).prop_map(|block| block * BLOCK_BYTES),
        3 => 0..20_000u64,
        2 => (0..4u64).prop_map(|region| region * REGION_BYTES),
        1 => 0..2 * REGION_BYTES,
        1 => Just(PIECE_BYTES),
    ];
    (anchor, distance, any::<bool>()).prop_map(|(anchor, distance, below)| {
        if below { u64::saturating_sub(anchor, distance) } else { anchor + distance }
    })
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 1..20u64,
        6 => (1..10u64).prop_map(|blocks| blocks * BLOCK_BYTES),
        4 => 1..12_000u64,
        3 => (1..4u64).prop_map(|regions| regions * REGION_BYTES),
        2 => REGION_BYTES - 3..REGION_BYTES + 3,
        2 => (1..3u64).prop_map(|pieces| pieces * PIECE_BYTES),
        1 => 1..3 * PIECE_BYTES,
        1 => (1..9u64).prop_map(|tables| tables * TABLE_BYTES),
        1 => 1..4 * TABLE_BYTES,
        1 => Just(ADDRESS_END),
    ]
}

/// `Follow` continues the mapping that a log would: address equals offset plus a constant.
#[derive(Clone, Copy, Debug)]
enum Aim {
    Nothing,
    Fixed(u64),
    Linear(u64),
    Follow(u64),
}

fn aim() -> impl Strategy<Value = Aim> {
    prop_oneof![
        3 => Just(Aim::Nothing),
        1 => (0..2u64).prop_map(Aim::Fixed),
        1 => Just(Aim::Fixed(TARGET_MAX)),
        4 => (0..1u64 << 40).prop_map(Aim::Linear),
        3 => (0..3u64).prop_map(|log| Aim::Follow(log << 30)),
    ]
}

fn target(aim: Aim, offset: u64, len: u64) -> Option<Target> {
    let linear = |address: u64| {
        let target = Target::Linear(address);
        if target.fits(len) { target } else { Target::Fixed(7) }
    };
    match aim {
        Aim::Nothing => None,
        Aim::Fixed(value) => Some(Target::Fixed(value)),
        Aim::Linear(address) => Some(linear(address)),
        Aim::Follow(add) => Some(linear((offset + add) & TARGET_MAX)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn any_ranges_behave_like_the_model(
        operations in prop::collection::vec((offset(), length(), aim(), 1..2000usize), 1..60),
    ) {
        let mut pair = Pair::default();
        for (step, (offset, len, aim, budget)) in operations.into_iter().enumerate() {
            let offset = offset.min(ADDRESS_END - 1);
            let len = len.min(ADDRESS_END - offset);
            pair.replace(offset, len, target(aim, offset, len), budget);
            pair.check_lookup(offset);
            pair.check_range(offset.saturating_sub(5000), len.min(ADDRESS_END - offset));
            if step % 16 == 5 {
                pair.check_dirty();
            }
            if step % 4 == 0 {
                pair.map.check_invariants();
            }
        }
        pair.check();
        pair.replace(0, ADDRESS_END, None, 100_000);
        prop_assert_eq!(pair.map.extents(), 0);
        pair.check();
    }
}

/// Many edits in few regions: lists grow through every class, turn dense and back.
fn churn(seed: u64, space: u64, steps: u64, unit: u64, len_max: u64) {
    let mut dice = Dice(seed | 1);
    let mut pair = Pair::default();
    for step in 0..steps {
        // Phases of filling and of emptying.
        let removing = dice.roll(8) < if (step / 1500) % 2 == 0 { 1 } else { 6 };
        let len = ((1 + dice.roll(len_max)) * unit).min(space);
        let offset = dice.roll((space - len) / unit + 1) * unit;
        let aim = match dice.roll(6) {
            _ if removing => Aim::Nothing,
            0 => Aim::Fixed(dice.roll(2)),
            1 => Aim::Follow(0),
            _ => Aim::Linear(dice.roll(1 << 45)),
        };
        pair.replace(offset, len, target(aim, offset, len), usize::MAX);
        if step % 509 == 0 {
            pair.check();
        }
    }
    pair.check();
    pair.check_dirty();
    pair.replace(0, space, None, 50);
    assert_eq!(pair.map.extents(), 0);
    pair.check();
}

#[test]
fn aligned_churn_turns_regions_dense_and_back() {
    churn(1, 3 * REGION_BYTES, 6000, BLOCK_BYTES, 2);
}

#[test]
fn unaligned_churn_goes_through_every_list_class() {
    churn(2, REGION_BYTES + 9000, 8000, 1, 4000);
}

#[test]
fn tiny_extents_crowd_blocks_of_dense_regions() {
    churn(3, 40_000, 6000, 1, 6);
    churn(4, REGION_BYTES, 6000, 512, 3);
}

#[test]
fn sparse_blocks_stay_inline() {
    churn(5, 600 * REGION_BYTES, 4000, BLOCK_BYTES, 1);
}

#[test]
fn a_block_holds_one_extent_per_byte() {
    let mut pair = Pair::default();
    for byte in (0..2 * BLOCK_BYTES).step_by(2) {
        pair.replace(byte, 1, Some(Target::Linear(byte * 100)), usize::MAX);
    }
    for byte in (1..2 * BLOCK_BYTES).step_by(2) {
        pair.replace(byte, 1, Some(Target::Linear(byte * 100)), usize::MAX);
    }
    assert_eq!(pair.map.extents(), 2 * BLOCK_BYTES);
    pair.check();
    assert_eq!(pair.map.take_crowded(9), vec![0, BLOCK_BYTES]);
    pair.replace(0, 2 * BLOCK_BYTES, Some(Target::Linear(0)), usize::MAX);
    assert_eq!(pair.map.extents(), 1);
    pair.check();
    assert!(pair.map.take_crowded(9).is_empty());
}

#[test]
fn crowded_blocks_are_reported_in_lists_and_after_splits() {
    let mut map = ExtentMap::new();
    for step in 0..17 {
        map.insert(BLOCK_BYTES + step * 10, 5, Target::Linear(step * 1000), |_| {});
    }
    assert_eq!(map.take_crowded(1), vec![BLOCK_BYTES]);
    assert_eq!(map.crowded_blocks(), 0);
    // Sixteen holes in one long extent leave seventeen pieces.
    let mut map = ExtentMap::new();
    map.insert(0, 3 * BLOCK_BYTES, Target::Linear(0), |_| {});
    for step in 1..17 {
        map.remove(BLOCK_BYTES + step * 10, 5, |_| {});
    }
    assert_eq!(map.take_crowded(1), vec![BLOCK_BYTES]);
}

#[test]
fn sequential_writes_leave_one_extent_per_piece_at_most() {
    let mut map = ExtentMap::new();
    for block in 0..2 * PIECE_BYTES / BLOCK_BYTES {
        let offset = block * BLOCK_BYTES;
        map.insert(offset, BLOCK_BYTES, Target::Linear(1 << 40 | offset), |_| {});
    }
    assert_eq!(map.extents(), 2);
    map.check_invariants();
    // Backwards as well, and over a dense region.
    let mut map = ExtentMap::new();
    for block in 0..128 {
        map.insert(block * BLOCK_BYTES, BLOCK_BYTES, Target::Linear((500 - block) << 20), |_| {});
    }
    assert_eq!(map.extents(), 128);
    for block in (0..128).rev() {
        map.insert(block * BLOCK_BYTES, BLOCK_BYTES, Target::Linear(block * BLOCK_BYTES), |_| {});
    }
    assert_eq!(map.extents(), 1);
    map.check_invariants();
}

#[test]
fn removing_what_is_not_mapped_dirties_nothing() {
    let mut map = ExtentMap::new();
    map.remove(0, ADDRESS_END, |_| panic!("nothing is mapped"));
    map.insert(5 * PIECE_BYTES, BLOCK_BYTES, Target::Linear(0), |_| {});
    assert_eq!(map.take_dirty(), vec![5]);
    map.remove(0, 5 * PIECE_BYTES, |_| panic!("nothing is mapped"));
    map.remove(5 * PIECE_BYTES + BLOCK_BYTES, ADDRESS_END / 2, |_| panic!("nothing is mapped"));
    assert!(!map.is_dirty());
    map.mark_dirty(5);
    assert_eq!(map.take_dirty(), vec![5]);
}

#[test]
fn an_emptied_map_gives_its_memory_back() {
    let mut map = ExtentMap::new();
    let mut dice = Dice(77);
    for _ in 0..200_000 {
        let block = dice.roll(1 << 20);
        map.insert(block * BLOCK_BYTES, BLOCK_BYTES, Target::Linear(dice.roll(1 << 50)), |_| {});
    }
    assert!(map.heap_bytes() > 2_000_000);
    map.remove(0, ADDRESS_END, |_| {});
    map.check_invariants();
    assert_eq!(map.extents(), 0);
    assert!(map.heap_bytes() < 100_000, "{} bytes are left", map.heap_bytes());
}

#[test]
#[should_panic(expected = "inside the address space")]
fn a_range_past_the_address_space_is_refused() {
    ExtentMap::new().remove(ADDRESS_END, 1, |_| {});
}

#[test]
#[should_panic(expected = "TARGET_MAX")]
fn an_address_past_the_target_space_is_refused() {
    ExtentMap::new().insert(0, 2, Target::Linear(TARGET_MAX), |_| {});
}
