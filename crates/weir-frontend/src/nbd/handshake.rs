//! Drives the server's handshake over a stream.

use std::future::Future;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_device::DeviceExt;
use weir_nbd::{
    Admission, Attachment, Catalog, Exclusive, ExportInfo, HandshakeProgress, HandshakeStep,
    NotAttached, NotOffered, ServerHandshake, Session, Wanted,
};

use super::access::Access;
use super::error::NbdError;
use super::export::{Export, Exports};
use super::options::{ConnectionOptions, HANDSHAKE_SILENCE};
use super::places::Admittance;
use super::window::Window;

/// The export that a client chose, and what was agreed on.
pub(super) struct Chosen<H> {
    pub(super) session: Session,
    /// What the connection belongs to, if the client said so.
    pub(super) attachment: Option<Attachment>,
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
    pub(super) access: &'a Access,
}

impl<E: Exports> Catalog for ExportsCatalog<'_, E> {
    type Handle = Export<E::Device>;

    fn find(&self, name: &str) -> Result<(ExportInfo, Self::Handle), NotOffered> {
        let export = self.exports.find(name).ok_or(NotOffered::Unknown)?;
        let info = ExportInfo {
            name: export.name.clone(),
            description: export.description.clone(),
            size: export.device.size(),
            read_only: export.read_only,
            instance: self.exports.instance(),
            volume: Some(export.volume.0),
            earlier: export.history.as_ref().map(|h| h.earlier().into()).unwrap_or_default(),
        };
        Ok((info, export))
    }

    fn list(&self) -> Vec<String> {
        self.exports.list()
    }

    fn attach(
        &self,
        (info, _): (&ExportInfo, &Self::Handle),
        attachment: &Attachment,
    ) -> Result<Option<Exclusive>, NotAttached> {
        self.admittance.attach(self.access, (info, self.admittance.client()), attachment)
    }

    fn admit(
        &self,
        (info, _): (&ExportInfo, &Self::Handle),
        attachment: Option<&Attachment>,
    ) -> Result<Admission, &'static str> {
        self.admittance.admit(self.access, (info, self.admittance.client()), attachment)
    }
}

impl<E: Exports> Prepared for ExportsCatalog<'_, E> {
    async fn prepare(&self, _: Wanted<'_>) {}
}

fn connection(source: std::io::Error) -> NbdError {
    NbdError::Connection { source }
}

/// Runs `handshake` within its time, unless it is cut off in favour of others.
pub(super) async fn within_time<T>(
    options: &ConnectionOptions,
    handshake: impl Future<Output = Result<T, NbdError>>,
) -> Result<T, NbdError> {
    let handshaking = options.handshakes.begin(&options.peer, &options.client);
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

/// Where a handshake has come to.
pub(super) enum Shaken<H> {
    /// The client has chosen its export.
    Chosen(Chosen<H>),
    /// The client waits for TLS to begin.
    StartTls,
    /// The client said goodbye, or left between two messages.
    Goodbye,
}

/// Goes on with a handshake. What it has to say at its beginning is in `out`.
pub(super) async fn shake_hands<S, C>(
    handshake: &mut ServerHandshake,
    stream: &mut S,
    window: &mut Window,
    catalog: &C,
    out: &mut Vec<u8>,
) -> Result<Shaken<C::Handle>, NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Prepared,
{
    loop {
        if let Some(wanted) = handshake.wanted(window.unread()) {
            catalog.prepare(wanted).await;
        }
        let advanced = handshake.advance(window.unread(), catalog, out);
        let sent = send(stream, out).await;
        let HandshakeProgress { consumed, step } = advanced?;
        if !matches!(step, HandshakeStep::Close) {
            // Clients may leave without waiting for the answer to their goodbye.
            sent?;
        }
        window.consume(consumed);
        match step {
            HandshakeStep::Again => {}
            HandshakeStep::Close => return Ok(Shaken::Goodbye),
            HandshakeStep::StartTls => return Ok(Shaken::StartTls),
            HandshakeStep::Transmit { session, info, handle, attachment } => {
                return Ok(Shaken::Chosen(Chosen { session, attachment, info, handle }));
            }
            HandshakeStep::NeedMore(_) => {
                let receive = stream.read(window.space(usize::MAX));
                let received = in_time(receive).await?.map_err(connection)?;
                if received == 0 && window.unread().is_empty() {
                    return Ok(Shaken::Goodbye);
                }
                if received == 0 {
                    return Err(NbdError::Truncated);
                }
                window.received(received);
            }
        }
    }
}

/// What a client has to send or to answer, within its time for that.
pub(super) async fn in_time<T>(message: impl Future<Output = T>) -> Result<T, NbdError> {
    let seconds = HANDSHAKE_SILENCE.as_secs();
    let came = tokio::time::timeout(HANDSHAKE_SILENCE, message).await;
    came.map_err(|_| NbdError::HandshakeTimeout { seconds })
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, out: &mut Vec<u8>) -> Result<(), NbdError> {
    if !out.is_empty() {
        stream.write_all(out).await.map_err(connection)?;
        stream.flush().await.map_err(connection)?;
        out.clear();
    }
    Ok(())
}
