//! Golden bytes derived by hand from the protocol document, truncations, judgements and random round trips.

use proptest::prelude::*;

use super::*;
use crate::bytes::Decoded;
use crate::error::ProtocolError;
use crate::handshake::{
    Attached, Attachment, ChosenContext, Exclusive, OptionReply, OptionRequest, encode_option,
    encode_option_reply,
};
use crate::limits::{
    CONTEXTS_MAX, EXTENTS_MAX, EXTENTS_RECEIVED_MAX, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX,
    REQUEST_BYTES_MAX,
};
use crate::numbers::{
    ChunkCode, ChunkFlags, CommandCode, CommandFlags, ErrorCode, OptionCode, TransmissionFlags,
};
use crate::testing::hex;

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

fn message<T: std::fmt::Debug>(decoded: Result<Decoded<T>, ProtocolError>) -> (T, usize) {
    match decoded.expect("decodes") {
        Decoded::Message { message, consumed } => (message, consumed),
        Decoded::NeedMore(bytes) => panic!("needs {bytes} more bytes"),
    }
}

fn write_header() -> RequestHeader {
    RequestHeader {
        flags: CommandFlags::FUA,
        command: CommandCode::WRITE,
        cookie: Cookie(0x0102_0304_0506_0708),
        offset: 0x1_0000_0200,
        length: 0x1000,
    }
}

#[test]
fn compact_request_golden() {
    let bytes = hex("25609513 0001 0001 0102030405060708 0000000100000200 00001000");
    let mut out = Vec::new();
    write_header().encode(ReplyStyle::Structured, &mut out).unwrap();
    assert_eq!(out, bytes);
    assert_eq!(message(decode_request(ReplyStyle::Simple, &bytes)), (write_header(), 28));
}

#[test]
fn extended_request_golden() {
    let header = RequestHeader {
        flags: CommandFlags::FUA.with(CommandFlags::PAYLOAD_LEN),
        ..write_header()
    };
    let bytes = hex("21e41c71 0021 0001 0102030405060708 0000000100000200 0000000000001000");
    let mut out = Vec::new();
    header.encode(ReplyStyle::Extended, &mut out).unwrap();
    assert_eq!(out, bytes);
    assert_eq!(message(decode_request(ReplyStyle::Extended, &bytes)), (header, 32));
}

#[test]
fn a_request_of_another_style_is_out_of_step() {
    let mut compact = Vec::new();
    write_header().encode(ReplyStyle::Simple, &mut compact).unwrap();
    let error = decode_request(ReplyStyle::Extended, &compact).unwrap_err();
    assert!(matches!(error, ProtocolError::Magic { found: 0x2560_9513, .. }));
    assert_eq!(error.kind(), weir_device::ErrorKind::Invalid);
}

#[test]
fn a_length_beyond_32_bits_needs_extended_headers() {
    let header = RequestHeader { length: 1 << 32, ..write_header() };
    assert!(header.encode(ReplyStyle::Structured, &mut Vec::new()).is_err());
    assert!(header.encode(ReplyStyle::Extended, &mut Vec::new()).is_ok());
}

fn reply_to(style: ReplyStyle) -> ReplyTo {
    ReplyTo { style, cookie: Cookie(0x1112_1314_1516_1718), offset: 0x200 }
}

fn encoded(style: ReplyStyle, put: impl FnOnce(&ReplyTo, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&reply_to(style), &mut out);
    out
}

#[test]
fn success_golden() {
    let put = |to: &ReplyTo, out: &mut Vec<u8>| to.success(out);
    let simple = hex("67446698 00000000 1112131415161718");
    assert_eq!(encoded(ReplyStyle::Simple, put), simple);
    assert_eq!(encoded(ReplyStyle::Structured, put), simple);
    assert_eq!(
        encoded(ReplyStyle::Extended, put),
        hex("6e8a278c 0001 0000 1112131415161718 0000000000000200 0000000000000000")
    );
}

