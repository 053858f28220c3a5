//! Pools of equal nodes without holes.
//!
//! A node lives in one directory slot only and names that slot (its [`Owner`]), so a freed node's place
//! is taken by the pool's last node and the owner is told. Memory therefore depends on what is
//! mapped now and not on how it came about, a shrinking map gives its memory back at once, and
//! there is no allocator header per node.
//!
//! Invariants
//!  P1. Nodes `0..count` are live, and each belongs to exactly one directory slot.
//!  P2. All chunks but the last are full.

use crate::bits::{index, join, split};
use crate::limits::{BLOCK_BYTES, CHUNK_WORDS};

const OWNER_WORDS: usize = 2;
const OWNER_REGION: u64 = 0;
const OWNER_BLOCK: u64 = 1;
const OWNER_PIECE: u64 = 2;

/// The directory slot a node belongs to: a volume offset and which level is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The slot of the region that begins at this offset.
    Region(u64),
    /// The slot of the block that begins at this offset, in a dense region.
    Block(u64),
    /// The upper slot of the piece that begins at this offset.
    Piece(u64),
}

impl Owner {
    fn pack(self) -> u64 {
        match self {
            Self::Region(offset) => offset | OWNER_REGION,
            Self::Block(offset) => offset | OWNER_BLOCK,
            Self::Piece(offset) => offset | OWNER_PIECE,
        }
    }

    fn unpack(word: u64) -> Self {
        let offset = word & !(BLOCK_BYTES - 1);
        match word & (BLOCK_BYTES - 1) {
            OWNER_REGION => Self::Region(offset),
            OWNER_BLOCK => Self::Block(offset),
            OWNER_PIECE => Self::Piece(offset),
            _ => unreachable!("owners are only packed by this type"),
        }
    }
}

/// A node that took a freed node's place; its owner must be told.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Moved {
    pub(crate) owner: Owner,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// Nodes of one size, each of some words and its owner.
#[derive(Debug)]
pub(crate) struct Pool {
    node_words: usize,
    chunk_shift: u32,
    count: u32,
    chunks: Vec<Vec<u32>>,
}

impl Pool {
    /// A pool of nodes with `words` words of content each.
    pub(crate) fn new(words: usize) -> Self {
        let node_words = words + OWNER_WORDS;
        let per_chunk = (CHUNK_WORDS / node_words).max(1);
        Self { node_words, chunk_shift: per_chunk.ilog2(), count: 0, chunks: Vec::new() }
    }

    #[inline]
    fn place(&self, node: u32) -> (usize, usize) {
        let node = index(node);
        let inside = node & ((1 << self.chunk_shift) - 1);
        (node >> self.chunk_shift, inside * self.node_words)
    }

    /// The content of a node, followed by its owner words.
    #[inline]
    pub(crate) fn node(&self, node: u32) -> &[u32] {
        let (chunk, at) = self.place(node);
        &self.chunks[chunk][at..at + self.node_words]
    }

    /// As [`Self::node`], to change it.
    #[inline]
    pub(crate) fn node_mut(&mut self, node: u32) -> &mut [u32] {
        let (chunk, at) = self.place(node);
        &mut self.chunks[chunk][at..at + self.node_words]
    }

    /// The 8-byte slot `slot` of a node made of slots.
    #[inline]
    pub(crate) fn slot(&self, node: u32, slot: usize) -> u64 {
        let (chunk, at) = self.place(node);
        let at = at + slot * 2;
        let words = &self.chunks[chunk][at..at + 2];
        join([words[0], words[1]])
    }

    /// Sets the 8-byte slot `slot` of a node made of slots.
    #[inline]
    pub(crate) fn set_slot(&mut self, node: u32, slot: usize, value: u64) {
        let (chunk, at) = self.place(node);
        let at = at + slot * 2;
        self.chunks[chunk][at..at + 2].copy_from_slice(&split(value));
    }

    /// Takes a zeroed node for `owner`. Never moves another node.
    pub(crate) fn take(&mut self, owner: Owner) -> u32 {
        let node = self.count;
        let (chunk, at) = self.place(node);
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::new());
        }
        let full = self.node_words << self.chunk_shift;
        let words = &mut self.chunks[chunk];
        assert!(words.len() == at, "P2: the last chunk ends with the last node");
        let need = at + self.node_words;
        if need > words.capacity() {
            let grown = (2 * words.capacity()).clamp(need, full);
            words.reserve_exact(grown - at);
        }
        words.resize(need - OWNER_WORDS, 0);
        words.extend_from_slice(&split(owner.pack()));
        self.count = node.checked_add(1).expect("a pool of 2^32 nodes exceeds any memory");
        node
    }

    /// Gives a node back. The pool's last node takes its place, unless it was the last itself.
    pub(crate) fn give(&mut self, node: u32) -> Option<Moved> {
        assert!(node < self.count, "P1: a node is given back once");
        let last = self.count - 1;
        let (last_chunk, last_at) = self.place(last);
        let mut moved = None;
        if node != last {
            let (chunk, at) = self.place(node);
            let end = last_at + self.node_words;
            if chunk == last_chunk {
                self.chunks[chunk].copy_within(last_at..end, at);
            } else {
                let [into, from] = self
                    .chunks
                    .get_disjoint_mut([chunk, last_chunk])
                    .expect("two different chunks of this pool");
                into[at..at + self.node_words].copy_from_slice(&from[last_at..end]);
            }
            moved = Some(Moved { owner: self.owner(node), from: last, to: node });
        }
        self.chunks[last_chunk].truncate(last_at);
        if last_at == 0 {
            self.chunks.pop();
        } else if self.chunks[last_chunk].capacity() > 4 * last_at {
            self.chunks[last_chunk].shrink_to(2 * last_at);
        }
        self.count = last;
        moved
    }

    /// The slot a node belongs to.
    pub(crate) fn owner(&self, node: u32) -> Owner {
        let words = self.node(node);
        let at = self.node_words - OWNER_WORDS;
        Owner::unpack(join([words[at], words[at + 1]]))
    }

    /// Live nodes.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes taken from the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let words: usize = self.chunks.iter().map(Vec::capacity).sum();
        words * size_of::<u32>() + self.chunks.capacity() * size_of::<Vec<u32>>()
    }

    /// P2 and the chunk lengths.
    pub(crate) fn check(&self) {
        let words: usize = self.chunks.iter().map(Vec::len).sum();
        assert!(words == index(self.count) * self.node_words, "P1: words match the node count");
        let full = self.node_words << self.chunk_shift;
        for chunk in self.chunks.iter().rev().skip(1) {
            assert!(chunk.len() == full, "P2: only the last chunk may be short");
        }
    }
}

/// All pools of a map.
#[derive(Debug)]
pub(crate) struct Pools {
    /// One pool per list class, see [`crate::list`].
    pub(crate) lists: Vec<Pool>,
    /// Dense regions: one slot per block.
    pub(crate) dense: Pool,
    /// Lower directories: one slot per region.
    pub(crate) directories: Pool,
}
