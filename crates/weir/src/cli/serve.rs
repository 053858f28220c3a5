//! `weir serve`, and who may connect to what is served.

use std::path::PathBuf;

use clap::Args;
use weir_log::catalog::VolumeName;
use weir_net::tls::MinVersion;
use weir_node::size::Size;

use crate::cli::tuning::Tuning;
use crate::cli::words::volume_name;

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
    /// Certificates and the settings of TLS
    #[command(flatten)]
    pub(crate) tls: TlsAccess,
    /// TCP address of the API, as 127.0.0.1:10808; it needs --api-token-file or --api-allow
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "ADDR", env = "WEIR_API_LISTEN", hide_env_values = true)]
    pub(crate) api_listen: Option<String>,
    /// File with the token that callers of the API over TCP must send
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "FILE", env = "WEIR_API_TOKEN_FILE", hide_env_values = true)]
    pub(crate) api_token_file: Option<PathBuf>,
    /// Name in a certificate that may use the API over TCP without a token; may be given again, and with commas
    #[arg(help_heading = "Serving")]
    #[arg(long, value_name = "NAME", env = "WEIR_API_ALLOW", value_delimiter = ',')]
    #[arg(hide_env_values = true)]
    pub(crate) api_allow: Vec<String>,
    /// Take clients without TLS as well, and let --nbd-listen and --api-listen take addresses that other machines reach
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
    /// Open volumes whose journal is damaged or whose objects are missing, without what is lost and what is behind it
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

/// Who may connect over TCP.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Serving")]
pub(crate) struct TlsAccess {
    /// Directory with ca-cert.pem, server-cert.pem and server-key.pem: clients over TCP must speak TLS and show a
    /// certificate then; `weir pki issue` makes one
    #[arg(long, value_name = "DIR", env = "WEIR_TLS_CERTIFICATES", hide_env_values = true)]
    pub(crate) tls_certificates: Option<PathBuf>,
    /// Name in a certificate that may use what is served; may be given again, and with commas [default: all]
    #[arg(
        long,
        value_name = "NAME",
        env = "WEIR_ALLOW",
        value_delimiter = ',',
        requires = "tls_certificates"
    )]
    #[arg(hide_env_values = true)]
    pub(crate) allow: Vec<String>,
    /// Oldest version of TLS that is spoken, 1.2 or 1.3; nbd-client needs 1.2 [default: 1.3]
    #[arg(long, value_name = "VERSION", env = "WEIR_TLS_MIN_VERSION", hide_env_values = true)]
    pub(crate) tls_min_version: Option<MinVersion>,
}

/// Permissions in octal digits.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| (1..=0o777).contains(mode));
    mode.ok_or_else(|| format!("{text:?} is no mode: write octal digits, as 0660"))
}
