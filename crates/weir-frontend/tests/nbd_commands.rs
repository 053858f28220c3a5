//! Every command in every style: what reaches the device, what comes back, and what is refused.

mod support;

use std::rc::Rc;

use support::{
    Client, SIZE, SOURCE, STYLES, TestDevice, VOLUME, content, odd, pattern, run, serve, wish,
};
use tokio::io::DuplexStream;
use tokio::sync::Mutex;
use weir_device::{
    Body, ByteRange, Change, Device, DeviceError, DeviceInfo, ErrorKind, Extent, ExtentState,
    IoHeader, Operation, OperationKind, Reply, SharedBuf, conformance,
};
use weir_frontend::nbd::error_code;
use weir_nbd::limits::EXTENTS_MAX;
use weir_nbd::{
    ALLOCATION_CONTEXT, ClientWish, Command, CommandCode, CommandFlags, ErrorCode, ExtentStatus,
    ReplyStyle, TransmissionFlags,
};

const NONE: CommandFlags = CommandFlags(0);

async fn connected(device: &Rc<TestDevice>, style: ReplyStyle) -> Client<DuplexStream> {
    let (stream, _served) = serve(device);
    Client::connect(stream, wish("disk", style)).await
}

#[test]
fn what_is_written_is_read_back_at_any_offset_and_length() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            let lens = [1, 512, 4095, 4096, 65_535, 65_536, 65_537, 1_000_003];
            for (seed, len) in lens.into_iter().enumerate() {
                let data = pattern(seed as u64, len);
                let offset = SIZE - len as u64;
                client.write(NONE, offset, &data).await.ok();
                assert_eq!(
                    client.read(offset, len as u64).await.ok().data,
                    data,
                    "{style:?} {len}"
                );
                assert_eq!(content(&device, offset, len).await, data);
            }
        }
    });
}

#[test]
fn every_command_reaches_the_device_with_its_header_and_flags() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            let (fua, zero) = (
                CommandFlags::FUA,
                CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO).with(CommandFlags::FUA),
            );
            let seen = |kind, offset, len, fua, zero| support::Call {
                io: IoHeader::of_client(SOURCE, VOLUME),
                kind,
                offset,
                len,
                fua,
                no_hole: zero,
                fast: zero,
            };
            client.write(fua, 3, b"hello").await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::Write, 3, 5, true, false));
            client.write(NONE, 3, b"hello").await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::Write, 3, 5, false, false));
            client.read(2, 9).await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::Read, 2, 9, false, false));
            client.call(CommandCode::WRITE_ZEROES, zero, 1, 7).await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::WriteZeroes, 1, 7, true, true));
            client.call(CommandCode::WRITE_ZEROES, NONE, 1, 7).await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::WriteZeroes, 1, 7, false, false));
            client.call(CommandCode::TRIM, NONE, 4, 8).await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::Discard, 4, 8, false, false));
            client.call(CommandCode::CACHE, NONE, 5, 6).await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::Read, 5, 6, false, false));
            client.flush().await.ok();
            assert_eq!(device.last_call(), seen(OperationKind::Flush, 0, 0, false, false));
        }
    });
}

#[test]
fn a_trim_with_fua_is_followed_by_a_flush() {
    run(async {
        let device = TestDevice::new(SIZE);
        let mut client = connected(&device, ReplyStyle::Structured).await;
        client.call(CommandCode::TRIM, CommandFlags::FUA, 0, 8).await.ok();
        let operations: Vec<_> = device.calls.borrow().iter().map(|c| c.kind).collect();
        assert_eq!(operations, [OperationKind::Discard, OperationKind::Flush]);
    });
}

#[test]
fn cache_reads_ahead_in_pieces_and_not_without_end() {
    run(async {
        let device = TestDevice::new(1 << 30);
        let mut client = connected(&device, ReplyStyle::Structured).await;
        client.call(CommandCode::CACHE, NONE, 100, 600 << 10).await.ok();
        let pieces: Vec<_> = device.calls.borrow().iter().map(|c| (c.offset, c.len)).collect();
        let piece = 256 << 10;
        assert_eq!(pieces, [(100, piece), (100 + piece, piece), (100 + 2 * piece, 88 << 10)]);
        device.calls.borrow_mut().clear();
        client.call(CommandCode::CACHE, NONE, 0, 1 << 30).await.ok();
        let bytes: u64 = device.calls.borrow().iter().map(|c| c.len).sum();
        assert_eq!(bytes, 32 << 20);
        assert_eq!(device.bytes_in_flight_max.get(), piece);
    });
}

