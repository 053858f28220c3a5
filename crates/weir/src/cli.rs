//! Every command and flag. Help, man pages and completions come from here.

mod replicate;
mod snapshot;
mod trace;
mod volume;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::BoolishValueParser;
use clap::{
    Arg, ArgAction, ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use weir_log::Takeover;
use weir_log::catalog::VolumeName;
use weir_node::EngineChoice;
use weir_node::config::{check_lease_seconds, check_seconds};
use weir_node::size::Size;

pub(crate) use self::replicate::Replicate;
pub(crate) use self::snapshot::{
    OwnSnapshotCommand, SnapshotCommand, SnapshotPath, snapshot_name, snapshot_path,
};
pub(crate) use self::trace::{TraceCommand, TraceShape};
pub(crate) use self::volume::{
    CheckLimits, OwnVolumeCommand, SalvageCommand, VolumeCommand, VolumePlace,
};
use crate::failure::Failure;
use crate::tuning::Tuning;

/// Virtual disks on a local SSD over shared object storage.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, after_help = AFTER_HELP)]
#[command(long_version = concat!(env!("CARGO_PKG_VERSION"), env!("WEIR_COMMIT")))]
#[command(disable_help_subcommand = true, subcommand_required = true)]
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
Every flag can be given in the environment: --data-dir is WEIR_DATA_DIR;
a flag without a value takes 1 or true there.
With --output json an error is one JSON object on standard error: error, help and kind.
Sizes: K, M, G and KiB, MiB, GiB are powers of 1024, KB, MB, GB powers of 1000.";

/// The command with all its flags. Those that take no value understand in the environment what people write there:
/// `1`, `yes`, `on` and `true`, and their opposites; anything else is refused.
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

/// The command as it is typed here: what a variable gives need not be typed, and the usage in a message is that of the
/// command, not of what happened to be given.
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
    // They touch no volume.
    let command = command.mut_subcommand("man", without_global);
    with_usage(command.mut_subcommand("completion", without_global))
}

/// What was typed. Ends the process with a message where that is wrong, or where help was asked for.
pub(crate) fn parse() -> Cli {
    let matches = typed().try_get_matches().unwrap_or_else(|error| refuse(&error));
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error))
}

/// Says what is wrong with what was typed, or the help that was asked for, and ends the process.
fn refuse(error: &clap::Error) -> ! {
    if !error.use_stderr() || !is_for_programs() {
        error.exit();
    }
    let text = error.render().to_string();
    let (message, usage) = text.split_once("Usage: ").unwrap_or((&text, ""));
    let words: Vec<&str> = message.split_whitespace().collect();
    let failure = Failure::usage(words.join(" ").trim_start_matches("error: "));
    let usage = usage.lines().next().unwrap_or_default();
    failure.with_help(format!("usage: {usage}")).print();
    std::process::exit(error.exit_code());
}

/// Whether programs read what is printed: `--output json`, or the variable that stands for it.
pub(crate) fn is_for_programs() -> bool {
    is_json(std::env::args_os().skip(1), std::env::var_os("WEIR_OUTPUT").as_deref())
}

fn is_json(words: impl Iterator<Item = OsString>, variable: Option<&OsStr>) -> bool {
    let mut form = variable.is_some_and(|form| form == "json");
    let mut is_next = false;
    for word in words.take_while(|word| word != "--") {
        if is_next {
            form = word == "json";
        } else if let Some(given) = word.to_str().and_then(|word| word.strip_prefix("--output=")) {
            form = given == "json";
        }
        is_next = word == "--output";
    }
    form
}

