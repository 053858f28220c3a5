//! An encoded piece of an extent map.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_extent::{ExtentMap, PIECE_BYTES};

fuzz_target!(|input: &[u8]| {
    let mut map = ExtentMap::new();
    if map.decode_piece(3, input).is_ok() {
        map.check_invariants();
        let mut again = Vec::new();
        map.encode_piece(3, &mut again);
        let mut copy = ExtentMap::new();
        copy.decode_piece(3, &again).expect("what was read can be written");
        assert!(map.iter_range(0, 8 * PIECE_BYTES).eq(copy.iter_range(0, 8 * PIECE_BYTES)));
    }
});
