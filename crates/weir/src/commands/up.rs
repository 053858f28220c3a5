//! `weir up`: serves a volume until a signal comes, or while a command runs.

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};

use tokio::process::{Child, Command};
use tokio::signal::unix::SignalKind;
use weir_node::config::Config;
use weir_node::size::human;
use weir_node::{Node, ServedInfo, Service, ServiceOptions, Stopped};

use crate::cli::global::Global;
use crate::cli::up::Up;
use crate::process::signals::{self, SIGNAL_BASE, Signals, quit};
use crate::process::threads;
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::output::say;
use crate::transfer;

/// Exit codes of shells: the command was not found, or could not be started.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// Runs the verb to its end.
pub(crate) fn run(global: &Global, file: &Config, mut up: Up) -> Result<ExitCode, Failure> {
    let command = std::mem::take(&mut up.command);
    let (config, options) = settings::up(global, file, up)?;
    threads::on_node(config, async |node| serve(node, options, &command).await)
}

async fn serve(
    node: &Node,
    options: ServiceOptions,
    command: &[OsString],
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    signals::disregard(&[SignalKind::user_defined1(), SignalKind::user_defined2()])?;
    let served = tokio::select! {
        biased;
        // Nothing was acknowledged yet, and opening can be ended anywhere.
        number = signals.next() => quit(number),
        served = node.serve(options) => served?,
    };
    let info = the_volume(&served)?;
    announce(&served, &info, command.is_empty());
    let result = match command.split_first() {
        None => {
            signals.next().await;
            Ok(ExitCode::SUCCESS)
        }
        Some((program, arguments)) => match start_command(program, arguments, &info.uri) {
            Ok(child) => Ok(wait_for_command(child, &mut signals).await?),
            Err(failure) => Err(failure),
        },
    };
    if command.is_empty() {
        say!("stopping: flushing {}", info.name);
    }
    if signals::stop(served, &mut signals).await? == Stopped::LocalOnly {
        say!(
            "the store did not take everything in time; the journal keeps the rest for the next start"
        );
    }
    result
}

/// The one volume that is served.
fn the_volume(service: &Service) -> Result<ServedInfo, Failure> {
    let volume = service.served().into_iter().next();
    volume.ok_or_else(|| Failure::new("the volume was closed at once"))
}

fn announce(service: &Service, info: &ServedInfo, interactive: bool) {
    describe(info);
    warn_of_shared_disk(service);
    if !interactive {
        return;
    }
    say!("");
    say!("from another terminal:");
    for line in ways_in(&info.uri) {
        say!("  {line}");
    }
    say!("Ctrl-C flushes and stops.");
}

/// Commands that reach a volume. Under TLS a client shows a certificate, which URIs of QEMU cannot name.
fn ways_in(uri: &str) -> Vec<String> {
    if uri.starts_with("nbds://") {
        return vec![
            format!("nbdinfo '{uri}?tls-certificates=DIR'"),
            format!("nbdcopy -p IMAGE '{uri}?tls-certificates=DIR'"),
            "with the directory that `weir pki issue NAME --usage client` prints as DIR".to_owned(),
        ];
    }
    let drive = transfer::qemu_drive(uri).ok();
    let mut lines =
        vec![format!("nbdinfo '{uri}'"), format!("qemu-img convert -p -n -O raw IMAGE '{uri}'")];
    lines.extend(drive.map(|drive| format!("qemu-system-x86_64 -drive '{drive}'")));
    lines
}

/// Says what the opening of a volume found.
pub(crate) fn describe(info: &ServedInfo) {
    let what = if info.created { "new volume" } else { "volume" };
    say!("{what} {}: {}, {}", info.name, human(info.size), info.place);
    let report = &info.report;
    if report.replayed_writes > 0 {
        let bytes = human(report.replayed_bytes);
        say!("recovered {bytes} of writes that were only in the journal");
    }
    if report.poisoned_ranges > 0 {
        let ranges = report.poisoned_ranges;
        say!(
            "warning: {ranges} ranges of the journal are damaged; reading them fails until they are written"
        );
    }
    say!("serving {}", info.uri);
}

/// Warns if the store is on the disk of the journals. Such a store is for trying things out, and for disks that are
/// redundant by themselves.
pub(crate) fn warn_of_shared_disk(service: &Service) {
    if service.store_shares_disk() {
        say!(
            "note: the store is on the disk of the journals: the loss of that disk takes the volumes with it; --store \
             names another place"
        );
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_tls_a_certificate_is_shown() {
        let secure = ways_in("nbds://localhost:10809/demo");
        assert_eq!(secure[0], "nbdinfo 'nbds://localhost:10809/demo?tls-certificates=DIR'");
        assert!(!secure.join(" ").contains("qemu"), "{secure:?}");
        let clear = ways_in("nbd+unix:///demo?socket=/x");
        assert!(clear[1].starts_with("qemu-img convert"), "{clear:?}");
    }
}
