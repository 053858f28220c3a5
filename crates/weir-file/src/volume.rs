//! The device: operations as reads, writes and syncs of the file.
//!
//! Invariants
//!  F1. Changes of the same block are never under way together: each holds it exclusively from before it reads what
//!      lies beside it until its write has ended, also where nobody waits for it any more.
//!  F2. After a sync that failed, nothing is acknowledged any more: what was written since the last one that succeeded
//!      may be lost, and a later success would not say so.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_util::future::join_all;
use weir_device::{
    AlignedBuf, Body, ByteRange, Change, Data, Device, DeviceError, DeviceInfo, DiskWaits, Env,
    ErrorKind, Event, Events, Extent, ExtentState, IoHeader, Operation, RangeLock, RangeMode,
    Reply, Segment, SharedBuf, WriteZeroesFlags, mutant, whole_blocks,
};
use weir_disk::{DiskError, DiskOperation, File, Image, Run, Zeroing};

use crate::finish::{Changed, Finishing};
use crate::status::FileStatus;

/// Zeroes in one write, where the file system or the device cannot zero a range by itself.
const ZERO_BYTES: u64 = 1 << 20;

/// What the page cache and most disks work in.
const PREFERRED_BYTES: u32 = 4096;

/// A device whose bytes are a file or a block device.
pub struct FileVolume(Rc<Inner>);

struct Inner {
    file: File,
    size: u64,
    /// What reads and writes must be a multiple of.
    block_bytes: u64,
    /// What ranges that are zeroed without being written must be a multiple of.
    zero_bytes: u64,
    /// Whether it may be tried.
    can_zero: bool,
    is_read_only: bool,
    locks: RangeLock,
    /// Why nothing is written any more (F2).
    poisoned: RefCell<Option<DeviceError>>,
    events: Events,
    /// Requests that are with the file.
    waits: DiskWaits,
    env: Env,
}

impl fmt::Debug for FileVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileVolume({})", self.0.file.display())
    }
}

fn error_of(error: DiskError) -> DeviceError {
    DeviceError::from_source(error.kind(), error)
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("what is in memory fits the address space")
}

impl FileVolume {
    /// A device over an image that was opened.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the image is empty, or its length cannot be addressed past the page cache.
    pub fn open(env: Env, image: Image, is_read_only: bool) -> Result<Rc<Self>, DeviceError> {
        let Image { file, size, zero_bytes, can_zero, .. } = image;
        let block_bytes = file.alignment() as u64;
        let invalid = |message: String| Err(DeviceError::new(ErrorKind::Invalid, message));
        if size == 0 {
            return invalid(format!("{} is empty: there is nothing to serve", file.display()));
        }
        if !size.is_multiple_of(block_bytes) {
            return invalid(format!(
                "the length of {}, {size} bytes, is no multiple of the {block_bytes} bytes that it takes past the page \
                 cache (O_DIRECT): give it such a length, or serve it through the page cache",
                file.display()
            ));
        }
        Ok(Rc::new(Self(Rc::new(Inner {
            file,
            size,
            block_bytes,
            zero_bytes,
            can_zero,
            is_read_only,
            locks: RangeLock::default(),
            poisoned: RefCell::default(),
            events: Events::default(),
            waits: DiskWaits::default(),
            env,
        }))))
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> FileStatus {
        let poisoned = self.0.poisoned.borrow();
        FileStatus {
            path: self.0.file.display(),
            is_direct: self.0.block_bytes > 1,
            refuses_writes: poisoned.as_ref().map(ToString::to_string),
            unanswered: self.0.waits.longest(&*self.0.env.clock),
        }
    }

    /// Waits for what is under way, and makes it durable.
    ///
    /// # Errors
    /// What was acknowledged since the last flush may be lost.
    pub async fn close(&self) -> Result<(), DeviceError> {
        let everything = ByteRange::new(0, self.0.size);
        let _idle = self.0.locks.lock(everything, RangeMode::Exclusive).await;
        self.0.sync().await
    }

    /// Returns once the file has answered what a close will ask it; what is written so far is durable then, unless the
    /// status says otherwise. Whoever waits no longer lets go of nothing: what was asked goes on.
    pub async fn answers(&self) {
        self.0.with_file(self.0.file.answers()).await;
        let inner = Rc::clone(&self.0);
        // An error is an answer, and is noted (F2).
        let _ = self.change(async move { inner.sync().await }).await;
    }

    /// Runs a change to its end, also if this future is dropped.
    async fn change(
        &self,
        change: impl Future<Output = Changed> + 'static,
    ) -> Result<(), DeviceError> {
        if mutant("file_change_dropped_midway") {
            return change.await;
        }
        Finishing::new(&self.0.env, change).await
    }
}

impl Inner {
    /// Asks the file, and notes for how long it has been asked.
    async fn with_file<T>(&self, request: impl Future<Output = T>) -> T {
        let _waits = self.waits.begin(&*self.env.clock);
        request.await
    }

