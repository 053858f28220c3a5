//! A record header of the journal, at the place it says it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::VolumeId;
use weir_journal::format::record::RecordHeader;
use weir_journal::{Identity, JournalId, JournalPos};

fuzz_target!(|input: &[u8]| {
    let identity = Identity { volume: VolumeId([1; 16]), journal: JournalId([2; 16]) };
    if let Ok(header) = RecordHeader::decode(&identity, JournalPos(4096), input) {
        assert!(!header.pieces.is_empty());
        assert!(header.end() > header.position);
    }
});
