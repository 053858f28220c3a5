//! Aligned buffers that can be shared without a copy between a socket, the journal and an upload.
//!
//! [`AlignedBuf`] has one owner and is written; [`AlignedBuf::freeze`] turns it into a [`SharedBuf`], which is cloned
//! and sliced but never changes again. Memory comes zeroed, so that no stale heap byte can reach a disk.
#![allow(unsafe_code, reason = "owns raw aligned allocations; every block states why it is sound")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::room::Rooms;

/// Alignment of every buffer in bytes: what `O_DIRECT` asks for on any device in use.
pub const BUFFER_ALIGN: usize = 4096;

/// Largest buffer that a pool keeps for reuse, in bytes.
const POOLED_LEN_MAX: usize = 4 << 20;

/// Power-of-two classes from `BUFFER_ALIGN` to `POOLED_LEN_MAX`.
const POOL_CLASSES: usize = (POOLED_LEN_MAX / BUFFER_ALIGN).ilog2() as usize + 1;

/// Memory that a pool cuts buffers from, in bytes. An allocator asked for one aligned page at a time spends two.
const CHUNK_BYTES: usize = 2 << 20;

/// Largest buffer that is cut from a chunk, in bytes.
const CHUNKED_LEN_MAX: usize = 256 << 10;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// One raw allocation: of the allocator where it is small, else a mapping of its own, which the kernel zeroes page by
/// page as it is touched.
struct Chunk {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a chunk is plain memory owned by exactly one `Chunk` value; nothing in it is tied to a thread.
unsafe impl Send for Chunk {}
// SAFETY: a chunk itself never touches its memory; each part of it is reached by one slab alone.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Self {
        assert!(bytes > 0, "a chunk has at least one byte");
        let layout = Self::layout(bytes);
        let raw = if Self::is_mapped(bytes) {
            // SAFETY: a new anonymous mapping, placed by the kernel, overlaps nothing.
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, READ_WRITE, MapFlags::PRIVATE) }
                .map_or(ptr::null_mut(), |memory| memory.cast())
        } else {
            // SAFETY: the layout's size is not zero (asserted above).
            unsafe { alloc_zeroed(layout) }
        };
        let Some(memory) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { memory, bytes }
    }

    fn is_mapped(bytes: usize) -> bool {
        bytes > CHUNKED_LEN_MAX
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, BUFFER_ALIGN).expect("capacities are far below isize::MAX")
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if Self::is_mapped(self.bytes) {
            // SAFETY: this very range was mapped in `new` and is unmapped once, here; every slab in it held the chunk.
            let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
            debug_assert!(unmapped.is_ok(), "a mapping of our own can be given up");
        } else {
            // SAFETY: `memory` came from `alloc_zeroed` with this very layout and is freed once, here.
            unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.bytes)) }
        }
    }
}

/// The memory of one buffer and the count of those who hold it. A pool keeps both for the next buffer.
struct Slab {
    refs: AtomicUsize,
    memory: NonNull<u8>,
    capacity: usize,
    /// Whose memory it is.
    chunk: Arc<Chunk>,
    /// Where it goes in the end; `None` while it is there.
    pool: Option<Arc<PoolShared>>,
}

// SAFETY: a slab is the only way to its part of its chunk's memory, and not tied to a thread.
unsafe impl Send for Slab {}
// SAFETY: through a shared reference the memory is only read (`SharedBuf` gives `&[u8]`, never `&mut`).
unsafe impl Sync for Slab {}

impl Slab {
    /// A slab with a chunk of its own.
    fn whole(capacity: usize) -> Box<Self> {
        let chunk = Arc::new(Chunk::new(capacity));
        Self::part(&chunk, 0, capacity)
    }

    fn part(chunk: &Arc<Chunk>, start: usize, capacity: usize) -> Box<Self> {
        assert!(start + capacity <= chunk.bytes, "a slab lies within its chunk");
        // SAFETY: `start` lies within the chunk (asserted above), which is one allocation.
        let memory = unsafe { chunk.memory.add(start) };
        let refs = AtomicUsize::new(0);
        Box::new(Self { refs, memory, capacity, chunk: Arc::clone(chunk), pool: None })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if Chunk::is_mapped(self.chunk.bytes) && self.capacity < self.chunk.bytes {
            // The chunk lives on with its other slabs, these pages need not. Failing to give them back loses nothing.
            // SAFETY: whole pages of the chunk that belong to this slab alone, which nobody uses any more.
            let _ = unsafe {
                madvise(self.memory.as_ptr().cast(), self.capacity, Advice::LinuxDontNeed)
            };
        }
    }
}

