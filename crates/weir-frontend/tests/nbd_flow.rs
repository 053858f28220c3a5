//! How requests flow: concurrency, order, limits, clients that leave, and stopping.

mod support;

use std::rc::Rc;
use std::time::Duration;

use support::{
    Client, SIZE, STYLES, TestDevice, content, options, pattern, run, serve, serve_with, settle,
    wish,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_device::{ErrorKind, OperationKind};
use weir_frontend::nbd::{ConnectionOptions, NbdError};
use weir_nbd::{CommandCode, CommandFlags, ErrorCode, OptionRequest, ReplyStyle, encode_option};

const NONE: CommandFlags = CommandFlags(0);
const STRUCTURED: ReplyStyle = ReplyStyle::Structured;

#[test]
fn requests_run_side_by_side_and_answer_as_they_complete() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = Client::connect(serve(&device).0, wish("disk", style)).await;
            let first_key = device.hold(0);
            let second_key = device.hold(10);
            let first = client.send_write(NONE, 0, b"first").await;
            let second = client.send(CommandCode::READ, NONE, 10, 5).await;
            let third = client.send(CommandCode::FLUSH, NONE, 20, 0).await;
            assert_eq!(client.receive().await.cookie, third, "refused at once");
            settle().await;
            assert_eq!(device.in_flight.get(), 2);
            second_key.send(()).unwrap();
            assert_eq!(client.receive().await.cookie, second);
            first_key.send(()).unwrap();
            assert_eq!(client.receive().await.cookie, first);
        }
    });
}

#[test]
fn operations_start_in_the_order_of_their_requests() {
    run(async {
        let device = TestDevice::new(SIZE);
        let mut client = Client::connect(serve(&device).0, wish("disk", STRUCTURED)).await;
        device.close_gate();
        for index in 0..100_u32 {
            let data = pattern(1, 1 + 700 * usize::try_from(index).unwrap());
            client.send_write(NONE, u64::from(index), &data).await;
        }
        device.open_gate();
        for _ in 0..100 {
            client.receive().await.ok();
        }
        let offsets: Vec<u64> = device.calls.borrow().iter().map(|call| call.offset).collect();
        assert_eq!(offsets, (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn connections_share_the_device() {
    run(async {
        let device = TestDevice::new(SIZE);
        let mut first = Client::connect(serve(&device).0, wish("disk", STRUCTURED)).await;
        let mut second = Client::connect(serve(&device).0, wish("", ReplyStyle::Extended)).await;
        let key = device.hold(0);
        first.send_write(NONE, 0, b"held").await;
        second.write(NONE, 100, b"free").await.ok();
        assert_eq!(second.read(100, 4).await.ok().data, b"free");
        second.flush().await.ok();
        key.send(()).unwrap();
        first.receive().await.ok();
        assert_eq!(second.read(0, 4).await.ok().data, b"held");
    });
}

/// A flush is of the whole volume, whichever connection wrote: several connections rest on it.
#[test]
fn a_flush_reaches_the_device_though_another_connection_wrote() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut writer = Client::connect(serve(&device).0, wish("disk", style)).await;
            let mut other = Client::connect(serve(&device).0, wish("disk", style)).await;
            writer.write(NONE, 0, b"written here").await.ok();
            other.flush().await.ok();
            let calls: Vec<_> = device.calls.borrow().iter().map(|c| c.kind).collect();
            assert_eq!(calls, [OperationKind::Write, OperationKind::Flush], "flushed there");
        }
    });
}

fn limited(in_flight_max: usize, in_flight_bytes_max: usize) -> ConnectionOptions {
    ConnectionOptions { in_flight_max, in_flight_bytes_max, ..options() }
}

#[test]
fn requests_beyond_the_limit_wait_in_the_clients_socket() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, _served) = serve_with(&device, limited(8, 64 << 20), 1 << 20);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        device.close_gate();
        for offset in 0..50 {
            client.send_write(NONE, offset * 512, &pattern(offset, 512)).await;
        }
        settle().await;
        assert_eq!(device.in_flight.get(), 8);
        device.open_gate();
        for _ in 0..50 {
            client.receive().await.ok();
        }
        assert_eq!((device.in_flight_max.get(), device.completed.get()), (8, 50));
    });
}

