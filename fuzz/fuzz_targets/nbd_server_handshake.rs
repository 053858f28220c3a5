//! A client's handshake bytes, in pieces of the fuzzer's choice.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_nbd::{Catalog, ExportInfo, HandshakeStep, NotOffered, ServerHandshake, TlsOffer};

struct Shelf;

impl Catalog for Shelf {
    type Handle = ();

    fn find(&self, name: &str) -> Result<(ExportInfo, ()), NotOffered> {
        let info = |read_only| ExportInfo {
            name: "disk".to_owned(),
            description: "a disk".to_owned(),
            size: 1 << 20,
            read_only,
            instance: (!read_only).then_some([7; 16]),
            volume: Some([9; 16]),
            earlier: if read_only { ["a".to_owned(), "b".to_owned()].into() } else { [].into() },
        };
        match name {
            "" | "disk" => Ok((info(false), ())),
            "frozen" => Ok((info(true), ())),
            _ => Err(NotOffered::Unknown),
        }
    }

    fn list(&self) -> Vec<String> {
        vec!["disk".to_owned(), "frozen".to_owned()]
    }
}

/// Longest answer to one option: the facts of one export, with a margin.
const ANSWER_BYTES_MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((first, mut rest)) = input.split_first() else { return };
    let piece = usize::from(*first >> 2).max(1);
    let tls = match first & 3 {
        0 | 1 => TlsOffer::None,
        2 => TlsOffer::Optional,
        _ => TlsOffer::Required,
    };
    let mut handshake = ServerHandshake::new(tls);
    let mut is_secured = false;
    let mut received = Vec::new();
    loop {
        let mut out = Vec::new();
        let Ok(progress) = handshake.advance(&received, &Shelf, &mut out) else { return };
        assert!(out.len() <= ANSWER_BYTES_MAX);
        assert!(progress.consumed <= received.len());
        received.drain(..progress.consumed);
        match progress.step {
            HandshakeStep::Again => {}
            HandshakeStep::StartTls => {
                assert!(tls != TlsOffer::None && !is_secured);
                is_secured = true;
                received.clear();
            }
            HandshakeStep::Transmit { .. } => {
                assert!(is_secured || tls != TlsOffer::Required);
                return;
            }
            HandshakeStep::Close => return,
            HandshakeStep::NeedMore(bytes) => {
                assert!(bytes > 0);
                if rest.is_empty() {
                    return;
                }
                let (head, tail) = rest.split_at(piece.min(rest.len()));
                received.extend_from_slice(head);
                rest = tail;
            }
        }
    }
});
