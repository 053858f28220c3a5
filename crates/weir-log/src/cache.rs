//! The RAM cache of decoded frames, shared by all volumes of a node: the one thing that shards share.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::ids::ObjectId;

/// A frame of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKey {
    /// The object.
    pub object: ObjectId,
    /// Index of the frame in it.
    pub index: u32,
}

/// Keeps decoded frames. Objects never change, so an entry is right for ever and may go at any time.
pub trait FrameCache: Send + Sync {
    /// The frame, if it is there.
    fn get(&self, key: &FrameKey) -> Option<Bytes>;
    /// Keeps a frame.
    fn insert(&self, key: FrameKey, frame: Bytes);
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
}

impl FrameCache for MemoryFrameCache {
    fn get(&self, key: &FrameKey) -> Option<Bytes> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = frames.slots.get_mut(key)?;
        slot.referenced = true;
        Some(slot.frame.clone())
    }

    fn insert(&self, key: FrameKey, frame: Bytes) {
        let len = frame.len() as u64;
        if len > self.bytes_max {
            return;
        }
        let mut guard = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let frames = &mut *guard;
        match frames.slots.insert(key, Slot { frame, referenced: false }) {
            Some(old) => frames.bytes -= old.frame.len() as u64,
            None => frames.queue.push_back(key),
        }
        frames.bytes += len;
        while frames.bytes > self.bytes_max {
            let victim = frames.queue.pop_front().expect("every slot is queued");
            let slot = frames.slots.get_mut(&victim).expect("every queued key has a slot");
            if std::mem::take(&mut slot.referenced) {
                frames.queue.push_back(victim);
            } else {
                let gone = frames.slots.remove(&victim).expect("looked up just now");
                frames.bytes -= gone.frame.len() as u64;
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).bytes
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
        let object = ObjectId { stream: VolumeId([0; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        FrameKey { object, index: 0 }
    }

    #[test]
    fn keeps_its_limit_and_spares_what_was_used() {
        let cache = MemoryFrameCache::new(300);
        for seq in 0..3 {
            cache.insert(key(seq), Bytes::from(vec![0; 100]));
        }
        assert!(cache.get(&key(0)).is_some());
        cache.insert(key(3), Bytes::from(vec![0; 100]));
        assert_eq!(cache.bytes(), 300);
        assert!(cache.get(&key(0)).is_some(), "used since it came, so spared");
        assert!(cache.get(&key(1)).is_none(), "the oldest that was not used went");
    }
}
