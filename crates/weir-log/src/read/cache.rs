//! The RAM cache of decoded frames, shared by all volumes of a node: the one thing that shards share.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;
use weir_device::DeviceError;

use crate::format::manifest::HexId;
use crate::ids::ObjectId;
use crate::read::table::FrameTable;

/// Frame tables kept in memory, the oldest going first: 2 KiB each for a default batch, so about 8 MiB in all.
const FRAME_TABLES_MAX: usize = 4096;

/// An object of one history of its volume. Where a store was set back, other objects get the names of those that are
/// gone, while a process that read those may live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// What names it in the store.
    pub id: ObjectId,
    /// An opening that tells the history, where that is known.
    pub history: Option<HexId>,
}

/// A frame of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKey {
    /// The object.
    pub object: ObjectKey,
    /// Index of the frame in it.
    pub index: u32,
}

/// What a fetch came to.
pub type FrameResult = Result<Bytes, DeviceError>;

/// What a look for a frame found.
#[derive(Debug)]
pub enum Look {
    /// It is here.
    Found(Bytes),
    /// Somebody fetches it, and says here what became of it. Where nothing is said, the fetch was given up.
    Coming(oneshot::Receiver<FrameResult>),
    /// Nobody has it: the caller is the one to fetch it, and to settle that. It is answered here as well.
    Missing(oneshot::Receiver<FrameResult>),
}

/// Keeps decoded frames, and where the frames of an object are. Objects never change, so an entry is right for ever and
/// may go at any time. All volumes of a node ask here, so that each frame is fetched once whoever shares it.
pub trait FrameCache: Send + Sync {
    /// The frame, if it is there.
    fn get(&self, key: &FrameKey) -> Option<Bytes>;
    /// The frame; or waits for whoever fetches it; or makes the caller the one who does.
    fn look(&self, key: &FrameKey) -> Look;
    /// Ends the fetch of a frame: keeps it, and answers everybody who waits. Without a result it is given up, and those
    /// who wait look again.
    fn settle(&self, key: FrameKey, result: Option<FrameResult>);
    /// Where the frames of an object are, if it is known.
    fn table(&self, object: &ObjectKey) -> Option<Arc<FrameTable>>;
    /// Keeps where the frames of an object are.
    fn keep_table(&self, object: ObjectKey, table: Arc<FrameTable>);
    /// Bytes held now.
    fn bytes(&self) -> u64;
}

struct Slot {
    frame: Bytes,
    referenced: bool,
}

#[derive(Default)]
struct Frames {
    slots: BTreeMap<FrameKey, Slot>,
    /// Second-chance order: the front goes next, unless it was referenced since it was queued.
    queue: VecDeque<FrameKey>,
    bytes: u64,
    /// Frames that are being fetched, and who waits for them.
    coming: BTreeMap<FrameKey, Vec<oneshot::Sender<FrameResult>>>,
    tables: BTreeMap<ObjectKey, Arc<FrameTable>>,
    /// In the order in which they came.
    table_queue: VecDeque<ObjectKey>,
}

impl Frames {
    fn get(&mut self, key: &FrameKey) -> Option<Bytes> {
        let slot = self.slots.get_mut(key)?;
        slot.referenced = true;
        Some(slot.frame.clone())
    }

    fn insert(&mut self, key: FrameKey, frame: Bytes, bytes_max: u64) {
        let len = frame.len() as u64;
        if len > bytes_max {
            return;
        }
        match self.slots.insert(key, Slot { frame, referenced: false }) {
            Some(old) => self.bytes -= old.frame.len() as u64,
            None => self.queue.push_back(key),
        }
        self.bytes += len;
        while self.bytes > bytes_max {
            let victim = self.queue.pop_front().expect("every slot is queued");
            let slot = self.slots.get_mut(&victim).expect("every queued key has a slot");
            if std::mem::take(&mut slot.referenced) {
                self.queue.push_back(victim);
            } else {
                let gone = self.slots.remove(&victim).expect("looked up just now");
                self.bytes -= gone.frame.len() as u64;
            }
        }
    }
}

/// A cache in memory with second-chance (CLOCK) eviction.
pub struct MemoryFrameCache {
    bytes_max: u64,
    frames: Mutex<Frames>,
}

impl MemoryFrameCache {
    /// A cache of at most `bytes_max` bytes of frames.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, frames: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrameCache for MemoryFrameCache {
    fn get(&self, key: &FrameKey) -> Option<Bytes> {
        self.lock().get(key)
    }

