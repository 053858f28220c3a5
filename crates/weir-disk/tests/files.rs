//! One suite of rules over every engine: threads, direct and buffered, and the simulated disk.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::{Setup, aligned, block_on, on_every_engine, pattern};
use weir_device::{AlignedBuf, ErrorKind, SharedBuf};
use weir_disk::{DiskError, DiskOperation, Disks, EngineChoice, File, OpenMode};

async fn fresh(setup: &Setup) -> File {
    setup.directory.open("data", OpenMode::CreateNew).await.unwrap()
}

async fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let (buf, result) = file.read_at(AlignedBuf::zeroed(len), offset).await;
    result.unwrap();
    buf.to_vec()
}

async fn write(file: &File, offset: u64, bytes: &[u8]) {
    file.write_at(vec![SharedBuf::copy_of(bytes)], offset).await.1.unwrap();
}

/// Polls a future once: enough for its operation to start.
fn start<F: Future>(future: F) {
    let mut future = pin!(future);
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending | Poll::Ready(_)));
}

#[test]
fn reads_give_back_what_vectored_writes_wrote() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        let block = file.alignment().max(512);
        let pieces: Vec<SharedBuf> = (0..5u64)
            .map(|i| SharedBuf::copy_of(&pattern(i, block * (1 + usize::try_from(i).unwrap()))))
            .collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let (pieces, result) = file.write_at(pieces, block as u64).await;
        result.unwrap();
        assert_eq!(pieces.len(), 5, "the pieces come back");
        file.sync().await.unwrap();
        assert_eq!(file.len().await.unwrap(), (block + expected.len()) as u64);
        assert!(read(&file, block as u64, expected.len()).await == expected);
        assert!(read(&file, 0, block).await.iter().all(|byte| *byte == 0), "a hole is zeroes");
    });
}

#[test]
fn one_read_fills_several_pieces() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        let block = file.alignment().max(512);
        let content = pattern(9, 2500 * block);
        write(&file, 0, &content).await;
        // More than one call takes, and of different lengths.
        let lens = (0..1200).map(|number| block * (1 + number % 3));
        let pieces = lens.map(AlignedBuf::zeroed).collect();
        let (pieces, result) = file.read_pieces_at(pieces, block as u64).await;
        result.unwrap();
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        assert!(bytes == content[block..block + bytes.len()]);
        let pieces = (0..3).map(|_| AlignedBuf::zeroed(block)).collect();
        let (pieces, result) = file.read_pieces_at(pieces, 2498 * block as u64).await;
        assert!(matches!(result, Err(DiskError::Short { .. })), "{result:?}");
        assert_eq!(pieces.len(), 3, "they come back");
    });
}

#[test]
fn more_pieces_than_one_call_takes_are_written() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        let block = file.alignment().max(512);
        let one = SharedBuf::copy_of(&pattern(7, block));
        let (_, result) = file.write_at(vec![one.clone(); 2500], 0).await;
        result.unwrap();
        assert_eq!(file.len().await.unwrap(), (2500 * block) as u64);
        assert!(read(&file, (2499 * block) as u64, block).await == one.to_vec());
    });
}

#[test]
fn an_empty_write_does_nothing() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        file.write_at(vec![], 0).await.1.unwrap();
        file.write_at(vec![SharedBuf::default()], 0).await.1.unwrap();
        assert_eq!(file.len().await.unwrap(), 0);
        assert_eq!(read(&file, 0, 0).await, b"");
    });
}

#[test]
fn a_read_past_the_end_says_how_much_there_was() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        write(&file, 0, &pattern(1, 4096)).await;
        for (offset, there) in [(0, 4096), (4096, 0), (1 << 20, 0)] {
            let (buf, result) = file.read_at(AlignedBuf::zeroed(8192), offset).await;
            assert_eq!(buf.len(), 8192, "the buffer comes back");
            let error = result.unwrap_err();
            let DiskError::Short { operation, offset: at, wanted_bytes, moved_bytes, .. } = error
            else {
                panic!("{error}");
            };
            assert_eq!(operation, DiskOperation::Read);
            assert_eq!((at, wanted_bytes, moved_bytes), (offset, 8192, there));
        }
    });
}

#[test]
fn extending_fills_with_zeroes_and_keeps_what_is_outside() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        write(&file, 0, &pattern(1, 3 * 4096)).await;
        let end = (5 << 20) + 4096;
        file.extend_zeroed(4096, end).await.unwrap();
        assert_eq!(file.len().await.unwrap(), end);
        assert!(read(&file, 0, 4096).await == pattern(1, 3 * 4096)[..4096]);
        let rest = read(&file, 4096, usize::try_from(end).unwrap() - 4096).await;
        assert!(rest.iter().all(|byte| *byte == 0));
        file.extend_zeroed(end, end).await.unwrap();
        assert_eq!(file.len().await.unwrap(), end);
    });
}

