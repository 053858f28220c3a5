//! The second level of the block store: frames on the local disk, in the node's band cache.
//!
//! A frame is cached under its stream, the opening that wrote its object, its object and its place in that, so that the
//! same name in another history of the stream is another address. Objects of programs that knew no openings are not
//! cached. Of the volume's own stream the manifest says the openings; of others, which a clone reads, the header of one
//! object says it for all of its epoch.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weir_cache::engine::{Blocks, CacheStatus, Owner, Pieces, RunAddress, Source, ThreadCache};
use weir_cache::format::run::DeviceIdentity;
use weir_device::{SharedBuf, VolumeId};
use weir_journal::Epoch;
use weir_seal::{BlockKey, DataKey};

use crate::format::blocks::BlockRange;
use crate::format::manifest::HexId;
use crate::format::object::ObjectHeader;
use crate::ids::ObjectId;
use crate::limits::{BLOCK_BYTES, FRAME_BYTES, OBJECTS_MAX, PAYLOAD_BITS};

/// Frames between the addresses of two objects that follow each other: more than an object has.
const FRAMES_PER_OBJECT: u64 = (1 << PAYLOAD_BITS) / FRAME_BYTES as u64;

const _: () = assert!(FRAME_BYTES as usize == weir_cache::engine::RUN_BYTES);

/// What the frames of an opening are cached as.
struct Opening {
    name: HexId,
    device: DeviceIdentity,
    key: Option<Arc<BlockKey>>,
}

/// What is known of the opening that wrote an object.
enum Known {
    Opening(Rc<Opening>),
    /// It has no name: its objects are not cached.
    Nameless,
    /// The header of an object of it was not read yet.
    No,
}

/// By stream and epoch; nothing for those without a name.
type Openings = HashMap<(VolumeId, Epoch), Option<Rc<Opening>>>;

/// The frames of a volume's objects on the local disk.
pub(crate) struct DiskBlocks {
    cache: Rc<ThreadCache>,
    key: Option<DataKey>,
    openings: RefCell<Openings>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

impl DiskBlocks {
    /// `named` are the openings of the volume's own stream, by their epochs.
    pub(super) fn new(
        cache: Rc<ThreadCache>,
        (volume, key): (VolumeId, Option<DataKey>),
        named: impl Iterator<Item = (Epoch, HexId)>,
    ) -> Self {
        let (openings, hits, misses) = Default::default();
        let blocks = Self { cache, key, openings, hits, misses };
        for (epoch, opening) in named {
            blocks.learn((volume, epoch), Some(opening));
        }
        blocks
    }

    /// Whether there is a cache.
    pub(crate) fn is_there(&self) -> bool {
        self.cache.is_there()
    }

    /// Whether there is one, or was: what is in memory may have come from it.
    pub(crate) fn was_there(&self) -> bool {
        self.cache.was_there()
    }

    /// Bands that an owner may have of the cache, where that is limited.
    pub(super) fn share_limit(&self, owner: Owner) -> Option<u64> {
        self.cache.share_limit(owner)
    }

    /// Reads that it answered, and frames that were read from the store.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.get(), self.misses.get())
    }

    /// The opening that wrote the objects of an epoch of a stream.
    pub(super) fn learn(&self, (stream, epoch): (VolumeId, Epoch), opening: Option<HexId>) {
        let mut openings = self.openings.borrow_mut();
        openings.entry((stream, epoch)).or_insert_with(|| {
            let opening = opening?;
            let mut device = [0; 32];
            device[..16].copy_from_slice(&stream.0);
            if !weir_device::mutant("cached_without_opening") {
                device[16..].copy_from_slice(&opening.0);
            }
            let key = self.key.as_ref().map(|key| Arc::new(key.block_key(&[&device])));
            Some(Rc::new(Opening { name: opening, device: DeviceIdentity(device), key }))
        });
    }

    /// Whether nobody has read a header of the object's epoch yet.
    pub(super) fn is_unknown(&self, object: ObjectId) -> bool {
        matches!(self.known(object), Known::No)
    }

    /// The opening that wrote the object, where that is known and has a name.
    pub(super) fn opening(&self, object: ObjectId) -> Option<HexId> {
        let openings = self.openings.borrow();
        Some(openings.get(&(object.stream, object.epoch))?.as_ref()?.name)
    }

    fn known(&self, object: ObjectId) -> Known {
        match self.openings.borrow().get(&(object.stream, object.epoch)) {
            Some(Some(opening)) => Known::Opening(Rc::clone(opening)),
            Some(None) => Known::Nameless,
            None => Known::No,
        }
    }

