//! `weir replicate`.

use clap::Args;
use weir_log::catalog::VolumeName;
use weir_node::size::Size;

use crate::cli::words::{seconds, volume_name};
use crate::terminal::form::Output;

/// `weir replicate`.
#[derive(Args, Debug)]
pub(crate) struct Replicate {
    /// Name of the volume, in the store of the command
    #[arg(value_parser = volume_name)]
    pub(crate) name: VolumeName,
    /// Where the replica is: file:///directory or s3://bucket/prefix. WEIR_TARGET_AWS_ENDPOINT_URL and the like name
    /// another service, or other credentials, than the volume's
    #[arg(value_name = "STORE_URL")]
    pub(crate) target: String,
    /// End with the newest published state there, which is the default
    #[arg(long, env = "WEIR_ONCE", hide_env_values = true, conflicts_with = "follow")]
    pub(crate) once: bool,
    /// Go on until interrupted
    #[arg(long, env = "WEIR_FOLLOW", hide_env_values = true)]
    pub(crate) follow: bool,
    /// Least time in seconds between two states that are sent: what is overwritten meanwhile is not
    #[arg(long, value_name = "SECONDS", env = "WEIR_AGE", hide_env_values = true)]
    #[arg(value_parser = seconds, default_value = "60", requires = "follow")]
    pub(crate) age: f64,
    /// Bytes per second sent at most [default: no limit]
    #[arg(long, value_name = "SIZE", env = "WEIR_UPLOAD_BANDWIDTH", hide_env_values = true)]
    pub(crate) upload_bandwidth: Option<Size>,
    /// Upload requests per second at most [default: no limit]
    #[arg(long, value_name = "COUNT", env = "WEIR_UPLOAD_REQUESTS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) upload_requests: Option<u64>,
    /// Form of the output; JSON has one line per state that was sent
    #[command(flatten)]
    pub(crate) output: Output,
}
