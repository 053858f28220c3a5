//! `s3://bucket/prefix`: any store that speaks S3, AWS or not.

use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum, S3ConditionalPut};
use object_store::{Attribute, Attributes, Certificate, ClientOptions, StaticCredentialProvider};
use url::{Host, Url};

use crate::http::{Connector, Watched, client_options, no_retries, runtime};
use crate::location::Bucket;
use crate::options::Variables;
use crate::profile::{FileCredentials, Keys, Profile, SharedFiles};
use crate::remote::{Dialect, Remote, RemoteOptions};
use crate::{S3Options, StoreError, StoreOptions};

const REGION_DEFAULT: &str = "us-east-1";

/// Makes the client; asks the store nothing.
pub(crate) fn open(
    url: Arc<str>,
    bucket: &Bucket,
    options: &StoreOptions,
    variable: &Variables<'_>,
) -> Result<Remote, StoreError> {
    let s3 = &options.s3;
    let files = SharedFiles::new(s3.profile.as_deref(), variable);
    let profile = files.read()?;
    let service = Service::of(s3, &profile, &bucket.name)?;
    let runtime = options.runtime.clone().map_or_else(runtime, Ok)?;
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&bucket.name)
        .with_region(s3.region.as_ref().or(profile.region.as_ref()).map_or(REGION_DEFAULT, |r| r))
        .with_virtual_hosted_style_request(service.in_host)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true)
        .with_retry(no_retries())
        .with_client_options(service.client(s3, &profile)?)
        .with_http_connector(Connector { runtime });
    if let Some(endpoint) = &service.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder = with_credentials(builder, s3, files, &profile, variable)?;
    let client = build(builder.clone())?;
    let with_checksums = builder
        .with_credentials(client.credentials().clone())
        .with_checksum_algorithm(Checksum::CRC64NVME)
        .with_unsigned_payload(true);
    let mut attributes = Attributes::new();
    if let Some(class) = &s3.storage_class {
        attributes.insert(Attribute::StorageClass, checked_class(class)?.to_owned().into());
    }
    let remote = RemoteOptions {
        prefix: bucket.prefix.clone(),
        bucket: bucket.name.clone(),
        dialect: Dialect::S3,
        endpoint: service.name,
        attributes,
        look_first: options.single_writer,
    };
    let remote = Remote::new(url, Arc::new(client), remote);
    if service.is_guarded {
        let client = with_checksums.build().map_err(bad_settings)?;
        return Ok(remote.with_checksums(Arc::new(client)));
    }
    Ok(remote)
}

fn bad_settings(error: object_store::Error) -> StoreError {
    let option = "the settings of s3 stores";
    StoreError::InvalidOption { option, reason: format!("{error}") }
}

/// The client with credentials whose absence is noted: the builder makes the provider, so it is asked for it first.
fn build(builder: AmazonS3Builder) -> Result<AmazonS3, StoreError> {
    let credentials = builder.clone().build().map_err(bad_settings)?.credentials().clone();
    builder.with_credentials(Arc::new(Watched(credentials))).build().map_err(bad_settings)
}

/// Where the bucket is served.
struct Service {
    /// URL for the client; AWS, if `None`. With the bucket in its host name where it belongs there.
    endpoint: Option<String>,
    /// For messages.
    name: String,
    in_host: bool,
    plain: bool,
    /// Nobody can change on the way what is sent: TLS, or it does not leave this machine. Elsewhere only a signature of
    /// each byte keeps others from it.
    is_guarded: bool,
}

