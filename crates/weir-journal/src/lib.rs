//! The local ring journal of Weir.
