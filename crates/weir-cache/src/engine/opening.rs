//! The way in and out: the file is made or found, its superblock read, and in the end the index saved.

use std::time::Duration;

use tokio::time::Instant;
use weir_device::{AlignedBuf, Env};
use weir_disk::{Directory, DiskError, Errno, File, OpenMode, Zeroing};

use super::block::RUN_BLOCKS;
use super::cache::Cache;
use super::error::CacheError;
use super::index;
use super::limits::{BLOCKS_FILE, CACHE_BYTES_MIN, LOCK_FILE};
use super::scan::Scan;
use super::state::{Ended, State};
use super::thread::ThreadCache;
use crate::format::index::{BAND_ENTRY_BYTES, DEVICE_BYTES};
use crate::format::superblock::{BANDS_OFFSET, OPENING_BITS, SLOT_OFFSETS, Superblock};
use crate::format::{BLOCK_LEN, CacheId};
use crate::geometry::{BAND_BLOCKS, BAND_BYTES, Geometry};

/// Bits of the number of a fill that count within an opening.
const FILL_BITS: u32 = u64::BITS - OPENING_BITS;

/// How long requests are waited for at the end.
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);

/// Pause before the next look at them.
const IDLE_PAUSE: Duration = Duration::from_millis(5);

/// What was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There was no file.
    New,
    /// Nothing of use: the file was another one than was asked for. Why, for people.
    Nothing(String),
    /// All that a clean stop left.
    Index,
    /// A file that was not closed in order: [`ThreadCache::recover`] finds out what is in
    /// it.
    Unknown(String),
}

/// How large a cache is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSize {
    /// Of so many bytes on the disk, or a little less.
    Exactly(u64),
    /// As large as it is, or of so many bytes where there is none.
    KeepOr(u64),
}

/// Rows and columns of a cache of so many bytes.
fn geometry_of(bytes: u64) -> Result<Geometry, CacheError> {
    if bytes < CACHE_BYTES_MIN {
        return Err(CacheError::TooSmall { bytes });
    }
    let runs = u64::from(BAND_BLOCKS / RUN_BLOCKS);
    let band = runs * (1 + u64::from(RUN_BLOCKS)) * BLOCK_LEN as u64;
    let each = band + (BAND_ENTRY_BYTES + DEVICE_BYTES) as u64;
    // As many as fit, so that the length of a file gives the geometry that it was made with.
    let len = |geometry: Geometry| {
        BANDS_OFFSET + geometry.bands() * band + index::bytes_max(geometry.bands())
    };
    let mut bands = (bytes - BANDS_OFFSET) / each;
    while len(Geometry::of_bands(bands)) > bytes {
        bands -= 1;
    }
    Ok(Geometry::of_bands(bands))
}

/// Bytes of blocks that a cache of so many bytes on the disk can hold.
///
/// # Errors
/// [`CacheError::TooSmall`].
pub fn capacity_bytes(bytes: u64) -> Result<u64, CacheError> {
    Ok(geometry_of(bytes)?.bands() * BAND_BYTES)
}

/// Bytes of a whole file.
pub(super) fn file_bytes(superblock: &Superblock) -> u64 {
    superblock.index_offset() + index::bytes_max(superblock.geometry.bands())
}

