//! `gs://` and `az://`, each behind a feature of this crate. Their settings and credentials are those of the
//! environment that the `object_store` crate knows.

#[cfg(any(feature = "gcs", feature = "azure"))]
use std::sync::Arc;

#[cfg(any(feature = "gcs", feature = "azure"))]
use crate::http::{Connector, client_options, no_retries, runtime};
#[cfg(any(feature = "gcs", feature = "azure"))]
use crate::location::Bucket;
#[cfg(any(feature = "gcs", feature = "azure"))]
use crate::remote::{Dialect, Remote, RemoteOptions};
#[cfg(any(feature = "gcs", feature = "azure"))]
use crate::{StoreError, StoreOptions};

/// A bucket of Google Cloud Storage, with `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_APPLICATION_CREDENTIALS` or the role of
/// the machine.
#[cfg(feature = "gcs")]
pub(crate) fn open_gcs(
    url: Arc<str>,
    bucket: &Bucket,
    options: &StoreOptions,
) -> Result<Remote, StoreError> {
    let runtime = options.runtime.clone().map_or_else(runtime, Ok)?;
    let client = object_store::gcp::GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&bucket.name)
        .with_retry(no_retries())
        .with_client_options(client_options())
        .with_http_connector(Connector { runtime })
        .build()
        .map_err(|error| failed("the settings of gs stores", error))?;
    Ok(Remote::new(url, Arc::new(client), remote(bucket, options, "Google Cloud Storage")))
}

/// A container of Azure Blob Storage, with `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`, a service
/// principal, or the identity of the machine.
#[cfg(feature = "azure")]
pub(crate) fn open_azure(
    url: Arc<str>,
    bucket: &Bucket,
    options: &StoreOptions,
) -> Result<Remote, StoreError> {
    let runtime = options.runtime.clone().map_or_else(runtime, Ok)?;
    let client = object_store::azure::MicrosoftAzureBuilder::from_env()
        .with_container_name(&bucket.name)
        .with_retry(no_retries())
        .with_client_options(client_options())
        .with_http_connector(Connector { runtime })
        .build()
        .map_err(|error| failed("the settings of az stores", error))?;
    let mut options = remote(bucket, options, "Azure Blob Storage");
    // Containers have their names from the account, buckets elsewhere from the whole service.
    let account = crate::options::process_variable("AZURE_STORAGE_ACCOUNT_NAME");
    options.bucket = format!("{} {}", account.unwrap_or_default(), bucket.name);
    Ok(Remote::new(url, Arc::new(client), options))
}

#[cfg(any(feature = "gcs", feature = "azure"))]
fn remote(bucket: &Bucket, options: &StoreOptions, endpoint: &str) -> RemoteOptions {
    RemoteOptions {
        prefix: bucket.prefix.clone(),
        bucket: bucket.name.clone(),
        dialect: Dialect::Other,
        endpoint: endpoint.to_owned(),
        look_first: options.single_writer,
        ..RemoteOptions::default()
    }
}

#[cfg(any(feature = "gcs", feature = "azure"))]
fn failed(option: &'static str, error: object_store::Error) -> StoreError {
    StoreError::InvalidOption { option, reason: error.to_string() }
}
