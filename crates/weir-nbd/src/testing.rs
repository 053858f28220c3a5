//! What the tests of this crate share.

/// The bytes of hex digits; white space is for the eye.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2), "whole bytes");
    let pair = |pair: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).expect("hex digits")
    };
    digits.chunks(2).map(pair).collect()
}