/// Flags of every command.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Journals, sockets and the embedded store [default: /var/lib/weir for root, else
    /// $XDG_DATA_HOME/weir]
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "DIR", env = "WEIR_DATA_DIR", global = true, hide_env_values = true)]
    pub(crate) data_dir: Option<PathBuf>,
    /// File with settings; flags and variables go before it
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG", global = true, hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Where volumes are stored: file:///directory or s3://bucket/prefix [default: store/ in the data directory]
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "URL", env = "WEIR_STORE", global = true, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Use a store that does not keep two writers apart; never more than one process may write to it
    #[arg(help_heading = "Places and output")]
    #[arg(long, env = "WEIR_SINGLE_WRITER", global = true, hide_env_values = true)]
    pub(crate) single_writer: bool,
    /// Form of log lines on standard error [default: text]
    #[arg(help_heading = "Places and output")]
    #[arg(long, value_name = "FORM", env = "WEIR_LOG_FORMAT", global = true)]
    pub(crate) log_format: Option<LogFormat>,
    /// How local files are reached
    #[arg(long, value_name = "ENGINE", env = "WEIR_DISK_ENGINE", global = true, hide = true)]
    #[arg(default_value = "auto")]
    pub(crate) disk_engine: DiskEngine,
    /// File with the keys of encrypted volumes: 64 hex digits each, one per line; the first is for new volumes.
    /// WEIR_KEY holds the same itself
    #[arg(help_heading = "Encryption")]
    #[arg(long, value_name = "FILE", env = "WEIR_KEY_FILE", global = true, hide_env_values = true)]
    #[arg(hide_short_help = true)]
    pub(crate) key_file: Option<PathBuf>,
    /// Command for sh that prints the keys, as of a key service
    #[arg(help_heading = "Encryption")]
    #[arg(long, value_name = "COMMAND", env = "WEIR_KEY_COMMAND", global = true)]
    #[arg(hide_env_values = true, hide_short_help = true, conflicts_with = "key_file")]
    pub(crate) key_command: Option<String>,
    /// Encrypt what this creates
    #[arg(help_heading = "Encryption")]
    #[arg(
        long,
        env = "WEIR_ENCRYPT",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    pub(crate) encrypt: bool,
    /// Length of this node's lease in seconds: how long other nodes wait before they take a volume over that it did
    /// not close [default: 60]
    #[arg(help_heading = "Leases")]
    #[arg(long, value_name = "SECONDS", env = "WEIR_LEASE", global = true, hide_env_values = true)]
    #[arg(value_parser = lease_seconds, hide_short_help = true)]
    pub(crate) lease: Option<f64>,
}

fn lease_seconds(text: &str) -> Result<f64, String> {
    let no_number = || format!("{text:?} is no number of seconds from 1 to 3600");
    check_lease_seconds(text.parse().map_err(|_| no_number())?).map_err(|_| no_number())
}

/// What happens when the lease of a volume's holder runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakeoverKind {
    /// A person decides, with --take-over; without the store, I/O goes on
    Manual,
    /// Another node takes the volume by itself; without the store, I/O stops in time
    Auto,
}

impl From<TakeoverKind> for Takeover {
    fn from(kind: TakeoverKind) -> Self {
        match kind {
            TakeoverKind::Manual => Self::Manual,
            TakeoverKind::Auto => Self::Auto,
        }
    }
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// How local files are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskEngine {
    /// io_uring where the kernel allows it.
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads with blocking calls.
    Threads,
}

