//! The RAM cache of decoded frames, shared by all volumes of a node: the one thing that shards share.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use weir_device::DeviceError;

use crate::format::blocks::BlockRange;
use crate::format::manifest::HexId;
use crate::ids::ObjectId;
use crate::read::table::FrameTable;

/// Part of the cache that frame tables may take, as a divisor: 48 MiB by default, for 33 GiB of full objects, or
/// 24 where all of their blocks are compressed one by one.
const TABLES_DIVISOR: u64 = 4;

/// Bytes that an entry takes in the cache beside its own: key, slot and place in the queue, of which the tables are not
/// always full.
const ENTRY_BYTES: u64 = 256;

/// An object of one history of its volume. Where a store was set back, other objects get the names of those that are
/// gone, while a process that read those may live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// What names it in the store.
    pub id: ObjectId,
    /// An opening that tells the history, where that is known.
    pub history: Option<HexId>,
}

/// A frame of an object, or a block of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKey {
    /// The object.
    pub object: ObjectKey,
    /// Index of the frame in it.
    pub index: u32,
    /// Index of the block in the frame; nothing for the whole frame.
    pub block: Option<u8>,
}

impl FrameKey {
    /// A whole frame.
    #[must_use]
    pub fn whole(object: ObjectKey, index: u32) -> Self {
        Self { object, index, block: None }
    }

    /// What counts within a run: frames of an object, or blocks of a frame.
    pub(super) fn number(&self) -> u32 {
        self.block.map_or(self.index, u32::from)
    }

    /// Another one of the run.
    pub(super) fn at(self, number: u32) -> Self {
        match self.block {
            None => Self { index: number, ..self },
            Some(_) => {
                let block = u8::try_from(number).expect("a frame has 16 blocks");
                Self { block: Some(block), ..self }
            }
        }
    }
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

/// What is there of some blocks of a frame.
#[derive(Debug)]
pub enum Part {
    /// All of the frame.
    Frame(Bytes),
    /// These blocks.
    Blocks(SmallVec<[Bytes; 1]>),
    /// Not all of them, but all of the frame is being fetched.
    Coming(oneshot::Receiver<FrameResult>),
    /// Not all of them. Where the frames of the object are, if that is known.
    Missing(Option<Arc<FrameTable>>),
}

/// Keeps decoded frames and blocks of frames, and where the frames of an object are. Objects never change, so an entry
/// is right for ever and may go at any time. All volumes of a node ask here, so that each frame is fetched once whoever
/// shares it.
pub trait FrameCache: Send + Sync {
    /// The frame, if it is there.
    fn get(&self, key: &FrameKey) -> Option<Bytes>;
    /// Some blocks of a frame, if they are there.
    fn part(&self, frame: &FrameKey, range: BlockRange) -> Part;
    /// The frame; or waits for whoever fetches it; or makes the caller the one who does.
    fn look(&self, key: &FrameKey) -> Look;
    /// Ends the fetch of a frame: keeps it, and answers everybody who waits. Without a result it is given up, and those
    /// who wait look again.
    fn settle(&self, key: FrameKey, result: Option<FrameResult>);
    /// Keeps a frame, or a block, that was had without a fetch. One that is on its way stays so.
    fn keep(&self, key: FrameKey, bytes: Bytes);
    /// Where the frames of an object are, if it is known.
    fn table(&self, object: &ObjectKey) -> Option<Arc<FrameTable>>;
    /// Keeps where the frames of an object are.
    fn keep_table(&self, object: ObjectKey, table: Arc<FrameTable>);
    /// Bytes held now: frames, blocks and tables.
    fn bytes(&self) -> u64;
}

/// Looked up several times per read. Nothing walks through it: its order means nothing.
type Keyed<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// A few instructions per word, the same in every process. Nobody outside chooses the keys.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table takes its low bits, which a product mixes least.
        self.0 ^ self.0 >> 32
    }
}

struct Slot {
    frame: Bytes,
    referenced: bool,
}

/// Bytes that a frame or a block takes in the cache.
fn bytes_of(frame: &Bytes) -> u64 {
    frame.len() as u64 + ENTRY_BYTES
}

