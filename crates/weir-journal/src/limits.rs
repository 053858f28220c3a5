//! Every limit of the journal, with where its number came from.

/// Unit of the file: superblocks, record headers and records begin at multiples of it. The largest logical block size
/// of disks in use, and the alignment of every buffer.
pub const BLOCK_BYTES: u64 = 4096;

/// [`BLOCK_BYTES`] for lengths in memory.
pub(crate) const BLOCK_LEN: usize = 4096;

/// Where the first segment begins: segments stay aligned to what partitions and RAID stripes are aligned to.
pub const DATA_START: u64 = 1 << 20;

/// Largest payload under one checksum that a decoder accepts.
pub const PIECE_BYTES_MAX: u64 = 64 << 10;

/// Largest payload that is put under one checksum: what a read from disk has to fetch and to verify at least. With more
/// than a block, random reads of what was written in large pieces run into the bandwidth of the disk.
pub const PIECE_BYTES: u64 = 4 << 10;

/// Most pieces in one record: with the header's own buffer they stay below the kernel's 1024 iovecs, and the header
/// and its table below 48 KiB.
pub const PIECES_PER_RECORD_MAX: usize = 960;

/// Largest record a decoder accepts; larger than any configuration writes.
pub const RECORD_BYTES_LIMIT: u64 = 8 << 20;

/// Most segments of a file: their list must fit the superblock's block.
pub const SEGMENTS_LIMIT: usize = 960;

/// Most openings that a superblock announces. Each attempt to open that ends between its announcement and its first
/// acknowledgement leaves one; whoever finds the list full uses the newest again.
pub const ANNOUNCED_MAX: usize = 32;

/// Smallest segment: what the simulation uses to make the ring wrap often.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Largest segment: offsets within one are kept in 32 bits in memory.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 31;

/// Records in flight at once; four were never better on the measured disk.
pub(crate) const RECORDS_IN_FLIGHT_MAX: usize = 2;

/// What must have gathered before a second record is sent beside the first.
pub(crate) const SECOND_RECORD_BYTES_MIN: u64 = 256 << 10;

/// A payload keeps its own memory in the record only if that memory is at most this many times its length; otherwise
/// it is copied, so that a small write cannot keep a large receive buffer alive.
pub(crate) const MEMORY_FACTOR_MAX: usize = 4;

/// Size of one read of recovery: at this size the measured disk streams.
pub(crate) const SCAN_CHUNK_BYTES: u64 = 4 << 20;

/// Reads of recovery in flight at once: one is verified while the next ones come.
pub(crate) const SCAN_READS_IN_FLIGHT: usize = 3;

/// Memory of one scan: its reads in flight, and the one that is verified.
pub(crate) const SCAN_BYTES_MAX: u64 = SCAN_CHUNK_BYTES * (SCAN_READS_IN_FLIGHT as u64 + 1);

/// Largest single disk read made for [`crate::Journal::read`].
pub(crate) const READ_BYTES_MAX: u64 = 1 << 20;

/// Largest gap between two ranges that one disk read fetches: on the measured disk a read of its own takes as long
/// as these bytes.
pub(crate) const READ_GAP_BYTES_MAX: u64 = 32 << 10;

/// Disk reads at once for the ranges of one [`crate::Journal::read_ranges`].
pub(crate) const READS_IN_FLIGHT: usize = 8;

/// How long a failed growth of the file is not tried again while nothing is released, in seconds.
pub(crate) const GROWTH_RETRY_SECONDS: u64 = 10;

const _: () = {
    assert!(DATA_START.is_multiple_of(BLOCK_BYTES));
    assert!(DATA_START >= 2 * BLOCK_BYTES);
    assert!(BLOCK_LEN as u64 == BLOCK_BYTES);
    assert!(SCAN_CHUNK_BYTES.is_multiple_of(BLOCK_BYTES));
    assert!(PIECES_PER_RECORD_MAX < 1023);
    assert!(PIECE_BYTES <= PIECE_BYTES_MAX && PIECE_BYTES.is_multiple_of(BLOCK_BYTES));
};
