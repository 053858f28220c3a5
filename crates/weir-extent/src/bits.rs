//! Named integer conversions, so that no cast in this crate can lose bits unseen.

/// The low 32 bits.
#[inline]
pub(crate) fn low32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).expect("masked to 32 bits")
}

/// A 32-bit index as a `usize`.
#[inline]
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).expect("usize holds 32 bits")
}

/// A 64-bit count as a `usize`.
#[inline]
pub(crate) fn size(value: u64) -> usize {
    usize::try_from(value).expect("usize holds 64 bits on every supported target")
}

/// A `usize` as 64 bits.
#[inline]
pub(crate) fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("u64 holds a usize")
}

/// A `usize` known to be small as 32 bits.
#[inline]
pub(crate) fn narrow(value: usize) -> u32 {
    u32::try_from(value).expect("counts inside one cell fit 32 bits")
}

/// Two 32-bit words, low first, as one 64-bit value.
#[inline]
pub(crate) fn join(words: [u32; 2]) -> u64 {
    u64::from(words[0]) | (u64::from(words[1]) << 32)
}

/// The inverse of [`join`].
#[inline]
pub(crate) fn split(value: u64) -> [u32; 2] {
    [low32(value), low32(value >> 32)]
}
