//! Every bound of the log volume, and where its number comes from.

use std::time::Duration;

use weir_journal::limits::{PIECES_PER_RECORD_MAX, RECORD_BYTES_LIMIT};

/// Payload bytes per frame: the unit of fetches in bulk and of the frame cache. A ranged GET of one frame costs one
/// round trip, and 64 KiB is where LZ4 stops gaining from longer input.
pub const FRAME_BYTES: u32 = 64 << 10;

/// Bytes of a block of a frame, which from version 3 on can be read and verified without the others: the page of the
/// page cache and the block of file systems, whose random reads ask for as much.
pub const BLOCK_BYTES: u32 = 4 << 10;

/// Largest payload of an object in bytes. Below 64 MiB, so that payloads of neighbouring objects never touch in the
/// address space of map targets (26 bits per object).
pub const PAYLOAD_BYTES_MAX: u32 = 48 << 20;

/// Payload after which a batch is closed whatever is asked for: the record that it ends with goes into it whole.
pub const BATCH_BYTES_MAX: u64 = PAYLOAD_BYTES_MAX as u64 - RECORD_BYTES_LIMIT;

/// Bits of a map target that hold the payload offset within its object.
pub const PAYLOAD_BITS: u32 = 26;

/// Most objects that one map can name (30 of the 56 bits of a target): 8 PiB of full default batches.
pub const OBJECTS_MAX: u64 = 1 << 30;

/// Most extents in one object: bounds a header to about 1 MiB. A batch is closed before it can exceed this.
pub const EXTENTS_PER_OBJECT_MAX: usize = 32 << 10;

/// Pieces after which a batch is closed whatever its bytes, at the end of a record. Merging may split a piece in two,
/// never in three, and cuts at most 256 times what is longer than [`EXTENT_BYTES_MAX`].
pub const PIECES_PER_BATCH_MAX: usize = (EXTENTS_PER_OBJECT_MAX - 512) / 2 - PIECES_PER_RECORD_MAX;

/// Shortest run of whole blocks of 4 KiB that is cut out of what odd writes left of a long one: two extents more, of 16
/// bytes in its object and as many in the map, are little beside it.
pub const WHOLE_BLOCKS_BYTES_MIN: u64 = 16 << 10;

/// Longest extent in bytes that an object can state: its length takes 56 bits. Only discards and zeroes get there.
pub const EXTENT_BYTES_MAX: u64 = 1 << 55;

/// Largest header that a decoder accepts, in bytes: the fixed part, the frames and the extents with gc sources.
pub const HEADER_BYTES_MAX: u32 = 4 << 20;

/// Object bytes fetched at first when a header is wanted: holds the header of a default batch of 4 KiB writes.
pub const HEADER_GUESS_BYTES: u64 = 48 << 10;

/// Object PUTs in flight per volume. Two saturate a local store; four hide the latency of a remote one at 8 MiB each.
pub const PUTS_IN_FLIGHT_MAX: usize = 4;

/// Header or checkpoint GETs in flight during recovery.
pub const RECOVERY_GETS_MAX: usize = 16;

/// Room that the loading of a checkpoint takes before its objects are fetched, in bytes: a few of its pieces at once.
pub const LOADING_BYTES: usize = 16 << 20;

/// Room that rolling forward takes, in bytes: the headers in flight.
pub const ROLLING_BYTES: usize = RECOVERY_GETS_MAX * (48 << 10);

/// Extents applied to the map before the committer lets other work run; about half a millisecond.
pub const APPLY_STEP_EXTENTS: usize = 1024;

/// Units of work of one step of a huge range operation on the map; below a millisecond.
pub const MAP_STEP_BUDGET: usize = 4096;

/// Entries per piece of the object table in a checkpoint.
pub const TABLE_PIECE_ENTRIES: u64 = 4096;

/// Piece references per index page of a checkpoint root.
pub const INDEX_PAGE_ENTRIES: u64 = 512;

/// Largest volume in bytes: 8 EiB minus one 4 KiB block, so that offsets fit every client's signed 64 bits.
pub const VOLUME_BYTES_MAX: u64 = (1 << 63) - 4096;

/// Times a read resolves its bytes again when an object it resolved is gone, before that is an error.
pub const RESOLVE_ATTEMPTS_MAX: u32 = 3;

/// Times that the newest version of a manifest is looked for: where its owner publishes and prunes faster than the
/// store answers, the one that was listed may be gone each time.
pub const NEWEST_ATTEMPTS_MAX: u32 = 16;

/// Times that bytes of the store which fail a check are fetched before that is an error: they may have been damaged on
/// the way only.
pub const DAMAGED_ATTEMPTS_MAX: u32 = 5;

/// Pieces of two maps that are compared at a time where a client asks what changed (2 GiB of the volume), and whose
/// changes are kept for its next question: some 10 MiB at the most, mostly far less.
pub const COMPARED_PIECES_MAX: usize = 4;

/// Longest read that fetches only the blocks it needs, where requests are cheap: half a frame. Of more, the whole frame
/// costs little more, and the next read may need the rest.
pub const PART_BYTES_MAX: u64 = FRAME_BYTES as u64 / 2;

