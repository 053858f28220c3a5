//! Keys: the operator's, a volume's, and what is derived from that.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use zeroize::Zeroizing;

use crate::block::BlockKey;
use crate::seal::{Forged, NONCE_BYTES, SealKey, TAG_BYTES};

/// Bytes of every key.
pub(crate) const KEY_BYTES: usize = 32;

/// Bytes of a wrapped key: nonce, sealed key, tag.
pub const WRAPPED_BYTES: usize = NONCE_BYTES + KEY_BYTES + TAG_BYTES;

const SALT: &[u8] = b"weir seal 1";
const WRAP_CONTEXT: &[u8] = b"weir wrapped data key 1";

/// Name of a key: derived from it one way, so it can be shown and stored. Two keys with the same name are the same key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 16]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// What a derived key is for: keys of two purposes never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The frames and the header of one object.
    Object,
    /// The pieces of one opening of a journal.
    Journal,
    /// Blocks that a cache on a local disk keeps of the objects of one opening: what they are sealed with.
    CachedBlocks,
    /// What those are checked with.
    CachedChecks,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Object => b"weir object 1",
            Self::Journal => b"weir journal 1",
            Self::CachedBlocks => b"weir cached blocks 1",
            Self::CachedChecks => b"weir cached checks 1",
        }
    }
}

/// Length of what HKDF is asked for.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive(secret: &[u8; KEY_BYTES], info: &[&[u8]], out: &mut [u8]) {
    let expanded = Salt::new(HKDF_SHA256, SALT).extract(secret);
    let filled = expanded.expand(info, Bytes(out.len())).and_then(|okm| okm.fill(out));
    filled.expect("HKDF-SHA-256 gives up to 8160 bytes");
}

fn id_of(secret: &[u8; KEY_BYTES], label: &[u8]) -> KeyId {
    let mut id = [0; 16];
    derive(secret, &[label], &mut id);
    KeyId(id)
}

/// The key of a volume, drawn once and never changed. Cheap to clone.
#[derive(Clone)]
pub struct DataKey {
    secret: Arc<Zeroizing<[u8; KEY_BYTES]>>,
    id: KeyId,
}

impl DataKey {
    /// A new key out of 32 random bytes, which `fill` gives.
    pub fn draw(fill: impl FnOnce(&mut [u8])) -> Self {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        fill(&mut secret[..]);
        Self::of(secret)
    }

    fn of(secret: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let id = id_of(&secret, b"weir data key id 1");
        Self { secret: Arc::new(secret), id }
    }

    /// Its name: the key-check value.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key of one thing. `context` names it, and holds something random (K1).
    #[must_use]
    pub fn derive(&self, purpose: Purpose, context: &[&[u8]]) -> SealKey {
        SealKey::new(&self.derived(purpose, context))
    }

    /// The keys of blocks that are cached of one thing. `context` names it, and holds something random (K1).
    #[must_use]
    pub fn block_key(&self, context: &[&[u8]]) -> BlockKey {
        let cipher = self.derived(Purpose::CachedBlocks, context);
        BlockKey::new(self.id, &cipher, self.derived(Purpose::CachedChecks, context))
    }

    fn derived(&self, purpose: Purpose, context: &[&[u8]]) -> Zeroizing<[u8; KEY_BYTES]> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let context = context.concat();
        derive(&self.secret, &[purpose.label(), &context], &mut key[..]);
        key
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey({})", self.id)
    }
}

/// A data key as it may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// The key that it is wrapped with.
    pub wrapped_with: KeyId,
    /// Nonce, sealed key, tag.
    pub bytes: [u8; WRAPPED_BYTES],
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// No line with a key in it.
    #[error(
        "it holds no key: a key is a line of 64 hex digits, as `openssl rand -hex 32` makes one"
    )]
    Empty,
    /// A line that is something else. It is not shown: it may be a key with a typing mistake.
    #[error(
        "line {line} is no key: a key is a line of 64 hex digits, as `openssl rand -hex 32` makes one"
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
    },
}

/// An operator's key, which wraps data keys.
#[derive(Clone)]
pub struct WrappingKey {
    secret: Arc<Zeroizing<[u8; KEY_BYTES]>>,
    id: KeyId,
}

impl WrappingKey {
    /// The key of these bytes.
    #[must_use]
    pub fn of(secret: [u8; KEY_BYTES]) -> Self {
        let secret = Zeroizing::new(secret);
        let id = id_of(&secret, b"weir wrapping key id 1");
        Self { secret: Arc::new(secret), id }
    }

