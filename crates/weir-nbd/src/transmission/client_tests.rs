//! The client's side against the server's own encoder, in pieces of any length, and against servers that misbehave.

use proptest::prelude::*;

use super::*;
use crate::bytes::Decoded;
use crate::error::ProtocolError;
use crate::handshake::ChosenContext;
use crate::limits::READ_PARTS_MAX;
use crate::numbers::{ChunkFlags, CommandCode, ErrorCode, TransmissionFlags};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
const OFFSET: u64 = 1 << 20;
const LENGTH: u32 = 10_000;
const READ: Command = Command::Read { offset: OFFSET, length: LENGTH, unbroken: false };
const STATUS: Command = Command::BlockStatus { offset: OFFSET, length: 10_000, one: false };

fn session(style: ReplyStyle) -> Session {
    let flags = [
        TransmissionFlags::HAS_FLAGS,
        TransmissionFlags::SEND_FLUSH,
        TransmissionFlags::SEND_FUA,
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        TransmissionFlags::SEND_DF,
        TransmissionFlags::SEND_CACHE,
        TransmissionFlags::SEND_FAST_ZERO,
    ];
    let flags = flags.into_iter().fold(TransmissionFlags(0), TransmissionFlags::with);
    let contexts = match style {
        ReplyStyle::Simple => Vec::new(),
        _ => [7, 9].map(|id| ChosenContext { id, name: format!("context {id}") }).to_vec(),
    };
    Session { style, flags, contexts }
}

/// A request in flight, and whom to answer.
fn asked(style: ReplyStyle, command: Command) -> (Requests, ReplyTo) {
    let mut requests = Requests::new(session(style));
    let mut out = Vec::new();
    let cookie = requests.request(command, &mut out).expect("offered");
    let Ok(Decoded::Message { message, consumed }) = decode_request(style, &out) else {
        panic!("the server reads the request");
    };
    assert_eq!((consumed, message.cookie), (out.len(), cookie));
    let verdict = requests.session().judge(&message, 1 << 40).expect("it is in step");
    let Verdict::Run { command: judged, .. } = verdict else { panic!("{verdict:?}") };
    match (judged, command) {
        // A simple reply is unbroken in any case.
        (Command::Read { .. }, Command::Read { .. }) => {}
        _ => assert_eq!(judged, command, "the server understands what was meant"),
    }
    (requests, session(style).reply_to(&message))
}

/// All steps of the bytes, which must end in step.
fn steps(requests: &mut Requests, mut input: &[u8]) -> Result<Vec<ReplyStep>, ProtocolError> {
    let mut steps = Vec::new();
    loop {
        let progress = requests.advance(input)?;
        input = &input[progress.consumed..];
        match progress.step {
            ReplyStep::NeedMore(_) if input.is_empty() => return Ok(steps),
            ReplyStep::NeedMore(bytes) => panic!("{bytes} more bytes are needed"),
            ReplyStep::Data { length, .. } => {
                input = &input[usize::try_from(length).expect("small")..];
            }
            _ => {}
        }
        steps.push(progress.step);
    }
}

fn done(step: Option<&ReplyStep>) -> Option<&Result<(), Failure>> {
    match step {
        Some(ReplyStep::Done { result, .. }) => Some(result),
        _ => None,
    }
}

#[test]
fn every_command_is_understood_by_the_server_and_its_success_by_the_client() {
    for style in STYLES {
        for command in [
            Command::Write { offset: 5, length: 9, fua: true },
            Command::Write { offset: 5, length: 9, fua: false },
            Command::WriteZeroes { offset: 1, length: 3, fua: true, no_hole: true, fast: true },
            Command::WriteZeroes { offset: 1, length: 3, fua: false, no_hole: false, fast: false },
            Command::Trim { offset: 1, length: 3, fua: true },
            Command::Flush,
            Command::Cache { offset: 1, length: 3 },
        ] {
            let (mut requests, to) = asked(style, command);
            let mut out = Vec::new();
            to.success(&mut out);
            let told = steps(&mut requests, &out).expect("a good server");
            assert_eq!(told.len(), 1);
            assert_eq!(done(told.last()), Some(&Ok(())), "{style:?} {command:?}");
            assert!(requests.is_empty());
        }
    }
}

