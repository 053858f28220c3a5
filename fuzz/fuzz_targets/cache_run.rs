//! The header of a run of the cache, at the place it says it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_cache::Place;
use weir_cache::format::CacheId;
use weir_cache::format::run::{RunHeader, RunPlace};

fuzz_target!(|input: &[u8]| {
    // Cache and place are the input's own, as they are for a run in its place.
    let number = |at: usize| Some(u32::from_le_bytes(input.get(at..at + 4)?.try_into().ok()?));
    let cache = input.get(16..32).and_then(|id| <[u8; 16]>::try_from(id).ok());
    let (Some(cache), Some(row), Some(column), Some(run), Some(blocks)) =
        (cache, number(32), number(36), number(40), number(44))
    else {
        return;
    };
    let at = RunPlace { place: Place { row, column }, run };
    let blocks = [1, 2, 4, 8, 16, 32].into_iter().find(|known| *known == blocks).unwrap_or(16);
    if let Ok(header) = RunHeader::decode(input, CacheId(cache), at, blocks) {
        let again = header.encode(CacheId(cache));
        assert_eq!(RunHeader::decode(&again, CacheId(cache), at, blocks).as_ref(), Ok(&header));
    }
});
