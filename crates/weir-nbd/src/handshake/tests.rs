//! Golden bytes, every option and its faults, truncations, and server against client over random chunks.

mod attach;
mod client;
mod contexts;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::bytes::Decoded;
use crate::error::ProtocolError;
use crate::limits::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
use crate::numbers::{InfoCode, OptionCode, OptionReplyCode, TransmissionFlags};
use crate::testing::hex;
use crate::transmission::{ReplyStyle, Session};

/// Two exports, `disk` (also the default) and `frozen`, which is read-only.
struct Shelf;

impl Catalog for Shelf {
    type Handle = u32;

    fn find(&self, name: &str) -> Result<(ExportInfo, u32), NotOffered> {
        let info = |name: &str, read_only| ExportInfo {
            name: name.to_owned(),
            description: "a disk".to_owned(),
            size: 0x10_0000,
            read_only,
            instance: (!read_only).then_some(*b"the opening of 1"),
            volume: None,
            earlier: if read_only { earlier() } else { Arc::default() },
        };
        match name {
            "" | "disk" => Ok((info("disk", false), 1)),
            "frozen" => Ok((info("frozen", true), 2)),
            _ => Err(NotOffered::Unknown),
        }
    }

    fn list(&self) -> Vec<String> {
        vec!["disk".to_owned(), "frozen".to_owned()]
    }
}

/// What `frozen` can be compared with.
fn earlier() -> Arc<[String]> {
    ["monday", "tuesday"].map(str::to_owned).into()
}

type Progress = Result<HandshakeProgress<u32>, ProtocolError>;

/// A server that has been greeted with these client flags.
fn greeted(flags: u32) -> ServerHandshake {
    let mut server = ServerHandshake::default();
    let mut out = Vec::new();
    let progress = server.advance(&flags.to_be_bytes(), &Shelf, &mut out).expect("known flags");
    assert_eq!(progress, HandshakeProgress { consumed: 4, step: HandshakeStep::Again });
    assert!(out.is_empty());
    server
}

/// An option on the wire, whatever its data.
fn raw_option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = hex("49484156454f5054");
    bytes.extend(code.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

fn option(request: &OptionRequest<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_option(request, &mut bytes).unwrap();
    bytes
}

fn send(server: &mut ServerHandshake, bytes: &[u8]) -> (Progress, Vec<u8>) {
    let mut out = Vec::new();
    let progress = server.advance(bytes, &Shelf, &mut out);
    if let Ok(progress) = &progress {
        assert!(progress.consumed <= bytes.len());
    }
    (progress, out)
}

/// Every reply in `bytes`, as code and text.
fn replies(mut bytes: &[u8]) -> Vec<(OptionCode, OptionReply<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        match decode_option_reply(bytes).expect("a reply") {
            Decoded::Message { message, consumed } => {
                all.push(message);
                bytes = &bytes[consumed..];
            }
            Decoded::NeedMore(more) => panic!("a reply lacks {more} bytes"),
        }
    }
    all
}

/// Codes of the answer to one option that leaves the handshake going on.
fn codes(server: &mut ServerHandshake, bytes: &[u8]) -> Vec<OptionReplyCode> {
    let (progress, out) = send(server, bytes);
    assert_eq!(progress.expect("answered").step, HandshakeStep::Again);
    replies(&out).iter().map(|(_, reply)| reply.code()).collect()
}

const FIXED: u32 = 1;
const BOTH: u32 = 3;

#[test]
fn what_a_message_asks_of_the_catalog_is_known_before_it_is_answered() {
    let server = greeted(FIXED);
    let go = option(&OptionRequest::Go { name: "frozen", facts: Vec::new() });
    assert_eq!(server.wanted(&go), Some(Wanted::Export("frozen")));
    assert_eq!(server.wanted(&go[..go.len() - 1]), None, "not all there yet");
    assert_eq!(server.wanted(&option(&OptionRequest::List)), Some(Wanted::List));
    assert_eq!(server.wanted(&option(&OptionRequest::StructuredReply)), None);
    assert_eq!(ServerHandshake::default().wanted(&go), None, "the client's flags come first");
}

#[test]
fn greeting_golden() {
    let mut out = Vec::new();
    ServerHandshake::default().greet(&mut out);
    assert_eq!(out, hex("4e42444d41474943 49484156454f5054 0003"));
}

