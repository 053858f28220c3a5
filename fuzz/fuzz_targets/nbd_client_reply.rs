//! A server's bytes to a client: its handshake, then its replies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_nbd::{
    ChosenContext, ChunkCode, ClientHandshake, ClientStep, ClientWish, Command, Decoded,
    ReplyHeader, ReplyStep, ReplyStyle, Requests, Session, TransmissionFlags, decode_chunk,
    decode_reply,
};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

/// The handshake; the style agreed on and the bytes left, if it comes to that.
fn handshake(style_max: ReplyStyle, mut input: &[u8]) -> Option<(ReplyStyle, &[u8])> {
    let contexts = ["base:allocation", "qemu:dirty-bitmap:a"].map(str::to_owned).to_vec();
    let wish = ClientWish {
        export: "disk".to_owned(),
        tls: false,
        attachment: Some(weir_nbd::Attachment {
            session: [3; 16],
            generation: 1,
            exclusive: true,
            known: None,
        }),
        style_max,
        contexts,
    };
    let mut client = ClientHandshake::new(wish);
    let mut out = Vec::new();
    loop {
        let progress = client.advance(input, &mut out).ok()?;
        input = &input[progress.consumed..];
        match progress.step {
            ClientStep::Again | ClientStep::StartTls => {}
            ClientStep::NeedMore(bytes) => {
                assert!(bytes > 0);
                return None;
            }
            ClientStep::Transmit(agreement) => return Some((agreement.session.style, input)),
        }
    }
}

fn replies(style: ReplyStyle, mut input: &[u8]) {
    while let Ok(Decoded::Message { message, consumed }) = decode_reply(style, input) {
        input = &input[consumed..];
        if let ReplyHeader::Chunk { code, length, .. } = message {
            let length = usize::try_from(length).expect("it fits");
            let Some(payload) = input.get(..length) else { return };
            if decode_chunk(code, payload).is_err() {
                return;
            }
            input = &input[length..];
        }
    }
}

/// Replies to requests in flight: no more of a read is told than was asked for, and each is answered once.
fn answers(style: ReplyStyle, mut input: &[u8]) {
    let contexts = match style {
        ReplyStyle::Simple => Vec::new(),
        _ => vec![ChosenContext { id: 1, name: "base:allocation".to_owned() }],
    };
    // Everything is offered, and it is not read-only.
    let flags = TransmissionFlags(u16::MAX ^ 2);
    let mut requests = Requests::new(Session { style, flags, contexts });
    let mut out = Vec::new();
    let mut asked = 0;
    for command in [
        Command::Read { offset: 0, length: 64, unbroken: false },
        Command::Write { offset: 0, length: 1, fua: true },
        Command::Flush,
        Command::BlockStatus { offset: 0, length: 64, one: false },
    ] {
        asked += usize::from(requests.request(command, &mut out).is_ok());
    }
    let (mut told, mut answered) = (0, 0);
    loop {
        // After an error nothing is told of the request that it is about: the connection ends with it.
        let Ok(progress) = requests.advance(input) else { return };
        input = &input[progress.consumed..];
        match progress.step {
            ReplyStep::NeedMore(bytes) => {
                assert!(bytes > 0);
                break;
            }
            ReplyStep::Data { at, length, .. } | ReplyStep::Zeroes { at, length, .. } => {
                assert!(at + length <= 64);
                told += length;
                assert!(told <= 64);
                if let ReplyStep::Data { .. } = progress.step {
                    let length = usize::try_from(length).expect("it fits");
                    let Some(rest) = input.get(length..) else { return };
                    input = rest;
                }
            }
            ReplyStep::Done { .. } => answered += 1,
            ReplyStep::Status { .. } | ReplyStep::Again => {}
        }
    }
    assert_eq!(answered + requests.len(), asked);
}

fuzz_target!(|input: &[u8]| {
    let [choice, rest @ ..] = input else { return };
    let style = STYLES[usize::from(choice % 3)];
    if choice & 0x80 == 0 {
        if let Some((style, rest)) = handshake(style, rest) {
            replies(style, rest);
        }
    } else if let [low, high, payload @ ..] = rest {
        replies(style, rest);
        answers(style, rest);
        let _ = decode_chunk(ChunkCode(u16::from_le_bytes([*low, *high])), payload);
    }
});
