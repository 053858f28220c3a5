//! What only real engines have: locks between processes, shutting down, limits, and the choice of
//! the engine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests look at files from outside; failures name the engine"
)]

mod common;

use std::future::Future;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, Waker};

use common::{block_on, engines, pattern};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use weir_device::{AlignedBuf, ErrorKind, SharedBuf};
use weir_disk::{DirectIo, DiskError, Disks, EngineChoice, File, OpenMode};

/// More than any engine has with the kernel at once.
const MANY: u64 = 400;

async fn fresh(disks: &Disks, temporary: &tempfile::TempDir) -> File {
    let directory = disks.directory(temporary.path()).unwrap();
    directory.open("data", OpenMode::CreateNew).await.unwrap()
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a test on each real engine, in a directory with direct I/O.
fn on_real_engines(test: impl AsyncFn(Disks, tempfile::TempDir)) {
    for choice in engines() {
        println!("{choice:?}");
        block_on(async {
            let temporary = tempfile::tempdir().unwrap();
            test(Disks::new(choice).unwrap(), temporary).await;
        });
    }
}

#[test]
fn dropping_the_last_handle_waits_for_writes_in_flight() {
    on_real_engines(async |disks, temporary| {
        let file = fresh(&disks, &temporary).await;
        // More than are with the kernel at once: the others have to be started by the shutdown.
        let len = 16 << 10;
        for i in 0..MANY {
            let pieces = vec![SharedBuf::copy_of(&pattern(i, len))];
            let write = pin!(file.write_at(pieces, i * len as u64));
            let _ = poll_once(write);
        }
        drop((file, disks));
        let found = std::fs::read(temporary.path().join("data")).unwrap();
        for (i, found) in found.chunks(len).enumerate() {
            assert!(found == pattern(i as u64, len), "write {i}");
        }
        assert_eq!(found.len() as u64, MANY * len as u64);
    });
}

#[test]
fn results_that_nobody_takes_do_not_block_others() {
    on_real_engines(async |disks, temporary| {
        let file = fresh(&disks, &temporary).await;
        let zeroes = AlignedBuf::zeroed(4096).freeze();
        let mut untaken = Vec::new();
        for i in 0..MANY {
            let mut write = Box::pin(file.write_at(vec![zeroes.clone()], i * 4096));
            if poll_once(write.as_mut()).is_pending() {
                untaken.push(write);
            }
        }
        // Those have all started, and are not polled again for now.
        file.write_at(vec![SharedBuf::copy_of(&pattern(1, 4096))], 0).await.1.unwrap();
        for write in untaken {
            write.await.1.unwrap();
        }
    });
}

#[test]
fn dropped_operations_that_waited_for_their_turn_hold_up_nobody() {
    on_real_engines(async |disks, temporary| {
        let file = fresh(&disks, &temporary).await;
        file.extend_zeroed(0, 1 << 20).await.unwrap();
        for round in 0..20 {
            let mut reads = Vec::new();
            for _ in 0..MANY {
                let mut read = Box::pin(file.read_at(AlignedBuf::zeroed(65536), 0));
                let _ = poll_once(read.as_mut());
                reads.push(read);
            }
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let mut reads: FuturesUnordered<_> =
            (0..MANY).map(|_| file.read_at(AlignedBuf::zeroed(4096), 0)).collect();
        while let Some((_, result)) = reads.next().await {
            result.unwrap();
        }
    });
}

#[test]
fn errors_of_the_kernel_name_file_operation_and_offset() {
    on_real_engines(async |disks, _temporary| {
        let dev = disks.with_direct_io(DirectIo::Never).directory("/dev").unwrap();
        let full = dev.open("full", OpenMode::Existing).await.unwrap();
        let (pieces, result) = full.write_at(vec![SharedBuf::copy_of(b"x")], 42).await;
        assert_eq!(pieces.len(), 1);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().starts_with("/dev/full: write at 42 failed: "), "{error}");
        // A device that cannot be synced says so.
        assert!(full.sync().await.is_err());
    });
}

#[test]
fn after_a_failed_sync_no_other_succeeds() {
    on_real_engines(async |disks, _temporary| {
        let dev = disks.with_direct_io(DirectIo::Never).directory("/dev").unwrap();
        let null = dev.open("null", OpenMode::Existing).await.unwrap();
        // Nobody waits for the first failure.
        {
            let sync = pin!(null.sync());
            let _ = poll_once(sync);
        }
        for _ in 0..3 {
            let error = null.sync().await.unwrap_err();
            assert!(matches!(error, DiskError::Io { .. }), "{error}");
        }
    });
}

#[test]
fn another_process_that_holds_the_lock_is_named() {
    on_real_engines(async |disks, temporary| {
        let directory = disks.directory(temporary.path()).unwrap();
        let path = temporary.path().join("lock");
        let script = format!("echo $$ > {0}; exec flock -n -x {0} cat", path.display());
        let mut holder = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // `cat` echoes only once it runs, and it runs only under the lock.
        std::io::Write::write_all(holder.stdin.as_mut().unwrap(), b"!").unwrap();
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let error = directory.lock("lock").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(
            matches!(error, DiskError::Locked { holder_pid: Some(pid), .. } if pid == holder.id()),
            "{error}"
        );
        // No process has this id: the holder could not write its own yet.
        std::fs::write(&path, "4200000\n").unwrap();
        let error = directory.lock("lock").await.unwrap_err();
        assert!(matches!(error, DiskError::Locked { holder_pid: None, .. }), "{error}");
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        let guard = directory.lock("lock").await.unwrap();
        let tried = Command::new("flock").arg("-n").arg(&path).arg("true").status().unwrap();
        assert!(!tried.success(), "the lock holds against other processes");
        let holder = std::fs::read_to_string(&path).unwrap();
        assert_eq!(holder.trim(), std::process::id().to_string());
        drop(guard);
        let tried = Command::new("flock").arg("-n").arg(&path).arg("true").status().unwrap();
        assert!(tried.success());
    });
}

#[test]
fn engines_are_named_and_auto_takes_the_best() {
    block_on(async {
        let threads = Disks::new(EngineChoice::Threads).unwrap();
        assert_eq!(threads.engine_name(), "threads");
        let auto = Disks::new(EngineChoice::Auto).unwrap();
        let best = if engines_has_uring() { "io_uring" } else { "threads" };
        assert_eq!(auto.engine_name(), best);
    });
}

fn engines_has_uring() -> bool {
    // Not inside another runtime: each engine wants its own.
    std::thread::scope(|scope| {
        scope.spawn(|| engines().contains(&EngineChoice::Uring)).join().unwrap()
    })
}

#[test]
fn many_engines_come_and_go_on_one_thread() {
    on_real_engines(async |first, temporary| {
        let file = fresh(&first, &temporary).await;
        for i in 0..50u64 {
            let disks = Disks::new(EngineChoice::Auto).unwrap();
            let directory = disks.directory(temporary.path()).unwrap();
            let other = directory.open("data", OpenMode::Existing).await.unwrap();
            drop((disks, directory));
            let pieces = vec![SharedBuf::copy_of(&pattern(i, 4096))];
            other.write_at(pieces, 0).await.1.unwrap();
            drop(other);
            let (buf, result) = file.read_at(AlignedBuf::zeroed(4096), 0).await;
            result.unwrap();
            assert!(buf[..] == pattern(i, 4096)[..]);
        }
    });
}

#[test]
fn directories_are_created_private_with_their_parents() {
    use std::os::unix::fs::PermissionsExt;
    on_real_engines(async |disks, temporary| {
        let directory = disks.directory(temporary.path().join("x/y")).unwrap();
        directory.subdirectory("z").await.unwrap();
        directory.open("file", OpenMode::CreateNew).await.unwrap();
        let mode = |path: &str| {
            let metadata = std::fs::metadata(temporary.path().join(path)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        for path in ["x", "x/y", "x/y/z"] {
            assert_eq!(mode(path), 0o700, "{path}");
        }
        assert_eq!(mode("x/y/file"), 0o600);
        std::fs::write(temporary.path().join("plain"), b"").unwrap();
        assert!(disks.directory(temporary.path().join("plain")).is_err());
        assert!(disks.directory(temporary.path().join("plain/below")).is_err());
        assert!(directory.open("z", OpenMode::Existing).await.is_err());
    });
}