#[test]
fn empty_requests_succeed() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            assert_eq!(client.read(SIZE, 0).await.ok().data, b"");
            client.write(NONE, SIZE, b"").await.ok();
            client.call(CommandCode::TRIM, NONE, 0, 0).await.ok();
            client.call(CommandCode::WRITE_ZEROES, NONE, 0, 0).await.ok();
            client.call(CommandCode::CACHE, NONE, 0, 0).await.ok();
        }
    });
}

#[test]
fn block_status_tells_data_from_holes() {
    run(async {
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            assert_eq!(client.agreement.session.contexts.len(), 1);
            client.write(NONE, 65_536, &[1; 65_536]).await.ok();
            let status = |length, flags| ExtentStatus { length, flags };
            let all = client.call(CommandCode::BLOCK_STATUS, NONE, 10, SIZE - 10).await.ok();
            let rest = SIZE - 131_072;
            assert_eq!(all.extents, [status(65_526, 3), status(65_536, 0), status(rest, 3)]);
            let one = client.call(
                CommandCode::BLOCK_STATUS,
                CommandFlags::REQ_ONE,
                65_537,
                SIZE - 65_537,
            );
            assert_eq!(one.await.ok().extents, [status(65_535, 0)]);
            device.extents_max.set(2);
            let short = client.call(CommandCode::BLOCK_STATUS, NONE, 0, SIZE).await.ok();
            assert_eq!(short.extents, [status(65_536, 3), status(65_536, 0)]);
        }
    });
}

/// A client rounds a hole up to its own unit: qemu-img to 512 bytes. What it rounds away would be lost.
#[test]
fn a_block_that_holds_a_byte_of_data_is_data() {
    run(async {
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            let status = |length, flags| ExtentStatus { length, flags };
            device.data.replace(Some((100_100, 103_100)));
            let all = client.call(CommandCode::BLOCK_STATUS, NONE, 0, SIZE).await.ok();
            let (start, end) = (98_304, 106_496);
            assert_eq!(
                all.extents,
                [status(start, 3), status(end - start, 0), status(SIZE - end, 3)]
            );
            let before = client.call(CommandCode::BLOCK_STATUS, NONE, 98_000, 2_000).await.ok();
            assert_eq!(before.extents, [status(304, 3), status(1_696, 0)]);
            let one = client.call(CommandCode::BLOCK_STATUS, CommandFlags::REQ_ONE, 99_000, 1_000);
            assert_eq!(one.await.ok().extents, [status(1_000, 0)]);
        }
    });
}

#[test]
fn a_device_that_reports_no_extents_is_an_error_not_an_empty_answer() {
    run(async {
        let device = TestDevice::new(SIZE);
        let mut client = connected(&device, ReplyStyle::Structured).await;
        device.extents_max.set(0);
        let reply = client.call(CommandCode::BLOCK_STATUS, NONE, 0, SIZE).await;
        assert_eq!(reply.error, Some(ErrorCode::Io));
    });
}

#[test]
fn bad_requests_are_refused_and_the_stream_stays_in_step() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            let data = pattern(1, 100_000);
            let past = SIZE - 99_999;
            assert_eq!(client.write(NONE, past, &data).await.error, Some(ErrorCode::NoSpace));
            assert_eq!(client.write(NONE, SIZE + 1, b"x").await.error, Some(ErrorCode::NoSpace));
            let flags = CommandFlags::DF.with(CommandFlags(1 << 9));
            assert_eq!(client.write(flags, 0, &data).await.error, Some(ErrorCode::Invalid));
            for (command, flags, offset, length, code) in [
                (CommandCode::READ, NONE, SIZE, 1, ErrorCode::Invalid),
                (CommandCode::READ, NONE, u64::MAX, 2, ErrorCode::Invalid),
                (CommandCode::TRIM, NONE, SIZE - 1, 2, ErrorCode::Invalid),
                (CommandCode::CACHE, NONE, SIZE, 2, ErrorCode::Invalid),
                (CommandCode::WRITE_ZEROES, NONE, SIZE, 2, ErrorCode::NoSpace),
                (CommandCode::FLUSH, NONE, 0, 4, ErrorCode::Invalid),
                (CommandCode(8), NONE, 0, 4, ErrorCode::Invalid),
                (CommandCode(0x7777), NONE, 0, 4, ErrorCode::Invalid),
                (CommandCode::READ, CommandFlags::NO_HOLE, 0, 4, ErrorCode::Invalid),
                (CommandCode::TRIM, CommandFlags::REQ_ONE, 0, 4, ErrorCode::Invalid),
                (CommandCode::BLOCK_STATUS, NONE, 0, SIZE + 1, ErrorCode::Invalid),
            ] {
                let reply = client.call(command, flags, offset, length).await;
                assert_eq!(reply.error, Some(code), "{style:?} {command:?}");
                assert_eq!(reply.message.is_empty(), style == ReplyStyle::Simple);
            }
            assert!(device.calls.borrow().is_empty(), "nothing of this reached the device");
            client.write(NONE, 0, b"still in step").await.ok();
            assert_eq!(client.read(0, 13).await.ok().data, b"still in step");
        }
    });
}

