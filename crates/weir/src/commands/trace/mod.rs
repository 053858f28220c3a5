//! `weir trace`: what a block trace would come to.

mod cache;
mod memory;
mod sim;
mod touched;

use std::path::Path;
use std::process::ExitCode;

use weir_trace::{Format, Trace, TraceError};

use crate::cli::trace::TraceCommand;
use crate::terminal::failure::Failure;

/// Runs the verb.
pub(crate) fn run(verb: TraceCommand) -> Result<ExitCode, Failure> {
    match verb {
        TraceCommand::Sim(args) => sim::run(args),
        TraceCommand::Cache(args) => cache::run(&args),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn failed(error: TraceError) -> Failure {
    Failure::new(error.to_string())
}

fn open(file: &Path, format: Option<Format>) -> Result<Trace, Failure> {
    weir_trace::open(file, format).map_err(failed)
}
