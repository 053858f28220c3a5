//! A superblock of the cache.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_cache::format::superblock::Superblock;

fuzz_target!(|input: &[u8]| {
    if let Ok(superblock) = Superblock::decode(input) {
        assert!(superblock.index_offset() > 0);
        let again = Superblock::decode(&superblock.encode()).expect("what was read can be written");
        assert_eq!(again, superblock);
    }
});