#[test]
fn buffers_beyond_the_limit_wait_too_and_a_single_large_request_is_let_through() {
    run(async {
        for len in [10_000_usize, 100_000] {
            let bytes = len as u64;
            let device = TestDevice::new(SIZE);
            // Buffers are rounded up to powers of two: three of 16 KiB, none of 128 KiB beside another.
            let (stream, _served) = serve_with(&device, limited(100, 62_000), 4 << 20);
            let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
            device.close_gate();
            for seed in 0..9 {
                client.send_write(NONE, seed * bytes, &pattern(seed, len)).await;
                client.send(CommandCode::READ, NONE, 0, bytes).await;
            }
            settle().await;
            let expected = if len == 10_000 { 3 } else { 1 };
            assert_eq!(device.in_flight.get(), expected);
            device.open_gate();
            for _ in 0..18 {
                client.receive().await.ok();
            }
            assert_eq!(device.in_flight_max.get(), expected);
            let last = content(&device, 8 * bytes, len).await;
            assert_eq!(last, pattern(8, len));
        }
    });
}

#[test]
fn a_client_that_does_not_read_its_replies_is_held_back() {
    run(async {
        let device = TestDevice::new(SIZE);
        // A pipe of 8 KiB: after two replies of 4 KiB the server cannot send.
        let (stream, served) = serve_with(&device, limited(16, 1 << 20), 8192);
        let client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        let Client { stream, agreement, .. } = client;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let flood = tokio::task::spawn_local(async move {
            for cookie in 0..10_000 {
                let header = weir_nbd::RequestHeader {
                    flags: NONE,
                    command: CommandCode::READ,
                    cookie: weir_nbd::Cookie(cookie),
                    offset: 0,
                    length: 4096,
                };
                let mut bytes = Vec::new();
                header.encode(agreement.session.style, &mut bytes).unwrap();
                writer.write_all(&bytes).await.unwrap();
            }
            writer
        });
        settle().await;
        let taken = device.completed.get();
        assert!((16..=20).contains(&taken), "{taken} requests taken, 16 may be in flight");
        settle().await;
        assert_eq!(device.completed.get(), taken, "and it stays so");
        assert!(!flood.is_finished());
        // The client reads at last, and gets everything.
        let mut bytes = vec![0; 10_000 * (20 + 8 + 4096)];
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(device.completed.get(), 10_000);
        assert_eq!(device.in_flight_max.get(), 1, "a device that answers at once");
        drop((reader, flood.await.unwrap()));
        served.ended().await.unwrap();
    });
}

#[test]
fn a_flood_that_never_reads_and_leaves_frees_everything() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve_with(&device, limited(16, 1 << 20), 8192);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        for _ in 0..40 {
            let (_, bytes) = client.encode(CommandCode::READ, NONE, 0, 4096);
            let _ =
                tokio::time::timeout(Duration::from_secs(1), client.stream.write_all(&bytes)).await;
        }
        drop(client);
        assert!(matches!(served.ended().await, Err(NbdError::Connection { .. })));
        assert_eq!(Rc::strong_count(&device), 1, "the connection let the device go");
        assert_eq!(device.in_flight.get(), 0);
    });
}

#[test]
fn writes_in_flight_complete_when_the_client_disconnects() {
    run(async {
        for has_manners in [false, true] {
            let device = TestDevice::new(SIZE);
            let (stream, served) = serve(&device);
            let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
            device.close_gate();
            let data = pattern(3, 200_000);
            client.send_write(NONE, 7, &data).await;
            client.send_write(NONE, 300_000, b"small").await;
            client.send(CommandCode::TRIM, CommandFlags::FUA, 300_001, 2).await;
            settle().await;
            assert_eq!(device.in_flight.get(), 3);
            if has_manners {
                client.disconnect().await;
            }
            drop(client);
            settle().await;
            assert!(!served.task.is_finished(), "started operations are waited for");
            device.open_gate();
            let ended = served.ended().await;
            assert_eq!(device.completed.get(), 4, "and the flush of the trim");
            assert_eq!(content(&device, 7, data.len()).await, data);
            // Whoever leaves without reading is noticed when the replies are sent.
            assert!(matches!(ended, Err(NbdError::Connection { .. }) | Ok(())));
            assert_eq!(Rc::strong_count(&device), 1);
        }
    });
}

#[test]
fn replies_are_sent_after_the_client_said_goodbye() {
    run(async {
        // A long one runs in pieces.
        for bytes in [4, 1 << 20, 8 << 20] {
            let device = TestDevice::new(1 << 30);
            let (stream, served) = serve(&device);
            let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
            let key = device.hold(0);
            let cookie = client.send_write(NONE, 0, &pattern(1, bytes)).await;
            client.disconnect().await;
            settle().await;
            key.send(()).unwrap();
            assert_eq!(client.receive().await.ok().cookie, cookie, "{bytes}");
            assert_eq!(client.try_receive().await, None, "then the server hangs up");
            served.ended().await.unwrap();
        }
    });
}

