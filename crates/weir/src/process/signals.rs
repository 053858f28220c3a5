//! The signals that a serving process listens to.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

use weir_node::{Closing, Service, Stopped};

use crate::terminal::failure::Failure;
use crate::terminal::output::say;

/// A process that a signal ended is reported as this plus the signal's number.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// The signals that ask for an end.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if a hang-up means something else.
    hang_up: Option<Signal>,
}

/// The signals that tell a serving process to do something. They must neither end it nor get lost while nobody listens.
fn told() -> SigSet {
    [Number::SIGINT, Number::SIGTERM, Number::SIGHUP, Number::SIGUSR2].into_iter().collect()
}

/// Blocks these signals until [`deliver`], for this thread and for the program that it executes. No other thread may
/// still run that would receive them.
pub(crate) fn hold_back() -> Result<(), Failure> {
    told().thread_block().map_err(|error| Failure::new(format!("blocking signals: {error}")))
}

/// Unblocks them; those that are pending come first.
pub(crate) fn deliver() -> Result<(), Failure> {
    told().thread_unblock().map_err(|error| Failure::new(format!("unblocking signals: {error}")))
}

/// Runs `start`, which starts a program, on a thread that holds signals back: programs inherit what is blocked, and
/// this one is to end when it is told to. A signal that this thread receives meanwhile is heard as on any other.
pub(crate) fn delivered_to<T>(start: impl FnOnce() -> T) -> Result<T, Failure> {
    deliver()?;
    let started = start();
    hold_back()?;
    Ok(started)
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::listen_also(true)
    }

    /// The same; `hang_up` says whether a hang-up asks for an end.
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

    /// The number of a signal that came already, if there is one. The runtime has to run for a moment to receive it.
    pub(crate) async fn came(&mut self) -> Option<i32> {
        tokio::time::timeout(Duration::from_millis(1), self.next()).await.ok()
    }

    /// The number of the next signal.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = received(self.hang_up.as_mut()) => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// Time of a stop after which it is said how much is left, and again after as much.
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
            () = tokio::time::sleep(STOP_PATIENCE) => {
                let unsent = unsent.at_risk();
                if !unsent.is_nothing() {
                    say!("{} are not in the store yet", unsent.what());
                }
            }
        }
    }
}

/// Waits for the next signal; never returns if there is none to listen to.
pub(crate) async fn received(signal: Option<&mut Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Reports signals that have no meaning for this command and goes on, for as long as the runtime runs. By default they
/// would end the process at once.
pub(crate) fn disregard(kinds: &[SignalKind]) -> Result<(), Failure> {
    for kind in kinds.iter().copied() {
        let failed = |error| Failure::new(format!("listening for signals: {error}"));
        let mut signal = signal(kind).map_err(failed)?;
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                let number = kind.as_raw_value();
                say!(
                    "warning: signal {number} means nothing here; SIGTERM ends this process in order"
                );
            }
        });
    }
    Ok(())
}

/// Ends the process at once. What was acknowledged of volumes of a store is in their journals.
pub(crate) fn quit(signal: i32) -> ! {
    say!(
        "stopped at once; the next start recovers what was acknowledged, but of files and exports of other servers, \
         which keep what they had been told to flush"
    );
    std::process::exit(SIGNAL_BASE + signal)
}
