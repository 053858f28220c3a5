//! The signals that a serving process listens to.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// A process that a signal ended is reported as this plus the signal's number.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// The signals that ask for an end.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::new(format!("listening for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next one's number.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.hang_up.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// Ends the process at once. What was acknowledged is in the journal.
pub(crate) fn quit(signal: i32) -> ! {
    eprintln!("stopped at once; the next start recovers what was acknowledged");
    std::process::exit(SIGNAL_BASE + signal)
}
