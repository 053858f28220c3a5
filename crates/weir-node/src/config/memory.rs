//! How the memory of a node is divided.

/// Memory of a node for buffers unless told otherwise, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;

/// Least memory for buffers, in bytes: below it a few clients alone would take all of it.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// How the memory for buffers is divided: three eighths hold decoded frames, a quarter copies of what is in journals, a
/// quarter requests of clients, and the rest is for objects on their way and for what the allocator cannot give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(u64);

impl Default for Memory {
    fn default() -> Self {
        Self(MEMORY_BYTES_DEFAULT)
    }
}

impl Memory {
    /// `bytes` in all.
    ///
    /// # Errors
    /// A sentence for the user when that is too little.
    pub fn new(bytes: u64) -> Result<Self, String> {
        if bytes < MEMORY_BYTES_MIN {
            return Err(format!("a node needs at least 64M of memory, not {bytes} bytes"));
        }
        Ok(Self(bytes))
    }

    /// For decoded frames.
    #[must_use]
    pub fn frames_bytes(self) -> u64 {
        self.0 / 8 * 3
    }

    /// For buffers: copies of what is in journals, requests, objects on their way, and as many unused ones as are left.
    #[must_use]
    pub fn buffers_bytes(self) -> u64 {
        self.0 / 2
    }

    pub(super) fn journals_bytes(self) -> u64 {
        self.0 / 4
    }
}
