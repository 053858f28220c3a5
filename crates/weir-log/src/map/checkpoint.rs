//! Building a checkpoint of the object map while the map goes on changing.
//!
//! The map is cut in pieces. A piece that is about to change while it still waits for its turn is encoded first, as
//! it is ([`CheckpointState::before_change`]), so a checkpoint shows the map as of one sequence and nothing waits.
//!
//! Invariants
//!  C1. The encoded pieces are those of the map as of `as_of`.
//!  C2. One checkpoint is under way at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weir_device::VolumeId;
use weir_extent::{ExtentMap, PIECE_BYTES};
use weir_journal::Epoch;

use crate::format::checkpoint::{CheckpointRoot, PieceRef, encode_page, encode_table};
use crate::ids::{ObjectId, ObjectSeq, WriteMark};
use crate::map::objects::ObjectMap;
use crate::map::table::Dead;

/// What a run of payload in a checkpoint object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PieceKind {
    Map,
    Table,
}

/// The references that make a checkpoint: pieces and index pages, of map and table.
#[derive(Clone, Debug, Default)]
pub(crate) struct References {
    pieces: BTreeMap<(PieceKind, u64), PieceRef>,
    pages: BTreeMap<(PieceKind, u64), PieceRef>,
}

impl References {
    /// From a loaded checkpoint.
    pub(crate) fn add_piece(&mut self, kind: PieceKind, piece: PieceRef) {
        self.pieces.insert((kind, piece.number), piece);
    }

    /// From a loaded checkpoint.
    pub(crate) fn add_page(&mut self, kind: PieceKind, page: PieceRef) {
        self.pages.insert((kind, page.number), page);
    }

    /// The objects that the references and their root are in.
    pub(crate) fn objects_with(&self, root: ObjectId) -> BTreeSet<(ObjectSeq, Epoch)> {
        let all = self.pieces.values().chain(self.pages.values());
        all.map(|piece| (piece.seq, piece.epoch)).chain([(root.seq, root.epoch)]).collect()
    }

    /// Bytes referenced per checkpoint object.
    fn referenced_bytes(&self) -> BTreeMap<(ObjectSeq, Epoch), u64> {
        let mut bytes = BTreeMap::new();
        for piece in self.pieces.values().chain(self.pages.values()) {
            *bytes.entry((piece.seq, piece.epoch)).or_insert(0) += u64::from(piece.len);
        }
        bytes
    }

    fn pages_of(&self, kind: PieceKind) -> Vec<PieceRef> {
        self.pages.range((kind, 0)..=(kind, u64::MAX)).map(|(_, page)| *page).collect()
    }
}

#[derive(Debug)]
struct Build {
    as_of: ObjectSeq,
    committed: WriteMark,
    volume_size: u64,
    table_entries: u64,
    waiting: BTreeSet<u64>,
    encoded: Vec<(PieceKind, u64, Vec<u8>)>,
}

/// A finished encoding, to be packed into objects.
#[derive(Debug)]
pub(crate) struct EncodedCheckpoint {
    as_of: ObjectSeq,
    committed: WriteMark,
    volume_size: u64,
    table_entries: u64,
    pieces: Vec<(PieceKind, u64, Vec<u8>)>,
}

/// One checkpoint object to be: a payload whose pieces get their references once the object has its number.
#[derive(Debug)]
pub(crate) struct CheckpointChunk {
    pub(crate) payload: Vec<u8>,
    pieces: Vec<(PieceKind, u64, u32, u32)>,
    root: Option<RootHead>,
}

/// What the last chunk still needs to become the root.
#[derive(Clone, Copy, Debug)]
struct RootHead {
    as_of: ObjectSeq,
    committed: WriteMark,
    volume_size: u64,
    table_entries: u64,
}

fn u32_of(value: usize) -> u32 {
    u32::try_from(value).expect("a checkpoint object is far below 4 GiB")
}

