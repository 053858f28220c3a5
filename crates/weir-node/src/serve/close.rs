//! The close of a volume that was served, by a detach or by the end of the process, and what it waits for.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::select;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::Instant;
use weir_device::{mutant, with_causes};

use crate::config::FileConfig;
use crate::error::NodeError;
use crate::serve::core::{Core, Entry};
use crate::serve::lock::lock;
use crate::serve::running::{ANCILLARY_TIME, BeingClosed, Ended, Running};
use crate::serve::spec::{Closing, EndpointKind, Stopped};
use crate::serve::unsent::Unsent;

/// Time of a close after which it counts as one that hangs: the status is degraded by it, and the log says what it
/// waits for, and again after as much.
pub(crate) const CLOSE_NOTICE: Duration = Duration::from_secs(5);

/// The close of a volume that is detached. A stop of the process that comes meanwhile waits for it: nobody else would.
pub(crate) struct Close<'a> {
    core: &'a Core,
    entry: &'a Entry,
    running: Running,
    /// For the stop.
    told: oneshot::Sender<Result<Stopped, NodeError>>,
}

impl<'a> Close<'a> {
    /// Takes what ends a volume; `None` if a stop has taken it.
    pub(crate) fn begin(core: &'a Core, entry: &'a Entry, unsent: Unsent) -> Option<Self> {
        // Under the lock: a stop finds the volume in one of the tables.
        let mut all = lock(&core.running);
        let running = all.remove(entry.name.as_str())?;
        let (told, ended) = oneshot::channel();
        core.note_closing(entry, Some(ended), unsent);
        Some(Self { core, entry, running, told })
    }

    /// Closes it.
    pub(crate) async fn end(self, how: Closing) -> Result<Stopped, NodeError> {
        let Self { core, entry, mut running, told } = self;
        let following = running.take_following();
        let ancillary = async {
            core.views.close_of(entry.name.as_str()).await;
            if let Some(following) = following {
                following.wait().await;
            }
        };
        // A stop does not wait for these any longer than for those of other volumes.
        select(pin!(ancillary), pin!(core.stopped_for(ANCILLARY_TIME))).await;
        let closed = told_of_wait(core, entry.name.as_str(), running.stop(how)).await;
        lock(&core.closing).remove(entry.name.as_str());
        match closed {
            Ok(stopped) => {
                // Most often nobody waits for it.
                let _ = told.send(Ok(stopped));
                Ok(stopped)
            }
            // The error of the process, if it stops; whoever detaches learns what it says.
            Err(error) => {
                let said = NodeError::Remote {
                    kind: error.kind(),
                    message: with_causes(&error),
                    help: error.help(),
                };
                match told.send(Err(error)) {
                    Err(Err(error)) => Err(error),
                    _ if mutant("detach_blames_the_stop") => Err(NodeError::ShuttingDown),
                    _ => Err(said),
                }
            }
        }
    }
}

/// Waits for the end of a close, and says in the log what it waits for where that takes long.
pub(crate) async fn told_of_wait(
    core: &Core,
    name: &str,
    ended: impl Future<Output = Result<Result<Stopped, NodeError>, RecvError>>,
) -> Result<Stopped, NodeError> {
    let mut ended = pin!(ended);
    loop {
        if let Ok(ended) = tokio::time::timeout(CLOSE_NOTICE, &mut ended).await {
            return ended.unwrap_or(Err(NodeError::ShuttingDown));
        }
        let waits = lock(&core.closing).get(name).map(BeingClosed::waits);
        let waits = waits.unwrap_or_default();
        tracing::warn!(volume = name, "the close of a volume waits: {waits}");
    }
}

impl BeingClosed {
    /// Whether nothing is known to be in its way: it has nothing to send, and has not taken long.
    pub(crate) fn is_quiet(&self) -> bool {
        let hangs = self.since.elapsed() >= CLOSE_NOTICE && !mutant("close_that_hangs_is_quiet");
        self.unsent.at_risk().is_nothing() && !hangs
    }

    /// What it waits for, and since when.
    pub(crate) fn waits(&self) -> String {
        let seconds = self.since.elapsed().as_secs();
        let unsent = self.unsent.at_risk();
        let (is_behind, lacks) = (!unsent.is_nothing(), unsent.what());
        let what = match &self.endpoint {
            EndpointKind::Log if is_behind => format!("{lacks} of it are not in the store yet"),
            EndpointKind::Log => {
                "its journal and its place in the store have to be closed".to_owned()
            }
            EndpointKind::Memory => "it is in memory alone".to_owned(),
            EndpointKind::File(FileConfig { path, .. }) => {
                format!("its file {} has to take its newest writes", path.display())
            }
            EndpointKind::Remote(remote) if is_behind => format!(
                "its server, {}, has not said of {lacks} of it that they outlast a failure",
                remote.url
            ),
            EndpointKind::Remote(remote) => format!("its server, {}, has to end it", remote.url),
        };
        format!("it is being closed, for {seconds} s so far, and {what}")
    }
}

impl Core {
    /// Notes that a volume is being closed, until the note is removed. `ended` is for a stop in the middle of it.
    pub(crate) fn note_closing(&self, entry: &Entry, ended: Option<Ended>, unsent: Unsent) {
        let (id, endpoint, since) = (entry.id, entry.spec.endpoint.clone(), Instant::now());
        let one = BeingClosed { id, ended, unsent, endpoint, since };
        lock(&self.closing).insert(entry.name.to_string(), one);
    }

    /// Returns when the process has been stopping for so long.
    async fn stopped_for(&self, time: Duration) {
        // An error means that the core was dropped, so the process stops.
        let _ = self.stopping.subscribe().wait_for(|is_stopping| *is_stopping).await;
        tokio::time::sleep(time).await;
    }
}

#[cfg(test)]
mod tests {
    use weir_device::VolumeId;

    use super::*;

    const ID: VolumeId = VolumeId([7; 16]);

    #[test]
    fn what_a_close_waits_for_is_said_of_its_own_kind() {
        let waits = |endpoint| {
            let (unsent, since) = (Unsent::default(), Instant::now());
            BeingClosed { id: ID, ended: None, unsent, endpoint, since }.waits()
        };
        let file = FileConfig { path: "/srv/disk".into(), direct: false };
        let file = waits(EndpointKind::File(file));
        assert_eq!(
            file,
            "it is being closed, for 0 s so far, and its file /srv/disk has to take its newest writes"
        );
        assert!(waits(EndpointKind::Log).contains("its place in the store"));
    }

    #[test]
    fn a_close_that_takes_long_is_not_quiet() {
        let since = |since| {
            let (unsent, endpoint) = (Unsent::default(), EndpointKind::Memory);
            BeingClosed { id: ID, ended: None, unsent, endpoint, since }.is_quiet()
        };
        let now = Instant::now();
        assert!(since(now), "it has just begun");
        assert!(now.checked_sub(CLOSE_NOTICE).is_some_and(|long_ago| !since(long_ago)));
    }
}
