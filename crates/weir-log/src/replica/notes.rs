//! Notes of replicators at the source: written by them, read by whoever holds the volume before it deletes anything.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use weir_device::{Env, VolumeId};
use weir_store::{Put, RetryPolicy, Store, StoreError};

use crate::format::manifest::HexId;
use crate::format::replica::ReplicaNote;
use crate::ids::ObjectSeq;
use crate::own::chain;

/// The notes of one replicator.
#[derive(Debug)]
pub(super) struct NoteWriter {
    store: Store,
    volume: VolumeId,
    replica: HexId,
    /// Numbers that are there, ascending.
    listed: Vec<u64>,
}

impl NoteWriter {
    /// Goes on from the notes that are there.
    pub(super) async fn new(
        store: &Store,
        env: &Env,
        volume: VolumeId,
        replica: HexId,
    ) -> Result<Self, StoreError> {
        let mut random = || env.random.next_u64();
        let prefix = ReplicaNote::prefix_of(volume, replica);
        let list = || chain::numbers(store, &prefix);
        let listed = store.retry(&RetryPolicy::reads(), &mut random, None, list).await?;
        Ok(Self { store: store.clone(), volume, replica, listed })
    }

    /// Writes the next note, in the place of all before it.
    pub(super) async fn write(
        &mut self,
        env: &Env,
        mut note: ReplicaNote,
    ) -> Result<(), StoreError> {
        let prefix = ReplicaNote::prefix_of(self.volume, self.replica);
        let (store, policy) = (&self.store, RetryPolicy::reads());
        let mut random = || env.random.next_u64();
        loop {
            note.number = self.listed.last().copied().unwrap_or(0) + 1;
            self.listed.push(note.number);
            let key = chain::key(&prefix, note.number);
            let body = Bytes::from(note.encode());
            let put = || store.put_create(&key, vec![body.clone()]);
            // One that is there already may be our own, or not: the next number is free some time.
            if store.retry(&policy, &mut random, None, put).await? == Put::Created {
                break;
            }
        }
        let old: Vec<u64> = self.listed.drain(..self.listed.len() - 1).collect();
        for number in old {
            // What stays is older than the newest, and says nothing.
            let _ = self.store.delete(&chain::key(&prefix, number)).await;
        }
        Ok(())
    }
}

/// What the holder of a volume knows of the replicators that copy it.
#[derive(Debug, Default)]
pub(crate) struct NoteWatch {
    seen: BTreeMap<HexId, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    number: u64,
    /// When this number was first seen. By the holder's own clock, so that no other host's matters.
    since: Duration,
    copying_through: Option<u64>,
}

impl NoteWatch {
    /// Objects up to this sequence must not be deleted yet: a replicator copies them, and its note is younger than
    /// `patience`. A replicator that gets on renews its note, so that only a dead or a stuck one is given up.
    pub(crate) async fn held_through(
        &mut self,
        store: &Store,
        env: &Env,
        volume: VolumeId,
        patience: Duration,
    ) -> Result<Option<ObjectSeq>, StoreError> {
        let (policy, mut random) = (RetryPolicy::reads(), || env.random.next_u64());
        let prefix = ReplicaNote::prefix(volume);
        let list = || store.list(&prefix, None);
        let listed = store.retry(&policy, &mut random, None, list).await?;
        let mut newest: BTreeMap<HexId, u64> = BTreeMap::new();
        for (replica, number) in listed.iter().filter_map(|l| parse_key(&prefix, &l.key)) {
            let entry = newest.entry(replica).or_insert(number);
            *entry = (*entry).max(number);
        }
        let now = env.clock.boottime();
        self.seen.retain(|replica, _| newest.contains_key(replica));
        for (replica, number) in newest {
            if self.seen.get(&replica).is_some_and(|seen| seen.number == number) {
                continue;
            }
            let key = chain::key(&ReplicaNote::prefix_of(volume, replica), number);
            let read = || store.get(&key);
            let note = match store.retry(&policy, &mut random, None, read).await {
                Ok(bytes) => ReplicaNote::decode(&bytes),
                // The note was replaced by a newer one, which the next look finds; until then it holds back what it
                // held back before.
                Err(StoreError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            // One that cannot be read may need everything.
            let copying_through = note.map_or(Some(u64::MAX), |note| note.copying_through);
            self.seen.insert(replica, Seen { number, since: now, copying_through });
        }
        Ok(self.held_at(now, patience))
    }

    /// Of several replicators, the one that needs most decides.
    fn held_at(&self, now: Duration, patience: Duration) -> Option<ObjectSeq> {
        let young = self.seen.values().filter(|seen| now.saturating_sub(seen.since) < patience);
        young.filter_map(|seen| seen.copying_through).max().map(ObjectSeq)
    }
}

fn parse_key(prefix: &str, key: &str) -> Option<(HexId, u64)> {
    let (replica, _) = key.strip_prefix(prefix)?.split_once('/')?;
    Some((HexId::try_from(replica.to_owned()).ok()?, chain::parse_key(key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replicator_that_needs_most_decides_and_an_old_note_does_not() {
        let second = Duration::from_secs(1);
        let mut watch = NoteWatch::default();
        let notes = [(1, 10, Some(9)), (2, 9, Some(3)), (3, 9, None), (4, 1, Some(100))];
        for (replica, since, copying_through) in notes {
            let since = since * second;
            watch.seen.insert(HexId([replica; 16]), Seen { number: 1, since, copying_through });
        }
        assert_eq!(watch.held_at(10 * second, 5 * second), Some(ObjectSeq(9)));
        assert_eq!(watch.held_at(10 * second, 10 * second), Some(ObjectSeq(100)));
        assert_eq!(watch.held_at(100 * second, 5 * second), None);
    }
}
