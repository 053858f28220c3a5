//! A full disk and a read-only one, real ones: a small tmpfs in a mount namespace of its own.

#![allow(clippy::disallowed_methods, reason = "a test starts a process and mounts a file system")]

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use weir_device::ErrorKind;
use weir_store::{Put, Store, StoreError};

const MOUNT_VARIABLE: &str = "WEIR_STORE_TEST_MOUNT";

fn mount(arguments: &[&str], path: &Path) {
    let status = Command::new("mount").args(arguments).arg(path).status().expect("start mount");
    assert!(status.success(), "mount {arguments:?}");
}

fn can_mount() -> bool {
    let probe = "mount -t tmpfs none /mnt";
    let status = Command::new("unshare").args(["-rm", "sh", "-c", probe]).output();
    status.is_ok_and(|output| output.status.success())
}

/// Runs inside the mount namespace.
#[tokio::test]
async fn inside() {
    let Some(path) = std::env::var_os(MOUNT_VARIABLE) else { return };
    let path = Path::new(&path);
    mount(&["-t", "tmpfs", "-o", "size=1m", "none"], path);
    let url = format!("file://{}", path.display());
    let store = Store::open(&url).expect("open");
    full(&store, path).await;
    mount(&["-o", "remount,ro"], path);
    read_only(&store, path).await;
    read_only(&Store::open(&url).expect("a read-only store can be opened"), path).await;
    let error = Store::open(&format!("{url}/below")).expect_err("nowhere to create it");
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
}

async fn full(store: &Store, path: &Path) {
    let body = |bytes| vec![Bytes::from(vec![7; bytes])];
    assert_eq!(store.put_create("a/small", body(400 << 10)).await.expect("put"), Put::Created);
    let error = store.put_create("a/large", body(900 << 10)).await.expect_err("full");
    assert!(matches!(error, StoreError::NoSpace { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(!error.is_retryable(), "for a reader it would not pass by itself");
    let text = error.to_string();
    assert!(text.contains("/.tmp/") && text.contains("no space left"), "{text}");
    assert!(matches!(store.put_error(), Some(StoreError::NoSpace { .. })), "{store:?}");
    // The part that was written is gone again: what fits, fits.
    assert_eq!(store.put_create("a/medium", body(500 << 10)).await.expect("put"), Put::Created);
    assert!(store.put_error().is_some(), "a smaller body says nothing");
    std::fs::remove_file(path.join("a/medium")).expect("remove");
    std::fs::remove_file(path.join("a/small")).expect("remove");
    assert_eq!(store.put_create("a/large", body(900 << 10)).await.expect("put"), Put::Created);
    assert!(store.put_error().is_none());
    std::fs::remove_file(path.join("a/large")).expect("remove");
    for (key, bytes) in [("a/small", 400 << 10), ("a/medium", 500 << 10)] {
        assert_eq!(store.put_create(key, body(bytes)).await.expect("put"), Put::Created);
    }
    let listed = store.list("", None).await.expect("list");
    assert_eq!(listed.iter().map(|l| &l.key[..]).collect::<Vec<_>>(), ["a/medium", "a/small"]);
}

async fn read_only(store: &Store, path: &Path) {
    for (key, at) in [("a/new", ".tmp/"), ("new/new", "new")] {
        let error = store.put_create(key, vec![]).await.expect_err("read-only");
        assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
        let text = error.to_string();
        assert!(text.contains(&path.join(at).display().to_string()), "{text}");
    }
    let error = store.delete("a/small").await.expect_err("read-only");
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    assert_eq!(store.get("a/small").await.expect("get").len(), 400 << 10);
    assert_eq!(store.list("", None).await.expect("list").len(), 2);
    assert_eq!(store.put_create("a/small", vec![]).await.expect("an answer"), Put::Exists);
}

#[test]
fn a_full_and_a_read_only_file_system_have_clear_errors() {
    if !can_mount() {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "CI must be able to mount a tmpfs");
        println!("skipped: cannot mount a tmpfs in a namespace here");
        return;
    }
    let directory = tempfile::tempdir().expect("temporary directory");
    let output = Command::new("unshare")
        .arg("-rm")
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "inside", "--nocapture"])
        .env(MOUNT_VARIABLE, directory.path())
        .output()
        .expect("start unshare");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
