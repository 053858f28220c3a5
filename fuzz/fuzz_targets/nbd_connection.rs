//! A client's bytes to the whole server over a device in memory.
#![no_main]

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_device::{
    ByteRange, ChangedRun, DeviceError, History, LocalBoxFuture, MemoryDevice, SourceId, VolumeId,
};
use weir_frontend::nbd::{ConnectionOptions, Export, Exports, serve_connection};
use weir_nbd::{OptionRequest, encode_option};

/// Every other 512 bytes changed.
struct Halves;

impl History for Halves {
    fn earlier(&self) -> Vec<String> {
        vec!["even".to_owned()]
    }

    fn changed<'a>(
        &'a self,
        _since: &'a str,
        range: ByteRange,
        runs_max: usize,
    ) -> LocalBoxFuture<'a, Result<Vec<ChangedRun>, DeviceError>> {
        let ByteRange { start: mut at, end } = range;
        let mut runs = Vec::new();
        while at < end && runs.len() < runs_max {
            let next = (at / 512 + 1) * 512;
            runs.push(ChangedRun { len: next.min(end) - at, changed: at / 512 % 2 == 1 });
            at = next;
        }
        Box::pin(std::future::ready(Ok(runs)))
    }
}

struct OneDevice(Rc<MemoryDevice>);

impl Exports for OneDevice {
    type Device = MemoryDevice;

    fn find(&self, name: &str) -> Option<Export<MemoryDevice>> {
        matches!(name, "" | "frozen").then(|| Export {
            name: "disk".to_owned(),
            description: String::new(),
            device: Rc::clone(&self.0),
            volume: VolumeId([0; 16]),
            read_only: name == "frozen",
            history: (name == "frozen").then(|| Rc::new(Halves) as Rc<dyn History>),
        })
    }

    fn list(&self) -> Vec<String> {
        vec!["disk".to_owned()]
    }
}

/// Says its bytes in pieces, and listens to so many bytes at a time.
struct Script {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let bytes = self.piece.min(into.remaining()).min(self.bytes.len() - self.at);
        into.put_slice(&self.bytes[self.at..self.at + bytes]);
        self.at += bytes;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len().min(self.piece)))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A prelude that leads into transmission, so that the fuzzer need not find it by itself.
fn prelude(choice: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    if choice & 4 != 0 {
        return bytes;
    }
    bytes.extend([0, 0, 0, 3]);
    let name = if choice & 8 != 0 { "frozen" } else { "" };
    let mut ask = |request| encode_option(&request, &mut bytes).expect("short");
    match choice & 3 {
        0 => {}
        1 | 3 => ask(OptionRequest::StructuredReply),
        _ => ask(OptionRequest::ExtendedHeaders),
    }
    if choice & 3 != 0 {
        let queries = vec!["base:allocation", "qemu:dirty-bitmap:even"];
        ask(OptionRequest::SetMetaContext { name, queries });
    }
    ask(OptionRequest::Go { name, facts: Vec::new() });
    bytes
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
}

fuzz_target!(|input: &[u8]| {
    let [choice, piece, rest @ ..] = input else { return };
    let mut bytes = prelude(*choice);
    bytes.extend_from_slice(rest);
    let piece = match piece {
        0 => usize::MAX,
        small => usize::from(*small),
    };
    let device = Rc::new(MemoryDevice::new(1 << 20));
    let exports = Rc::new(OneDevice(Rc::clone(&device)));
    let options = ConnectionOptions::new(SourceId(0), "fuzz");
    let served =
        serve_connection(Script { bytes, at: 0, piece }, exports, options, std::future::pending());
    // How it ended is the client's business; that it ended is checked by getting here.
    let _ = RUNTIME.with(|runtime| runtime.block_on(served));
    assert_eq!(Rc::strong_count(&device), 1, "nothing holds on to the device");
});
