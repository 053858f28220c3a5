//! A file of a local disk: whole reads and writes at offsets, syncs, and zeroed extension.

use std::cmp::min;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use weir_device::{AlignedBuf, SharedBuf};

use crate::engine::image::{self, Run};
use crate::engine::open_file::OpenFile;
use crate::engine::sync_gate::SyncKind;
use crate::engine::{Engine, metadata, whose};
use crate::error::DiskError;
use crate::identity::FileIdentity;
use crate::modes::Zeroing;
use crate::room::{LeaveRoom, Share, TooLittle};
use crate::sim::handles::SimFile;

/// Size of one write of [`File::extend_zeroed`], in bytes: large enough that the disk streams,
/// small enough that other operations on the same disk get their turn.
const ZERO_WRITE_BYTES: u64 = 1 << 20;

/// Writes of [`File::extend_zeroed`] in flight at once: keeps a disk busy while one completion is
/// handled.
const ZERO_WRITES_IN_FLIGHT_MAX: usize = 4;

/// Pause before a lock that is held is tried again.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// After this long the wait for a lock is mentioned for the first time: what is left of an opening before in the same
/// process is gone by then.
const LOCK_FIRST_WORD: Duration = Duration::from_secs(1);

/// A wait for a lock is mentioned again after this long.
const LOCK_NEXT_WORD: Duration = Duration::from_secs(5);

/// An open file. Cheap to clone; the file closes when the last clone is gone and nothing is in
/// flight on it.
///
/// An operation that was polled once runs to its end even if its future is dropped; only the answer
/// is lost.
#[derive(Clone, Debug)]
pub struct File {
    inner: Inner,
    /// Its place in the account of what grows on its file system.
    share: Option<Rc<Share>>,
}

#[derive(Clone, Debug)]
enum Inner {
    Real(Rc<RealFile>),
    Sim(SimFile),
}

#[derive(Debug)]
struct RealFile {
    open: Arc<OpenFile>,
    engine: Engine,
}

impl File {
    pub(crate) fn real(open: OpenFile, engine: Engine) -> Self {
        let inner = Inner::Real(Rc::new(RealFile { open: Arc::new(open), engine }));
        Self { inner, share: None }
    }

    pub(crate) fn simulated(file: SimFile) -> Self {
        Self { inner: Inner::Sim(file), share: None }
    }

    /// The same file, which grows as `rule` says from now on.
    pub(crate) async fn leaving_room(self, rule: LeaveRoom) -> Result<Self, DiskError> {
        let share = Share::new(rule, self.len().await?);
        Ok(Self { share: Some(Rc::new(share)), ..self })
    }

    /// What offsets, lengths and memory must be a multiple of; 1 where the file goes through the
    /// page cache.
    #[must_use]
    pub fn alignment(&self) -> usize {
        match &self.inner {
            Inner::Real(file) => file.open.alignment,
            Inner::Sim(file) => file.alignment(),
        }
    }

    /// Path, for messages.
    #[must_use]
    pub fn display(&self) -> String {
        match &self.inner {
            Inner::Real(file) => file.open.path.to_string(),
            Inner::Sim(file) => file.display(),
        }
    }

    /// Fills all of `buf` from `offset`. The end of the file inside the range is
    /// [`DiskError::Short`]. On an error the content of the buffer is unspecified.
    ///
    /// # Panics
    /// If offset or length are not aligned.
    pub async fn read_at(
        &self,
        buf: AlignedBuf,
        offset: u64,
    ) -> (AlignedBuf, Result<(), DiskError>) {
        assert_aligned(offset, buf.len(), self.alignment());
        match &self.inner {
            Inner::Real(file) => file.engine.read(&file.open, buf, offset).await,
            Inner::Sim(file) => file.read_at(buf, offset).await,
        }
    }

    /// The same into several buffers, one after the other, by one read.
    ///
    /// # Panics
    /// As [`File::read_at`].
    pub async fn read_pieces_at(
        &self,
        pieces: Vec<AlignedBuf>,
        offset: u64,
    ) -> (Vec<AlignedBuf>, Result<(), DiskError>) {
        for piece in &pieces {
            assert_aligned(offset, piece.len(), self.alignment());
        }
        match &self.inner {
            Inner::Real(file) => file.engine.read_pieces(&file.open, pieces, offset).await,
            Inner::Sim(file) => file.read_pieces_at(pieces, offset).await,
        }
    }

