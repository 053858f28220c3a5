//! Flags of a volume whose bytes are an export of another server.

use clap::Args;
use weir_node::config::RemoteConfig;

use crate::terminal::failure::Failure;

/// An export of another server as the volume.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Another server's export as the volume")]
pub(crate) struct RemoteFlags {
    /// Serve this export instead of a volume of the store: nbds://HOST/EXPORT, nbd://HOST/EXPORT or
    /// nbd+unix:///EXPORT?socket=PATH. For nbds, --tls-certificates names the certificate to show
    #[arg(long, value_name = "URI", env = "WEIR_REMOTE", hide_env_values = true)]
    #[arg(conflicts_with_all = ["accept_loss", "take_over", "discard_journal", "adopt_journal"])]
    remote: Option<String>,
    /// Connections to it, where the server says that several are as good as one [default: 1]
    #[arg(long, value_name = "COUNT", env = "WEIR_REMOTE_CONNECTIONS", hide_env_values = true)]
    remote_connections: Option<usize>,
    /// Seconds that clients wait for an answer of the server, while it is away, too, before they get an error
    /// [default: 60]
    #[arg(long, value_name = "SECONDS", env = "WEIR_REMOTE_DEADLINE", hide_env_values = true)]
    remote_deadline: Option<f64>,
    /// Send writes that were not answered or not flushed again once a lost connection is there again, to a server that
    /// is no Weir. Only for one that carries out nothing any more of a connection that is gone: an old write could
    /// overtake a newer one
    #[arg(long, env = "WEIR_REMOTE_RESEND", hide_env_values = true)]
    remote_resend: bool,
    /// Have the server, another Weir, let nobody else write the export; others get it read-only. Where one has got in
    /// between while the connection was lost, the volume answers nothing any more
    #[arg(long, env = "WEIR_REMOTE_EXCLUSIVE", hide_env_values = true)]
    remote_exclusive: bool,
}

impl RemoteFlags {
    /// What the flags say; what they do not, the settings of the volume in the file.
    pub(crate) fn or(&self, listed: Option<RemoteConfig>) -> Result<Option<RemoteConfig>, Failure> {
        let given = self.remote.clone().map(|uri| RemoteConfig { uri, ..RemoteConfig::default() });
        let Some(config) = given.or(listed) else {
            let has_settings = self.remote_connections.is_some()
                || self.remote_deadline.is_some()
                || self.remote_resend
                || self.remote_exclusive;
            return match has_settings {
                true => Err(Failure::usage("flags of --remote-... need --remote URI".to_owned())),
                false => Ok(None),
            };
        };
        Ok(Some(RemoteConfig {
            connections: self.remote_connections.or(config.connections),
            deadline: self.remote_deadline.or(config.deadline),
            resend: self.remote_resend.then_some(true).or(config.resend),
            exclusive: self.remote_exclusive.then_some(true).or(config.exclusive),
            ..config
        }))
    }

    /// Whether a flag names one.
    pub(crate) fn is_given(&self) -> bool {
        self.remote.is_some()
    }
}
