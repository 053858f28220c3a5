//! The `weir` command: flags, environment, messages and exit codes over [`weir_node`].
#![allow(
    clippy::exit,
    clippy::disallowed_methods,
    reason = "the command line is the outside world: it talks to a terminal, reads directories and ends the process"
)]

mod cli;
mod commands;
mod process;
mod settings;
mod terminal;
mod transfer;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::commands::{
    cache, limits, manual, pki, replicate, serve, snapshot, status, store, trace, up, volume,
};
use crate::process::{logging, malloc, upgrade};
use crate::terminal::failure::Failure;

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    upgrade::end_with_who_asks()?;
    let file = settings::file(&cli.global)?;
    logging::start(settings::log_format(&cli.global, &file))?;
    match cli.command {
        Command::Completion { shell } => manual::completion(shell).map(|()| ExitCode::SUCCESS),
        Command::Man { dir } => manual::pages(dir.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Up(up) => up::run(&cli.global, &file, *up),
        Command::Serve(serve) => serve::run(cli.global, file, *serve),
        Command::Replicate(verb) => replicate::run(&cli.global, &file, *verb),
        Command::Snapshot(verb) => snapshot::run(&cli.global, &file, verb),
        Command::Status { watch, output } => status::run(&cli.global, &file, watch, output.output),
        Command::Limits(verb) => limits::run(&cli.global, &file, verb),
        Command::Cache(verb) => cache::run(&cli.global, &file, verb),
        Command::Pki(command) => pki::run(&cli.global, &file, command),
        Command::Store(verb) => store::run(&cli.global, &file, verb),
        Command::Trace(verb) => trace::run(verb),
        Command::Volume(verb) => volume::run(&cli.global, &file, verb),
    }
}

fn main() -> ExitCode {
    malloc::share_arenas();
    match run(cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}
