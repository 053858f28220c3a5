//! The signals that a serving process listens to.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

use weir_node::size::human;
use weir_node::{Closing, Service, Stopped};

use crate::terminal::failure::Failure;

/// A process that a signal ended is reported as this plus the signal's number.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// The signals that ask for an end.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None where that signal means something else.
    hang_up: Option<Signal>,
}

/// What a process that serves can be told, and that must neither end it nor get lost while nobody listens.
fn told() -> SigSet {
    [Number::SIGINT, Number::SIGTERM, Number::SIGHUP, Number::SIGUSR2].into_iter().collect()
}

/// Lets such signals wait from now on, until [`deliver`]: for this thread and for the program that it executes. No
/// other thread may be left that would take them.
pub(crate) fn hold_back() -> Result<(), Failure> {
    told().thread_block().map_err(|error| Failure::new(format!("blocking signals: {error}")))
}

/// Lets them come, those first that waited.
pub(crate) fn deliver() -> Result<(), Failure> {
    told().thread_unblock().map_err(|error| Failure::new(format!("unblocking signals: {error}")))
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::listen_also(true)
    }

    /// The same; whether a hang-up asks for an end.
    pub(crate) fn listen_also(hang_up: bool) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::new(format!("listening for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: hang_up.then(|| listen(SignalKind::hangup())).transpose()?,
        })
    }

    /// The number of one that came already, if there is one. The runtime is to run for a moment to learn of it.
    pub(crate) async fn came(&mut self) -> Option<i32> {
        tokio::time::timeout(Duration::from_millis(1), self.next()).await.ok()
    }

    /// The next one's number.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = received(self.hang_up.as_mut()) => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// How long a stop goes on before it is said how much is left, and how often from then on.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Closes what is served, says how much of it is still to go, and ends at once when another signal comes.
pub(crate) async fn stop(service: Service, signals: &mut Signals) -> Result<Stopped, Failure> {
    let unsent = service.unsent().unwrap_or_default();
    let mut stop = std::pin::pin!(service.stop(Closing::ToStore));
    loop {
        tokio::select! {
            biased;
            number = signals.next() => quit(number),
            stopped = &mut stop => return Ok(stopped?),
            () = tokio::time::sleep(STOP_PATIENCE) => match unsent.bytes() {
                0 => {}
                bytes => eprintln!("{} are not in the store yet", human(bytes)),
            },
        }
    }
}

/// The next signal; for ever, where there is none to listen to.
pub(crate) async fn received(signal: Option<&mut Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Says of signals which mean nothing here that they do not, for as long as the runtime runs. By default they end the
/// process at once.
pub(crate) fn disregard(kinds: &[SignalKind]) -> Result<(), Failure> {
    for kind in kinds.iter().copied() {
        let failed = |error| Failure::new(format!("listening for signals: {error}"));
        let mut signal = signal(kind).map_err(failed)?;
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                let number = kind.as_raw_value();
                eprintln!(
                    "warning: signal {number} means nothing here; SIGTERM ends this process in order"
                );
            }
        });
    }
    Ok(())
}

/// Ends the process at once. What was acknowledged is in the journal.
pub(crate) fn quit(signal: i32) -> ! {
    eprintln!("stopped at once; the next start recovers what was acknowledged");
    std::process::exit(SIGNAL_BASE + signal)
}
