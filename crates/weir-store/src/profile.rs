//! The shared files of the AWS tools: `~/.aws/credentials` and `~/.aws/config`, or where `AWS_SHARED_CREDENTIALS_FILE`
//! and `AWS_CONFIG_FILE` say. Keys in them are read again while the store is open, so that keys that are rotated there
//! are taken up without a restart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::time::Instant;

use crate::limits::CREDENTIALS_FILE_AGE_MAX;
use crate::options::Variables;
use crate::{Secret, StoreError};

/// Where the files are, and which profile counts.
#[derive(Clone, Debug)]
pub(crate) struct SharedFiles {
    credentials: Option<PathBuf>,
    config: Option<PathBuf>,
    profile: String,
    /// Somebody asked for the profile by name: it has to be there.
    named: bool,
}

/// What a profile says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) keys: Option<Keys>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    /// A way to credentials that this program does not know, by the name of its setting.
    pub(crate) foreign: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: Secret,
    pub(crate) token: Option<Secret>,
}

impl Keys {
    pub(crate) fn credential(&self) -> AwsCredential {
        AwsCredential {
            key_id: self.id.clone(),
            secret_key: self.secret.reveal().to_owned(),
            token: self.token.as_ref().map(|token| token.reveal().to_owned()),
        }
    }
}

type Section = BTreeMap<String, String>;

impl SharedFiles {
    pub(crate) fn new(profile: Option<&str>, variable: &Variables<'_>) -> Self {
        let home = variable("HOME").map(PathBuf::from);
        let path = |name, file| {
            let below_home = || home.as_ref().map(|home| home.join(".aws").join(file));
            variable(name).map(PathBuf::from).or_else(below_home)
        };
        Self {
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            config: path("AWS_CONFIG_FILE", "config"),
            profile: profile.unwrap_or("default").to_owned(),
            named: profile.is_some(),
        }
    }

    /// Reads both files. Blocks for it; they are small.
    pub(crate) fn read(&self) -> Result<Profile, StoreError> {
        let name = self.profile.as_str();
        let prefixed = format!("profile {name}");
        // In the configuration file only `default` stands without the word before it.
        let config_name = if name == "default" { name } else { &prefixed };
        let credentials = section(self.credentials.as_deref(), name)?;
        let config = section(self.config.as_deref(), config_name)?;
        if self.named && credentials.is_none() && config.is_none() {
            let file = |path: &Option<PathBuf>| {
                path.as_ref().map_or_else(|| "(none)".to_owned(), |path| path.display().to_string())
            };
            let (one, other) = (file(&self.credentials), file(&self.config));
            let reason = format!("there is no profile {name:?} in {one} or {other}");
            return Err(StoreError::InvalidOption { option: "AWS_PROFILE", reason });
        }
        let (credentials, config) = (credentials.unwrap_or_default(), config.unwrap_or_default());
        let find = |key: &str| credentials.get(key).or_else(|| config.get(key)).cloned();
        let keys = keys(&credentials).or_else(|| keys(&config));
        let foreign = ["credential_process", "sso_session", "sso_start_url", "role_arn"];
        let foreign = foreign.into_iter().find(|key| find(key).is_some());
        Ok(Profile {
            foreign: foreign.filter(|_| keys.is_none()),
            keys,
            region: find("region"),
            endpoint: find("endpoint_url"),
            ca_file: find("ca_bundle").map(PathBuf::from),
        })
    }

    /// What to name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.profile
    }
}

fn keys(section: &Section) -> Option<Keys> {
    let get = |key: &str| section.get(key).filter(|value| !value.is_empty()).cloned();
    Some(Keys {
        id: get("aws_access_key_id")?,
        secret: Secret::new(get("aws_secret_access_key")?),
        token: get("aws_session_token").map(Secret::new),
    })
}

fn section(path: Option<&Path>, name: &str) -> Result<Option<Section>, StoreError> {
    let Some(path) = path else { return Ok(None) };
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text, name)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::InvalidOption {
            option: "AWS_PROFILE",
            reason: format!("reading {}: {error}", path.display()),
        }),
    }
}