#[test]
fn unknown_client_flags_end_the_connection() {
    for flags in [4_u32, 0x8000_0000, 7] {
        let (progress, _) = send(&mut ServerHandshake::default(), &flags.to_be_bytes());
        assert_eq!(progress.unwrap_err(), ProtocolError::ClientFlags { flags });
    }
}

#[test]
fn option_golden() {
    let go = OptionRequest::Go {
        name: "disk",
        facts: vec![InfoCode::DESCRIPTION, InfoCode::BLOCK_SIZE],
    };
    let bytes = hex("49484156454f5054 00000007 0000000e 00000004 6469736b 0002 0002 0003");
    assert_eq!(option(&go), bytes);
    assert_eq!(decode_option(OptionCode::GO, &bytes[16..]).unwrap(), go);
    let set = OptionRequest::SetMetaContext { name: "d", queries: vec!["base:allocation"] };
    let bytes = hex("49484156454f5054 0000000a 0000001c 00000001 64 00000001
                     0000000f 626173653a616c6c6f636174696f6e");
    assert_eq!(option(&set), bytes);
    assert_eq!(decode_option(OptionCode::SET_META_CONTEXT, &bytes[16..]).unwrap(), set);
}

#[test]
fn go_golden() {
    let mut server = greeted(BOTH);
    let go = OptionRequest::Go {
        name: "",
        facts: vec![InfoCode::NAME, InfoCode::DESCRIPTION, InfoCode::BLOCK_SIZE, InfoCode(99)],
    };
    let (progress, out) = send(&mut server, &option(&go));
    let head = "0003e889045565a9 00000007";
    let expected = format!(
        "{head} 00000003 0000000c 0000 0000000000100000 0d6d
         {head} 00000003 00000006 0001 6469736b
         {head} 00000003 00000008 0002 61206469736b
         {head} 00000003 0000000e 0003 00000001 00001000 02000000
         {head} 00000001 00000000"
    );
    assert_eq!(out, hex(&expected));
    let HandshakeStep::Transmit { session, info, handle: 1, attachment: None } =
        progress.unwrap().step
    else {
        panic!("transmission begins");
    };
    assert_eq!((info.name.as_str(), info.size), ("disk", 0x10_0000));
    let flags = TransmissionFlags(0x0d6d);
    assert_eq!(session, Session { style: ReplyStyle::Simple, flags, contexts: Vec::new() });
}

#[test]
fn df_is_offered_with_chunks_only_and_a_read_only_export_offers_no_changes() {
    for (request, flags) in [
        (OptionRequest::StructuredReply, 0x0ded),
        (OptionRequest::ExtendedHeaders, 0x0ded),
        (OptionRequest::List, 0x0d6d),
    ] {
        let mut server = greeted(FIXED);
        codes(&mut server, &option(&request));
        let go = OptionRequest::Go { name: "disk", facts: vec![] };
        let (_, out) = send(&mut server, &option(&go));
        let expected = Fact::Export { size: 0x10_0000, flags: TransmissionFlags(flags) };
        assert_eq!(replies(&out)[0].1, OptionReply::Info(expected));
    }
    let mut server = greeted(FIXED);
    let info = OptionRequest::Info { name: "frozen", facts: vec![] };
    let (_, out) = send(&mut server, &option(&info));
    let flags = TransmissionFlags(0x050f);
    let expected = Fact::Export { size: 0x10_0000, flags };
    assert_eq!(replies(&out)[0].1, OptionReply::Info(expected));
}

#[test]
fn export_name_golden_with_and_without_zeroes() {
    let bytes = raw_option(1, b"disk");
    let (progress, out) = send(&mut greeted(BOTH), &bytes);
    assert!(matches!(progress.unwrap().step, HandshakeStep::Transmit { .. }));
    assert_eq!(out, hex("0000000000100000 0d6d"));
    // Without fixed newstyle this is the one option there is.
    let (progress, out) = send(&mut greeted(0), &bytes);
    assert!(matches!(progress.unwrap().step, HandshakeStep::Transmit { .. }));
    assert_eq!(out.len(), 10 + 124);
    assert!(out[10..].iter().all(|byte| *byte == 0));
}

#[test]
fn export_name_cannot_be_refused_politely() {
    for data in [&b"nosuch"[..], b"\xff", b"a\0b"] {
        let (progress, out) = send(&mut greeted(BOTH), &raw_option(1, data));
        assert!(matches!(progress, Err(ProtocolError::ExportRefused { .. })));
        assert!(out.is_empty());
    }
    let (progress, _) = send(&mut greeted(BOTH), &raw_option(1, &[b'a'; 4097]));
    assert!(matches!(progress, Err(ProtocolError::TooLong { .. })));
    let mut server = greeted(BOTH);
    codes(&mut server, &option(&OptionRequest::ExtendedHeaders));
    let (progress, _) = send(&mut server, &raw_option(1, b"disk"));
    assert!(matches!(progress, Err(ProtocolError::ExportRefused { .. })));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_its_export() {
    let (progress, out) = send(&mut greeted(0), &option(&OptionRequest::List));
    assert_eq!(progress.unwrap_err(), ProtocolError::NotFixedNewstyle { option: 3 });
    assert!(out.is_empty());
}

#[test]
fn list_golden() {
    let (progress, out) = send(&mut greeted(FIXED), &option(&OptionRequest::List));
    assert_eq!(progress.unwrap().step, HandshakeStep::Again);
    let head = "0003e889045565a9 00000003";
    let expected = format!(
        "{head} 00000002 00000008 00000004 6469736b
         {head} 00000002 0000000a 00000006 66726f7a656e
         {head} 00000001 00000000"
    );
    assert_eq!(out, hex(&expected));
}

#[test]
fn abort_is_acknowledged_whatever_comes_with_it() {
    for data in [&b""[..], b"bye"] {
        let (progress, out) = send(&mut greeted(FIXED), &raw_option(2, data));
        assert_eq!(progress.unwrap().step, HandshakeStep::Close);
        assert_eq!(replies(&out), [(OptionCode::ABORT, OptionReply::Ack)]);
    }
}

#[test]
fn unknown_options_are_unsupported_and_the_stream_stays_in_step() {
    let mut server = greeted(FIXED);
    for code in [0, 4, 12, 0xffff_ffff] {
        let answer = codes(&mut server, &raw_option(code, b"data of the future"));
        assert_eq!(answer, [OptionReplyCode::ERR_UNSUP], "{code}");
    }
    let answer = codes(&mut server, &option(&OptionRequest::StartTls));
    assert_eq!(answer, [OptionReplyCode::ERR_UNSUP]);
    let answer = codes(&mut server, &option(&OptionRequest::StructuredReply));
    assert_eq!(answer, [OptionReplyCode::ACK]);
}

#[test]
fn malformed_options_are_invalid() {
    let bad: &[(u32, &str)] = &[
        (3, "00"),
        (5, "00"),
        (8, "00"),
        (11, "0000"),
        (7, ""),
        (7, "00000000"),
        (7, "00000000 00"),
        (7, "00000001 61"),
        (7, "00000005 61626364 0000"),
        (7, "ffffffff 0000"),
        (7, "00000001 61 0001"),
        (7, "00000001 61 0001 0003 00"),
        (7, "00000001 61 0000 0003"),
        (7, "00000001 ff 0000"),
        (7, "00000001 00 0000"),
        (6, "00000001"),
        (9, ""),
        (9, "00000000"),
        (9, "00000000 00000001"),
        (9, "00000000 00000001 00000005 6162"),
        (9, "00000000 00000000 00"),
        (9, "00000000 00000001 00000004 62617365"),
        (9, "00000000 00000001 00000002 3a61"),
        (10, "ffffffff 00000000"),
    ];
    for (code, data) in bad {
        let mut server = greeted(FIXED);
        codes(&mut server, &option(&OptionRequest::StructuredReply));
        let answer = codes(&mut server, &raw_option(*code, &hex(data)));
        assert_eq!(answer, [OptionReplyCode::ERR_INVALID], "option {code} with {data:?}");
    }
}

#[test]
fn an_unknown_export_is_unknown() {
    let mut server = greeted(FIXED);
    codes(&mut server, &option(&OptionRequest::StructuredReply));
    let (name, queries) = ("nosuch", vec![]);
    for request in [
        OptionRequest::Info { name, facts: vec![] },
        OptionRequest::Go { name, facts: vec![] },
        OptionRequest::ListMetaContext { name, queries: queries.clone() },
        OptionRequest::SetMetaContext { name, queries },
    ] {
        let answer = codes(&mut server, &option(&request));
        assert_eq!(answer, [OptionReplyCode::ERR_UNKNOWN], "{request:?}");
    }
}

#[test]
fn long_options_are_refused_and_skipped_in_pieces() {
    let mut server = greeted(FIXED);
    let length = u32::try_from(OPTION_BYTES_MAX).unwrap() + 1;
    let mut header = hex("49484156454f5054 00000007");
    header.extend(length.to_be_bytes());
    assert_eq!(codes(&mut server, &header), [OptionReplyCode::ERR_TOO_BIG]);
    let (progress, _) = send(&mut server, &[1; 5000]);
    let step = HandshakeStep::NeedMore(1);
    assert_eq!(progress.unwrap(), HandshakeProgress { consumed: 5000, step });
    let mut rest = vec![1; OPTION_BYTES_MAX + 1 - 5000];
    let skipped = rest.len();
    rest.extend(option(&OptionRequest::List));
    let (progress, _) = send(&mut server, &rest);
    let step = HandshakeStep::Again;
    assert_eq!(progress.unwrap(), HandshakeProgress { consumed: skipped, step });
    assert_eq!(codes(&mut server, &rest[skipped..]).len(), 3, "in step again");
}

#[test]
fn absurd_options_end_the_connection() {
    let mut header = hex("49484156454f5054 00000007");
    header.extend((OPTION_SKIP_BYTES_MAX + 1).to_be_bytes());
    let (progress, out) = send(&mut greeted(FIXED), &header);
    assert!(matches!(progress, Err(ProtocolError::TooLong { .. })));
    assert!(out.is_empty());
    let (progress, _) = send(&mut greeted(FIXED), &hex("49484156454f5055 00000003 00000000"));
    assert!(matches!(progress, Err(ProtocolError::Magic { message: "option", .. })));
}

#[test]
fn a_handshake_ends_at_last() {
    let mut server = greeted(FIXED);
    let list = option(&OptionRequest::List);
    for _ in 0..OPTIONS_MAX {
        assert!(send(&mut server, &list).0.is_ok());
    }
    let (progress, _) = send(&mut server, &list);
    assert_eq!(progress.unwrap_err(), ProtocolError::TooManyOptions { limit: OPTIONS_MAX });
}

#[test]
fn extended_headers_take_precedence() {
    let mut server = greeted(FIXED);
    let structured = option(&OptionRequest::StructuredReply);
    assert_eq!(codes(&mut server, &structured), [OptionReplyCode::ACK]);
    let extended = option(&OptionRequest::ExtendedHeaders);
    assert_eq!(codes(&mut server, &extended), [OptionReplyCode::ACK]);
    assert_eq!(codes(&mut server, &structured), [OptionReplyCode::ERR_EXT_HEADER_REQD]);
    let go = option(&OptionRequest::Go { name: "disk", facts: vec![] });
    let (progress, _) = send(&mut server, &go);
    let HandshakeStep::Transmit { session, .. } = progress.unwrap().step else {
        panic!("transmission begins");
    };
    assert_eq!(session.style, ReplyStyle::Extended);
}

#[test]
fn every_truncated_option_asks_for_the_rest() {
    let go = OptionRequest::Go { name: "disk", facts: vec![InfoCode::NAME] };
    let bytes = option(&go);
    for end in 0..bytes.len() {
        let (progress, out) = send(&mut greeted(FIXED), &bytes[..end]);
        let HandshakeStep::NeedMore(more) = progress.unwrap().step else {
            panic!("a prefix of {end} bytes is not an option");
        };
        assert!(more > 0 && end + more <= bytes.len());
        assert!(out.is_empty());
    }
    let data = &bytes[16..];
    for end in 0..data.len() {
        assert!(decode_option(OptionCode::GO, &data[..end]).is_err(), "{end} of {}", data.len());
    }
}

#[test]
fn every_truncated_reply_asks_for_the_rest() {
    let mut bytes = Vec::new();
    let reply = OptionReply::Server { name: "disk", description: "spinning" };
    encode_option_reply(OptionCode::LIST, &reply, &mut bytes);
    for end in 0..bytes.len() {
        let Ok(Decoded::NeedMore(more)) = decode_option_reply(&bytes[..end]) else {
            panic!("a prefix of {end} bytes is not a reply");
        };
        assert!(more > 0 && end + more <= bytes.len());
    }
    assert_eq!(replies(&bytes), [(OptionCode::LIST, reply)]);
}

#[test]
fn replies_that_contradict_their_type_are_refused() {
    let head = "0003e889045565a9 00000007";
    for (code, data) in [
        ("00000001", "00"),
        ("00000002", "00000009 61"),
        ("00000003", "00"),
        ("00000003", "0000 0000000000100000"),
        ("00000003", "0003 00000001"),
        ("00000004", "0000"),
        ("00000063", ""),
    ] {
        let data = hex(data);
        let mut bytes = hex(&format!("{head} {code}"));
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        assert!(decode_option_reply(&bytes).is_err(), "{code}");
    }
    let bytes = hex(&format!("{head} 00000003 00100000"));
    assert!(matches!(decode_option_reply(&bytes), Err(ProtocolError::TooLong { .. })));
}

fn wish(export: &str, style_max: ReplyStyle, allocation: bool) -> ClientWish {
    let contexts = if allocation { vec![ALLOCATION_CONTEXT.to_owned()] } else { Vec::new() };
    ClientWish { export: export.to_owned(), tls: false, attachment: None, style_max, contexts }
}

/// Lets client and server talk, each hearing at most `chunk` bytes at a time.
fn talk(wish: ClientWish, chunk: usize) -> Result<(Agreement, Session), ProtocolError> {
    talk_under(TlsOffer::None, wish, chunk)
}

/// The same with a server that offers TLS, or asks for it. Both begin it at the same byte, or it panics.
fn talk_under(
    tls: TlsOffer,
    wish: ClientWish,
    chunk: usize,
) -> Result<(Agreement, Session), ProtocolError> {
    let (mut client, mut server) = (ClientHandshake::new(wish), ServerHandshake::new(tls));
    let (mut client_is_secured, mut server_is_secured) = (false, false);
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let (mut client_has, mut server_has) = (Vec::<u8>::new(), Vec::<u8>::new());
    let (mut agreement, mut session) = (None, None);
    server.greet(&mut to_client);
    for _ in 0..10_000 {
        if agreement.is_none() {
            let progress = client.advance(&client_has, &mut to_server)?;
            client_has.drain(..progress.consumed);
            match progress.step {
                ClientStep::Again => {}
                ClientStep::StartTls => {
                    assert!(client_has.is_empty() && to_client.is_empty() && to_server.is_empty());
                    assert!(server_is_secured && !client_is_secured);
                    client_is_secured = true;
                }
                ClientStep::Transmit(agreed) => agreement = Some(agreed),
                ClientStep::NeedMore(more) => {
                    assert!(more > 0);
                    client_has.extend(to_client.drain(..chunk.min(to_client.len())));
                }
            }
        }
        if session.is_none() {
            let progress = server.advance(&server_has, &Shelf, &mut to_client)?;
            server_has.drain(..progress.consumed);
            match progress.step {
                HandshakeStep::Again => {}
                HandshakeStep::StartTls => {
                    assert!(server_has.is_empty() && to_server.is_empty() && !server_is_secured);
                    server_is_secured = true;
                }
                HandshakeStep::Transmit { session: agreed, .. } => session = Some(agreed),
                HandshakeStep::Close => panic!("the client did not say goodbye"),
                HandshakeStep::NeedMore(more) => {
                    assert!(more > 0);
                    server_has.extend(to_server.drain(..chunk.min(to_server.len())));
                }
            }
        }
        if let (Some(agreement), Some(session)) = (&agreement, &session) {
            assert!(client_has.is_empty() && to_client.is_empty() && to_server.is_empty());
            return Ok((agreement.clone(), session.clone()));
        }
    }
    panic!("client and server wait for each other");
}

#[test]
fn client_and_server_agree_under_tls() {
    for offered in [TlsOffer::Optional, TlsOffer::Required] {
        for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
            for chunk in [1, 7, usize::MAX] {
                let wish = ClientWish { tls: true, ..wish("disk", style, true) };
                let (agreement, session) = talk_under(offered, wish, chunk).expect("agreed");
                assert_eq!(agreement.session, session);
                assert_eq!(session.style, style);
            }
        }
    }
    let tls = ClientWish { tls: true, ..wish("disk", ReplyStyle::Extended, true) };
    let error = talk_under(TlsOffer::None, tls, usize::MAX).expect_err("the client insists");
    assert!(matches!(error, ProtocolError::Refused { option: 5, .. }), "{error}");
    let clear = wish("disk", ReplyStyle::Extended, true);
    let error =
        talk_under(TlsOffer::Required, clear.clone(), usize::MAX).expect_err("the server insists");
    assert!(matches!(error, ProtocolError::Refused { .. }), "{error}");
    talk_under(TlsOffer::Optional, clear, usize::MAX).expect("both are content");
}

#[test]
fn nothing_is_told_before_tls_where_it_is_required() {
    let mut server = ServerHandshake::new(TlsOffer::Required);
    server.advance(&FIXED.to_be_bytes(), &Shelf, &mut Vec::new()).expect("known flags");
    let asked = [
        OptionRequest::List,
        OptionRequest::StructuredReply,
        OptionRequest::ExtendedHeaders,
        OptionRequest::Info { name: "disk", facts: Vec::new() },
        OptionRequest::Go { name: "nothing", facts: Vec::new() },
        OptionRequest::SetMetaContext { name: "disk", queries: vec![ALLOCATION_CONTEXT] },
    ];
    for request in asked {
        let asked = option(&request);
        assert_eq!(server.wanted(&asked), None, "nothing is looked up");
        assert_eq!(codes(&mut server, &asked), [OptionReplyCode::ERR_TLS_REQD], "{request:?}");
    }
    let answer = codes(&mut server, &raw_option(77, b"unknown"));
    assert_eq!(answer, [OptionReplyCode::ERR_TLS_REQD]);
    let (progress, _) = send(&mut server, &option(&OptionRequest::ExportName("disk")));
    assert!(matches!(progress, Err(ProtocolError::ExportRefused { .. })));
}

#[test]
fn what_was_agreed_on_in_the_clear_is_forgotten_under_tls() {
    let mut server = ServerHandshake::new(TlsOffer::Optional);
    server.advance(&FIXED.to_be_bytes(), &Shelf, &mut Vec::new()).expect("known flags");
    assert_eq!(
        codes(&mut server, &option(&OptionRequest::ExtendedHeaders)),
        [OptionReplyCode::ACK]
    );
    let (progress, _) = send(&mut server, &option(&OptionRequest::StartTls));
    assert_eq!(progress.expect("begun").step, HandshakeStep::StartTls);
    let again = codes(&mut server, &option(&OptionRequest::StartTls));
    assert_eq!(again, [OptionReplyCode::ERR_INVALID]);
    let (progress, _) =
        send(&mut server, &option(&OptionRequest::Go { name: "", facts: Vec::new() }));
    let HandshakeStep::Transmit { session, .. } = progress.expect("agreed").step else {
        panic!("it begins");
    };
    assert_eq!(session.style, ReplyStyle::Simple);
}

#[test]
fn client_and_server_agree() {
    for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
        for allocation in [false, true] {
            for chunk in [1, 7, 4096] {
                let (agreement, session) = talk(wish("disk", style, allocation), chunk).unwrap();
                assert_eq!(agreement.session, session);
                assert_eq!(session.style, style);
                let agreed = session.contexts.iter().map(|c| (c.id, c.name.as_str()));
                let expected = allocation && style != ReplyStyle::Simple;
                assert!(agreed.eq(expected.then_some((1, ALLOCATION_CONTEXT))));
                assert_eq!(agreement.size, 0x10_0000);
                let sizes = agreement.block_sizes.expect("the server names them when asked");
                assert_eq!((sizes.minimum, sizes.preferred), (1, 4096));
            }
        }
    }
}

