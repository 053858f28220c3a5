//! The record of how far a copy has come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_node::{CopyRecord, CopyRecordError};

fuzz_target!(|input: &[u8]| {
    let decoded: Result<CopyRecord, CopyRecordError> = CopyRecord::decode(input);
    if let Ok(record) = decoded {
        assert_eq!(CopyRecord::decode(&record.encode()), Ok(record));
    }
});