/// One of those who hold a slab. The last one gives it back to its pool, or to the allocator.
struct SlabRef(NonNull<Slab>);

// SAFETY: the slab it counts is `Send` and `Sync`, and the count is atomic: what is true for `Arc<Slab>` is true here.
unsafe impl Send for SlabRef {}
// SAFETY: as above.
unsafe impl Sync for SlabRef {}

impl SlabRef {
    /// The first holder of a slab.
    fn new(slab: Box<Slab>) -> Self {
        slab.refs.store(1, Ordering::Relaxed);
        Self(NonNull::from(Box::leak(slab)))
    }

    fn slab(&self) -> &Slab {
        // SAFETY: the slab lives until its last holder is dropped, and this is one.
        unsafe { self.0.as_ref() }
    }

    fn bytes(&self) -> &[u8] {
        let slab = self.slab();
        // SAFETY: `memory` points at `capacity` initialised bytes (zeroed at birth) that live as long as the chunk that
        // the slab holds and belong to it alone. They are written through `bytes_mut` only, by the one `AlignedBuf`
        // that holds the slab; it is borrowed here, or there is none any more.
        unsafe { std::slice::from_raw_parts(slab.memory.as_ptr(), slab.capacity) }
    }

    /// The bytes, for writing.
    ///
    /// # Safety
    /// The caller is the only holder.
    unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        let (memory, capacity) = (self.slab().memory, self.slab().capacity);
        // SAFETY: as in `bytes`; `&mut self` of the only holder proves that this is the only borrow.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), capacity) }
    }

    fn capacity(&self) -> usize {
        self.slab().capacity
    }
}

impl Clone for SlabRef {
    fn clone(&self) -> Self {
        // Relaxed: whoever clones holds the slab already.
        let before = self.slab().refs.fetch_add(1, Ordering::Relaxed);
        assert!(before < usize::MAX / 2, "holders are counted");
        Self(self.0)
    }
}

impl Drop for SlabRef {
    fn drop(&mut self) {
        // What this holder read happens before the slab is written again by another.
        if self.slab().refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: the slab came from a box in `new`, and nobody else holds it any more.
        let mut slab = unsafe { Box::from_raw(self.0.as_ptr()) };
        if let Some(pool) = slab.pool.take() {
            pool.take_back(slab);
        }
    }
}

/// The part of a chunk that no buffer was cut from yet. The kernel gives memory for what is touched only, so this part
/// takes none.
struct Uncut {
    chunk: Arc<Chunk>,
    start: usize,
}

impl Uncut {
    fn cut(&mut self, capacity: usize) -> Option<Box<Slab>> {
        let end = self.start + capacity;
        (end <= self.chunk.bytes)
            .then(|| Slab::part(&self.chunk, std::mem::replace(&mut self.start, end), capacity))
    }
}

/// Free memory of a pool, by class.
#[expect(
    clippy::vec_box,
    reason = "a slab keeps its place while it changes hands: holders point at it"
)]
struct FreeList {
    classes: [Vec<Box<Slab>>; POOL_CLASSES],
    /// The fewest slabs that each class had since the last trim: nobody needed these.
    fewest: [usize; POOL_CLASSES],
    /// Where the next new slabs come from.
    uncut: [Option<Uncut>; POOL_CLASSES],
    bytes: usize,
    /// Bytes of the slabs that somebody holds.
    held_bytes: usize,
}

impl FreeList {
    fn pop(&mut self, class: usize) -> Option<Box<Slab>> {
        let slab = self.classes[class].pop()?;
        self.bytes -= BUFFER_ALIGN << class;
        self.fewest[class] = self.fewest[class].min(self.classes[class].len());
        Some(slab)
    }

    /// A slab that nobody had before.
    fn cut(&mut self, capacity: usize, class: usize) -> Box<Slab> {
        if let Some(slab) = self.uncut[class].as_mut().and_then(|uncut| uncut.cut(capacity)) {
            return slab;
        }
        let chunk = Arc::new(Chunk::new(CHUNK_BYTES));
        let uncut = self.uncut[class].insert(Uncut { chunk, start: 0 });
        uncut.cut(capacity).expect("a chunk has many slabs")
    }

