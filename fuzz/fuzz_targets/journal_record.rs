//! A record header of the journal, at the place it says it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_device::VolumeId;
use weir_journal::format::record::RecordHeader;
use weir_journal::{Identity, JournalId, JournalPos};

fuzz_target!(|input: &[u8]| {
    // Identity and place are the input's own, as they are for a record in its place.
    let field = |at: usize| input.get(at..at + 16).and_then(|b| <[u8; 16]>::try_from(b).ok());
    let fields = (field(16), field(32), field(64));
    let (Some(volume), Some(journal), Some(rest)) = fields else { return };
    let position = JournalPos(u64::from_le_bytes(rest[..8].try_into().expect("eight bytes")));
    let identity = Identity { volume: VolumeId(volume), journal: JournalId(journal) };
    if let Ok(header) = RecordHeader::decode(&identity, position, input) {
        assert!(!header.pieces.is_empty());
        // Positions are believed only where recovery reads them, far below the end of 64 bits.
        if position.0 < 1 << 60 {
            assert!(header.end() > header.position);
        }
    }
});
