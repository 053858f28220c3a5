//! What an opening goes by: who may open, what the local journal holds, what the store holds, and how they are joined.
//!
//! What the room keeps true
//!  * A journal is replayed only into the history of which it is the continuation (`judge` decides, `survey` reads what
//!    the store says about it).
//!  * Each step of an opening is durable before the next begins (`volume::verb::open` has their order), so that a crash
//!    between any two of them leaves something that the next opening understands.
//!  * Acknowledged writes that an opening goes on without are recorded, and can be had back (`salvage`).

pub(crate) mod args;
pub(crate) mod begin;
pub(crate) mod evidence;
pub(crate) mod forget;
pub(crate) mod judge;
pub(crate) mod local;
pub(crate) mod refusal;
pub(crate) mod salvage;
pub(crate) mod survey;
