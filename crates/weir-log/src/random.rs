//! Randomness for what runs on another thread than the volume's.

/// A small generator for the jitter of one upload, which runs on another thread than the volume's randomness.
pub(crate) fn splitmix(seed: u64) -> impl FnMut() -> u64 + Send {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