impl Service {
    fn of(s3: &S3Options, profile: &Profile, bucket: &str) -> Result<Self, StoreError> {
        let Some(endpoint) = s3.endpoint.as_ref().or(profile.endpoint.as_ref()) else {
            // A dot in the name would break the certificate of AWS in the host name.
            let in_host = !s3.path_style.unwrap_or(bucket.contains('.'));
            let name = "AWS".to_owned();
            return Ok(Self { endpoint: None, name, in_host, plain: false, is_guarded: true });
        };
        let invalid = |reason: String| StoreError::InvalidOption { option: "the endpoint", reason };
        let mut url = Url::parse(endpoint).map_err(|_| {
            invalid(format!("{endpoint:?} is no URL; write https://host or https://host:port"))
        })?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("credentials do not belong into it; set AWS_ACCESS_KEY_ID".into()));
        }
        let plain = match url.scheme() {
            "https" => false,
            "http" if s3.allow_http || is_loopback(&url) => true,
            "http" => {
                return Err(invalid(format!(
                    "{url} is not encrypted: use https://, or set AWS_ALLOW_HTTP=true on a network where everybody \
                     may read the volumes"
                )));
            }
            scheme => return Err(invalid(format!("{scheme}:// is neither https:// nor http://"))),
        };
        let is_guarded = !plain || is_loopback(&url);
        let in_host = !s3.path_style.unwrap_or(true);
        let name = url.as_str().trim_end_matches('/').to_owned();
        if in_host {
            let host = url.host_str().unwrap_or_default();
            let host = format!("{bucket}.{host}");
            url.set_host(Some(&host)).map_err(|error| {
                invalid(format!(
                    "the bucket cannot be put before its host: {error}; use path style"
                ))
            })?;
        }
        let endpoint = Some(url.as_str().trim_end_matches('/').to_owned());
        Ok(Self { endpoint, name, in_host, plain, is_guarded })
    }

    fn client(&self, s3: &S3Options, profile: &Profile) -> Result<ClientOptions, StoreError> {
        let mut client = client_options().with_allow_http(self.plain);
        let Some(path) = s3.ca_file.as_ref().or(profile.ca_file.as_ref()) else {
            return Ok(client);
        };
        let invalid = |reason: String| StoreError::InvalidOption { option: "the CA file", reason };
        let shown = path.display();
        let pem = std::fs::read_to_string(path)
            .map_err(|error| invalid(format!("reading {shown}: {error}")))?;
        let certificates = Certificate::from_pem_bundle(pem.as_bytes())
            .map_err(|error| invalid(format!("{shown}: {error}")))?;
        if certificates.is_empty() {
            return Err(invalid(format!("{shown} holds no certificate in PEM form")));
        }
        for certificate in certificates {
            client = client.with_root_certificate(certificate);
        }
        Ok(client)
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// In the order of the AWS tools: given keys, a web identity, the shared files, a container's role, the machine's role.
fn with_credentials(
    mut builder: AmazonS3Builder,
    s3: &S3Options,
    files: SharedFiles,
    profile: &Profile,
    variable: &Variables<'_>,
) -> Result<AmazonS3Builder, StoreError> {
    let missing =
        |option, reason: &str| Err(StoreError::InvalidOption { option, reason: reason.to_owned() });
    match (&s3.access_key_id, &s3.secret_access_key) {
        (Some(id), Some(secret)) => {
            let token = s3.session_token.clone();
            let keys = Keys { id: id.clone(), secret: secret.clone(), token };
            let provider = StaticCredentialProvider::new(keys.credential());
            return Ok(builder.with_credentials(Arc::new(provider)));
        }
        (Some(_), None) => {
            return missing("AWS_SECRET_ACCESS_KEY", "it is needed beside the key ID");
        }
        (None, Some(_)) => return missing("AWS_ACCESS_KEY_ID", "it is needed beside the secret"),
        (None, None) => {}
    }
    let mut take = |names: &[(&str, AmazonS3ConfigKey)]| {
        for (name, key) in names {
            if let Some(value) = variable(name) {
                builder = std::mem::take(&mut builder).with_config(*key, value);
            }
        }
    };
    let set = |name| variable(name).is_some();
    if set("AWS_WEB_IDENTITY_TOKEN_FILE") && set("AWS_ROLE_ARN") {
        take(&[
            ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
            ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
            ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
            ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
        ]);
    } else if let Some(keys) = &profile.keys {
        let provider = FileCredentials::new(files, keys);
        return Ok(builder.with_credentials(Arc::new(provider)));
    } else if let Some(foreign) = profile.foreign {
        let name = files.name();
        return Err(StoreError::InvalidOption {
            option: "AWS_PROFILE",
            reason: format!(
                "profile {name:?} has its credentials by {foreign}, which this program does not know: pass them on \
                 with `aws configure export-credentials --profile {name} --format env`"
            ),
        });
    } else if set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        || set("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    {
        use AmazonS3ConfigKey as Key;
        take(&[
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", Key::ContainerCredentialsRelativeUri),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Key::ContainerCredentialsFullUri),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Key::ContainerAuthorizationTokenFile),
        ]);
    } else if variable("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"))
    {
        let reason = "there are no credentials, and AWS_EC2_METADATA_DISABLED forbids to ask for a \
                      role: set it and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE";
        return missing("AWS_ACCESS_KEY_ID", reason);
    } else {
        take(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", AmazonS3ConfigKey::MetadataEndpoint)]);
    }
    Ok(builder)
}

/// Objects in an archive cannot be read when they are needed.
fn checked_class(class: &str) -> Result<&str, StoreError> {
    let invalid =
        |reason: String| Err(StoreError::InvalidOption { option: "WEIR_S3_STORAGE_CLASS", reason });
    if matches!(class, "GLACIER" | "DEEP_ARCHIVE") {
        return invalid(format!("{class} is an archive, and volumes are read at any time"));
    }
    if class.is_empty() || !class.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)) {
        return invalid(format!("{class:?} is no storage class; one is STANDARD_IA"));
    }
    Ok(class)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "these tests make files to be read")]
