//! Somebody who listens on a simulated network.

use std::io;
use std::task::{Context, Poll};

use weir_device::{Accepted, Address, Listener, Peer};

use super::stream::{End, SimStream};
use super::{Side, SimNetwork};

pub(super) struct SimListener {
    network: SimNetwork,
    at: Address,
    number: u64,
}

impl SimListener {
    pub(super) fn new(network: SimNetwork, at: Address, number: u64) -> Self {
        Self { network, at, number }
    }

    fn end(&self, id: u64) -> End {
        End { network: self.network.clone(), id, side: Side::Server }
    }
}

impl Listener for SimListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let accepted = self.network.lock().accept(&self.at, cx.waker());
        let Some(id) = accepted else { return Poll::Pending };
        let stream = Box::new(SimStream::new(self.end(id)));
        let name = Some(format!("connection {id}"));
        Poll::Ready(Ok(Accepted { stream, peer: Peer::Unknown, name }))
    }

    fn address(&self) -> Address {
        self.at.clone()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let waiting = self.network.lock().unlisten(&self.at, self.number);
        for id in waiting {
            drop(self.end(id));
        }
    }
}
