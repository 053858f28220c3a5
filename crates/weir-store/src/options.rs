//! How a store is reached: what a URL does not say. Values that are given win over the environment, the environment
//! wins over the shared files of the AWS tools.

use std::fmt;
use std::path::PathBuf;

use tokio::runtime::Handle;

use crate::{StoreError, UploadLimits};

/// Everything about a store that is not in its URL.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// Settings of `s3://` stores.
    pub s3: S3Options,
    /// The one who configures this promises that never more than one process writes to the store. Stores that cannot
    /// tell racing writers apart may then be used.
    pub single_writer: bool,
    /// Limits of uploads. Clones of one handle share one budget: give all stores of a node the same.
    pub limits: UploadLimits,
    /// Where requests to stores over the network run. `None`: on two threads that all such stores of the process share.
    pub runtime: Option<Handle>,
}

impl StoreOptions {
    /// What the environment says: see [`S3Options::from_environment`], and `WEIR_SINGLE_WRITER=true`.
    ///
    /// # Errors
    /// A variable whose value is none of those it can have.
    pub fn from_environment() -> Result<Self, StoreError> {
        Self::from_variables(&process_variable)
    }

    /// What the environment says of a second store: variables as of [`StoreOptions::from_environment`] with `prefix`
    /// before their names, and where there is none, those without it.
    ///
    /// # Errors
    /// As there.
    pub fn from_environment_for(prefix: &str) -> Result<Self, StoreError> {
        let own = |name: &str| process_variable(&format!("{prefix}{name}"));
        let (own, shared) = (Self::from_variables(&own)?, Self::from_environment()?);
        Ok(Self { s3: own.s3.or(shared.s3), single_writer: own.single_writer, ..own })
    }

    pub(crate) fn from_variables(variable: &Variables<'_>) -> Result<Self, StoreError> {
        let single_writer = flag(variable, "WEIR_SINGLE_WRITER")?.unwrap_or(false);
        Ok(Self { s3: S3Options::from_variables(variable)?, single_writer, ..Self::default() })
    }
}

/// Looks a variable of the environment up.
pub(crate) type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

pub(crate) fn process_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A string that messages and logs never show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `value` from messages.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Settings of `s3://` stores. What is `None` comes from the shared files of the AWS tools, or has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Options {
    /// URL of the service, as `https://s3.example.org:9000`; AWS itself, if `None`.
    pub endpoint: Option<String>,
    /// Region; `us-east-1`, if nothing names one.
    pub region: Option<String>,
    /// Whether the bucket is the first part of the path and not of the host name. `None`: with an endpoint yes, on AWS
    /// no.
    pub path_style: Option<bool>,
    /// Allow an `http://` endpoint that is not on this machine. Whoever can read the network then reads the volumes.
    pub allow_http: bool,
    /// File with certificates (PEM) of authorities to trust beside those of the system.
    pub ca_file: Option<PathBuf>,
    /// Storage class of new objects, as `STANDARD_IA`; the bucket's own, if `None`.
    pub storage_class: Option<String>,
    /// Profile in the shared files.
    pub profile: Option<String>,
    /// Access key ID; comes with the secret.
    pub access_key_id: Option<String>,
    /// Secret access key.
    pub secret_access_key: Option<Secret>,
    /// Token of temporary credentials.
    pub session_token: Option<Secret>,
}

impl S3Options {
    /// What the environment says: the AWS variables `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`,
    /// `AWS_DEFAULT_REGION`, `AWS_CA_BUNDLE`, `AWS_PROFILE`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_SESSION_TOKEN`, `AWS_ALLOW_HTTP`, and where AWS has none `WEIR_S3_PATH_STYLE` and
    /// `WEIR_S3_STORAGE_CLASS`.
    ///
    /// # Errors
    /// A variable whose value is none of those it can have.
    pub fn from_environment() -> Result<Self, StoreError> {
        Self::from_variables(&process_variable)
    }