#[test]
fn extended_requests_reach_beyond_32_bits() {
    run(async {
        let size = 1 << 40;
        let device = TestDevice::new(size);
        let mut client = connected(&device, ReplyStyle::Extended).await;
        client.call(CommandCode::TRIM, NONE, 1, size - 1).await.ok();
        assert_eq!(device.last_call().len, size - 1);
        client.call(CommandCode::WRITE_ZEROES, NONE, 0, size).await.ok();
        assert_eq!(device.last_call().len, size);
    });
}

#[test]
fn a_read_only_export_says_so_and_refuses_changes() {
    run(async {
        let device = TestDevice::new(SIZE);
        let (stream, _served) = serve(&device);
        let mut client = Client::connect(stream, wish("frozen", ReplyStyle::Structured)).await;
        assert!(client.agreement.session.flags.contains(TransmissionFlags::READ_ONLY));
        assert_eq!(client.write(NONE, 0, b"no").await.error, Some(ErrorCode::NotPermitted));
        for command in [CommandCode::TRIM, CommandCode::WRITE_ZEROES] {
            let reply = client.call(command, NONE, 0, 4).await;
            assert_eq!(reply.error, Some(ErrorCode::NotPermitted));
        }
        assert_eq!(client.read(0, 4).await.ok().data, [0; 4]);
        client.flush().await.ok();
        assert!(device.calls.borrow().iter().all(|call| call.kind != OperationKind::Write));
    });
}

/// Every kind with its number on the wire, for a write and for a fast zero.
const TABLE: [(ErrorKind, u32, u32); 13] = [
    (ErrorKind::Retry, 5, 5),
    (ErrorKind::Busy, 5, 5),
    (ErrorKind::Invalid, 22, 22),
    (ErrorKind::Fenced, 108, 108),
    (ErrorKind::Corrupt, 5, 5),
    (ErrorKind::Poisoned, 5, 5),
    (ErrorKind::NoSpace, 28, 28),
    (ErrorKind::ReadOnly, 1, 1),
    (ErrorKind::NotFound, 5, 5),
    (ErrorKind::Exists, 5, 5),
    (ErrorKind::Unavailable, 5, 5),
    (ErrorKind::Unsupported, 22, 95),
    (ErrorKind::Bug, 5, 5),
];

#[test]
fn every_device_error_has_its_number() {
    let write = Command::Write { offset: 0, length: 1, fua: false };
    let zero =
        |fast| Command::WriteZeroes { offset: 0, length: 1, fua: false, no_hole: false, fast };
    for (kind, plain, fast) in TABLE {
        assert_eq!(error_code(kind, &write).number(), plain, "{kind:?}");
        assert_eq!(error_code(kind, &zero(false)).number(), plain, "{kind:?}");
        assert_eq!(error_code(kind, &zero(true)).number(), fast, "{kind:?}");
    }
}

#[test]
fn device_errors_reach_the_client_in_every_style_and_for_every_command() {
    run(async {
        for style in STYLES {
            let device = TestDevice::new(SIZE);
            let mut client = connected(&device, style).await;
            for (kind, plain, fast) in TABLE {
                device.failure.set(Some(kind));
                let mut replies = vec![client.write(NONE, 0, b"x").await, client.read(0, 8).await];
                replies.push(client.flush().await);
                for command in [CommandCode::TRIM, CommandCode::WRITE_ZEROES, CommandCode::CACHE] {
                    replies.push(client.call(command, NONE, 0, 8).await);
                }
                for reply in replies {
                    assert_eq!(reply.error.map(ErrorCode::number), Some(plain), "{kind:?}");
                    let message =
                        if style == ReplyStyle::Simple { "" } else { "the test asked for it" };
                    assert_eq!(reply.message, message);
                }
                let zero =
                    client.call(CommandCode::WRITE_ZEROES, CommandFlags::FAST_ZERO, 0, 8).await;
                assert_eq!(zero.error.map(ErrorCode::number), Some(fast), "{kind:?}");
            }
            device.failure.set(None);
            assert_eq!(
                client.read(0, 1).await.ok().data,
                [0],
                "a failed write is not visible here"
            );
        }
    });
}