    /// Writes all pieces one after the other from `offset`. After an error any part of them may be
    /// on the disk. Nothing is durable before a [`File::sync`] that starts after this returned.
    ///
    /// # Panics
    /// If the offset, or memory or length of a piece, are not aligned.
    pub async fn write_at(
        &self,
        pieces: Vec<SharedBuf>,
        offset: u64,
    ) -> (Vec<SharedBuf>, Result<(), DiskError>) {
        let alignment = self.alignment();
        for piece in &pieces {
            assert_aligned(offset, piece.len(), alignment);
            assert!(piece.is_aligned_to(alignment), "memory of a direct write is aligned");
        }
        match &self.inner {
            Inner::Real(file) => file.engine.write(&file.open, pieces, offset).await,
            Inner::Sim(file) => file.write_at(pieces, offset).await,
        }
    }

    /// Makes a range read as zeroes without writing it; false, and nothing done, where the file system or the device
    /// cannot. Runs to its end like a write. Nothing is durable before a [`File::sync`] that starts after this
    /// returned.
    pub async fn zero(&self, offset: u64, len: u64, how: Zeroing) -> Result<bool, DiskError> {
        match &self.inner {
            Inner::Real(file) => {
                let open = Arc::clone(&file.open);
                metadata::run(&file.engine, image::zero_job(open, (offset, len), how)).await
            }
            Inner::Sim(file) => file.write_zeroes(offset, len).await.map(|()| true),
        }
    }

    /// Returns once the file system has answered what the close of the file will ask it. An error is an answer, too.
    pub async fn answers(&self) {
        if let Inner::Real(file) = &self.inner {
            let job = image::copy_closed_job(Arc::clone(&file.open));
            // Whatever it says, it does not hang.
            let _ = metadata::run(&file.engine, job).await;
        }
    }

    /// What a range holds, from its begin, in at most `runs_max` runs.
    pub async fn runs(
        &self,
        offset: u64,
        end: u64,
        runs_max: usize,
    ) -> Result<Vec<Run>, DiskError> {
        match &self.inner {
            Inner::Real(file) => {
                let open = Arc::clone(&file.open);
                metadata::run(&file.engine, image::runs_job(open, (offset, end), runs_max)).await
            }
            Inner::Sim(_) => Ok(vec![Run { is_data: true, end }]),
        }
    }

    /// Makes every write that returned before this call durable.
    ///
    /// After an error nothing is known about any write since the last success, and a later success
    /// does not bring them back: the caller must stop acknowledging.
    pub async fn sync(&self) -> Result<(), DiskError> {
        match &self.inner {
            Inner::Real(file) => file.engine.sync(&file.open, SyncKind::Data).await,
            Inner::Sim(file) => file.sync().await,
        }
    }

