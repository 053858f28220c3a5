//! The records of sessions that one process leaves to the next.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_node::fuzz_session_records;

fuzz_target!(|input: &[u8]| fuzz_session_records(input));
