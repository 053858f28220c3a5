//! Aligned buffers that can be shared without a copy between a socket, the journal and an upload.
//!
//! [`AlignedBuf`] has one owner and is written; [`AlignedBuf::freeze`] turns it into a [`SharedBuf`], which is cloned
//! and sliced but never changes again. Memory comes zeroed, so that no stale heap byte can reach a disk.
#![allow(unsafe_code, reason = "owns raw aligned allocations; every block states why it is sound")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of every buffer in bytes: what `O_DIRECT` asks for on any device in use.
pub const BUFFER_ALIGN: usize = 4096;

/// Largest buffer that a pool keeps for reuse, in bytes.
const POOLED_LEN_MAX: usize = 4 << 20;

/// Power-of-two classes from `BUFFER_ALIGN` to `POOLED_LEN_MAX`.
const POOL_CLASSES: usize = (POOLED_LEN_MAX / BUFFER_ALIGN).ilog2() as usize + 1;

/// Memory that a pool cuts small buffers from, in bytes: an allocator asked for one aligned page at a time spends two.
const CHUNK_BYTES: usize = 1 << 20;

/// Largest buffer that is cut from a chunk, in bytes.
const CHUNKED_LEN_MAX: usize = 64 << 10;

/// One raw allocation.
struct Chunk {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a chunk is plain memory owned by exactly one `Chunk` value; nothing in it is tied to a thread.
unsafe impl Send for Chunk {}
// SAFETY: a chunk itself never touches its memory; each of its blocks is reached by one slab or free list entry alone.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Self {
        assert!(bytes > 0, "a chunk has at least one byte");
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero (asserted above).
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { memory, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, BUFFER_ALIGN).expect("capacities are far below isize::MAX")
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: `memory` came from `alloc_zeroed` with this very layout and is freed once, here.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.bytes)) }
    }
}

/// A block of a chunk, which it keeps alive; or a whole one.
struct Block {
    memory: NonNull<u8>,
    _chunk: Arc<Chunk>,
}

// SAFETY: a block is the only way to its part of the chunk's memory, and not tied to a thread.
unsafe impl Send for Block {}
// SAFETY: a shared reference to a block gives no access to its memory: only `Slab` does, which says how.
unsafe impl Sync for Block {}

impl Block {
    /// A block that is a chunk of its own.
    fn whole(bytes: usize) -> Self {
        let chunk = Arc::new(Chunk::new(bytes));
        Self { memory: chunk.memory, _chunk: chunk }
    }

    /// All blocks of a new chunk.
    fn cut(capacity: usize) -> impl Iterator<Item = Self> {
        let chunk = Arc::new(Chunk::new(CHUNK_BYTES));
        (0..CHUNK_BYTES / capacity).map(move |index| {
            // SAFETY: `index * capacity` lies within the chunk, which is one allocation.
            let memory = unsafe { chunk.memory.add(index * capacity) };
            Self { memory, _chunk: Arc::clone(&chunk) }
        })
    }
}

/// The memory of one buffer; goes back to its pool, or to the allocator, when dropped.
struct Slab {
    /// `None` only while it is dropped.
    block: Option<Block>,
    memory: NonNull<u8>,
    capacity: usize,
    pool: Option<Arc<PoolShared>>,
}

// SAFETY: a slab is plain memory owned by exactly one `Slab` value; nothing in it is tied to a thread.
unsafe impl Send for Slab {}
// SAFETY: through a shared reference the memory is only read (`SharedBuf` gives `&[u8]`, never `&mut`).
unsafe impl Sync for Slab {}

impl Slab {
    fn new(block: Block, capacity: usize, pool: Option<Arc<PoolShared>>) -> Self {
        Self { memory: block.memory, block: Some(block), capacity, pool }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `memory` points at `capacity` initialised bytes (zeroed at birth) that live as long as the block in
        // `self` and belong to it alone; a `&mut` to them needs `&mut self`, so none exists beside this borrow.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.capacity) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` proves that this is the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.capacity) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let (Some(pool), Some(block)) = (self.pool.take(), self.block.take()) {
            pool.take_back(block, self.capacity);
        }
    }
}

/// Free memory of a pool, by class.
struct FreeList {
    classes: [Vec<Block>; POOL_CLASSES],
    bytes: usize,
}

struct PoolShared {
    kept_bytes_max: usize,
    free: Mutex<FreeList>,
}

impl PoolShared {
    fn class(capacity: usize) -> usize {
        (capacity / BUFFER_ALIGN).ilog2() as usize
    }