impl From<DiskEngine> for EngineChoice {
    fn from(engine: DiskEngine) -> Self {
        match engine {
            DiskEngine::Auto => Self::Auto,
            DiskEngine::Uring => Self::Uring,
            DiskEngine::Threads => Self::Threads,
        }
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
    /// Show and change the limits on uploads of what is served here
    #[command(subcommand)]
    Limits(LimitsCommand),
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

/// `weir up`.
#[derive(Args, Debug)]
pub(crate) struct Up {
    /// Name of the volume
    #[arg(value_parser = volume_name)]
    pub(crate) name: VolumeName,
    /// Create the volume with this size if there is none of that name: bytes, or 10G
    #[arg(long, value_name = "SIZE", env = "WEIR_SIZE", hide_env_values = true)]
    pub(crate) size: Option<Size>,
    /// Unix socket to serve on [default: nbd/NAME.sock in the data directory]
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "PATH", env = "WEIR_NBD_SOCKET", conflicts_with = "nbd_listen")]
    #[arg(hide_env_values = true)]
    pub(crate) nbd_socket: Option<PathBuf>,
    /// Who may connect to it
    #[command(flatten)]
    pub(crate) access: SocketAccess,
    /// TCP address to serve on, as 127.0.0.1:10809
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "ADDR", env = "WEIR_NBD_LISTEN", hide_env_values = true)]
    pub(crate) nbd_listen: Option<String>,
    /// Let --nbd-listen take an address that other machines reach, without encryption
    #[arg(help_heading = "Serving")]
    #[arg(long, env = "WEIR_INSECURE", hide_env_values = true)]
    pub(crate) insecure: bool,
    /// Refuse writes
    #[arg(help_heading = "Serving")]
    #[arg(long, env = "WEIR_READ_ONLY", hide_env_values = true)]
    pub(crate) read_only: bool,
    /// Open a volume whose journal is damaged or whose objects are missing, without what is lost
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_ACCEPT_LOSS", hide_env_values = true)]
    pub(crate) accept_loss: bool,
    /// Take the volume from a node that did not close it, with what the store holds
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_TAKE_OVER", hide_env_values = true)]
    pub(crate) take_over: bool,
    /// Give up writes in a local journal that the volume has gone on without, or that was set back
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_DISCARD_JOURNAL", hide_env_values = true)]
    pub(crate) discard_journal: bool,
    /// Go on with a local journal that was copied here from another disk, once the lease of the original has run out
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_ADOPT_JOURNAL", hide_env_values = true)]
    pub(crate) adopt_journal: bool,
    /// File that gets a line for each operation of a client: time, kind, offset, length; weir trace sim reads it
    #[arg(long, value_name = "FILE", env = "WEIR_TRACE", hide_env_values = true)]
    pub(crate) trace: Option<PathBuf>,
    /// How bytes are kept
    #[command(flatten)]
    pub(crate) tuning: Tuning,
    /// What keeps the bytes: memory is for measuring the front end, and forgets everything
    #[arg(long, value_name = "KIND", hide = true, default_value = "log")]
    pub(crate) endpoint: EndpointKind,
    /// Run this with the URI in WEIR_URI, and stop when it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Who may connect to a unix socket.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Serving")]
pub(crate) struct SocketAccess {
    /// Permissions of the NBD socket, as 0660 [default: as the process's mask has it]
    #[arg(long, value_name = "MODE", env = "WEIR_NBD_SOCKET_MODE", hide_env_values = true)]
    #[arg(value_parser = mode)]
    pub(crate) nbd_socket_mode: Option<u32>,
    /// Group of the NBD socket, by name or number
    #[arg(long, value_name = "GROUP", env = "WEIR_NBD_SOCKET_GROUP", hide_env_values = true)]
    pub(crate) nbd_socket_group: Option<String>,
}

/// Permissions in octal digits.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| (1..=0o777).contains(mode));
    mode.ok_or_else(|| format!("{text:?} is no mode: write octal digits, as 0660"))
}