#[test]
fn files_are_found_again_after_reopening() {
    on_every_engine(async |setup| {
        let volumes = setup.directory.subdirectory("volumes").await.unwrap();
        let one = volumes.subdirectory("one").await.unwrap();
        let file = one.open("journal", OpenMode::CreateNew).await.unwrap();
        write(&file, 0, &pattern(3, 8192)).await;
        file.sync().await.unwrap();
        drop((file, one, volumes));
        let volumes = setup.directory.subdirectory("volumes").await.unwrap();
        assert_eq!(volumes.list().await.unwrap(), ["one"]);
        let one = volumes.subdirectory("one").await.unwrap();
        let file = one.open("journal", OpenMode::Existing).await.unwrap();
        assert!(read(&file, 0, 8192).await == pattern(3, 8192));
        assert!(file.display().ends_with("volumes/one/journal"), "{}", file.display());
        assert!(one.display().ends_with("volumes/one"), "{}", one.display());
    });
}

#[test]
fn names_are_listed_sorted_and_removed_once() {
    on_every_engine(async |setup| {
        for name in ["b", "c", "a"] {
            setup.directory.open(name, OpenMode::CreateNew).await.unwrap();
        }
        assert_eq!(setup.directory.list().await.unwrap(), ["a", "b", "c"]);
        setup.directory.remove("b").await.unwrap();
        assert_eq!(setup.directory.list().await.unwrap(), ["a", "c"]);
        let error = setup.directory.remove("b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

#[test]
fn a_removed_file_can_still_be_used_by_those_who_have_it_open() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        write(&file, 0, &pattern(1, 4096)).await;
        setup.directory.remove("data").await.unwrap();
        let other = fresh(&setup).await;
        assert!(read(&file, 0, 4096).await == pattern(1, 4096));
        assert_eq!(other.len().await.unwrap(), 0);
    });
}

#[test]
fn opening_tells_missing_from_existing() {
    on_every_engine(async |setup| {
        let error = setup.directory.open("data", OpenMode::Existing).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        fresh(&setup).await;
        let error = setup.directory.open("data", OpenMode::CreateNew).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
        assert!(error.to_string().contains("data"), "{error}");
    });
}

#[test]
fn names_that_are_paths_are_refused() {
    on_every_engine(async |setup| {
        for name in ["", ".", "..", "a/b", "/a", "a\0b"] {
            let error = setup.directory.open(name, OpenMode::CreateNew).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(setup.directory.subdirectory(name).await.is_err());
            assert!(setup.directory.remove(name).await.is_err());
            assert!(setup.directory.lock(name).await.is_err());
        }
        assert_eq!(setup.directory.list().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_lock_is_held_until_its_guard_is_dropped() {
    on_every_engine(async |setup| {
        let guard = setup.directory.lock("lock").await.unwrap();
        let error = setup.directory.lock("lock").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(matches!(error, DiskError::Locked { holder_pid: Some(_), .. }), "{error}");
        drop(setup.directory.lock("other").await.unwrap());
        drop(guard);
        drop(setup.directory.lock("lock").await.unwrap());
        drop(setup.directory.lock("lock").await.unwrap());
    });
}

#[test]
fn a_dropped_write_runs_to_its_end() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        for round in 0..20u64 {
            let len = 64 << 10;
            let offset = round * len as u64;
            start(file.write_at(vec![SharedBuf::copy_of(&pattern(round, len))], offset));
            // Memory freed too early would be handed out again here, and its new content written.
            let thief = SharedBuf::copy_of(&vec![0xee; len]);
            while file.len().await.unwrap() < offset + len as u64 {}
            drop(thief);
            assert!(read(&file, offset, len).await == pattern(round, len));
        }
    });
}

#[test]
fn dropped_reads_and_syncs_do_no_harm() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        write(&file, 0, &pattern(1, 1 << 20)).await;
        for _ in 0..300 {
            start(file.read_at(AlignedBuf::zeroed(64 << 10), 0));
            start(file.sync());
            let fresh = AlignedBuf::zeroed(64 << 10);
            assert!(fresh.iter().all(|byte| *byte == 0), "a dropped read still owns its memory");
        }
        assert!(read(&file, 0, 1 << 20).await == pattern(1, 1 << 20));
        file.sync().await.unwrap();
    });
}

