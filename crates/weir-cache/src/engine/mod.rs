//! The cache at work: blocks of slower devices in a file of the local disk.
//!
//! A [`Cache`] belongs to a node and is shared by its threads; each of them reads and writes the file through a
//! [`ThreadCache`] of its own. What is cached never changes at its address, so that nothing here is needed: whatever
//! goes wrong, a look finds nothing, and whoever asked reads the device below.
//!
//! Invariants
//!  C1. A block is served only if it has the hash that was written for its address: of another address, torn, or
//!      changed since, it counts as absent, and its run is dropped.
//!  C2. A place is written only when nobody reads or writes what was there before. Whoever looks meanwhile finds
//!      nothing there, and does not wait.
//!  C3. An index counts only until the first fill after it: the superblock that ends it is durable before that.
//!  C4. A place belongs to the band that was filled into it last, by the number of the fill. Numbers rise over all
//!      openings of the file.

mod block;
mod cache;
mod devices;
mod error;
mod fill;
mod index;
mod inspect;
mod limits;
mod map;
mod opening;
mod put;
mod queue;
mod read;
mod recover;
mod resize;
mod scan;
mod shares;
mod state;
mod status;
mod thread;
mod wear;

pub use block::{BAND_RUNS, RUN_BLOCKS, RUN_BYTES, RunAddress};
pub use cache::Cache;
pub use error::CacheError;
pub use inspect::{CacheFile, inspect};
pub use limits::{BLOCKS_FILE, CACHE_BYTES_MIN, LOCK_FILE};
pub use map::CacheMap;
pub use opening::{CacheSize, Found, capacity_bytes};
pub use queue::{Pieces, Source};
pub use read::Blocks;
pub use shares::Owner;
pub use status::{CacheCounts, CacheStatus};
pub use thread::ThreadCache;