#[test]
fn error_golden() {
    let put = |to: &ReplyTo, out: &mut Vec<u8>| to.error(out, ErrorCode::NoSpace, "full");
    assert_eq!(
        encoded(ReplyStyle::Simple, put),
        hex("67446698 0000001c 1112131415161718"),
        "simple replies carry no message"
    );
    let payload = "0000001c 0004 66756c6c";
    assert_eq!(
        encoded(ReplyStyle::Structured, put),
        hex(&format!("668e33ef 0001 8001 1112131415161718 0000000a {payload}"))
    );
    assert_eq!(
        encoded(ReplyStyle::Extended, put),
        hex(&format!(
            "6e8a278c 0001 8001 1112131415161718 0000000000000200 000000000000000a {payload}"
        ))
    );
}

#[test]
fn error_at_offset_golden() {
    let put = |to: &ReplyTo, out: &mut Vec<u8>| to.error_at(out, ErrorCode::Io, "x", 0x300);
    let bytes = encoded(ReplyStyle::Structured, put);
    let payload = "00000005 0001 78 0000000000000300";
    assert_eq!(bytes, hex(&format!("668e33ef 0001 8002 1112131415161718 0000000f {payload}")));
    let payload = hex(payload);
    let chunk = decode_chunk(ChunkCode::ERROR_OFFSET, &payload).unwrap();
    let expected = Chunk::Error { code: ErrorCode::Io, message: "x", offset: Some(0x300) };
    assert_eq!(chunk, expected);
}

