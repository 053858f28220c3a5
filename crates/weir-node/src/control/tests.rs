use tokio::task::LocalSet;
use weir_device::DeviceError;

use super::*;
use crate::sockets::bind_unix;

struct Volume;

impl Handler for Volume {
    fn status(&self) -> Status {
        Status { name: "demo".to_owned(), pending_bytes: 42, ..Status::default() }
    }

    async fn flush(&self, scope: FlushScope) -> Result<(), NodeError> {
        if scope == FlushScope::Store {
            tokio::time::sleep(PROGRESS_INTERVAL * 3).await;
            return Ok(());
        }
        Err(DeviceError::new(ErrorKind::Poisoned, "no more").into())
    }
}

async fn with_server<T>(test: impl AsyncFnOnce(&Path) -> T) -> T {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("s");
    let (listener, _bound) = bind_unix(&path, 0o600).unwrap();
    let local = LocalSet::new();
    local.spawn_local(serve(listener, Rc::new(Volume)));
    local.run_until(test(&path)).await
}

async fn raw(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let mut answer = String::new();
    // The server may hang up on nonsense before it has read all of it.
    if stream.write_all(bytes).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = stream.read_to_string(&mut answer).await;
    }
    answer
}

async fn client(path: &Path) -> Client {
    Client::connect(path, "demo").await.unwrap().expect("somebody listens")
}

#[tokio::test]
async fn verbs_reach_the_volume() {
    with_server(async |path| {
        assert_eq!(client(path).await.process().to_string(), std::process::id().to_string());
        assert_eq!(client(path).await.status().await.unwrap(), Volume.status());
        let error =
            client(path).await.flush(FlushScope::LocalDisk, true, |_| {}).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Poisoned, "no more".to_owned()));
    })
    .await;
}

#[tokio::test]
async fn a_flush_that_nobody_waits_for_is_answered_at_once() {
    with_server(async |path| {
        client(path).await.flush(FlushScope::LocalDisk, false, |_| {}).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn long_work_reports_progress() {
    with_server(async |path| {
        let mut seen = Vec::new();
        client(path)
            .await
            .flush(FlushScope::Store, true, |pending| seen.push(pending))
            .await
            .unwrap();
        assert!(!seen.is_empty() && seen.iter().all(|&pending| pending == 42), "{seen:?}");
    })
    .await;
}

#[tokio::test]
async fn nonsense_costs_one_connection() {
    with_server(async |path| {
        assert!(raw(path, b"{}\n").await.contains("not understood"));
        assert!(
            raw(path, b"{\"request\":\"flush\",\"remote\":1}\n").await.contains("not understood")
        );
        assert!(raw(path, b"").await.contains("not understood"));
        raw(path, &vec![b'x'; 1 << 20]).await;
        assert_eq!(client(path).await.status().await.unwrap().name, "demo");
    })
    .await;
}

#[tokio::test]
async fn nobody_there_is_not_an_error() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("s");
    assert!(Client::connect(&path, "demo").await.unwrap().is_none());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(Client::connect(&path, "demo").await.unwrap().is_none());
}
