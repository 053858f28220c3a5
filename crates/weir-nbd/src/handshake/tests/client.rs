//! What the client asks, waits for and refuses, message by message.

use super::*;

fn greeting(flags: u16) -> Vec<u8> {
    let mut bytes = hex("4e42444d41474943 49484156454f5054");
    bytes.extend(flags.to_be_bytes());
    bytes
}

/// A client that was greeted with fixed newstyle and has asked its first option.
fn asking(wish: ClientWish) -> ClientHandshake {
    let mut client = ClientHandshake::new(wish);
    client.advance(&greeting(3), &mut Vec::new()).unwrap();
    client
}

fn reply(option: u32, reply: &OptionReply<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_option_reply(OptionCode(option), reply, &mut bytes);
    bytes
}

#[test]
fn it_waits_for_exactly_what_is_missing() {
    let whole = greeting(1);
    for end in 0..whole.len() {
        let mut client = ClientHandshake::new(wish("x", ReplyStyle::Simple, false));
        let progress = client.advance(&whole[..end], &mut Vec::new()).unwrap();
        let step = ClientStep::NeedMore(whole.len() - end);
        assert_eq!(progress, ClientProgress { consumed: 0, step });
    }
    for (flags, len) in [(0, 10 + layout::EXPORT_NAME_ZEROES), (2, 10)] {
        let answer = vec![0; len];
        for end in 0..len {
            let mut client = ClientHandshake::new(wish("x", ReplyStyle::Simple, false));
            client.advance(&greeting(flags), &mut Vec::new()).unwrap();
            let progress = client.advance(&answer[..end], &mut Vec::new()).unwrap();
            let step = ClientStep::NeedMore(len - end);
            assert_eq!(progress, ClientProgress { consumed: 0, step });
        }
    }
}

#[test]
fn contexts_are_asked_for_where_they_are_wanted_and_can_be_told() {
    let last = || {
        let mut bytes = hex("0000000000001000 0001");
        bytes.extend([0; 124]);
        bytes
    };
    // Simple replies tell none.
    let answers = [unsupported(7), last()];
    assert_eq!(ask_old_server(wish("x", ReplyStyle::Simple, true), 1, &answers), [7, 1]);
    // None are wanted.
    let mut client = asking(wish("x", ReplyStyle::Structured, false));
    let mut out = Vec::new();
    client.advance(&reply(8, &OptionReply::Ack), &mut out).unwrap();
    assert_eq!(out[8..12], 7_u32.to_be_bytes());
    let mut client = asking(wish("x", ReplyStyle::Structured, true));
    let mut out = Vec::new();
    client.advance(&reply(8, &OptionReply::Ack), &mut out).unwrap();
    assert_eq!(out[8..12], 10_u32.to_be_bytes());
}

#[test]
fn facts_of_an_export_answer_go_alone() {
    let fact = OptionReply::Info(Fact::Export { size: 0x1000, flags: TransmissionFlags(1) });
    let mut client = asking(wish("x", ReplyStyle::Structured, false));
    let error = client.advance(&reply(8, &fact), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ProtocolError::Unexpected { .. }), "{error}");
    let mut client = asking(wish("x", ReplyStyle::Simple, false));
    client.advance(&reply(7, &fact), &mut Vec::new()).unwrap();
}

#[test]
fn block_sizes_that_contradict_each_other_are_refused() {
    let told = |(minimum, preferred, payload_max)| {
        let sizes = BlockSizes { minimum, preferred, payload_max };
        let mut client = asking(wish("x", ReplyStyle::Simple, false));
        let answer = reply(7, &OptionReply::Info(Fact::BlockSize(sizes)));
        client.advance(&answer, &mut Vec::new()).is_ok()
    };
    for sound in [(1, 512, 1), (1, 4096, 1 << 25), (4096, 4096, 4096), (1 << 16, 1 << 16, 1 << 16)]
    {
        assert!(told(sound), "{sound:?}");
    }
    for unsound in [
        (0, 4096, 1 << 25),
        (3, 4096, 1 << 25),
        (1 << 17, 1 << 17, 1 << 25),
        (1, 0, 1 << 25),
        (1, 4095, 1 << 25),
        (1, 256, 1 << 25),
        (8192, 4096, 1 << 25),
        (4096, 4096, 4095),
    ] {
        assert!(!told(unsound), "{unsound:?}");
    }
}

#[test]
fn a_name_may_be_as_long_as_a_string() {
    let raw = |len: usize| raw_option(OptionCode::EXPORT_NAME.0, &vec![b'x'; len]);
    let longest = crate::limits::STRING_BYTES_MAX;
    // It is no export; what is asked is only how far it is heard.
    let (progress, _) = send(&mut greeted(FIXED), &raw(longest));
    assert!(!matches!(progress, Err(ProtocolError::TooLong { .. })), "{progress:?}");
    let (progress, _) = send(&mut greeted(FIXED), &raw(longest + 1));
    assert!(matches!(progress, Err(ProtocolError::TooLong { .. })), "{progress:?}");
}
