//! `weir up`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_log::catalog::VolumeName;
use weir_node::size::Size;

use crate::cli::file::FileFlags;
use crate::cli::remote::RemoteFlags;
use crate::cli::serve::{SocketAccess, TlsAccess};
use crate::cli::tuning::Tuning;
use crate::cli::words::volume_name;

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
    /// Certificates and the settings of TLS
    #[command(flatten)]
    pub(crate) tls: TlsAccess,
    /// Take clients without TLS as well, and let --nbd-listen take an address that other machines reach
    #[arg(help_heading = "Serving")]
    #[arg(long, env = "WEIR_INSECURE", hide_env_values = true)]
    pub(crate) insecure: bool,
    /// Refuse writes
    #[arg(help_heading = "Serving")]
    #[arg(long, env = "WEIR_READ_ONLY", hide_env_values = true)]
    pub(crate) read_only: bool,
    /// Open a volume whose journal is damaged or whose objects are missing, without what is lost and what is behind it
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
    /// An export of another server
    #[command(flatten)]
    pub(crate) remote: RemoteFlags,
    /// A file or a block device
    #[command(flatten)]
    pub(crate) file: FileFlags,
    /// What keeps the bytes: memory is for measuring the front end, and forgets everything
    #[arg(long, value_name = "KIND", hide = true, default_value = "log")]
    pub(crate) endpoint: EndpointKind,
    /// Run this with the URI in WEIR_URI, and stop when it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What keeps the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndpointKind {
    /// A log volume.
    Log,
    /// Memory of this process.
    Memory,
}
