//! A node of Weir: shards, volumes, front ends.