/// `weir serve`.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Say whether the settings are right, and serve nothing
    #[arg(long, env = "WEIR_CHECK", hide_env_values = true)]
    pub(crate) check: bool,
    /// Serve this volume; NAME:SIZE creates it where it is missing. May be given again, and with commas; takes
    /// the place of those in the file [default: all volumes of the store]
    #[arg(long, value_name = "NAME[:SIZE]", env = "WEIR_VOLUME", value_delimiter = ',')]
    #[arg(hide_env_values = true, value_parser = sized_name)]
    pub(crate) volume: Vec<(VolumeName, Option<Size>)>,
    /// Unix socket to serve on [default: nbd.sock in the data directory]
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "PATH", env = "WEIR_NBD_SOCKET", hide_env_values = true)]
    pub(crate) nbd_socket: Option<PathBuf>,
    /// Who may connect to it
    #[command(flatten)]
    pub(crate) access: SocketAccess,
    /// TCP address to serve on, as 127.0.0.1:10809
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "ADDR", env = "WEIR_NBD_LISTEN", hide_env_values = true)]
    pub(crate) nbd_listen: Option<String>,
    /// TCP address of the API, as 127.0.0.1:10808; it needs --api-token-file
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "ADDR", env = "WEIR_API_LISTEN", hide_env_values = true)]
    pub(crate) api_listen: Option<String>,
    /// File with the token that callers of the API over TCP must send
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "FILE", env = "WEIR_API_TOKEN_FILE", hide_env_values = true)]
    pub(crate) api_token_file: Option<PathBuf>,
    /// Let --nbd-listen and --api-listen take addresses that other machines reach, without encryption
    #[arg(help_heading = "Serving")]
    #[arg(long, env = "WEIR_INSECURE", hide_env_values = true)]
    pub(crate) insecure: bool,
    /// Refuse writes, on all volumes
    #[arg(help_heading = "Serving")]
    #[arg(long, env = "WEIR_READ_ONLY", hide_env_values = true)]
    pub(crate) read_only: bool,
    /// Threads that volumes live on [default: the number of CPUs, 4 at most]
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "COUNT", env = "WEIR_SHARDS", hide_env_values = true)]
    #[arg(value_parser = shards)]
    pub(crate) shards: Option<usize>,
    /// Open volumes whose journal is damaged or whose objects are missing, without what is lost
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_ACCEPT_LOSS", hide_env_values = true)]
    pub(crate) accept_loss: bool,
    /// Take volumes from a node that did not close them, with what the store holds
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_TAKE_OVER", hide_env_values = true)]
    pub(crate) take_over: bool,
    /// Give up writes in local journals that volumes have gone on without, or that were set back
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_DISCARD_JOURNAL", hide_env_values = true)]
    pub(crate) discard_journal: bool,
    /// Go on with local journals that were copied here from another disk, once the leases of the originals have run out
    #[arg(help_heading = "Recovery: what may be given up")]
    #[arg(long, env = "WEIR_ADOPT_JOURNAL", hide_env_values = true)]
    pub(crate) adopt_journal: bool,
    /// How bytes are kept
    #[command(flatten)]
    pub(crate) tuning: Tuning,
}

fn sized_name(text: &str) -> Result<(VolumeName, Option<Size>), String> {
    match text.split_once(':') {
        Some((name, size)) => Ok((volume_name(name)?, Some(size.parse()?))),
        None => Ok((volume_name(text)?, None)),
    }
}

fn shards(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok().filter(|count| (1..=256).contains(count));
    count.ok_or_else(|| format!("{text:?} is no number from 1 to 256"))
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let no_number = || format!("{text:?} is no number of seconds from 0.01 to 86400");
    check_seconds(text.parse().map_err(|_| no_number())?).map_err(|_| no_number())
}

pub(crate) fn volume_name(text: &str) -> Result<VolumeName, String> {
    VolumeName::new(text).map_err(|error| error.to_string())
}

/// What keeps the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndpointKind {
    /// A log volume.
    Log,
    /// Memory of this process.
    Memory,
}

/// `weir limits`.
#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Show the limits
    Show {
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Change limits at once, until the process ends; what is not given stays as it is
    #[command(group = ArgGroup::new("limit").required(true).multiple(true))]
    Set {
        /// Bytes per second uploaded to the store at most, as 20M; or none
        #[arg(long, value_name = "SIZE", env = "WEIR_UPLOAD_BANDWIDTH", hide_env_values = true)]
        #[arg(value_parser = limit::<Size>, group = "limit")]
        upload_bandwidth: Option<Limit<Size>>,
        /// Upload requests per second to the store at most; or none
        #[arg(long, value_name = "COUNT", env = "WEIR_UPLOAD_REQUESTS", hide_env_values = true)]
        #[arg(value_parser = limit::<NonZeroU64>, group = "limit")]
        upload_requests: Option<Limit<NonZeroU64>>,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

/// A limit, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<T>(pub(crate) Option<T>);

fn limit<T: FromStr<Err: Display>>(text: &str) -> Result<Limit<T>, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => {
            text.parse::<T>().map(|limit| Limit(Some(limit))).map_err(|error| error.to_string())
        }
    }
}

/// `weir store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Try out whether a store keeps what volumes rest on; the exit code says whether it may be used
    Probe {
        /// The store, as s3://bucket/prefix
        url: String,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

/// Form of a listing.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Form of the output
    #[arg(long, value_name = "FORM", env = "WEIR_OUTPUT", default_value = "table")]
    #[arg(hide_env_values = true)]
    pub(crate) output: OutputForm,
}

/// Form of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people.
    Table,
    /// For programs; stable.
    Json,
}