    async fn read(&self, range: ByteRange) -> Result<Data, DeviceError> {
        if range.is_empty() {
            return Ok(Data::default());
        }
        let around = range.blocks_around(self.block_bytes);
        // A change whose caller has left may be under way still: it is over before the read, or comes not before it.
        let _guard = self.locks.lock(around, RangeMode::Shared).await;
        self.read_locked(range).await
    }

    async fn read_locked(&self, range: ByteRange) -> Result<Data, DeviceError> {
        let around = range.blocks_around(self.block_bytes);
        let buf = self.env.buffers.alloc(to_usize(around.len()));
        let (buf, result) = self.with_file(self.file.read_at(buf, around.start)).await;
        result.map_err(|error| self.noted(error))?;
        let found = buf.freeze();
        Ok(found.slice(to_usize(range.start - around.start), to_usize(range.len())).into())
    }

    /// An error of the file; after one that says that the file became shorter nothing is written any more, which would
    /// make what is missing read as zeroes.
    fn noted(&self, error: DiskError) -> DeviceError {
        if matches!(error, DiskError::Short { operation: DiskOperation::Read, .. }) {
            let message = format!(
                "{error}: the file is shorter than the volume; give it its length and its bytes back, and serve it anew"
            );
            self.poison(&DeviceError::new(ErrorKind::Poisoned, message));
        }
        error_of(error)
    }

    fn poison(&self, error: &DeviceError) {
        if self.poisoned.borrow().is_none() {
            self.poisoned.replace(Some(error.clone()));
            self.events.push(Event::Degraded(error.clone()));
        }
    }

    /// Whether the device takes changes at all.
    fn check_writable(&self) -> Result<(), DeviceError> {
        if self.is_read_only {
            let message = format!("{} is served read-only", self.file.display());
            return Err(DeviceError::new(ErrorKind::ReadOnly, message));
        }
        match &*self.poisoned.borrow() {
            Some(error) if !mutant("file_writes_after_a_failed_sync") => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// F2.
    async fn sync(&self) -> Changed {
        if self.is_read_only {
            return Ok(());
        }
        self.check_writable()?;
        let Err(error) = self.with_file(self.file.sync()).await else {
            return self.check_writable();
        };
        let message = format!(
            "{error}; what was written since the last flush that succeeded may be lost: check the disk and what is on \
             the volume, and serve it anew"
        );
        let error = DeviceError::new(ErrorKind::Poisoned, message);
        self.poison(&error);
        Err(error)
    }

    async fn sync_if(&self, fua: bool) -> Changed {
        if fua { self.sync().await } else { Ok(()) }
    }

    /// A change of one range. The blocks that it shares with others are locked (F1).
    async fn apply(&self, range: ByteRange, change: Change, flags: WriteZeroesFlags) -> Changed {
        if range.is_empty() {
            return self.check_writable();
        }
        let around = range.blocks_around(self.block_bytes);
        let mode = match mutant("file_changes_not_locked") {
            true => RangeMode::Shared,
            false => RangeMode::Exclusive,
        };
        if mutant("poison_asked_before_its_turn") {
            self.check_writable()?;
        }
        let _guard = self.locks.lock(around, mode).await;
        // Asked when it is its turn: a sync may have failed while it waited.
        if !mutant("poison_asked_before_its_turn") {
            self.check_writable()?;
        }
        match change {
            Change::Data(data) => self.write(range, data).await,
            Change::Zeroes(_) | Change::Discard(_) => self.zero(range, flags).await,
        }
    }

    /// Writes a range whose blocks are locked.
    async fn write(&self, range: ByteRange, data: SharedBuf) -> Changed {
        let around = range.blocks_around(self.block_bytes);
        let alignment = self.file.alignment();
        let whole = match around == range {
            true if data.is_aligned_to(alignment) => data,
            true => {
                let mut copy = self.env.buffers.alloc(data.len());
                copy.copy_from_slice(&data);
                copy.freeze()
            }
            false => {
                let read = async |block| self.read_locked(block).await;
                whole_blocks(&self.env.buffers, (range, &data), self.block_bytes, read).await?
            }
        };
        let (_, written) = self.with_file(self.file.write_at(vec![whole], around.start)).await;
        written.map_err(error_of)
    }

    /// Zeroes a range whose blocks are locked: without writing it where that is possible.
    async fn zero(&self, range: ByteRange, flags: WriteZeroesFlags) -> Changed {
        let inside = range.blocks_within(self.zero_bytes);
        let how = if flags.no_hole { Zeroing::Provisioned } else { Zeroing::Hole };
        let zeroed = match inside.is_empty() {
            true => true,
            false if !self.can_zero => false,
            false => {
                let zeroing = self.file.zero(inside.start, inside.len(), how);
                self.with_file(zeroing).await.map_err(error_of)?
            }
        };
        if !zeroed && flags.fast {
            let message = format!("{} cannot be zeroed without writing it", self.file.display());
            return Err(DeviceError::new(ErrorKind::Unsupported, message));
        }
        if !zeroed || inside.is_empty() {
            return self.write_zeroes(range).await;
        }
        self.write_zeroes(ByteRange::new(range.start, inside.start)).await?;
        self.write_zeroes(ByteRange::new(inside.end, range.end)).await
    }

    async fn write_zeroes(&self, range: ByteRange) -> Changed {
        let zeroes = AlignedBuf::zeroed(to_usize(range.len().min(ZERO_BYTES))).freeze();
        // Cut where blocks end, so that only the first and the last piece have others beside them in a block.
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / ZERO_BYTES + 1) * ZERO_BYTES);
            let piece = zeroes.slice(0, to_usize(end - at));
            self.write(ByteRange::new(at, end), piece).await?;
            at = end;
        }
        Ok(())
    }