#[test]
fn failures_come_with_the_words_of_the_server_where_there_is_room() {
    for style in STYLES {
        let (mut requests, to) = asked(style, READ);
        let mut out = Vec::new();
        to.error(&mut out, ErrorCode::Io, "the disk is gone");
        let told = steps(&mut requests, &out).expect("a good server");
        let message = if style == ReplyStyle::Simple { "" } else { "the disk is gone" };
        let failure = Failure { code: ErrorCode::Io, message: message.to_owned(), offset: None };
        assert_eq!(done(told.last()), Some(&Err(failure)));
    }
    let (mut requests, to) = asked(ReplyStyle::Structured, READ);
    let mut out = Vec::new();
    to.read_chunk(&mut out, OFFSET, 3, ChunkFlags::default());
    out.extend([1, 2, 3]);
    to.error_at(&mut out, ErrorCode::Io, "half of it", OFFSET + 3);
    let told = steps(&mut requests, &out).expect("a good server");
    let failure =
        Failure { code: ErrorCode::Io, message: "half of it".to_owned(), offset: Some(OFFSET + 3) };
    assert_eq!(done(told.last()), Some(&Err(failure)));
}

#[test]
fn a_read_of_nothing_is_answered() {
    for style in STYLES {
        let (mut requests, to) =
            asked(style, Command::Read { offset: OFFSET, length: 0, unbroken: false });
        let mut out = Vec::new();
        to.read_head(&mut out, 0);
        let told = steps(&mut requests, &out).expect("a good server");
        assert_eq!((told.len(), done(told.last())), (1, Some(&Ok(()))));
    }
}

#[test]
fn block_status_is_told_in_every_context() {
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let (mut requests, to) = asked(style, STATUS);
        let extents =
            vec![ExtentStatus { length: 10, flags: 0 }, ExtentStatus { length: 99_990, flags: 3 }];
        let statuses = [7, 9].map(|context| ContextStatus { context, extents: extents.clone() });
        let mut out = Vec::new();
        to.block_status(&mut out, &statuses);
        let told = steps(&mut requests, &out).expect("a good server");
        assert_eq!(told.len(), 3);
        for (step, expected) in told.iter().zip(&statuses) {
            assert!(matches!(step, ReplyStep::Status { status, .. } if status == expected));
        }
        assert_eq!(done(told.last()), Some(&Ok(())));
    }
}

#[test]
fn what_is_not_offered_is_not_asked_for() {
    let bare = Session {
        style: ReplyStyle::Simple,
        flags: TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::READ_ONLY),
        contexts: Vec::new(),
    };
    let mut requests = Requests::new(bare);
    let mut out = Vec::new();
    for command in [
        Command::Write { offset: 0, length: 1, fua: false },
        Command::Trim { offset: 0, length: 1, fua: false },
        Command::Flush,
        Command::Cache { offset: 0, length: 1 },
        STATUS,
    ] {
        assert!(requests.request(command, &mut out).is_err(), "{command:?}");
    }
    assert!(out.is_empty() && requests.is_empty());
    requests.request(READ, &mut out).expect("reads always are");
    let long = Command::WriteZeroes {
        offset: 0,
        length: 1 << 33,
        fua: false,
        no_hole: false,
        fast: false,
    };
    assert!(!session(ReplyStyle::Structured).offers(&long));
    assert!(session(ReplyStyle::Extended).offers(&long));
}

#[test]
fn goodbye_is_understood_and_what_is_left_is_known() {
    let (mut requests, _) = asked(ReplyStyle::Extended, READ);
    let mut out = Vec::new();
    requests.request(Command::Flush, &mut out).expect("offered");
    out.clear();
    requests.goodbye(&mut out).expect("no length");
    let Ok(Decoded::Message { message, .. }) = decode_request(ReplyStyle::Extended, &out) else {
        panic!("the server reads it");
    };
    assert_eq!(message.command, CommandCode::DISC);
    let left: Vec<Command> = requests.into_unanswered().map(|(_, command)| command).collect();
    assert_eq!(left, [READ, Command::Flush]);
}

