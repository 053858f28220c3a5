//! Why a store refuses what others may do: problems that last until somebody puts them right, each with the way out.

use std::fmt;

use crate::http::Note;

/// A lasting problem between us and a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No credentials were configured, and no role of this machine gave any.
    NoCredentials,
    /// The store does not know the access key.
    UnknownKey,
    /// The signature does not fit the access key.
    WrongSecret,
    /// The session token has expired.
    ExpiredToken,
    /// This machine's clock and the store's are too far apart.
    ClockSkew {
        /// The store's clock, as it says.
        store_clock: Option<String>,
    },
    /// There is no such bucket (Azure: container).
    NoBucket {
        /// Where it was looked for.
        endpoint: String,
    },
    /// The bucket is in another region.
    OtherRegion {
        /// Where, if the store says so.
        region: Option<String>,
    },
    /// The credentials are good, and do not allow this.
    NotPermitted,
    /// The store does not know create-only PUTs.
    NoConditions,
    /// The storage class is none of the store's.
    StorageClass,
}

impl Refusal {
    /// What an answer of the store means, if it means one of these.
    pub(crate) fn of(note: &Note, endpoint: &str) -> Option<Self> {
        if note.no_credentials {
            return Some(Self::NoCredentials);
        }
        let status = note.status?;
        Some(match note.code.as_str() {
            // The last one is versitygw's, with status 404.
            "InvalidAccessKeyId" | "InvalidAccessKey" | "XAdminUserNotFound" => Self::UnknownKey,
            "SignatureDoesNotMatch" => Self::WrongSecret,
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken" => {
                Self::ExpiredToken
            }
            "RequestTimeTooSkewed" | "RequestExpired" => {
                Self::ClockSkew { store_clock: note.date.clone() }
            }
            "NoSuchBucket" | "ContainerNotFound" => {
                Self::NoBucket { endpoint: endpoint.to_owned() }
            }
            "AuthorizationHeaderMalformed"
            | "PermanentRedirect"
            | "IllegalLocationConstraintException" => {
                Self::OtherRegion { region: note.region.clone() }
            }
            "InvalidStorageClass" => Self::StorageClass,
            // A temporary redirect of a new bucket passes; a permanent one does not.
            _ if status == 301 => Self::OtherRegion { region: note.region.clone() },
            _ if matches!(status, 401 | 403) => Self::NotPermitted,
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCredentials => f.write_str(
                "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of \
                 ~/.aws/credentials with AWS_PROFILE; no role of this machine gave any",
            ),
            Self::UnknownKey => f.write_str(
                "the store does not know the access key ID: check AWS_ACCESS_KEY_ID and the endpoint",
            ),
            Self::WrongSecret => f.write_str(
                "the secret access key does not belong to the access key ID: check AWS_SECRET_ACCESS_KEY",
            ),
            Self::ExpiredToken => f.write_str(
                "the session token has expired or is wrong: get new credentials (those of a role or of a credentials \
                 file are taken up by themselves, those in the environment with a restart)",
            ),
            Self::ClockSkew { store_clock } => {
                f.write_str("this machine's clock is too far from the store's")?;
                if let Some(clock) = store_clock {
                    write!(f, ", which says {clock}")?;
                }
                f.write_str(": set the clock, as with NTP")
            }
            Self::NoBucket { endpoint } => write!(
                f,
                "there is no such bucket at {endpoint}: create it, or check its name, the endpoint and the region"
            ),
            Self::OtherRegion { region: Some(region) } => {
                write!(f, "the bucket is in another region: set AWS_REGION to {region}")
            }
            Self::OtherRegion { region: None } => {
                f.write_str("the bucket is in another region: set AWS_REGION to it")
            }
            Self::NotPermitted => f.write_str(
                "access denied: the credentials need the permissions to list the bucket and to get, put and delete \
                 objects in it",
            ),
            Self::NoConditions => f.write_str(
                "the store does not know create-only PUTs (If-None-Match), so it cannot keep two writers apart: use \
                 another store, or read about the single-writer mode",
            ),
            Self::StorageClass => f.write_str(
                "the store does not know the storage class: check WEIR_S3_STORAGE_CLASS",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, code: &str) -> Option<Refusal> {
        let note = Note { status: Some(status), code: code.to_owned(), ..Note::default() };
        Refusal::of(&note, "http://e")
    }

    #[test]
    fn what_lasts_is_told_from_what_passes() {
        assert_eq!(of(403, "InvalidAccessKeyId"), Some(Refusal::UnknownKey));
        assert_eq!(of(404, "XAdminUserNotFound"), Some(Refusal::UnknownKey));
        assert_eq!(of(403, "SignatureDoesNotMatch"), Some(Refusal::WrongSecret));
        assert_eq!(of(400, "ExpiredToken"), Some(Refusal::ExpiredToken));
        assert_eq!(of(403, "AccessDenied"), Some(Refusal::NotPermitted));
        assert_eq!(of(403, "RequestTimeTooSkewed"), Some(Refusal::ClockSkew { store_clock: None }));
        assert_eq!(of(301, ""), Some(Refusal::OtherRegion { region: None }));
        let bucket = Refusal::NoBucket { endpoint: "http://e".to_owned() };
        assert_eq!(of(404, "NoSuchBucket"), Some(bucket));
        for (status, code) in
            [(404, "NoSuchKey"), (503, "SlowDown"), (500, ""), (409, ""), (307, "")]
        {
            assert_eq!(of(status, code), None, "{status} {code}");
        }
        let note = Note { no_credentials: true, ..Note::default() };
        assert_eq!(Refusal::of(&note, ""), Some(Refusal::NoCredentials));
    }
}
