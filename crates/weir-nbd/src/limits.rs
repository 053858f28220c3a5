//! Every bound that the codec keeps, with where its number comes from.

/// Longest string of the protocol in bytes: export names, descriptions, queries, messages. The protocol's own bound.
pub const STRING_BYTES_MAX: usize = 4096;

/// Longest data of one option in bytes: a name of the longest length and as much again for its queries.
pub const OPTION_BYTES_MAX: usize = 2 * STRING_BYTES_MAX;

/// Longest data of an option that is skipped and refused politely; beyond it the client is cut off. A mistaken client
/// sends kilobytes; nobody needs a mebibyte.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;

/// Longest data of one option reply that a client takes, in bytes: a name, a description and their lengths.
pub const OPTION_REPLY_BYTES_MAX: usize = 2 * STRING_BYTES_MAX + 16;

/// Most options in one handshake. `nbdinfo --list` asks a few per export, so this serves thousands of exports.
pub const OPTIONS_MAX: u32 = 16 << 10;

/// Most queries in one metadata option. The clients in use send one to three.
pub const META_QUERIES_MAX: u32 = 64;

/// Most metadata contexts of one connection: `base:allocation` and more earlier states than any backup tool compares
/// with. Further ones that a client asks for are not agreed on.
pub const CONTEXTS_MAX: usize = 16;

/// Largest payload of a request or a reply in bytes, as advertised. What the protocol calls most portable.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Longest payload of a request, and longest read, that a server takes all the same: as many pages as a compact header
/// can say. Clients that were not told of block sizes may send more than what is advertised; it is served in pieces.
pub const REQUEST_BYTES_MAX: u32 = u32::MAX - 4095;

/// Smallest unit a client may address, in bytes, as advertised: nothing is rounded.
pub const BLOCK_BYTES_MIN: u32 = 1;

/// Unit that costs least, in bytes, as advertised: a page.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// Most extents in one block-status reply, of all its contexts together: 64 KiB of descriptors at most; a client asks
/// on from where the reply ends.
pub const EXTENTS_MAX: usize = 4096;

/// Most extents in one block-status reply that a client takes. The protocol's own bound on servers.
pub const EXTENTS_RECEIVED_MAX: usize = 1 << 20;

/// Largest payload of one reply chunk that a client takes, in bytes: a full payload and its offset.
pub const CHUNK_BYTES_MAX: u64 = PAYLOAD_BYTES_MAX as u64 + 8;

/// Most pieces of one read that a client keeps apart while what lies between them was not told. Servers tell them in
/// order, or a few at a time.
pub const READ_PARTS_MAX: usize = 1024;

/// Longest message in an error reply, in bytes: one line for a person, so that replies in flight stay small.
pub const MESSAGE_BYTES_MAX: usize = 256;

const _: () = assert!(MESSAGE_BYTES_MAX <= STRING_BYTES_MAX);
const _: () = assert!(BLOCK_BYTES_PREFERRED >= 512 && PAYLOAD_BYTES_MAX >= BLOCK_BYTES_PREFERRED);
const _: () = assert!(REQUEST_BYTES_MAX >= PAYLOAD_BYTES_MAX);
const _: () = assert!(EXTENTS_MAX >= CONTEXTS_MAX, "every context has one");
const _: () = assert!(EXTENTS_MAX <= EXTENTS_RECEIVED_MAX, "one's own replies are taken");