/// What a server that misbehaves sends, beside what it should answer.
type Misbehave = fn(&ReplyTo, &mut Vec<u8>);

#[test]
fn a_server_that_misbehaves_is_found_out() {
    fn data(to: &ReplyTo, out: &mut Vec<u8>, at: u64, length: u32, flags: ChunkFlags) {
        to.read_chunk(out, at, length, flags);
        out.resize(out.len() + usize::try_from(length).expect("small"), 5);
    }
    let cases: [(&str, Command, Misbehave); 13] = [
        ("another request", READ, |to, out| {
            ReplyTo { cookie: Cookie(77), ..*to }.success(out);
        }),
        ("twice", Command::Flush, |to, out| {
            to.success(out);
            to.success(out);
        }),
        ("success of a read without data", READ, |to, out| to.done(out)),
        ("a part is missing", READ, |to, out| data(to, out, OFFSET, LENGTH - 1, ChunkFlags::DONE)),
        ("a hole in the middle", READ, |to, out| {
            data(to, out, OFFSET, 10, ChunkFlags::default());
            data(to, out, OFFSET + 11, LENGTH - 11, ChunkFlags::DONE);
        }),
        ("told twice", READ, |to, out| {
            data(to, out, OFFSET + 10, 10, ChunkFlags::default());
            data(to, out, OFFSET, 11, ChunkFlags::default());
        }),
        ("told twice, the other way", READ, |to, out| {
            data(to, out, OFFSET, 11, ChunkFlags::default());
            to.read_hole(out, OFFSET + 10, 10, ChunkFlags::default());
        }),
        ("before it", READ, |to, out| data(to, out, OFFSET - 1, 2, ChunkFlags::default())),
        ("beyond it", READ, |to, out| data(to, out, OFFSET, LENGTH + 1, ChunkFlags::DONE)),
        ("data for a flush", Command::Flush, |to, out| {
            data(to, out, OFFSET, 1, ChunkFlags::DONE);
        }),
        ("a context is missing", STATUS, |to, out| {
            let extents = vec![ExtentStatus { length: 10, flags: 0 }];
            to.block_status(out, &[ContextStatus { context: 9, extents }]);
        }),
        ("a context that nobody chose", STATUS, |to, out| {
            let extents = vec![ExtentStatus { length: 10, flags: 0 }];
            to.block_status(out, &[ContextStatus { context: 8, extents }]);
        }),
        ("extents beyond the range", STATUS, |to, out| {
            let extents = vec![ExtentStatus { length: 10_000, flags: 0 }; 2];
            to.block_status(out, &[ContextStatus { context: 9, extents }]);
        }),
    ];
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        for (what, command, misbehave) in &cases {
            let (mut requests, to) = asked(style, *command);
            let mut out = Vec::new();
            misbehave(&to, &mut out);
            assert!(steps(&mut requests, &out).is_err(), "{what}, {style:?}");
        }
    }
}

#[test]
fn a_read_that_must_not_be_broken_is_not() {
    let unbroken = Command::Read { offset: OFFSET, length: 4, unbroken: true };
    let (mut requests, to) = asked(ReplyStyle::Structured, unbroken);
    let mut out = Vec::new();
    to.read_hole(&mut out, OFFSET, 2, ChunkFlags::default());
    to.read_hole(&mut out, OFFSET + 2, 2, ChunkFlags::DONE);
    assert!(steps(&mut requests, &out).is_err());
}

#[test]
fn an_extended_reply_repeats_the_offset() {
    let (mut requests, to) = asked(ReplyStyle::Extended, READ);
    let mut out = Vec::new();
    ReplyTo { offset: OFFSET + 1, ..to }.error(&mut out, ErrorCode::Io, "");
    assert!(steps(&mut requests, &out).is_err());
}

#[test]
fn memory_for_what_a_server_scatters_is_bounded() {
    let length = 4 * u32::try_from(READ_PARTS_MAX).expect("small");
    let read = Command::Read { offset: 0, length, unbroken: false };
    let (mut requests, to) = asked(ReplyStyle::Structured, read);
    let mut out = Vec::new();
    for at in 0..=READ_PARTS_MAX as u64 {
        to.read_hole(&mut out, 2 * at, 1, ChunkFlags::default());
    }
    assert!(steps(&mut requests, &out).is_err());
}

