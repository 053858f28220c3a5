//! Listeners on real sockets.

mod support;

use std::rc::Rc;

use support::{Client, SIZE, STYLES, Shelf, TestDevice, options, pattern, settle, wish};
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::LocalSet;
use weir_device::ErrorKind;
use weir_frontend::nbd::{
    Door, ExportInfo, ListenerOptions, Listening, Routes, open_door, receive, serve_tcp, serve_unix,
};
use weir_nbd::{CommandFlags, ReplyStyle};

const NONE: CommandFlags = CommandFlags(0);

fn run<F: Future<Output = ()>>(test: F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

fn listener() -> ListenerOptions {
    ListenerOptions::new(options())
}

#[test]
fn clients_of_a_unix_socket_are_served_until_it_stops() {
    run(async {
        let device = TestDevice::new(SIZE);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let exports = Rc::new(Shelf(Rc::clone(&device)));
        let server = serve_unix(&path, exports, listener()).await.unwrap();
        let mut clients = Vec::new();
        for (seed, style) in STYLES.into_iter().enumerate() {
            let stream = UnixStream::connect(&path).await.unwrap();
            let mut client = Client::connect(stream, wish("disk", style)).await;
            let data = pattern(seed as u64, 300_000);
            client.write(NONE, 1, &data).await.ok();
            assert_eq!(client.read(1, 300_000).await.ok().data, data);
            clients.push(client);
        }
        server.stop().await;
        for client in &mut clients {
            assert_eq!(client.try_receive().await, None, "the server hung up");
        }
        assert!(!path.exists(), "the socket file is gone");
        assert_eq!(Rc::strong_count(&device), 1);
    });
}

#[test]
fn tcp_clients_are_served() {
    run(async {
        let device = TestDevice::new(SIZE);
        let exports = Rc::new(Shelf(Rc::clone(&device)));
        let server = serve_tcp("127.0.0.1:0", exports, listener()).await.unwrap();
        let address = server.address().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let mut client = Client::connect(stream, wish("disk", ReplyStyle::Extended)).await;
        let data = pattern(1, 3_000_000);
        client.write(NONE, 5, &data).await.ok();
        assert_eq!(client.read(5, 3_000_000).await.ok().data, data);
        drop(client);
        server.stop().await;
    });
}

#[test]
fn clients_beyond_the_limit_wait_for_their_turn() {
    run(async {
        let device = TestDevice::new(SIZE);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let exports = Rc::new(Shelf(Rc::clone(&device)));
        let options = ListenerOptions { connections_max: 1, ..listener() };
        let server = serve_unix(&path, exports, options).await.unwrap();
        let stream = UnixStream::connect(&path).await.unwrap();
        let mut first = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
        let stream = UnixStream::connect(&path).await.unwrap();
        let second =
            tokio::task::spawn_local(Client::connect(stream, wish("disk", ReplyStyle::Simple)));
        settle().await;
        assert!(!second.is_finished(), "the second client was not greeted");
        first.disconnect().await;
        second.await.unwrap().read(0, 1).await.ok();
        server.stop().await;
    });
}

#[test]
fn a_live_socket_is_left_alone_and_a_dead_one_replaced() {
    run(async {
        let device = TestDevice::new(SIZE);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let exports = Rc::new(Shelf(device));
        let server = serve_unix(&path, Rc::clone(&exports), listener()).await.unwrap();
        let error = serve_unix(&path, Rc::clone(&exports), listener()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains("nbd"), "{error}");
        server.stop().await;
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket file that nobody listens on");
        let server = serve_unix(&path, exports, listener()).await.unwrap();
        server.stop().await;
    });
}

#[test]
fn a_file_that_is_no_socket_is_never_replaced() {
    run(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("disk.img");
        tokio::fs::write(&path, b"precious").await.unwrap();
        let exports = Rc::new(Shelf(TestDevice::new(SIZE)));
        let error = serve_unix(&path, exports, listener()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert_eq!(tokio::fs::read(&path).await.unwrap(), b"precious");
    });
}

/// One export, whose door is on another thread.
struct OneDoor(Door);

impl Routes for OneDoor {
    async fn find(&self, name: &str) -> Option<(ExportInfo, Door)> {
        let info = ExportInfo {
            name: "disk".to_owned(),
            description: String::new(),
            size: SIZE,
            read_only: false,
            earlier: [].into(),
        };
        (name == "disk").then(|| (info, self.0.clone()))
    }

    async fn list(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the door leads to a thread of its own")]
fn a_client_is_served_on_the_thread_behind_the_door_that_it_chose() {
    let (ready, door) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        run(async {
            let device = TestDevice::new(SIZE);
            let (door, server) = open_door(Rc::new(Shelf(Rc::clone(&device))), listener());
            let clients = server.clients_counter();
            ready.send(door).unwrap();
            stopped.await.unwrap();
            assert_eq!(clients.get(), 2);
            server.stop().await;
            assert_eq!(clients.get(), 0);
            assert!(device.completed.get() >= 4, "the work was done here");
        });
    });
    let door = door.recv().unwrap();
    run(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let routes = Rc::new(OneDoor(door));
        let unix = receive(Listening::Unix(socket), Rc::clone(&routes), listener()).unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = receive(Listening::Tcp(socket), routes, listener()).unwrap();
        let stream = UnixStream::connect(&path).await.unwrap();
        let mut first = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
        let stream = TcpStream::connect(tcp.address().unwrap()).await.unwrap();
        let mut second = Client::connect(stream, wish("disk", ReplyStyle::Extended)).await;
        let data = pattern(3, 300_000);
        first.write(NONE, 1, &data).await.ok();
        assert_eq!(second.read(1, 300_000).await.ok().data, data);
        second.write(NONE, 7, &data).await.ok();
        assert_eq!(first.read(7, 300_000).await.ok().data, data);
        // Who was handed over stays when the listener goes.
        unix.stop().await;
        tcp.stop().await;
        assert_eq!(first.read(7, 300_000).await.ok().data, data);
        stop.send(()).unwrap();
        assert_eq!(first.try_receive().await, None, "the server hung up");
    });
    thread.join().unwrap();
}

#[test]
fn a_door_that_nobody_has_any_more_closes_when_the_last_client_left() {
    run(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (door, mut server) = open_door(Rc::new(Shelf(TestDevice::new(SIZE))), listener());
        let weak = door.downgrade();
        let unix = receive(Listening::Unix(socket), Rc::new(OneDoor(door)), listener()).unwrap();
        let connect = async || {
            let stream = UnixStream::connect(&path).await.unwrap();
            Client::connect(stream, wish("disk", ReplyStyle::Simple)).await
        };
        let (mut first, second) = (connect().await, connect().await);
        unix.stop().await;
        drop(second);
        let data = pattern(3, 1000);
        first.write(NONE, 1, &data).await.ok();
        assert!(weak.upgrade().is_some(), "a client is there");
        drop(first);
        server.deserted().await;
        assert!(weak.upgrade().is_none());
    });
}
