//! Where the keys of encrypted volumes come from, and how a volume's own key is wrapped and unwrapped.
//!
//! A volume has one data key, drawn when it is created and never changed. Its manifest keeps it, wrapped with a key of
//! the operator's, and a key-check value: the name of the data key. An opening unwraps and checks it before anything
//! is written, so that a key that is missing, wrong or changed never costs more than a message.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use weir_device::{Env, ErrorKind, VolumeId};
use weir_seal::{DataKey, KeyId, NONCE_BYTES, WRAPPED_BYTES, WrappedKey, WrappingKey};

use crate::format::manifest::{CIPHER, Encryption, HexId};

/// What can be wrong with a key. None of it has changed anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The volume is encrypted, and no key is configured.
    #[error(
        "volume {volume} is encrypted under key {wanted}, and no key is configured: name it with --key-file, \
         --key-command or WEIR_KEY"
    )]
    Missing {
        /// The volume.
        volume: VolumeId,
        /// The operator's key that it is wrapped with.
        wanted: KeyId,
    },
    /// The keys at hand are others.
    #[error(
        "volume {volume} is encrypted under key {wanted}, and {place} has {found}: add the right key to it, or name \
         another place"
    )]
    Wrong {
        /// The volume.
        volume: VolumeId,
        /// The operator's key that it is wrapped with.
        wanted: KeyId,
        /// Where keys were looked for.
        place: String,
        /// What is there.
        found: String,
    },
    /// The right key does not open what the manifest keeps.
    #[error(
        "volume {volume}: its wrapped key does not open with key {with}, which it was wrapped with: the manifest was \
         damaged or changed; restore it from a copy of the store"
    )]
    Damaged {
        /// The volume.
        volume: VolumeId,
        /// The operator's key.
        with: KeyId,
    },
    /// A cipher of a newer program, or none.
    #[error(
        "volume {volume} is encrypted with {cipher:?}, which this Weir does not know; use a newer one"
    )]
    Cipher {
        /// The volume.
        volume: VolumeId,
        /// As the manifest says.
        cipher: String,
    },
    /// A key is needed to encrypt with, and none is configured.
    #[error("there is no key to encrypt with: name one with --key-file, --key-command or WEIR_KEY")]
    NoneToWrapWith,
    /// The place where keys come from does not give any.
    #[error("{place} gives no key: {reason}")]
    Source {
        /// The file, variable or command.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Only encrypted volumes can get another key.
    #[error(
        "volume {volume} is not encrypted; `weir volume copy` with --encrypt makes an encrypted one of it"
    )]
    NotEncrypted {
        /// The volume.
        volume: VolumeId,
    },
}

impl KeyError {
    /// What a caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::Wrong { .. } | Self::NoneToWrapWith => ErrorKind::Invalid,
            Self::NotEncrypted { .. } => ErrorKind::Invalid,
            Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::Cipher { .. } => ErrorKind::Unsupported,
            Self::Source { .. } => ErrorKind::Unavailable,
        }
    }
}

/// The keys of a source, once it gives them.
pub type WrappingKeys<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<WrappingKey>, KeyError>> + Send + 'a>>;

/// A place that operators keep keys in. It is asked at every opening, so that a key can be added while a node runs.
pub trait KeySource: fmt::Debug + Send + Sync {
    /// How messages name it.
    fn place(&self) -> String;
    /// All keys there; what is wrapped anew is wrapped with the first one.
    fn keys(&self) -> WrappingKeys<'_>;
    /// Whether it can be asked just to look: that changes nothing, and does not depend on a service that may be away.
    fn can_be_looked_at(&self) -> bool {
        true
    }
}

/// Where keys come from, if from anywhere.
#[derive(Clone, Debug, Default)]
pub struct Keys(Option<Arc<dyn KeySource>>);

impl Keys {
    /// From there.
    #[must_use]
    pub fn from(source: Arc<dyn KeySource>) -> Self {
        Self(Some(source))
    }