    /// The keys in a text: one per line, 64 hex digits. Empty lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// [`KeyTextError`] where a line is something else, or there is none.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, KeyTextError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                keys.push(Self::parse(line).ok_or(KeyTextError::Line { line: index + 1 })?);
            }
        }
        if keys.is_empty() { Err(KeyTextError::Empty) } else { Ok(keys) }
    }

    fn parse(digits: &str) -> Option<Self> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in secret.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self::of(*secret))
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Wraps a data key. `nonce` is random: few keys are ever wrapped, so that none comes twice.
    #[must_use]
    pub fn wrap(&self, key: &DataKey, nonce: [u8; NONCE_BYTES]) -> WrappedKey {
        let mut bytes = [0; WRAPPED_BYTES];
        bytes[..NONCE_BYTES].copy_from_slice(&nonce);
        let (sealed, tag) = bytes[NONCE_BYTES..].split_at_mut(KEY_BYTES);
        sealed.copy_from_slice(&key.secret[..]);
        tag.copy_from_slice(&SealKey::new(&self.secret).seal(nonce, WRAP_CONTEXT, sealed));
        WrappedKey { wrapped_with: self.id, bytes }
    }

    /// The data key in `wrapped`.
    ///
    /// # Errors
    /// [`Forged`] if it was wrapped with another key, or was changed since.
    pub fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<DataKey, Forged> {
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&wrapped.bytes[..NONCE_BYTES]);
        let (sealed, tag) = wrapped.bytes[NONCE_BYTES..].split_at(KEY_BYTES);
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        SealKey::new(&self.secret).open_into(
            nonce,
            WRAP_CONTEXT,
            (sealed, tag),
            &mut secret[..],
        )?;
        Ok(DataKey::of(secret))
    }
}

impl fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappingKey({})", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_key(byte: u8) -> DataKey {
        DataKey::draw(|bytes| bytes.fill(byte))
    }

    #[test]
    fn a_wrapped_key_opens_with_its_key_only_and_no_bit_of_it_may_change() {
        let (kek, other) = (WrappingKey::of([1; 32]), WrappingKey::of([2; 32]));
        let wrapped = kek.wrap(&data_key(7), [9; NONCE_BYTES]);
        assert_eq!(kek.unwrap_key(&wrapped).unwrap().id(), data_key(7).id());
        assert!(other.unwrap_key(&wrapped).is_err());
        for bit in 0..WRAPPED_BYTES * 8 {
            let mut changed = wrapped;
            changed.bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(kek.unwrap_key(&changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn keys_are_shown_by_their_names_only() {
        let (kek, data) = (WrappingKey::of([0xab; 32]), data_key(0xcd));
        assert_eq!(format!("{:?}", data.id()), format!("KeyId({})", data.id()));
        assert_eq!(
            format!("{kek:?} {data:?}"),
            format!("WrappingKey({}) DataKey({})", kek.id(), data.id())
        );
    }

    /// What is stored in manifests, headers and superblocks for ever.
    #[test]
    fn derivation_and_wrapping_are_frozen() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let kek = WrappingKey::of([1; 32]);
        let sealed = |purpose| {
            let mut text = *b"weir";
            let key = data_key(7).derive(purpose, &[b"con", b"text"]);
            let tag = key.seal([3; NONCE_BYTES], b"aad", &mut text);
            format!("{} {}", hex(&text), hex(&tag))
        };
        let found = [
            kek.id().to_string(),
            data_key(7).id().to_string(),
            hex(&kek.wrap(&data_key(7), [9; NONCE_BYTES]).bytes),
            sealed(Purpose::Object),
            sealed(Purpose::Journal),
        ];
        assert_eq!(found.join("\n"), include_str!("../testdata/v1/frozen.txt").trim_end());
    }

    #[test]
    fn keys_are_read_one_per_line_and_no_mistake_is_repeated_to_the_terminal() {
        let (one, two) = ("0f".repeat(32), "Ab".repeat(32));
        let keys = WrappingKey::parse_all(&format!("# new\n{one}\n\n  {two}\r\n")).unwrap();
        let ids = keys.iter().map(WrappingKey::id).collect::<Vec<_>>();
        assert_eq!(ids, [WrappingKey::of([0x0f; 32]).id(), WrappingKey::of([0xab; 32]).id()]);
        assert_eq!(WrappingKey::parse_all("# none\n").unwrap_err(), KeyTextError::Empty);
        for wrong in [&one[1..], "hunter2", &format!("{one}0"), &format!("+{}", &one[1..])] {
            let error = WrappingKey::parse_all(&format!("\n{wrong}")).unwrap_err();
            assert_eq!(error, KeyTextError::Line { line: 2 });
            assert!(!error.to_string().contains(wrong));
        }
    }

    #[test]
    fn no_key_shows_itself() {
        let texts = [format!("{:?}", WrappingKey::of([0x5a; 32])), format!("{:?}", data_key(0x5a))];
        for text in texts {
            assert!(!text.contains("5a5a") && !text.contains("90, 90"), "{text}");
        }
    }
}
