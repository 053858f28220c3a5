//! Encryption at rest of Weir: keys, how they are wrapped and derived, and sealed bytes.
//!
//! An operator's [`WrappingKey`] wraps the [`DataKey`] of a volume; from that a [`SealKey`] is derived for every object
//! and for every opening of a journal; it seals frames and pieces. All of it is AES-256-GCM and HKDF-SHA-256.
//! Blocks that a cache keeps are sealed under a [`BlockKey`], AES-256-CTR: their checks are in memory, not beside them.
//!
//! Invariants
//!  K1. Under one [`SealKey`] no nonce seals two texts. GCM gives both away otherwise. Whoever derives a key puts
//!      something random and never used before into its context, and counts nonces under it. A [`BlockKey`] may seal
//!      the same text again: the bytes at an address of a cached thing never change, and the nonce is the address.
//!  K2. Contexts of one [`Purpose`] have one length, so that two of them never run together into the same bytes.
//!  K3. No key is in a `Debug` text, and every key is wiped from memory when it goes.

mod block;
mod keys;
mod seal;

use zeroize::Zeroize;

pub use block::BlockKey;
pub use keys::{DataKey, KeyId, KeyTextError, Purpose, WRAPPED_BYTES, WrappedKey, WrappingKey};
#[cfg(feature = "audit")]
pub use seal::audit;
pub use seal::{Forged, NONCE_BYTES, SealKey, TAG_BYTES, counter_nonce};

/// Wipes a text that may hold keys from memory.
pub fn wipe(text: &mut Vec<u8>) {
    text.zeroize();
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_text_is_wiped() {
        let mut text = b"a key".to_vec();
        super::wipe(&mut text);
        assert_eq!(text, b"");
    }
}