    async fn batch(&self, segments: Vec<Segment>, fua: bool) -> Changed {
        // Each takes its place in the queue for its range when it is first polled: in order.
        let changes = segments.into_iter().map(|Segment { offset, change }| {
            let segment = Segment { offset, change };
            let range = ByteRange::new(offset, offset + segment.len());
            let no_hole = matches!(segment.change, Change::Zeroes(_));
            let flags = WriteZeroesFlags { no_hole, ..WriteZeroesFlags::default() };
            self.apply(range, segment.change, flags)
        });
        join_all(changes).await.into_iter().collect::<Changed>()?;
        self.sync_if(fua).await
    }

    async fn extents(
        &self,
        range: ByteRange,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        if range.is_empty() || extents_max == 0 {
            return Ok(Vec::new());
        }
        let runs = self.with_file(self.file.runs(range.start, range.end, extents_max)).await;
        let runs = runs.map_err(|error| self.noted(error))?;
        let mut at = range.start;
        let extents = runs.into_iter().map(|Run { is_data, end }| {
            let len = end - at;
            at = end;
            let state = if is_data { ExtentState::Data } else { ExtentState::Hole };
            Extent { len, state }
        });
        Ok(extents.collect())
    }
}

impl Device for FileVolume {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            block_bytes_min: u32::try_from(self.0.block_bytes).unwrap_or(u32::MAX),
            block_bytes_preferred: PREFERRED_BYTES,
            is_read_only: self.0.is_read_only,
            ..DeviceInfo::local(self.0.size)
        }
    }

    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let range = operation.check_bounds(self.0.size)?;
        let inner = Rc::clone(&self.0);
        let unflagged = WriteZeroesFlags::default();
        let body = match operation {
            Operation::Read { .. } => Body::Data(inner.read(range).await?),
            Operation::Write { data, fua, .. } => {
                let change = async move {
                    inner.apply(range, Change::Data(data), unflagged).await?;
                    inner.sync_if(fua).await
                };
                self.change(change).await?;
                Body::Done
            }
            Operation::WriteZeroes { flags, .. } => {
                let change = async move {
                    inner.apply(range, Change::Zeroes(range.len()), flags).await?;
                    inner.sync_if(flags.fua && !mutant("zeroes_forced_without_sync")).await
                };
                self.change(change).await?;
                Body::Done
            }
            Operation::Discard { .. } => {
                let change = async move {
                    inner.apply(range, Change::Discard(range.len()), unflagged).await
                };
                self.change(change).await?;
                Body::Done
            }
            Operation::Batch { segments, fua } => {
                self.change(async move { inner.batch(segments, fua).await }).await?;
                Body::Done
            }
            Operation::Flush(_) => {
                self.0.sync().await?;
                Body::Done
            }
            Operation::Extents { extents_max, .. } => {
                Body::Extents(inner.extents(range, extents_max).await?)
            }
        };
        Ok(Reply::new(body))
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.0.events.poll(cx)
    }
}
