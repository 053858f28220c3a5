//! What a root needs, and how it gets to the replica: create-only, and verified before it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use weir_device::{Env, VolumeId};
use weir_store::{Put, RetryPolicy, RetryScope, Store, StoreError};

use crate::check::problem_of;
use crate::error::LogError;
use crate::format::object::ObjectHeader;
use crate::ids::ObjectId;
use crate::limits::{DAMAGED_ATTEMPTS_MAX, REPLICA_PUT_DEADLINE};
use crate::random::splitmix;
use crate::read::fetch::get_header;

/// Objects with their bytes.
pub(super) type Listing = BTreeMap<ObjectId, u64>;

/// Why an object was not copied.
#[derive(Debug)]
pub(super) enum NotCopied {
    /// The source does not have it any more.
    Gone(ObjectId),
    Failed(LogError),
}

impl<E: Into<LogError>> From<E> for NotCopied {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The objects of `streams` that a store has.
pub(super) async fn list(
    store: &Store,
    env: &Env,
    streams: &BTreeSet<VolumeId>,
) -> Result<Listing, StoreError> {
    let (policy, mut random) = (RetryPolicy::reads(), || env.random.next_u64());
    let mut listing = Listing::new();
    for stream in streams {
        let prefix = ObjectId::prefix(*stream);
        let list = || store.list(&prefix, None);
        let listed = store.retry(&policy, &mut random, None, list).await?;
        let objects = listed.iter().filter_map(|l| Some((ObjectId::parse_key(&l.key)?, l.size)));
        listing.extend(objects);
    }
    Ok(listing)
}

/// Copies one object; its bytes.
pub(super) async fn copy(
    source: Store,
    target: Store,
    id: ObjectId,
    seed: u64,
) -> Result<u64, NotCopied> {
    let mut random = splitmix(seed);
    let (header, bytes) = read(&source, id, &mut random).await?;
    // Somebody may have to put it right, and wants to know: whoever copies tries again, and says so.
    let policy = RetryPolicy {
        deadline: Some(REPLICA_PUT_DEADLINE),
        scope: RetryScope::Everything,
        max_delay: Duration::from_secs(5),
        ..RetryPolicy::reads()
    };
    let key = id.key();
    let put = || target.put_create(&key, vec![bytes.clone()]);
    if target.retry(&policy, &mut random, None, put).await? == Put::Created {
        return Ok(bytes.len() as u64);
    }
    // Our own PUT whose reply was lost, or a replicator's before us.
    let look = || get_header(&target, id);
    let mut attempt = 0;
    let there = loop {
        attempt += 1;
        match target.retry(&RetryPolicy::reads(), &mut random, None, look).await? {
            Ok(there) => break there,
            // What was damaged on its way only is whole the next time.
            Err(_) if attempt < DAMAGED_ATTEMPTS_MAX => {}
            Err(source) => return Err(LogError::Object { object: id, source }.into()),
        }
    };
    if there.digest == header.digest {
        return Ok(bytes.len() as u64);
    }
    let what = format!("{key} in {} is another object than at the source", target.url());
    Err(LogError::Inconsistent { volume: id.stream, what }.into())
}

/// Reads one object and looks at every byte of it: damage must not travel.
async fn read(
    store: &Store,
    id: ObjectId,
    random: &mut impl FnMut() -> u64,
) -> Result<(ObjectHeader, Bytes), NotCopied> {
    let key = id.key();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let get = || store.get(&key);
        let bytes = match store.retry(&RetryPolicy::reads(), random, None, get).await {
            Err(StoreError::NotFound { .. }) => return Err(NotCopied::Gone(id)),
            other => other?,
        };
        match (ObjectHeader::decode(&bytes), problem_of(id, &bytes)) {
            (Ok(header), None) => return Ok((header, bytes)),
            // What was damaged on its way only is whole the next time.
            _ if attempt < DAMAGED_ATTEMPTS_MAX => {}
            (Err(source), _) => return Err(LogError::Object { object: id, source }.into()),
            (Ok(_), Some(problem)) => {
                let what = format!(
                    "{key} in {} is damaged ({problem}) and is not copied; run weir volume check",
                    store.url()
                );
                return Err(LogError::Inconsistent { volume: id.stream, what }.into());
            }
        }
    }
}
