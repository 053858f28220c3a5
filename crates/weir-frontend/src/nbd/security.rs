//! What clients must do before they get anything.

use std::future::Future;

use weir_nbd::TlsOffer;
use weir_net::tls::{PeerCertificate, Tls};

/// Whether the clients of a listener speak TLS.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// They cannot.
    #[default]
    Clear,
    /// They may.
    Optional(Tls),
    /// They must.
    Required(Tls),
}

impl Security {
    pub(super) fn offer(&self) -> TlsOffer {
        match self {
            Self::Clear => TlsOffer::None,
            Self::Optional(_) => TlsOffer::Optional,
            Self::Required(_) => TlsOffer::Required,
        }
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Clear => None,
            Self::Optional(tls) | Self::Required(tls) => Some(tls),
        }
    }
}

/// The certificate that a connection stands on, and where it may be revoked.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) tls: Tls,
    pub(super) certificate: PeerCertificate,
}

/// Completes with `shutdown`, or as soon as the certificate of the client is not accepted any more.
pub(super) async fn until_ended(
    shutdown: impl Future<Output = ()>,
    standing: Option<&Standing>,
    client: &str,
) {
    let Some(Standing { tls, certificate }) = standing else { return shutdown.await };
    tokio::select! {
        biased;
        () = shutdown => {}
        () = tls.until_refused(certificate) => {
            tracing::warn!(client, "the client's certificate is not accepted any more: it is disconnected");
        }
    }
}