    pub(crate) fn from_variables(variable: &Variables<'_>) -> Result<Self, StoreError> {
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        Ok(Self {
            endpoint: first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
            region: first(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
            path_style: flag(variable, "WEIR_S3_PATH_STYLE")?,
            allow_http: flag(variable, "AWS_ALLOW_HTTP")?.unwrap_or(false),
            ca_file: first(&["AWS_CA_BUNDLE"]).map(PathBuf::from),
            storage_class: first(&["WEIR_S3_STORAGE_CLASS"]),
            profile: first(&["AWS_PROFILE"]),
            access_key_id: first(&["AWS_ACCESS_KEY_ID"]),
            secret_access_key: first(&["AWS_SECRET_ACCESS_KEY"]).map(Secret),
            session_token: first(&["AWS_SESSION_TOKEN"]).map(Secret),
        })
    }

    /// These settings, and those of `other` where these say nothing. A key, its secret and its token stay together.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let keyed = self.access_key_id.is_some() || self.secret_access_key.is_some();
        let (keys, token) = if keyed { (&self, &self) } else { (&other, &other) };
        let (access_key_id, secret_access_key) =
            (keys.access_key_id.clone(), keys.secret_access_key.clone());
        let session_token = token.session_token.clone();
        Self {
            access_key_id,
            secret_access_key,
            session_token,
            endpoint: self.endpoint.or(other.endpoint),
            region: self.region.or(other.region),
            path_style: self.path_style.or(other.path_style),
            allow_http: self.allow_http || other.allow_http,
            ca_file: self.ca_file.or(other.ca_file),
            storage_class: self.storage_class.or(other.storage_class),
            profile: self.profile.or(other.profile),
        }
    }
}

fn flag(variable: &Variables<'_>, name: &'static str) -> Result<Option<bool>, StoreError> {
    let Some(value) = variable(name) else { return Ok(None) };
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(Some(true)),
        "0" | "false" | "no" | "off" => Ok(Some(false)),
        _ => Err(StoreError::InvalidOption {
            option: name,
            reason: format!("{value:?} is neither true nor false"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &'static [(&'static str, &'static str)]) -> Result<StoreOptions, StoreError> {
        let find = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
        StoreOptions::from_variables(&|name| find(name).map(str::to_owned))
    }

    #[test]
    fn the_environment_of_the_aws_tools_is_understood() {
        let options = of(&[
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"),
            ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:7070"),
            ("AWS_DEFAULT_REGION", "eu-west-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("WEIR_S3_PATH_STYLE", "off"),
            ("WEIR_SINGLE_WRITER", "1"),
        ])
        .expect("well formed");
        assert_eq!(options.s3.endpoint.as_deref(), Some("http://127.0.0.1:7070"));
        assert_eq!(options.s3.region.as_deref(), Some("eu-west-1"));
        assert_eq!(options.s3.path_style, Some(false));
        assert!(options.single_writer);
        assert!(!format!("{options:?}").contains("hunter2"), "{options:?}");
    }

    #[test]
    fn a_variable_that_makes_no_sense_is_an_error_that_names_it() {
        let error = of(&[("AWS_ALLOW_HTTP", "maybe")]).expect_err("neither");
        assert!(error.to_string().contains("AWS_ALLOW_HTTP"), "{error}");
    }

    #[test]
    fn a_key_is_never_joined_with_the_secret_of_another() {
        let ours = S3Options { access_key_id: Some("ours".into()), ..S3Options::default() };
        let theirs = S3Options {
            access_key_id: Some("theirs".into()),
            secret_access_key: Some(Secret::new("s")),
            region: Some("r".into()),
            ..S3Options::default()
        };
        let joined = ours.or(theirs.clone());
        assert_eq!(
            (joined.access_key_id.as_deref(), joined.secret_access_key),
            (Some("ours"), None)
        );
        assert_eq!(joined.region.as_deref(), Some("r"));
        assert_eq!(S3Options::default().or(theirs.clone()), theirs);
    }
}