#[test]
fn read_golden() {
    let put = |to: &ReplyTo, out: &mut Vec<u8>| to.read_head(out, 0x1000);
    assert_eq!(encoded(ReplyStyle::Simple, put), hex("67446698 00000000 1112131415161718"));
    assert_eq!(
        encoded(ReplyStyle::Structured, put),
        hex("668e33ef 0001 0001 1112131415161718 00001008 0000000000000200")
    );
    assert_eq!(
        encoded(ReplyStyle::Extended, put),
        hex("6e8a278c 0001 0001 1112131415161718 0000000000000200 0000000000001008
             0000000000000200")
    );
}

#[test]
fn a_read_of_nothing_is_an_empty_chunk() {
    let put = |to: &ReplyTo, out: &mut Vec<u8>| to.read_head(out, 0);
    assert_eq!(
        encoded(ReplyStyle::Structured, put),
        hex("668e33ef 0001 0000 1112131415161718 00000000")
    );
}

#[test]
fn hole_golden() {
    let put =
        |to: &ReplyTo, out: &mut Vec<u8>| to.read_hole(out, 0x400, 0x800, ChunkFlags::default());
    assert_eq!(
        encoded(ReplyStyle::Structured, put),
        hex("668e33ef 0000 0002 1112131415161718 0000000c 0000000000000400 00000800")
    );
    let payload = hex("0000000000000400 00000800");
    let chunk = decode_chunk(ChunkCode::OFFSET_HOLE, &payload).unwrap();
    assert_eq!(chunk, Chunk::Hole { offset: 0x400, length: 0x800 });
}

#[test]
fn block_status_golden() {
    let extents =
        [ExtentStatus { length: 0x1000, flags: 0 }, ExtentStatus { length: 0x200, flags: 3 }];
    let status = ContextStatus { context: 1, extents: extents.to_vec() };
    let dirty = [ExtentStatus { length: 0x1200, flags: 1 }].to_vec();
    let statuses = [status, ContextStatus { context: 3, extents: dirty }];
    let put = |to: &ReplyTo, out: &mut Vec<u8>| to.block_status(out, &statuses[..1]);
    let compact = "00000001 00001000 00000000 00000200 00000003";
    assert_eq!(
        encoded(ReplyStyle::Structured, put),
        hex(&format!("668e33ef 0001 0005 1112131415161718 00000014 {compact}"))
    );
    let wide = "00000001 00000002 0000000000001000 0000000000000000
                0000000000000200 0000000000000003";
    assert_eq!(
        encoded(ReplyStyle::Extended, put),
        hex(&format!(
            "6e8a278c 0001 0006 1112131415161718 0000000000000200 0000000000000028 {wide}"
        ))
    );
    let both = |to: &ReplyTo, out: &mut Vec<u8>| to.block_status(out, &statuses);
    assert_eq!(
        encoded(ReplyStyle::Structured, both),
        hex(&format!(
            "668e33ef 0000 0005 1112131415161718 00000014 {compact}
             668e33ef 0001 0005 1112131415161718 0000000c 00000003 00001200 00000001"
        )),
        "one chunk for each context, and the last one ends the reply"
    );
    let expected = Chunk::Status { context: 1, extents: extents.to_vec() };
    assert_eq!(decode_chunk(ChunkCode::BLOCK_STATUS, &hex(compact)).unwrap(), expected);
    assert_eq!(decode_chunk(ChunkCode::BLOCK_STATUS_EXT, &hex(wide)).unwrap(), expected);
}

#[test]
fn reply_headers_decode_and_every_truncation_asks_for_the_rest() {
    for style in STYLES {
        let mut bytes = Vec::new();
        reply_to(style).error(&mut bytes, ErrorCode::Io, "");
        let (header, consumed) = message(decode_reply(style, &bytes));
        match header {
            ReplyHeader::Simple { cookie, error } => {
                assert_eq!((cookie, error), (reply_to(style).cookie, Some(ErrorCode::Io)));
            }
            ReplyHeader::Chunk { cookie, flags, code, offset, length } => {
                assert_eq!(cookie, reply_to(style).cookie);
                assert_eq!((flags, code, length), (ChunkFlags::DONE, ChunkCode::ERROR, 6));
                assert_eq!(offset, (style == ReplyStyle::Extended).then_some(0x200));
            }
        }
        for end in 0..consumed {
            let Ok(Decoded::NeedMore(more)) = decode_reply(style, &bytes[..end]) else {
                panic!("{style:?}: a prefix of {end} bytes is not a reply");
            };
            assert!(more > 0 && end + more <= consumed, "{style:?}: {end} + {more}");
        }
    }
}

#[test]
fn every_truncated_request_asks_for_the_rest() {
    for style in STYLES {
        let mut bytes = Vec::new();
        write_header().encode(style, &mut bytes).unwrap();
        for end in 0..bytes.len() {
            let decoded = decode_request(style, &bytes[..end]).unwrap();
            assert_eq!(decoded, Decoded::NeedMore(bytes.len() - end), "{style:?}");
        }
    }
}

#[test]
fn a_simple_reply_has_no_place_among_extended_ones() {
    let bytes = encoded(ReplyStyle::Simple, |to, out| to.success(out));
    assert!(decode_reply(ReplyStyle::Extended, &bytes).is_err());
    let bytes = encoded(ReplyStyle::Structured, |to, out| to.done(out));
    assert!(decode_reply(ReplyStyle::Simple, &bytes).is_err());
}

#[test]
fn a_reply_longer_than_any_payload_is_refused() {
    let bytes = hex("668e33ef 0001 0001 1112131415161718 02000009");
    let error = decode_reply(ReplyStyle::Structured, &bytes).unwrap_err();
    assert!(matches!(error, ProtocolError::TooLong { value: 0x200_0009, .. }));
}

#[test]
fn chunks_that_contradict_their_type_are_refused() {
    let bad = [
        (ChunkCode::NONE, "00"),
        (ChunkCode::OFFSET_DATA, "0000000000000000"),
        (ChunkCode::OFFSET_HOLE, "0000000000000000 00000000"),
        (ChunkCode::OFFSET_HOLE, "0000000000000000 00000001 00"),
        (ChunkCode::BLOCK_STATUS, "00000001"),
        (ChunkCode::BLOCK_STATUS, "00000001 00000000 00000000"),
        (ChunkCode::BLOCK_STATUS, "00000001 00001000"),
        (ChunkCode::BLOCK_STATUS_EXT, "00000001 00000002 0000000000001000 0000000000000000"),
        (ChunkCode::ERROR, "00000005 0005 61"),
        (ChunkCode::ERROR, "00000000 0000"),
        (ChunkCode::ERROR_OFFSET, "00000005 0000"),
        (ChunkCode(77), ""),
    ];
    for (code, payload) in bad {
        assert!(decode_chunk(code, &hex(payload)).is_err(), "{code:?} {payload}");
    }
}

#[test]
fn a_block_status_of_too_many_extents_is_refused() {
    let mut payload = hex("00000001");
    for _ in 0..EXTENTS_RECEIVED_MAX {
        payload.extend(hex("00000200 00000000"));
    }
    assert!(decode_chunk(ChunkCode::BLOCK_STATUS, &payload).is_ok());
    payload.extend(hex("00000200 00000000"));
    assert!(decode_chunk(ChunkCode::BLOCK_STATUS, &payload).is_err());
}

#[test]
fn an_unknown_error_chunk_is_an_error_all_the_same() {
    let payload = hex("00000099 0001 61 ffff");
    let chunk = decode_chunk(ChunkCode(0x8077), &payload).unwrap();
    let expected = Chunk::Error { code: ErrorCode::Invalid, message: "a", offset: None };
    assert_eq!(chunk, expected, "unknown numbers count as EINVAL");
    assert!(decode_chunk(ChunkCode(0x0077), &payload).is_err(), "no error, and not known");
}

#[test]
fn long_messages_are_cut_between_characters() {
    let message = "\u{e9}".repeat(MESSAGE_BYTES_MAX);
    let bytes = encoded(ReplyStyle::Structured, |to, out| {
        to.error(out, ErrorCode::Io, &format!("a{message}"));
    });
    let Chunk::Error { message, .. } = decode_chunk(ChunkCode::ERROR, &bytes[20..]).unwrap() else {
        panic!("an error chunk");
    };
    assert_eq!(message.len(), MESSAGE_BYTES_MAX - 1);
}

/// An export of 1 MiB with everything on offer.
fn session(style: ReplyStyle) -> Session {
    let allocation = ChosenContext { id: 1, name: "base:allocation".to_owned() };
    let contexts = if style == ReplyStyle::Simple { Vec::new() } else { vec![allocation] };
    Session { style, flags: TransmissionFlags(0x0fff), contexts }
        .without(TransmissionFlags::READ_ONLY)
}

impl Session {
    fn without(self, flags: TransmissionFlags) -> Self {
        Self { flags: self.flags.without(flags), ..self }
    }
}

const SIZE: u64 = 1 << 20;

fn request(command: CommandCode, flags: CommandFlags, offset: u64, length: u64) -> RequestHeader {
    RequestHeader { flags, command, cookie: Cookie(1), offset, length }
}

fn judged(style: ReplyStyle, header: RequestHeader) -> Verdict {
    session(style).judge(&header, SIZE).expect("not a breach")
}

fn refused(verdict: Verdict) -> Option<(ErrorCode, u32)> {
    match verdict {
        Verdict::Refuse { refusal, payload_bytes } => Some((refusal.code, payload_bytes)),
        _ => None,
    }
}

#[test]
fn commands_with_all_their_flags_are_run() {
    let none = CommandFlags::default();
    let fua = CommandFlags::FUA;
    let zero = CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO).with(fua);
    let runs = |header, command, payload_bytes| {
        let verdict = judged(ReplyStyle::Structured, header);
        assert_eq!(verdict, Verdict::Run { command, payload_bytes });
    };
    let (offset, length) = (5, 7);
    runs(
        request(CommandCode::READ, none, 5, 7),
        Command::Read { offset, length: 7, unbroken: false },
        0,
    );
    runs(
        request(CommandCode::READ, CommandFlags::DF, 5, 7),
        Command::Read { offset, length: 7, unbroken: true },
        0,
    );
    runs(
        request(CommandCode::WRITE, fua, 5, 7),
        Command::Write { offset, length: 7, fua: true },
        7,
    );
    runs(
        request(CommandCode::WRITE_ZEROES, zero, 5, 7),
        Command::WriteZeroes { offset, length, fua: true, no_hole: true, fast: true },
        0,
    );
    runs(
        request(CommandCode::WRITE_ZEROES, none, 5, 7),
        Command::WriteZeroes { offset, length, fua: false, no_hole: false, fast: false },
        0,
    );
    runs(request(CommandCode::TRIM, fua, 5, 7), Command::Trim { offset, length, fua: true }, 0);
    runs(request(CommandCode::CACHE, none, 5, 7), Command::Cache { offset, length }, 0);
    runs(request(CommandCode::FLUSH, none, 0, 0), Command::Flush, 0);
    runs(
        request(CommandCode::BLOCK_STATUS, CommandFlags::REQ_ONE, 5, 7),
        Command::BlockStatus { offset, length, one: true },
        0,
    );
    let disc = request(CommandCode::DISC, none, 0, 0);
    assert_eq!(judged(ReplyStyle::Simple, disc), Verdict::Disconnect);
}

