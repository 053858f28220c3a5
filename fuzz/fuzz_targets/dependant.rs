//! The note that a clone leaves with a volume it depends on, and its key.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::dependant::{Dependant, DependantRecord};

fuzz_target!(|input: &[u8]| {
    if let Ok(key) = std::str::from_utf8(input)
        && let Some(note) = Dependant::parse_key(key)
    {
        assert_eq!(note.key(), key);
    }
    let Ok(record) = serde_json::from_slice::<DependantRecord>(input) else { return };
    let text = record.encode();
    let again =
        serde_json::from_slice::<DependantRecord>(&text).expect("what was read can be written");
    assert!(again.is_intact());
    assert_eq!(DependantRecord { checksum: record.checksum.clone(), ..again }, record);
});
