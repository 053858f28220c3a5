//! Blocks as they lie in the file: sealed where their volume is encrypted, and checked.

use bytes::Bytes;
use twox_hash::{XxHash3_64, XxHash3_128};
use weir_device::{BufferPool, SharedBuf};
use weir_seal::{BlockKey, counter_nonce};

use crate::format::run::{DeviceIdentity, Entry, RANGES_MAX, RunHeader, RunPlace};
use crate::format::{BLOCK_LEN, CacheId};
use crate::geometry::BAND_BLOCKS;

/// Blocks of a run: the frame of an object.
pub const RUN_BLOCKS: u32 = 16;

/// Bytes of a run without its header.
pub const RUN_BYTES: usize = RUN_BLOCKS as usize * BLOCK_LEN;

/// Runs of a band.
pub(super) const BAND_RUNS: u32 = BAND_BLOCKS / RUN_BLOCKS;

/// Version of blocks that never change.
const VERSION: u64 = 1;

/// What a run is of. The bytes at an address never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunAddress {
    /// The device.
    pub device: DeviceIdentity,
    /// Place on the device, in runs.
    pub run: u64,
}

impl RunAddress {
    /// The band that it is of.
    pub(super) fn band(&self) -> u64 {
        self.run / u64::from(BAND_RUNS)
    }

    /// Which run of the band.
    pub(super) fn in_band(&self) -> u32 {
        u32::try_from(self.run % u64::from(BAND_RUNS)).expect("a band has four")
    }
}

/// The hash of a block as it lies on the disk. It covers the address, so that no block passes for another.
///
/// A plain block is guarded against accidents alone: whoever writes to the file could write a hash as well. BLAKE3,
/// which a sealed block needs, takes nine times as long.
pub(super) fn hash(
    bytes: &[u8],
    address: &RunAddress,
    block: u32,
    key: Option<&BlockKey>,
) -> [u8; 16] {
    let mut place = [0; 44];
    if !weir_device::mutant("cache_hash_without_address") {
        place[..32].copy_from_slice(&address.device.0);
        place[32..40].copy_from_slice(&address.run.to_le_bytes());
        place[40..].copy_from_slice(&block.to_le_bytes());
    }
    let Some(key) = key else {
        let seed = XxHash3_64::oneshot(&place);
        return XxHash3_128::oneshot_with_seed(seed, bytes).to_le_bytes();
    };
    let mut hasher = blake3::Hasher::new_keyed(key.check_key());
    hasher.update(bytes).update(&place);
    let mut first = [0; 16];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    first
}

/// The part of a hash that is kept in memory.
pub(super) fn check_of(hash: &[u8; 16]) -> u32 {
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// Seals a block, or opens it.
pub(super) fn apply(key: &BlockKey, address: &RunAddress, block: u32, bytes: &mut [u8]) {
    key.apply(counter_nonce(address.run, block), bytes);
}

/// A run as it is written.
pub(super) struct Encoded {
    pub(super) bytes: SharedBuf,
    /// Of its blocks, in order.
    pub(super) checks: Vec<u32>,
}

/// Where and as what a run is written.
pub(super) struct Written<'a> {
    pub(super) cache: CacheId,
    pub(super) at: RunPlace,
    pub(super) address: RunAddress,
    pub(super) fill: u64,
    pub(super) opening_salt: [u8; 16],
    pub(super) used: u32,
    pub(super) key: Option<&'a BlockKey>,
}

/// The header of a run and its blocks. The last one is filled up with zeroes.
pub(super) fn encode(to: &Written<'_>, frame: &[Bytes], buffers: &BufferPool) -> Encoded {
    let len: usize = frame.iter().map(Bytes::len).sum();
    let count = len.div_ceil(BLOCK_LEN);
    let mut buf = buffers.alloc((1 + count) * BLOCK_LEN);
    let (header, blocks) = buf.split_at_mut(BLOCK_LEN);
    let mut rest = &mut blocks[..];
    for piece in frame {
        let (to, behind) = rest.split_at_mut(piece.len());
        to.copy_from_slice(piece);
        rest = behind;
    }
    rest.fill(0);
    let (mut entries, mut checks) = (vec![None; RUN_BLOCKS as usize], Vec::with_capacity(count));
    for (number, (bytes, entry)) in (0..).zip(blocks.chunks_mut(BLOCK_LEN).zip(&mut entries)) {
        if let Some(key) = to.key {
            apply(key, &to.address, number, bytes);
        }
        let hash = hash(bytes, &to.address, number, to.key);
        checks.push(check_of(&hash));
        *entry = Some(Entry {
            hash,
            tag: [0; 16],
            version: VERSION,
            ranges: [(0, 0); RANGES_MAX],
            used: to.used,
            reads: 0,
            writes: 0,
        });
    }
    let described = RunHeader {
        at: to.at,
        device: to.address.device,
        band: to.address.band(),
        fill: to.fill,
        opening_salt: to.opening_salt,
        key: to.key.map_or([0; 16], |key| key.id().0),
        attached: [0; 16],
        entries,
        dirty: 0,
    };
    header.copy_from_slice(&described.encode(to.cache));
    Encoded { bytes: buf.freeze(), checks }
}

#[cfg(test)]
mod tests {
    use weir_seal::DataKey;

    use super::*;

    /// As docs/formats/cache.md says it; the value comes from another implementation of XXH3.
    #[test]
    fn the_hash_of_a_plain_block_is_that_of_the_format() {
        let bytes = [7; BLOCK_LEN];
        let address = RunAddress { device: DeviceIdentity([1; 32]), run: 2 };
        let hex = |hash: [u8; 16]| hash.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(hash(&bytes, &address, 3, None)), "e5c874a5f8045a19256d3d8538b5e379");
    }

    #[test]
    fn a_hash_is_of_the_bytes_their_address_and_the_key() {
        let bytes = [7; BLOCK_LEN];
        let address = |device, run| RunAddress { device: DeviceIdentity([device; 32]), run };
        let key = |byte: u8| DataKey::draw(|bytes| bytes.fill(byte)).block_key(&[b"a volume"]);
        let first = hash(&bytes, &address(1, 2), 3, None);
        assert_eq!(first, hash(&bytes, &address(1, 2), 3, None));
        let (one, other) = (key(1), key(2));
        let mut changed = bytes;
        changed[4000] ^= 1;
        let mut hashes = vec![
            first,
            hash(&changed, &address(1, 2), 3, None),
            hash(&bytes, &address(2, 2), 3, None),
            hash(&bytes, &address(1, 3), 3, None),
            hash(&bytes, &address(1, 2), 4, None),
            hash(&bytes, &address(1, 2), 3, Some(&one)),
            hash(&bytes, &address(1, 2), 3, Some(&other)),
        ];
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 7);
        assert_eq!(check_of(&first).to_le_bytes(), first[..4]);
    }
}
