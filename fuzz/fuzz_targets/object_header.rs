//! The header of a log object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::object::{ExtentKind, ObjectHeader, ObjectKind};

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
        let _ = header.blocks(index);
    }
    // Every extent lies within the payload, and no two of them touch.
    let mut placement = header.placement();
    let mut places = Vec::new();
    for extent in header.extents.iter().filter(|extent| extent.kind == ExtentKind::Data) {
        let begin = placement.place(extent);
        places.push((begin, begin + extent.len));
    }
    places.sort_unstable();
    if header.kind != ObjectKind::Checkpoint {
        let mut end = 0;
        for (begin, to) in places {
            assert_eq!(begin, end);
            end = to;
        }
        assert_eq!(end, header.payload_len());
    }
});
