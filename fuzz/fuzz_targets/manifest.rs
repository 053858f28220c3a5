//! A manifest and a name record.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::manifest::Manifest;
use weir_log::format::name::NameRecord;
use weir_log::ObjectSeq;

fuzz_target!(|input: &[u8]| {
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(input) {
        let owner = manifest.owner_of(ObjectSeq(7));
        assert!(owner.is_none() || !manifest.epochs.is_empty());
        let text = serde_json::to_vec(&manifest).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<Manifest>(&text).ok(), Some(manifest));
    }
    if let Ok(record) = NameRecord::decode(input, "demo", 1) {
        assert_eq!(NameRecord::decode(&record.encode(), "demo", 1).ok().map(|r| r.volume), Some(record.volume));
    }
});
