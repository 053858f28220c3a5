//! One end of a simulated connection.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use weir_device::{ByteStream, DetachedStream};

use super::state::Outcome;
use super::{Side, SimNetwork};

/// An end of a connection. Dropping it closes that end.
pub(super) struct End {
    pub(super) network: SimNetwork,
    pub(super) id: u64,
    pub(super) side: Side,
}

impl Drop for End {
    fn drop(&mut self) {
        let woken = self.network.lock().drop_end(self.id, self.side.index());
        woken.wake();
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "End({}, {:?})", self.id, self.side)
    }
}

/// Waits for a moment, besides being woken.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether the moment has come; else the task is woken then.
    fn has_come(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let Some(at) = at else { return false };
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx).is_ready()
    }
}

/// A connection, on the thread that it is used on.
pub(super) struct SimStream {
    end: End,
    reads: Timer,
    writes: Timer,
}

impl SimStream {
    pub(super) fn new(end: End) -> Self {
        Self { end, reads: Timer::default(), writes: Timer::default() }
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let (outcome, woken) = {
                let (id, end) = (self.end.id, self.end.side.index());
                let space = buf.initialize_unfilled();
                self.end.network.lock().read(id, end, space, cx.waker())
            };
            woken.wake();
            match outcome {
                Outcome::Done(read) => {
                    return Poll::Ready(read.map(|bytes| buf.advance(bytes)));
                }
                Outcome::Wait(until) if !self.reads.has_come(until, cx) => return Poll::Pending,
                Outcome::Wait(_) => {}
            }
        }
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let (id, end) = (self.end.id, self.end.side.index());
            let (outcome, woken) = self.end.network.lock().write(id, end, bufs, cx.waker());
            woken.wake();
            match outcome {
                Outcome::Done(written) => return Poll::Ready(written),
                Outcome::Wait(until) if !self.writes.has_come(until, cx) => return Poll::Pending,
                Outcome::Wait(_) => {}
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let woken = self.end.network.lock().finish(self.end.id, self.end.side.index());
        woken.wake();
        Poll::Ready(Ok(()))
    }
}

impl ByteStream for SimStream {
    fn detach(self: Box<Self>) -> io::Result<Box<dyn DetachedStream>> {
        Ok(Box::new(Detached(self.end)))
    }
}

#[derive(Debug)]
struct Detached(End);

impl DetachedStream for Detached {
    fn attach(self: Box<Self>) -> io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(SimStream::new(self.0)))
    }

    fn into_socket(self: Box<Self>) -> Result<OwnedFd, Box<dyn DetachedStream>> {
        Err(self)
    }
}
