//! `weir up`: serves a volume until a signal comes, or while a command runs.

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};

use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_node::{Consent, NbdAddress, Node, ServeOptions, Served, Stopped};

use crate::cli::{EndpointKind, Global, Up};
use crate::failure::Failure;
use crate::place;
use crate::size::{Size, human};

/// Exit codes of shells: the command was not found, or could not be started.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;
/// A process that a signal ended is reported as this plus the signal's number.
const SIGNAL_BASE: i32 = 128;

/// Runs the verb to its end.
pub(crate) fn run(global: &Global, up: Up) -> Result<ExitCode, Failure> {
    let home = place::home(global)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("starting the runtime: {error}")))?;
    let node = Node::start(global.node_config())?;
    let nbd = match (up.nbd_socket, up.nbd_listen) {
        (Some(path), _) => NbdAddress::Unix(path),
        (None, Some(address)) => NbdAddress::Tcp { address, insecure: up.insecure },
        (None, None) => NbdAddress::Default,
    };
    let options = ServeOptions {
        home,
        name: up.name,
        size: up.size.map(|Size(bytes)| bytes),
        nbd,
        read_only: up.read_only,
        consent: Consent {
            accept_loss: up.accept_loss,
            take_over: up.take_over,
            discard_journal: up.discard_journal,
        },
        options: up.tuning.volume_options(),
        endpoint: match up.endpoint {
            EndpointKind::Log => weir_node::EndpointKind::Log,
            EndpointKind::Memory => weir_node::EndpointKind::Memory,
        },
    };
    let code = runtime.block_on(serve(&node, options, &up.command));
    node.shut_down();
    code
}

/// The signals that ask for an end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
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
    async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.hang_up.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// Ends the process at once. What was acknowledged is in the journal.
fn quit(signal: i32) -> ! {
    eprintln!("stopped at once; the next start recovers what was acknowledged");
    std::process::exit(SIGNAL_BASE + signal)
}

async fn serve(
    node: &Node,
    options: ServeOptions,
    command: &[OsString],
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    let served = tokio::select! {
        biased;
        // Nothing was acknowledged yet, and opening can be ended anywhere.
        number = signals.next() => quit(number),
        served = node.serve(options) => served?,
    };
    announce(&served, command.is_empty());
    let result = match command.split_first() {
        None => {
            signals.next().await;
            Ok(ExitCode::SUCCESS)
        }
        Some((program, arguments)) => match start_command(program, arguments, &served.info().uri) {
            Ok(child) => Ok(wait_for_command(child, &mut signals).await?),
            Err(failure) => Err(failure),
        },
    };
    if command.is_empty() {
        eprintln!("stopping: flushing {}", served.info().name);
    }
    tokio::select! {
        biased;
        number = signals.next() => quit(number),
        stopped = served.stop() => if stopped? == Stopped::LocalOnly {
            eprintln!("the store did not take everything in time; the journal keeps the rest for the next start");
        },
    }
    result
}

fn announce(served: &Served, interactive: bool) {
    let info = served.info();
    let what = if info.created { "new volume" } else { "volume" };
    eprintln!("{what} {}: {}, {}", info.name, human(info.size), info.place);
    let report = &info.report;
    if report.replayed_writes > 0 {
        let (writes, bytes) = (report.replayed_writes, human(report.replayed_bytes));
        eprintln!("recovered {writes} writes, {bytes}, that were only in the journal");
    }
    if report.poisoned_ranges > 0 {
        let ranges = report.poisoned_ranges;
        eprintln!(
            "warning: {ranges} ranges of the journal are damaged; reading them fails until they are written"
        );
    }
    eprintln!("serving {}", info.uri);
    if !interactive {
        return;
    }
    let uri = &info.uri;
    eprintln!();
    eprintln!("from another terminal:");
    eprintln!("  nbdinfo '{uri}'");
    eprintln!("  qemu-img convert -p -n -O raw IMAGE '{uri}'");
    eprintln!("  qemu-system-x86_64 -drive file='{uri}',format=raw,cache=none,discard=unmap");
    eprintln!("Ctrl-C flushes and stops.");
}

fn start_command(program: &OsString, arguments: &[OsString], uri: &str) -> Result<Child, Failure> {
    let started = Command::new(program).args(arguments).env("WEIR_URI", uri).spawn();
    started.map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let code = if missing { NOT_FOUND } else { NOT_STARTED };
        Failure::new(format!("starting {}: {error}", program.display())).with_code(code)
    })
}

/// Waits for the command. A signal is handed on to it once; a second one ends everything at once.
async fn wait_for_command(mut child: Child, signals: &mut Signals) -> Result<ExitCode, Failure> {
    let mut signalled = false;
    loop {
        let number = tokio::select! {
            biased;
            status = child.wait() => {
                let status = status
                    .map_err(|error| Failure::new(format!("waiting for the command: {error}")))?;
                return Ok(exit_code(status));
            }
            number = signals.next() => number,
        };
        if signalled {
            // It may have ended by itself in between.
            let _ = child.start_kill();
            quit(number);
        }
        signalled = true;
        hand_on(&child, number);
    }
}

/// A terminal interrupts the whole group by itself, so only the other signals are handed on.
fn hand_on(child: &Child, number: i32) {
    if number == SignalKind::interrupt().as_raw_value() {
        return;
    }
    let process = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(process) = process.and_then(rustix::process::Pid::from_raw) {
        // The command may have ended in this moment.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| {
        SIGNAL_BASE + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0)
    });
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
