//! `weir volume flush`.

use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{DeviceError, ErrorKind, FlushScope};
use weir_log::catalog::VolumeName;

use super::command::{Bar, Command, Subject, Told};
use super::place::{Place, Served, Serving};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::error::NodeError;

/// How often a flush looks at what is still to go.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Make acknowledged writes survive: power loss, or with --remote the loss of the local disk
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlushVolume {
    /// To the store; without --wait it is only begun, and goes on
    #[arg(long)]
    pub remote: bool,
    /// Return when it is done
    // A program that does not say is not told of an end that is none.
    #[arg(long)]
    #[serde(default = "waits")]
    #[schema(default = true)]
    pub wait: bool,
    /// With `remote`: have a published checkpoint reach them as well, which is what a replica is made of
    // Left out where it is not asked for: a process of an older program does not know the word.
    #[arg(skip)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub publish: bool,
}

fn waits() -> bool {
    true
}

/// What a flush came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FlushedVolume {
    /// Whether it is done: one that is not waited for is only begun.
    pub done: bool,
}

impl FlushVolume {
    /// Refuses what would publish nothing: a checkpoint is published of what is in the store.
    fn check(&self) -> Result<(), NodeError> {
        if self.publish && !self.remote {
            let message =
                "publish needs remote: ask for both, {\"remote\": true, \"publish\": true}";
            return Err(DeviceError::new(ErrorKind::Invalid, message).into());
        }
        Ok(())
    }
}

impl Verb for FlushVolume {
    type Report = FlushedVolume;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/flush",
        id: "flush_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    fn is_local(&self) -> bool {
        !self.remote
    }

    fn admit(&self, _by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        self.check()
    }

    fn begun(&self) -> Option<FlushedVolume> {
        // A local one is over in milliseconds, and its end is all there is to know.
        (self.remote && !self.wait).then_some(FlushedVolume { done: false })
    }

    async fn on_served(
        self,
        volume: Served,
        on_progress: OnProgress<'_>,
    ) -> Result<FlushedVolume, NodeError> {
        let hosted = volume.hosted;
        let mut flush = std::pin::pin!(async {
            hosted.flush(self.remote).await?;
            // What has no log has no checkpoint either.
            if self.remote && self.publish && hosted.stack.is_log() {
                hosted.stack.publish().await?;
            }
            Ok::<_, NodeError>(())
        });
        loop {
            tokio::select! {
                biased;
                flushed = &mut flush => return flushed.map(|()| FlushedVolume { done: true }),
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            // One that is not waited for has begun with the first report: it did not fail at once.
            on_progress(0, hosted.stack.log_status().map_or(0, |status| status.unsent_bytes));
        }
    }

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<FlushedVolume, NodeError> {
        self.check()?;
        // Opening and closing a volume leaves everything in the store, and publishes it.
        let opened = place.with_open(async |volume| {
            if self.remote {
                volume.flush(FlushScope::Store).await?;
            }
            Ok(FlushedVolume { done: true })
        });
        opened.await
    }
}

impl Command for FlushVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "flush"];
    const SUBJECT: Subject = Subject::Volume;
    const BAR: Option<Bar> = Some(Bar { doing: "flushing", shows: "{total_bytes} to go" });

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        // A process of an older program does not wait for a local one by itself.
        Self { wait: self.wait || !self.remote, ..self }
    }

    fn tell(name: &str, _verb: &Self, report: &FlushedVolume) -> Told {
        if report.done {
            return Told::default();
        }
        Told::note(format!(
            "volume {name}: the flush to the store goes on; weir volume flush {name} --remote --wait returns when it \
             is done"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_is_only_begun_says_how_to_wait_for_it() {
        let told = |done| {
            FlushVolume::tell("demo", &FlushVolume::default(), &FlushedVolume { done }).notes
        };
        let begun = told(false).join(" ");
        assert!(begun.contains("weir volume flush demo --remote --wait"), "{begun}");
        assert!(told(true).is_empty());
    }

    #[test]
    fn a_program_that_does_not_ask_for_less_waits() {
        let asked = |json| serde_json::from_str::<FlushVolume>(json).unwrap().begun();
        assert_eq!(asked("{}"), None);
        assert_eq!(asked(r#"{"remote":true}"#), None);
        assert_eq!(asked(r#"{"wait":false}"#), None, "a local one is waited for always");
        let begun = asked(r#"{"remote":true,"wait":false}"#);
        assert_eq!(begun, Some(FlushedVolume { done: false }));
    }

    #[test]
    fn a_plain_flush_is_understood_by_older_programs() {
        let said = |publish| serde_json::to_string(&FlushVolume { publish, ..Default::default() });
        assert!(!said(false).unwrap().contains("publish"));
        assert!(said(true).unwrap().contains("\"publish\":true"));
    }
}