#[test]
fn the_client_hears_why_it_is_refused() {
    let error = talk(wish("nosuch", ReplyStyle::Extended, true), 4096).unwrap_err();
    let ProtocolError::Refused { option: 7, reply: 0x8000_0006, message } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(message, "there is no such export");
    assert_eq!(error.kind(), weir_device::ErrorKind::Unavailable);
}

/// Feeds a client the answers of an older server, and collects what it asks.
fn ask_old_server(wish: ClientWish, greeting_flags: u16, answers: &[Vec<u8>]) -> Vec<u32> {
    let mut client = ClientHandshake::new(wish);
    let mut greeting = hex("4e42444d41474943 49484156454f5054");
    greeting.extend(greeting_flags.to_be_bytes());
    let mut asked = Vec::new();
    for input in std::iter::once(&greeting).chain(answers) {
        let mut out = Vec::new();
        let mut input = input.as_slice();
        while !input.is_empty() {
            let progress = client.advance(input, &mut out).unwrap();
            input = &input[progress.consumed..];
            if let ClientStep::Transmit(agreement) = progress.step {
                assert_eq!(agreement.session.style, ReplyStyle::Simple);
                assert_eq!(agreement.size, 0x1000);
                return asked;
            }
        }
        let option_at = out.windows(8).position(|w| w == hex("49484156454f5054")).unwrap();
        let code = out[option_at + 8..option_at + 12].try_into().unwrap();
        asked.push(u32::from_be_bytes(code));
    }
    panic!("no agreement");
}

