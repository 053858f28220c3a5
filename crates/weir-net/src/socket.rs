//! A connected socket that wakes its thread for what arrives, and for room only where a send found none.
//!
//! A socket has room for a reply almost always, but epoll reports room along with everything else: each time a client
//! takes a reply off a unix socket, and each time something arrives that was read meanwhile. A thread that asks for
//! both wakes up three times for one small request instead of once. So the socket is registered for reading, sends are
//! tried at once, and a duplicate of its descriptor is registered for writing as long as sends find no room.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, Shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::time::Sleep;
use weir_device::{ByteStream, DetachedStream};

/// Sends in a row that found room, after which the registration for writing is given up. Making one costs as much as
/// a few needless wake-ups.
const SENDS_WITH_ROOM_MAX: u32 = 64;

/// How long a full socket waits before it is tried again, where the process has no descriptor left to register for
/// room.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A connected socket on the runtime of one thread.
pub(crate) struct Socket {
    stream: AsyncFd<OwnedFd>,
    /// Waits for room. There since a send found none, until [`SENDS_WITH_ROOM_MAX`] did.
    room: Option<AsyncFd<OwnedFd>>,
    /// There while the socket is full and cannot be registered for writing.
    retry: Option<Pin<Box<Sleep>>>,
    /// The last send found no room.
    is_full: bool,
    sends_with_room: u32,
}

impl Socket {
    /// Takes a connected socket to the runtime of this thread.
    pub(crate) fn new(stream: impl Into<OwnedFd>) -> io::Result<Self> {
        let stream = stream.into();
        rustix::io::ioctl_fionbio(&stream, true)?;
        let stream = register(stream, Interest::READABLE | Interest::PRIORITY)?;
        Ok(Self { stream, room: None, retry: None, is_full: false, sends_with_room: 0 })
    }

    /// Whether the peer sent urgent data. A read ends in front of that, whatever is behind it. It is reported along
    /// with what arrives, so asking is no system call.
    fn has_urgent_data(&self) -> bool {
        self.stream.try_io(Interest::PRIORITY, |_| Ok(())).is_ok()
    }

    /// Sends, or waits for room.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl Fn(&OwnedFd) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if !self.is_full {
            match send(self.stream.get_ref()) {
                Err(Errno::AGAIN) => {
                    self.is_full = true;
                    self.sends_with_room = 0;
                }
                sent => {
                    self.sends_with_room = self.sends_with_room.saturating_add(1);
                    if self.sends_with_room >= SENDS_WITH_ROOM_MAX {
                        self.room = None;
                    }
                    return Poll::Ready(Ok(sent?));
                }
            }
        }
        loop {
            if let Some(retry) = &mut self.retry {
                ready!(retry.as_mut().poll(cx));
                self.retry = None;
            }
            self.register_for_room()?;
            let ready = match &self.room {
                Some(room) => Some(ready!(room.poll_write_ready(cx))?),
                None => None,
            };
            match (send(self.stream.get_ref()), ready) {
                (Err(Errno::AGAIN), Some(mut ready)) => ready.clear_ready(),
                (Err(Errno::AGAIN), None) => {
                    self.retry = Some(Box::pin(tokio::time::sleep(RETRY_INTERVAL)));
                }
                (sent, _) => {
                    self.is_full = false;
                    return Poll::Ready(Ok(sent?));
                }
            }
        }
    }

    /// Has something that waits for room. There is none afterwards where the process or the host has nothing left to
    /// make it of, which may pass: a client that takes its replies late is no reason to end its connection.
    fn register_for_room(&mut self) -> io::Result<()> {
        if self.room.is_some() {
            return Ok(());
        }
        let duplicate = self.stream.get_ref().try_clone();
        // A new registration reports the room that there is already.
        match duplicate.and_then(|duplicate| register(duplicate, Interest::WRITABLE)) {
            Err(error) if is_exhausted(&error) => {}
            room => self.room = Some(room?),
        }
        Ok(())
    }
}

/// Whether something that the process or the host has a limited number of is used up: open files, memory, or what a
/// user may have registered with epoll.
fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC))
}

/// Receives, and tells whether there may be more although there was room for it: a read ends behind bytes that came
/// with descriptors or credentials. Nobody wants these, and the kernel drops them.
fn receive(stream: &OwnedFd, room: &mut [IoSliceMut<'_>]) -> rustix::io::Result<(usize, bool)> {
    let mut nothing = RecvAncillaryBuffer::default();
    let received = rustix::net::recvmsg(stream, room, &mut nothing, RecvFlags::empty())?;
    Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
}

#[allow(unsafe_code, reason = "tokio takes descriptors in no other way")]
fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the number behind an `OwnedFd` stays the same and open until the `AsyncFd` that owns it is dropped.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(io::Error::from)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.stream.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            let asked = unfilled.len();
            let mut room = [IoSliceMut::new(unfilled)];
            match receive(self.stream.get_ref(), &mut room) {
                Ok((received, is_cut)) => {
                    // What arrives after a read that got less than it asked for, because there was no more, is reported
                    // anew.
                    let is_cut = is_cut || self.has_urgent_data();
                    if 0 < received && received < asked && !is_cut {
                        ready.clear_ready();
                    }
                    buf.advance(received);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| rustix::net::send(stream, buf, SendFlags::NOSIGNAL))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| rustix::io::writev(stream, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(self.stream.get_ref(), Shutdown::Write)?))
    }
}

impl ByteStream for Socket {
    fn detach(self: Box<Self>) -> io::Result<Box<dyn DetachedStream>> {
        Ok(Box::new(Detached(self.stream.into_inner())))
    }
}

