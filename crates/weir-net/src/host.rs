//! TCP and unix sockets of this host, on the runtime of the thread that asks.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use weir_device::{Accepted, Address, ByteStream, Listener, LocalBoxFuture, Network, Peer};

use crate::socket::Socket;

/// Silence on a TCP connection after which the kernel asks whether the peer is still there, the time between asking
/// and how many go unanswered before it is given up: a host that vanished is noticed within two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_QUESTIONS: u32 = 4;

/// Time in milliseconds that the other end has to acknowledge what was sent: as long as all questions together.
const UNANSWERED_MS: u32 = 120_000;

/// The sockets of this host.
///
/// Listening and connecting must be done on a thread whose runtime does I/O, and the connections stay there until they
/// are detached.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostNetwork;

impl Network for HostNetwork {
    fn listen<'a>(&'a self, at: &'a Address) -> LocalBoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            Ok(match at {
                Address::Unix(path) => {
                    let listener = bind_unix(path).await?;
                    let file = SocketFile(Some(path.clone()));
                    Box::new(UnixSockets { listener, file }) as Box<dyn Listener>
                }
                Address::Tcp(address) => Box::new(TcpSockets(TcpListener::bind(address).await?)),
            })
        })
    }

    fn connect<'a>(
        &'a self,
        to: &'a Address,
    ) -> LocalBoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move {
            Ok(match to {
                Address::Unix(path) => {
                    let stream = UnixStream::connect(path).await?;
                    Box::new(Socket::new(stream.into_std()?)?) as Box<dyn ByteStream>
                }
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    prepare(&stream)?;
                    Box::new(Socket::new(stream.into_std()?)?)
                }
            })
        })
    }
}

/// A socket that listens already, whoever made it.
#[derive(Debug)]
pub enum Listening {
    /// A unix socket. Its file stays when the listener is dropped.
    Unix(std::os::unix::net::UnixListener),
    /// A TCP socket.
    Tcp(std::net::TcpListener),
}

/// Listens on the runtime of this thread.
///
/// # Errors
/// When the runtime does not take the socket.
pub fn listen_on(listening: Listening) -> io::Result<Box<dyn Listener>> {
    Ok(match listening {
        Listening::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            Box::new(UnixSockets { listener, file: SocketFile(None) })
        }
        Listening::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            Box::new(TcpSockets(TcpListener::from_std(listener)?))
        }
    })
}

/// Listens on `path`. A socket file that nobody listens on any more is replaced.
async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !is_dead_socket(path).await {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Whether `path` is a socket that nobody listens on. Connecting to a plain file is refused as well, so its type is
/// looked at first: nobody's data is taken for a left-over.
async fn is_dead_socket(path: &Path) -> bool {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let connected = UnixStream::connect(path).await;
    is_socket && connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The file of a socket, removed with its listener where that made it.
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "the socket file could not be removed");
        }
    }
}

struct UnixSockets {
    listener: UnixListener,
    file: SocketFile,
}

impl Listener for UnixSockets {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (stream, _) = ready!(self.listener.poll_accept(cx))?;
        let credentials = stream.peer_cred();
        let peer = credentials.map_or(Peer::Unknown, |credentials| Peer::User(credentials.uid()));
        let stream = Box::new(Socket::new(stream.into_std()?)?);
        Poll::Ready(Ok(Accepted { stream, peer, name: None }))
    }

    fn address(&self) -> Address {
        let bound = self.listener.local_addr().ok();
        let path = bound.as_ref().and_then(|address| address.as_pathname());
        Address::Unix(path.or(self.file.0.as_deref()).unwrap_or(Path::new("")).to_owned())
    }
}

struct TcpSockets(TcpListener);

impl Listener for TcpSockets {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (stream, address) = ready!(self.0.poll_accept(cx))?;
        prepare(&stream)?;
        let (peer, name) = (Peer::host(address.ip()), Some(address.to_string()));
        let stream = Box::new(Socket::new(stream.into_std()?)?);
        Poll::Ready(Ok(Accepted { stream, peer, name }))
    }

    fn address(&self) -> Address {
        Address::Tcp(self.0.local_addr().map_or_else(|_| String::new(), |bound| bound.to_string()))
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // What is written is gathered already; waiting for more would only delay it.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_QUESTIONS)?;
    // While something is on its way no question is asked: then this counts.
    sockopt::set_tcp_user_timeout(stream, UNANSWERED_MS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;

    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

    use super::*;

    async fn accept(listener: &mut Box<dyn Listener>) -> Accepted {
        poll_fn(|cx| listener.poll_accept(cx)).await.expect("a connection")
    }

    async fn exchange(listener: &mut Box<dyn Listener>, to: &Address) -> Accepted {
        let mut client = HostNetwork.connect(to).await.expect("connected");
        let mut accepted = accept(listener).await;
        client.write_all(b"question").await.expect("sent");
        let mut bytes = [0; 4];
        accepted.stream.read_exact(&mut bytes).await.expect("received");
        // What was not read yet goes with the connection.
        let detached = accepted.stream.detach().expect("detached");
        accepted.stream = detached.attach().expect("attached");
        accepted.stream.read_exact(&mut bytes).await.expect("received");
        assert_eq!(&bytes, b"tion");
        let answer = [io::IoSlice::new(b"ans"), io::IoSlice::new(b"wer")];
        assert!(accepted.stream.is_write_vectored());
        let sent = poll_fn(|cx| Pin::new(&mut accepted.stream).poll_write_vectored(cx, &answer));
        assert_eq!(sent.await.expect("sent"), 6);
        let mut bytes = [0; 6];
        client.read_exact(&mut bytes).await.expect("received");
        assert_eq!(&bytes, b"answer");
        accepted
    }

    #[tokio::test]
    async fn bytes_go_both_ways_over_a_unix_socket_whose_file_goes_with_it() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("socket");
        let at = Address::Unix(path.clone());
        let mut listener = HostNetwork.listen(&at).await.expect("listening");
        assert_eq!(listener.address(), at);
        let accepted = exchange(&mut listener, &at).await;
        assert!(matches!(accepted.peer, Peer::User(_)) && accepted.name.is_none());
        assert!(HostNetwork.listen(&at).await.is_err(), "somebody listens");
        drop(listener);
        assert!(!path.exists(), "the file is gone");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "a socket that nobody listens on");
        drop(HostNetwork.listen(&at).await.expect("it is replaced"));
    }

    #[tokio::test]
    async fn bytes_go_both_ways_over_tcp() {
        let any = Address::Tcp("127.0.0.1:0".to_owned());
        let mut listener = HostNetwork.listen(&any).await.expect("listening");
        let at = listener.address();
        let accepted = exchange(&mut listener, &at).await;
        let local = Peer::host(std::net::IpAddr::from([127, 0, 0, 1]));
        assert!(accepted.peer == local && accepted.name.is_some());
        drop(listener);
        let refused = HostNetwork.connect(&at).await.err().expect("refused");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_socket_that_others_made_is_listened_on_and_its_file_stays() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("socket");
        let socket = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let mut listener = listen_on(Listening::Unix(socket)).expect("listening");
        exchange(&mut listener, &Address::Unix(path.clone())).await;
        drop(listener);
        assert!(path.exists());
    }
}
