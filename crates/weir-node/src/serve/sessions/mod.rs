//! Sessions of clients that stay when the program is replaced: what the next process is given of each, and how it goes
//! on with it.
//!
//! Invariants
//!  S1. A session is kept only between two requests, with every answer sent, of a log volume that was closed in order:
//!      everything that was acknowledged is in its journal or in the store.
//!  S2. It is gone on with only at the very next opening of the same volume, with the journal in place: what the client
//!      was told is there.
//!  S3. Whatever else becomes of it, it ends, and its client connects anew: nothing stays open that nobody serves.

mod format;
pub(crate) mod kept;
pub(crate) mod pass;
pub(crate) mod resume;

pub use self::format::fuzz as fuzz_session_records;
pub use self::kept::KeptSession;
pub use self::pass::{Passed, Relayed};