    /// Length in bytes; of a block device, its size.
    #[expect(
        clippy::len_without_is_empty,
        reason = "asking the length can fail, and nobody asks for empty"
    )]
    pub async fn len(&self) -> Result<u64, DiskError> {
        match &self.inner {
            Inner::Real(file) => {
                let open = Arc::clone(&file.open);
                metadata::run(&file.engine, metadata::length_job(open)).await
            }
            Inner::Sim(file) => file.len().await,
        }
    }

    /// What names this file on its file system; `None` where nothing does that lasts.
    pub async fn identity(&self) -> Result<Option<FileIdentity>, DiskError> {
        match &self.inner {
            Inner::Real(file) => {
                let open = Arc::clone(&file.open);
                metadata::run(&file.engine, whose::identity_job(open)).await
            }
            Inner::Sim(file) => file.identity().await,
        }
    }

    /// Locks the file against every other handle of it until this one is closed and nothing is in flight on it.
    ///
    /// The lock belongs to the descriptor that reads and writes go through, so requests in flight hold it beyond the
    /// end of their process: whoever has this lock knows that no write of an opener before can land any more. It waits
    /// for that as long as it takes, and says so.
    ///
    /// # Errors
    /// [`DiskError::NetworkFileSystem`] where the lock would prove nothing; what the kernel says otherwise.
    pub async fn lock_exclusive(&self) -> Result<(), DiskError> {
        if let Inner::Real(file) = &self.inner {
            metadata::run(&file.engine, whose::local_job(Arc::clone(&file.open))).await?;
        }
        let began = Instant::now();
        let mut next_word = LOCK_FIRST_WORD;
        loop {
            let locked = match &self.inner {
                Inner::Real(file) => {
                    metadata::run(&file.engine, whose::lock_job(Arc::clone(&file.open))).await?
                }
                Inner::Sim(file) => file.try_lock().await?,
            };
            let (file, waited) = (self.display(), began.elapsed());
            if locked {
                if next_word > LOCK_FIRST_WORD {
                    tracing::info!(
                        file,
                        seconds = waited.as_secs(),
                        "nothing holds the file any more"
                    );
                }
                return Ok(());
            }
            if waited >= next_word {
                next_word = waited + LOCK_NEXT_WORD;
                tracing::warn!(
                    file,
                    seconds = waited.as_secs(),
                    "waiting for requests in flight of a process that had this file open: they could destroy what is \
                     written now; is its disk slow or hung, or another process still there?"
                );
            }
            tokio::time::sleep(LOCK_RETRY).await;
        }
    }

    /// Bytes that are free on the file system for whoever owns the file.
    async fn free_bytes(&self) -> Result<u64, DiskError> {
        match &self.inner {
            Inner::Real(file) => {
                let open = Arc::clone(&file.open);
                metadata::run(&file.engine, metadata::free_job(open)).await
            }
            Inner::Sim(file) => file.free_bytes().await,
        }
    }

    /// [`File::extend_zeroed`], unless that would take room on the file system that has to stay free: where the
    /// directory was opened with [`Directory::leaving_room`](crate::Directory::leaving_room).
    ///
    /// # Errors
    /// [`DiskError::NoRoom`]; then nothing was written.
    ///
    /// # Panics
    /// As [`File::extend_zeroed`].
    pub async fn extend_leaving_room(&self, from: u64, to: u64) -> Result<(), DiskError> {
        let Some(share) = &self.share else { return self.extend_zeroed(from, to).await };
        let free = self.free_bytes().await?;
        let growth = share.grow(to - from, free).map_err(|TooLittle { free, needed }| {
            DiskError::NoRoom { path: Arc::from(self.display()), free, needed }
        })?;
        let extended = self.extend_zeroed(from, to).await;
        drop(growth);
        extended
    }

    /// Fills `from..to` with zeroes by writing them, and makes the range and the new length
    /// durable. A range written this way makes later syncs about three times cheaper than one that
    /// was only allocated.
    ///
    /// # Panics
    /// If the range is not aligned, or ends before it starts.
    pub async fn extend_zeroed(&self, from: u64, to: u64) -> Result<(), DiskError> {
        assert!(from <= to, "a range ends after it starts");
        let alignment = self.alignment() as u64;
        assert!(from.is_multiple_of(alignment), "direct I/O is aligned");
        assert!(to.is_multiple_of(alignment), "direct I/O is aligned");
        match &self.inner {
            Inner::Real(file) => file.extend_zeroed(from, to).await?,
            Inner::Sim(file) => file.extend_zeroed(from, to).await?,
        }
        if let Some(share) = &self.share {
            share.note_len(to);
        }
        Ok(())
    }
}

impl RealFile {
    async fn extend_zeroed(&self, from: u64, to: u64) -> Result<(), DiskError> {
        let piece_bytes = usize::try_from(min(ZERO_WRITE_BYTES, to - from))
            .expect("a piece is at most ZERO_WRITE_BYTES");
        let zeroes = AlignedBuf::zeroed(piece_bytes).freeze();
        let mut offset = from;
        let mut writes = FuturesUnordered::new();
        loop {
            while offset < to && writes.len() < ZERO_WRITES_IN_FLIGHT_MAX {
                let len = min(piece_bytes as u64, to - offset);
                let piece =
                    zeroes.slice(0, usize::try_from(len).expect("no longer than the piece"));
                writes.push(self.engine.write(&self.open, vec![piece], offset));
                offset += len;
            }
            match writes.next().await {
                Some((_, result)) => result?,
                None => break,
            }
        }
        self.engine.sync(&self.open, SyncKind::DataAndMetadata).await
    }
}

fn assert_aligned(offset: u64, len: usize, alignment: usize) {
    assert!(offset.is_multiple_of(alignment as u64), "the offset of direct I/O is aligned");
    assert!(len.is_multiple_of(alignment), "the length of direct I/O is aligned");
}
