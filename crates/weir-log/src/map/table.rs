//! The object table: the objects that map targets name by index, and how much of each still lives.
//!
//! Invariants
//!  T1. The sums are those of the entries.
//!  T2. An object that lost its last live byte never lives again: it is reported dead once, with the sequence of the
//!      object that took that byte. Its entry stays until then.
//!  T3. An object that a snapshot reaches is never reported dead; it is when the last such snapshot goes.
//!  T4. An object of another volume's stream is never collectable: it belongs to that volume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use weir_device::VolumeId;
use weir_journal::Epoch;

use crate::format::checkpoint::TableRecord;
use crate::ids::{ObjectId, ObjectSeq};
use crate::limits::OBJECTS_MAX;

/// Index of an object in the table that map targets name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TableIndex(pub(crate) u32);

#[derive(Clone, Copy, Debug)]
struct Entry {
    record: TableRecord,
    live_bytes: u64,
    /// Snapshots that reach the object.
    pins: u32,
    /// It is in the stream of another volume, which this one is a clone of.
    shared: bool,
}

/// An object with live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveObject {
    pub(crate) id: ObjectId,
    pub(crate) live_bytes: u64,
    pub(crate) payload_bytes: u64,
}

/// Bytes over all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// That the map points at.
    pub(crate) live_bytes: u64,
    /// Payload of the objects with live bytes.
    pub(crate) used_bytes: u64,
    /// Of the live bytes, those in objects that no snapshot reaches.
    pub(crate) collectable_live_bytes: u64,
    /// Payload of the objects with live bytes that no snapshot reaches: what collection can win from.
    pub(crate) collectable_bytes: u64,
    /// Payload of all objects of the table, the dead ones that wait for their deletion included.
    pub(crate) payload_bytes: u64,
    /// Of the live bytes, those in objects of other volumes.
    pub(crate) shared_live_bytes: u64,
}

/// What a checkpoint says of the objects that the map as of it does not point at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dead {
    /// Nothing: the version that publishes it lists them for deletion, or a snapshot names them. So a snapshot that the
    /// checkpoint becomes reaches what it shows, and nothing else.
    Hidden,
    /// Their names: they are not listed yet, and must not be forgotten.
    Named,
}

#[derive(Debug, Default)]
pub(crate) struct ObjectTable {
    /// The stream whose objects are the volume's own; all are where none is named.
    own: Option<VolumeId>,
    entries: Vec<Entry>,
    by_id: BTreeMap<ObjectId, TableIndex>,
    free: BTreeSet<TableIndex>,
    /// Entries that differ from the newest checkpoint's.
    changed: BTreeSet<TableIndex>,
    /// All of them do, whatever `changed` says.
    all_changed: bool,
    /// In the order of their deaths.
    dead: VecDeque<(ObjectSeq, TableIndex)>,
    /// Objects of snapshots that the map does not name any more, and how many reach them.
    held: BTreeMap<ObjectId, u32>,
    usage: Usage,
    /// Payload bytes of objects that were given up for deletion since the table was loaded.
    reclaimed_bytes: u64,
}

impl ObjectTable {
    /// The table of the volume whose stream this is.
    pub(crate) fn of(stream: VolumeId) -> Self {
        Self { own: Some(stream), ..Self::default() }
    }

    fn is_shared(&self, id: &ObjectId) -> bool {
        self.own.is_some_and(|own| own != id.stream)
    }

    /// The streams of other volumes that anything of the table, or of a snapshot, is in.
    pub(crate) fn shared_streams(&self) -> BTreeSet<VolumeId> {
        let mut streams = streams_of(&self.by_id);
        streams.extend(streams_of(&self.held));
        streams.retain(|stream| self.own.is_some_and(|own| own != *stream));
        streams
    }

