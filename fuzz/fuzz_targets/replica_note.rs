//! A note that a replicator leaves at its source.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_log::format::replica::ReplicaNote;

fuzz_target!(|input: &[u8]| {
    let Some(note) = ReplicaNote::decode(input) else { return };
    assert_eq!(ReplicaNote::decode(&note.encode()), Some(note));
});
