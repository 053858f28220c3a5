//! Every command and flag. Help, man pages and completions come from here.

pub(crate) mod cache;
pub(crate) mod file;
pub(crate) mod global;
pub(crate) mod known;
pub(crate) mod limits;
pub(crate) mod pki;
pub(crate) mod remote;
pub(crate) mod replicate;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod store;
pub(crate) mod trace;
pub(crate) mod tuning;
pub(crate) mod up;
pub(crate) mod verbs;
pub(crate) mod volume;
pub(crate) mod words;

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::cache::CacheCommand;
use crate::cli::global::Global;
use crate::cli::limits::LimitsCommand;
use crate::cli::pki::Pki;
use crate::cli::replicate::Replicate;
use crate::cli::serve::Serve;
use crate::cli::snapshot::SnapshotCommand;
use crate::cli::store::StoreCommand;
use crate::cli::trace::TraceCommand;
use crate::cli::up::Up;
use crate::cli::volume::VolumeCommand;
use crate::cli::words::seconds;
use crate::terminal::failure::Failure;
use crate::terminal::form::{Output, is_for_programs};

/// Virtual disks on a local SSD over shared object storage.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, after_help = AFTER_HELP)]
#[command(long_version = concat!(env!("CARGO_PKG_VERSION"), env!("WEIR_COMMIT")))]
#[command(subcommand_required = true)]
pub(crate) struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 success, 1 failure, 2 wrong usage, 3 damage was found or something is left undone;
128 and the signal's number when a signal ended it, as 130 after Ctrl-C;
`weir up NAME -- COMMAND` hands on COMMAND's.
Flags can be given in the environment: --data-dir is WEIR_DATA_DIR;
a flag without a value takes 1 or true there.
What changes a volume or a process that runs comes from the command line alone.
With --output json an error is one JSON object on standard error: error, help and kind.
Sizes: K, M, G and KiB, MiB, GiB are powers of 1024, KB, MB, GB powers of 1000.";

/// The command with all its flags. The variable of a flag without a value may be `1`, `yes`, `on` or `true`, or one of
/// their opposites; anything else is refused.
pub(crate) fn command() -> clap::Command {
    fn with_words(command: clap::Command) -> clap::Command {
        let words = |arg: Arg| match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        };
        command.mut_args(words).mut_subcommands(with_words)
    }
    with_words(Cli::command())
}

/// The command as it is parsed here: an argument that a variable gives is not required, and the usage in an error
/// message is that of the whole command.
fn typed() -> clap::Command {
    fn without_given(command: clap::Command) -> clap::Command {
        let given = |arg: Arg| match arg.get_env() {
            Some(name) if std::env::var_os(name).is_some() => arg.required(false),
            _ => arg,
        };
        command.mut_args(given).mut_subcommands(without_given)
    }
    fn with_usage(mut command: clap::Command) -> clap::Command {
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").to_owned();
        command.override_usage(usage).mut_subcommands(with_usage)
    }
    fn without_global(command: clap::Command) -> clap::Command {
        command.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg })
    }
    let mut command = without_given(command());
    command.build();
    // Both commands touch no volume, so the global flags are of no use to them.
    let command = command.mut_subcommand("man", without_global);
    with_usage(command.mut_subcommand("completion", without_global))
}

/// Parses the command line. Ends the process with a message if there is an error in it, or if help was asked for.
pub(crate) fn parse() -> Cli {
    let matches = typed().try_get_matches().unwrap_or_else(|error| refuse(&error));
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error))
}

/// Prints an error of the command line, or the help that was asked for, and ends the process.
fn refuse(error: &clap::Error) -> ! {
    if !error.use_stderr() || !is_for_programs() {
        error.exit();
    }
    for_programs(&error.render().to_string()).print();
    std::process::exit(error.exit_code());
}

/// An error of the command line, from the text that people would read.
fn for_programs(text: &str) -> Failure {
    // What people are told last, as to try --help, is no part of the error.
    let text = text.split_once("For more information").map_or(text, |(before, _)| before);
    let (message, usage) = text.split_once("Usage: ").unwrap_or((text, ""));
    let words: Vec<&str> = message.split_whitespace().collect();
    let failure = Failure::usage(words.join(" ").trim_start_matches("error: "));
    match usage.lines().next() {
        Some(usage) => failure.with_help(format!("usage: {usage}")),
        None => failure,
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a volume over NBD until interrupted, or while COMMAND runs
    Up(Box<Up>),
    /// Serve many volumes over NBD, as a service
    Serve(Box<Serve>),
    /// Show what is served here, what is wrong, and what would be lost if the host died now
    Status {
        /// Show it again every so many seconds, until interrupted
        #[arg(long, value_name = "SECONDS", env = "WEIR_WATCH", hide_env_values = true)]
        #[arg(value_parser = seconds, num_args = 0..=1, default_missing_value = "2")]
        watch: Option<f64>,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Create, list, show, resize, compact, flush, check, delete, import, export and copy volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Take, list, delete and go back to snapshots of a volume
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Replicate a volume to another store, once or for as long as it runs; `weir volume promote` makes a volume of it
    Replicate(Box<Replicate>),
    /// Show and change the limits on uploads of what is served here, and drain it to leave the host
    #[command(subcommand)]
    Limits(LimitsCommand),
    /// Show, resize, make and remove the cache of the store's objects on the local disk
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Make certificates for TLS, for people who have no certificate authority
    Pki(Pki),
    /// Look at stores
    #[command(subcommand)]
    Store(StoreCommand),
    /// Replay block traces, without serving anything
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one page per command into DIR
    Man {
        /// Directory for the pages; created if missing
        dir: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_programs_is_what_is_wrong_and_a_usage_only_where_there_is_one() {
        let told = |words: &[&str]| {
            let error = typed().try_get_matches_from(words).expect_err("wrong words");
            for_programs(&error.render().to_string())
        };
        let of_value = told(&["weir", "volume", "show", "a b"]);
        assert!(of_value.message().contains("'a b'"), "{of_value:?}");
        assert!(
            !of_value.message().contains("--help") && of_value.help().is_none(),
            "{of_value:?}"
        );
        let of_word = told(&["weir", "volume", "show", "a", "b"]);
        assert!(!of_word.message().contains("--help"), "{of_word:?}");
        let usage = of_word.help().expect("a usage");
        assert!(usage.starts_with("usage: weir volume show"), "{usage}");
    }
}