    /// Objects of other volumes that the map points at.
    pub(crate) fn shared_objects(&self) -> impl Iterator<Item = LiveObject> + '_ {
        let shared = self.entries.iter().filter(|e| e.shared && e.live_bytes > 0);
        shared.map(Entry::live_object)
    }

    /// Entries, those of freed objects included.
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// Payload bytes of objects that were given up for deletion since the table was loaded.
    pub(crate) fn reclaimed_bytes(&self) -> u64 {
        self.reclaimed_bytes
    }

    pub(crate) fn object(&self, index: TableIndex) -> ObjectId {
        self.entry(index).record.id
    }

    pub(crate) fn find(&self, id: &ObjectId) -> Option<TableIndex> {
        self.by_id.get(id).copied()
    }

    /// The object, if any of it lives.
    pub(crate) fn live_object(&self, id: &ObjectId) -> Option<LiveObject> {
        let entry = self.entry(self.find(id)?);
        (entry.live_bytes > 0).then(|| entry.live_object())
    }

    /// The object, if it is the volume's own, any of it lives, and no snapshot reaches it.
    pub(crate) fn collectable_object(&self, id: &ObjectId) -> Option<LiveObject> {
        let entry = self.entry(self.find(id)?);
        (entry.live_bytes > 0 && entry.is_collectable()).then(|| entry.live_object())
    }

    /// Objects that the map points at.
    pub(crate) fn live_objects(&self) -> impl Iterator<Item = LiveObject> + '_ {
        self.entries.iter().filter(|e| e.live_bytes > 0).map(Entry::live_object)
    }

    /// Objects of the volume's own that the map points at and no snapshot reaches.
    pub(crate) fn collectable_objects(&self) -> impl Iterator<Item = LiveObject> + '_ {
        let collectable = self.entries.iter().filter(|e| e.live_bytes > 0 && e.is_collectable());
        collectable.map(Entry::live_object)
    }

    /// Every object that has an entry.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.by_id.keys().copied()
    }

    fn entry(&self, index: TableIndex) -> &Entry {
        &self.entries[index.0 as usize]
    }

    fn entry_mut(&mut self, index: TableIndex) -> &mut Entry {
        &mut self.entries[index.0 as usize]
    }

    /// Adds an object, none of it live yet.
    pub(crate) fn add(&mut self, record: TableRecord) -> TableIndex {
        let index = match self.free.pop_first() {
            Some(index) => {
                let shared = self.is_shared(&record.id);
                let entry = self.entry_mut(index);
                (entry.record, entry.shared) = (record, shared);
                index
            }
            None => self.push(record),
        };
        self.changed.insert(index);
        self.by_id.insert(record.id, index);
        self.usage.payload_bytes += u64::from(record.payload_len);
        index
    }

    fn push(&mut self, record: TableRecord) -> TableIndex {
        assert!(self.len() < OBJECTS_MAX, "30 bits name every object of a volume");
        let shared = !record.is_free() && self.is_shared(&record.id);
        self.entries.push(Entry { record, live_bytes: 0, pins: 0, shared });
        TableIndex(u32::try_from(self.entries.len() - 1).expect("30 bits"))
    }

    /// Adds the next entry of a table that is being loaded.
    pub(crate) fn add_loaded(&mut self, record: TableRecord) {
        let index = self.push(record);
        if record.is_free() {
            self.free.insert(index);
        } else {
            self.by_id.insert(record.id, index);
            self.usage.payload_bytes += u64::from(record.payload_len);
        }
    }

    /// After loading table and map: frees the entries of what is dead in a published checkpoint. Most of that is
    /// deleted already.
    pub(crate) fn free_dead(&mut self) -> Vec<ObjectId> {
        let dead = self.by_id.iter().filter(|(_, index)| self.entry(**index).live_bytes == 0);
        let dead: Vec<(ObjectId, TableIndex)> = dead.map(|(id, index)| (*id, *index)).collect();
        for (_, index) in &dead {
            self.free(*index);
        }
        self.reclaimed_bytes = 0;
        dead.into_iter().map(|(id, _)| id).collect()
    }

    /// The map points at `len` more bytes of an object; `false` where it has not that many.
    pub(crate) fn gain(&mut self, index: TableIndex, payload_offset: u32, len: u64) -> bool {
        let Some(entry) = self.entries.get_mut(index.0 as usize) else { return false };
        let payload_bytes = u64::from(entry.record.payload_len);
        if u64::from(payload_offset) + len > payload_bytes {
            return false;
        }
        if entry.live_bytes == 0 && len > 0 {
            self.usage.used_bytes += payload_bytes;
        }
        if entry.shared {
            self.usage.shared_live_bytes += len;
        }
        if entry.is_collectable() && len > 0 {
            self.usage.collectable_live_bytes += len;
            self.usage.collectable_bytes += if entry.live_bytes == 0 { payload_bytes } else { 0 };
        }
        entry.live_bytes += len;
        self.usage.live_bytes += len;
        true
    }

    /// The object `by`, of sequence `at`, took `len` bytes of the map from the object at `index`.
    pub(crate) fn lose(&mut self, index: TableIndex, len: u64, by: TableIndex, at: ObjectSeq) {
        let entry = &mut self.entries[index.0 as usize];
        assert!(entry.live_bytes >= len, "T1: an object cannot lose more than lives");
        entry.live_bytes -= len;
        self.usage.live_bytes -= len;
        let dies = entry.live_bytes == 0 && len > 0;
        if dies {
            self.usage.used_bytes -= u64::from(entry.record.payload_len);
        }
        if entry.shared {
            self.usage.shared_live_bytes -= len;
        }
        if entry.is_collectable() {
            self.usage.collectable_live_bytes -= len;
            self.usage.collectable_bytes -= if dies { entry.record.payload_len.into() } else { 0 };
        }
        // An object that overwrites its own bytes while it is applied is not reported dead before its last step.
        if dies && index != by {
            self.dead.push_back((at, index));
            if weir_device::mutant("entry_used_again_early") {
                self.dead.pop_back();
                self.free(index);
            }
        }
    }

    /// All extents of an object are applied. T2 for an object of which nothing lives by then.
    pub(crate) fn on_applied(&mut self, index: TableIndex) {
        let entry = self.entry(index);
        if entry.live_bytes == 0 {
            self.dead.push_back((entry.record.id.seq, index));
        }
    }

    /// The objects that are dead in the map as of `as_of`, of which no snapshot needs any. Their entries are free from
    /// here on: the caller lists them in a manifest.
    pub(crate) fn take_dead(&mut self, as_of: ObjectSeq) -> Vec<ObjectId> {
        let mut dead = Vec::new();
        while self.dead.front().is_some_and(|(died_at, _)| *died_at <= as_of) {
            let (_, index) = self.dead.pop_front().expect("looked at just now");
            let Entry { record, pins, .. } = *self.entry(index);
            self.free(index);
            if pins > 0 {
                self.held.insert(record.id, pins);
                self.reclaimed_bytes -= u64::from(record.payload_len);
            } else {
                dead.push(record.id);
            }
        }
        dead
    }

    /// Whether a snapshot reaches the object.
    pub(crate) fn is_pinned(&self, id: &ObjectId) -> bool {
        self.held.contains_key(id) || self.find(id).is_some_and(|index| self.entry(index).pins > 0)
    }

    /// A snapshot reaches these objects.
    pub(crate) fn pin(&mut self, ids: &[ObjectId]) {
        for id in ids {
            match self.find(id) {
                Some(index) => self.change_pins(index, 1),
                None => *self.held.entry(*id).or_insert(0) += 1,
            }
        }
    }

    /// Of these objects, which a snapshot reaches, those that nothing else does.
    pub(crate) fn held_once(&self, ids: &[ObjectId]) -> Vec<ObjectId> {
        ids.iter().filter(|id| self.held.get(id) == Some(&1)).copied().collect()
    }

    /// A snapshot that reached these objects is gone.
    pub(crate) fn unpin(&mut self, ids: &[ObjectId]) {
        for id in ids {
            if let Some(index) = self.find(id) {
                self.change_pins(index, -1);
            } else if let Some(pins) = self.held.get_mut(id) {
                *pins -= 1;
                if *pins == 0 {
                    self.held.remove(id);
                }
            }
        }
    }

    fn change_pins(&mut self, index: TableIndex, by: i32) {
        let entry = &mut self.entries[index.0 as usize];
        let was_collectable = entry.is_collectable();
        entry.pins = entry.pins.checked_add_signed(by).expect("T3: unpinned as often as pinned");
        let is_collectable = entry.is_collectable();
        let bytes = if entry.live_bytes > 0 { entry.record.payload_len.into() } else { 0 };
        let (usage, live) = (&mut self.usage, entry.live_bytes);
        if was_collectable && !is_collectable {
            usage.collectable_live_bytes -= live;
            usage.collectable_bytes -= bytes;
        } else if is_collectable && !was_collectable {
            usage.collectable_live_bytes += live;
            usage.collectable_bytes += bytes;
        }
    }

    /// This table goes on in place of `old`: with its pins, its length, and every piece changed. The objects that only
    /// the old one named.
    pub(crate) fn replace(&mut self, old: &Self) -> Vec<ObjectId> {
        while self.len() < old.len() {
            self.add_loaded(TableRecord::FREE);
        }
        self.mark_all_changed();
        self.reclaimed_bytes = old.reclaimed_bytes;
        let pins = old.by_id.iter().map(|(id, index)| (*id, old.entry(*index).pins));
        for (id, pins) in pins.chain(old.held.iter().map(|(id, pins)| (*id, *pins))) {
            for _ in 0..pins {
                self.pin(&[id]);
            }
        }
        let gone = old.by_id.keys().filter(|id| self.find(id).is_none() && !self.is_pinned(id));
        gone.copied().collect()
    }

    fn free(&mut self, index: TableIndex) {
        let record = std::mem::replace(&mut self.entry_mut(index).record, TableRecord::FREE);
        self.by_id.remove(&record.id);
        self.free.insert(index);
        self.changed.insert(index);
        self.usage.payload_bytes -= u64::from(record.payload_len);
        self.reclaimed_bytes += u64::from(record.payload_len);
        let entry = self.entry_mut(index);
        (entry.pins, entry.shared) = (0, false);
    }

    /// Every piece is written with the next checkpoint.
    pub(crate) fn mark_all_changed(&mut self) {
        self.all_changed = true;
    }

    /// The pieces, of so many entries each, that changed since the last call, and those of `more`, as they are now:
    /// with what is dead by now, or as if its entries were free already.
    pub(crate) fn take_pieces(
        &mut self,
        more: Vec<u64>,
        piece_entries: u64,
        dead: Dead,
    ) -> Vec<(u64, Vec<TableRecord>)> {
        if dead == Dead::Hidden {
            self.changed.extend(self.dead.iter().map(|(_, index)| *index));
        }
        let changed = std::mem::take(&mut self.changed).into_iter();
        let mut wanted: BTreeSet<u64> = more.into_iter().collect();
        wanted.extend(changed.map(|index| u64::from(index.0) / piece_entries));
        if std::mem::take(&mut self.all_changed) {
            wanted.extend(0..self.len().div_ceil(piece_entries));
        }
        if weir_device::mutant("table_pieces_dropped") {
            wanted.retain(|piece| *piece == 0);
        }
        wanted.into_iter().map(|piece| (piece, self.piece(piece, piece_entries, dead))).collect()
    }

    fn piece(&self, piece: u64, piece_entries: u64, dead: Dead) -> Vec<TableRecord> {
        let to_usize = |v: u64| usize::try_from(v).expect("the table is in memory");
        let first = piece * piece_entries;
        let end = self.len().min(first + piece_entries);
        let record = |entry: &Entry| match dead {
            Dead::Hidden if entry.live_bytes == 0 => TableRecord::FREE,
            _ => entry.record,
        };
        self.entries[to_usize(first)..to_usize(end)].iter().map(record).collect()
    }

    /// T1 against a count of the map; for tests and the simulation.
    pub(crate) fn check_invariants(&self, counted: &[u64]) {
        let mut usage = Usage::default();
        for (entry, counted) in self.entries.iter().zip(counted) {
            assert_eq!(entry.live_bytes, *counted, "T1: live bytes of {}", entry.record.id);
            let payload_bytes = u64::from(entry.record.payload_len);
            usage.live_bytes += counted;
            usage.payload_bytes += payload_bytes;
            usage.used_bytes += if *counted > 0 { payload_bytes } else { 0 };
            usage.shared_live_bytes += if entry.shared { *counted } else { 0 };
            if *counted > 0 && entry.is_collectable() {
                usage.collectable_live_bytes += counted;
                usage.collectable_bytes += payload_bytes;
            }
        }
        assert_eq!(self.usage, usage, "T1");
        assert_eq!(self.by_id.len() + self.free.len(), self.entries.len(), "free or named");
    }
}

