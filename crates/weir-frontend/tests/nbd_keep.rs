//! Connections that another process goes on with: left between two requests, and taken up again with all that was said.

mod support;

use std::rc::Rc;
use std::time::Duration;

use support::{
    Client, SIZE, Shelf, TestDevice, options, pattern, run_on_sockets as run, settle, wish,
};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use weir_frontend::nbd::{
    ConnectionOptions, ExportDirectory, ExportInfo, HandOff, Identity, Keeper, Kept,
    ListenerOptions, NotOffered, Places, Server, Sources, go_on, hand_off_clients,
    serve_handed_off,
};
use weir_nbd::{Attachment, ClientWish, CommandCode, CommandFlags, ReplyStyle};
use weir_net::{Listening, listen_on};

const NONE: CommandFlags = CommandFlags(0);

fn info() -> ExportInfo {
    ExportInfo {
        name: "disk".to_owned(),
        description: String::new(),
        size: SIZE,
        read_only: false,
        instance: Some([3; 16]),
        volume: None,
        earlier: [].into(),
    }
}

struct OneExport(HandOff);

impl ExportDirectory for OneExport {
    async fn find(&self, _: &str, _: &Identity) -> Result<(ExportInfo, HandOff), NotOffered> {
        Ok((info(), self.0.clone()))
    }

    async fn list(&self, _: &Identity) -> Vec<String> {
        Vec::new()
    }
}

/// A server of one device whose connections may stay.
struct Host {
    channel: HandOff,
    server: Server,
    keeper: Keeper,
}

impl Host {
    fn of(device: &Rc<TestDevice>, linger: Duration) -> Self {
        let keeper = Keeper::default();
        let connection = ConnectionOptions { keeper: Some(keeper.clone()), linger, ..options() };
        let exports = Rc::new(Shelf(Rc::clone(device)));
        let (channel, server) = serve_handed_off(exports, ListenerOptions::new(connection));
        Self { channel, server, keeper }
    }

    /// A client of it, and the listener that shook hands.
    async fn client(&self, wish: ClientWish) -> (Client<UnixStream>, Server) {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("nbd");
        let socket = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let listening = listen_on(Listening::Unix(socket)).expect("it listens");
        let exports = Rc::new(OneExport(self.channel.clone()));
        let listener = hand_off_clients(listening, exports, ListenerOptions::new(options()));
        let stream = UnixStream::connect(&path).await.expect("connected");
        (Client::connect(stream, wish).await, listener)
    }

    fn take_up(&self, kept: Kept) -> Result<(), &'static str> {
        let found = (info(), self.channel.clone());
        go_on(kept, found, (&Places::new(10), &Sources::default()), None)
    }
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn what_was_taken_is_answered_and_what_was_not_is_answered_by_the_next() {
    run(async {
        for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
            let device = TestDevice::new(SIZE);
            let host = Host::of(&device, LONG);
            let (mut client, listener) = host.client(wish("disk", style)).await;
            let (held, long) = (pattern(1, 4096), pattern(2, 200_000));
            let key = device.hold(8192);
            let first = client.send_write(NONE, 8192, &held).await;
            // The half of a payload that goes into its own buffer.
            let (second, mut bytes) =
                client.encode(CommandCode::WRITE, NONE, 65536, long.len() as u64);
            bytes.extend(&long);
            let (half, rest) = bytes.split_at(90_000);
            client.stream.write_all(half).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(20)).await;
            host.keeper.begin();
            let stopping = tokio::task::spawn_local(host.server.stop());
            settle().await;
            client.stream.write_all(rest).await.expect("sent");
            let third = client.send(CommandCode::READ, NONE, 65536, 200_000).await;
            let reply = client.receive().await.ok();
            assert_eq!(reply.cookie, second, "{style:?}");
            assert!(!stopping.is_finished(), "the first one has not been answered");
            key.send(()).expect("it waits");
            assert_eq!(client.receive().await.ok().cookie, first);
            stopping.await.expect("stopped");
            let kept = host.keeper.take().pop().expect("it stays");
            assert_eq!((kept.state.export.as_str(), kept.state.size), ("disk", SIZE));

            let next = Host::of(&device, LONG);
            next.take_up(kept).expect("it goes on");
            let reply = client.receive().await.ok();
            assert_eq!((reply.cookie, &reply.data), (third, &long), "{style:?}");
            assert_eq!(client.read(8192, 4096).await.ok().data, held);
            client.write(NONE, 8192, &long).await.ok();
            client.disconnect().await;
            next.server.stop().await;
            listener.stop().await;
        }
    });
}