/// The newest superblock of a file; or why there is none.
pub(super) async fn read_superblock(file: &File) -> Result<Result<Superblock, String>, DiskError> {
    if file.len().await? < BANDS_OFFSET {
        return Ok(Err("it is too short".to_owned()));
    }
    let (mut newest, mut wrong) = (None::<Superblock>, String::new());
    for offset in SLOT_OFFSETS {
        let (buf, read) = file.read_at(AlignedBuf::zeroed(BLOCK_LEN), offset).await;
        let decoded = match read {
            Ok(()) => Superblock::decode(&buf).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match decoded {
            Ok(found) if newest.is_none_or(|newest| found.generation > newest.generation) => {
                newest = Some(found);
            }
            Ok(_) => {}
            Err(error) => wrong = error,
        }
    }
    let Some(newest) = newest else { return Ok(Err(wrong)) };
    match file.len().await? < file_bytes(&newest) {
        true => Ok(Err("it is shorter than it says".to_owned())),
        false => Ok(Ok(newest)),
    }
}

/// Where a superblock is written that replaces only one of the copies.
fn slot_of(generation: u64) -> usize {
    usize::from(generation % 2 == 1)
}

/// Writes one copy of a superblock durably.
async fn write_copy(file: &File, superblock: &Superblock, slot: usize) -> Result<(), DiskError> {
    let block = AlignedBuf::copy_of(&superblock.encode()).freeze();
    file.write_at(vec![block], SLOT_OFFSETS[slot]).await.1?;
    file.sync().await
}

/// Writes the superblock of an opening, first over the copy that counts less. Both are written, so that whichever is
/// damaged later, no index of an earlier opening counts, and no opening has its number again.
async fn write_both(file: &File, superblock: &Superblock, newest: u64) -> Result<(), DiskError> {
    write_copy(file, superblock, 1 - slot_of(newest)).await?;
    write_copy(file, superblock, slot_of(newest)).await
}

/// The file and its superblock; or a new file, and why.
async fn open_file(
    directory: &Directory,
    (size, geometry): (CacheSize, Geometry),
) -> Result<(File, Result<Superblock, Found>), DiskError> {
    let why = match directory.open(BLOCKS_FILE, OpenMode::Existing).await {
        Err(DiskError::Io { source: Errno::NOENT, .. }) => Found::New,
        opened => {
            let file = opened?;
            let why = match read_superblock(&file).await? {
                Ok(found)
                    if found.run_blocks == RUN_BLOCKS
                        && (found.geometry == geometry || matches!(size, CacheSize::KeepOr(_))) =>
                {
                    return Ok((file, Ok(found)));
                }
                Ok(_) => "it had another size".to_owned(),
                Err(why) => why,
            };
            directory.remove(BLOCKS_FILE).await?;
            Found::Nothing(why)
        }
    };
    Ok((directory.open(BLOCKS_FILE, OpenMode::CreateNew).await?, Err(why)))
}

/// Gives a new file its length and its space.
async fn provision(file: &File, bytes: u64) -> Result<(), DiskError> {
    let last = bytes - BLOCK_LEN as u64;
    file.extend_zeroed(last, bytes).await?;
    // Where the file system cannot, writes find out whether there is space.
    file.zero(0, last, Zeroing::Provisioned).await?;
    Ok(())
}

impl ThreadCache {
    /// Opens the cache in a directory of its own, or makes it, and uses it from now on; what was there.
    ///
    /// One that cannot be used, or has another size, is begun anew: it holds nothing that is not elsewhere.
    ///
    /// # Errors
    /// When the disk refuses, or another process uses the cache.
    pub async fn open(
        &self,
        directory: &Directory,
        env: &Env,
        size: CacheSize,
    ) -> Result<(Cache, Found), CacheError> {
        let lock = match self.held() {
            Some(held) => held,
            None => directory.lock(LOCK_FILE).await?,
        };
        let (cache, found) = Cache::open(directory, env, size).await?;
        self.attach(&cache, directory, env).await?;
        self.hold(Some(lock));
        Ok((cache, found))
    }

    /// Ends the use of the cache on the thread that opened it, once no other uses it: what is in it is saved for the
    /// next start.
    ///
    /// # Errors
    /// Where that cannot be saved. The next start reads the file anew.
    pub async fn close(&self, directory: &Directory) -> Result<(), CacheError> {
        let Some(open) = self.take() else { return Ok(()) };
        let closed = open.cache.close(directory).await;
        self.release().await;
        closed
    }
}

impl Cache {
    async fn open(
        directory: &Directory,
        env: &Env,
        size: CacheSize,
    ) -> Result<(Self, Found), CacheError> {
        let (CacheSize::Exactly(bytes) | CacheSize::KeepOr(bytes)) = size;
        let (file, before) = open_file(directory, (size, geometry_of(bytes)?)).await?;
        let mut superblock = match &before {
            Ok(before) => *before,
            Err(_) => Superblock {
                generation: 0,
                cache: CacheId(random(env)),
                geometry: geometry_of(bytes)?,
                run_blocks: RUN_BLOCKS,
                opening: 0,
                opening_salt: [0; 16],
                index: None,
            },
        };
        let (saved, newest) = (superblock.index.take(), superblock.generation);
        // Two, since a write of the process before may still be on its way: the superblock of its end.
        superblock.generation += 2;
        superblock.opening += 1;
        superblock.opening_salt = random(env);
        let geometry = superblock.geometry;
        let first_fill = superblock.opening << FILL_BITS;
        let empty = |scan| State::new(geometry, first_fill, scan);
        let all_unknown = || Some(Scan::new(geometry.columns));
        let (state, found) = match (before, saved) {
            (Err(why), _) => {
                if let Err(error) = provision(&file, file_bytes(&superblock)).await {
                    // What a full disk gave of it is somebody else's.
                    drop(file);
                    directory.remove(BLOCKS_FILE).await?;
                    return Err(error.into());
                }
                (empty(None), why)
            }
            (Ok(_), None) => (empty(all_unknown()), Found::Unknown("it was not closed".to_owned())),
            (Ok(_), Some(saved)) => {
                let mut state = empty(None);
                match index::load((&file, env), &superblock, saved, &mut state).await {
                    Ok(()) => (state, Found::Index),
                    Err(why) => (empty(all_unknown()), Found::Unknown(format!("its index: {why}"))),
                }
            }
        };
        if !weir_device::mutant("cache_index_stays_valid") {
            write_both(&file, &superblock, newest).await?;
        }
        Ok((Self::new(state, superblock), found))
    }

    /// Nothing is looked up or filled any more; returns once nothing is on its way. Whether it was in use until now.
    pub(super) async fn end(&self) -> Result<bool, CacheError> {
        let was_in_use = {
            let mut state = self.state();
            let was_in_use = state.ended.is_none();
            state.ended.get_or_insert(Ended::Closing);
            was_in_use
        };
        let begun = Instant::now();
        while !self.state().is_idle() {
            if begun.elapsed() > IDLE_TIME_MAX {
                return Err(CacheError::Busy);
            }
            tokio::time::sleep(IDLE_PAUSE).await;
        }
        Ok(was_in_use)
    }

    /// Nothing is looked up or filled any more, and what is in it is saved.
    async fn close(&self, directory: &Directory) -> Result<(), CacheError> {
        if self.state().ended.is_some() {
            return Ok(());
        }
        if !self.end().await? {
            return Ok(());
        }
        if self.state().scan.is_some() {
            // An index would say that what is not read yet is not there.
            return Ok(());
        }
        let file = directory.open(BLOCKS_FILE, OpenMode::Existing).await?;
        let saved = index::save(self, &file).await?;
        // The blocks and the index are durable before a superblock says so.
        file.sync().await?;
        let before = self.superblock();
        let superblock =
            Superblock { generation: before.generation + 1, index: Some(saved), ..before };
        write_copy(&file, &superblock, slot_of(superblock.generation)).await?;
        Ok(())
    }
}

fn random(env: &Env) -> [u8; 16] {
    let mut bytes = [0; 16];
    env.random.fill(&mut bytes);
    bytes
}