#[test]
fn what_follows_a_goodbye_is_not_run() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        let (_, mut bytes) = client.encode(CommandCode::DISC, NONE, 0, 0);
        bytes.extend(client.encode(CommandCode::TRIM, NONE, 0, 100).1);
        client.stream.write_all(&bytes).await.unwrap();
        served.ended().await.unwrap();
        assert!(device.calls.borrow().is_empty());
    });
}

#[test]
fn half_a_request_is_never_run() {
    run(async {
        for style in STYLES {
            for len in [100, 100_000] {
                let device = TestDevice::new(SIZE);
                for end in [1, 27, 33, len + 27] {
                    let (stream, served) = serve(&device);
                    let mut client = Client::connect(stream, wish("disk", style)).await;
                    let (_, mut bytes) = client.encode(CommandCode::WRITE, NONE, 0, len as u64);
                    bytes.extend(pattern(1, len));
                    client.stream.write_all(&bytes[..end]).await.unwrap();
                    drop(client);
                    let ended = served.ended().await;
                    assert!(
                        matches!(ended, Err(NbdError::Truncated)),
                        "{style:?} {end}: {ended:?}"
                    );
                }
                assert!(device.calls.borrow().is_empty(), "{style:?} {len}");
                assert_eq!(Rc::strong_count(&device), 1);
            }
        }
    });
}

#[test]
fn a_refused_payload_that_never_arrives_is_truncated_too() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("frozen", STRUCTURED)).await;
        client.send(CommandCode::WRITE, NONE, 0, 100_000).await;
        assert!(client.receive().await.error.is_some(), "no need to wait for what is thrown away");
        drop(client);
        assert!(matches!(served.ended().await, Err(NbdError::Truncated)));
    });
}

#[test]
fn requests_arrive_in_pieces_of_any_size() {
    run(async {
        for (style, piece) in [(STYLES[0], 31), (STYLES[1], 997), (STYLES[2], 4099)] {
            let device = TestDevice::new(SIZE);
            let mut client = Client::connect(serve(&device).0, wish("disk", style)).await;
            let mut all = Vec::new();
            let mut written = Vec::new();
            for (seed, len) in [1, 300, 70_000, 5, 65_536, 65_535, 4096].into_iter().enumerate() {
                let data = pattern(seed as u64, len);
                let offset = written.len() as u64;
                all.extend(client.encode(CommandCode::WRITE, NONE, offset, len as u64).1);
                all.extend(&data);
                // A write that is refused on the way, with a payload to skip.
                all.extend(client.encode(CommandCode::WRITE, CommandFlags::DF, 0, len as u64).1);
                all.extend(&data);
                written.extend(data);
            }
            for piece in all.chunks(piece) {
                client.stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut refused = 0;
            for _ in 0..14 {
                refused += usize::from(client.receive().await.error.is_some());
            }
            assert_eq!(refused, 7);
            assert_eq!(content(&device, 0, written.len()).await, written);
        }
    });
}

#[test]
fn bytes_that_are_no_request_end_the_connection_but_not_what_is_in_flight() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        let key = device.hold(0);
        let cookie = client.send_write(NONE, 0, b"good").await;
        client.stream.write_all(&[0xee; 28]).await.unwrap();
        settle().await;
        key.send(()).unwrap();
        assert_eq!(client.receive().await.ok().cookie, cookie);
        assert_eq!(client.try_receive().await, None);
        let error = served.ended().await.unwrap_err();
        assert!(matches!(error, NbdError::Protocol { .. }));
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn stopping_finishes_what_is_in_flight_and_takes_nothing_more() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        let key = device.hold(0);
        let cookie = client.send_write(NONE, 0, b"in flight").await;
        settle().await;
        served.stop.send(()).unwrap();
        settle().await;
        client.send_write(NONE, 100, b"too late").await;
        settle().await;
        assert_eq!(device.calls.borrow().len(), 1);
        key.send(()).unwrap();
        assert_eq!(client.receive().await.ok().cookie, cookie);
        assert_eq!(client.try_receive().await, None);
        served.task.await.unwrap().unwrap();
    });
}

#[test]
fn stopping_does_not_wait_forever_for_a_client_that_does_not_read() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve_with(&device, options(), 8192);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        for _ in 0..5 {
            client.send(CommandCode::READ, NONE, 0, 8192).await;
        }
        settle().await;
        let before = tokio::time::Instant::now();
        served.stop.send(()).unwrap();
        served.task.await.unwrap().unwrap();
        assert_eq!(before.elapsed().as_secs(), 10, "the time of `linger`, on the test's clock");
    });
}