#[test]
fn what_was_received_of_a_request_that_is_not_whole_goes_along() {
    run(async {
        for cut in [1, 14, 27, 28, 500] {
            let device = TestDevice::new(SIZE);
            let host = Host::of(&device, LONG);
            let (mut client, _listener) = host.client(wish("disk", ReplyStyle::Structured)).await;
            client.read(0, 512).await.ok();
            let data = pattern(4, 2000);
            let (cookie, mut bytes) = client.encode(CommandCode::WRITE, NONE, 4096, 2000);
            bytes.extend(&data);
            client.stream.write_all(&bytes[..cut]).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(20)).await;
            host.keeper.begin();
            host.server.stop().await;
            let kept = host.keeper.take().pop().expect("it stays");
            assert_eq!(kept.state.unread, bytes[..cut]);
            let next = Host::of(&device, LONG);
            next.take_up(kept).expect("it goes on");
            client.stream.write_all(&bytes[cut..]).await.expect("sent");
            assert_eq!(client.receive().await.ok().cookie, cookie, "{cut}");
            assert_eq!(client.read(4096, 2000).await.ok().data, data, "{cut}");
        }
    });
}

#[test]
fn what_does_not_end_in_time_ends_the_connection_and_so_does_a_server_that_keeps_none() {
    run(async {
        let device = TestDevice::new(SIZE);
        let host = Host::of(&device, Duration::from_millis(50));
        let (mut client, _listener) = host.client(wish("disk", ReplyStyle::Structured)).await;
        let _key = device.hold(0);
        client.send_write(NONE, 0, &[1; 512]).await;
        settle().await;
        host.keeper.begin();
        host.server.stop().await;
        assert!(host.keeper.take().is_empty());
        assert_eq!(client.try_receive().await, None, "the server hung up");

        let host = Host::of(&device, LONG);
        let (mut client, _listener) = host.client(wish("disk", ReplyStyle::Structured)).await;
        client.read(0, 512).await.ok();
        host.server.stop().await;
        assert!(host.keeper.take().is_empty(), "nobody has said that they stay");
        assert_eq!(client.try_receive().await, None, "the server hung up");
    });
}

#[test]
fn a_client_that_comes_again_by_itself_is_not_kept() {
    run(async {
        let device = TestDevice::new(SIZE);
        let host = Host::of(&device, LONG);
        let attachment =
            Attachment { session: [1; 16], generation: 1, exclusive: false, known: None };
        let attaches =
            ClientWish { attachment: Some(attachment), ..wish("disk", ReplyStyle::Extended) };
        let (mut client, _listener) = host.client(attaches).await;
        client.read(0, 512).await.ok();
        host.keeper.begin();
        host.server.stop().await;
        assert!(host.keeper.take().is_empty());
        assert_eq!(client.try_receive().await, None, "the server hung up");
    });
}

#[test]
fn a_connection_is_not_taken_up_where_it_would_be_another_one() {
    run(async {
        let device = TestDevice::new(SIZE);
        let kept = async || {
            let host = Host::of(&device, LONG);
            let (mut client, listener) = host.client(wish("disk", ReplyStyle::Simple)).await;
            client.read(0, 512).await.ok();
            host.keeper.begin();
            host.server.stop().await;
            (host.keeper.take().pop().expect("it stays"), client, listener)
        };
        let next = Host::of(&device, LONG);
        let refused = |kept, info| {
            let found = (info, next.channel.clone());
            go_on(kept, found, (&Places::new(10), &Sources::default()), None).unwrap_err()
        };
        let (one, mut client, _listener) = kept().await;
        let reason = refused(one, ExportInfo { size: SIZE - 512, ..info() });
        assert!(reason.contains("smaller"), "{reason}");
        assert_eq!(client.try_receive().await, None, "it ends");
        let (one, ..) = kept().await;
        let reason = refused(one, ExportInfo { read_only: true, ..info() });
        assert!(reason.contains("no writes"), "{reason}");
        let (one, ..) = kept().await;
        let full = Places::new(1);
        let found = || (info(), next.channel.clone());
        let (two, _second, _listener) = kept().await;
        go_on(two, found(), (&full, &Sources::default()), None).expect("a place");
        settle().await;
        go_on(one, found(), (&full, &Sources::default()), None).expect_err("no place is left");
    });
}
