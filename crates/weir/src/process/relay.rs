//! The process that stays behind when the program is replaced, for the clients under TLS: the state of their sessions
//! cannot be given away, so it decrypts and encrypts, and the new program serves what comes out.
//!
//! It is a copy of the process that ends (`fork`), made when that one has no volume and no other thread any more, so
//! that the new program keeps the number of the process, its parent and its place with systemd. It holds the sockets of
//! its clients and nothing else, and listens to no signal: it ends with its last client, and each of those ends within
//! two seconds where the new program is gone or closes its side.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tokio::task::{JoinSet, LocalSet};
use weir_node::Relayed;
use weir_node::size::counted;

use crate::process::threads;
use crate::terminal::failure::Failure;
use crate::terminal::output::say;

/// Time for threads that end.
const THREADS_TIME: Duration = Duration::from_secs(2);

/// How often it is looked whether they have.
const THREADS_LOOK: Duration = Duration::from_millis(2);

/// Which of the processes this is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    /// The one that executes the new program.
    Successor,
    /// The one that passes on.
    Relay,
    /// One between them, which ends at once: thus the relay is nobody's child who would have to wait for it.
    Between {
        /// How it ends: the one that executes looks there whether the relay was made.
        code: ExitCode,
    },
}

/// Makes the process that passes on.
pub(crate) fn begin() -> Result<Side, Failure> {
    let sessions_end = |error: &str| {
        Failure::new(format!("sessions under TLS end, since nothing passes them on: {error}"))
            .with_help("their clients connect anew")
    };
    if !is_alone() {
        return Err(sessions_end("threads of this process have not ended"));
    }
    match copy().map_err(|error| sessions_end(error.desc()))? {
        ForkResult::Parent { child } => {
            // Where it cannot be waited for, whoever started this program does that, and the relay is there.
            match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) | Err(_) => Ok(Side::Successor),
                Ok(_) => Err(sessions_end("it could not be copied a second time")),
            }
        }
        ForkResult::Child => Ok(match copy() {
            Ok(ForkResult::Child) => Side::Relay,
            Ok(ForkResult::Parent { .. }) => Side::Between { code: ExitCode::SUCCESS },
            Err(_) => Side::Between { code: ExitCode::FAILURE },
        }),
    }
}

#[allow(unsafe_code, reason = "a process is copied in no other way")]
fn copy() -> nix::Result<ForkResult> {
    // SAFETY: this is the only thread of the process: in the copy, nothing is left in the middle by another one.
    unsafe { fork() }
}

/// Waits until this is the only thread.
fn is_alone() -> bool {
    let patience = Instant::now() + THREADS_TIME;
    loop {
        let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
        match threads {
            Ok(1) => return true,
            Ok(_) if Instant::now() < patience => std::thread::sleep(THREADS_LOOK),
            Ok(_) | Err(_) => return false,
        }
    }
}

/// Passes everything on between these clients and the new program until the last of them has left.
pub(crate) fn run(relayed: Vec<Relayed>) -> Result<ExitCode, Failure> {
    let runtime = threads::runtime()?;
    let process = std::process::id();
    say!("process {process} passes {} under TLS on", counted(relayed.len(), "client"));
    LocalSet::new().block_on(&runtime, async {
        let mut connections = JoinSet::new();
        for Relayed { client, server } in relayed {
            connections.spawn_local(async move { weir_net::relay(client.attach()?, server).await });
        }
        while let Some(ended) = connections.join_next().await {
            let left = connections.len();
            match ended {
                Ok(Ok(())) => tracing::info!(process, left, "a client that is passed on has left"),
                Ok(Err(error)) => {
                    tracing::warn!(process, left, %error, "a client that is passed on is gone");
                }
                Err(error) => tracing::error!(process, left, %error, "passing on ended abnormally"),
            }
        }
    });
    say!("process {process} has no client under TLS any more, and ends");
    Ok(ExitCode::SUCCESS)
}
