//! A trace in any format, guessed or named.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_trace::Format;

fuzz_target!(|input: &[u8]| {
    for format in Format::ALL.into_iter().map(Some).chain([None]) {
        let Ok(trace) = weir_trace::read(std::io::Cursor::new(input.to_vec()), "input", format) else {
            continue;
        };
        for request in trace {
            let Ok(request) = request else { break };
            let end = request.offset.checked_add(request.len);
            assert!(end.is_some_and(|end| end <= i64::MAX as u64), "within what can be addressed");
        }
    }
});
