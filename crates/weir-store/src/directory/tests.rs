use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use weir_device::{AlignedBuf, FileRead};
use weir_pacer::{Class, Pacer, Pressure};

use super::*;
use crate::Store;

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

fn open(path: &Path) -> Store {
    Store::open(&format!("file://{}", path.display())).expect("open")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("metadata").permissions().mode() & 0o777
}

async fn put(store: &Store, key: &str) -> Result<Put, StoreError> {
    store.put_create(key, vec![Bytes::from_static(b"body")]).await
}

#[tokio::test]
async fn only_the_owner_may_read() {
    let top = temporary();
    let root = top.path().join("x/y");
    let store = open(&root);
    put(&store, "a/b").await.expect("put");
    for directory in ["x", "x/y", "x/y/a", "x/y/.tmp"] {
        assert_eq!(mode(&top.path().join(directory)), 0o700, "{directory}");
    }
    assert_eq!(mode(&root.join("a/b")), 0o600);
}

#[test]
fn a_store_has_one_location_whatever_path_leads_to_it_and_a_copy_another() {
    let top = temporary();
    let (root, other) = (top.path().join("store"), top.path().join("copy"));
    let location = open(&root).location();
    std::os::unix::fs::symlink(&root, top.path().join("link")).expect("link");
    for spelling in ["store/", "./store", "copy/../store", "link", "link/"] {
        fs::create_dir_all(&other).expect("directory");
        assert_eq!(open(&top.path().join(spelling)).location(), location, "{spelling}");
    }
    assert_ne!(open(&other).location(), location);
    // Another directory in its place is another store.
    fs::rename(&root, top.path().join("moved")).expect("rename");
    assert_ne!(open(&root).location(), location);
    assert_eq!(open(&top.path().join("moved")).location(), location);
}

/// What `work` syncs, as paths below the root; temporary files under one name.
fn synced_by(state: &State, work: impl FnOnce(&State)) -> Vec<String> {
    lock(&state.synced).clear();
    work(state);
    let synced = lock(&state.synced);
    let below = synced.iter().map(|path| path.strip_prefix(&state.root).expect("below the root"));
    let name = |path: &Path| match path.starts_with(TEMPORARY_DIRECTORY) {
        true => "FILE".to_owned(),
        false => path.display().to_string(),
    };
    below.map(name).collect()
}

#[test]
fn every_answer_rests_on_synced_names() {
    let top = temporary();
    let root = top.path().join("x/y");
    let directory = Directory::open("file:///s".into(), root.clone()).expect("open");
    let made = lock(&directory.state.synced).clone();
    assert_eq!(made, [root.clone(), top.path().join("x"), top.path().to_owned()]);

    let part = || [Bytes::from_static(b"body")];
    let put = |state: &State, key, answer| {
        assert_eq!(state.put(key, &part(), None).expect("put"), answer)
    };
    let state = &*directory.state;
    let first = synced_by(state, |state| put(state, "a/b/1", Put::Created));
    assert_eq!(first, ["FILE", "", "a", "a/b"], "the file, the path, its name");
    assert_eq!(synced_by(state, |state| put(state, "a/b/2", Put::Created)), ["FILE", "a/b"]);
    assert_eq!(synced_by(state, |state| put(state, "a/b/2", Put::Exists)), ["a/b"]);
    let list = |state: &State| assert_eq!(state.list("a/", None).expect("list").len(), 2);
    assert_eq!(synced_by(state, list), ["a", "a/b"]);
    let delete = |state: &State| drop(state.delete("a/b/2", false).expect("delete"));
    assert_eq!(synced_by(state, delete), ["a/b"]);
    assert_eq!(synced_by(state, delete), ["a/b"], "also what somebody else deleted");

    // Another opening knows nothing of what this one synced.
    let again = Directory::open("file:///s".into(), root).expect("open");
    let first = synced_by(&again.state, |state| put(state, "a/b/1", Put::Exists));
    assert_eq!(first, ["", "a", "a/b"]);
}