impl EncodedCheckpoint {
    /// Packs the pieces into chunks of about `chunk_bytes`; the last one will hold the root.
    pub(crate) fn pack(self, chunk_bytes: u64) -> Vec<CheckpointChunk> {
        let empty = || CheckpointChunk { payload: Vec::new(), pieces: Vec::new(), root: None };
        let mut chunks = vec![empty()];
        for (kind, number, bytes) in self.pieces {
            let mut chunk = chunks.last_mut().expect("at least one");
            if !chunk.payload.is_empty() && (chunk.payload.len() + bytes.len()) as u64 > chunk_bytes
            {
                chunks.push(empty());
                chunk = chunks.last_mut().expect("pushed just now");
            }
            let offset = u32_of(chunk.payload.len());
            chunk.pieces.push((kind, number, offset, u32_of(bytes.len())));
            chunk.payload.extend_from_slice(&bytes);
        }
        chunks.last_mut().expect("at least one").root = Some(RootHead {
            as_of: self.as_of,
            committed: self.committed,
            volume_size: self.volume_size,
            table_entries: self.table_entries,
        });
        chunks
    }
}

/// What is known of checkpoints: the references of the newest, and the one being built.
#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    references: References,
    /// Payload bytes of the checkpoint objects that the references name, and of the newest root.
    objects: BTreeMap<(ObjectSeq, Epoch), u64>,
    /// Those that the published checkpoint is in.
    published: BTreeSet<(ObjectSeq, Epoch)>,
    /// Those that the checkpoint under way needs no more; the published one still does.
    superseded: Vec<(ObjectSeq, Epoch)>,
    dirty_pages: BTreeSet<(PieceKind, u64)>,
    /// Objects that the next checkpoint needs no more, though much of them is referenced.
    avoided: BTreeSet<ObjectSeq>,
    build: Option<Build>,
    /// From the begin of a build to the publication of its root.
    pub(crate) under_way: bool,
    /// Somebody waits for the next checkpoint.
    pub(crate) wanted: bool,
    /// Objects committed since the newest checkpoint began.
    pub(crate) objects_since: u64,
    /// Data bytes committed since the newest checkpoint began.
    pub(crate) bytes_since: u64,
}

impl CheckpointState {
    /// Goes on from a loaded checkpoint, which is in these objects.
    pub(crate) fn loaded(
        references: References,
        objects: BTreeMap<(ObjectSeq, Epoch), u64>,
    ) -> Self {
        let published = objects.keys().copied().collect();
        Self { references, objects, published, ..Self::default() }
    }

