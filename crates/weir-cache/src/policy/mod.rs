//! Which band of a full set makes room for another one.

mod arc;
mod lru;
mod queues;
mod replacement;
mod s3_fifo;
mod six_factor;

pub use arc::Arc;
pub use lru::Lru;
pub use replacement::Replacement;
pub use s3_fifo::S3Fifo;
pub use six_factor::{SixFactor, SixFactorAlone, Weights};
