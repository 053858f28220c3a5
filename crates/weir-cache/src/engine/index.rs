//! The index of a clean stop: saved behind the bands, and read at the next start instead of all headers.

use std::cmp::Reverse;

use weir_device::{AlignedBuf, Env};
use weir_disk::{DiskError, File};

use super::block::{BAND_RUNS, RunAddress};
use super::cache::Cache;
use super::error::CacheError;
use super::state::State;
use crate::format::BLOCK_LEN;
use crate::format::DecodeError;
use crate::format::index::{
    BAND_ENTRY_BYTES, DEVICE_BYTES, HEAD_BYTES, IndexBand, IndexHead, decode_device,
};
use crate::format::superblock::{SavedIndex, Superblock};

/// Bytes that are read or written at a time.
const STEP_BYTES: usize = 4 << 20;

/// Most bytes that the index of so many bands takes, in whole blocks.
pub(super) fn bytes_max(bands: u64) -> u64 {
    let each = (BAND_ENTRY_BYTES + DEVICE_BYTES) as u64;
    (HEAD_BYTES as u64 + bands * each).next_multiple_of(BLOCK_LEN as u64)
}

/// Writes bytes one after the other, in large steps.
struct Writer<'a> {
    file: &'a File,
    offset: u64,
    bytes: u64,
    hasher: blake3::Hasher,
    buf: Vec<u8>,
}

impl Writer<'_> {
    async fn push(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.buf.extend_from_slice(bytes);
        if self.buf.len() >= STEP_BYTES { self.write(STEP_BYTES).await } else { Ok(()) }
    }

    async fn write(&mut self, len: usize) -> Result<(), DiskError> {
        let mut piece = AlignedBuf::zeroed(len.next_multiple_of(BLOCK_LEN));
        piece[..len].copy_from_slice(&self.buf[..len]);
        let piece_bytes = piece.len() as u64;
        self.file.write_at(vec![piece.freeze()], self.offset).await.1?;
        self.offset += piece_bytes;
        self.buf.drain(..len);
        Ok(())
    }

    async fn end(mut self) -> Result<SavedIndex, DiskError> {
        if !self.buf.is_empty() {
            self.write(self.buf.len()).await?;
        }
        Ok(SavedIndex { bytes: self.bytes, digest: *self.hasher.finalize().as_bytes() })
    }
}

/// Writes the index. Nothing fills the cache any more.
pub(super) async fn save(cache: &Cache, file: &File) -> Result<SavedIndex, CacheError> {
    let (head, places, devices, numbers) = {
        let state = cache.state();
        let devices: Vec<_> = state.devices.all().collect();
        let slots = state.table.slots();
        let mut places: Vec<_> = slots.bands().map(|(place, ..)| place).collect();
        // The oldest of a set first, as they are restored.
        for set in places.chunk_by_mut(|one, next| one.column == next.column) {
            set.sort_unstable_by_key(|place| Reverse(slots.age(slots.at(*place).used)));
        }
        let count = |len: usize| u32::try_from(len).expect("a table has fewer");
        let head = IndexHead { devices: count(devices.len()), bands: count(places.len()) };
        let most = devices.iter().map(|(number, _)| *number as usize + 1).max().unwrap_or(0);
        let mut numbers = vec![0; most];
        for (place, (number, _)) in (0..).zip(&devices) {
            numbers[*number as usize] = place;
        }
        (head, places, devices, numbers)
    };
    let (offset, hasher) = (cache.superblock().index_offset(), blake3::Hasher::new());
    let mut writer = Writer { file, offset, bytes: 0, hasher, buf: Vec::new() };
    writer.push(&head.encode()).await?;
    for (_, identity) in &devices {
        writer.push(&identity.0).await?;
    }
    for place in places {
        let entry = {
            let state = cache.state();
            let slot = state.table.slots().at(place);
            let band = slot.band().expect("nothing is filled any more");
            IndexBand {
                device: numbers[band.device as usize],
                place,
                is_kept: state.table.is_kept(place)
                    && !weir_device::mutant("cache_index_keeps_nothing"),
                band: band.number,
                present: slot.present,
                checks: state.checks_of(place).try_into().expect("a check for each block"),
            }
        };
        writer.push(&entry.encode()).await?;
    }
    Ok(writer.end().await?)
}

/// Reads bytes one after the other, in large steps.
struct Reader<'a> {
    file: &'a File,
    env: &'a Env,
    offset: u64,
    /// That are not read yet.
    left: u64,
    hasher: blake3::Hasher,
    buf: Vec<u8>,
    at: usize,
}

impl Reader<'_> {
    /// The next bytes; fewer at the end.
    async fn next(&mut self, len: usize) -> Result<&[u8], DiskError> {
        while self.buf.len() - self.at < len && self.left > 0 {
            let step = self.left.min(STEP_BYTES as u64);
            let step = usize::try_from(step).expect("at most a step");
            let buf = self.env.buffers.alloc(step.next_multiple_of(BLOCK_LEN));
            let (buf, read) = self.file.read_at(buf, self.offset).await;
            read?;
            self.offset += buf.len() as u64;
            self.left -= step as u64;
            self.hasher.update(&buf[..step]);
            self.buf.drain(..self.at);
            self.at = 0;
            self.buf.extend_from_slice(&buf[..step]);
        }
        let begin = self.at;
        self.at = (begin + len).min(self.buf.len());
        Ok(&self.buf[begin..self.at])
    }
}

/// Fills an empty state from the index. An error leaves the state of no use.
pub(super) async fn load(
    (file, env): (&File, &Env),
    superblock: &Superblock,
    saved: SavedIndex,
    state: &mut State,
) -> Result<(), String> {
    let text = |error: DiskError| error.to_string();
    let wrong = |error: DecodeError| error.to_string();
    if saved.bytes > bytes_max(superblock.geometry.bands()) {
        return Err(format!("it has {} bytes", saved.bytes));
    }
    let (offset, hasher) = (superblock.index_offset(), blake3::Hasher::new());
    let mut reader =
        Reader { file, env, offset, left: saved.bytes, hasher, buf: Vec::new(), at: 0 };
    let head = IndexHead::decode(reader.next(HEAD_BYTES).await.map_err(text)?).map_err(wrong)?;
    if head.index_bytes() != saved.bytes {
        return Err("it has another length than it says".to_owned());
    }
    let mut devices = Vec::new();
    for _ in 0..head.devices {
        let bytes = reader.next(DEVICE_BYTES).await.map_err(text)?;
        devices.push(decode_device(bytes).map_err(wrong)?);
    }
    for _ in 0..head.bands {
        let bytes = reader.next(BAND_ENTRY_BYTES).await.map_err(text)?;
        let entry = IndexBand::decode(bytes, superblock.geometry, head.devices).map_err(wrong)?;
        let run = entry.band * u64::from(BAND_RUNS);
        let address = RunAddress { device: devices[entry.device as usize], run };
        if !state.restore((entry.place, entry.is_kept), &address, entry.present, &entry.checks) {
            return Err("a band is where it does not belong".to_owned());
        }
    }
    let is_whole = *reader.hasher.finalize().as_bytes() == saved.digest
        || weir_device::mutant("cache_index_without_digest");
    if is_whole { Ok(()) } else { Err("it is not what was saved".to_owned()) }
}
