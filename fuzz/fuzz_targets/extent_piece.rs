//! Bytes as an encoded piece of an extent map.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_extent::ExtentMap;

const PIECE: u64 = 5;

fuzz_target!(|input: &[u8]| {
    let mut map = ExtentMap::new();
    let decoded = map.decode_piece(PIECE, input);
    map.check_invariants();
    assert!(!map.is_dirty());
    if decoded.is_err() {
        assert_eq!(map.extents(), 0);
        return;
    }
    // What decodes can be written, and means the same.
    let mut bytes = Vec::new();
    map.encode_piece(PIECE, &mut bytes);
    let mut copy = ExtentMap::new();
    copy.decode_piece(PIECE, &bytes).expect("what was encoded decodes");
    assert!(map.iter_range(0, 1 << 63).eq(copy.iter_range(0, 1 << 63)));
});
