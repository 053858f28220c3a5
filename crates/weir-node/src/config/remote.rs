//! Settings of a volume whose bytes are an export of another server.

use std::time::Duration;

use serde::Deserialize;
use weir_remote::RemoteUrl;

/// How long clients wait for an answer unless told otherwise, in seconds: longer than a server takes to restart, and
/// shorter than the two minutes after which the kernel of a client calls a task hung.
const DEADLINE_S: f64 = 60.0;

/// What a deadline may be, in seconds.
const DEADLINE_S_MIN: f64 = 1.0;
const DEADLINE_S_MAX: f64 = 86_400.0;

/// Connections of one volume at most: what servers in use take of one client.
const CONNECTIONS_MAX: usize = 16;

/// An export of another server as a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Its address, as `nbds://HOST/EXPORT`.
    pub uri: String,
    /// Connections to use; 1 where it is not given.
    #[serde(default)]
    pub connections: Option<usize>,
    /// How long in seconds clients wait for an answer.
    #[serde(default)]
    pub deadline: Option<f64>,
    /// Send what was not answered or not flushed again when a connection was lost.
    #[serde(default)]
    pub resend: Option<bool>,
    /// Nobody else may write it.
    #[serde(default)]
    pub exclusive: Option<bool>,
}

/// An export of another server, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it is.
    pub url: RemoteUrl,
    /// Connections to it, where the server says that several are one client.
    pub connections: usize,
    /// How long clients wait for an answer before they get an error, while there is no connection, too.
    pub deadline: Duration,
    /// Whether changes are sent again on a new connection. See [`weir_remote::RemoteArgs::resend`].
    pub resend: bool,
    /// Whether nobody else may write. See [`weir_remote::RemoteArgs::exclusive`].
    pub exclusive: bool,
}

impl RemoteConfig {
    /// As a volume is served with it.
    ///
    /// # Errors
    /// A sentence for the user, and what to do.
    pub fn checked(&self) -> Result<Remote, (String, String)> {
        let url = RemoteUrl::parse(&self.uri).map_err(|error| {
            let example = "write it as nbds://HOST/EXPORT, or nbd+unix:///EXPORT?socket=PATH";
            (error.to_string(), example.to_owned())
        })?;
        let connections = self.connections.unwrap_or(1);
        if !(1..=CONNECTIONS_MAX).contains(&connections) {
            return Err((
                format!("{connections} connections to a server are not possible"),
                format!("set a number from 1 to {CONNECTIONS_MAX}"),
            ));
        }
        let deadline = self.deadline.unwrap_or(DEADLINE_S);
        if !(DEADLINE_S_MIN..=DEADLINE_S_MAX).contains(&deadline) {
            return Err((
                format!("a deadline of {deadline} seconds is not possible"),
                format!("set a number from {DEADLINE_S_MIN} to {DEADLINE_S_MAX}"),
            ));
        }
        let deadline = Duration::from_secs_f64(deadline);
        let (resend, exclusive) = [self.resend, self.exclusive].map(|set| set == Some(true)).into();
        Ok(Remote { url, connections, deadline, resend, exclusive })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(uri: &str) -> RemoteConfig {
        RemoteConfig { uri: uri.to_owned(), ..RemoteConfig::default() }
    }

    #[test]
    fn what_is_not_given_has_defaults_and_what_cannot_be_is_refused() {
        let remote = config("nbd://host/disk").checked().expect("it is one");
        assert_eq!((remote.connections, remote.resend), (1, false));
        assert_eq!(remote.deadline, Duration::from_secs(60));
        let refused = |config: RemoteConfig| config.checked().expect_err("refused").0;
        assert!(refused(config("disk")).contains("no address of an export"));
        let many = RemoteConfig { connections: Some(17), ..config("nbd://host/x") };
        assert!(refused(many).contains("17 connections"));
        for deadline in [0.5, f64::NAN, 1e9] {
            let config = RemoteConfig { deadline: Some(deadline), ..config("nbd://host/x") };
            assert!(refused(config).contains("a deadline of"));
        }
    }
}