/// A device at the far end of a connection, to run the conformance suite through the whole front end.
struct FarDevice {
    client: Rc<Mutex<Client<DuplexStream>>>,
    size: u64,
}

impl FarDevice {
    fn new(client: Client<DuplexStream>) -> Self {
        Self { size: client.agreement.size, client: Rc::new(Mutex::new(client)) }
    }

    /// One command, which goes on to its end if its caller goes away.
    async fn ask(
        &self,
        command: CommandCode,
        flags: CommandFlags,
        (offset, len): (u64, u64),
        payload: SharedBuf,
    ) -> Result<support::Reply, DeviceError> {
        let client = Rc::clone(&self.client);
        let asked = tokio::task::spawn_local(async move {
            let mut client = client.lock().await;
            match command {
                CommandCode::WRITE => client.write(flags, offset, &payload).await,
                _ => client.call(command, flags, offset, len).await,
            }
        });
        let reply = asked.await.expect("the client does not panic");
        match reply.error {
            None => Ok(reply),
            // A write past the end is "no space" to the protocol.
            Some(ErrorCode::Invalid | ErrorCode::NoSpace) => {
                Err(DeviceError::new(ErrorKind::Invalid, reply.message))
            }
            Some(code) => Err(DeviceError::new(ErrorKind::Unavailable, format!("{code:?}"))),
        }
    }

    async fn change(
        &self,
        offset: u64,
        change: Change,
        flags: CommandFlags,
    ) -> Result<(), DeviceError> {
        let (command, len, payload) = match change {
            Change::Data(data) => (CommandCode::WRITE, data.len() as u64, data),
            Change::Zeroes(len) => (CommandCode::WRITE_ZEROES, len, SharedBuf::default()),
            Change::Discard(len) => (CommandCode::TRIM, len, SharedBuf::default()),
        };
        self.ask(command, flags, (offset, len), payload).await.map(|_| ())
    }

    async fn extents(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let span = (offset, len);
        let reply = self.ask(CommandCode::BLOCK_STATUS, NONE, span, SharedBuf::default()).await?;
        let extent = |status: &ExtentStatus| Extent {
            len: status.length,
            state: match status.flags {
                0 => ExtentState::Data,
                2 => ExtentState::Zero,
                3 => ExtentState::Hole,
                flags => panic!("allocation flags {flags}"),
            },
        };
        Ok(reply.extents.iter().take(extents_max).map(extent).collect())
    }
}

impl Device for FarDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::local(self.size)
    }

    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(self.size).or_else(|refused| match &operation {
            // The server refuses it, but for what cannot be said on the wire.
            Operation::Batch { .. } => Err(refused),
            other if other.span().0.checked_add(other.span().1).is_none() => Err(refused),
            _ => Ok(ByteRange::new(0, 0)),
        })?;
        let none = SharedBuf::default;
        match operation {
            Operation::Read { offset, len } => {
                let reply = self.ask(CommandCode::READ, NONE, (offset, len), none()).await?;
                return Ok(Reply::new(Body::Data(SharedBuf::copy_of(&reply.data).into())));
            }
            Operation::Write { offset, data, fua: is_fua } => {
                self.change(offset, Change::Data(data), fua(is_fua)).await?;
            }
            Operation::WriteZeroes { offset, len, flags } => {
                let no_hole = if flags.no_hole { CommandFlags::NO_HOLE } else { NONE };
                self.change(offset, Change::Zeroes(len), fua(flags.fua).with(no_hole)).await?;
            }
            Operation::Discard { offset, len } => {
                self.change(offset, Change::Discard(len), NONE).await?;
            }
            Operation::Batch { segments, fua: is_fua } => {
                for segment in segments {
                    self.change(segment.offset, segment.change, fua(is_fua)).await?;
                }
            }
            Operation::Flush(_) => {
                self.ask(CommandCode::FLUSH, NONE, (0, 0), none()).await?;
            }
            Operation::Extents { offset, len, extents_max } => {
                let extents = self.extents(offset, len, extents_max).await?;
                return Ok(Reply::new(Body::Extents(extents)));
            }
        }
        Ok(Reply::new(Body::Done))
    }
}

