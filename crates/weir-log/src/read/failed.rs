//! What a volume remembers of a read that found bytes lost or damaged: its status says so until they are there again.

use weir_device::DeviceError;

use crate::map::objects::ObjectMap;
use crate::read::{Part, Source, resolve};
use crate::write::overlay::Overlay;

/// Bytes that a read did not get, because they are lost or damaged.
#[derive(Debug)]
pub(crate) struct FailedRead {
    part: Part,
    error: String,
}

impl FailedRead {
    pub(crate) fn new(part: Part, error: &DeviceError) -> Self {
        Self { part, error: error.to_string() }
    }

    /// Whether all of the bytes lie in a range.
    pub(crate) fn is_within(&self, start: u64, end: u64) -> bool {
        start <= self.part.offset && self.part.offset + self.part.len <= end
    }

    /// What to say of it; nothing once all of the bytes come from elsewhere, as after a write or a rollback.
    pub(crate) fn reason(&self, overlay: &Overlay, objects: &ObjectMap) -> Option<String> {
        let Part { offset, len, source } = self.part;
        let is_same = |now| match (now, source) {
            (Source::Object { object, .. }, Source::Object { object: failed, .. }) => {
                object == failed
            }
            (Source::Poison, Source::Poison) => true,
            _ => false,
        };
        let mut is_there = false;
        resolve(overlay, objects, offset, len, |part| {
            is_there |= is_same(part.source);
            !is_there
        });
        is_there.then(|| format!("reads fail in the {len} bytes at {offset}: {}", self.error))
    }
}
