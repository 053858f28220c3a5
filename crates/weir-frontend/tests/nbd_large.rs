//! Requests that are larger than what a connection holds, memory that is short, and clients that do not get on.

mod support;

use std::rc::Rc;
use std::time::Duration;

use support::{
    Client, STYLES, TestDevice, content, options, pattern, run, serve, serve_with, settle, wish,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use weir_device::{ErrorKind, OperationKind};
use weir_frontend::nbd::{ConnectionOptions, NbdError, RequestMemory};
use weir_nbd::limits::PAYLOAD_BYTES_MAX;
use weir_nbd::{CommandCode, CommandFlags, ErrorCode, ReplyStyle};

const NONE: CommandFlags = CommandFlags(0);
const MIB: u64 = 1 << 20;

/// Longer than any client sends at a time, and no multiple of anything.
const LARGE: u64 = 47 * MIB + 4099;

fn repeated(seed: u64, len: u64) -> Vec<u8> {
    let (part, len) = (pattern(seed, 65_537), usize::try_from(len).expect("it fits"));
    let mut bytes = part.repeat(len / part.len() + 1);
    bytes.truncate(len);
    bytes
}

#[test]
fn requests_beyond_what_is_advertised_are_served_in_pieces() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(1 << 30);
            let mut client = Client::connect(serve(&device).0, wish("disk", style)).await;
            let data = repeated(5, LARGE);
            client.write(CommandFlags::FUA, 1017, &data).await.ok();
            assert!(device.calls.borrow().iter().all(|call| call.fua), "every piece");
            assert!(content(&device, 1017, data.len()).await == data, "{style:?}");
            assert!(client.read(1017, LARGE).await.ok().data == data, "{style:?}");
            let longest = device.calls.borrow().iter().map(|call| call.len).max();
            assert_eq!(longest, Some(MIB), "{style:?}");
            assert!(device.bytes_in_flight_max.get() <= 16 * MIB);
            assert_eq!(client.read(5000, 3).await.ok().data, data[3983..3986]);
        }
    });
}

#[test]
fn a_read_that_may_not_be_cut_up_is_one_chunk() {
    run(async {
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let device = TestDevice::new(1 << 30);
            let mut client = Client::connect(serve(&device).0, wish("disk", style)).await;
            let length = u64::from(PAYLOAD_BYTES_MAX);
            let data = repeated(7, length);
            client.write(NONE, 0, &data).await.ok();
            let (_, request) = client.encode(CommandCode::READ, CommandFlags::DF, 0, length);
            client.stream.write_all(&request).await.unwrap();
            let head = if style == ReplyStyle::Extended { 32 + 8 } else { 20 + 8 };
            let mut bytes = vec![0; head + data.len()];
            client.stream.read_exact(&mut bytes).await.unwrap();
            assert!(bytes[head..] == data);
            let too_long = client.call(CommandCode::READ, CommandFlags::DF, 0, length + 1).await;
            assert_eq!(too_long.error, Some(ErrorCode::Overflow));
        }
    });
}

#[test]
fn a_read_that_fails_in_the_middle_is_an_error_where_the_reply_can_say_so() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(1 << 30);
            let (stream, served) = serve(&device);
            let mut client = Client::connect(stream, wish("disk", style)).await;
            let key = device.hold(2 * MIB);
            client.send(CommandCode::READ, NONE, 0, 8 * MIB).await;
            settle().await;
            device.failure.set(Some(ErrorKind::Corrupt));
            key.send(()).unwrap();
            if style == ReplyStyle::Simple {
                assert_eq!(
                    client.try_receive().await,
                    None,
                    "the bytes that were announced are missing"
                );
                assert!(matches!(served.ended().await, Err(NbdError::ReadFailed { .. })));
            } else {
                assert_eq!(client.receive().await.error, Some(ErrorCode::Io));
                device.failure.set(None);
                assert_eq!(client.read(0, 3).await.ok().data, [0; 3], "the connection goes on");
            }
        }
    });
}

#[test]
fn a_long_write_that_fails_is_an_error_and_the_stream_stays_in_step() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(1 << 30);
            let mut client = Client::connect(serve(&device).0, wish("disk", style)).await;
            device.failure.set(Some(ErrorKind::NoSpace));
            let reply = client.write(NONE, 5, &repeated(1, 9 * MIB)).await;
            assert_eq!(reply.error, Some(ErrorCode::NoSpace));
            device.failure.set(None);
            client.write(NONE, 0, b"in step").await.ok();
            assert_eq!(client.read(0, 7).await.ok().data, b"in step");
        }
    });
}

#[test]
fn one_piece_that_fails_fails_the_long_write_though_others_end_well_after_it() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let mut client = Client::connect(serve(&device).0, wish("disk", STYLES[0])).await;
        let (fails, ends_well) = (device.hold(2 * MIB), device.hold(4 * MIB));
        client.send_write(NONE, 0, &repeated(1, 9 * MIB)).await;
        settle().await;
        device.failure.set(Some(ErrorKind::NoSpace));
        drop(fails);
        settle().await;
        device.failure.set(None);
        drop(ends_well);
        assert_eq!(client.receive().await.error, Some(ErrorCode::NoSpace));
    });
}

#[test]
fn a_write_that_can_be_whole_is_one() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let mut client = Client::connect(serve(&device).0, wish("disk", STYLES[0])).await;
        for length in [4 * MIB, 4 * MIB + 1] {
            device.calls.borrow_mut().clear();
            client.write(NONE, 0, &repeated(1, length)).await.ok();
            let pieces = device.calls.borrow().len();
            assert_eq!(pieces, if length == 4 * MIB { 1 } else { 5 });
        }
    });
}

