//! `weir volume detach`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_device::{ErrorKind, with_causes};
use weir_log::catalog::VolumeName;
use weir_store::Access;

use super::command::{Bar, Command, Subject, Told};
use super::place::{Place, Serving};
use super::verb::{Answer, By, Named, OnProgress, Route, Verb};
use crate::error::NodeError;
use crate::serve::attach::{self, Asked, Detaching};
use crate::serve::core::Core;
use crate::serve::spec::{Closing, Stopped};

/// How often a detach looks at what is still to go.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Serve a volume no more, and close it with everything in the store, so that any node can open it. The store has 30
/// seconds for that; what it does not take in time stays in the journal here, which is an error
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DetachVolume {
    /// Disconnect its clients, if it has any
    #[arg(long)]
    pub disconnect: bool,
    /// It is deleted next: what is not in the store stays in the journal, and nothing waits for the store
    #[arg(skip)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub to_delete: bool,
}

impl Verb for DetachVolume {
    type Report = Named;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::POST,
        path: "/v1/volumes/{name}/detach",
        id: "detach_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Server;

    fn admit(&self, by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        by.refuse_if_single()
    }

    async fn on_store(self, place: Place, on_progress: OnProgress<'_>) -> Result<Named, NodeError> {
        let name = place.name()?;
        let Some(Serving(core)) = &place.serving else {
            return Err(NodeError::NotServedHere { name: name.to_string() });
        };
        let note = core.still_named(&name).filter(|_| self.to_delete);
        let done = Named { name: name.to_string(), note };
        if attach::take_back(core, &name).await? {
            return Ok(done);
        }
        let is_elsewhere = core.entry(name.as_str()).is_some_and(|entry| entry.is_elsewhere());
        match detach_telling(core, &name, self.how(), on_progress).await {
            Ok(Stopped::LocalOnly) if !self.to_delete => {
                Err(NodeError::KeptInJournal { name: done.name })
            }
            Ok(Stopped::Clean | Stopped::LocalOnly) => Ok(done),
            // A file or a remote volume that has failed is closed all the same, and what it lost is said once more.
            Err(error) if is_elsewhere && core.entry(name.as_str()).is_none() => {
                let why = with_causes(&error);
                let note = format!("volume {name} is detached, and was not closed in order: {why}");
                Ok(Named { note: Some(note), ..done })
            }
            Err(error) => Err(error),
        }
    }
}

/// Detaches a volume, and says how much of it the store still lacks.
async fn detach_telling(
    core: &Arc<Core>,
    name: &VolumeName,
    how: Detaching,
    on_progress: OnProgress<'_>,
) -> Result<Stopped, NodeError> {
    let mut detached = std::pin::pin!(attach::detach(core, name.clone(), how));
    loop {
        tokio::select! {
            biased;
            detached = &mut detached => return detached,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if let Some(unsent) = core.unsent_of_closing(name.as_str()) {
            on_progress(0, unsent.bytes);
        }
    }
}

impl DetachVolume {
    fn how(self) -> Detaching {
        let (closing, asked) = match self.to_delete {
            true => (Closing::Quick, Asked::ToGo),
            false => (Closing::ToStore, Asked::ByHand),
        };
        Detaching { disconnect: self.disconnect, closing, asked }
    }
}

/// A volume that was served until now.
#[derive(Debug)]
pub(crate) struct WasServed {
    /// What whoever deletes or renames it has to know.
    pub(crate) note: Option<String>,
}

impl Place {
    /// Has the volume served no more, if this process serves it, or one from this data directory that serves many:
    /// `None` if none does. It is deleted or renamed next.
    pub(crate) async fn detach_if_served(
        &self,
        to_delete: bool,
    ) -> Result<Option<WasServed>, NodeError> {
        let (name, asked) = (self.name()?, DetachVolume { disconnect: false, to_delete });
        if let Some(Serving(core)) = &self.serving {
            let how = Detaching { asked: Asked::ToGo, ..asked.how() };
            let note = core.still_named(&name);
            return match attach::detach(core, name.clone(), how).await {
                // A journal that is not in the store as a whole goes with a volume that is deleted, and with no other.
                Ok(Stopped::LocalOnly) if !to_delete => {
                    Err(NodeError::KeptInJournal { name: name.to_string() })
                }
                Ok(_) => Ok(Some(WasServed { note })),
                Err(NodeError::NotServedHere { .. }) => Ok(None),
                Err(error) => Err(error),
            };
        }
        let Ok((store, id)) = self.find(Access::Write).await else { return Ok(None) };
        let Some(mut process) = self.home.holder(&store, id).await? else { return Ok(None) };
        if process.status.is_err() {
            // What comes next names it.
            return Ok(None);
        }
        let mut detached = process.client.call(Some(&name), &asked, &|_, _| {}).await;
        if let Err(NodeError::Remote { kind: ErrorKind::Invalid, .. }) = detached {
            // It runs an older program, which does not know that it need not wait.
            let asked = DetachVolume::default();
            detached = process.client.call(Some(&name), &asked, &|_, _| {}).await;
        }
        match detached {
            // One that serves nothing else is named by what comes next.
            Err(NodeError::Remote { kind: ErrorKind::Unsupported, .. }) => Ok(None),
            Ok(Named { note, .. }) => Ok(Some(WasServed { note })),
            // What its journal keeps is in the way of nothing here, as in the process itself.
            Err(error) => match self.home.holder(&store, id).await? {
                None => Ok(None),
                Some(_) => Err(error),
            },
        }
    }
}

impl Command for DetachVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "detach"];
    const SUBJECT: Subject = Subject::Volume;
    const BAR: Option<Bar> = Some(Bar { doing: "detaching", shows: "{total_bytes} to go" });

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, report: &Named) -> Told {
        Told::default().but(report.note.as_ref())
    }
}