fn unsupported(option: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let code = OptionReplyCode::ERR_UNSUP;
    let reply = OptionReply::Error { code, message: "" };
    encode_option_reply(OptionCode(option), &reply, &mut bytes);
    bytes
}

#[test]
fn the_client_falls_back_to_what_old_servers_know() {
    let mut by_name = hex("0000000000001000 0001");
    by_name.extend([0; 124]);
    let answers = [unsupported(11), unsupported(8), unsupported(7), by_name.clone()];
    let asked = ask_old_server(wish("x", ReplyStyle::Extended, true), 1, &answers);
    assert_eq!(asked, [11, 8, 7, 1]);
    let asked = ask_old_server(wish("x", ReplyStyle::Extended, true), 0, &[by_name]);
    assert_eq!(asked, [1], "without fixed newstyle there is one option");
    let short = hex("0000000000001000 0001");
    let asked = ask_old_server(wish("x", ReplyStyle::Simple, false), 3, &[unsupported(7), short]);
    assert_eq!(asked, [7, 1], "no zeroes when both sides leave them out");
}

#[test]
fn the_client_refuses_an_old_style_greeting() {
    let mut client = ClientHandshake::new(wish("x", ReplyStyle::Simple, false));
    let greeting = hex("4e42444d41474943 00420281861253 0000000000");
    let error = client.advance(&greeting, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ProtocolError::Magic { message: "greeting", .. }));
}

