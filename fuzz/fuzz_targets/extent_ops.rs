//! Edits of an extent map, compared with the model of its tests.
#![no_main]

#[path = "../../crates/weir-extent/tests/all/common.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod common;

use libfuzzer_sys::fuzz_target;
use weir_extent::{ADDRESS_END, BLOCK_BYTES, PIECE_BYTES, REGION_BYTES, TARGET_MAX, Target};

/// Five bytes are one edit: shape, two bytes of place, one of length, one of target.
fuzz_target!(|input: &[u8]| {
    let units = [1, 512, BLOCK_BYTES, REGION_BYTES, PIECE_BYTES, PIECE_BYTES * 1024];
    let mut pair = common::Pair::default();
    for edit in input.chunks_exact(5).take(400) {
        let [shape, low, high, len, aim] = edit else { unreachable!("chunks of five") };
        let offset_unit = units[usize::from(shape & 15) % units.len()];
        let len_unit = units[usize::from(shape >> 4) % units.len()];
        let offset = u64::from(u16::from_le_bytes([*low, *high])).saturating_mul(offset_unit);
        let offset = offset.min(ADDRESS_END - 1);
        let len = ((u64::from(*len) + 1) * len_unit).min(ADDRESS_END - offset);
        let target = match aim % 8 {
            0 | 1 => None,
            2 => Some(Target::Fixed(u64::from(*aim >> 6))),
            3 => Some(Target::Linear(offset & TARGET_MAX)),
            _ => Some(Target::Linear(u64::from(*aim) << 40 | u64::from(*low) << 20)),
        };
        let target = target.filter(|target| target.fits(len));
        pair.replace(offset, len, target, 1 + usize::from(*aim) * 16);
    }
    pair.check();
    pair.check_dirty();
});
