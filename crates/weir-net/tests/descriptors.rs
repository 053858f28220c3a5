//! A process that has no descriptor left. In a process of its own, as the limit holds for all threads.
#![allow(clippy::disallowed_methods, reason = "a test of real sockets, outside any test module")]

use std::fs::File;
use std::future::poll_fn;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use weir_device::{Address, Network};
use weir_net::HostNetwork;

const SENT: usize = 2 << 20;

/// Lowers the limit so that no descriptor can be opened, and tells what it was.
fn use_up_descriptors() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let lowest_free = File::open("/dev/null").expect("opened").as_raw_fd();
    let none = Rlimit { current: u64::try_from(lowest_free).ok(), ..before };
    setrlimit(Resource::Nofile, none).expect("lowered");
    assert!(File::open("/dev/null").is_err(), "no descriptor is left");
    before
}

#[tokio::test]
async fn a_full_socket_waits_without_a_descriptor_for_its_registration() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let mut listener = HostNetwork.listen(&Address::Unix(path.clone())).await.expect("listens");
    let mut theirs = UnixStream::connect(&path).expect("connected");
    let mut ours = poll_fn(|cx| listener.poll_accept(cx)).await.expect("accepted").stream;
    let before = use_up_descriptors();
    for is_given_back in [false, true] {
        let client = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            if is_given_back {
                setrlimit(Resource::Nofile, before).expect("raised");
            }
            theirs.read_exact(&mut vec![0; SENT]).expect("received");
            theirs
        });
        let metrics = tokio::runtime::Handle::current().metrics();
        let parked_before = metrics.worker_park_count(0);
        ours.write_all(&vec![1; SENT]).await.expect("sent");
        let parks = metrics.worker_park_count(0) - parked_before;
        assert!(parks < 500, "{parks}: it sleeps while it waits");
        theirs = client.join().expect("the client ends");
    }
}
