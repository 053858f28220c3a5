//! The record that a probe leaves in a store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_store::ProbeRecord;

fuzz_target!(|input: &[u8]| {
    if let Ok(record) = ProbeRecord::decode(input) {
        assert_eq!(ProbeRecord::decode(&record.encode()), Ok(record));
    }
});