    fn address(&self, object: ObjectId, frame: u32) -> Option<(RunAddress, Rc<Opening>)> {
        let Known::Opening(opening) = self.known(object) else { return None };
        if object.seq.0 >= OBJECTS_MAX || u64::from(frame) >= FRAMES_PER_OBJECT {
            return None;
        }
        let run = object.seq.0 * FRAMES_PER_OBJECT + u64::from(frame);
        Some((RunAddress { device: opening.device, run }, opening))
    }

    /// Blocks of a frame, if the disk has them all. The last one of a frame is filled up with zeroes.
    pub(super) async fn blocks(
        &self,
        object: ObjectId,
        frame: u32,
        range: BlockRange,
    ) -> Option<Bytes> {
        let (address, opening) = self.address(object, frame)?;
        let blocks = Blocks::Some(range.first..=range.last);
        let found = self.cache.read(&address, blocks, opening.key.as_deref()).await;
        self.hits.set(self.hits.get() + u64::from(found.is_some()));
        found.map(Bytes::from_owner)
    }

    /// The frames from `first` to `last`, each if the disk has it, filled up to whole blocks.
    pub(super) async fn frames(
        &self,
        object: ObjectId,
        first: u32,
        last: u32,
    ) -> Vec<Option<Bytes>> {
        let count = last - first + 1;
        let Some((address, opening)) = self.run_of(object, first, last) else {
            return vec![None; count as usize];
        };
        let found = self.cache.read_runs(&address, count, opening.key.as_deref()).await;
        self.hits.set(self.hits.get() + found.iter().flatten().count() as u64);
        as_bytes(found)
    }

    /// The same for whoever copies them, which is no use of theirs.
    pub(super) async fn copies(
        &self,
        object: ObjectId,
        first: u32,
        last: u32,
    ) -> Vec<Option<Bytes>> {
        let count = last - first + 1;
        let Some((address, opening)) = self.run_of(object, first, last) else {
            return vec![None; count as usize];
        };
        as_bytes(self.cache.copy_runs(&address, count, opening.key.as_deref()).await)
    }

    /// The address of the first of several frames: all are within the object, or none.
    fn run_of(&self, object: ObjectId, first: u32, last: u32) -> Option<(RunAddress, Rc<Opening>)> {
        self.address(object, last).and_then(|_| self.address(object, first))
    }

    /// A frame was read from the store, and `kept` gives it as long as it is in memory.
    pub(super) fn offer(
        &self,
        object: ObjectId,
        frame: u32,
        kept: impl Fn() -> Option<Bytes> + 'static,
    ) {
        self.offer_from(object, frame, Source::Kept(Box::new(kept)));
    }

    fn offer_from(&self, object: ObjectId, frame: u32, source: Source) {
        if let Some((address, opening)) = self.address(object, frame) {
            self.misses.set(self.misses.get() + u64::from(matches!(source, Source::Kept(_))));
            self.cache.offer(address, source, opening.key.clone());
        }
    }

    /// How the cache is, if there is one.
    pub(super) fn status(&self) -> Option<CacheStatus> {
        self.cache.status()
    }

    /// Blocks that the disk has of a frame, which somebody wants there; nothing where it takes none of its object.
    pub(super) fn keep(&self, object: ObjectId, frame: u32) -> Option<u32> {
        let (address, _) = self.address(object, frame)?;
        Some(self.cache.keep(&address))
    }

    /// Writes a frame that somebody wants there, and waits for that.
    pub(super) async fn put(&self, object: ObjectId, frame: u32, bytes: Bytes) {
        let Some((address, opening)) = self.address(object, frame) else { return };
        self.cache.put(address, Pieces::from_iter([bytes]), opening.key.clone()).await;
    }

    /// Whether the disk has a frame.
    pub(crate) fn has(&self, object: ObjectId, frame: u32) -> bool {
        self.address(object, frame).is_some_and(|(address, _)| self.cache.has(&address))
    }

    /// An object is in the store of which some frames are still in memory: they will not be read from there.
    pub(crate) fn offer_object(&self, header: &ObjectHeader, frames: Vec<(u32, Vec<Bytes>)>) {
        if !self.is_there() {
            return;
        }
        self.learn((header.id.stream, header.id.epoch), header.opening);
        for (index, frame) in frames {
            self.offer_from(header.id, index, Source::Here(Pieces::from_vec(frame)));
        }
    }
}

fn as_bytes(found: Vec<Option<SharedBuf>>) -> Vec<Option<Bytes>> {
    found.into_iter().map(|run| run.map(Bytes::from_owner)).collect()
}

const _: () = assert!(BLOCK_BYTES == 4096);
