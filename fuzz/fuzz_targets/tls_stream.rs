//! TLS: any bytes to a server and to a client, and two ends of which what goes over the wire is changed, cut off or
//! comes in pieces. What arrives is what was sent, or an error.
#![no_main]

use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use libfuzzer_sys::fuzz_target;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use weir_device::{ByteStream, DetachedStream};
use weir_net::pki::{Authority, CERTIFICATE_DAYS, AUTHORITY_DAYS, Request, Usage};
use weir_net::tls::Tls;

/// Bytes that each side sends.
const SENT: usize = 40_000;

/// Turns after which nothing comes any more.
const TURNS_MAX: u32 = 50_000;

/// One end of a wire.
struct End {
    io: DuplexStream,
    /// Bytes read so far, and those at which a read byte is another one.
    read: usize,
    flips: Vec<(usize, u8)>,
    /// The wire is cut there.
    cut: usize,
    piece: usize,
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let most = self.piece.min(into.remaining()).min(self.cut - self.read);
        if most == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut bytes = vec![0; most];
        let mut part = ReadBuf::new(&mut bytes);
        match Pin::new(&mut self.io).poll_read(cx, &mut part) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        let count = part.filled().len();
        for (at, mask) in &self.flips {
            if let Some(index) = at.checked_sub(self.read).filter(|index| *index < count) {
                bytes[index] ^= mask;
            }
        }
        self.read += count;
        into.put_slice(&bytes[..count]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let part = bytes.len().min(self.piece);
        Pin::new(&mut self.io).poll_write(cx, &bytes[..part])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl ByteStream for End {
    fn detach(self: Box<Self>) -> std::io::Result<Box<dyn DetachedStream>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// The certificates of one node, for both sides.
fn tls() -> &'static Tls {
    static TLS: OnceLock<Tls> = OnceLock::new();
    TLS.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("weir-fuzz-tls-{}", std::process::id()));
        let mut authority =
            Authority::create(&directory, "fuzz", AUTHORITY_DAYS).expect("an authority");
        let hosts = ["127.0.0.1".to_owned()];
        let request =
            Request { name: "node", hosts: &hosts, usage: Usage::Both, days: CERTIFICATE_DAYS };
        let issued = authority.issue(&request).expect("issued");
        let tls = Tls::load(&issued).expect("loads");
        std::fs::remove_dir_all(&directory).expect("it is ours");
        tls
    })
}

fn name() -> ServerName<'static> {
    ServerName::try_from("127.0.0.1").expect("an address")
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..SENT).map(|n| ((n * 31 + n / 253 + seed) % 256) as u8).collect()
}

/// Sends all, and reads what the other one sends, or up to an end or an error; what was read is a beginning of it. It
/// does not say goodbye before it has read all: a record that is damaged after that meets an assertion of the library,
/// which releases do not have.
async fn exchange(stream: Box<dyn ByteStream>, own: usize, others: usize) -> usize {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sends = async {
        // The wire may be cut.
        let sent = pattern(own);
        for chunk in sent.chunks(7000) {
            if writer.write_all(chunk).await.is_err() {
                return;
            }
        }
        let _ = writer.flush().await;
    };
    let reads = async {
        let (mut found, mut part) = (Vec::new(), vec![0; 5000]);
        while found.len() < SENT
            && let Ok(count @ 1..) = reader.read(&mut part).await
        {
            found.extend_from_slice(&part[..count]);
        }
        found
    };
    let ((), found) = tokio::join!(sends, reads);
    let expected = pattern(others);
    assert!(expected.starts_with(&found), "what arrives is what was sent");
    found.len()
}

/// Any bytes to one side.
async fn one_sided(input: &[u8], is_server: bool, piece: usize) {
    let (io, mut other) = tokio::io::duplex(1 << 20);
    let end = End { io, read: 0, flips: Vec::new(), cut: usize::MAX, piece };
    let talks = async move {
        let _ = other.write_all(input).await;
        let _ = other.shutdown().await;
        let mut rest = Vec::new();
        let _ = other.read_to_end(&mut rest).await;
    };
    let listens = async {
        let secured = match is_server {
            true => tls().accept(Box::new(end)).await,
            false => tls().connect(Box::new(end), name()).await,
        };
        assert!(secured.is_err(), "nobody has proved anything");
    };
    tokio::join!(talks, listens);
}

async fn both(choices: &[u8], piece: usize) {
    let (one, other) = tokio::io::duplex(64 << 10);
    let number = |at: usize| choices.get(at).copied().map_or(0, usize::from);
    let position = |at: usize| number(at) << 8 | number(at + 1);
    let flips = |from: usize| {
        let count = number(from) % 4;
        (0..count).map(|n| (position(from + 1 + 3 * n), number(from + 3 + 3 * n) as u8)).collect()
    };
    let cut = |at: usize| if number(at) % 4 == 1 { position(at + 1) } else { usize::MAX };
    // One direction only: the other side comes to its end, and ends the connection.
    let (mut server, mut client) = (
        End { io: one, read: 0, flips: Vec::new(), cut: usize::MAX, piece },
        End { io: other, read: 0, flips: Vec::new(), cut: usize::MAX, piece },
    );
    let harmed = if number(30) % 2 == 0 { &mut server } else { &mut client };
    (harmed.flips, harmed.cut) = (flips(0), cut(20));
    let is_harmed =
        |end: &End| end.cut != usize::MAX || end.flips.iter().any(|(_, mask)| *mask != 0);
    let is_whole = !is_harmed(&server) && !is_harmed(&client);
    let serves = async {
        let secured = tls().accept(Box::new(server)).await.ok()?;
        Some(exchange(secured.stream, 1, 2).await)
    };
    let uses = async {
        let secured = tls().connect(Box::new(client), name()).await.ok()?;
        Some(exchange(secured.stream, 2, 1).await)
    };
    // Damage within the handshake can have each wait for the other; their callers have deadlines.
    let given_up = async {
        for _ in 0..TURNS_MAX {
            tokio::task::yield_now().await;
        }
    };
    let ends = tokio::select! {
        biased;
        ends = async { tokio::join!(serves, uses) } => ends,
        () = given_up => (None, None),
    };
    if is_whole {
        assert_eq!(ends, (Some(SENT), Some(SENT)), "nothing was in the way");
    }
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
}

fuzz_target!(|input: &[u8]| {
    let [mode, piece, rest @ ..] = input else { return };
    let piece = match piece {
        0..128 => usize::MAX,
        small => usize::from(*small) * 16,
    };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            match mode % 4 {
                0 => one_sided(rest, true, piece).await,
                1 => one_sided(rest, false, piece).await,
                _ => both(rest, piece).await,
            }
        });
    });
});