#[test]
fn fua_is_accepted_on_every_command() {
    for command in 0..=7 {
        let length = if CommandCode(command) == CommandCode::FLUSH { 0 } else { 1 };
        let header = request(CommandCode(command), CommandFlags::FUA, 0, length);
        assert_eq!(refused(judged(ReplyStyle::Structured, header)), None, "{command}");
    }
}

#[test]
fn each_command_refuses_the_flags_of_others() {
    let places = [
        (CommandFlags::NO_HOLE, vec![CommandCode::WRITE_ZEROES]),
        (CommandFlags::FAST_ZERO, vec![CommandCode::WRITE_ZEROES]),
        (CommandFlags::DF, vec![CommandCode::READ]),
        (CommandFlags::REQ_ONE, vec![CommandCode::BLOCK_STATUS]),
        (CommandFlags::PAYLOAD_LEN, vec![]),
        (CommandFlags(1 << 15), vec![]),
    ];
    for (flag, allowed) in places {
        for command in [0, 1, 3, 4, 5, 6, 7].map(CommandCode) {
            let length = if command == CommandCode::FLUSH { 0 } else { 1 };
            let verdict = judged(ReplyStyle::Structured, request(command, flag, 0, length));
            let payload = u32::from(command == CommandCode::WRITE);
            let expected = (!allowed.contains(&command)).then_some((ErrorCode::Invalid, payload));
            assert_eq!(refused(verdict), expected, "{flag:?} on {command:?}");
        }
    }
}

