//! Drives the server's handshake over a stream.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_device::DeviceExt;
use weir_nbd::{
    Catalog, ExportInfo, HandshakeProgress, HandshakeStep, ServerHandshake, Session, Wanted,
};

use super::error::NbdError;
use super::export::{Export, Exports};
use super::options::{ConnectionOptions, HANDSHAKE_SILENCE};
use super::places::Admittance;
use super::window::Window;

/// The export that a client chose, and what was agreed on.
pub(super) struct Chosen<H> {
    pub(super) session: Session,
    pub(super) info: ExportInfo,
    /// What stands for the export: the export itself, or the way to the thread that has it.
    pub(super) handle: H,
}

/// A catalog that may have to look things up before the handshake asks for them.
pub(super) trait Prepared: Catalog {
    /// Looks up what the next message asks for.
    async fn prepare(&self, wanted: Wanted<'_>);
}

/// The exports of this thread, as the handshake looks at them.
pub(super) struct ExportsCatalog<'a, E> {
    pub(super) exports: &'a E,
    pub(super) admittance: Admittance<'a>,
}

impl<E: Exports> Catalog for ExportsCatalog<'_, E> {
    type Handle = Export<E::Device>;

    fn find(&self, name: &str) -> Option<(ExportInfo, Self::Handle)> {
        let export = self.exports.find(name)?;
        let info = ExportInfo {
            name: export.name.clone(),
            description: export.description.clone(),
            size: export.device.size(),
            read_only: export.read_only,
            earlier: export.history.as_ref().map(|h| h.earlier().into()).unwrap_or_default(),
        };
        Some((info, export))
    }

    fn list(&self) -> Vec<String> {
        self.exports.list()
    }

    fn admit(&self, _: &Self::Handle) -> Result<(), &'static str> {
        self.admittance.take_place()
    }
}

impl<E: Exports> Prepared for ExportsCatalog<'_, E> {
    async fn prepare(&self, _: Wanted<'_>) {}
}

fn connection(source: std::io::Error) -> NbdError {
    NbdError::Connection { source }
}

/// Runs the handshake within its time. `None` if the client said goodbye or left between two messages.
pub(super) async fn run<S, C>(
    stream: &mut S,
    window: &mut Window,
    catalog: &C,
    options: &ConnectionOptions,
) -> Result<Option<Chosen<C::Handle>>, NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Prepared,
{
    let handshaking = options.handshakes.begin(&options.peer, &options.client);
    let handshake = shake_hands(stream, window, catalog);
    tokio::select! {
        biased;
        () = handshaking.cut() => Err(NbdError::HandshakesFull),
        shaken = tokio::time::timeout(options.handshake_timeout, handshake) => match shaken {
            Ok(result) => result,
            Err(_) => {
                Err(NbdError::HandshakeTimeout { seconds: options.handshake_timeout.as_secs() })
            }
        },
    }
}

async fn shake_hands<S, C>(
    stream: &mut S,
    window: &mut Window,
    catalog: &C,
) -> Result<Option<Chosen<C::Handle>>, NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Prepared,
{
    let mut handshake = ServerHandshake::default();
    let mut out = Vec::new();
    handshake.greet(&mut out);
    loop {
        if let Some(wanted) = handshake.wanted(window.unread()) {
            catalog.prepare(wanted).await;
        }
        let advanced = handshake.advance(window.unread(), catalog, &mut out);
        let sent = send(stream, &mut out).await;
        let HandshakeProgress { consumed, step } = advanced?;
        if !matches!(step, HandshakeStep::Close) {
            // Clients may leave without waiting for the answer to their goodbye.
            sent?;
        }
        window.consume(consumed);
        match step {
            HandshakeStep::Again => {}
            HandshakeStep::Close => return Ok(None),
            HandshakeStep::Transmit { session, info, handle } => {
                return Ok(Some(Chosen { session, info, handle }));
            }
            HandshakeStep::NeedMore(_) => {
                let receive = stream.read(window.space(usize::MAX));
                let received = match tokio::time::timeout(HANDSHAKE_SILENCE, receive).await {
                    Ok(received) => received.map_err(connection)?,
                    Err(_) => {
                        let seconds = HANDSHAKE_SILENCE.as_secs();
                        return Err(NbdError::HandshakeTimeout { seconds });
                    }
                };
                if received == 0 && window.unread().is_empty() {
                    return Ok(None);
                }
                if received == 0 {
                    return Err(NbdError::Truncated);
                }
                window.received(received);
            }
        }
    }
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, out: &mut Vec<u8>) -> Result<(), NbdError> {
    if !out.is_empty() {
        stream.write_all(out).await.map_err(connection)?;
        stream.flush().await.map_err(connection)?;
        out.clear();
    }
    Ok(())
}