#[derive(Default)]
struct Frames {
    slots: Keyed<FrameKey, Slot>,
    /// Second-chance order: the front goes next, unless it was referenced since it was queued.
    queue: VecDeque<FrameKey>,
    bytes: u64,
    /// Frames that are being fetched, and who waits for them.
    coming: Keyed<FrameKey, Vec<oneshot::Sender<FrameResult>>>,
    tables: Keyed<ObjectKey, Arc<FrameTable>>,
    table_bytes: u64,
    /// In the order in which they came.
    table_queue: VecDeque<ObjectKey>,
}

impl Frames {
    fn get(&mut self, key: &FrameKey) -> Option<Bytes> {
        let slot = self.slots.get_mut(key)?;
        slot.referenced = true;
        Some(slot.frame.clone())
    }

    /// Waits for whoever fetches this, if somebody does.
    fn join(&mut self, key: &FrameKey) -> Option<oneshot::Receiver<FrameResult>> {
        let waiting = self.coming.get_mut(key)?;
        let (sender, receiver) = oneshot::channel();
        waiting.push(sender);
        Some(receiver)
    }

    fn insert(&mut self, key: FrameKey, frame: Bytes, bytes_max: u64) {
        let bytes = bytes_of(&frame);
        if bytes > bytes_max {
            return;
        }
        match self.slots.insert(key, Slot { frame, referenced: false }) {
            Some(old) => self.bytes -= bytes_of(&old.frame),
            None => self.queue.push_back(key),
        }
        self.bytes += bytes;
        self.evict(bytes_max);
    }

    fn keep_table(&mut self, object: ObjectKey, table: Arc<FrameTable>, bytes_max: u64) {
        let bytes = |table: &FrameTable| table.bytes() + ENTRY_BYTES;
        self.table_bytes += bytes(&table);
        match self.tables.insert(object, table) {
            Some(old) => self.table_bytes -= bytes(&old),
            None => self.table_queue.push_back(object),
        }
        // The newest stays, however little room there is: it is about to be used.
        let has_ceiling = !weir_device::mutant("frame_tables_without_ceiling");
        while self.table_bytes > bytes_max / TABLES_DIVISOR
            && self.table_queue.len() > 1
            && has_ceiling
        {
            let oldest = self.table_queue.pop_front().expect("more than one is queued");
            let table = self.tables.remove(&oldest).expect("every queued table is there");
            self.table_bytes -= bytes(&table);
        }
        self.evict(bytes_max);
    }