#[tokio::test]
async fn what_is_no_object_is_not_listed() {
    let top = temporary();
    let store = open(top.path());
    put(&store, "a/b").await.expect("put");
    fs::create_dir(top.path().join("lost+found")).expect("create");
    fs::write(top.path().join("lost+found/1"), b"").expect("create");
    for name in [".hidden", "a/.b.swp", ".tmp/0-0", "a/with space"] {
        fs::write(top.path().join(name), b"x").expect("create");
    }
    std::os::unix::fs::symlink("/etc/passwd", top.path().join("a/link")).expect("link");
    let listed = store.list("", None).await.expect("list");
    assert_eq!(listed, [Listed { key: "a/b".to_owned(), size: 4 }]);
}

#[tokio::test]
async fn opening_removes_old_temporary_files_and_no_others() {
    let top = temporary();
    put(&open(top.path()), "a").await.expect("put");
    let (old, young) = (top.path().join(".tmp/0-old"), top.path().join(".tmp/0-young"));
    for (path, age_s) in [(&old, 3700), (&young, 3500)] {
        fs::write(path, b"x").expect("create");
        let file = fs::OpenOptions::new().write(true).open(path).expect("open");
        let modified = SystemTime::now() - Duration::from_secs(age_s);
        file.set_modified(modified).expect("set the time");
    }
    let store = open(top.path());
    assert!(!old.exists() && young.exists());
    let left = fs::read_dir(top.path().join(".tmp")).expect("list").count();
    assert_eq!(left, 1, "and the clock file is gone");
    assert_eq!(store.list("", None).await.expect("list").len(), 1);
}

/// A store outside of tmpfs, and the directory that goes with it.
fn on_disk() -> (tempfile::TempDir, State) {
    let top = tempfile::tempdir_in(".").expect("temporary directory");
    let directory = Directory::open("file:///s".into(), top.path().to_owned()).expect("open");
    (top, Arc::into_inner(directory.state).expect("nobody else has it"))
}

/// How often a test has the kernel forget a file before it gives up.
const COLD_TRIES: usize = 500;

