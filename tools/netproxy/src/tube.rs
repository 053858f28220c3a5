//! One direction of a connection: what arrives is passed on later, by a thread of its own.

use std::net::Shutdown;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use crate::control::Control;
use crate::socket::Socket;

/// Received at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces that wait at most.
const PIECES_MAX: usize = 64;

struct Piece {
    bytes: Vec<u8>,
    due: Instant,
    /// Everything is cut behind it.
    is_last: bool,
}

/// Starts the two threads of a direction.
pub(crate) fn start(from: Socket, into: Socket, is_from_client: bool, control: Arc<Control>) {
    let (sender, receiver) = sync_channel(PIECES_MAX);
    let receiving = Arc::clone(&control);
    thread::spawn(move || receive(from, &sender, is_from_client, &receiving));
    thread::spawn(move || pass_on(into, &receiver, &control));
}

fn receive(mut from: Socket, sender: &SyncSender<Piece>, is_from_client: bool, control: &Control) {
    let mut buffer = vec![0; PIECE_BYTES];
    // An error ends it as the end of the connection does.
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + control.delay();
        let allowed = control.allowed(count, is_from_client);
        let bytes = buffer[..allowed].to_vec();
        let is_last = allowed < count;
        if sender.send(Piece { bytes, due, is_last }).is_err() || is_last {
            return;
        }
    }
}

fn pass_on(mut into: Socket, receiver: &Receiver<Piece>, control: &Control) {
    // The kernel may wake a sleeper 50 us late otherwise. Without the right to it a delay is less exact.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    for piece in receiver {
        sleep_until(piece.due);
        while let Some(until) = control.stalled_until().filter(|until| *until > Instant::now()) {
            sleep_until(until);
        }
        if into.write_all(&piece.bytes).is_err() {
            break;
        }
        if piece.is_last {
            control.cut();
        }
    }
    // What the peer sends is passed on still.
    into.shut(Shutdown::Write);
}

fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}
