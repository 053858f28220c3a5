//! A file volume on simulated and on real disks: one behaviour per test.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests look at files from outside"
)]

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::sleep;
use weir_device::testing::env;
use weir_device::{
    Change, Device, DeviceExt, ErrorKind, ExtentState, FlushScope, IoHeader, Operation, Segment,
    SharedBuf, WriteZeroesFlags, conformance,
};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_disk::{DiskError, Disks, EngineChoice, Image, ImageMode, OpenMode};
use weir_file::FileVolume;

const SIZE: u64 = 1 << 20;

fn run(is_paused: bool, test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(is_paused).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A simulated disk whose operations overtake each other.
fn sim_disk(seed: u64, alignment: usize) -> SimDisk {
    SimDisk::new(seed, SimDiskOptions { alignment, slow_one_in: 8, ..SimDiskOptions::default() })
}

async fn sim_volume(disk: &SimDisk, mode: OpenMode) -> Rc<FileVolume> {
    let file = disk.directory().open("disk", mode).await.unwrap();
    if mode == OpenMode::CreateNew {
        file.extend_zeroed(0, SIZE).await.unwrap();
    }
    let zero_bytes = file.alignment() as u64;
    let created = mode == OpenMode::CreateNew;
    let image = Image { file, size: SIZE, zero_bytes, can_zero: true, created };
    FileVolume::open(env(0), image, false).unwrap()
}

async fn byte(volume: &FileVolume, offset: u64) -> u8 {
    let mut byte = [0];
    volume.read(offset, &mut byte).await.unwrap();
    byte[0]
}

fn bytes(byte: u8, len: usize) -> SharedBuf {
    SharedBuf::copy_of(&vec![byte; len])
}

/// Polls a call once, and drops it.
fn begin_and_drop(call: impl Future) {
    let mut call = pin!(call);
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn it_conforms_on_a_simulated_disk_through_the_page_cache_and_past_it() {
    for alignment in [1, 512, 4096] {
        for seed in 0..4 {
            run(true, async {
                let volume = sim_volume(&sim_disk(seed, alignment), OpenMode::CreateNew).await;
                conformance::run(&*volume, seed, 300).await;
                volume.close().await.unwrap();
            });
        }
    }
}

#[test]
fn it_conforms_on_real_files_with_every_engine() {
    for choice in [EngineChoice::Threads, EngineChoice::Auto] {
        for direct in [false, true] {
            run(false, async {
                let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
                let path = temporary.path().join("disk.raw");
                let disks = Disks::new(choice).unwrap();
                let mode = ImageMode { direct, create: Some(SIZE), ..ImageMode::default() };
                let image = match disks.image(&path, mode).await {
                    Err(DiskError::NoDirectIo { .. }) => return,
                    image => image.unwrap(),
                };
                assert!(image.created && image.size == SIZE);
                let volume = FileVolume::open(env(0), image, false).unwrap();
                assert_eq!(volume.status().is_direct, direct);
                conformance::run(&*volume, 7, 300).await;
                volume.close().await.unwrap();
                let mut whole = vec![0; usize::try_from(SIZE).unwrap()];
                volume.read(0, &mut whole).await.unwrap();
                assert!(
                    std::fs::read(&path).unwrap() == whole,
                    "the same bytes, at the same places"
                );
            });
        }
    }
}

#[test]
fn what_was_flushed_survives_a_loss_of_power() {
    let mut lost = 0;
    for seed in 0..20 {
        run(true, async {
            let disk = sim_disk(seed, 512);
            let volume = sim_volume(&disk, OpenMode::CreateNew).await;
            for nth in 0..20 {
                volume.write(nth * 1000, bytes(7, 700)).await.unwrap();
            }
            volume.write_zeroes(100, 300, WriteZeroesFlags::default()).await.unwrap();
            volume.flush(FlushScope::Local).await.unwrap();
            let fua = Operation::Write { offset: 40_001, data: bytes(8, 5), fua: true };
            volume.internal(fua).await.unwrap();
            volume.write(50_000, bytes(9, 4096)).await.unwrap();
            disk.crash_power();
            drop(volume);
            let volume = sim_volume(&disk, OpenMode::Existing).await;
            for nth in 1..20 {
                assert_eq!(byte(&volume, nth * 1000 + 699).await, 7);
                assert_eq!(byte(&volume, nth * 1000 + 700).await, 0);
            }
            assert_eq!((byte(&volume, 99).await, byte(&volume, 100).await), (7, 0));
            assert_eq!((byte(&volume, 40_000).await, byte(&volume, 40_005).await), (0, 8));
            lost += u32::from(byte(&volume, 50_000).await == 0);
        });
    }
    assert!(lost > 0, "what was not flushed is lost at times");
}

#[test]
fn after_a_sync_that_failed_nothing_is_acknowledged_any_more() {
    run(true, async {
        let disk = sim_disk(1, 512);
        let volume = sim_volume(&disk, OpenMode::CreateNew).await;
        volume.write(0, bytes(1, 512)).await.unwrap();
        disk.fail_next_syncs(1);
        let failed = volume.flush(FlushScope::Local).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Poisoned);
        assert!(failed.to_string().contains("may be lost"), "{failed}");
        assert!(volume.status().refuses_writes.is_some());
        let again = volume.flush(FlushScope::Local).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Poisoned);
        assert_eq!(volume.write(0, bytes(2, 1)).await.unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(volume.discard(0, 4096).await.unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(byte(&volume, 0).await, 1, "reads go on");
    });
}

#[test]
fn what_is_to_survive_by_itself_is_synced_and_fails_where_that_fails() {
    let fua = WriteZeroesFlags { fua: true, ..WriteZeroesFlags::default() };
    let one = Segment { offset: 0, change: Change::Data(bytes(1, 512)) };
    let forced = [
        Operation::Write { offset: 0, data: bytes(1, 512), fua: true },
        Operation::WriteZeroes { offset: 0, len: 512, flags: fua },
        Operation::Batch { segments: vec![one], fua: true },
    ];
    for operation in forced {
        run(true, async {
            let disk = sim_disk(1, 512);
            let volume = sim_volume(&disk, OpenMode::CreateNew).await;
            disk.fail_next_syncs(1);
            let failed = volume.internal(operation).await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Poisoned);
        });
    }
}

#[test]
fn what_waits_for_its_turn_while_a_sync_fails_is_not_acknowledged() {
    let mut refused = 0;
    for seed in 0..20 {
        run(true, async {
            let disk = sim_disk(seed, 512);
            let volume = sim_volume(&disk, OpenMode::CreateNew).await;
            disk.fail_next_syncs(1);
            let writes = (0..6).map(|nth| volume.write(0, bytes(nth, 512)));
            let flush = volume.flush(FlushScope::Local);
            let (written, flushed) =
                futures_util::future::join(futures_util::future::join_all(writes), flush).await;
            assert_eq!(flushed.unwrap_err().kind(), ErrorKind::Poisoned);
            refused += written.iter().filter(|result| result.is_err()).count();
        });
    }
    assert!(refused > 20, "{refused} of those that waited");
}

#[test]
fn changes_that_share_a_block_lose_nothing_of_each_other() {
    for seed in 0..20 {
        run(true, async {
            let volume = sim_volume(&sim_disk(seed, 512), OpenMode::CreateNew).await;
            let changes =
                (0..8_u8).map(|nth| volume.write(u64::from(nth) * 64, bytes(nth + 1, 64)));
            for written in futures_util::future::join_all(changes).await {
                written.unwrap();
            }
            for nth in 0..8 {
                assert_eq!(byte(&volume, nth * 64 + 63).await, u8::try_from(nth).unwrap() + 1);
            }
        });
    }
}

#[test]
fn a_change_whose_caller_has_left_undoes_no_later_one() {
    for seed in 0..40 {
        run(true, async {
            let volume = sim_volume(&sim_disk(seed, 512), OpenMode::CreateNew).await;
            begin_and_drop(volume.write(512, bytes(1, 512)));
            begin_and_drop(volume.write(2000, bytes(1, 9)));
            volume.write(512, bytes(2, 512)).await.unwrap();
            volume.write(2004, bytes(2, 1)).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            assert_eq!(byte(&volume, 512).await, 2);
            assert_eq!((byte(&volume, 2004).await, byte(&volume, 2008).await), (2, 1));
        });
    }
}

/// Checks that a volume says while a request is with its file, and not before or after that.
async fn shows(volume: &FileVolume, request: impl Future<Output = ()>) {
    assert_eq!(volume.status().unanswered, None);
    let mut request = pin!(request);
    assert!(tokio::time::timeout(Duration::from_secs(10), &mut request).await.is_err());
    assert!(volume.status().unanswered.is_some());
    request.await;
    assert_eq!(volume.status().unanswered, None);
}

#[test]
fn a_file_that_does_not_answer_shows_whatever_it_is_asked() {
    run(true, async {
        let disk = sim_disk(1, 512);
        let volume = sim_volume(&disk, OpenMode::CreateNew).await;
        let slow = Duration::from_secs(30);
        disk.change_options(|options| (options.latency_min, options.latency_max) = (slow, slow));
        shows(&volume, async { volume.write(0, bytes(1, 512)).await.unwrap() }).await;
        shows(&volume, async { assert_eq!(byte(&volume, 0).await, 1) }).await;
        shows(&volume, async { volume.flush(FlushScope::Local).await.unwrap() }).await;
        shows(&volume, async { volume.discard(0, 512).await.unwrap() }).await;
    });
}

#[test]
fn a_read_only_volume_takes_no_change_and_syncs_nothing() {
    run(false, async {
        let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = temporary.path().join("disk.raw");
        std::fs::write(&path, vec![3; 8192]).unwrap();
        let disks = Disks::new(EngineChoice::Auto).unwrap();
        let mode = ImageMode { read_only: true, ..ImageMode::default() };
        let open = async || FileVolume::open(env(0), disks.image(&path, mode).await.unwrap(), true);
        let (one, two) = (open().await.unwrap(), open().await.unwrap());
        assert!(one.info().is_read_only && byte(&two, 8191).await == 3);
        assert_eq!(one.write(0, bytes(1, 1)).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(one.discard(0, 1).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        one.flush(FlushScope::Store).await.unwrap();
    });
}

#[test]
fn holes_stay_holes_and_discards_make_some() {
    run(false, async {
        let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = temporary.path().join("disk.raw");
        let disks = Disks::new(EngineChoice::Auto).unwrap();
        let mode = ImageMode { create: Some(SIZE), ..ImageMode::default() };
        let volume = FileVolume::open(env(0), disks.image(&path, mode).await.unwrap(), false);
        let volume = volume.unwrap();
        let states = async || {
            let extents = volume.extents(0, SIZE, 10).await.unwrap();
            extents.iter().map(|e| (e.state == ExtentState::Data, e.len)).collect::<Vec<_>>()
        };
        assert_eq!(states().await, [(false, SIZE)]);
        volume.write(65_536, bytes(1, 131_072)).await.unwrap();
        assert_eq!(states().await, [(false, 65_536), (true, 131_072), (false, SIZE - 196_608)]);
        volume.discard(65_536, 65_536).await.unwrap();
        assert_eq!(states().await, [(false, 131_072), (true, 65_536), (false, SIZE - 196_608)]);
        assert_eq!(volume.extents(0, SIZE, 1).await.unwrap().len(), 1);
    });
}

#[test]
fn what_cannot_be_served_is_refused_and_says_why() {
    run(false, async {
        let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = temporary.path().join("disk.raw");
        let disks = Disks::new(EngineChoice::Auto).unwrap();
        let plain = ImageMode::default();
        let kind = |opened: Result<Image, DiskError>| opened.unwrap_err().kind();
        assert_eq!(kind(disks.image(&path, plain).await), ErrorKind::NotFound);
        let both = ImageMode { read_only: true, create: Some(SIZE), ..plain };
        assert_eq!(kind(disks.image(&path, both).await), ErrorKind::NotFound);
        let create = ImageMode { create: Some(SIZE), ..plain };
        let first = disks.image(&path, create).await.unwrap();
        assert_eq!(kind(disks.image(&path, create).await), ErrorKind::Busy);
        let reader = ImageMode { read_only: true, ..plain };
        assert_eq!(kind(disks.image(&path, reader).await), ErrorKind::Busy);
        drop(first);
        let again = disks.image(&path, ImageMode { create: Some(1), ..plain }).await.unwrap();
        assert!(!again.created && again.size == SIZE, "what is there keeps its length");
        assert_eq!(kind(disks.image(temporary.path(), plain).await), ErrorKind::Invalid);
        assert_eq!(kind(disks.image("/dev/null", plain).await), ErrorKind::Invalid);

        std::fs::write(temporary.path().join("empty"), b"").unwrap();
        let empty = disks.image(temporary.path().join("empty"), plain).await.unwrap();
        let refused = FileVolume::open(env(0), empty, false).unwrap_err();
        assert!(refused.to_string().contains("is empty"), "{refused}");
        std::fs::write(temporary.path().join("odd"), [1; 1000]).unwrap();
        let direct = ImageMode { direct: true, ..plain };
        if let Ok(odd) = disks.image(temporary.path().join("odd"), direct).await {
            let refused = FileVolume::open(env(0), odd, false).unwrap_err();
            assert!(refused.to_string().contains("no multiple of"), "{refused}");
        }
        let odd = disks.image(temporary.path().join("odd"), plain).await.unwrap();
        let volume = FileVolume::open(env(0), odd, false).unwrap();
        volume.write(999, bytes(5, 1)).await.unwrap();
        std::fs::write(temporary.path().join("odd"), [1; 10]).unwrap();
        let read = Operation::Read { offset: 990, len: 10 };
        let short = volume.call(IoHeader::internal(), read).await.unwrap_err();
        assert_eq!(short.kind(), ErrorKind::Corrupt, "{short}");
        let told = volume.extents(0, 1000, 5).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Corrupt, "what is missing is no hole");
        let refused = volume.write(999, bytes(5, 1)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "it would make the rest read as zeroes");
    });
}
