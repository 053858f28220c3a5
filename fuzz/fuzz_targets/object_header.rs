//! The header of a log object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::object::ObjectHeader;

fuzz_target!(|input: &[u8]| {
    let Ok(header) = ObjectHeader::decode(input) else { return };
    let mut end = 0;
    for extent in &header.extents {
        assert!(extent.offset >= end && extent.len > 0);
        end = extent.offset + extent.len;
    }
    for index in 0..header.frames.len() {
        let (at, len) = header.frame_place(index);
        assert!(at >= header.header_len() && len > 0);
    }
});
