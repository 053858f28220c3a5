//! The index that a cache saved: its head, a device and a band.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_cache::Geometry;
use weir_cache::format::index::{IndexBand, IndexHead, decode_device};

const GEOMETRY: Geometry = Geometry { rows: 64, columns: 300 };

fuzz_target!(|input: &[u8]| {
    if let Ok(head) = IndexHead::decode(input) {
        assert!(head.index_bytes() >= head.encode().len() as u64);
        assert_eq!(IndexHead::decode(&head.encode()).expect("what was read can be written"), head);
    }
    if let Ok(device) = decode_device(input) {
        assert!(input.starts_with(&device.0));
    }
    if let Ok(band) = IndexBand::decode(input, GEOMETRY, 7) {
        assert!(band.place.row < 64 && band.place.column < 300 && band.device < 7);
        let again = IndexBand::decode(&band.encode(), GEOMETRY, 7);
        assert_eq!(again.expect("what was read can be written"), band);
    }
});
