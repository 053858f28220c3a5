//! All tests of the extent map through its public surface.

mod common;
mod model;
mod piece;