mod tests {
    use super::*;
    use crate::Secret;

    fn service(endpoint: Option<&str>, path_style: Option<bool>, bucket: &str) -> Service {
        let s3 =
            S3Options { endpoint: endpoint.map(str::to_owned), path_style, ..S3Options::default() };
        Service::of(&s3, &Profile::default(), bucket).expect("good settings")
    }

    #[test]
    fn the_bucket_is_in_the_path_or_in_the_host() {
        let own = Some("https://s3.example.org:9000/");
        let found = service(own, None, "b-1");
        assert_eq!(
            (found.endpoint.as_deref(), found.in_host),
            (Some("https://s3.example.org:9000"), false)
        );
        let found = service(own, Some(false), "b-1");
        let host = Some("https://b-1.s3.example.org:9000");
        assert_eq!((found.endpoint.as_deref(), found.in_host), (host, true));
        assert_eq!(found.name, "https://s3.example.org:9000", "messages name the service");
        assert!(service(None, None, "b-1").in_host);
        assert!(!service(None, None, "with.dots").in_host);
        assert!(!service(None, Some(true), "b-1").in_host);
    }

    #[test]
    fn a_bucket_has_one_location_however_its_endpoint_is_written() {
        let location = |endpoint: Option<&str>, name: &str, prefix: &str| {
            let s3 = S3Options {
                endpoint: endpoint.map(str::to_owned),
                access_key_id: Some("key".to_owned()),
                secret_access_key: Some(Secret::new("hunter2")),
                ..S3Options::default()
            };
            let options = StoreOptions { s3, ..StoreOptions::default() };
            let bucket = Bucket { name: name.to_owned(), prefix: prefix.to_owned() };
            let remote = open("s3://bucket".into(), &bucket, &options, &|_| None).expect("open");
            crate::backend::Backend::location(&remote)
        };
        let there = location(Some("https://s3.example.org"), "bucket", "a/");
        for same in ["https://S3.example.org/", "https://s3.example.org:443"] {
            assert_eq!(location(Some(same), "bucket", "a/"), there, "{same}");
        }
        assert_ne!(location(Some("https://s3.example.com"), "bucket", "a/"), there);
        assert_ne!(location(Some("https://s3.example.org"), "bucket", "b/"), there);
        assert_ne!(location(Some("https://s3.example.org"), "bucket2", "a/"), there);
        assert_ne!(location(None, "bucket", "a/"), there);
    }

    #[test]
    fn credentials_come_from_the_first_place_that_has_them() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("credentials");
        std::fs::write(&path, "[sso]\nsso_session = corp\n").expect("write");
        let path = path.display().to_string();
        let open =
            |profile: Option<&str>, keys: bool, more: &'static [(&'static str, &'static str)]| {
                let variable = |name: &str| match name {
                    "AWS_SHARED_CREDENTIALS_FILE" => Some(path.clone()),
                    "AWS_CONFIG_FILE" => Some("/dev/null".to_owned()),
                    _ => more.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned()),
                };
                let s3 = S3Options {
                    profile: profile.map(str::to_owned),
                    access_key_id: keys.then(|| "key".to_owned()),
                    secret_access_key: keys.then(|| Secret::new("hunter2")),
                    ..S3Options::default()
                };
                let options = StoreOptions { s3, ..StoreOptions::default() };
                let bucket = Bucket { name: "bucket".to_owned(), prefix: String::new() };
                open("s3://bucket".into(), &bucket, &options, &variable)
            };
        let error = open(Some("sso"), false, &[]).expect_err("single sign-on");
        assert!(error.to_string().contains("export-credentials --profile sso"), "{error}");
        open(Some("sso"), true, &[]).expect("given keys win");
        let identity =
            &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")];
        open(Some("sso"), false, identity).expect("a web identity wins");
        let error = open(None, false, &[("AWS_EC2_METADATA_DISABLED", "true")]).expect_err("none");
        assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
        open(None, false, &[]).expect("a role of the machine, perhaps");
    }
}
