//! Local files of Weir: direct I/O through io_uring or a pool of threads, and a simulated disk.
//!
//! Everything that Weir keeps on a local disk goes through [`File`] and [`Directory`]. They are
//! enums, not traits: the journal and the caches above are written once and run against the kernel
//! (two engines) or against [`sim::SimDisk`], which loses, tears and reorders exactly what a disk
//! may. Buffers are owned by the operation until it ends, so that a dropped future never frees
//! memory that the kernel still reads or writes.
//!
//! This crate must not know what is in the files: no formats, no volumes, no configuration.
#![allow(
    clippy::disallowed_methods,
    reason = "this crate is where files and disk threads live, see clippy.toml"
)]

mod directory;
mod disks;
mod engine;
mod error;
mod file;
mod identity;
mod image;
mod modes;
mod owner;
mod reads;
mod room;
pub mod sim;

pub use directory::{Directory, LockGuard};
pub use disks::{Disks, EngineChoice};
pub use engine::image::Run;
pub use engine::under_way::Question;
pub use error::{DiskError, DiskOperation};
pub use file::File;
pub use identity::FileIdentity;
pub use image::{Image, ImageMode};
pub use modes::{DirectIo, OpenMode, Zeroing};
pub use owner::{adopt, adopt_directory, adopt_file, adopt_socket};
pub use room::{LEFT_FREE_BYTES, LeaveRoom, Room};
pub use rustix::io::Errno;
