//! Operations on an extent map against one target per byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_extent::{ExtentMap, Target};

const SIZE: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let mut map = ExtentMap::new();
    // Around the border of two regions.
    let base = (1 << 19) - (SIZE as u64) / 2;
    let mut model: Vec<Option<Target>> = vec![None; SIZE];
    for step in input.chunks_exact(6) {
        let start = usize::from(u16::from_le_bytes([step[0], step[1]])) % SIZE;
        let len = (usize::from(u16::from_le_bytes([step[2], step[3]])) % (SIZE - start)).max(1);
        let address = u64::from(step[4]) << 20;
        let range = start..start + len;
        let mut displaced = 0;
        let mapped = model[range.clone()].iter().flatten().count() as u64;
        let target = match step[5] % 3 {
            0 => None,
            1 => Some(Target::Linear(address)),
            _ => Some(Target::Fixed(address)),
        };
        let (offset, bytes) = (base + start as u64, len as u64);
        match target {
            None => map.remove(offset, bytes, |old| displaced += old.len),
            Some(target) => map.insert(offset, bytes, target, |old| displaced += old.len),
        }
        assert_eq!(displaced, mapped);
        for (at, byte) in model[range].iter_mut().enumerate() {
            *byte = target.map(|target| target.advance(at as u64));
        }
    }
    map.check_invariants();
    for (at, expected) in model.iter().enumerate() {
        let found = map.lookup(base + at as u64).map(|mapping| mapping.target);
        assert_eq!(found, *expected);
    }
});