#[test]
fn half_a_long_write_ends_with_its_connection() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let (stream, served) = serve(&device);
        let mut client = Client::connect(stream, wish("disk", STYLES[1])).await;
        let (_, mut bytes) = client.encode(CommandCode::WRITE, NONE, 0, 32 * MIB);
        bytes.extend(repeated(3, 9 * MIB + 5));
        client.stream.write_all(&bytes).await.unwrap();
        drop(client);
        assert!(matches!(served.ended().await, Err(NbdError::Truncated)));
        assert_eq!(device.calls.borrow().len(), 9, "the pieces that were whole");
        assert_eq!(Rc::strong_count(&device), 1);
    });
}

fn sharing(memory: &RequestMemory) -> ConnectionOptions {
    ConnectionOptions { memory: memory.clone(), ..options() }
}

/// A client that asks for much and takes nothing.
async fn takes_nothing(
    device: &Rc<TestDevice>,
    memory: &RequestMemory,
    style: ReplyStyle,
) -> Stuck {
    let (stream, served) = serve_with(device, sharing(memory), 8192);
    let mut client = Client::connect(stream, wish("disk", style)).await;
    for _ in 0..4 {
        let (_, bytes) = client.encode(CommandCode::READ, NONE, 0, 32 * MIB);
        client.stream.write_all(&bytes).await.expect("the server is there");
    }
    Stuck { client, served }
}

/// A client that stops in the middle of a write.
async fn sends_half(device: &Rc<TestDevice>, memory: &RequestMemory, length: u64) -> Stuck {
    let (stream, served) = serve_with(device, sharing(memory), 64 << 10);
    let mut client = Client::connect(stream, wish("disk", STYLES[1])).await;
    let (_, mut bytes) = client.encode(CommandCode::WRITE, NONE, 0, length);
    bytes.resize(bytes.len() + usize::try_from(length - MIB / 2).expect("it fits"), 3);
    let sent = client.stream.write_all(&bytes);
    // One that gets no memory is not read from.
    let _ = tokio::time::timeout(Duration::from_millis(100), sent).await;
    Stuck { client, served }
}

struct Stuck {
    client: Client<DuplexStream>,
    served: support::Served,
}

#[test]
fn clients_that_are_stuck_neither_take_all_memory_nor_keep_it() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let memory = RequestMemory::new(32 << 20);
        let mut stuck = Vec::new();
        for index in 0..60 {
            stuck.push(takes_nothing(&device, &memory, STYLES[index % 3]).await);
            stuck.push(sends_half(&device, &memory, [2, 4, 32][index % 3] * MIB).await);
        }
        settle().await;
        let held = memory.shared_bytes();
        assert!((8 << 20..=32 << 20).contains(&held), "{held} bytes");
        let (stream, _served) = serve_with(&device, sharing(&memory), 1 << 20);
        let mut good = Client::connect(stream, wish("disk", STYLES[1])).await;
        let before = tokio::time::Instant::now();
        for index in 0..100 {
            let data = pattern(index, 4096);
            let at = 512 * MIB + index * 4096;
            good.write(NONE, at, &data).await.ok();
            assert_eq!(good.read(at, 4096).await.ok().data, data);
        }
        assert!(before.elapsed() < Duration::from_millis(1), "none of them waited");
        assert_eq!(good.read(512 * MIB, 9 * MIB).await.ok().data.len() as u64, 9 * MIB);
        // A write that has to be whole may wait, but not without end.
        let data = repeated(9, 4 * MIB);
        good.write(NONE, 600 * MIB, &data).await.ok();
        let waited = before.elapsed();
        assert!(waited <= Duration::from_secs(15), "{waited:?}");
        tokio::time::sleep(Duration::from_secs(125)).await;
        for Stuck { client, served } in stuck {
            let ended = served.ended().await;
            assert!(matches!(ended, Err(NbdError::Stalled { seconds: 10 | 60 })), "{ended:?}");
            drop(client);
        }
        good.read(0, 1).await.ok();
        drop(good);
        settle().await;
        assert_eq!(memory.shared_bytes(), 0);
    });
}

#[test]
fn a_client_that_is_idle_is_left_alone_and_holds_nothing() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let memory = RequestMemory::new(32 << 20);
        let (stream, _served) = serve_with(&device, sharing(&memory), 1 << 20);
        let mut client = Client::connect(stream, wish("disk", STYLES[1])).await;
        let requests: Vec<u8> =
            (0..1000).flat_map(|at| client.encode(CommandCode::TRIM, NONE, at, 1).1).collect();
        client.stream.write_all(&requests).await.unwrap();
        for _ in 0..1000 {
            client.receive().await.ok();
        }
        assert!(memory.shared_bytes() >= 200 << 10, "a window for many requests at a time");
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
        assert_eq!(memory.shared_bytes(), 0);
        client.write(NONE, 0, b"still there").await.ok();
        assert_eq!(client.read(0, 11).await.ok().data, b"still there");
    });
}

#[test]
fn a_client_that_waits_for_the_device_is_not_stalled() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let mut client = Client::connect(serve(&device).0, wish("disk", STYLES[1])).await;
        device.close_gate();
        client.send(CommandCode::READ, NONE, 0, 32 * MIB).await;
        client.send_write(NONE, 0, b"behind it").await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        device.open_gate();
        assert_eq!(client.receive().await.ok().data.len() as u64, 32 * MIB);
        client.receive().await.ok();
        let operations: Vec<_> = device.calls.borrow().iter().map(|c| c.kind).collect();
        assert_eq!(operations.last(), Some(&OperationKind::Write));
    });
}