    /// Gives up slabs of the size there is most of, other than `class`, until `bytes` more are within the limit: a pool
    /// follows its users when the sizes they ask for change. Whether there is room now.
    fn make_room(&mut self, bytes: usize, class: usize, bytes_max: usize) -> bool {
        while self.held_bytes + self.bytes + bytes > bytes_max {
            let bytes_of = |class: usize| self.classes[class].len() * (BUFFER_ALIGN << class);
            let most =
                (0..POOL_CLASSES).filter(|other| *other != class).max_by_key(|c| bytes_of(*c));
            let Some(most) = most.filter(|most| bytes_of(*most) > bytes_of(class)) else {
                return false;
            };
            self.pop(most);
        }
        true
    }
}

struct PoolShared {
    bytes_max: usize,
    rooms: Rooms,
    free: Mutex<FreeList>,
}

impl PoolShared {
    fn class(capacity: usize) -> usize {
        (capacity / BUFFER_ALIGN).ilog2() as usize
    }

    /// A slab from the free list, or a new one.
    fn take(&self, capacity: usize) -> Box<Slab> {
        let class = Self::class(capacity);
        let mut guard = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = &mut *guard;
        let found = free.pop(class);
        free.held_bytes += capacity;
        if let Some(slab) = found {
            return slab;
        }
        // What is needed is given, but unused memory makes way for it as far as it can.
        free.make_room(0, class, self.bytes_max);
        if capacity <= CHUNKED_LEN_MAX {
            return free.cut(capacity, class);
        }
        drop(guard);
        Slab::whole(capacity)
    }

    /// Keeps a slab for the next buffer of its size, if there is room.
    fn take_back(&self, slab: Box<Slab>) {
        let (capacity, class) = (slab.capacity, Self::class(slab.capacity));
        let mut guard = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = &mut *guard;
        free.held_bytes -= capacity;
        if free.make_room(capacity, class, self.bytes_max) {
            free.bytes += capacity;
            free.classes[class].push(slab);
        }
    }

    fn trim(&self) -> Unneeded {
        let mut unneeded = Vec::new();
        let mut guard = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = &mut *guard;
        for class in 0..POOL_CLASSES {
            let slabs = &mut free.classes[class];
            // The last ones are taken first, so these have lain for longest.
            unneeded.extend(slabs.drain(..free.fewest[class]));
            free.bytes -= free.fewest[class] * (BUFFER_ALIGN << class);
            free.fewest[class] = slabs.len();
        }
        Unneeded { slabs: unneeded }
    }
}

/// Memory that a pool has given up. Dropping it gives it back to the kernel, which takes a millisecond for a few MiB.
#[must_use]
#[expect(clippy::vec_box, reason = "as in the pool")]
pub struct Unneeded {
    slabs: Vec<Box<Slab>>,
}

impl fmt::Debug for Unneeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unneeded({} buffers)", self.slabs.len())
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
    /// A pool that keeps unused buffers as long as they and those in use are at most `bytes_max` bytes together.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let classes = std::array::from_fn(|_| Vec::new());
        let (fewest, uncut) = ([0; POOL_CLASSES], [const { None }; POOL_CLASSES]);
        let free = FreeList { classes, fewest, uncut, bytes: 0, held_bytes: 0 };
        let rooms = Rooms::new(bytes_max);
        Self { shared: Arc::new(PoolShared { bytes_max, rooms, free: Mutex::new(free) }) }
    }

    /// Memory of a buffer of `len` bytes.
    #[must_use]
    pub fn bytes_for(len: usize) -> usize {
        len.max(BUFFER_ALIGN).checked_next_power_of_two().unwrap_or(len)
    }

    /// A buffer of `len` bytes. Its content is unspecified (zeroes or bytes of an earlier buffer of this pool):
    /// fill what you send on.
    #[must_use]
    pub fn alloc(&self, len: usize) -> AlignedBuf {
        let capacity = Self::bytes_for(len);
        if capacity > POOLED_LEN_MAX {
            return AlignedBuf::zeroed(len);
        }
        let mut slab = self.shared.take(capacity);
        slab.pool = Some(Arc::clone(&self.shared));
        AlignedBuf { slab: SlabRef::new(slab), len }
    }

    /// Gives up memory that nobody needed since the last call. Called now and then, it makes the pool follow what its
    /// users need down as well as up.
    pub fn trim(&self) -> Unneeded {
        self.shared.trim()
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.shared.rooms
    }

    /// What unused buffers and those in use are together at most, for unused ones to be kept.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.shared.bytes_max
    }

    /// Bytes of unused buffers kept.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.shared.free.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool(at most {} bytes)", self.shared.bytes_max)
    }
}

