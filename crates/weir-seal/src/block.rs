//! Sealed blocks of a cache: AES-256-CTR, each under the nonce of its address.
//!
//! The same bytes stand at an address for ever, so that a nonce always seals the same text (K1). There is no tag: who
//! reads a block checks it with a keyed hash, which [`BlockKey::check_key`] is for.

use std::fmt;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use zeroize::Zeroizing;

use crate::keys::{KEY_BYTES, KeyId};
use crate::seal::NONCE_BYTES;

/// The keys of what a cache keeps of one thing.
pub struct BlockKey {
    cipher: EncryptingKey,
    check: Zeroizing<[u8; KEY_BYTES]>,
    id: KeyId,
}

impl BlockKey {
    pub(crate) fn new(
        id: KeyId,
        cipher: &[u8; KEY_BYTES],
        check: Zeroizing<[u8; KEY_BYTES]>,
    ) -> Self {
        let unbound = UnboundCipherKey::new(&AES_256, cipher).expect("a key of 32 bytes");
        let cipher = EncryptingKey::ctr(unbound).expect("AES has a counter mode");
        Self { cipher, check, id }
    }

    /// Seals `bytes` where they are, or opens them: once more makes them what they were. `nonce` is their address.
    ///
    /// # Panics
    /// Beyond 64 GiB, which nothing here comes near.
    pub fn apply(&self, nonce: [u8; NONCE_BYTES], bytes: &mut [u8]) {
        let mut counter = [0; 16];
        counter[..NONCE_BYTES].copy_from_slice(&nonce);
        let context = EncryptionContext::Iv128(FixedLength::from(counter));
        self.cipher.less_safe_encrypt(bytes, context).expect("far below the limit of the counter");
    }

    /// Name of the key of the volume that it is derived from.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key of the hash by which sealed blocks are checked.
    #[must_use]
    pub fn check_key(&self) -> &[u8; KEY_BYTES] {
        &self.check
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockKey")
    }
}

#[cfg(test)]
mod tests {
    use crate::{DataKey, counter_nonce};

    #[test]
    fn blocks_are_sealed_by_key_and_address_and_opened_by_the_same() {
        let key = |byte: u8| DataKey::draw(|bytes| bytes.fill(byte));
        let text = [7_u8; 100];
        let sealed = |byte, context: &[u8], nonce| {
            let mut bytes = text;
            key(byte).block_key(&[context]).apply(nonce, &mut bytes);
            bytes
        };
        let nonce = counter_nonce(1, 2);
        let first = sealed(1, b"one", nonce);
        assert_eq!(sealed(1, b"one", nonce), first);
        let others = [
            text,
            sealed(2, b"one", nonce),
            sealed(1, b"two", nonce),
            sealed(1, b"one", counter_nonce(1, 3)),
            sealed(1, b"one", counter_nonce(2, 2)),
        ];
        assert!(!others.contains(&first));
        let mut opened = first;
        key(1).block_key(&[b"one"]).apply(nonce, &mut opened);
        assert_eq!(opened, text);
        let check = |byte, context: &[u8]| *key(byte).block_key(&[context]).check_key();
        assert_ne!(check(1, b"one"), check(1, b"two"));
        assert_ne!(check(1, b"one"), check(2, b"one"));
        assert_eq!(format!("{:?}", key(1).block_key(&[])), "BlockKey");
    }

    /// What lies in cache files.
    #[test]
    fn sealed_blocks_are_frozen() {
        let key = DataKey::draw(|bytes| bytes.fill(7)).block_key(&[b"con", b"text"]);
        let mut text = *b"weir";
        key.apply(counter_nonce(3, 4), &mut text);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let found = format!("{} {}", hex(&text), hex(key.check_key()));
        assert_eq!(found, include_str!("../testdata/v1/frozen-blocks.txt").trim_end());
    }
}