/// The streams of some objects. Few: looked for one by one.
fn streams_of<T>(objects: &BTreeMap<ObjectId, T>) -> BTreeSet<VolumeId> {
    let mut streams = BTreeSet::new();
    let mut next = objects.keys().next().copied();
    while let Some(ObjectId { stream, .. }) = next {
        streams.insert(stream);
        let last = ObjectId { stream, seq: ObjectSeq(u64::MAX), epoch: Epoch(u64::MAX) };
        next = objects.range((Bound::Excluded(last), Bound::Unbounded)).next().map(|(id, _)| *id);
    }
    streams
}

impl Entry {
    /// T4.
    fn is_collectable(&self) -> bool {
        self.pins == 0 && !self.shared
    }

    fn live_object(&self) -> LiveObject {
        LiveObject {
            id: self.record.id,
            live_bytes: self.live_bytes,
            payload_bytes: self.record.payload_len.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64) -> TableRecord {
        let id = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        TableRecord { id, payload_len: 100 }
    }

    #[test]
    fn the_dead_are_named_once_their_death_is_in_the_checkpoint_and_their_entries_used_again() {
        let mut table = ObjectTable::default();
        let (one, two) = (table.add(record(1)), table.add(record(2)));
        assert!(table.gain(one, 0, 100) && table.gain(two, 50, 50));
        assert!(!table.gain(two, 50, 51), "more than its payload");
        table.lose(one, 60, two, ObjectSeq(3));
        table.lose(one, 40, two, ObjectSeq(4));
        assert_eq!(table.take_dead(ObjectSeq(3)), []);
        let hidden = [(0, vec![TableRecord::FREE, record(2)])];
        assert_eq!(
            table.take_pieces(Vec::new(), 4, Dead::Hidden),
            hidden,
            "dead, and not free yet"
        );
        assert_eq!(table.take_pieces(Vec::new(), 4, Dead::Named), []);
        table.mark_all_changed();
        assert_eq!(
            table.take_pieces(Vec::new(), 4, Dead::Named),
            [(0, vec![record(1), record(2)])]
        );
        assert_eq!(table.take_dead(ObjectSeq(4)), [record(1).id]);
        assert_eq!(table.find(&record(1).id), None);
        assert_eq!(table.reclaimed_bytes(), 100);
        assert_eq!(
            table.take_pieces(Vec::new(), 4, Dead::Named),
            [(0, vec![TableRecord::FREE, record(2)])]
        );
        assert_eq!(table.add(record(5)), one, "the entry is used again");
        table.on_applied(one);
        table.check_invariants(&[0, 50]);
        assert_eq!(table.take_dead(ObjectSeq(5)), [record(5).id], "born dead");
    }

    #[test]
    fn what_a_snapshot_reaches_is_garbage_only_once_the_last_one_is_gone() {
        let mut table = ObjectTable::default();
        let one = table.add(record(1));
        table.gain(one, 0, 100);
        let ids = [record(1).id, record(9).id];
        table.pin(&ids);
        table.pin(&ids);
        table.lose(one, 100, TableIndex(7), ObjectSeq(2));
        assert_eq!(table.take_dead(ObjectSeq(2)), []);
        assert!(table.is_pinned(&record(1).id) && table.find(&record(1).id).is_none());
        assert_eq!(table.held_once(&ids), []);
        table.unpin(&ids);
        assert_eq!(table.held_once(&ids), ids);
        table.unpin(&ids);
        assert!(!table.is_pinned(&record(1).id));
        table.check_invariants(&[0]);
    }

    #[test]
    fn a_loaded_table_forgets_the_dead_and_keeps_its_indices() {
        let mut table = ObjectTable::default();
        for record in [record(1), TableRecord::FREE, record(3)] {
            table.add_loaded(record);
        }
        assert!(table.gain(TableIndex(2), 0, 10));
        table.free_dead();
        table.check_invariants(&[0, 0, 10]);
        assert_eq!(table.reclaimed_bytes(), 0, "that was the last opening's doing");
        assert_eq!(table.find(&record(3).id), Some(TableIndex(2)));
        assert_eq!(table.add(record(4)), TableIndex(0));
        assert_eq!(table.add(record(5)), TableIndex(1));
        assert_eq!(table.add(record(6)), TableIndex(3));
    }
}
