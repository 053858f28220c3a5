//! Listeners on real sockets.

mod support;

use std::path::Path;
use std::rc::Rc;

use support::{
    Client, SIZE, STYLES, Shelf, TestDevice, options, pattern, run_on_sockets as run, settle, wish,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use weir_device::{Address, ErrorKind};
use weir_frontend::nbd::{
    ConnectionOptions, ExportDirectory, ExportInfo, HandOff, Handshakes, Identity, ListenerOptions,
    NbdError, NotOffered, Places, Server, hand_off_clients, serve, serve_handed_off,
};
use weir_nbd::{CommandFlags, OptionRequest, ReplyStyle, encode_option};
use weir_net::{HostNetwork, Listening, listen_on};

const NONE: CommandFlags = CommandFlags(0);

async fn serve_unix(
    path: &Path,
    exports: Rc<Shelf>,
    options: ListenerOptions,
) -> Result<Server, NbdError> {
    serve(&HostNetwork, &Address::Unix(path.to_owned()), exports, options).await
}

/// Hands the clients of a socket off.
fn hand_off(listening: Listening, exports: Rc<OneExport>) -> Server {
    hand_off_clients(listen_on(listening).expect("it listens"), exports, listener())
}

fn port_of(server: &Server) -> String {
    server.address().expect("it listens").to_string()
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
        let server =
            serve(&HostNetwork, &Address::Tcp("127.0.0.1:0".to_owned()), exports, listener())
                .await
                .unwrap();
        let stream = TcpStream::connect(port_of(&server)).await.unwrap();
        let mut client = Client::connect(stream, wish("disk", ReplyStyle::Extended)).await;
        let data = pattern(1, 3_000_000);
        client.write(NONE, 5, &data).await.ok();
        assert_eq!(client.read(5, 3_000_000).await.ok().data, data);
        drop(client);
        server.stop().await;
    });
}

/// What the server answers to a wish to begin with `disk`: an option reply's code and message.
async fn go(stream: &mut UnixStream) -> (u32, String) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).await.expect("the server is there");
    let mut bytes = vec![0, 0, 0, 3];
    encode_option(&OptionRequest::Go { name: "disk", facts: Vec::new() }, &mut bytes)
        .expect("the server is there");
    stream.write_all(&bytes).await.expect("the server is there");
    let mut head = [0; 20];
    stream.read_exact(&mut head).await.expect("the server is there");
    let code = u32::from_be_bytes(head[12..16].try_into().expect("the server is there"));
    let length = u32::from_be_bytes(head[16..20].try_into().expect("the server is there"));
    let mut data = vec![0; usize::try_from(length).expect("the server is there")];
    stream.read_exact(&mut data).await.expect("the server is there");
    (code, String::from_utf8_lossy(&data).into_owned())
}

#[test]
fn a_client_beyond_the_limit_is_refused_before_the_export_is_handed_out() {
    run(async {
        let device = TestDevice::new(SIZE);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let places = Places::new(2);
        let exports = Rc::new(Shelf(Rc::clone(&device)));
        let connection = ConnectionOptions { places: places.clone(), ..options() };
        let server = serve_unix(&path, exports, ListenerOptions::new(connection)).await.unwrap();
        let stream = UnixStream::connect(&path).await.unwrap();
        let mut first = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
        let mut second = UnixStream::connect(&path).await.unwrap();
        let (code, message) = go(&mut second).await;
        assert_eq!(code, 0x8000_0002, "ERR_POLICY");
        assert!(message.contains("as many connections as one may have"), "{message}");
        assert_eq!((places.taken(), places.refused()), (1, 1));
        first.disconnect().await;
        assert_eq!(first.try_receive().await, None);
        // The same connection may ask again.
        let mut bytes = Vec::new();
        encode_option(&OptionRequest::Go { name: "disk", facts: Vec::new() }, &mut bytes).unwrap();
        second.write_all(&bytes).await.unwrap();
        let mut head = [0; 20];
        second.read_exact(&mut head).await.unwrap();
        assert_eq!(u32::from_be_bytes(head[12..16].try_into().unwrap()), 3, "INFO");
        server.stop().await;
        assert_eq!(places.taken(), 0);
    });
}

/// More than wait in a channel, and more than one listener took: all are served.
#[test]
fn hundreds_of_clients_of_one_export_are_served() {
    run(async {
        let device = TestDevice::new(SIZE);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (channel, server) = serve_handed_off(Rc::new(Shelf(device)), listener());
        let unix = hand_off(Listening::Unix(socket), Rc::new(OneExport(channel, SIZE)));
        let mut clients = Vec::new();
        for _ in 0..200 {
            let stream = UnixStream::connect(&path).await.unwrap();
            clients.push(Client::connect(stream, wish("disk", ReplyStyle::Structured)).await);
        }
        for client in &mut clients {
            client.read(0, 1).await.ok();
        }
        assert_eq!(server.clients(), 200);
        drop(clients);
        unix.stop().await;
        server.stop().await;
    });
}

