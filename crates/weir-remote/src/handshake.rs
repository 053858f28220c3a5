//! The handshake of a client over a connection, TLS included.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_device::ByteStream;
use weir_nbd::{Agreement, ClientHandshake, ClientStep, ClientWish};
use weir_net::tls::PeerCertificate;

use crate::error::RemoteError;
use crate::url::Wanted;

/// Received at a time; answers to options are short.
const RECEIVE_BYTES: usize = 4 << 10;

/// A connection on which an export was agreed on.
pub struct Greeted {
    /// The connection.
    pub stream: Box<dyn ByteStream>,
    /// What was agreed on.
    pub agreement: Agreement,
    /// Bytes of the transmission that were received already.
    pub received: Vec<u8>,
    /// Who the server is, under TLS.
    pub server: Option<PeerCertificate>,
}

impl std::fmt::Debug for Greeted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Greeted").field("agreement", &self.agreement).finish_non_exhaustive()
    }
}

/// Asks for an export on a connection of which nothing was read yet. `security` decides about `wish.tls`. It takes as
/// long as the server takes: the caller sets the deadline.
///
/// # Errors
/// [`RemoteError`]; the connection has ended then.
pub async fn shake_hands(
    mut stream: Box<dyn ByteStream>,
    wish: ClientWish,
    security: Option<Wanted<'_>>,
) -> Result<Greeted, RemoteError> {
    let wish = ClientWish { tls: security.is_some(), ..wish };
    let mut handshake = ClientHandshake::new(wish);
    let (mut received, mut out, mut server) = (Vec::new(), Vec::new(), None);
    let failed = |source| RemoteError::Connection { source };
    loop {
        let progress = handshake.advance(&received, &mut out)?;
        received.drain(..progress.consumed);
        if !out.is_empty() {
            stream.write_all(&out).await.map_err(failed)?;
            stream.flush().await.map_err(failed)?;
            out.clear();
        }
        match progress.step {
            ClientStep::Again => {}
            ClientStep::NeedMore(_) => {
                received.reserve(RECEIVE_BYTES);
                if stream.read_buf(&mut received).await.map_err(failed)? == 0 {
                    return Err(RemoteError::Ended);
                }
            }
            ClientStep::StartTls => {
                if !received.is_empty() {
                    return Err(RemoteError::SentBeforeTls);
                }
                let (name, tls) = security.ok_or(RemoteError::UnwishedTls)?;
                let secured = tls.connect(stream, name.clone()).await?;
                (stream, server) = (secured.stream, Some(secured.peer));
            }
            ClientStep::Transmit(agreement) => {
                return Ok(Greeted { stream, agreement, received, server });
            }
        }
    }
}
