//! Listening for the API: bounded connections, bounded requests, and a token on TCP.
//!
//! Where the process has certificates, the API over TCP is served under TLS, to callers that show one of the same
//! authority: those whose name is on the list of the API need no token. The unix socket needs neither: only the owner
//! of the data directory reaches it (mode 0600 in a directory of mode 0700). What a client sends is bounded in length
//! and in time, so that a mistaken one costs a connection and nothing else.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use weir_device::ErrorKind;
use weir_net::tls::{PeerCertificate, Tls};
use weir_net::{Refusals, origin, shown, shown_error};

use crate::api::refusal::Refusal;
use crate::api::routes;
use crate::error::NodeError;
use crate::serve::core::Core;
use crate::serve::sockets;

/// Connections served at once: people, scripts, a scraper, and room. Where there are more, the oldest one that has not
/// sent a whole request yet makes way; only if there is none, more wait in the backlog.
const CONNECTIONS_MAX: usize = 256;

/// Longest body of a request in bytes; the longest real one is a name and a size.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;

/// Longest head of a request in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Time that a client has to send the head of its next request, and as much for the body; one that is silent for longer
/// is let go.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a request, its body included. What takes longer by its nature answers at once and goes on in lines.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for requests under way when the process stops.
const LINGER: Duration = Duration::from_secs(2);

/// Pause after an `accept` that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shortest token in bytes: what a person types in a minute is guessed in a minute.
const TOKEN_BYTES_MIN: usize = 16;

/// The API over TCP.
#[derive(Clone)]
pub struct TcpApi {
    address: String,
    token: Option<Arc<str>>,
    access: TcpAccess,
}

/// Who reaches the API over TCP.
#[derive(Clone, Debug, Default)]
pub struct TcpAccess {
    /// The certificates, if it is served under TLS.
    pub tls: Option<Tls>,
    /// Names in certificates that may use it without a token.
    pub allow: Vec<String>,
    /// Allow an address that other machines reach without TLS.
    pub insecure: bool,
}

impl std::fmt::Debug for TcpApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpApi({})", self.address)
    }
}

impl TcpApi {
    /// The API at `address`, for those who know `token`, and for those whom `access` names.
    ///
    /// # Errors
    /// [`NodeError::Token`] where the token is missing or too short.
    pub fn new(address: String, token: Option<&str>, access: TcpAccess) -> Result<Self, NodeError> {
        let refused = |reason| NodeError::Token { address: address.clone(), reason };
        if !access.allow.is_empty() && access.tls.is_none() {
            return Err(refused("names in certificates may use it, and there are no certificates"));
        }
        let token = token.map(str::trim);
        match token {
            None if access.allow.is_empty() => return Err(refused("no token is set")),
            Some(token) if token.len() < TOKEN_BYTES_MIN => {
                return Err(refused("the token has fewer than 16 characters"));
            }
            Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return Err(refused("the token has other characters than printable ASCII"));
            }
            None | Some(_) => {}
        }
        Ok(Self { token: token.map(Arc::from), address, access })
    }
}

impl TcpApi {
    /// Refuses an address that other machines reach, unless that was asked for.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        self.check_addresses(&sockets::resolve_now(&self.address)?)
    }

    fn check_addresses(&self, resolved: &[SocketAddr]) -> Result<(), NodeError> {
        let may_be_reached = self.access.insecure || self.access.tls.is_some();
        if !may_be_reached && !resolved.iter().all(|found| found.ip().is_loopback()) {
            return Err(NodeError::ApiNotLoopback { address: self.address.clone() });
        }
        Ok(())
    }
}

/// A listener of the API. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct ApiServer {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    url: Option<String>,
}

impl ApiServer {
    /// Serves on a unix socket.
    pub(crate) fn unix(
        core: Arc<Core>,
        listener: std::os::unix::net::UnixListener,
    ) -> Result<Self, NodeError> {
        let failed = |source| NodeError::io("listening on", "the API's socket", source);
        listener.set_nonblocking(true).map_err(failed)?;
        let _runtime = core.node.workers.enter();
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        let router = routes::router(Arc::clone(&core)).layer(from_fn(take_whole));
        Ok(Self::start(&core, Listener::Unix(listener), router, (None, None)))
    }

