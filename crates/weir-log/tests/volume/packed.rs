//! Compressed frames that are read block by block, where a request costs less than bytes, and whole elsewhere.

use weir_device::{DeviceError, ErrorKind};
use weir_log::format::frame::{Codec, Compression};
use weir_log::format::object::{ObjectHeader, ObjectVersion};

use crate::clones::clone_of;
use crate::support::{
    Host, checked, expect_bytes, fill, name, newest_manifest, object_key, objects, pattern, read,
    replace, run, try_check, write,
};

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;

/// Blocks of which the one half is noise, the other zeroes; but for the third, which is all noise.
fn half() -> Vec<u8> {
    let mut bytes = pattern(7, BLOCKS * BLOCK);
    for (number, block) in bytes.chunks_mut(BLOCK).enumerate().filter(|(number, _)| *number != 2) {
        block[BLOCK / 2..].fill(0);
        block[0] = number.to_le_bytes()[0];
    }
    bytes
}

/// A host whose volume has one object of one frame, and which holds nothing of it in memory.
async fn stored(mut host: Host) -> Host {
    host.options.batch.bytes = 1 << 20;
    let (volume, _) = host.open().await;
    write(&volume, 0, &half()).await.expect("written");
    volume.close().await.expect("closed");
    host.other(7)
}

async fn header(host: &Host) -> ObjectHeader {
    let bytes = host.open_store.get(&object_key(host, 1, 1)).await.expect("read");
    ObjectHeader::decode(&bytes).expect("a header")
}

/// Bytes that a read of one block takes from the store, once its object's header is known.
async fn fetched_for_a_block(host: &Host) -> u64 {
    let (volume, _) = host.open().await;
    expect_bytes(&volume, 0, &half()[..BLOCK]).await;
    let before = host.store.counters().bytes_down;
    expect_bytes(&volume, 9 * BLOCK as u64, &half()[9 * BLOCK..10 * BLOCK]).await;
    host.store.counters().bytes_down - before
}

#[test]
fn a_block_of_a_compressed_frame_is_read_alone_where_requests_are_cheap() {
    run(async {
        let host = stored(Host::new().await).await;
        let header = header(&host).await;
        let codecs: Vec<_> = header.frames.iter().map(|frame| frame.codec).collect();
        assert_eq!((header.version, &codecs[..]), (ObjectVersion::V4, &[Codec::Lz4Blocks][..]));
        assert_eq!((header.lens.len(), header.lens[2] as usize), (BLOCKS, BLOCK));
        assert_eq!(header.sums.len(), BLOCKS);
        let manifest = newest_manifest(&host).await;
        assert_eq!((manifest.object_version, manifest.format), (Some(4), 5));
        let fetched = fetched_for_a_block(&host).await;
        assert!((2048..2200).contains(&fetched), "{fetched} bytes for half a block");
    });
}

/// Blocks that are compressed one by one take more room, and over a network whole frames are read anyway. In the header
/// of an encrypted object their lengths would tell what the blocks are.
#[test]
fn frames_are_compressed_whole_where_requests_cost_or_by_zstandard_or_encrypted() {
    run(async {
        let costly = Host::new().await;
        costly.faults.let_requests_cost(true);
        let mut zstd = Host::new().await;
        zstd.options.compression = Compression::Zstd;
        let encrypted = Host::encrypted().await;
        let cases = [(costly, Codec::Lz4), (zstd, Codec::Zstd), (encrypted, Codec::Lz4)];
        for (host, codec) in cases {
            let host = stored(host).await;
            let header = header(&host).await;
            assert_eq!((header.version, header.frames[0].codec), (ObjectVersion::V3, codec));
            assert!(header.lens.is_empty());
            let manifest = newest_manifest(&host).await;
            assert_eq!((manifest.object_version, manifest.format), (Some(3), 4));
        }
    });
}

/// An older program wrote it, and one that packs goes on; copies of the collector are packed as well.
#[test]
fn a_volume_goes_on_from_older_versions_of_its_objects() {
    run(async {
        let mut host = Host::new().await;
        let mut expected = Vec::new();
        for version in [ObjectVersion::V2, ObjectVersion::V3, ObjectVersion::V4] {
            host.options.object_version = version;
            let (volume, _) = host.open().await;
            if expected.is_empty() {
                expected = fill(&volume, 1).await;
            }
            let half = half();
            let start = (version as usize) * half.len();
            write(&volume, start as u64, &half).await.expect("written");
            expected[start..start + half.len()].copy_from_slice(&half);
            expect_bytes(&volume, 0, &expected).await;
            volume.close().await.expect("closed");
            let said = newest_manifest(&host).await.object_version;
            assert_eq!(said, [None, Some(3), Some(4)][version as usize - 1]);
        }
        // And never back.
        host.options.object_version = ObjectVersion::V3;
        let (volume, _) = host.other(7).open().await;
        expect_bytes(&volume, 0, &expected).await;
        volume.close().await.expect("closed");
        assert_eq!(newest_manifest(&host).await.object_version, Some(4));
    });
}