/// Sequential reads before read-ahead begins.
pub const READ_AHEAD_STREAK: u32 = 2;

/// Bytes that read-ahead keeps in front of a sequential reader.
pub const READ_AHEAD_BYTES: u64 = 2 << 20;

/// Frames that one ranged GET of read-ahead or of a large read asks for at most (1 MiB).
pub const FRAMES_PER_GET_MAX: u32 = 16;

/// Frames that one ranged GET of the collector asks for at most (4 MiB): half a default batch.
pub const COLLECTED_FRAMES_PER_GET_MAX: u32 = 64;

/// Objects that are read at a time to warm the cache on the local disk. With [`COLLECTED_FRAMES_PER_GET_MAX`] they take
/// 16 MiB, and hide the latency of a store.
pub const WARMED_OBJECTS_MAX: usize = 4;

/// Frames that are asked for one by one at a time, where some of those asked for at once are damaged.
pub const FRAMES_ALONE_IN_FLIGHT_MAX: usize = 4;

/// Frames in a row of which nothing lives that the collector reads along rather than ask again (512 KiB): a request
/// costs a store more than they do.
pub const FRAMES_READ_ALONG_MAX: u32 = 8;

/// How old the oldest acknowledged byte that is not in the store may become, unless something else is asked for. A
/// volume that writes a little all the time makes an object for each of these: 43,800 PUTs a month, some 0.22 USD.
pub const RPO_DEFAULT: Duration = Duration::from_secs(60);

/// Share of the journal (in percent) above which writers are slowed, smoothly, before they have to wait.
pub const THROTTLE_FROM_PERCENT: u64 = 75;

/// Longest delay that the throttle puts before a write, in milliseconds, reached as the journal is full.
pub const THROTTLE_DELAY_MAX_MS: u64 = 20;

const _: () = assert!(ROLLING_BYTES as u64 == RECOVERY_GETS_MAX as u64 * HEADER_GUESS_BYTES);
const _: () = assert!((PAYLOAD_BYTES_MAX as u64) < 1 << PAYLOAD_BITS);
const _: () = assert!(OBJECTS_MAX << PAYLOAD_BITS == 1 << 56);

/// How long an object is put to a replica's store that fails, before the replicator says so and begins anew.
pub const REPLICA_PUT_DEADLINE: Duration = Duration::from_secs(60);

/// Objects copied to a replica at a time: hides the latency of two stores, and bounds the memory to a few full objects.
pub const REPLICA_COPIES_MAX: usize = 4;

/// How long what a replicator copies is not deleted at its source without a sign of life: far longer than a pause in a
/// copy that gets on, short enough that a dead replicator costs little space.
pub const REPLICA_PATIENCE: Duration = Duration::from_secs(600);

/// A replicator that gets on renews its note this often.
pub const REPLICA_NOTE_INTERVAL: Duration = Duration::from_secs(100);

/// Time after which an open volume with a deleted snapshot asks again whether a clone needs it: one listing.
pub const REFERENCES_LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// How long others wait for a node that does not renew its lease: longer than a store's hiccup, short enough to wait.
pub const LEASE_LENGTH: Duration = Duration::from_secs(60);

/// Renewals per length of a lease: two may fail before the deadline nears.
pub const LEASE_RENEWALS_PER_LENGTH: u32 = 3;

/// The margin of a lease is its length divided by this: 5 s of 60 s, far more than clocks of one speed drift apart.
pub const LEASE_LENGTH_PER_MARGIN: u32 = 12;

/// Looks at a holder's lease per length of it, while waiting for it to run out.
pub const LEASE_LOOKS_PER_LENGTH: u32 = 12;

/// Longest pause between two looks at a holder whose lease is long: it may close the volume at any moment, and a look
/// is two LIST requests.
pub const LEASE_LOOK_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Renewals that an opening reads at the most to find what its holder had flushed: as many as are always kept.
pub const LEASE_WITNESS_LOOKS_MAX: usize = 64;

/// Of them, those that are read at a time: mostly one of the first has it.
pub const LEASE_WITNESS_READS_MAX: usize = 4;

/// Newest openings that owned sequences and that the manifest keeps though they stored nothing: a journal that was away
/// for no longer is told from one of another history.
pub const OPENINGS_KEPT: usize = 64;

/// Changes of the owner of sequences, the newest ones, behind each of which an opening looks for objects that landed
/// late: each change is looked at by as many openings.
pub(crate) const LATE_OBJECT_LOOKS: usize = 8;

/// Objects that a manifest version lists for deletion: 41 bytes each. As many as a volume of 1 TiB may have that is
/// discarded at once.
pub const PENDING_LISTED_MAX: usize = 131_072;

/// How often an opening that another writer kept from publishing begins again: each time, one version that was on its
/// way may have landed.
pub const OPENINGS_FENCED_MAX: usize = 3;

/// How long an opening waits for its own node's lease: as long as a read waits for a failing store.
pub const LEASE_PATIENCE: Duration = Duration::from_secs(120);
