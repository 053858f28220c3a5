//! What the simulated network does to two ends that talk over it.

use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::*;

type Stream = Box<dyn ByteStream>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(test)
}

fn place() -> Address {
    Address::Tcp("server:10809".to_owned())
}

async fn accept(listener: &mut Box<dyn Listener>) -> Stream {
    poll_fn(|cx| listener.poll_accept(cx)).await.expect("a connection").stream
}

/// A connection, its client's end and its server's.
async fn connected(network: &SimNetwork) -> (ConnectionId, Stream, Stream) {
    let mut listener = network.listen(&place()).await.expect("nobody listens yet");
    let (id, client) = network.connect_numbered(&place()).await.expect("somebody listens");
    let server = accept(&mut listener).await;
    (id, client, server)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect()
}

fn slow() -> SimNetworkOptions {
    SimNetworkOptions {
        delay: ms(2)..=ms(30),
        buffer_bytes: 5000,
        read_bytes_max: 700,
        short_one_in: 3,
        ..SimNetworkOptions::default()
    }
}

/// Sends a pattern one way; when each read came, and how long it was.
async fn course(seed: u64) -> Vec<(Duration, usize)> {
    let network = SimNetwork::new(seed, slow());
    let (_, mut client, mut server) = connected(&network).await;
    let (sent, begun) = (pattern(40_000), Instant::now());
    let send = async {
        client.write_all(&sent).await.expect("sent");
        client.shutdown().await.expect("ended");
    };
    let receive = async {
        let (mut received, mut reads, mut buf) = (Vec::new(), Vec::new(), vec![0; 2000]);
        loop {
            let bytes = server.read(&mut buf).await.expect("received");
            if bytes == 0 {
                return (received, reads);
            }
            received.extend_from_slice(&buf[..bytes]);
            reads.push((begun.elapsed(), bytes));
        }
    };
    let ((), (received, reads)) = futures_util::join!(send, receive);
    assert!(received == sent, "in order, and nothing else");
    let counters = network.counters();
    assert!(counters.full > 0 && counters.short > 0, "{counters:?}");
    reads
}

#[test]
fn bytes_arrive_late_in_order_and_in_other_pieces_and_a_seed_repeats() {
    run(async {
        let reads = course(7).await;
        assert!(reads[0].0 >= ms(2) && reads.iter().all(|(_, bytes)| *bytes <= 700));
        assert_eq!(course(7).await, reads);
        assert_ne!(course(8).await, reads);
    });
}