    /// Whether their place can be asked just to look. Where there is none, that is known without asking.
    #[must_use]
    pub fn can_be_looked_at(&self) -> bool {
        self.0.as_ref().is_none_or(|source| source.can_be_looked_at())
    }

    /// The data key of a volume; none if it is not encrypted, and then nobody is asked.
    ///
    /// # Errors
    /// [`KeyError`]: missing, wrong, damaged, of another cipher, or what the source says.
    pub async fn open(
        &self,
        volume: VolumeId,
        encryption: Option<&Encryption>,
    ) -> Result<Option<DataKey>, KeyError> {
        let Some(encryption) = encryption else { return Ok(None) };
        if encryption.cipher != CIPHER {
            return Err(KeyError::Cipher { volume, cipher: encryption.cipher.clone() });
        }
        let wanted = KeyId(encryption.wrapped_with.0);
        let Some(source) = &self.0 else { return Err(KeyError::Missing { volume, wanted }) };
        let keys = source.keys().await?;
        let Some(key) = keys.iter().find(|key| key.id() == wanted) else {
            let ids: Vec<String> = keys.iter().map(|key| format!("key {}", key.id())).collect();
            let (place, found) = (source.place(), ids.join(", "));
            return Err(KeyError::Wrong { volume, wanted, place, found });
        };
        let damaged = || KeyError::Damaged { volume, with: wanted };
        let wrapped = WrappedKey { wrapped_with: wanted, bytes: encryption.wrapped.0 };
        let opened = key.unwrap_key(&wrapped).map_err(|_| damaged())?;
        if opened.id().0 != encryption.key.0 {
            return Err(damaged());
        }
        Ok(Some(opened))
    }

    /// Draws the data key of a new volume, and wraps it.
    ///
    /// # Errors
    /// [`KeyError::NoneToWrapWith`], or what the source says.
    pub async fn encryption(&self, env: &Env) -> Result<Encryption, KeyError> {
        let key = DataKey::draw(|bytes| env.random.fill(bytes));
        self.wrap(env, &key).await
    }

    /// Wraps a data key with the first key there is.
    ///
    /// # Errors
    /// As [`Keys::encryption`].
    pub async fn wrap(&self, env: &Env, key: &DataKey) -> Result<Encryption, KeyError> {
        let source = self.0.as_ref().ok_or(KeyError::NoneToWrapWith)?;
        let keys = source.keys().await?;
        let first = keys.first().ok_or(KeyError::NoneToWrapWith)?;
        let mut nonce = [0; NONCE_BYTES];
        env.random.fill(&mut nonce);
        Ok(Encryption {
            cipher: CIPHER.to_owned(),
            key: HexId(key.id().0),
            wrapped_with: HexId(first.id().0),
            wrapped: first.wrap(key, nonce).bytes.into(),
        })
    }
}

/// Keys that are known beforehand, for tests.
#[derive(Clone, Debug)]
pub struct FixedKeys(pub Vec<WrappingKey>);

impl KeySource for FixedKeys {
    fn place(&self) -> String {
        "the test".to_owned()
    }

    fn keys(&self) -> WrappingKeys<'_> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

/// A wrapped key as hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WrappedHex(pub [u8; WRAPPED_BYTES]);

impl From<[u8; WRAPPED_BYTES]> for WrappedHex {
    fn from(bytes: [u8; WRAPPED_BYTES]) -> Self {
        Self(bytes)
    }
}

impl From<WrappedHex> for String {
    fn from(wrapped: WrappedHex) -> Self {
        wrapped.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for WrappedHex {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("a wrapped key has {} hex digits", 2 * WRAPPED_BYTES);
        let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() != 2 * WRAPPED_BYTES || !digits {
            return Err(wrong());
        }
        let mut bytes = [0; WRAPPED_BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..text.len()).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}
