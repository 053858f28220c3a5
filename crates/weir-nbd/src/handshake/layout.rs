//! Lengths of what is sent besides options and their replies.

/// Bytes of the server's greeting.
pub(crate) const GREETING_BYTES: usize = 18;

/// Bytes of zeroes that follow an `EXPORT_NAME` answer, unless both sides agreed to leave them out.
pub(crate) const EXPORT_NAME_ZEROES: usize = 124;
