//! What this process asks of the operating system: threads, signals, memory, descriptors, and the place of the program
//! that replaces it.

pub(crate) mod descriptors;
pub(crate) mod logging;
pub(crate) mod malloc;
pub(crate) mod reading;
pub(crate) mod relay;
pub(crate) mod signals;
pub(crate) mod systemd;
pub(crate) mod threads;
pub(crate) mod upgrade;