#[test]
fn df_needs_chunks() {
    let session = session(ReplyStyle::Simple).without(TransmissionFlags::SEND_DF);
    let header = request(CommandCode::READ, CommandFlags::DF, 0, 1);
    let verdict = session.judge(&header, SIZE).unwrap();
    assert_eq!(refused(verdict), Some((ErrorCode::Invalid, 0)));
}

#[test]
fn ranges_past_the_end_are_refused_and_writes_run_out_of_space() {
    for (offset, length) in [(SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (u64::MAX, 1), (u64::MAX, 5)]
    {
        for command in [0, 1, 4, 5, 6, 7].map(CommandCode) {
            let (code, payload) = match command {
                CommandCode::WRITE => (ErrorCode::NoSpace, u32::try_from(length).unwrap()),
                CommandCode::WRITE_ZEROES => (ErrorCode::NoSpace, 0),
                _ => (ErrorCode::Invalid, 0),
            };
            let header = request(command, CommandFlags::default(), offset, length);
            let verdict = judged(ReplyStyle::Structured, header);
            assert_eq!(refused(verdict), Some((code, payload)), "{command:?} {offset} {length}");
        }
    }
}

#[test]
fn the_last_byte_is_within_reach() {
    let header = request(CommandCode::WRITE, CommandFlags::default(), SIZE - 1, 1);
    assert_eq!(refused(judged(ReplyStyle::Simple, header)), None);
    let header = request(CommandCode::READ, CommandFlags::default(), SIZE, 0);
    assert_eq!(refused(judged(ReplyStyle::Simple, header)), None);
}

#[test]
fn unknown_commands_are_refused_in_step() {
    for command in [8, 9, 0xffff].map(CommandCode) {
        let header = request(command, CommandFlags::default(), 0, 100);
        let expected = Some((ErrorCode::Invalid, 0));
        assert_eq!(refused(judged(ReplyStyle::Structured, header)), expected);
        let header = request(command, CommandFlags::PAYLOAD_LEN, 0, 100);
        let expected = Some((ErrorCode::Invalid, 100));
        assert_eq!(refused(judged(ReplyStyle::Extended, header)), expected, "payload is skipped");
    }
}

#[test]
fn a_read_only_export_refuses_changes() {
    let flags = TransmissionFlags(0x0fff);
    let session = Session { flags, ..session(ReplyStyle::Structured) };
    for (command, payload) in [(1, 8), (4, 0), (6, 0)] {
        let header = request(CommandCode(command), CommandFlags::default(), 0, 8);
        let verdict = session.judge(&header, SIZE).unwrap();
        assert_eq!(refused(verdict), Some((ErrorCode::NotPermitted, payload)));
    }
    let header = request(CommandCode::READ, CommandFlags::default(), 0, 8);
    assert_eq!(refused(session.judge(&header, SIZE).unwrap()), None);
}

#[test]
fn payloads_beyond_the_limit_end_the_connection() {
    let flags = CommandFlags::PAYLOAD_LEN;
    let length = u64::from(REQUEST_BYTES_MAX) + 1;
    for command in [CommandCode::WRITE, CommandCode::READ, CommandCode(99)] {
        for length in [length, u64::MAX] {
            let header = request(command, flags, 0, length);
            assert!(session(ReplyStyle::Extended).judge(&header, SIZE).is_err());
        }
    }
    for length in [PAYLOAD_BYTES_MAX + 1, REQUEST_BYTES_MAX] {
        let none = CommandFlags::default();
        let header = request(CommandCode::WRITE, none, 0, length.into());
        let verdict = session(ReplyStyle::Simple).judge(&header, SIZE).unwrap();
        assert_eq!(refused(verdict), Some((ErrorCode::NoSpace, length)));
    }
}

#[test]
fn reads_are_refused_beyond_what_their_reply_can_carry() {
    let none = CommandFlags::default();
    let code = |style, flags, length| {
        let header = request(CommandCode::READ, flags, 0, length);
        refused(session(style).judge(&header, 1 << 40).unwrap()).map(|(code, _)| code)
    };
    let overflow = Some(ErrorCode::Overflow);
    for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
        assert_eq!(code(style, none, REQUEST_BYTES_MAX.into()), None);
    }
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let most = u64::from(PAYLOAD_BYTES_MAX);
        assert_eq!(code(style, CommandFlags::DF, most), None);
        assert_eq!(code(style, CommandFlags::DF, most + 1), overflow, "it may not be cut up");
    }
    assert_eq!(code(ReplyStyle::Extended, none, u64::from(REQUEST_BYTES_MAX) + 1), overflow);
}