/// A connected socket on its way to another thread.
#[derive(Debug)]
struct Detached(OwnedFd);

impl DetachedStream for Detached {
    fn attach(self: Box<Self>) -> io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(Socket::new(self.0)?))
    }

    fn into_socket(self: Box<Self>) -> Result<OwnedFd, Box<dyn DetachedStream>> {
        Ok(self.0)
    }
}

/// Completes when nobody has the other end of a unix socket any more, also while what it has sent is not read.
pub(crate) async fn until_closed(socket: OwnedFd) -> io::Result<()> {
    // Of bytes that arrive nothing is reported.
    let socket = register(socket, Interest::PRIORITY)?;
    loop {
        let mut ready = socket.ready(Interest::PRIORITY).await?;
        if ready.ready().is_read_closed() {
            return Ok(());
        }
        ready.clear_ready();
    }
}

/// A connected socket that another process had before.
#[must_use]
pub fn connected(socket: OwnedFd) -> Box<dyn DetachedStream> {
    Box::new(Detached(socket))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A socket of this thread, and its peer.
    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (Socket::new(ours).expect("registered"), theirs)
    }

    #[tokio::test]
    async fn a_thread_wakes_up_once_for_each_request() {
        const REQUESTS: u64 = 200;
        let (mut ours, mut theirs) = pair();
        let client = std::thread::spawn(move || {
            let mut reply = [0; 16];
            for _ in 0..REQUESTS {
                theirs.write_all(&[1; 32]).expect("sent");
                theirs.read_exact(&mut reply).expect("received");
                // The thread sleeps again before the next request, had it been woken by what was just read.
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            theirs
        });
        let metrics = tokio::runtime::Handle::current().metrics();
        let before = metrics.worker_park_count(0);
        let mut request = [0; 4096];
        for _ in 0..REQUESTS {
            assert!(ours.read(&mut request).await.expect("received") > 0);
            ours.write_all(&[2; 16]).await.expect("sent");
        }
        let parks = metrics.worker_park_count(0) - before;
        assert!(parks <= REQUESTS + REQUESTS / 4, "{parks} for {REQUESTS} requests");
        client.join().expect("the client ends");
    }

    #[tokio::test]
    async fn what_a_slow_client_does_not_take_waits_for_room() {
        let (mut ours, mut theirs) = pair();
        let sent: Vec<u8> = (0..4_u32 << 20).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let client = std::thread::spawn(move || {
            let mut received = vec![0; expected.len()];
            for piece in received.chunks_mut(50_000) {
                theirs.read_exact(piece).expect("received");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert!(received == expected);
            let mut small = [0; 16];
            for _ in 0..SENDS_WITH_ROOM_MAX {
                theirs.read_exact(&mut small).expect("received");
                theirs.write_all(&small[..1]).expect("sent");
            }
            theirs
        });
        ours.write_all(&sent).await.expect("sent");
        assert!(ours.room.is_some() && !ours.is_full);
        let mut taken = [0; 1];
        for _ in 0..SENDS_WITH_ROOM_MAX {
            ours.write_all(&[3; 16]).await.expect("sent");
            ours.read_exact(&mut taken).await.expect("received");
        }
        assert!(ours.room.is_none(), "given up once there was room for long");
        drop(client.join().expect("the client ends"));
        assert_eq!(ours.read(&mut taken).await.expect("the end"), 0);
        let error = ours.write_all(&[3; 16]).await.expect_err("nobody is there");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_peer_that_leaves_ends_the_wait_for_room() {
        let (mut ours, theirs) = pair();
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(theirs);
        });
        let error = ours.write_all(&vec![1; 8 << 20]).await.expect_err("nobody takes it");
        assert!(matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset));
        leaving.join().expect("the peer leaves");
    }

    /// Reads what was sent at once, in pieces of `lens`, and nothing else.
    async fn expect_pieces(ours: &mut Socket, lens: &[usize]) {
        let mut room = [0; 4096];
        for (at, len) in lens.iter().enumerate() {
            let within = tokio::time::timeout(Duration::from_secs(5), ours.read(&mut room));
            let received = within.await.unwrap_or_else(|_| panic!("piece {at} is not reported"));
            assert_eq!(received.expect("received"), *len, "piece {at}");
        }
        let more = tokio::time::timeout(Duration::from_millis(20), ours.read(&mut room)).await;
        assert!(more.is_err(), "there is no more: {more:?}");
    }

    #[tokio::test]
    async fn what_comes_with_descriptors_is_read_whole() {
        let (mut ours, theirs) = pair();
        let null = std::fs::File::open("/dev/null").expect("opened");
        for _ in 0..40 {
            let descriptors = [null.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let sent = [IoSlice::new(&[1; 28])];
            rustix::net::sendmsg(&theirs, &sent, &mut control, SendFlags::empty()).expect("sent");
        }
        expect_pieces(&mut ours, &[28; 40]).await;
    }

    #[tokio::test]
    async fn what_lies_behind_urgent_data_is_read_as_well() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let mut theirs = std::net::TcpStream::connect(address).expect("connected");
        theirs.set_nodelay(true).expect("at once");
        let mut ours = Socket::new(listener.accept().expect("accepted").0).expect("registered");
        theirs.write_all(&[1; 28]).expect("sent");
        rustix::net::send(&theirs, &[9], SendFlags::OOB).expect("sent");
        theirs.write_all(&[2; 28]).expect("sent");
        expect_pieces(&mut ours, &[28, 28]).await;
        theirs.write_all(&[3; 28]).expect("sent");
        expect_pieces(&mut ours, &[28]).await;
    }
}
