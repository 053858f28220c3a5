//! The band cache (vStore): which bands of slower devices stay on the local disk, and where.

pub mod engine;
pub mod format;
mod geometry;
pub mod policy;
pub mod replay;
mod slots;
mod table;
mod tune;

pub use geometry::{
    BAND_BLOCKS, BAND_BYTES, BLOCK_BYTES, Band, DEVICE_BYTES_MAX, DEVICES_MAX, Geometry, Place,
};
pub use slots::{Slot, Slots};
pub use table::{Table, Taken, Use};
pub use tune::tune;
