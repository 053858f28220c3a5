//! A connection under TLS: the session of the library, and the connection that carries its records.
//!
//! Invariants
//!  T1. Nothing reaches the reader that the session has not authenticated, and the end of the connection is an end
//!      only where the peer said so: one that is cut is an error.
//!  T2. What was accepted for writing is sent before anything that is accepted later; `poll_flush` completes once all
//!      of it was.
//!  T3. Memory is bounded: one buffer for what arrives, and [`UNSENT_BYTES_MAX`] of records on their way out.

use std::io::{self, IoSlice, Read};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::Connection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_device::{ByteStream, DetachedStream};

/// What is taken from the connection at a time: four of the largest records.
const RECEIVE_BYTES: usize = 64 << 10;

/// Plaintext that may wait, encrypted, for the connection to take it.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// What arrived and the session has not taken yet.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl Received {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.taken..self.filled]
    }
}

/// One end of a connection under TLS.
pub(super) struct TlsStream {
    io: Box<dyn ByteStream>,
    session: Box<Connection>,
    received: Received,
    /// The connection has ended, with or without the peer's word.
    has_ended: bool,
    /// The peer was told that nothing more comes.
    said_goodbye: bool,
}

impl TlsStream {
    /// A session that has not begun, on a connection of which nothing was read yet.
    pub(super) fn new(io: Box<dyn ByteStream>, mut session: Connection) -> Self {
        session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        let session = Box::new(session);
        let received = Received::default();
        Self { io, session, received, has_ended: false, said_goodbye: false }
    }

    /// The session, for what it agreed on.
    pub(super) fn session(&self) -> &Connection {
        &self.session
    }

    /// Shakes hands; afterwards the peer is who it says.
    pub(super) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.is_handshaking() {
            ready!(self.poll_send(cx))?;
            if self.session.is_handshaking() {
                ready!(self.poll_receive(cx))?;
            }
        }
        // The last message of a handshake is ours, where we are the client.
        ready!(self.poll_send(cx))?;
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    /// Sends the records that wait, all of them.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            let mut out = Out { io: &mut *self.io, cx: &mut *cx };
            match self.session.write_tls(&mut out) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the session more of what arrived, waiting for it where nothing is there. `has_ended` afterwards, if there
    /// was no more.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let received = &mut self.received;
        if received.unread().is_empty() {
            received.bytes.resize(RECEIVE_BYTES, 0);
            let mut room = ReadBuf::new(&mut received.bytes);
            ready!(Pin::new(&mut *self.io).poll_read(cx, &mut room))?;
            (received.taken, received.filled) = (0, room.filled().len());
            if received.filled == 0 {
                self.has_ended = true;
            }
        }
        let mut bytes = received.unread();
        let before = bytes.len();
        // It learns of the end as well.
        self.session.read_tls(&mut bytes)?;
        received.taken += before - bytes.len();
        if let Err(error) = self.session.process_new_packets() {
            // The peer is told why, if it takes it at once.
            let _ = self.poll_send(cx);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        if self.has_ended && self.session.is_handshaking() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(()))
    }
}

/// The connection as the session writes to it.
struct Out<'a, 'b> {
    io: &'a mut dyn ByteStream,
    cx: &'a mut Context<'b>,
}

fn at_once<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl io::Write for Out<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        at_once(Pin::new(&mut *self.io).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        at_once(Pin::new(&mut *self.io).poll_write_vectored(self.cx, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        at_once(Pin::new(&mut *self.io).poll_flush(self.cx))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match this.session.reader().read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // T1: the session says so of an end that the peer did not speak of.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let what = "the connection ended in the middle of the session of TLS";
                    return Poll::Ready(Err(io::Error::new(error.kind(), what)));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                Err(_) => ready!(this.poll_receive(cx))?,
            }
            // A change of keys that the peer asked for is answered; what the connection does not take at once goes with
            // what is written next.
            if let Poll::Ready(Err(error)) = this.poll_send(cx) {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl TlsStream {
    /// Encrypts with `accept` what the session takes, and sends what the connection takes.
    fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
        accept: impl FnOnce(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        // T2, T3.
        ready!(self.poll_send(cx))?;
        let accepted = accept(&mut self.session.writer())?;
        match self.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(accepted)),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_accept(cx, |writer| io::Write::write(writer, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_accept(cx, |writer| io::Write::write_vectored(writer, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut *this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.said_goodbye {
            this.said_goodbye = true;
            this.session.send_close_notify();
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut *this.io).poll_shutdown(cx)
    }
}

impl ByteStream for TlsStream {
    fn detach(self: Box<Self>) -> io::Result<Box<dyn DetachedStream>> {
        let Self { io, session, received, has_ended, said_goodbye } = *self;
        Ok(Box::new(Detached { io: io.detach()?, session, received, has_ended, said_goodbye }))
    }
}

/// A connection under TLS on its way to another thread.
struct Detached {
    io: Box<dyn DetachedStream>,
    session: Box<Connection>,
    received: Received,
    has_ended: bool,
    said_goodbye: bool,
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached").field("io", &self.io).finish_non_exhaustive()
    }
}

impl DetachedStream for Detached {
    fn attach(self: Box<Self>) -> io::Result<Box<dyn ByteStream>> {
        let Self { io, session, received, has_ended, said_goodbye } = *self;
        Ok(Box::new(TlsStream { io: io.attach()?, session, received, has_ended, said_goodbye }))
    }

    /// The state of the session is this process's: another one cannot go on with the records.
    fn into_socket(self: Box<Self>) -> Result<OwnedFd, Box<dyn DetachedStream>> {
        Err(self)
    }
}