/// One section of an INI file. Indented lines belong to the setting before them, and none of those is ours.
fn parse(text: &str, wanted: &str) -> Option<Section> {
    let mut found = None;
    let mut inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = name.split_whitespace().eq(wanted.split_whitespace());
            if inside {
                found.get_or_insert_with(Section::new);
            }
            continue;
        }
        if let (true, false, Some((key, value))) =
            (inside, line.starts_with([' ', '\t']), trimmed.split_once('='))
        {
            let section = found.get_or_insert_with(Section::new);
            section.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

/// Hands out the keys of a profile, as they stand in the files now or stood a moment ago.
#[derive(Debug)]
pub(crate) struct FileCredentials {
    files: SharedFiles,
    last: Mutex<(Instant, Arc<AwsCredential>)>,
}

impl FileCredentials {
    pub(crate) fn new(files: SharedFiles, keys: &Keys) -> Self {
        Self { files, last: Mutex::new((Instant::now(), Arc::new(keys.credential()))) }
    }

    fn current(&self) -> Arc<AwsCredential> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.elapsed() >= CREDENTIALS_FILE_AGE_MAX {
            // A file that cannot be read right now is being replaced, or gone; the old keys may still do.
            let keys = self.files.read().ok().and_then(|profile| profile.keys);
            let credential = keys.map_or_else(|| Arc::clone(&last.1), |k| Arc::new(k.credential()));
            *last = (Instant::now(), credential);
        }
        Arc::clone(&last.1)
    }
}

/// The trait is written with `async_trait`; this is its method as the macro leaves it.
impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    fn get_credential<'a, 'r>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<AwsCredential>, object_store::Error>> + Send + 'r>>
    where
        'a: 'r,
        Self: 'r,
    {
        Box::pin(async { Ok(self.current()) })
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "these tests make files to be read")]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "\
# comment
[default]
aws_access_key_id = one
aws_secret_access_key=secret=1
[other]
aws_access_key_id = two
aws_secret_access_key = secret2
aws_session_token = token2
";
    const CONFIG: &str = "\
[default]
region = eu-west-1
s3 =
    addressing_style = path
[profile other]
endpoint_url = http://127.0.0.1:9000
[profile sso]
sso_session = corp
";

    fn files(directory: &Path, profile: Option<&str>) -> SharedFiles {
        std::fs::write(directory.join("credentials"), CREDENTIALS).expect("write");
        std::fs::write(directory.join("config"), CONFIG).expect("write");
        let at = |name: &str| Some(directory.join(name).display().to_string());
        SharedFiles::new(profile, &|name| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => at("credentials"),
            "AWS_CONFIG_FILE" => at("config"),
            _ => None,
        })
    }

    #[test]
    fn profiles_say_keys_region_and_endpoint() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let default = files(directory.path(), None).read().expect("read");
        let keys = default.keys.expect("keys");
        assert_eq!((keys.id.as_str(), keys.secret.reveal()), ("one", "secret=1"));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        let other = files(directory.path(), Some("other")).read().expect("read");
        assert_eq!(other.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(other.keys.expect("keys").token.expect("token").reveal(), "token2");
        let sso = files(directory.path(), Some("sso")).read().expect("read");
        assert_eq!((sso.keys, sso.foreign), (None, Some("sso_session")));
        let error = files(directory.path(), Some("none")).read().expect_err("no such profile");
        assert!(error.to_string().contains("no profile \"none\""), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn rotated_keys_are_taken_up() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let files = files(directory.path(), None);
        let keys = files.read().expect("read").keys.expect("keys");
        let provider = FileCredentials::new(files, &keys);
        let path = directory.path().join("credentials");
        std::fs::write(&path, CREDENTIALS.replace("= one", "= three")).expect("write");
        assert_eq!(provider.get_credential().await.expect("keys").key_id, "one");
        tokio::time::sleep(CREDENTIALS_FILE_AGE_MAX).await;
        assert_eq!(provider.get_credential().await.expect("keys").key_id, "three");
        std::fs::remove_file(&path).expect("remove");
        tokio::time::sleep(CREDENTIALS_FILE_AGE_MAX).await;
        assert_eq!(
            provider.get_credential().await.expect("keys").key_id,
            "three",
            "still the last"
        );
    }
}