    /// Frames and blocks go until there is room.
    fn evict(&mut self, bytes_max: u64) {
        while self.bytes > bytes_max.saturating_sub(self.table_bytes) {
            let Some(victim) = self.queue.pop_front() else { return };
            let Entry::Occupied(mut slot) = self.slots.entry(victim) else {
                unreachable!("every queued key has a slot")
            };
            if std::mem::take(&mut slot.get_mut().referenced) {
                self.queue.push_back(victim);
            } else {
                self.bytes -= bytes_of(&slot.remove().frame);
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

    fn part(&self, frame: &FrameKey, range: BlockRange) -> Part {
        let mut frames = self.lock();
        if let Some(whole) = frames.get(frame) {
            return Part::Frame(whole);
        }
        let mut blocks = SmallVec::new();
        for block in range.first..=range.last {
            let key = FrameKey { block: Some(0), ..*frame }.at(block);
            let Some(found) = frames.get(&key) else {
                return match frames.join(frame) {
                    Some(coming) => Part::Coming(coming),
                    None => Part::Missing(frames.tables.get(&frame.object).cloned()),
                };
            };
            blocks.push(found);
        }
        Part::Blocks(blocks)
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

    fn keep(&self, key: FrameKey, bytes: Bytes) {
        self.lock().insert(key, bytes, self.bytes_max);
    }

    fn table(&self, object: &ObjectKey) -> Option<Arc<FrameTable>> {
        self.lock().tables.get(object).cloned()
    }

    fn keep_table(&self, object: ObjectKey, table: Arc<FrameTable>) {
        self.lock().keep_table(object, table, self.bytes_max);
    }

    fn bytes(&self) -> u64 {
        let frames = self.lock();
        frames.bytes + frames.table_bytes
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
        FrameKey::whole(object, 0)
    }

    #[test]
    fn keeps_its_limit_and_spares_what_was_used() {
        let cache = MemoryFrameCache::new(3 * (100 + ENTRY_BYTES));
        let keep = |seq| cache.settle(key(seq), Some(Ok(Bytes::from(vec![0; 100]))));
        (0..3).for_each(keep);
        assert!(cache.get(&key(0)).is_some());
        keep(3);
        assert_eq!(cache.bytes(), 3 * (100 + ENTRY_BYTES), "what an entry takes is counted too");
        assert!(cache.get(&key(0)).is_some(), "used since it came, so spared");
        assert!(cache.get(&key(1)).is_none(), "the oldest that was not used went");
    }

    #[test]
    fn a_frame_that_comes_again_takes_what_it_took() {
        let cache = MemoryFrameCache::new(1 << 20);
        let keep = || cache.settle(key(1), Some(Ok(Bytes::from(vec![0; 100]))));
        keep();
        let once = cache.bytes();
        (0..100).for_each(|_| keep());
        assert_eq!(cache.bytes(), once);
    }

    #[test]
    fn frame_tables_keep_their_limit() {
        let table = || Arc::new(FrameTable::empty());
        let room = 10 * (table().bytes() + ENTRY_BYTES);
        let cache = MemoryFrameCache::new(room * TABLES_DIVISOR);
        let frame = room * (TABLES_DIVISOR - 1) - ENTRY_BYTES;
        let frame = Bytes::from(vec![0; usize::try_from(frame).unwrap()]);
        cache.settle(key(100), Some(Ok(frame)));
        let object = |seq: u64| key(seq).object;
        (0..=10).for_each(|seq| cache.keep_table(object(seq), table()));
        assert!(cache.table(&object(0)).is_none(), "the oldest went");
        assert!((1..=10).all(|seq| cache.table(&object(seq)).is_some()));
        assert_eq!(cache.bytes(), room * TABLES_DIVISOR, "beside frames, there is no more room");
        cache.keep_table(object(10), table());
        assert_eq!(cache.lock().table_bytes, room, "the same again takes no more");
        cache.settle(key(101), Some(Ok(Bytes::from_static(b"more"))));
        assert!(cache.get(&key(100)).is_none(), "frames make room for tables, and for each other");
        let small = MemoryFrameCache::new(1);
        (0..=1).for_each(|seq| small.keep_table(object(seq), table()));
        assert!(small.table(&object(0)).is_none() && small.table(&object(1)).is_some());
    }

    #[test]
    fn blocks_are_found_all_together_or_as_parts_of_their_frame() {
        let cache = MemoryFrameCache::new(100_000);
        let range = BlockRange { first: 2, last: 3 };
        let block = |number| FrameKey { block: Some(number), ..key(1) };
        let keep = |key, text: &'static [u8]| {
            cache.settle(key, Some(Ok(Bytes::from_static(text))));
        };
        keep(block(2), b"two");
        assert!(matches!(cache.part(&key(1), range), Part::Missing(None)));
        keep(block(3), b"three");
        let Part::Blocks(found) = cache.part(&key(1), range) else { panic!("both are there") };
        assert_eq!(found[..], ["two", "three"]);
        keep(key(1), b"all of it");
        assert!(matches!(cache.part(&key(1), range), Part::Frame(frame) if frame == "all of it"));
        let part = || cache.part(&key(2), range);
        assert!(matches!(part(), Part::Missing(_)), "nobody fetches it");
        let Look::Missing(_) = cache.look(&key(2)) else { panic!("nobody has it") };
        let Part::Coming(mut joined) = part() else { panic!("it is coming") };
        keep(key(2), b"came");
        assert_eq!(joined.try_recv().unwrap().unwrap(), "came");
    }

    /// A store that was set back under a living process: the same name, another object.
    #[test]
    fn objects_of_the_same_name_in_two_histories_are_two() {
        let cache = MemoryFrameCache::new(1000);
        let of = |byte| {
            let object = ObjectKey { history: Some(HexId([byte; 16])), ..key(1).object };
            FrameKey::whole(object, 0)
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
