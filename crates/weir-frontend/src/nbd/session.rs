//! One connection from its handshake to its end.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use weir_nbd::ServerHandshake;

use super::error::NbdError;
use super::export::{Export, Exports};
use super::handshake::{Chosen, ExportsCatalog, Prepared, Shaken};
use super::keep::{Keeper, Left};
use super::options::ConnectionOptions;
use super::places::Admittance;
use super::window::Window;
use super::{connection, handshake};

/// Time for the last words to a client.
const GOODBYE: Duration = Duration::from_secs(2);

/// Serves one client until it leaves, breaks the protocol, or `shutdown` completes.
///
/// Operations that were started run to their end before this returns, whatever becomes of the client; after `shutdown`
/// their replies are sent as well, as long as `linger` lasts. What has not ended then gets no reply and, as when the
/// returned future is dropped, is left to rule 5 of the device contract.
///
/// # Errors
/// [`NbdError`] when the connection ended otherwise than by the client's wish or by `shutdown`.
pub async fn serve_connection<S, E>(
    mut stream: S,
    exports: Rc<E>,
    options: ConnectionOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    E: Exports,
{
    let mut shutdown = std::pin::pin!(shutdown);
    let mut window = Window::new();
    let catalog = ExportsCatalog {
        exports: &*exports,
        admittance: Admittance::of(&options.places, &options.peer, &options.client),
        access: &options.access,
    };
    let shaken = tokio::select! {
        biased;
        () = shutdown.as_mut() => Ok(None),
        shaken = in_the_clear(&mut stream, &mut window, &catalog, &options) => shaken,
    };
    match shaken {
        Ok(Some(chosen)) => {
            // Until the client has left.
            let _taken = catalog.admittance.taken();
            let options = options.clone();
            transmit(stream, window, chosen, &*exports, options, shutdown).await.map(drop)
        }
        Ok(None) => end(stream, &options, Ok(())).await,
        Err(error) => end(stream, &options, Err(error)).await,
    }
}

/// Shakes hands with a client that is offered no TLS.
async fn in_the_clear<S, C>(
    stream: &mut S,
    window: &mut Window,
    catalog: &C,
    options: &ConnectionOptions,
) -> Result<Option<Chosen<C::Handle>>, NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    C: Prepared,
{
    let (mut handshake, mut out) = (ServerHandshake::default(), Vec::new());
    handshake.greet(&mut out);
    let shaken = handshake::shake_hands(&mut handshake, stream, window, catalog, &mut out);
    Ok(match handshake::within_time(options, shaken).await? {
        Shaken::Chosen(chosen) => Some(chosen),
        Shaken::Goodbye => None,
        Shaken::StartTls => unreachable!("it is not offered"),
    })
}

/// Serves a client that has chosen its export; see [`serve_connection`]. Returns the connection if another process is
/// to go on with it.
pub(super) async fn transmit<S, E>(
    mut stream: S,
    window: Window,
    chosen: Chosen<Export<E::Device>>,
    exports: &E,
    options: ConnectionOptions,
    shutdown: Pin<&mut impl Future<Output = ()>>,
) -> Result<Option<(S, Left)>, NbdError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exports,
{
    // A client that attaches comes again by itself, and is told of another opening.
    let keeper = options.keeper.clone().filter(|_| chosen.attachment.is_none());
    let joined = chosen.attachment.map(|one| options.attachments.join(&chosen.info.name, one));
    let attached = match joined.transpose() {
        Ok(attached) => attached,
        Err(error) => return end(stream, &options, Err(error)).await.map(|()| None),
    };
    tracing::info!(client = options.client, export = chosen.info.name, "client connected");
    let running = async {
        if let Some(attached) = &attached {
            attached.alone().await;
        }
        let keep = async |given| exports.keep_given(given).await;
        let settled = options.access.settle(&chosen.info.name, keep).await;
        settled.map_err(|source| NbdError::AccessNotKept { source })?;
        let may_stay = || keeper.as_ref().is_some_and(Keeper::keeps);
        connection::run(&mut stream, window, chosen, &options, shutdown, may_stay).await
    };
    let result = match &attached {
        None => running.await,
        Some(attached) => tokio::select! {
            biased;
            // What it has in flight is dropped: it must not keep the newer one waiting, and its replies go nowhere.
            () = attached.replaced() => Err(NbdError::Replaced),
            result = running => result,
        },
    };
    drop(attached);
    match result {
        Ok(Some(left)) => Ok(Some((stream, left))),
        Ok(None) => end(stream, &options, Ok(())).await.map(|()| None),
        Err(error) => end(stream, &options, Err(error)).await.map(|()| None),
    }
}

async fn end<S: AsyncWrite + Unpin>(
    mut stream: S,
    options: &ConnectionOptions,
    result: Result<(), NbdError>,
) -> Result<(), NbdError> {
    // The client may be gone already, or take nothing: under TLS the goodbye waits behind what was not sent.
    let _ = timeout(GOODBYE, stream.shutdown()).await;
    match &result {
        Ok(()) => tracing::info!(client = options.client, "client disconnected"),
        Err(error) => options.note_ended(error),
    }
    result
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::{Context, Poll};

    use weir_device::SourceId;

    use super::*;

    /// A connection of a client that takes nothing.
    struct Stuck;

    impl AsyncWrite for Stuck {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_not_waited_for() {
        let options = ConnectionOptions::new(SourceId(1), "client");
        let ended = timeout(2 * GOODBYE, end(Stuck, &options, Ok(()))).await;
        ended.expect("it ends").expect("as it was told");
    }
}