/// Asks the kernel to forget what it has of a file. It need not: pages that something else refers to at that moment
/// stay. And a read that is not to wait starts one, which a disk may have answered before the read looks again. So
/// whoever needs the file cold asks, looks, and asks again, `COLD_TRIES` times.
fn forget(path: &Path) {
    let file = File::open(path).expect("open");
    file.sync_all().expect("sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    std::thread::sleep(Duration::from_millis(5));
}

#[test]
fn what_is_in_memory_is_read_at_once_and_nothing_else() {
    let (top, mut state) = on_disk();
    let size = 1 << 20;
    state.put("k", &[Bytes::from(vec![7; 1 << 20])], None).expect("put");
    for range in [0..CACHED_READ_BYTES_MAX, 5..6, size - 1..size + 5, size..size + 5] {
        let got = state.get("k", Some(range.clone()), None).expect("get");
        let cached = state.get_cached("k", &range);
        assert_eq!(cached.is_some(), state.is_local, "{range:?}");
        assert!(cached.is_none_or(|c| c.bytes == got.bytes && c.object_bytes == size));
    }
    assert!(state.get_cached("k", &(0..CACHED_READ_BYTES_MAX + 1)).is_none(), "it is long");
    assert!(state.get_cached("other", &(0..1)).is_none());
    assert!(state.get_cached("k/of-a-file", &(0..1)).is_none());
    let is_left_to_others = (0..COLD_TRIES).any(|_| {
        forget(&top.path().join("k"));
        state.get_cached("k", &(0..1)).is_none()
    });
    assert!(is_left_to_others, "what is on the disk is not waited for");
    state.get("k", None, None).expect("into memory");
    state.is_local = false;
    assert!(state.get_cached("k", &(0..1)).is_none(), "nobody knows how long it takes");
}

#[test]
fn a_reader_of_what_is_being_deleted_gets_all_of_it_or_nothing() {
    let (top, mut state) = on_disk();
    // Whatever it is mounted with.
    state.discards = true;
    let body = vec![Bytes::from(vec![7; 3 << 20])];
    let path = top.path().join("k");
    let pace = Pace::new(&Pacer::default(), Class::Delete, &Pressure::default());
    let read = |file: &_, range| read_at(file, range, None);
    for cached in [false, true] {
        state.put("k", &body, None).expect("put");
        let file = ObjectFile::of(File::open(&path).expect("open")).expect("a file");
        let file = file.expect("a file");
        let found = read_object(&file, None, read).expect("read").expect("it has a name");
        assert!(found.bytes == body[0]);
        let found = read_object(&file, Some(0..5), |file, range| {
            let left = state.delete("k", true).expect("delete").expect("to be emptied");
            files::empty(&left, Some(&pace)).expect("emptied");
            if cached { read_cached(file, range) } else { read_at(file, range, None) }
        });
        assert!(found.expect("no error").is_none(), "deleted while it was read");
        assert_eq!(file.file.metadata().expect("metadata").len(), 0);
    }
}

#[tokio::test]
async fn a_successful_put_leaves_no_temporary_file() {
    let top = temporary();
    let store = open(top.path());
    put(&store, "a").await.expect("put");
    assert_eq!(put(&store, "a").await.expect("put"), Put::Exists);
    assert_eq!(fs::read_dir(top.path().join(".tmp")).expect("list").count(), 0);
}

#[tokio::test]
async fn a_key_that_is_a_directory_is_an_error_and_not_an_object() {
    let top = temporary();
    let store = open(top.path());
    put(&store, "a/b").await.expect("put");
    for key in ["a", "a/b/c", "a/b/c/d"] {
        let error = put(&store, key).await.expect_err(key);
        assert!(matches!(error, StoreError::InvalidKey { .. }), "{key}: {error:?}");
        let error = store.get(key).await.expect_err(key);
        assert!(matches!(error, StoreError::NotFound { .. }), "{key}: {error:?}");
        store.delete(key).await.expect("nothing to delete");
    }
    assert_eq!(store.get("a/b").await.expect("get"), b"body"[..]);
}

#[tokio::test]
async fn a_directory_removed_from_outside_comes_back() {
    let top = temporary();
    let store = open(top.path());
    put(&store, "a/b/c").await.expect("put");
    fs::remove_dir_all(top.path().join("a")).expect("remove");
    fs::remove_dir_all(top.path().join(".tmp")).expect("remove");
    let error = put(&store, "a/b/c").await.expect_err("the directory is gone");
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(put(&store, "a/b/c").await.expect("put"), Put::Created);
}

/// An unmounted file system leaves an empty directory behind. Taken for the store, every volume in it would be gone.
#[tokio::test]
async fn a_root_that_was_replaced_is_an_error_and_not_an_empty_store() {
    let top = temporary();
    let root = top.path().join("store");
    let store = open(&root);
    put(&store, "a").await.expect("put");
    fs::rename(&root, top.path().join("elsewhere")).expect("rename");
    for replaced in [false, true] {
        if replaced {
            fs::create_dir(&root).expect("create");
        }
        for error in [
            store.list("", None).await.expect_err("not the store"),
            store.get("a").await.expect_err("not the store"),
            put(&store, "b").await.expect_err("not the store"),
            store.delete("a").await.expect_err("not the store"),
        ] {
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        }
    }
    assert_eq!(fs::read_dir(&root).expect("list").count(), 0, "nothing was written to it");
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_answered_but_reads() {
    let top = temporary();
    let directory = Directory::open("file://x".into(), top.path().to_owned()).expect("open");
    let part = || vec![Bytes::from_static(b"body")];
    directory.put_create("a", part()).await.expect("put");
    let failure = StoreError::SyncFailed {
        place: Place::new(&directory.state.url, "a"),
        path: top.path().to_owned(),
        source: Arc::new(io::Error::from_raw_os_error(5)),
    };
    *lock(&directory.state.failed) = Some(failure);
    for error in [
        directory.put_create("b", part()).await.expect_err("poisoned"),
        directory.put_create("a", part()).await.expect_err("poisoned"),
        directory.list("", None).await.expect_err("poisoned"),
        directory.delete("a").await.expect_err("poisoned"),
    ] {
        assert_eq!(error.kind(), weir_device::ErrorKind::Poisoned, "{error:?}");
    }
    assert_eq!(directory.get("a", None).await.expect("get").bytes, b"body"[..]);
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error_with_its_path() {
    let top = temporary();
    let path = top.path().join("file");
    fs::write(&path, b"").expect("create");
    for path in [path.clone(), path.join("below")] {
        let error = Store::open(&format!("file://{}", path.display())).expect_err("a file");
        let source = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(source.contains(&path.display().to_string()), "{source}");
    }
}

#[test]
fn kernel_errors_become_what_an_operator_can_act_on() {
    let error = |number| {
        let error = io::Error::from_raw_os_error(number);
        error_at(Place::new(&"file:///s".into(), "k"), Path::new("/s/k"), "writing", error)
    };
    // EACCES, ENOSPC, EDQUOT, EROFS, EIO.
    assert!(matches!(error(13), StoreError::Denied { .. }));
    assert!(matches!(error(28), StoreError::NoSpace { .. }));
    assert!(matches!(error(122), StoreError::NoSpace { .. }));
    assert!(matches!(error(30), StoreError::ReadOnly { .. }));
    assert!(matches!(error(5), StoreError::Unavailable { .. }));
    assert_eq!(error(28).to_string(), "store file:///s: k: no space left at /s/k");
}

/// Another process deletes an object whose file is held open here, and gives its bytes back step by step (D6).
#[tokio::test]
async fn a_held_file_answers_until_its_name_goes_and_never_with_what_it_has_left() {
    let top = temporary();
    let store = open(top.path());
    let body = Bytes::from(vec![7; 100_000]);
    store.put_create("a/b", vec![body.clone()]).await.expect("put");
    let path = top.path().join("a/b");
    let file = File::options().write(true).open(&path).expect("open");
    let part = || store.get_range("a/b", 50_000..54_096);
    assert_eq!(part().await.expect("read"), body[..4096]);
    assert_eq!(part().await.expect("held"), body[..4096]);
    fs::remove_file(&path).expect("remove");
    assert!(store.get_now("a/b", 50_000..54_096).is_none());
    assert!(matches!(part().await, Err(StoreError::NotFound { .. })));

    // Held anew, and then deleted and emptied between two reads.
    store.put_create("a/b", vec![body.clone()]).await.expect("put");
    assert_eq!(part().await.expect("read"), body[..4096]);
    fs::remove_file(&path).expect("remove");
    file.set_len(0).expect("emptied");
    assert!(matches!(part().await, Err(StoreError::NotFound { .. })));
    // By this process it is not held any longer than it has a name.
    store.put_create("a/b", vec![body.clone()]).await.expect("put");
    assert_eq!(part().await.expect("read"), body[..4096]);
    store.delete("a/b").await.expect("delete");
    assert!(matches!(part().await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn what_is_in_memory_is_answered_at_once_or_not_at_all() {
    // A file system of this host: elsewhere nothing is answered at once.
    let top = tempfile::tempdir_in(".").expect("temporary directory");
    let store = open(top.path());
    assert!(store.requests_are_cheap());
    assert!(store.get_now("a/b", 0..4).is_none());
    put(&store, "a/b").await.expect("put");
    for _ in 0..2 {
        if let Some(found) = store.get_now("a/b", 1..3) {
            assert_eq!(found, b"od"[..]);
        }
        assert!(store.get_now("a/b", 1..5).is_none(), "there are four bytes");
        assert!(store.get_now("a", 0..1).is_none(), "a directory");
    }
    let memory = Store::open("memory://").expect("open");
    put(&memory, "a").await.expect("put");
    assert_eq!(memory.get_now("a", 1..3).expect("in memory"), b"od"[..]);
    assert!(memory.get_now("a", 1..5).is_none());
}

#[tokio::test]
async fn reads_of_clients_that_ask_the_disk_are_measured_and_no_others() {
    let top = tempfile::tempdir_in(".").expect("temporary directory");
    let store = open(top.path());
    store.put_create("k", vec![Bytes::from(vec![7; 1 << 20])]).await.expect("put");
    let pacer = Pacer::default();
    let clients = store.measured(&pacer);
    let background = store.at_pace(Pace::new(&pacer, Class::Copy, &Pressure::default()));
    let is_seen = || pacer.seen().bytes_per_second.is_some();
    for store in [&store, &background] {
        forget(&top.path().join("k"));
        store.get_range("k", 0..4096).await.expect("get");
        assert!(!is_seen(), "no client");
    }
    for _ in 0..COLD_TRIES {
        forget(&top.path().join("k"));
        clients.get_range("k", 0..4096).await.expect("get");
        if is_seen() {
            break;
        }
    }
    assert!(is_seen());
}

/// A ring that reads when it is asked, and does something to the file just before.
struct Reads<F>(F);

impl<F: Fn()> FileReads for Reads<F> {
    fn read(&self, file: &Arc<File>, mut buf: AlignedBuf, offset: u64) -> Option<FileRead> {
        self.0();
        let read = file.read_exact_at(&mut buf, offset);
        Some(Box::pin(std::future::ready((buf, read))))
    }
}

/// One whose disk is broken.
struct Failing;

impl FileReads for Failing {
    fn read(&self, _file: &Arc<File>, buf: AlignedBuf, _offset: u64) -> Option<FileRead> {
        let failure = Err(io::Error::from_raw_os_error(5));
        Some(Box::pin(std::future::ready((buf, failure))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_answers_no_read_is_asked_by_threads_alone() {
    let (_top, state) = on_disk();
    state.put("k", &[Bytes::from(vec![7; 8192])], None).expect("put");
    let cached = || state.get_cached("k", &(0..1)).is_some();
    assert_eq!(cached(), state.is_local);
    let [first, second] = [state.ask_disk(), state.ask_disk()];
    tokio::time::advance(READS_STALLED_AFTER - Duration::from_millis(1)).await;
    assert!(!state.is_stalled());
    first.answered();
    tokio::time::advance(READS_STALLED_AFTER - Duration::from_millis(1)).await;
    assert!(!state.is_stalled(), "one of the two came back");
    drop(state.ask_disk());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(state.is_stalled() && !cached());
    drop(second);
    assert!(!state.is_stalled());
    tokio::time::advance(READS_STALLED_AFTER).await;
    assert!(!state.is_stalled(), "nothing is on its way");
    assert_eq!(cached(), state.is_local);
}

#[tokio::test]
async fn a_held_file_is_read_by_the_thread_that_asks_as_long_as_it_is_the_object() {
    // A file system of this host: elsewhere nobody knows how long the thread would wait.
    let top = tempfile::tempdir_in(".").expect("temporary directory");
    let (store, pacer) = (open(top.path()), Pacer::default());
    let body = Bytes::from((0..100_000_u32).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
    store.put_create("a/b", vec![body.clone()]).await.expect("put");
    let (clients, buffers) = (store.measured(&pacer), BufferPool::new(1 << 20));
    let quiet = Reads(|| ());
    let range = 50_000..54_096_u64;
    assert!(clients.get_here("a/b", range.clone(), &quiet, &buffers).await.is_none(), "not held");
    let background = store.at_pace(Pace::new(&pacer, Class::Copy, &Pressure::default()));
    background.get_range("a/b", 0..5).await.expect("read");
    let found = clients.get_here("a/b", range.clone(), &quiet, &buffers).await;
    assert!(found.is_none(), "background work reads with a file of its own");
    store.get_range("a/b", 0..5).await.expect("read");
    let counted = store.counters();
    let got = clients.get_here("a/b", range.clone(), &quiet, &buffers).await.expect("held");
    assert_eq!(got, body[50_000..54_096]);
    assert!(pacer.seen().bytes_per_second.is_some(), "a client read from the disk");
    let after = store.counters();
    assert_eq!((after.gets, after.bytes_down), (counted.gets + 1, counted.bytes_down + 4096));

    assert!(clients.get_here("a/b", range.clone(), &Failing, &buffers).await.is_none());
    assert_eq!(store.counters().failures, after.failures + 1, "what failed is counted");

    let past_its_end = 99_999..100_001;
    assert!(clients.get_here("a/b", past_its_end, &quiet, &buffers).await.is_none());
    assert!(background.get_here("a/b", range.clone(), &quiet, &buffers).await.is_none());
    // Deleted, and emptied, just before the read.
    let path = top.path().join("a/b");
    let delete = || {
        let file = File::options().write(true).open(&path).expect("open");
        fs::remove_file(&path).expect("remove");
        file.set_len(0).expect("empty");
        file.set_len(100_000).expect("zeroes in its place");
    };
    assert!(clients.get_here("a/b", range, &Reads(delete), &buffers).await.is_none());
}

/// Somebody restores an object into the store with a plain copy while a client asks for it.
#[tokio::test]
async fn a_file_that_was_held_while_it_was_short_is_read_whole_once_it_is() {
    let top = tempfile::tempdir_in(".").expect("temporary directory");
    let store = open(top.path());
    let (path, body) = (top.path().join("k"), vec![7; 10_000]);
    fs::write(&path, &body[..100]).expect("the begin of a copy");
    assert!(store.get_range("k", 4096..8192).await.is_err(), "it is not there yet");
    fs::write(&path, &body).expect("the rest");
    assert_eq!(store.get_range("k", 4096..8192).await.expect("read"), body[4096..8192]);
    assert!(store.get_now("k", 0..5).is_none_or(|found| found == body[..5]));
}

/// A store is set back, and what was newer is put aside; its next owner writes another object of the same name.
#[tokio::test]
async fn a_file_that_was_put_aside_is_not_read_for_the_one_in_its_place() {
    let top = tempfile::tempdir_in(".").expect("temporary directory");
    let store = open(top.path());
    let put = |byte| store.put_create("a/k", vec![Bytes::from(vec![byte; 10_000])]);
    put(1).await.expect("put");
    assert_eq!(store.get_range("a/k", 0..10).await.expect("read"), [1; 10][..]);
    fs::rename(top.path().join("a"), top.path().join("aside")).expect("put aside");
    fs::create_dir(top.path().join("a")).expect("make");
    put(2).await.expect("put");
    assert_eq!(store.get_range("a/k", 0..10).await.expect("read"), [2; 10][..]);
    assert!(store.get_now("a/k", 0..10).is_none_or(|found| found == [2; 10][..]));
}

/// A directory whose background work hardly gets leave: clients are there, and what was moved before is not paid for.
async fn crowded(top: &Path, class: Class) -> (Directory, Pressure, tokio::task::JoinHandle<()>) {
    let (pacer, pressure) = (Pacer::default(), Pressure::default());
    let clients = tokio::spawn({
        let pacer = pacer.clone();
        async move {
            loop {
                pacer.request(RequestKind::Write, 4096).ended();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let pace = Pace::new(&pacer, class, &pressure);
    pace.leave(1 << 30, 0).await.used();
    let directory = Directory::open("file://x".into(), top.to_owned()).expect("open");
    (Directory { pace: Some(pace), ..directory }, pressure, clients)
}

#[tokio::test]
async fn what_waits_for_a_place_needs_none_once_somebody_waits_for_it() {
    let top = temporary();
    let (directory, pressure, clients) = crowded(top.path(), Class::Upload).await;
    let places = Arc::clone(&directory.places);
    let all = u32::try_from(PACED_AT_A_TIME_MAX).expect("few");
    let _taken = places.acquire_many_owned(all).await.expect("all of them");
    let pace = directory.pace.as_ref();
    let place = async { directory.place(pace).await.is_some() };
    let press = async {
        tokio::time::sleep(PLACE_PAUSE / 2).await;
        pressure.set(Pressure::FULL);
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        futures_util::join!(place, press).0
    });
    assert_eq!(waited.await, Ok(false), "it goes without one");
    clients.abort();
}

#[tokio::test]
async fn a_place_is_taken_as_long_as_the_thread_is() {
    let top = temporary();
    let (directory, pressure, clients) = crowded(top.path(), Class::Upload).await;
    let mut put = Box::pin(directory.put_create("k", vec![Bytes::from(vec![7; 1 << 20])]));
    let free = || directory.places.available_permits();
    tokio::select! {
        biased;
        _ = &mut put => panic!("there is no leave"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    drop(put);
    assert_eq!(free(), PACED_AT_A_TIME_MAX - 1, "its thread waits for leave");
    pressure.set(Pressure::FULL);
    let ended = async {
        while free() < PACED_AT_A_TIME_MAX {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the thread ends");
    clients.abort();
}

#[tokio::test]
async fn a_deletion_that_waits_for_leave_holds_up_no_other() {
    let top = temporary();
    let (directory, _pressure, clients) = crowded(top.path(), Class::Delete).await;
    let foreground = Directory { pace: None, ..directory.again() };
    let delete = directory.delete("in-the-background");
    let other = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        foreground.delete("now").await
    };
    tokio::select! {
        biased;
        _ = delete => panic!("it had to wait for leave"),
        done = other => done.expect("nothing is there, and that is well"),
    }
    clients.abort();
}