#[test]
fn effects_without_payload_may_be_as_long_as_the_export() {
    let size = 1 << 40;
    for command in [CommandCode::TRIM, CommandCode::WRITE_ZEROES, CommandCode::BLOCK_STATUS] {
        let header = request(command, CommandFlags::default(), 0, size);
        let verdict = session(ReplyStyle::Extended).judge(&header, size).unwrap();
        assert_eq!(refused(verdict), None, "{command:?}");
    }
}

#[test]
fn an_extended_write_announces_its_payload() {
    let header = request(CommandCode::WRITE, CommandFlags::default(), 0, 8);
    let expected = Some((ErrorCode::Invalid, 0));
    assert_eq!(refused(judged(ReplyStyle::Extended, header)), expected);
    let header = request(CommandCode::WRITE, CommandFlags::PAYLOAD_LEN, 0, 8);
    assert_eq!(refused(judged(ReplyStyle::Extended, header)), None);
    let header = request(CommandCode::BLOCK_STATUS, CommandFlags::PAYLOAD_LEN, 0, 12);
    let expected = Some((ErrorCode::Invalid, 12));
    assert_eq!(refused(judged(ReplyStyle::Extended, header)), expected, "not offered");
}

#[test]
fn block_status_needs_a_context_and_a_range() {
    let header = request(CommandCode::BLOCK_STATUS, CommandFlags::default(), 0, 8);
    let session = Session { contexts: Vec::new(), ..session(ReplyStyle::Structured) };
    let verdict = session.judge(&header, SIZE).unwrap();
    assert_eq!(refused(verdict), Some((ErrorCode::Invalid, 0)));
    let header = request(CommandCode::BLOCK_STATUS, CommandFlags::default(), 0, 0);
    let verdict = judged(ReplyStyle::Structured, header);
    assert_eq!(refused(verdict), Some((ErrorCode::Invalid, 0)));
}

