//! `weir volume delete`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use super::attach::AttachVolume;
use super::command::{Bar, Command, Question, Subject, Told};
use super::place::{Place, Serving};
use super::verb::{Answer, By, Named, OnProgress, Route, Verb};
use crate::error::NodeError;
use crate::serve::events::EventKind;
use crate::size::human;
use crate::volumes::{deletion, unserved};

/// What is said where another volume is served under the name of one in the store.
const AMBIGUOUS: &str = "is served here under the name of one that is: detach it first, so that it is clear which one \
                         is to be deleted";

/// Delete a volume and everything in it. One that `weir serve` serves from this data directory is detached first, and
/// must have no clients
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeleteVolume {
    /// Delete it although a node did not close it
    #[arg(long)]
    pub take_over: bool,
    /// Give up what the journal in this data directory holds where the volume went on without it, after a takeover or
    /// an adoption, or was deleted elsewhere
    #[arg(long)]
    pub discard_journal: bool,
    /// Detach it first if it is served here, unless it has clients
    #[arg(skip)]
    pub detach: bool,
}

impl Verb for DeleteVolume {
    type Report = Named;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::DELETE,
        path: "/v1/volumes/{name}",
        id: "delete_volume",
        answer: Answer::Lines,
    });
    const BY: By = By::Anyone;

    fn admit(&self, by: &Serving, name: Option<&VolumeName>) -> Result<(), NodeError> {
        let Some(name) = name else { return Ok(()) };
        if (by.0.is_single || !self.detach) && by.0.entry(name.as_str()).is_some() {
            return Err(by.serves(name));
        }
        match by.0.views.open_of(name.as_str()).pop() {
            Some(export) => Err(NodeError::SnapshotOpen { export }),
            None => Ok(()),
        }
    }

    async fn on_store(self, place: Place, on_progress: OnProgress<'_>) -> Result<Named, NodeError> {
        let (name, mut was_served) = (place.name()?, None);
        if self.detach {
            // A deletion that is refused leaves the volume served. What else speaks against it shows once it is closed.
            if let Ok((store, id)) = place.find(Access::Write).await {
                place.refuse_if_ambiguous(AMBIGUOUS).await?;
                catalog::refuse_if_needed(&store, &place.context.env, &name, id).await?;
                if self.discard_journal {
                    let (context, home) = (&place.context, &place.home);
                    deletion::check_discards(context, home, &store, (&name, id)).await?;
                }
            }
            was_served = place.detach_if_served(true).await?;
        }
        let consent = (self.take_over, self.discard_journal);
        let deleted =
            deletion::delete(&place.context, &place.home, &name, consent, on_progress).await;
        if let Err(error) = deleted {
            if was_served.is_some() {
                place.serve_again(AttachVolume::default()).await;
            }
            return Err(error);
        }
        let note = was_served.and_then(|was| was.note);
        place.note(EventKind::VolumeDeleted, "with everything in it");
        Ok(Named { name: name.to_string(), note })
    }
}

impl Command for DeleteVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "delete"];
    const SUBJECT: Subject = Subject::Volume;
    const BAR: Option<Bar> = Some(Bar { doing: "deleting", shows: "{pos} of {len} objects" });
    const ASKS: bool = true;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        Self { detach: true, ..self }
    }

    /// Deleting cannot be undone, so a person types the name.
    async fn question(_verb: &Self, place: Place) -> Result<Option<Question>, NodeError> {
        let shown = match place.show().await {
            // What is left of one that is gone is removed without a question where that was asked for.
            Err(NodeError::Log(LogError::NoSuchVolume { .. })) => return Ok(None),
            shown => shown?,
        };
        place.refuse_if_ambiguous(AMBIGUOUS).await?;
        let name = shown.name;
        let unserved = unserved::not_closed(&place.context, &place.home).await?;
        let journal = unserved.iter().find(|one| one.volume.to_string() == shown.id);
        let and = journal.map_or_else(String::new, |one| {
            let path = one.journal.display();
            format!(
                ", also what its journal here may hold and the store lacks ({path} was not closed)"
            )
        });
        let size = human(shown.size_bytes);
        Ok(Some(Question {
            asked: format!("Delete {name} ({size}) and everything in it{and}? Type its name"),
            doing: format!("deleting {name}"),
            without_asking: "pass --yes to delete without being asked".to_owned(),
            otherwise: format!("{name} was not deleted"),
            name,
        }))
    }

    fn tell(_name: &str, _verb: &Self, report: &Named) -> Told {
        Told::default().warned(report.note.as_ref())
    }
}
