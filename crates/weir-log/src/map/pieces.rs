//! A checkpoint that is read piece by piece, for whoever needs parts of a map and not all of it in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weir_device::{Env, VolumeId};
use weir_extent::{ExtentMap, PIECE_BYTES};
use weir_seal::DataKey;
use weir_store::Store;

use crate::error::LogError;
use crate::format::DecodeError;
use crate::format::checkpoint::{PieceRef, decode_table};
use crate::format::manifest::Origin;
use crate::ids::ObjectId;
use crate::map::checkpoint::PieceKind;
use crate::map::load::{Loader, open_root};
use crate::map::objects::{ObjectPlace, ObjectRun, run_of};

/// Where the pieces of a checkpoint are and what they name: all of it but the pieces.
#[derive(Debug)]
pub(crate) struct PieceIndex {
    stream: VolumeId,
    /// What opens the pieces, if they are sealed.
    key: Option<DataKey>,
    /// By their index in the object table.
    objects: Vec<ObjectId>,
    pieces: BTreeMap<u64, PieceRef>,
}

/// A checkpoint that is open for reading.
pub(crate) struct PieceReader<'a> {
    loader: Loader<'a>,
    index: Rc<PieceIndex>,
}

impl PieceIndex {
    /// Reads the root, the index pages and the object table.
    pub(crate) async fn read(
        store: &Store,
        env: &Env,
        key: Option<&DataKey>,
        root: Origin,
    ) -> Result<Self, LogError> {
        let (stream, named) = (VolumeId(root.stream.0), root.checkpoint);
        let (mut loader, root, _) = open_root(store, env, stream, key, named).await?;
        let tables = loader.follow(PieceKind::Table, &root.table_pages).await?;
        let pieces = loader.follow(PieceKind::Map, &root.map_pages).await?;
        loader.fetch(&tables).await?;
        let mut objects = Vec::new();
        for piece in &tables {
            let records = decode_table(&loader.bytes_of(piece)?);
            let records = records.map_err(|e| loader.object_error(piece, e))?;
            objects.extend(records.iter().map(|r| r.id));
        }
        let pieces = pieces.into_iter().map(|piece| (piece.number, piece)).collect();
        Ok(Self { stream, key: key.cloned(), objects, pieces })
    }

    /// The pieces that anything is in.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.keys().copied()
    }

    /// Where a piece is stored: the same place holds the same piece.
    pub(crate) fn place(&self, number: u64) -> Option<(VolumeId, &PieceRef)> {
        self.pieces.get(&number).map(|piece| (self.stream, piece))
    }
}

/// The pieces that are not the same in both, in order.
pub(crate) fn differing(before: &PieceIndex, after: &PieceIndex) -> Vec<u64> {
    let numbers: BTreeSet<u64> = before.numbers().chain(after.numbers()).collect();
    let differ = |number: &u64| before.place(*number) != after.place(*number);
    numbers.into_iter().filter(differ).collect()
}

impl<'a> PieceReader<'a> {
    /// Reads pieces of the checkpoint that the index is of.
    pub(crate) fn new(store: &'a Store, env: &'a Env, index: Rc<PieceIndex>) -> Self {
        Self { loader: Loader::new(store, env, index.stream, index.key.clone()), index }
    }

    /// Reads these pieces into memory, and lets go of all others.
    pub(crate) async fn fetch(&mut self, numbers: &[u64]) -> Result<(), LogError> {
        let wanted = numbers.iter().filter_map(|number| self.index.pieces.get(number).copied());
        let wanted: Vec<PieceRef> = wanted.collect();
        let objects: BTreeSet<_> = wanted.iter().map(|piece| piece.seq).collect();
        self.loader.retain(|seq| objects.contains(&seq));
        self.loader.fetch(&wanted).await
    }

    /// The runs of a piece that was fetched, each with the object it points at.
    pub(crate) fn runs(&self, number: u64) -> Result<Vec<(ObjectRun, Option<ObjectId>)>, LogError> {
        let Some(piece) = self.index.pieces.get(&number) else { return Ok(Vec::new()) };
        let bad = |field| {
            let source = DecodeError::Field { what: "map piece", field, value: number };
            self.loader.object_error(piece, source)
        };
        let mut map = ExtentMap::new();
        let bytes = self.loader.bytes_of(piece)?;
        if number >= weir_extent::ADDRESS_END / PIECE_BYTES {
            return Err(bad("number"));
        }
        map.decode_piece(number, &bytes).map_err(|_| bad("encoding"))?;
        let mut runs = Vec::new();
        for mapping in map.iter_range(number * PIECE_BYTES, PIECE_BYTES) {
            let run = run_of(mapping);
            let object = match run.place {
                ObjectPlace::Object { index, .. } => {
                    let object = self.index.objects.get(index.0 as usize);
                    Some(*object.ok_or_else(|| bad("object place"))?)
                }
                ObjectPlace::Zero | ObjectPlace::Poison => None,
            };
            runs.push((run, object));
        }
        Ok(runs)
    }
}