    fn look(&self, key: &FrameKey) -> Look {
        let mut frames = self.lock();
        if let Some(frame) = frames.get(key) {
            return Look::Found(frame);
        }
        let (sender, receiver) = oneshot::channel();
        match frames.coming.entry(*key) {
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().push(sender);
                Look::Coming(receiver)
            }
            Entry::Vacant(nobody) => {
                nobody.insert(vec![sender]);
                Look::Missing(receiver)
            }
        }
    }

    fn settle(&self, key: FrameKey, result: Option<FrameResult>) {
        let waiting = {
            let mut frames = self.lock();
            if let Some(Ok(frame)) = &result {
                frames.insert(key, frame.clone(), self.bytes_max);
            }
            frames.coming.remove(&key).unwrap_or_default()
        };
        let Some(result) = result else { return };
        for waiter in waiting {
            // Whoever asked may have gone away.
            let _ = waiter.send(result.clone());
        }
    }

    fn table(&self, object: &ObjectKey) -> Option<Arc<FrameTable>> {
        self.lock().tables.get(object).cloned()
    }

    fn keep_table(&self, object: ObjectKey, table: Arc<FrameTable>) {
        let mut frames = self.lock();
        if frames.tables.insert(object, table).is_none() {
            frames.table_queue.push_back(object);
        }
        if frames.tables.len() > FRAME_TABLES_MAX
            && let Some(oldest) = frames.table_queue.pop_front()
        {
            frames.tables.remove(&oldest);
        }
    }

    fn bytes(&self) -> u64 {
        self.lock().bytes
    }
}

impl fmt::Debug for MemoryFrameCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFrameCache({} of {} bytes)", self.bytes(), self.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ObjectSeq;
    use weir_device::VolumeId;
    use weir_journal::Epoch;

    fn key(seq: u64) -> FrameKey {
        let id = ObjectId { stream: VolumeId([0; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        let object = ObjectKey { id, history: None };
        FrameKey { object, index: 0 }
    }

    #[test]
    fn keeps_its_limit_and_spares_what_was_used() {
        let cache = MemoryFrameCache::new(300);
        let keep = |seq| cache.settle(key(seq), Some(Ok(Bytes::from(vec![0; 100]))));
        (0..3).for_each(keep);
        assert!(cache.get(&key(0)).is_some());
        keep(3);
        assert_eq!(cache.bytes(), 300);
        assert!(cache.get(&key(0)).is_some(), "used since it came, so spared");
        assert!(cache.get(&key(1)).is_none(), "the oldest that was not used went");
    }

    #[test]
    fn frame_tables_keep_their_limit() {
        let cache = MemoryFrameCache::new(300);
        let table = || Arc::new(FrameTable::empty());
        let object = |seq: usize| key(seq as u64).object;
        (0..=FRAME_TABLES_MAX).for_each(|seq| cache.keep_table(object(seq), table()));
        assert!(cache.table(&object(0)).is_none(), "the oldest went");
        assert!(cache.table(&object(FRAME_TABLES_MAX)).is_some());
        assert_eq!(cache.lock().tables.len(), FRAME_TABLES_MAX);
    }

    /// A store that was set back under a living process: the same name, another object.
    #[test]
    fn objects_of_the_same_name_in_two_histories_are_two() {
        let cache = MemoryFrameCache::new(300);
        let of = |byte| {
            let object = ObjectKey { history: Some(HexId([byte; 16])), ..key(1).object };
            FrameKey { object, index: 0 }
        };
        cache.settle(of(1), Some(Ok(Bytes::from_static(b"before"))));
        assert!(cache.get(&of(2)).is_none() && cache.get(&key(1)).is_none());
        cache.settle(of(2), Some(Ok(Bytes::from_static(b"since"))));
        assert_eq!(cache.get(&of(1)).unwrap(), "before");
        assert_eq!(cache.get(&of(2)).unwrap(), "since");
    }

    #[test]
    fn one_fetches_and_all_who_look_meanwhile_are_answered() {
        let cache = MemoryFrameCache::new(300);
        let Look::Missing(mut first) = cache.look(&key(1)) else { panic!("nobody has it") };
        let Look::Coming(mut second) = cache.look(&key(1)) else { panic!("it is coming") };
        cache.settle(key(1), Some(Ok(Bytes::from_static(b"water"))));
        for receiver in [&mut first, &mut second] {
            assert_eq!(receiver.try_recv().unwrap().unwrap(), "water");
        }
        assert!(matches!(cache.look(&key(1)), Look::Found(_)));
        let Look::Missing(_) = cache.look(&key(2)) else { panic!("nobody has it") };
        let Look::Coming(mut waiting) = cache.look(&key(2)) else { panic!("it is coming") };
        cache.settle(key(2), None);
        waiting.try_recv().unwrap_err();
        assert!(matches!(cache.look(&key(2)), Look::Missing(_)), "given up: the next one fetches");
    }
}
