//! The `weir` command: flags, environment, messages and exit codes over [`weir_node`].
#![allow(
    clippy::print_stderr,
    clippy::exit,
    clippy::disallowed_methods,
    reason = "the command line is the outside world: it talks to a terminal, reads directories and ends the process"
)]

mod cli;
mod failure;
mod logging;
mod manual;
mod output;
mod place;
mod size;
mod store;
mod up;
mod volume;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    logging::start(cli.global.log_format)?;
    match cli.command {
        Command::Completion { shell } => manual::completion(shell).map(|()| ExitCode::SUCCESS),
        Command::Man { dir } => manual::pages(dir.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Store(verb) => store::run(&cli.global, verb),
        Command::Up(up) => up::run(&cli.global, *up),
        Command::Volume(verb) => volume::run(&cli.global, verb).map(|()| ExitCode::SUCCESS),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}