    /// Serves on a TCP address those who send the token.
    pub(crate) async fn tcp(core: Arc<Core>, tcp: TcpApi) -> Result<Self, NodeError> {
        let resolved = sockets::resolve(&tcp.address).await?;
        tcp.check_addresses(&resolved)?;
        let address = tcp.address.clone();
        let failed = |source| NodeError::io("listening on", &address, source);
        let listener = std::net::TcpListener::bind(&resolved[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let _runtime = core.node.workers.enter();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let tls = tcp.access.tls.clone();
        let tcp = Arc::new(tcp);
        let refusals = core.node.clients.refusals.clone();
        let check = from_fn(move |request: Request, next: Next| {
            let (tcp, refusals) = (Arc::clone(&tcp), refusals.clone());
            async move { tcp.authorize(request, next, &refusals).await }
        });
        // Who has no token never counts as having sent a request.
        let router = routes::router(Arc::clone(&core)).layer(from_fn(take_whole)).layer(check);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{bound}");
        Ok(Self::start(&core, Listener::Tcp(listener), router, (tls, Some(url))))
    }

    fn start(
        core: &Core,
        listener: Listener,
        router: Router,
        (tls, url): (Option<Tls>, Option<String>),
    ) -> Self {
        let router =
            router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).layer(from_fn(within_time));
        let (stop, stopped) = watch::channel(false);
        let tls = tls.map(|tls| (tls, core.node.clients.refusals.clone()));
        let task = core.node.workers.spawn(accept_loop(listener, tls, router, stopped));
        Self { stop, task, url }
    }

    /// Where it is over TCP, with the port that was chosen for port 0.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Lets nobody in any more, and gives requests under way a moment.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the API ended abnormally");
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Where a connection comes from, for the log.
#[derive(Clone, Debug)]
struct Peer {
    name: String,
    /// The host or its network, without the port, which differs from connection to connection.
    origin: String,
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Listener {
    async fn accept(&self) -> std::io::Result<(Box<dyn Stream>, Peer)> {
        Ok(match self {
            Self::Unix(listener) => {
                let owner = || "the owner".to_owned();
                let stream = listener.accept().await?.0;
                (Box::new(stream), Peer { name: owner(), origin: owner() })
            }
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let host = weir_device::Peer::host(address.ip());
                let (name, origin) = (address.to_string(), origin(&host));
                (Box::new(stream), Peer { name, origin })
            }
        })
    }
}

async fn accept_loop(
    listener: Listener,
    tls: Option<(Tls, Refusals)>,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    // In the order of their coming.
    let mut open: VecDeque<(Arrived, AbortHandle)> = VecDeque::new();
    loop {
        let stop = stopped.clone();
        open.retain(|(_, handle)| !handle.is_finished());
        let has_room =
            open.len() < CONNECTIONS_MAX || open.iter().any(|(arrived, _)| !arrived.has());
        let accepted = tokio::select! {
            biased;
            () = until_stopped(&mut stopped) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if has_room => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                make_way(&mut open);
                let arrived = Arrived::default();
                let router = router.clone().layer(Extension(arrived.clone()));
                let serving = serve((stream, peer), tls.clone(), router, stop);
                open.push_back((arrived, connections.spawn(serving)));
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection of the API");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let _ =
        tokio::time::timeout(LINGER, async { while connections.join_next().await.is_some() {} })
            .await;
}

/// Whether a whole request has arrived on a connection.
#[derive(Clone, Debug, Default)]
struct Arrived(Arc<AtomicBool>);

impl Arrived {
    fn has(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Ends the oldest connection that has not sent a whole request, if there are as many as may be.
fn make_way(open: &mut VecDeque<(Arrived, AbortHandle)>) {
    if open.len() < CONNECTIONS_MAX {
        return;
    }
    let oldest = open.iter().position(|(arrived, _)| !arrived.has());
    if let Some((_, handle)) = oldest.and_then(|oldest| open.remove(oldest)) {
        tracing::debug!("a connection of the API that sent no request makes way for another");
        handle.abort();
    }
}

/// Receives the body of a request before anything is done about it.
async fn take_whole(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let refused =
        |code, message: String| Refusal::new(code, ErrorKind::Invalid, message).into_response();
    let body = match tokio::time::timeout(HEAD_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => Body::from(body),
        Ok(Err(error)) => {
            let message = format!("the body cannot be received: {error}");
            return refused(StatusCode::PAYLOAD_TOO_LARGE, message);
        }
        Err(_) => {
            let message = format!("the body took longer than {} s", HEAD_TIMEOUT.as_secs());
            return refused(StatusCode::REQUEST_TIMEOUT, message);
        }
    };
    if let Some(Arrived(arrived)) = parts.extensions.get() {
        arrived.store(true, Ordering::Relaxed);
    }
    next.run(Request::from_parts(parts, body)).await
}

async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // An error means that the handle was dropped, which is a wish to stop too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Shakes hands with a caller.
async fn secured(
    tls: &Tls,
    stream: Box<dyn Stream>,
) -> std::io::Result<(Box<dyn Stream>, PeerCertificate)> {
    let config = tls.server_config().ok_or(std::io::ErrorKind::NotFound)?;
    let accepted = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::time::timeout(HEAD_TIMEOUT, accepted).await??;
    let caller = PeerCertificate::of(stream.get_ref().1).map_err(std::io::Error::other)?;
    Ok((Box::new(stream), caller))
}

async fn serve(
    (mut stream, peer): (Box<dyn Stream>, Peer),
    tls: Option<(Tls, Refusals)>,
    mut router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    if let Some((tls, refusals)) = &tls {
        match secured(tls, stream).await {
            Ok((secured, caller)) => {
                stream = secured;
                router = router.layer(Extension(caller));
            }
            Err(error) => {
                refusals.note(&peer.origin, &error, |left_out| {
                    let (client, error) = (peer.name, shown_error(&error));
                    let what = "a connection of the API was refused: TLS with the caller";
                    tracing::warn!(client, %error, left_out, "{what}");
                });
                return;
            }
        }
    }
    router = router.layer(Extension(peer));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    let service = TowerToHyperService::new(router);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = until_stopped(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the API ended early");
    }
}

async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the request took longer than {} s", REQUEST_TIMEOUT.as_secs());
            Refusal::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::Unavailable, message)
                .into_response()
        }
    }
}

/// Compares without telling by its time how much was right.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

impl TcpApi {
    /// Lets a request pass whose caller may make it. A connection lives longer than one request: its certificate may
    /// have been revoked meanwhile.
    async fn authorize(&self, request: Request, next: Next, refusals: &Refusals) -> Response {
        let why = match self.refuses(&request) {
            None => return next.run(request).await,
            Some(why) => why,
        };
        let peer = request.extensions().get::<Peer>();
        refusals.note(peer.map_or("", |peer| &peer.origin), &why, |left_out| {
            let client = peer.map(|peer| &*peer.name);
            let caller = request.extensions().get::<PeerCertificate>();
            let name = caller.map(|caller| shown(&caller.holder.name));
            let (path, why) = (shown(request.uri().path()), shown_error(&why));
            tracing::warn!(client, name, path, %why, left_out, "a caller of the API was refused");
        });
        unauthorized(why)
    }

    /// Why a caller may not make this request, if it may not.
    fn refuses(&self, request: &Request) -> Option<String> {
        let caller = request.extensions().get::<PeerCertificate>();
        if let (Some(tls), Some(caller)) = (&self.access.tls, caller) {
            if !tls.accepts(caller) {
                return Some("the certificate is not accepted any more".to_owned());
            }
            if self.access.allow.contains(&caller.holder.name) {
                return None;
            }
        }
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer "));
        let what = match (&self.token, given) {
            (Some(token), Some(given)) if is_same(given.trim().as_bytes(), token.as_bytes()) => {
                return None;
            }
            (None, _) => {
                let name = caller.map_or("", |caller| &caller.holder.name);
                return Some(format!("{name:?} is not among the names that may use the API"));
            }
            (Some(_), Some(_)) => "the token is wrong",
            (Some(_), None) => "a token is needed",
        };
        Some(format!("{what}: send the header `Authorization: Bearer TOKEN`"))
    }
}

fn unauthorized(message: String) -> Response {
    let mut response =
        Refusal::new(StatusCode::UNAUTHORIZED, ErrorKind::Invalid, message).into_response();
    let challenge = header::HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_api_needs_a_real_token() {
        let tcp = |token| TcpApi::new("127.0.0.1:0".to_owned(), token, TcpAccess::default());
        tcp(Some("0123456789abcdef\n")).unwrap();
        for (token, reason) in [
            (None, "no token is set"),
            (Some(""), "fewer than 16"),
            (Some("short"), "fewer than 16"),
            (Some("0123456789 abcdef"), "printable ASCII"),
        ] {
            let error = tcp(token).unwrap_err();
            assert!(error.to_string().contains(reason), "{token:?}: {error}");
        }
    }

    /// A hundred half-open connections kept everybody else out until their time was over.
    #[tokio::test]
    async fn the_oldest_connection_without_a_request_makes_way() {
        let mut tasks = Vec::new();
        let mut open = VecDeque::new();
        for index in 0..CONNECTIONS_MAX {
            let arrived = Arrived::default();
            arrived.0.store(index != 7 && index != 9, Ordering::Relaxed);
            let task = tokio::spawn(std::future::pending::<()>());
            open.push_back((arrived, task.abort_handle()));
            tasks.push(task);
        }
        make_way(&mut open);
        assert_eq!(open.len(), CONNECTIONS_MAX - 1);
        assert!(tasks.remove(7).await.expect_err("it was ended").is_cancelled());
        make_way(&mut open);
        assert_eq!(open.len(), CONNECTIONS_MAX - 1, "there is room");
        open.retain(|(arrived, _)| arrived.has());
        while open.len() < CONNECTIONS_MAX {
            let (arrived, handle) = open[0].clone();
            open.push_back((arrived, handle));
        }
        make_way(&mut open);
        assert_eq!(open.len(), CONNECTIONS_MAX, "who has sent a request stays");
    }

    /// Each connection has a port of its own: whoever comes again and again is one client in the log.
    #[tokio::test]
    async fn connections_of_one_host_are_of_one_client() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener::Tcp(listener);
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (client, accepted) =
                futures_util::join!(tokio::net::TcpStream::connect(address), listener.accept());
            let (_client, (_stream, peer)) = (client.unwrap(), accepted.unwrap());
            peers.push(peer);
        }
        assert_ne!(peers[0].name, peers[1].name);
        assert_eq!([&*peers[0].origin, &*peers[1].origin], ["127.0.0.1"; 2]);
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(is_same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!is_same(b"abc", other));
        }
    }
}
