//! `weir serve`: many volumes, as a service.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use weir_node::config::Config;
use weir_node::{Closing, Inherited, Node, Service, ServiceOptions, Stopped, VolumeSet};

use crate::cli::{Global, Serve};
use crate::failure::Failure;
use crate::settings;
use crate::signals::{Signals, quit};
use crate::systemd;
use crate::threads;
use crate::up;
use crate::upgrade;

/// Runs the verb to its end.
pub(crate) fn run(global: &Global, file: &Config, serve: &Serve) -> Result<ExitCode, Failure> {
    // Before any thread runs: it takes variables out of the environment.
    let inherited = Inherited::from_environment()?;
    let (config, mut options) = settings::serve(global, file, serve, inherited)?;
    options.left = upgrade::handed_over();
    if serve.check {
        return check(&options);
    }
    match threads::on_node(config, async |node| serve_until_told(node, options).await)? {
        End::Stopped => Ok(ExitCode::SUCCESS),
        End::Replaced { program, sockets, volumes } => {
            Err(upgrade::replace(program, sockets, &volumes))
        }
    }
}

/// How serving ended.
enum End {
    Stopped,
    /// Another program goes on in this process.
    Replaced {
        program: PathBuf,
        sockets: Vec<OwnedFd>,
        volumes: Vec<String>,
    },
}

/// What can be said of settings without opening anything.
fn check(options: &ServiceOptions) -> Result<ExitCode, Failure> {
    options.check()?;
    let volumes = match &options.volumes {
        VolumeSet::All(_) => "all volumes".to_owned(),
        VolumeSet::Listed(specs) => format!("{} volumes", specs.len()),
    };
    eprintln!("the settings are right: {volumes} of {}", options.home.store_url);
    Ok(ExitCode::SUCCESS)
}

async fn serve_until_told(node: &Node, options: ServiceOptions) -> Result<End, Failure> {
    // First of all: without anybody who listens it would end the process.
    let mut replace = signal(SignalKind::user_defined2())
        .map_err(|error| Failure::new(format!("listening for signals: {error}")))?;
    let mut signals = Signals::listen()?;
    let service = tokio::select! {
        biased;
        // Nothing was acknowledged yet, and opening can be ended anywhere.
        number = signals.next() => quit(number),
        service = node.serve(options) => service?,
    };
    announce(&service);
    systemd::notify("READY=1\n");
    loop {
        tokio::select! {
            biased;
            _ = signals.next() => break,
            _ = replace.recv() => match tokio::task::spawn_blocking(upgrade::check).await {
                Ok(Ok(program)) => {
                    eprintln!("replacing the program by {}", program.display());
                    let volumes = service.handed_over();
                    let sockets = service.hand_over().await?;
                    return Ok(End::Replaced { program, sockets, volumes });
                }
                Ok(Err(failure)) => failure.print(),
                Err(error) => eprintln!("error: the program was not replaced: {error}"),
            },
        }
    }
    systemd::notify("STOPPING=1\n");
    eprintln!("stopping: flushing all volumes");
    tokio::select! {
        biased;
        number = signals.next() => quit(number),
        stopped = service.stop(Closing::ToStore) => if stopped? == Stopped::LocalOnly {
            eprintln!("the store did not take everything in time; the journals keep the rest for the next start");
        },
    }
    Ok(End::Stopped)
}

fn announce(service: &Service) {
    for info in service.served() {
        up::describe(&info);
    }
    for (name, reason) in service.not_served() {
        eprintln!("warning: volume {name} is not served: {reason}");
    }
    for uri in service.nbd_uris() {
        eprintln!("listening at {uri}");
    }
    for address in service.api_addresses() {
        eprintln!("API at http://{address}");
    }
}
