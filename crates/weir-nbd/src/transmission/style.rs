//! The form of requests and replies.

/// Which headers both sides agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplyStyle {
    /// 28-byte requests; replies of one piece.
    #[default]
    Simple,
    /// 28-byte requests; replies in chunks, simple ones where nothing but success is said.
    Structured,
    /// 32-byte requests with 64-bit lengths; replies in chunks with 32-byte headers.
    Extended,
}
