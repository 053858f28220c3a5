//! `weir snapshot create`, `delete` and `rollback`: three words for one request.

use std::rc::Rc;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;
use weir_stack::{QUIESCE_MAX, Stack};

use super::command::{Command, Question, Subject, Told};
use super::place::{Place, Served, Serving};
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::error::NodeError;
use crate::serve::events::EventKind;

/// What is said where another volume is served under the name of one in the store.
const AMBIGUOUS: &str = "is served here under the name of one that is: detach it first, or rename the one in the store \
                         (weir volume rename), so that it is clear which one's snapshots are meant";

/// Take, delete or go back to a snapshot of a volume. Waits for the store. Going back needs a volume without clients
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSnapshots {
    /// What to do
    pub action: SnapshotAction,
    /// Name of the snapshot: 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit
    pub snapshot: String,
}

/// What is done with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotAction {
    /// Take it.
    Take,
    /// Delete it.
    Delete,
    /// Set the volume back to it, and give up what was written since.
    RollBack,
}

/// What was done with a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ChangedSnapshots {
    /// The volume.
    pub volume: String,
    /// The snapshot.
    pub snapshot: String,
}

impl Verb for ChangeSnapshots {
    type Report = ChangedSnapshots;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/snapshots",
        id: "change_snapshots",
        answer: Answer::Lines,
    });
    const BY: By = By::Holder;

    fn admit(&self, _by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        self.name().map(drop)
    }

    async fn on_served(
        self,
        served: Served,
        _: OnProgress<'_>,
    ) -> Result<ChangedSnapshots, NodeError> {
        let Served { place, hosted } = &served;
        let volume = served.log("has no snapshots")?;
        let export = format!("{}@{}", hosted.name, self.snapshot);
        let _unopened = match (self.action, &place.serving) {
            (SnapshotAction::Delete, Some(by)) => Some(by.0.views.keep_closed(&export).await?),
            _ => None,
        };
        match self.action {
            SnapshotAction::Take | SnapshotAction::Delete => self.apply(&volume).await?,
            SnapshotAction::RollBack => {
                let asked = self.clone();
                hosted.without_clients(async move { asked.apply(&volume).await }).await?;
            }
        }
        self.done(place)
    }

    async fn on_store(
        self,
        place: Place,
        _: OnProgress<'_>,
    ) -> Result<ChangedSnapshots, NodeError> {
        place.refuse_if_ambiguous(AMBIGUOUS).await?;
        place.with_open(async |volume| self.apply(&volume).await).await?;
        self.done(&place)
    }
}

impl ChangeSnapshots {
    fn name(&self) -> Result<VolumeName, NodeError> {
        VolumeName::new(&self.snapshot).map_err(|error| NodeError::SnapshotName(error.into()))
    }

    async fn apply(&self, volume: &Rc<Stack>) -> Result<(), NodeError> {
        let snapshot = self.name()?;
        match self.action {
            SnapshotAction::Take => volume.snapshot(&snapshot, QUIESCE_MAX).await.map(drop)?,
            SnapshotAction::Delete => volume.delete_snapshot(&snapshot).await?,
            SnapshotAction::RollBack => volume.rollback(&snapshot, QUIESCE_MAX).await?,
        }
        Ok(())
    }

    fn done(self, place: &Place) -> Result<ChangedSnapshots, NodeError> {
        let kind = match self.action {
            SnapshotAction::Take => EventKind::SnapshotTaken,
            SnapshotAction::Delete => EventKind::SnapshotDeleted,
            SnapshotAction::RollBack => EventKind::VolumeRolledBack,
        };
        place.note(kind, self.snapshot.clone());
        Ok(ChangedSnapshots { volume: place.name()?.to_string(), snapshot: self.snapshot })
    }
}

fn asked(action: SnapshotAction, snapshot: Option<VolumeName>) -> ChangeSnapshots {
    let snapshot = snapshot.map_or_else(String::new, |name| name.to_string());
    ChangeSnapshots { action, snapshot }
}

/// Take a snapshot: all that was acknowledged before is in it. No client notices; returns when the store has it
#[derive(Args, Clone, Copy, Debug)]
pub struct TakeSnapshot {}

impl Command for TakeSnapshot {
    type Verb = ChangeSnapshots;
    const WORDS: [&'static str; 2] = ["snapshot", "create"];
    const SUBJECT: Subject = Subject::Snapshot;

    fn verb(self, snapshot: Option<VolumeName>) -> ChangeSnapshots {
        asked(SnapshotAction::Take, snapshot)
    }

    fn tell(_name: &str, _verb: &ChangeSnapshots, _report: &ChangedSnapshots) -> Told {
        Told::default()
    }
}

/// Delete a snapshot; the space of what nothing else needs comes back
#[derive(Args, Clone, Copy, Debug)]
pub struct DeleteSnapshot {}

impl Command for DeleteSnapshot {
    type Verb = ChangeSnapshots;
    const WORDS: [&'static str; 2] = ["snapshot", "delete"];
    const SUBJECT: Subject = Subject::Snapshot;

    fn verb(self, snapshot: Option<VolumeName>) -> ChangeSnapshots {
        asked(SnapshotAction::Delete, snapshot)
    }

    fn tell(_name: &str, _verb: &ChangeSnapshots, _report: &ChangedSnapshots) -> Told {
        Told::default()
    }
}

/// Set a volume without clients back to a snapshot, and give up what was written since
#[derive(Args, Clone, Copy, Debug)]
pub struct RollBack {}

impl Command for RollBack {
    type Verb = ChangeSnapshots;
    const WORDS: [&'static str; 2] = ["snapshot", "rollback"];
    const SUBJECT: Subject = Subject::Snapshot;
    const ASKS: bool = true;

    fn verb(self, snapshot: Option<VolumeName>) -> ChangeSnapshots {
        asked(SnapshotAction::RollBack, snapshot)
    }

    /// What was written since is given up, so a person says yes.
    async fn question(verb: &ChangeSnapshots, place: Place) -> Result<Option<Question>, NodeError> {
        let (volume, snapshot) = (place.name()?, &verb.snapshot);
        Ok(Some(Question {
            name: volume.to_string(),
            asked: format!(
                "Give up everything written to {volume} since {snapshot}? Type the volume's name"
            ),
            doing: format!("going back to {volume}@{snapshot}"),
            without_asking: "pass --yes to go back without being asked".to_owned(),
            otherwise: format!("{volume} stays as it is"),
        }))
    }

    fn tell(_name: &str, _verb: &ChangeSnapshots, _report: &ChangedSnapshots) -> Told {
        Told::default()
    }
}