#[test]
fn silent_peers_keep_nobody_out() {
    run(async {
        let device = TestDevice::new(SIZE);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let exports = Rc::new(Shelf(Rc::clone(&device)));
        let handshakes = Handshakes::new(8);
        let connection = ConnectionOptions { handshakes: handshakes.clone(), ..options() };
        let server = serve_unix(&path, exports, ListenerOptions::new(connection)).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..30 {
            silent.push(UnixStream::connect(&path).await.unwrap());
            settle().await;
        }
        let stream = UnixStream::connect(&path).await.unwrap();
        let mut client = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
        client.read(0, 1).await.ok();
        assert!(handshakes.running() <= 4, "{}", handshakes.running());
        let mut bytes = Vec::new();
        silent[0].read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes.len(), 18, "greeted, then cut off");
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

/// The longest that a test waits for a server to hang up.
const TURNED_AWAY: std::time::Duration = std::time::Duration::from_secs(10);

/// One export, which another thread serves, and the size that clients are told.
struct OneExport(HandOff, u64);

impl ExportDirectory for OneExport {
    async fn find(&self, name: &str, _: &Identity) -> Result<(ExportInfo, HandOff), NotOffered> {
        let info = ExportInfo {
            name: "disk".to_owned(),
            description: String::new(),
            size: self.1,
            read_only: false,
            instance: None,
            volume: None,
            earlier: [].into(),
        };
        (name == "disk").then(|| (info, self.0.clone())).ok_or(NotOffered::Unknown)
    }

    async fn list(&self, _: &Identity) -> Vec<String> {
        vec!["disk".to_owned()]
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the export is served by a thread of its own")]
fn a_client_is_served_on_the_thread_of_the_export_that_it_chose() {
    let (ready, channel) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        run(async {
            let device = TestDevice::new(SIZE);
            let (channel, server) =
                serve_handed_off(Rc::new(Shelf(Rc::clone(&device))), listener());
            let clients = server.clients_counter();
            ready.send(channel).unwrap();
            stopped.await.unwrap();
            assert_eq!(clients.get(), 2);
            server.stop().await;
            assert_eq!(clients.get(), 0);
            assert!(device.completed.get() >= 4, "the work was done here");
        });
    });
    let channel = channel.recv().unwrap();
    run(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let directory = Rc::new(OneExport(channel, SIZE));
        let unix = hand_off(Listening::Unix(socket), Rc::clone(&directory));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = hand_off(Listening::Tcp(socket), directory);
        let stream = UnixStream::connect(&path).await.unwrap();
        let mut first = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
        let stream = TcpStream::connect(port_of(&tcp)).await.unwrap();
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
fn a_client_that_was_handed_over_keeps_its_place_until_it_leaves() {
    run(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (channel, server) = serve_handed_off(Rc::new(Shelf(TestDevice::new(SIZE))), listener());
        let options = listener();
        let places = options.connection.places.clone();
        let listening = listen_on(Listening::Unix(socket)).expect("it listens");
        let unix = hand_off_clients(listening, Rc::new(OneExport(channel, SIZE)), options);
        let stream = UnixStream::connect(&path).await.unwrap();
        let mut client = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
        client.write(NONE, 1, &pattern(3, 1000)).await.ok();
        assert_eq!(places.taken(), 1);
        drop(client);
        unix.stop().await;
        server.stop().await;
        assert_eq!(places.taken(), 0);
    });
}

#[test]
fn a_client_that_was_told_another_size_than_the_volume_has_by_now_is_turned_away() {
    run(async {
        let directory = TempDir::new().unwrap();
        for (told, served) in [(SIZE, true), (SIZE + 4096, false), (SIZE - 4096, false)] {
            let path = directory.path().join(told.to_string());
            let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let (channel, server) =
                serve_handed_off(Rc::new(Shelf(TestDevice::new(SIZE))), listener());
            let directory = Rc::new(OneExport(channel, told));
            let unix = hand_off(Listening::Unix(socket), directory);
            let stream = UnixStream::connect(&path).await.unwrap();
            let mut client = Client::connect(stream, wish("disk", ReplyStyle::Simple)).await;
            if served {
                client.write(NONE, 1, &pattern(3, 1000)).await.ok();
            } else {
                let hung_up = tokio::time::timeout(TURNED_AWAY, client.try_receive()).await;
                assert_eq!(hung_up, Ok(None), "{told}");
            }
            drop(client);
            unix.stop().await;
            server.stop().await;
        }
    });
}

#[test]
fn a_channel_that_nobody_has_any_more_closes_when_the_last_client_left() {
    run(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (channel, mut server) =
            serve_handed_off(Rc::new(Shelf(TestDevice::new(SIZE))), listener());
        let weak = channel.downgrade();
        let unix = hand_off(Listening::Unix(socket), Rc::new(OneExport(channel, SIZE)));
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
        server.until_unused().await;
        assert!(weak.upgrade().is_none());
    });
}
