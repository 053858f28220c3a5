//! Looks after a connection once a second while anything goes on there: ends the patience with a client that does not
//! get on, and lets go of memory that an idle one does not need. A connection that is idle has no timer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Time between two looks.
const TICK: Duration = Duration::from_secs(1);

/// Time after which memory that was not to be had is asked for again; twice as long each time, up to [`TICK`]. Whoever
/// has waited for long is thus often behind one who has not: clients that are stuck do not stand in front of others.
const RETRY: Duration = Duration::from_millis(20);

/// Looks at a connection on which nothing goes on before it counts as idle.
const IDLE_TICKS: u32 = 5;

/// Time in which a client that is in the middle of something has to move [`STALL_BYTES_MIN`].
pub(super) const STALL: Duration = Duration::from_secs(60);

/// The same while others wait for memory.
pub(super) const STALL_WANTED: Duration = Duration::from_secs(10);

/// Bytes that a client moves in that time at least, in either direction: slower than any line in use.
const STALL_BYTES_MIN: usize = 64 << 10;

/// What a look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing to be done.
    Fine,
    /// The client did not get on since the last look.
    Stuck,
    /// Nothing has gone on for a while.
    Idle,
    /// The client did not get on for so long.
    Stalled(Duration),
}

/// What goes on at a connection at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The client has to take replies, or to send the rest of a request.
    pub(super) is_clients_turn: bool,
    /// Nothing is in flight, and nothing of a request has arrived.
    pub(super) is_quiet: bool,
    /// Memory was not to be had.
    pub(super) is_short: bool,
    /// Others wait for memory.
    pub(super) is_wanted: bool,
}

/// See the module.
pub(super) struct Watch {
    sleep: Pin<Box<Sleep>>,
    is_armed: bool,
    next_tick: Instant,
    retry: Duration,
    quiet_ticks: u32,
    stalled_since: Option<Instant>,
    moved_bytes: usize,
    has_moved: bool,
}

impl Watch {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            sleep: Box::pin(tokio::time::sleep_until(now + TICK)),
            is_armed: true,
            next_tick: now + TICK,
            retry: RETRY,
            quiet_ticks: 0,
            stalled_since: None,
            moved_bytes: 0,
            has_moved: false,
        }
    }

    /// Takes note of bytes that were sent or received.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved_bytes = self.moved_bytes.saturating_add(bytes);
        self.has_moved = true;
    }

    /// Called whenever nothing else is to be done. Ready when something is: a look was due, or memory is to be asked
    /// for again.
    pub(super) fn poll(&mut self, state: State, cx: &mut Context<'_>) -> Poll<Look> {
        if !state.is_short {
            self.retry = RETRY;
        }
        if !self.is_armed {
            if state.is_quiet && !self.has_moved {
                return Poll::Pending;
            }
            self.next_tick = Instant::now() + TICK;
            self.quiet_ticks = 0;
            self.arm(state);
        } else if state.is_short && self.sleep.deadline() > Instant::now() + self.retry {
            self.arm(state);
        }
        if self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        if state.is_short {
            self.retry = TICK.min(self.retry * 2);
        }
        let look = if Instant::now() >= self.next_tick { self.look(state) } else { Look::Fine };
        match look {
            Look::Idle => self.is_armed = false,
            Look::Fine | Look::Stuck | Look::Stalled(_) => self.arm(state),
        }
        Poll::Ready(look)
    }

    fn arm(&mut self, state: State) {
        let retry = state.is_short.then(|| Instant::now() + self.retry);
        let deadline = retry.map_or(self.next_tick, |retry| retry.min(self.next_tick));
        self.sleep.as_mut().reset(deadline);
        self.is_armed = true;
    }

    fn look(&mut self, state: State) -> Look {
        let now = Instant::now();
        self.next_tick = now + TICK;
        let has_moved = std::mem::take(&mut self.has_moved);
        self.quiet_ticks = if state.is_quiet && !has_moved { self.quiet_ticks + 1 } else { 0 };
        if !state.is_clients_turn {
            (self.stalled_since, self.moved_bytes) = (None, 0);
            return if self.quiet_ticks >= IDLE_TICKS { Look::Idle } else { Look::Fine };
        }
        let since = *self.stalled_since.get_or_insert_with(|| {
            self.moved_bytes = 0;
            now
        });
        let patience = if state.is_wanted { STALL_WANTED } else { STALL };
        if now.duration_since(since) < patience {
            return if has_moved { Look::Fine } else { Look::Stuck };
        }
        let moved = std::mem::take(&mut self.moved_bytes);
        self.stalled_since = Some(now);
        if moved < STALL_BYTES_MIN { Look::Stalled(patience) } else { Look::Fine }
    }
}
