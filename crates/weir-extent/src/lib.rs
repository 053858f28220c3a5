//! The extent map of Weir: byte-granular, compact, ordered.
