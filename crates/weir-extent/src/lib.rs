//! The extent map of Weir: byte-granular, compact, ordered.
//!
//! A log-structured volume has one entry per extent, tens of millions of them, and looks one up for every
//! read. So the map is not a tree of entries but a directory over the volume's address space:
//!
//! ```text
//! root     sorted entries of 512 GiB tables, or runs of uniform tables
//! table    1024 upper slots, one per 512 MiB piece: one run, unmapped, or a directory
//! piece    1024 slots, one per 512 KiB region: unmapped, one run, one aligned block, list, dense
//! list     sorted extents of the region, 12 bytes each
//! dense    one slot per 4 KiB block, which may have a small list of its own
//! ```
//!
//! A look-up is three or four dependent loads, of which two miss the cache in a large map. Nodes are
//! addressed by 32-bit numbers in pools without holes (see `pool.rs`), which keeps slots at 8
//! bytes without unsafe code.
//!
//! The crate must not know what an address means: objects, journals and zeroes are [`Target`]s to
//! it.

mod bits;
mod cell;
mod check;
mod dense;
mod iter;
mod limits;
mod list;
mod map;
mod mapping;
mod piece;
mod pool;
mod replace;
mod root;
mod slot;

pub use iter::Extents;
pub use limits::{
    ADDRESS_END, BLOCK_BYTES, CROWDED_EXTENTS, PIECE_BYTES, REGION_BYTES, STEP_BUDGET, TARGET_MAX,
};
pub use map::ExtentMap;
pub use mapping::{Mapping, Target};
pub use piece::{DecodeError, PIECE_ENCODING_VERSION};