#[test]
fn stopping_does_not_wait_forever_for_a_device_that_does_not_answer() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        let _key = device.hold(0);
        client.send_write(NONE, 0, b"in flight").await;
        settle().await;
        let before = tokio::time::Instant::now();
        served.stop.send(()).unwrap();
        served.task.await.unwrap().unwrap();
        assert_eq!(before.elapsed().as_secs(), 10, "the time of `linger`, on the test's clock");
        assert_eq!(
            client.try_receive().await,
            None,
            "it is not answered, so the client asks again"
        );
    });
}

#[test]
fn a_handshake_has_its_time() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (mut stream, served) = serve(&device);
        stream.write_all(&[0, 0, 0, 3]).await.unwrap();
        let ended = served.ended().await;
        assert!(matches!(ended, Err(NbdError::HandshakeTimeout { seconds: 10 })));
        let (mut stream, served) = serve(&device);
        while stream.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        let ended = served.ended().await;
        assert!(matches!(ended, Err(NbdError::HandshakeTimeout { seconds: 30 })), "{ended:?}");
    });
}

#[test]
fn a_client_may_leave_between_options_and_not_within() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        drop(stream);
        assert!(matches!(served.ended().await, Ok(()) | Err(NbdError::Connection { .. })));
        let (mut stream, served) = serve(&device);
        stream.write_all(&[0, 0, 0, 3, b'I']).await.unwrap();
        stream.shutdown().await.unwrap();
        assert!(matches!(served.ended().await, Err(NbdError::Truncated)));
        let (mut stream, served) = serve(&device);
        let mut bytes = vec![0, 0, 0, 3];
        encode_option(&OptionRequest::Abort, &mut bytes).unwrap();
        stream.write_all(&bytes).await.unwrap();
        served.ended().await.unwrap();
    });
}

#[test]
fn a_client_may_send_its_first_requests_with_its_last_option() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (mut stream, _served) = serve(&device);
        let mut bytes = vec![0, 0, 0, 3];
        encode_option(&OptionRequest::ExportName("disk"), &mut bytes).unwrap();
        let header = weir_nbd::RequestHeader {
            flags: NONE,
            command: CommandCode::WRITE,
            cookie: weir_nbd::Cookie(42),
            offset: 5,
            length: 3,
        };
        header.encode(ReplyStyle::Simple, &mut bytes).unwrap();
        bytes.extend(b"abc");
        stream.write_all(&bytes).await.unwrap();
        let mut answer = [0; 18 + 10 + 16];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[28 + 8..], [0, 0, 0, 0, 0, 0, 0, 42]);
        assert_eq!(content(&device, 5, 3).await, b"abc");
    });
}

#[test]
fn dropping_the_connections_future_leaves_no_trace() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        device.close_gate();
        client.send_write(NONE, 0, b"held").await;
        settle().await;
        served.task.abort();
        assert!(served.task.await.unwrap_err().is_cancelled());
        assert_eq!(Rc::strong_count(&device), 1);
    });
}

#[test]
fn a_client_that_only_stopped_talking_gets_its_replies() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        let key = device.hold(0);
        let cookie = client.send_write(NONE, 0, b"last").await;
        client.stream.shutdown().await.unwrap();
        settle().await;
        key.send(()).unwrap();
        assert_eq!(client.receive().await.ok().cookie, cookie);
        served.ended().await.unwrap();
    });
}

#[test]
fn what_completes_after_the_device_was_superseded_is_an_error() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = Client::connect(serve(&device).0, wish("disk", style)).await;
            let key = device.hold(0);
            client.send_write(NONE, 0, b"late").await;
            client.send(CommandCode::READ, NONE, 10, 5).await;
            client.receive().await.ok();
            device.superseded.set(true);
            key.send(()).unwrap();
            assert_eq!(client.receive().await.error, Some(ErrorCode::Shutdown));
            assert_eq!(client.read(0, 4).await.error, Some(ErrorCode::Shutdown), "{style:?}");
        }
    });
}

#[test]
fn replies_that_wait_for_their_client_do_not_leave_once_the_device_was_superseded() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, served) = serve_with(&device, options(), 64 << 10);
        let mut client = Client::connect(stream, wish("disk", STRUCTURED)).await;
        for _ in 0..4 {
            client.send(CommandCode::READ, NONE, 0, 100_000).await;
        }
        settle().await;
        device.superseded.set(true);
        let mut received = Vec::new();
        client.stream.read_to_end(&mut received).await.unwrap();
        assert!(received.len() <= 64 << 10, "only what was in the socket: {}", received.len());
        assert!(matches!(served.ended().await, Err(NbdError::Stale)));
    });
}