/// The content of a read, and a reply that tells it in parts: how long each is, whether it is a hole, and its place in
/// the order of telling.
fn in_pieces(to: &ReplyTo, parts: &[(u32, bool, u64)]) -> (Vec<u8>, Vec<u8>) {
    let length: u32 = parts.iter().map(|(length, ..)| length).sum();
    let mut content: Vec<u8> = (0..length).map(|at| (at % 250).to_le_bytes()[0] + 1).collect();
    let mut at = 0_u32;
    let mut order = Vec::new();
    for (length, is_hole, key) in parts {
        order.push((*key, at, *length, *is_hole));
        at += length;
    }
    order.sort_unstable();
    let mut out = Vec::new();
    let last = order.len() - 1;
    for (index, (_, at, length, is_hole)) in order.into_iter().enumerate() {
        let flags = if index == last { ChunkFlags::DONE } else { ChunkFlags::default() };
        let range = usize::try_from(at).unwrap()..usize::try_from(at + length).unwrap();
        if is_hole {
            content[range].fill(0);
            to.read_hole(&mut out, OFFSET + u64::from(at), length, flags);
        } else {
            to.read_chunk(&mut out, OFFSET + u64::from(at), length, flags);
            out.extend_from_slice(&content[range]);
        }
    }
    (content, out)
}

proptest! {
    /// Reads that are told in any pieces and any order, as data and as holes, received in any pieces, come out as they
    /// went in; beside them other requests are answered.
    #[test]
    fn reads_come_out_as_they_went_in(
        extended in any::<bool>(),
        parts in proptest::collection::vec((1..700_u32, any::<bool>(), any::<u64>()), 1..20),
        cuts in proptest::collection::vec(1..900_usize, 1..40),
    ) {
        let style = if extended { ReplyStyle::Extended } else { ReplyStyle::Structured };
        let length: u32 = parts.iter().map(|(length, ..)| length).sum();
        let read = Command::Read { offset: OFFSET, length, unbroken: false };
        let (mut requests, to) = asked(style, read);
        let (content, out) = in_pieces(&to, &parts);
        let (mut seen, mut is_done) = (vec![9; content.len()], false);
        let (mut input, mut rest) = (Vec::new(), &out[..]);
        let mut cuts = cuts.into_iter().cycle();
        let mut filling: Option<(usize, usize)> = None;
        while !rest.is_empty() || !input.is_empty() || !is_done {
            if let Some((at, left)) = filling.take() {
                let here = left.min(input.len());
                seen[at..at + here].copy_from_slice(&input[..here]);
                input.drain(..here);
                if here < left {
                    filling = Some((at + here, left - here));
                }
            }
            let mut needs = usize::from(filling.is_some());
            if filling.is_none() {
                let progress = requests.advance(&input).expect("a good server");
                input.drain(..progress.consumed);
                match progress.step {
                    ReplyStep::NeedMore(bytes) => needs = bytes,
                    ReplyStep::Data { at, length, .. } => {
                        let at = usize::try_from(at).unwrap();
                        filling = Some((at, usize::try_from(length).unwrap()));
                    }
                    ReplyStep::Zeroes { at, length, .. } => {
                        let at = usize::try_from(at).unwrap();
                        seen[at..at + usize::try_from(length).unwrap()].fill(0);
                    }
                    ReplyStep::Done { result, .. } => {
                        prop_assert_eq!(result, Ok(()));
                        is_done = true;
                    }
                    ReplyStep::Again => {}
                    ReplyStep::Status { .. } => panic!("nobody asked"),
                }
            }
            if needs > 0 {
                prop_assert!(!rest.is_empty(), "no more is asked for than there is");
                let bytes = cuts.next().unwrap().min(rest.len());
                input.extend_from_slice(&rest[..bytes]);
                rest = &rest[bytes..];
            }
        }
        prop_assert!(seen == content);
        prop_assert!(requests.is_empty());
    }
}