    /// The objects that the newest checkpoint is in.
    pub(crate) fn objects(&self, stream: VolumeId) -> impl Iterator<Item = ObjectId> + '_ {
        self.objects.keys().map(move |(seq, epoch)| ObjectId { stream, seq: *seq, epoch: *epoch })
    }

    /// Whether an object of the volume's own stream is one of the newest checkpoint's, or waits for the next to be
    /// published.
    pub(crate) fn knows(&self, id: &ObjectId) -> bool {
        self.needs(id) || self.superseded.contains(&(id.seq, id.epoch))
    }

    /// These objects are damaged: what they hold goes into others with the next checkpoint.
    pub(crate) fn rewrite(&mut self, objects: impl IntoIterator<Item = ObjectSeq>) {
        self.avoided.extend(objects);
    }

    /// The pieces of the map that the newest checkpoint has.
    pub(crate) fn map_pieces(&self) -> impl Iterator<Item = u64> + '_ {
        let map_pieces = self.references.pieces.range((PieceKind::Map, 0)..(PieceKind::Table, 0));
        map_pieces.map(|((_, number), _)| *number)
    }

    /// Whether an object of the volume's own stream holds anything of the newest checkpoint.
    pub(crate) fn needs(&self, id: &ObjectId) -> bool {
        self.objects.contains_key(&(id.seq, id.epoch))
    }

    /// Whether an object of the volume's own stream holds anything of the published checkpoint.
    pub(crate) fn is_published(&self, id: &ObjectId) -> bool {
        self.published.contains(&(id.seq, id.epoch))
    }

    /// The checkpoint under way was published.
    pub(crate) fn on_published(&mut self) {
        self.under_way = false;
        self.published = self.objects.keys().copied().collect();
    }

    /// The checkpoint under way is about to be published as of `as_of`: the checkpoint objects that nothing reaches any
    /// more.
    pub(crate) fn take_superseded(&mut self, as_of: ObjectSeq) -> Vec<(ObjectSeq, Epoch)> {
        let (gone, later) = self.superseded.drain(..).partition(|(seq, _)| *seq <= as_of);
        self.superseded = later;
        gone
    }

    /// Begins a checkpoint of the map as it is now, with these pieces of the table.
    pub(crate) fn begin(
        &mut self,
        objects: &mut ObjectMap,
        (table_piece_entries, dead): (u64, Dead),
        as_of: ObjectSeq,
        committed: WriteMark,
        volume_size: u64,
    ) {
        assert!(!self.under_way, "C2: one checkpoint at a time");
        self.under_way = true;
        self.wanted = false;
        self.objects_since = 0;
        self.bytes_since = 0;
        let (map_pieces, table_pieces) = self.pieces_of_sparse_objects();
        let mut waiting: BTreeSet<u64> = map_pieces.into_iter().collect();
        for pieces in objects.map.take_dirty_ranges() {
            self.add_changed(&objects.map, pieces, &mut waiting);
        }
        // The table as of now: it is small, and what is freed from here on may be used again at once.
        let encoded =
            objects.table.take_pieces(table_pieces, table_piece_entries, dead).into_iter();
        let encoded =
            encoded.map(|(number, records)| (PieceKind::Table, number, encode_table(&records)));
        self.build = Some(Build {
            as_of,
            committed,
            volume_size,
            table_entries: objects.table.len(),
            waiting,
            encoded: encoded.collect(),
        });
    }

    /// Adds those of the changed pieces that have anything in them, or of which the newest checkpoint says so. Of the
    /// rest there is nothing to write, and one request makes any number of them.
    fn add_changed(&self, map: &ExtentMap, pieces: Range<u64>, waiting: &mut BTreeSet<u64>) {
        let (first, last) = ((PieceKind::Map, pieces.start), (PieceKind::Map, pieces.end));
        let published = self.references.pieces.range(first..last);
        waiting.extend(published.map(|((_, number), _)| *number));
        let (mut number, end) = (pieces.start, pieces.end.saturating_mul(PIECE_BYTES));
        while number < pieces.end {
            let start = number * PIECE_BYTES;
            if map.iter_range(start, PIECE_BYTES).next().is_some() {
                waiting.insert(number);
                number += 1;
                continue;
            }
            let Some(next) = map.iter_range(start, end - start).next() else { return };
            number = next.offset / PIECE_BYTES;
        }
    }

    /// Pieces of map and table in checkpoint objects of which less than half is still referenced, or that are to be
    /// avoided. Index pages in such objects are written again too.
    fn pieces_of_sparse_objects(&mut self) -> (Vec<u64>, Vec<u64>) {
        let referenced = self.references.referenced_bytes();
        let avoided = std::mem::take(&mut self.avoided);
        let sparse = |piece: &PieceRef| {
            let used = referenced.get(&(piece.seq, piece.epoch)).copied().unwrap_or(0);
            let total = self.objects.get(&(piece.seq, piece.epoch)).copied().unwrap_or(0);
            used * 2 < total || avoided.contains(&piece.seq)
        };
        let (mut map, mut table) = (Vec::new(), Vec::new());
        for ((kind, number), _) in self.references.pieces.iter().filter(|(_, p)| sparse(p)) {
            match kind {
                PieceKind::Map => map.push(*number),
                PieceKind::Table => table.push(*number),
            }
        }
        let pages = self.references.pages.iter().filter(|(_, page)| sparse(page));
        if !weir_device::mutant("pages_of_sparse_objects_stay") {
            self.dirty_pages.extend(pages.map(|(key, _)| *key));
        }
        (map, table)
    }

    /// A range of the map is about to change: encodes its waiting pieces as they are.
    pub(crate) fn before_change(&mut self, map: &ExtentMap, offset: u64, len: u64) {
        let Some(build) = &mut self.build else { return };
        if build.waiting.is_empty() || len == 0 || weir_device::mutant("no_copy_on_write") {
            return;
        }
        let (first, last) = (offset / PIECE_BYTES, (offset + len - 1) / PIECE_BYTES);
        while let Some(number) = build.waiting.range(first..=last).next().copied() {
            build.encode(map, number);
        }
    }

    /// Encodes one waiting piece; `true` when none waits any more.
    pub(crate) fn encode_step(&mut self, map: &ExtentMap) -> bool {
        let build = self.build.as_mut().expect("called while a checkpoint is being built");
        if let Some(number) = build.waiting.first().copied() {
            build.encode(map, number);
        }
        build.waiting.is_empty()
    }

    /// Ends the encoding.
    pub(crate) fn finish(&mut self) -> EncodedCheckpoint {
        let build = self.build.take().expect("called once, after the last step");
        assert!(build.waiting.is_empty(), "C1: every changed piece is encoded");
        EncodedCheckpoint {
            as_of: build.as_of,
            committed: build.committed,
            volume_size: build.volume_size,
            table_entries: build.table_entries,
            pieces: build.encoded,
        }
    }

    /// A chunk got its object's name: its pieces can be referenced. The last chunk gets its index pages and its root
    /// here; returns where the root is in the payload.
    pub(crate) fn place(
        &mut self,
        chunk: &mut CheckpointChunk,
        id: ObjectId,
        page_entries: u64,
    ) -> Option<(u32, u32)> {
        let reference =
            |number, offset, len| PieceRef { number, seq: id.seq, epoch: id.epoch, offset, len };
        for (kind, number, offset, len) in &chunk.pieces {
            self.dirty_pages.insert((*kind, number / page_entries));
            if *len == 0 {
                self.references.pieces.remove(&(*kind, *number));
            } else {
                self.references.add_piece(*kind, reference(*number, *offset, *len));
            }
        }
        let root = chunk.root.map(|head| {
            for (kind, page) in std::mem::take(&mut self.dirty_pages) {
                let (first, end) = (page * page_entries, (page + 1) * page_entries);
                let pieces: Vec<PieceRef> = self
                    .references
                    .pieces
                    .range((kind, first)..(kind, end))
                    .map(|(_, piece)| *piece)
                    .collect();
                let drops = weir_device::mutant("index_pages_dropped") && page > 0;
                if pieces.is_empty() || (drops && kind == PieceKind::Map) {
                    self.references.pages.remove(&(kind, page));
                    continue;
                }
                let bytes = encode_page(&pieces);
                let (offset, len) = (u32_of(chunk.payload.len()), u32_of(bytes.len()));
                chunk.payload.extend_from_slice(&bytes);
                self.references.add_page(kind, reference(page, offset, len));
            }
            let root = CheckpointRoot {
                as_of: head.as_of,
                committed: head.committed,
                volume_size: head.volume_size,
                table_entries: head.table_entries,
                map_pages: self.references.pages_of(PieceKind::Map),
                table_pages: self.references.pages_of(PieceKind::Table),
            };
            let bytes = root.encode();
            let place = (u32_of(chunk.payload.len()), u32_of(bytes.len()));
            chunk.payload.extend_from_slice(&bytes);
            place
        });
        self.objects.insert((id.seq, id.epoch), chunk.payload.len() as u64);
        if root.is_some() {
            let needed = self.references.objects_with(id);
            let gone = self.objects.keys().filter(|object| !needed.contains(object));
            self.superseded.extend(gone);
            self.objects.retain(|object, _| needed.contains(object));
        }
        root
    }
}

impl Build {
    fn encode(&mut self, map: &ExtentMap, number: u64) {
        self.waiting.remove(&number);
        let mut bytes = Vec::new();
        let start = number * PIECE_BYTES;
        if map.iter_range(start, PIECE_BYTES).next().is_some() {
            map.encode_piece(number, &mut bytes);
        }
        self.encoded.push((PieceKind::Map, number, bytes));
    }
}
