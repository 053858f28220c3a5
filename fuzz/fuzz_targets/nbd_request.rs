//! A stream of requests in one style, judged for one export.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_nbd::{
    ChosenContext, Command, Decoded, ReplyStyle, Session, TransmissionFlags, Verdict,
    decode_request,
};

const SIZE: u64 = 1 << 20;

fn range(command: Command) -> (u64, u64) {
    match command {
        Command::Read { offset, length, .. } => (offset, u64::from(length)),
        Command::Write { offset, length, .. } => (offset, u64::from(length)),
        Command::WriteZeroes { offset, length, .. }
        | Command::Trim { offset, length, .. }
        | Command::Cache { offset, length }
        | Command::BlockStatus { offset, length, .. } => (offset, length),
        Command::Flush => (0, 0),
    }
}

fuzz_target!(|input: &[u8]| {
    let [style, low, high, rest @ ..] = input else { return };
    let mut stream = rest;
    let style = match style % 3 {
        0 => ReplyStyle::Simple,
        1 => ReplyStyle::Structured,
        _ => ReplyStyle::Extended,
    };
    let flags = TransmissionFlags(u16::from_le_bytes([*low, *high]));
    let context = ChosenContext { id: 1, name: "base:allocation".to_owned() };
    let contexts = if *low & 1 != 0 { vec![context] } else { Vec::new() };
    let session = Session { style, flags, contexts };
    while let Ok(Decoded::Message { message, consumed }) = decode_request(style, stream) {
        stream = &stream[consumed..];
        let Ok(verdict) = session.judge(&message, SIZE) else { return };
        let payload_bytes = match verdict {
            Verdict::Disconnect => return,
            Verdict::Refuse { payload_bytes, .. } => payload_bytes,
            Verdict::Run { command, payload_bytes } => {
                let (offset, length) = range(command);
                assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE));
                let is_write = matches!(command, Command::Write { .. });
                assert_eq!(u64::from(payload_bytes), if is_write { length } else { 0 });
                payload_bytes
            }
        };
        let payload_bytes = usize::try_from(payload_bytes).expect("it fits");
        stream = stream.get(payload_bytes..).unwrap_or_default();
    }
});