#[test]
fn a_slow_line_takes_its_time() {
    run(async {
        let options = SimNetworkOptions {
            bytes_per_second: Some(100_000),
            delay: ms(5)..=ms(5),
            ..SimNetworkOptions::default()
        };
        let (_, mut client, mut server) = connected(&SimNetwork::new(1, options)).await;
        let begun = Instant::now();
        client.write_all(&pattern(50_000)).await.expect("sent");
        server.read_exact(&mut vec![0; 50_000]).await.expect("received");
        assert!((ms(505)..ms(520)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    });
}

#[test]
fn slices_are_gathered() {
    run(async {
        let (_, mut client, mut server) =
            connected(&SimNetwork::new(1, SimNetworkOptions::default())).await;
        let slices = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
        let sent = poll_fn(|cx| Pin::new(&mut client).poll_write_vectored(cx, &slices)).await;
        assert_eq!(sent.expect("sent"), 5);
        let mut received = [0; 5];
        server.read_exact(&mut received).await.expect("received");
        assert_eq!(&received, b"abcde");
    });
}

#[test]
fn nobody_connects_where_nobody_listens_or_who_listens_is_out_of_reach() {
    run(async {
        let network = SimNetwork::new(1, SimNetworkOptions::default());
        let refused = async || network.connect(&place()).await.err().map(|error| error.kind());
        assert_eq!(refused().await, Some(ErrorKind::ConnectionRefused));
        let listener = network.listen(&place()).await.expect("nobody listens yet");
        let twice = network.listen(&place()).await.err().expect("somebody listens");
        assert_eq!(twice.kind(), ErrorKind::AddrInUse);
        network.refuse(&place(), true);
        assert_eq!(refused().await, Some(ErrorKind::ConnectionRefused));
        network.refuse(&place(), false);
        let mut waiting = network.connect(&place()).await.expect("somebody listens");
        drop(listener);
        assert_eq!(refused().await, Some(ErrorKind::ConnectionRefused));
        assert_eq!(waiting.read(&mut [0; 4]).await.expect("closed"), 0, "it was never accepted");
        assert_eq!(network.counters().refused, 3);
    });
}

#[test]
fn a_connection_is_lost_in_the_middle_of_a_message() {
    run(async {
        let network = SimNetwork::new(1, slow());
        let (id, mut client, mut server) = connected(&network).await;
        network.reset_after(id, Side::Server, 1234);
        let send = async { client.write_all(&pattern(40_000)).await };
        let receive = async {
            let mut received = Vec::new();
            let error = server.read_to_end(&mut received).await.expect_err("lost");
            (error.kind(), received)
        };
        let (sent, (kind, received)) = futures_util::join!(send, receive);
        assert_eq!(sent.expect_err("lost").kind(), ErrorKind::ConnectionReset);
        assert_eq!((kind, received), (ErrorKind::ConnectionReset, pattern(1234)));
        assert_eq!(network.counters().resets, 1);
    });
}

#[test]
fn what_is_under_way_is_gone_with_its_connection() {
    run(async {
        let network = SimNetwork::new(1, slow());
        let (id, mut client, mut server) = connected(&network).await;
        client.write_all(b"on its way").await.expect("sent");
        network.reset(id);
        let error = server.read(&mut [0; 10]).await.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_silent_connection_tells_nobody_until_it_is_given_up() {
    run(async {
        let network = SimNetwork::new(1, SimNetworkOptions::default());
        let (id, mut client, mut server) = connected(&network).await;
        client.write_all(b"before").await.expect("sent");
        network.silence(id);
        let begun = Instant::now();
        // It takes what it has room for; then it waits as well.
        client.write_all(&vec![0; (64 << 10) - 6]).await.expect("taken");
        assert!(client.write(b"more").now_or_never().is_none());
        let unheard = timeout(ms(60_000), server.read(&mut [0; 10])).await;
        assert!(unheard.is_err(), "nothing arrives");
        drop(client);
        assert!(!network.has_end(id, Side::Client) && network.has_end(id, Side::Server));
        let error = server.read(&mut [0; 10]).await.expect_err("given up");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), Duration::from_secs(120));
    });
}

#[test]
fn a_reader_can_tell_when_what_it_read_had_been_written() {
    run(async {
        let options = SimNetworkOptions { delay: ms(50)..=ms(50), ..SimNetworkOptions::default() };
        let network = SimNetwork::new(1, options);
        let (id, mut client, mut server) = connected(&network).await;
        let first = Instant::now();
        client.write_all(b"one").await.expect("sent");
        tokio::time::sleep(ms(5)).await;
        client.write_all(b"two").await.expect("sent");
        tokio::time::sleep(ms(100)).await;
        for (text, at) in [(b"one", first), (b"two", first + ms(5))] {
            let mut buf = [0; 100];
            assert_eq!(server.read(&mut buf).await.expect("received"), 3, "each by itself");
            assert_eq!(&buf[..3], text);
            assert_eq!(network.read_written_at(id, Side::Server), Some(at));
        }
    });
}

#[test]
fn a_stalled_connection_goes_on() {
    run(async {
        let network = SimNetwork::new(1, SimNetworkOptions::default());
        let (id, mut client, mut server) = connected(&network).await;
        network.stall(id, ms(500));
        let begun = Instant::now();
        client.write_all(b"later").await.expect("sent");
        server.read_exact(&mut [0; 5]).await.expect("received");
        assert_eq!(begun.elapsed(), ms(500));
    });
}

#[test]
fn an_end_that_is_dropped_closes_or_resets_its_connection() {
    run(async {
        let (mut closed, mut reset) = (0, 0);
        for seed in 0..40 {
            let network = SimNetwork::new(seed, slow());
            let (id, mut client, mut server) = connected(&network).await;
            client.write_all(b"unread").await.expect("sent");
            server.write_all(b"answer").await.expect("sent");
            drop(server);
            network.dropped(id, Side::Server).await;
            let mut received = Vec::new();
            match client.read_to_end(&mut received).await {
                Ok(_) => {
                    assert_eq!(received, b"answer", "what was sent before arrives");
                    closed += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    reset += 1;
                }
            }
            assert!(client.write(b"x").await.is_err());
            drop(client);
            assert!(network.connections().is_empty());
        }
        assert!(closed > 5 && reset > 5, "{closed} closed, {reset} reset");
    });
}

#[test]
fn an_end_goes_to_another_thread_with_what_it_has_not_read() {
    run(async {
        let (_, mut client, server) = connected(&SimNetwork::new(1, slow())).await;
        client.write_all(b"unread").await.expect("sent");
        let mut server = server.detach().expect("detached").attach().expect("attached");
        let mut received = [0; 6];
        server.read_exact(&mut received).await.expect("received");
        assert_eq!(&received, b"unread");
    });
}