proptest! {
    #[test]
    fn options_round_trip(
        name in "[a-z/:\u{e9}]{0,30}", kind in 0..4,
        queries in proptest::collection::vec("[a-z]{1,8}:[a-z:]{0,8}", 0..10),
        facts in proptest::collection::vec(any::<u16>(), 0..10),
    ) {
        let facts = facts.into_iter().map(InfoCode).collect();
        let queries = queries.iter().map(String::as_str).collect();
        let request = match kind {
            0 => OptionRequest::Info { name: &name, facts },
            1 => OptionRequest::Go { name: &name, facts },
            2 => OptionRequest::ListMetaContext { name: &name, queries },
            _ => OptionRequest::SetMetaContext { name: &name, queries },
        };
        let bytes = option(&request);
        prop_assert_eq!(decode_option(request.code(), &bytes[16..]), Ok(request));
    }

    /// Whatever a client sends, the server answers, waits or refuses; it never panics, and takes no more than it got.
    #[test]
    fn arbitrary_options_never_panic(
        flags in 0..4_u32,
        options in proptest::collection::vec(
            (0..13_u32, proptest::collection::vec(any::<u8>(), 0..60)), 0..8),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut input = Vec::new();
        for (code, data) in &options {
            input.extend(raw_option(*code, data));
        }
        input.extend(tail);
        let mut server = greeted(flags);
        let mut rest = input.as_slice();
        loop {
            let (progress, _) = send(&mut server, rest);
            let Ok(progress) = progress else { break };
            rest = &rest[progress.consumed..];
            if progress.step != HandshakeStep::Again {
                break;
            }
        }
    }

    #[test]
    fn a_client_never_panics_at_what_a_server_says(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        code in 0..12_u32,
        reply in 0..8_u32,
    ) {
        let _ = decode_option_reply(&bytes);
        let mut framed = hex("0003e889045565a9");
        framed.extend(code.to_be_bytes());
        framed.extend(reply.to_be_bytes());
        framed.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
        framed.extend(&bytes);
        let _ = decode_option_reply(&framed);
        let mut client = ClientHandshake::new(wish("x", ReplyStyle::Extended, true));
        let mut out = Vec::new();
        let greeting = hex("4e42444d41474943 49484156454f5054 0003");
        client.advance(&greeting, &mut out).unwrap();
        let _ = client.advance(&framed, &mut out);
    }
}
