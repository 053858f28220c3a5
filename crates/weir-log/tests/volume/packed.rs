//! Compressed frames that are read block by block, where a request costs less than bytes, and whole elsewhere.

use weir_device::ErrorKind;
use weir_log::format::frame::{Codec, Compression};
use weir_log::format::object::{ObjectHeader, ObjectVersion};

use crate::support::{
    Host, expect_bytes, fill, newest_manifest, object_key, pattern, read, run, write,
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
        for encrypted in [false, true] {
            let host = if encrypted { Host::encrypted().await } else { Host::new().await };
            let host = stored(host).await;
            let header = header(&host).await;
            let codecs: Vec<_> = header.frames.iter().map(|frame| frame.codec).collect();
            assert_eq!((header.version, &codecs[..]), (ObjectVersion::V4, &[Codec::Lz4Blocks][..]));
            assert_eq!((header.lens.len(), header.lens[2] as usize), (BLOCKS, BLOCK));
            assert_eq!(header.sums.len(), if encrypted { 0 } else { BLOCKS });
            let manifest = newest_manifest(&host).await;
            assert_eq!((manifest.object_version, manifest.format), (Some(4), 5));
            let fetched = fetched_for_a_block(&host).await;
            assert!((2048..2200).contains(&fetched), "{fetched} bytes for half a block");
        }
    });
}

/// Blocks that are compressed one by one take more room, and over a network whole frames are read anyway.
#[test]
fn frames_are_compressed_whole_where_requests_cost_and_by_zstandard() {
    run(async {
        let costly = Host::new().await;
        costly.faults.let_requests_cost(true);
        let mut zstd = Host::new().await;
        zstd.options.compression = Compression::Zstd;
        for (host, codec) in [(costly, Codec::Lz4), (zstd, Codec::Zstd)] {
            let host = stored(host).await;
            let header = header(&host).await;
            assert_eq!((header.version, header.frames[0].codec), (ObjectVersion::V3, codec));
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
fn a_damaged_block_of_a_compressed_frame_fails_alone() {
    run(async {
        for encrypted in [false, true] {
            for costly in [false, true] {
                let host = if encrypted { Host::encrypted().await } else { Host::new().await };
                let host = stored(host).await;
                // Over a network as well: the volume was copied there.
                host.faults.let_requests_cost(costly);
                let header = header(&host).await;
                let tag = if encrypted { 16 } else { 0 };
                let before: u64 = header.lens[..5].iter().map(|len| u64::from(*len) + tag).sum();
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
        }
    });
}