    /// A block from the free list, or a new one.
    fn take(&self, capacity: usize) -> Block {
        let class = Self::class(capacity);
        let mut guard = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = &mut *guard;
        if let Some(block) = free.classes[class].pop() {
            free.bytes -= capacity;
            return block;
        }
        let rest = CHUNK_BYTES.saturating_sub(capacity);
        if capacity > CHUNKED_LEN_MAX || free.bytes + rest > self.kept_bytes_max {
            drop(guard);
            return Block::whole(capacity);
        }
        let mut blocks = Block::cut(capacity);
        let first = blocks.next().expect("a chunk has many blocks");
        free.classes[class].extend(blocks);
        free.bytes += rest;
        first
    }

    /// Keeps a block for the next buffer of its size. A full pool gives up blocks of the size it has most of, so that
    /// it follows its users when the sizes they ask for change.
    fn take_back(&self, block: Block, capacity: usize) {
        let class = Self::class(capacity);
        let mut guard = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = &mut *guard;
        while free.bytes + capacity > self.kept_bytes_max {
            let bytes_of = |class: usize| free.classes[class].len() * (BUFFER_ALIGN << class);
            let most =
                (0..POOL_CLASSES).filter(|other| *other != class).max_by_key(|c| bytes_of(*c));
            let Some(most) = most.filter(|most| bytes_of(*most) > bytes_of(class)) else { return };
            free.classes[most].pop();
            free.bytes -= BUFFER_ALIGN << most;
        }
        free.bytes += capacity;
        free.classes[class].push(block);
    }
}

/// Keeps freed buffers for reuse, so that the steady state of a volume asks the allocator for nothing.
///
/// Cheap to clone; never blocks and never refuses. Limits on memory are kept by those who hold buffers.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<PoolShared>,
}

impl BufferPool {
    /// A pool that keeps at most `kept_bytes_max` bytes of unused buffers.
    #[must_use]
    pub fn new(kept_bytes_max: usize) -> Self {
        let free = FreeList { classes: std::array::from_fn(|_| Vec::new()), bytes: 0 };
        Self { shared: Arc::new(PoolShared { kept_bytes_max, free: Mutex::new(free) }) }
    }

    /// A buffer of `len` bytes. Its content is unspecified (zeroes or bytes of an earlier buffer of this pool):
    /// fill what you send on.
    #[must_use]
    pub fn alloc(&self, len: usize) -> AlignedBuf {
        let capacity = len.max(BUFFER_ALIGN).next_power_of_two();
        if capacity > POOLED_LEN_MAX {
            return AlignedBuf::zeroed(len);
        }
        let block = self.shared.take(capacity);
        let slab = Slab::new(block, capacity, Some(Arc::clone(&self.shared)));
        AlignedBuf { slab, len }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool(keeps at most {} bytes)", self.shared.kept_bytes_max)
    }
}

