//! A process that serves volumes.
//!
//! `service.rs` is the process: it opens volumes, listens, and ends in order. What its threads share is in `core.rs`;
//! every other file is about one thing, and is handed that or only what it needs of it.

pub(crate) mod attach;
pub(crate) mod by_hand;
pub(crate) mod cache;
mod cache_limits;
mod cache_resize;
pub(crate) mod cache_setting;
mod cache_shards;
pub(crate) mod cache_size;
mod cache_start;
mod check;
pub(crate) mod close;
pub(crate) mod core;
pub(crate) mod events;
mod exports;
mod failed;
pub(crate) mod handed_over;
mod host;
pub(crate) mod kept;
mod left;
pub(crate) mod lock;
pub(crate) mod nbd_place;
mod one_export;
pub(crate) mod reload;
pub(crate) mod replaceable;
pub(crate) mod replica;
mod running;
pub(crate) mod service;
pub(crate) mod sessions;
pub(crate) mod sockets;
pub(crate) mod spec;
pub(crate) mod stages;
pub(crate) mod unsent;
mod views;