#[test]
fn many_more_operations_than_any_queue_holds_all_end() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        let block = aligned(&file);
        let count = 1000u64;
        let writes = (0..count).map(|i| {
            let file = file.clone();
            async move { write(&file, i * block as u64, &pattern(i, block)).await }
        });
        futures_util::future::join_all(writes).await;
        let reads = (0..count).map(|i| {
            let file = file.clone();
            async move { assert!(read(&file, i * block as u64, block).await == pattern(i, block)) }
        });
        futures_util::future::join_all(reads).await;
        let syncs = (0..300).map(|_| file.sync());
        for result in futures_util::future::join_all(syncs).await {
            result.unwrap();
        }
    });
}

#[test]
fn tasks_on_several_files_do_not_mix_up() {
    on_every_engine(async |setup| {
        let mut tasks = Vec::new();
        for task in 0..8u64 {
            let name = format!("file-{task}");
            let file = setup.directory.open(&name, OpenMode::CreateNew).await.unwrap();
            let block = aligned(&file);
            tasks.push(tokio::task::spawn_local(async move {
                for i in 0..40 {
                    write(&file, i * block as u64, &pattern(task * 1000 + i, block)).await;
                    let back = read(&file, i * block as u64, block).await;
                    assert!(back == pattern(task * 1000 + i, block));
                }
                file.sync().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
#[should_panic(expected = "the offset of direct I/O is aligned")]
fn unaligned_direct_writes_are_a_bug_of_the_caller() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        if file.alignment() > 1 {
            let _ = file.write_at(vec![SharedBuf::copy_of(&[0; 4096])], 3).await;
        }
    });
}

#[test]
fn files_through_the_page_cache_take_any_offset() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        if file.alignment() == 1 {
            write(&file, 3, b"hello").await;
            write(&file, 8, b", world").await;
            file.sync().await.unwrap();
            assert_eq!(read(&file, 3, 12).await, b"hello, world");
            assert_eq!(file.len().await.unwrap(), 15);
        }
    });
}

#[test]
fn a_locked_file_is_waited_for_until_nothing_uses_it() {
    on_every_engine(async |setup| {
        let first = fresh(&setup).await;
        first.lock_exclusive().await.unwrap();
        first.lock_exclusive().await.unwrap();
        let second = setup.directory.open("data", OpenMode::Existing).await.unwrap();
        let mut waiting = Box::pin(second.lock_exclusive());
        let mut turns = 0;
        while turns < 5 {
            tokio::select! {
                biased;
                result = &mut waiting => panic!("locked twice: {result:?}"),
                () = tokio::time::sleep(std::time::Duration::from_millis(10)) => turns += 1,
            }
        }
        let clone = first.clone();
        drop(first);
        assert!(futures_util::poll!(&mut waiting).is_pending(), "a clone is the same opening");
        // What is in flight holds the lock although its handle is gone.
        let block = aligned(&clone);
        start(clone.write_at(vec![SharedBuf::copy_of(&pattern(1, block))], 0));
        drop(clone);
        waiting.await.unwrap();
        assert!(read(&second, 0, block).await == pattern(1, block));
    });
}

#[test]
fn a_renamed_file_is_the_same_and_another_one_is_not() {
    on_every_engine(async |setup| {
        let file = fresh(&setup).await;
        let identity = file.identity().await.unwrap();
        let other = setup.directory.open("other", OpenMode::CreateNew).await.unwrap();
        let Some(identity) = identity else {
            println!("nothing names a file here");
            return;
        };
        let again = setup.directory.open("data", OpenMode::Existing).await.unwrap();
        assert_eq!(again.identity().await.unwrap().unwrap().is_same(&identity), Some(true));
        assert_eq!(other.identity().await.unwrap().unwrap().is_same(&identity), Some(false));
    });
}

#[test]
fn a_copy_of_a_real_file_is_another_file_and_a_move_is_not() {
    let temporary = tempfile::tempdir().unwrap();
    block_on(async {
        let disks = Disks::new(EngineChoice::Threads).unwrap();
        let old = temporary.path().join("old");
        let directory = disks.directory(&old).unwrap();
        let file = directory.open("data", OpenMode::CreateNew).await.unwrap();
        write(&file, 0, &pattern(1, aligned(&file))).await;
        file.sync().await.unwrap();
        let Some(identity) = file.identity().await.unwrap() else {
            println!("nothing names a file here");
            return;
        };
        drop(file);
        let new = temporary.path().join("new");
        std::fs::create_dir(&new).unwrap();
        std::fs::copy(old.join("data"), new.join("copy")).unwrap();
        std::fs::rename(old.join("data"), new.join("data")).unwrap();
        let directory = disks.directory(&new).unwrap();
        let of = async |name| {
            let file = directory.open(name, OpenMode::Existing).await.unwrap();
            file.identity().await.unwrap().unwrap()
        };
        assert_eq!(of("data").await.is_same(&identity), Some(true));
        assert_eq!(of("copy").await.is_same(&identity), Some(false));
    });
}
