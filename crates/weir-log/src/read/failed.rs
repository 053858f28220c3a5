//! What a volume remembers of reads that found bytes lost or damaged: its status says so until they are there again.

use std::cell::Cell;

use weir_device::DeviceError;

use crate::map::objects::ObjectMap;
use crate::read::{Part, Source, resolve, to_usize};
use crate::write::overlay::Overlay;

/// Ranges that are remembered. A store that lost more has its volume degraded for long anyway.
pub(crate) const RANGES_MAX: usize = 16;

/// What reads did not get, the newest last.
#[derive(Debug, Default)]
pub(crate) struct FailedReads {
    ranges: Vec<FailedRead>,
    /// Reads failed in more ranges than are remembered, since there was nothing to remember.
    has_more: bool,
}

impl FailedReads {
    /// Remembers one. `overlay` and `objects` say what of the others is there again.
    pub(crate) fn note(
        &mut self,
        part: Part,
        error: &DeviceError,
        overlay: &Overlay,
        objects: &ObjectMap,
    ) {
        let mut newest = FailedRead { part, error: error.to_string() };
        let (start, end) = newest.range();
        // A read within a range that failed before is no reason to forget the rest of that range.
        if let Some(at) = self.ranges.iter().position(|known| known.has_all_of(&newest)) {
            newest.part = self.ranges.remove(at).part;
        } else {
            self.ranges.retain(|known| !known.is_within(start, end));
        }
        if self.ranges.len() == RANGES_MAX {
            self.ranges.retain(|known| known.is_lost(overlay, objects));
        }
        if self.ranges.len() == RANGES_MAX {
            self.ranges.remove(0);
            self.has_more = true;
        }
        self.ranges.push(newest);
    }

    /// Forgets what lies in a range of which a read got everything.
    pub(crate) fn forget(&mut self, start: u64, end: u64) {
        if self.ranges.is_empty() {
            return;
        }
        let mut room = RANGES_MAX - self.ranges.len();
        let known = std::mem::take(&mut self.ranges);
        for range in known {
            range.without(start, end, &mut room, &mut self.ranges);
        }
        self.has_more &= !self.ranges.is_empty();
    }

    /// What to say of the newest one, and how many others there are; nothing once all of the bytes come from elsewhere,
    /// as after a write or a rollback. Where no read failed, what is known to be lost is said.
    pub(crate) fn reason(&self, overlay: &Overlay, objects: &ObjectMap) -> Option<String> {
        let mut lost = self.ranges.iter().rev().filter(|known| known.is_lost(overlay, objects));
        let Some(FailedRead { part: Part { offset, len, .. }, error }) = lost.next() else {
            return known_lost(overlay, objects);
        };
        let others = others(lost.count(), self.has_more);
        Some(format!("reads fail in the {len} bytes at {offset}{others}: {error}"))
    }

    /// What is worth another read, in pieces of at most `bytes_max`: what still comes from the object in which it
    /// failed. The rest is forgotten, as it comes from elsewhere, or the map knows that it is lost.
    pub(crate) fn worth_another_read(
        &mut self,
        bytes_max: u64,
        overlay: &Overlay,
        objects: &ObjectMap,
    ) -> Vec<(u64, u64)> {
        let (mut again, mut elsewhere) = (Vec::new(), Vec::new());
        let in_objects = |known: &&FailedRead| matches!(known.part.source, Source::Object { .. });
        for known in self.ranges.iter().filter(in_objects) {
            let Part { offset, len, source } = known.part;
            resolve(overlay, objects, offset, len, |part| {
                let end = part.offset + part.len;
                if is_same(part.source, source) {
                    let pieces = (part.offset..end).step_by(to_usize(bytes_max));
                    again.extend(pieces.map(|at| (at, bytes_max.min(end - at))));
                } else {
                    elsewhere.push((part.offset, end));
                }
                true
            });
        }
        elsewhere.into_iter().for_each(|(start, end)| self.forget(start, end));
        again
    }
}

/// Parts of one range that are looked at for one status: all of them are looked at on the volume's thread.
const PARTS_MAX: u32 = 4096;

