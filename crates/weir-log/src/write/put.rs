//! Storing one object under its own name, whatever the store answers meanwhile.

use bytes::Bytes;
use weir_store::{Put, RetryPolicy, Store, StoreError};

use crate::error::LogError;
use crate::format::DecodeError;
use crate::format::object::ObjectHeader;
use crate::random::splitmix;
use crate::read::fetch::get_header;

/// PUTs an object, for ever. A refusal is a success when the object there is our own (the reply of an earlier attempt
/// was lost). A whole header that is not ours proves another writer, who owns the name; a damaged one proves nothing
/// and is read again, for ever: its data stays in the journal meanwhile.
pub(crate) async fn put_until_stored(
    store: &Store,
    header: &ObjectHeader,
    parts: &[Bytes],
    seed: u64,
) -> Result<(), LogError> {
    let key = header.id.key();
    let mut random = splitmix(seed);
    let forever = RetryPolicy::forever();
    let mut pause = forever.first_delay;
    loop {
        let put = || store.put_create(&key, parts.to_vec());
        if store.retry(&forever, &mut random, None, put).await? == Put::Created {
            return Ok(());
        }
        // Reads the object that is there. One that is gone cannot refuse the next PUT, so that is no error.
        let look = || async {
            match get_header(store, header.id).await {
                Err(StoreError::NotFound { .. }) => Ok(None),
                other => other.map(Some),
            }
        };
        match store.retry(&forever, &mut random, None, look).await? {
            None => continue,
            Some(Ok(there)) if there == *header => return Ok(()),
            Some(Ok(_) | Err(DecodeError::Identity { .. })) => {
                let evidence = format!("{key} was written by another");
                let (volume, ours) = (header.id.stream, header.id.epoch);
                return Err(LogError::Fenced { volume, ours, evidence });
            }
            Some(Err(error)) => {
                tracing::warn!(%key, %error, "the store refuses this object and shows a damaged one");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(forever.max_delay);
    }
}
