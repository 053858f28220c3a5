//! The root, the index pages and the object table of a checkpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::checkpoint::{
    CheckpointRoot, decode_page, decode_table, encode_page, encode_table,
};

fuzz_target!(|input: &[u8]| {
    if let Ok(root) = CheckpointRoot::decode(input) {
        assert_eq!(root.encode(), input);
    }
    if let Ok(pieces) = decode_page(input) {
        assert_eq!(encode_page(&pieces), input);
    }
    if let Ok(records) = decode_table(input) {
        assert_eq!(decode_table(&encode_table(&records)).as_deref(), Ok(&records[..]));
    }
});