fn fua(fua: bool) -> CommandFlags {
    if fua { CommandFlags::FUA } else { NONE }
}

/// A connection to `frozen` with these contexts.
async fn comparing(
    device: &Rc<TestDevice>,
    style: ReplyStyle,
    contexts: &[&str],
) -> Client<DuplexStream> {
    let contexts = contexts.iter().map(|name| (*name).to_owned()).collect();
    Client::connect(serve(device).0, ClientWish { contexts, ..wish("frozen", style) }).await
}

#[test]
fn block_status_is_told_in_every_context_that_was_agreed_on() {
    run(async {
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let device = TestDevice::new(SIZE);
            let contexts = ["qemu:dirty-bitmap:odd", ALLOCATION_CONTEXT, "qemu:dirty-bitmap:all"];
            let mut client = comparing(&device, style, &contexts).await;
            let ids: Vec<u32> = client.agreement.session.contexts.iter().map(|c| c.id).collect();
            assert_eq!(ids, [1, 2, 3]);
            let reply = client.call(CommandCode::BLOCK_STATUS, NONE, 10, SIZE - 10).await.ok();
            let status = |length, flags| ExtentStatus { length, flags };
            assert_eq!(reply.extents, [status(SIZE - 10, 3)]);
            assert_eq!(reply.statuses[&2], [status(SIZE - 10, 1)]);
            let told = odd(10, SIZE - 10).map(|run| status(run.len, u64::from(run.changed)));
            let told: Vec<_> = told.take(EXTENTS_MAX / 3).collect();
            assert_eq!(reply.statuses[&3], told, "the contexts share what a reply may hold");
            let one = client.call(CommandCode::BLOCK_STATUS, CommandFlags::REQ_ONE, 5000, 9000);
            let one = one.await.ok();
            assert_eq!(one.extents, [status(9000, 3)]);
            assert_eq!(one.statuses[&3], [status(3192, 1)]);
        }
    });
}

#[test]
fn a_block_of_which_a_byte_changed_has_changed() {
    run(async {
        let device = TestDevice::new(SIZE);
        let contexts = ["qemu:dirty-bitmap:byte"];
        let mut client = comparing(&device, ReplyStyle::Structured, &contexts).await;
        let id = client.agreement.session.contexts[0].id;
        let reply = client.call(CommandCode::BLOCK_STATUS, NONE, 0, 16384).await.ok();
        let status = |length, flags| ExtentStatus { length, flags };
        assert_eq!(reply.statuses[&id], [status(4096, 0), status(4096, 1), status(8192, 0)]);
    });
}

#[test]
fn without_allocation_the_device_is_not_asked_for_it() {
    run(async {
        let device = TestDevice::new(SIZE);
        let contexts = ["qemu:dirty-bitmap:all", "qemu:dirty-bitmap:never"];
        let mut client = comparing(&device, ReplyStyle::Structured, &contexts).await;
        let reply = client.call(CommandCode::BLOCK_STATUS, NONE, 0, 100).await.ok();
        assert_eq!(reply.extents, []);
        assert_eq!(reply.statuses[&2], [ExtentStatus { length: 100, flags: 1 }]);
        assert_eq!((reply.statuses.len(), device.calls.borrow().len()), (1, 1));
    });
}

#[test]
fn what_cannot_be_compared_is_an_error_and_nothing_is_told() {
    run(async {
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let device = TestDevice::new(SIZE);
            let contexts = [ALLOCATION_CONTEXT, "qemu:dirty-bitmap:gone", "qemu:dirty-bitmap:all"];
            let mut client = comparing(&device, style, &contexts).await;
            let reply = client.call(CommandCode::BLOCK_STATUS, NONE, 0, 100).await;
            assert_eq!((reply.error, reply.message.as_str()), (Some(ErrorCode::Io), "it is gone"));
            assert_eq!((reply.extents, reply.statuses.len()), (vec![], 0));
            assert_eq!(client.read(0, 3).await.ok().data, [0; 3], "the connection goes on");
        }
    });
}

#[test]
fn a_device_at_the_far_end_of_a_connection_conforms() {
    run(async {
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            for seed in 0..3 {
                let device = TestDevice::new(1_000_003);
                let far = FarDevice::new(connected(&device, style).await);
                conformance::run(&far, seed, 300).await;
            }
        }
    });
}
