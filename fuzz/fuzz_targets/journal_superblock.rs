//! A superblock of the journal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_journal::format::superblock::Superblock;

fuzz_target!(|input: &[u8]| {
    if let Ok(superblock) = Superblock::decode(input) {
        let again = Superblock::decode(&superblock.encode()).expect("what was read can be written");
        assert_eq!(again, superblock);
    }
});