/// A writable buffer aligned to [`BUFFER_ALIGN`], with one owner.
pub struct AlignedBuf {
    /// This is its only holder.
    slab: SlabRef,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let capacity = len.max(1).next_multiple_of(BUFFER_ALIGN);
        Self { slab: SlabRef::new(Slab::whole(capacity)), len }
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
        assert!(len <= self.slab.capacity(), "a buffer cannot be longer than its memory");
        self.len = len;
    }

    /// Bytes of memory behind the buffer.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Ends writing: the bytes can be shared from here on and never change again.
    #[must_use]
    pub fn freeze(self) -> SharedBuf {
        SharedBuf { start: 0, len: self.len, slab: Some(self.slab) }
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
        // SAFETY: a buffer that is not frozen has one owner, and its slab one holder.
        unsafe { &mut self.slab.bytes_mut()[..len] }
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
    slab: Option<SlabRef>,
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
            (Some(ours), Some(theirs)) => ours.0 == theirs.0 && self.start + self.len == next.start,
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

    /// Whether a clone or a slice of this buffer lives elsewhere, so that its memory stays when this one goes.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        // Relaxed: a guess that only saves a copy.
        self.slab.as_ref().is_some_and(|slab| slab.slab().refs.load(Ordering::Relaxed) > 1)
    }

    /// Bytes of memory that this buffer keeps alive (shared with its clones and slices).
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.slab.as_ref().map_or(0, SlabRef::capacity)
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
    fn the_largest_size_is_kept_and_a_larger_one_is_not() {
        let pool = BufferPool::new(4 * POOLED_LEN_MAX);
        drop(pool.alloc(POOLED_LEN_MAX));
        assert_eq!(pool.kept_bytes(), POOLED_LEN_MAX);
        drop(pool.alloc(POOLED_LEN_MAX + 1));
        assert_eq!(pool.kept_bytes(), POOLED_LEN_MAX);
        drop(pool.trim());
        assert_eq!(format!("{:?}", pool.trim()), "Unneeded(1 buffers)");
    }

    #[test]
    fn a_shared_buffer_says_what_it_keeps_alive() {
        let shared = AlignedBuf::zeroed(8192).freeze();
        assert_eq!(shared.memory_bytes(), 8192);
        assert_eq!(shared.slice(5, 1).memory_bytes(), 8192);
        assert_eq!(SharedBuf::default().memory_bytes(), 0);
        assert_eq!(AsRef::<[u8]>::as_ref(&SharedBuf::copy_of(b"abc")), b"abc");
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
        drop(pool.alloc(2 * CHUNKED_LEN_MAX));
        let free = pool.shared.free.lock().unwrap();
        assert_eq!(free.classes[PoolShared::class(2 * CHUNKED_LEN_MAX)].len(), 1);
        assert_eq!(free.bytes, CHUNK_BYTES);
    }

    #[test]
    fn trimming_gives_up_what_nobody_needed_since_the_last_time() {
        let pool = BufferPool::new(2 * CHUNK_BYTES);
        drop((0..20).map(|_| pool.alloc(BUFFER_ALIGN)).collect::<Vec<_>>());
        assert_eq!(pool.kept_bytes(), 20 * BUFFER_ALIGN);
        drop(pool.trim());
        assert_eq!(pool.kept_bytes(), 20 * BUFFER_ALIGN, "all of it was new");
        drop((0..10).map(|_| pool.alloc(BUFFER_ALIGN)).collect::<Vec<_>>());
        drop(pool.trim());
        assert_eq!(pool.kept_bytes(), 10 * BUFFER_ALIGN);
        drop(pool.trim());
        assert_eq!(pool.kept_bytes(), 0);
        assert_eq!(pool.alloc(1).len(), 1);
    }

    /// The memory that the allocator spends on an aligned page is two pages, which nobody would count.
    #[test]
    fn a_pool_that_is_full_still_cuts_small_buffers_from_chunks() {
        let pool = BufferPool::new(4 * BUFFER_ALIGN);
        let bufs: Vec<_> = (0..100).map(|_| pool.alloc(BUFFER_ALIGN)).collect();
        for (before, after) in bufs.iter().zip(&bufs[1..]) {
            assert_eq!(after.as_ptr().addr() - before.as_ptr().addr(), BUFFER_ALIGN);
        }
        drop(bufs);
        assert_eq!(pool.kept_bytes(), 4 * BUFFER_ALIGN);
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
