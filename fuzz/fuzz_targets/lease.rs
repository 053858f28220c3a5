//! A renewal of a node's lease.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::lease::LeaseRecord;

fuzz_target!(|input: &[u8]| {
    let Ok(record) = serde_json::from_slice::<LeaseRecord>(input) else { return };
    let text = record.encode();
    let again = serde_json::from_slice::<LeaseRecord>(&text).expect("what was read can be written");
    assert!(again.is_intact());
    assert_eq!(LeaseRecord { checksum: record.checksum.clone(), ..again }, record);
});