/// What to say of the ranges of which the map says that they are lost.
fn known_lost(overlay: &Overlay, objects: &ObjectMap) -> Option<String> {
    let known = objects.lost();
    let mut lost = known.ranges().filter_map(|range| first_lost(range, overlay, objects));
    let Some((offset, len)) = lost.next() else {
        return known.has_more().then(|| MORE_LOST.to_owned());
    };
    let others = others(lost.count(), known.has_more());
    Some(format!(
        "reads fail in the {len} bytes at {offset}{others}: they were lost to damage, or given up by a repair, and \
         nothing was written there since"
    ))
}

/// What to say where nothing is lost any more of what is remembered.
const MORE_LOST: &str = "reads may fail: bytes were lost to damage, or given up by a repair, in more ranges than are \
                         remembered; weir volume check names those that are left, and weir volume repair looks for \
                         them anew";

/// The first bytes of a remembered range that are lost. What lies before them is well again, and taken away. Of a range
/// with very many parts the rest counts as lost until it was looked at.
fn first_lost(
    range: &Cell<(u64, u64)>,
    overlay: &Overlay,
    objects: &ObjectMap,
) -> Option<(u64, u64)> {
    let (offset, len) = range.get();
    let (mut found, mut looked_to, mut parts) = (None, offset, 0);
    resolve(overlay, objects, offset, len, |part| {
        if matches!(part.source, Source::Poison) {
            found = Some((part.offset, part.len));
            return false;
        }
        looked_to = part.offset + part.len;
        parts += 1;
        parts < PARTS_MAX
    });
    let rest = (looked_to, offset + len - looked_to);
    range.set(rest);
    found.or((rest.1 > 0).then_some(rest))
}

fn others(count: usize, has_more: bool) -> String {
    match (count, has_more) {
        (0, false) => String::new(),
        (1, false) => ", and in 1 more range".to_owned(),
        (others, false) => format!(", and in {others} more ranges"),
        (0, true) => ", and maybe in others, which weir volume check names".to_owned(),
        (others, true) => format!(", and in more than {others} more ranges"),
    }
}

/// Bytes that a read did not get, because they are lost or damaged.
#[derive(Clone, Debug)]
struct FailedRead {
    part: Part,
    error: String,
}

impl FailedRead {
    /// Its first byte, and the one behind its last.
    fn range(&self) -> (u64, u64) {
        (self.part.offset, self.part.offset + self.part.len)
    }

    /// Whether all of the bytes lie in a range.
    fn is_within(&self, start: u64, end: u64) -> bool {
        start <= self.part.offset && self.part.offset + self.part.len <= end
    }

    /// Whether all of another's bytes, at the same place in the store, are among these.
    fn has_all_of(&self, other: &Self) -> bool {
        let (start, end) = self.range();
        other.is_within(start, end) && is_same(self.part.source, other.part.source)
    }

    /// Adds what is left of it without a range: nothing, or one piece, or two where there is `room` for one more.
    fn without(self, start: u64, end: u64, room: &mut usize, left: &mut Vec<Self>) {
        let (from, to) = self.range();
        let (before, behind) = (from < start, end < to);
        if end <= from || to <= start || (before && behind && *room == 0) {
            left.push(self);
            return;
        }
        if before && behind {
            *room -= 1;
        }
        if before {
            left.push(self.clone().of(from, start));
        }
        if behind {
            left.push(self.of(end, to));
        }
    }

    /// The same, of a part of its range.
    fn of(mut self, start: u64, end: u64) -> Self {
        (self.part.offset, self.part.len) = (start, end - start);
        self
    }

    /// Whether any of the bytes still come from where the read failed.
    fn is_lost(&self, overlay: &Overlay, objects: &ObjectMap) -> bool {
        let Part { offset, len, source } = self.part;
        let mut is_there = false;
        resolve(overlay, objects, offset, len, |part| {
            is_there |= is_same(part.source, source);
            !is_there
        });
        is_there
    }
}

/// Whether two parts come from the same object, or are both known to be lost.
fn is_same(one: Source, other: Source) -> bool {
    match (one, other) {
        (Source::Object { object: one, .. }, Source::Object { object: other, .. }) => one == other,
        (Source::Poison, Source::Poison) => true,
        _ => false,
    }
}