#[test]
fn a_flush_names_no_range() {
    let header = request(CommandCode::FLUSH, CommandFlags::default(), 0, 1);
    let expected = Some((ErrorCode::Invalid, 0));
    assert_eq!(refused(judged(ReplyStyle::Structured, header)), expected);
}

#[test]
fn error_numbers_are_the_protocols() {
    let numbers: Vec<u32> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
    assert_eq!(numbers, [1, 5, 12, 22, 28, 75, 95, 108]);
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_number(code.number()), code);
    }
    assert_eq!(ErrorCode::from_number(11), ErrorCode::Invalid);
}

/// The examples of the format's page, line by line.
#[test]
fn the_examples_of_the_documentation_hold() {
    let page = include_str!("../../../../docs/formats/nbd.md");
    let examples = page.split("```").skip(1).step_by(2).flat_map(str::lines);
    let documented: Vec<Vec<u8>> = examples.filter(|line| !line.is_empty()).map(hex).collect();
    let to =
        |style| ReplyTo { style, cookie: write_header().cookie, offset: write_header().offset };
    let request = |style, flags| {
        let mut out = Vec::new();
        let flags = CommandFlags::FUA.with(flags);
        RequestHeader { flags, length: 3, ..write_header() }.encode(style, &mut out).unwrap();
        out.extend(b"abc");
        out
    };
    let reply = |style, put: &dyn Fn(ReplyTo, &mut Vec<u8>)| {
        let mut out = Vec::new();
        put(to(style), &mut out);
        out
    };
    let attachment = Attachment {
        session: *b"0123456789abcdef",
        generation: 258,
        exclusive: true,
        known: Some(*b"the tag of 00001"),
    };
    let mut attach = Vec::new();
    encode_option(&OptionRequest::Attach { name: "disk", attachment }, &mut attach).unwrap();
    let answer = |reply| {
        let mut out = Vec::new();
        encode_option_reply(OptionCode::WEIR_ATTACH, &reply, &mut out);
        out
    };
    let expected = [
        request(ReplyStyle::Simple, CommandFlags::default()),
        request(ReplyStyle::Extended, CommandFlags::PAYLOAD_LEN),
        attach,
        answer(OptionReply::Attached(Attached {
            instance: *b"the opening of 1",
            volume: Some(*b"volume number 01"),
            exclusive: Some(Exclusive { tag: *b"the tag of 00002", is_unchanged: true }),
        })),
        answer(OptionReply::Ack),
        reply(ReplyStyle::Simple, &|to, out| to.success(out)),
        reply(ReplyStyle::Extended, &|to, out| to.success(out)),
        reply(ReplyStyle::Structured, &|to, out| to.error(out, ErrorCode::NoSpace, "full")),
    ];
    assert_eq!(documented, expected);
}

fn any_style() -> impl Strategy<Value = ReplyStyle> {
    prop_oneof![Just(STYLES[0]), Just(STYLES[1]), Just(STYLES[2])]
}

fn any_extents() -> impl Strategy<Value = Vec<ExtentStatus>> {
    let extent = (1..=u64::from(u32::MAX), 0..=3_u64)
        .prop_map(|(length, flags)| ExtentStatus { length, flags });
    proptest::collection::vec(extent, 1..50)
}