#[test]
fn a_clone_says_which_versions_the_objects_of_its_parent_have() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &half()).await.expect("written");
        volume.snapshot(&name("cut")).await.expect("taken");
        volume.close().await.expect("closed");
        drop(volume);
        let mut clone = clone_of(&host, 7, ("demo", "cut"), "other").await;
        // Before it is opened, and by who writes no such objects.
        clone.options.compression = Compression::Zstd;
        for _ in 0..2 {
            let manifest = newest_manifest(&clone).await;
            assert_eq!((manifest.object_version, manifest.format), (Some(4), 5));
            let (volume, _) = clone.open().await;
            expect_bytes(&volume, 0, &half()).await;
            volume.close().await.expect("closed");
        }
    });
}

/// The collector takes from a damaged compressed frame what lives in its other blocks.
#[test]
fn damage_in_a_block_where_nothing_lives_keeps_no_compressed_frame() {
    run(async {
        let mut host = stored(Host::new().await).await;
        host.options.collect.start_percent = 0;
        let header = header(&host).await;
        let (hurt, mut data) = (object_key(&host, 1, 1), half());
        let (volume, _) = host.open().await;
        let newer = pattern(8, 8 * BLOCK);
        write(&volume, 4 * BLOCK as u64, &newer).await.expect("written");
        data[4 * BLOCK..12 * BLOCK].copy_from_slice(&newer);
        volume.flush_remote().await.expect("in the store");
        let before: u64 = header.lens[..5].iter().map(|len| u64::from(*len)).sum();
        host.faults.flip_bit(&hurt, header.header_len() + before + 100);
        let report = volume.compact(100, |_, _| {}).await.expect("goes on");
        assert_eq!((report.obstacle, report.live_percent_after), (None, 100));
        assert!(!objects(&host).await.contains(&hurt), "what lived in it has moved");
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn a_damaged_block_of_a_compressed_frame_fails_alone() {
    run(async {
        for costly in [false, true] {
            let host = stored(Host::new().await).await;
            // Over a network as well: the volume was copied there.
            host.faults.let_requests_cost(costly);
            let header = header(&host).await;
            let before: u64 = header.lens[..5].iter().map(|len| u64::from(*len)).sum();
            let at = header.header_len() + before + 100;
            host.faults.flip_bit(&object_key(&host, 1, 1), at);
            let (volume, _) = host.open().await;
            for (number, block) in half().chunks(BLOCK).enumerate() {
                let there = read(&volume, (number * BLOCK) as u64, BLOCK).await;
                match number {
                    5 => assert_eq!(there.unwrap_err().kind(), ErrorKind::Corrupt),
                    _ => assert_eq!(there.unwrap(), block, "block {number}"),
                }
            }
            // All of them at once.
            let all = read(&volume, 0, BLOCKS * BLOCK).await;
            assert_eq!(all.unwrap_err().kind(), ErrorKind::Corrupt);
        }
    });
}

fn crc32c(parts: &[&[u8]]) -> [u8; 4] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits").to_le_bytes()
}

/// Puts the object back as `change` leaves it, with a header whose checksum is right.
async fn replaced(host: &Host, change: impl FnOnce(&mut [u8])) {
    let key = object_key(host, 1, 1);
    let mut bytes = host.open_store.get(&key).await.expect("read").to_vec();
    let len = usize::try_from(header(host).await.header_len()).expect("small");
    change(&mut bytes);
    let sum = crc32c(&[&bytes[12..len], &[bytes[6]], &bytes[4..6]]);
    bytes[8..12].copy_from_slice(&sum);
    replace(host, &key, bytes).await;
}

/// A repair would give up what a newer program wrote.
#[test]
fn a_check_ends_where_an_object_is_of_a_newer_version_and_finds_a_damaged_one() {
    run(async {
        let host = stored(Host::new().await).await;
        assert_eq!(checked(&host).await.damage, []);
        replaced(&host, |bytes| bytes[4] = 200).await;
        let refused = DeviceError::from(try_check(&host).await.expect_err("it cannot be judged"));
        assert!(refused.to_string().contains("use a newer one"), "{refused}");
        let host = stored(Host::new().await).await;
        host.faults.flip_bit(&object_key(&host, 1, 1), 4);
        assert_eq!(checked(&host).await.damage.len(), 1);
    });
}