/// A writable buffer aligned to [`BUFFER_ALIGN`], with one owner.
pub struct AlignedBuf {
    slab: Slab,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.max(1).next_multiple_of(BUFFER_ALIGN);
        Self { slab: Slab::new(Block::whole(capacity), capacity, None), len }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Sets the length; bytes beyond the old length are whatever the memory held, never uninitialised.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.slab.capacity, "a buffer cannot be longer than its memory");
        self.len = len;
    }

    /// Bytes of memory behind the buffer.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slab.capacity
    }

    /// Ends writing: the bytes can be shared from here on and never change again.
    #[must_use]
    pub fn freeze(self) -> SharedBuf {
        SharedBuf { start: 0, len: self.len, slab: Some(Arc::new(self.slab)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.slab.bytes()[..self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.slab.bytes_mut()[..len]
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// An immutable, reference-counted run of bytes inside an aligned buffer. Clones and slices share the memory.
#[derive(Clone, Default)]
pub struct SharedBuf {
    slab: Option<Arc<Slab>>,
    start: usize,
    len: usize,
}

impl SharedBuf {
    /// A copy of `bytes` in a buffer of its own.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        AlignedBuf::copy_of(bytes).freeze()
    }

    /// The bytes `start..start + len` of this buffer, sharing its memory.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "slice within the buffer"
        );
        Self { slab: self.slab.clone(), start: self.start + start, len }
    }

    /// Takes `next` in if its bytes lie right behind these in the same memory. Whether they do.
    pub fn join(&mut self, next: &Self) -> bool {
        let joins = match (&self.slab, &next.slab) {
            (Some(ours), Some(theirs)) => {
                Arc::ptr_eq(ours, theirs) && self.start + self.len == next.start
            }
            _ => false,
        };
        if joins {
            self.len += next.len;
        }
        joins
    }

    /// Whether the bytes start at a multiple of `align` (a power of two up to [`BUFFER_ALIGN`]) in memory.
    #[must_use]
    pub fn is_aligned_to(&self, align: usize) -> bool {
        self.start.is_multiple_of(align)
    }

    /// Bytes of memory that this buffer keeps alive (shared with its clones and slices).
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.slab.as_ref().map_or(0, |slab| slab.capacity)
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.slab {
            Some(slab) => &slab.bytes()[self.start..self.start + self.len],
            None => &[],
        }
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_buffers_are_zero_and_aligned() {
        let buf = AlignedBuf::zeroed(5000);
        assert_eq!(buf.len(), 5000);
        assert_eq!(buf.as_ptr().addr() % BUFFER_ALIGN, 0);
        assert!(buf.iter().all(|b| *b == 0));
    }

    #[test]
    fn slices_share_memory_and_outlive_their_parent() {
        let mut buf = AlignedBuf::zeroed(8192);
        buf[4096] = 7;
        let shared = buf.freeze();
        let slice = shared.slice(4096, 10);
        drop(shared);
        assert_eq!(slice[0], 7);
        assert!(slice.is_aligned_to(4096));
        assert!(!slice.slice(1, 1).is_aligned_to(512));
    }

    #[test]
    fn only_what_lies_behind_in_the_same_memory_is_joined() {
        let shared = AlignedBuf::copy_of(b"abcdef").freeze();
        let mut begin = shared.slice(0, 2);
        assert!(begin.join(&shared.slice(2, 3)));
        assert_eq!(&*begin, b"abcde");
        assert!(!begin.join(&shared.slice(4, 2)), "it overlaps");
        assert!(!begin.join(&SharedBuf::copy_of(b"f")), "it is elsewhere");
        assert!(!begin.join(&SharedBuf::default()));
        assert_eq!(&*begin, b"abcde");
    }

    #[test]
    fn pool_hands_freed_memory_out_again_and_keeps_its_limit() {
        let pool = BufferPool::new(8192);
        let first = pool.alloc(4096);
        let address = first.as_ptr();
        drop(first.freeze());
        let second = pool.alloc(100);
        assert_eq!(second.as_ptr(), address);
        let big = pool.alloc(16384);
        drop(big);
        assert_eq!(pool.shared.free.lock().unwrap().bytes, 0, "16 KiB exceed what the pool keeps");
        drop(pool);
        drop(second);
    }

    #[test]
    fn a_pool_hands_out_every_size() {
        let pool = BufferPool::new(CHUNK_BYTES);
        for len in (0..=POOLED_LEN_MAX.ilog2()).map(|bits| 1 << bits).chain([POOLED_LEN_MAX + 1]) {
            assert_eq!(pool.alloc(len).len(), len);
        }
    }

    #[test]
    fn a_full_pool_follows_its_users_to_another_size() {
        let pool = BufferPool::new(CHUNK_BYTES);
        let small: Vec<_> = (0..CHUNK_BYTES / BUFFER_ALIGN).map(|_| pool.alloc(1)).collect();
        drop(small);
        drop(pool.alloc(CHUNK_BYTES / 8));
        let free = pool.shared.free.lock().unwrap();
        assert_eq!(free.classes[PoolShared::class(CHUNK_BYTES / 8)].len(), 1);
        assert_eq!(free.bytes, CHUNK_BYTES);
    }

    #[test]
    fn buffers_of_one_chunk_never_overlap_and_outlive_their_pool() {
        let pool = BufferPool::new(2 * CHUNK_BYTES);
        let mut bufs: Vec<_> = (0..600).map(|_| pool.alloc(BUFFER_ALIGN)).collect();
        for (index, buf) in bufs.iter_mut().enumerate() {
            buf.fill((index % 251).to_le_bytes()[0]);
        }
        assert!(pool.shared.free.lock().unwrap().bytes <= 2 * CHUNK_BYTES);
        drop(pool);
        for (index, buf) in bufs.into_iter().enumerate().rev() {
            assert!(buf.as_ptr().addr().is_multiple_of(BUFFER_ALIGN));
            assert!(buf.iter().all(|b| *b == (index % 251).to_le_bytes()[0]), "buffer {index}");
        }
    }
}