proptest! {
    #[test]
    fn requests_round_trip(
        style in any_style(), flags: u16, command: u16, cookie: u64, offset: u64, length: u32,
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let header = RequestHeader {
            flags: CommandFlags(flags),
            command: CommandCode(command),
            cookie: Cookie(cookie),
            offset,
            length: u64::from(length),
        };
        let mut bytes = Vec::new();
        header.encode(style, &mut bytes).unwrap();
        let size = bytes.len();
        bytes.extend(rest);
        prop_assert_eq!(message(decode_request(style, &bytes)), (header, size));
    }

    #[test]
    fn block_status_round_trips(
        style in any_style(), cookie: u64,
        statuses in proptest::collection::vec((any::<u32>(), any_extents()), 1..=CONTEXTS_MAX),
    ) {
        prop_assume!(style != ReplyStyle::Simple);
        let to = ReplyTo { style, cookie: Cookie(cookie), offset: 9 };
        let mut bytes = Vec::new();
        let status = |(context, extents)| ContextStatus { context, extents };
        let statuses: Vec<_> = statuses.into_iter().map(status).collect();
        to.block_status(&mut bytes, &statuses);
        let mut rest = bytes.as_slice();
        for (at, ContextStatus { context, extents }) in statuses.iter().enumerate() {
            let (header, consumed) = message(decode_reply(style, rest));
            let ReplyHeader::Chunk { code, length, flags, .. } = header else { panic!("a chunk") };
            prop_assert_eq!(flags.contains(ChunkFlags::DONE), at + 1 == statuses.len());
            let (payload, next) = rest[consumed..].split_at(usize::try_from(length).unwrap());
            let expected = Chunk::Status { context: *context, extents: extents.clone() };
            prop_assert_eq!(decode_chunk(code, payload).unwrap(), expected);
            rest = next;
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn errors_round_trip(style in any_style(), index in 0..8_usize, message_in in ".{0,100}") {
        prop_assume!(style != ReplyStyle::Simple);
        let code = ErrorCode::ALL[index];
        let mut bytes = Vec::new();
        reply_to(style).error(&mut bytes, code, &message_in);
        let (_, consumed) = message(decode_reply(style, &bytes));
        let chunk = decode_chunk(ChunkCode::ERROR, &bytes[consumed..]).unwrap();
        let Chunk::Error { code: read, message, offset: None } = chunk else { panic!("an error") };
        prop_assert_eq!(read, code);
        prop_assert!(message_in.starts_with(message), "a prefix, up to a NUL or the limit");
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        style in any_style(), code: u16, size: u64,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = decode_request(style, &bytes);
        let _ = decode_reply(style, &bytes);
        let _ = decode_chunk(ChunkCode(code), &bytes);
        for code in [0, 1, 2, 5, 6, 0x8001, 0x8002] {
            let _ = decode_chunk(ChunkCode(code), &bytes);
        }
        let mut framed = hex(if style == ReplyStyle::Extended { "21e41c71" } else { "25609513" });
        framed.extend(&bytes);
        if let Ok(Decoded::Message { message, .. }) = decode_request(style, &framed) {
            let _ = session(style).judge(&message, size);
        }
    }

    /// Whatever is run lies within the export and within the limits.
    #[test]
    fn what_is_run_is_within_bounds(
        style in any_style(), flags in 0..64_u16, command in 0..9_u16,
        offset in 0..2 * SIZE, length in 0..2 * SIZE, size in 0..2 * SIZE,
    ) {
        let header = request(CommandCode(command), CommandFlags(flags), offset, length);
        if let Ok(Verdict::Run { command, payload_bytes }) = session(style).judge(&header, size) {
            let is_flush = command == Command::Flush;
            prop_assert!(is_flush || offset + length <= size);
            let is_write = matches!(command, Command::Write { .. });
            prop_assert_eq!(u64::from(payload_bytes), if is_write { length } else { 0 });
        }
    }
}

#[test]
fn the_longest_block_status_fits_its_budget() {
    let command = Command::BlockStatus { offset: 0, length: 1, one: false };
    let one = Command::BlockStatus { offset: 0, length: 1, one: true };
    for (command, extents_max) in [(command, EXTENTS_MAX / CONTEXTS_MAX), (one, 1)] {
        let extents = vec![ExtentStatus { length: 1, flags: 0 }; extents_max];
        let status = |context| ContextStatus { context, extents: extents.clone() };
        let count = u32::try_from(CONTEXTS_MAX).unwrap();
        let statuses: Vec<_> = (0..count).map(status).collect();
        let bytes = encoded(ReplyStyle::Extended, |to, out| to.block_status(out, &statuses));
        assert_eq!(bytes.len() as u64, command.reply_payload_bytes_max());
    }
}
