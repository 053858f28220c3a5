//! What a verb is: what is asked for, who does it, and what is done.

use std::fmt;

use axum::http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::place::{Place, Served, Serving};
use crate::error::NodeError;

/// Where a verb says how far it is: what is done, and what there is in all.
pub type OnProgress<'a> = &'a dyn Fn(u64, u64);

/// Who does what a verb asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The process of this data directory that serves the volume, where one does; otherwise whoever was asked, on the
    /// store.
    Holder,
    /// Whoever was asked, on the store: a volume that is served does not mind.
    Anyone,
    /// The same, on a thread of its own: it computes for too long to share one with clients.
    Aside,
    /// The process that serves many volumes from this data directory.
    Server,
}

/// How a process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With the report, and this status.
    Report(u16),
    /// With one JSON object per line until it is done: how far it is, and the report at the end.
    Lines,
}

/// The place of a verb in the API.
#[derive(Clone, Debug)]
pub struct Route {
    /// Method.
    pub method: Method,
    /// Path; `{name}` stands for the volume.
    pub path: &'static str,
    /// The operation in the OpenAPI document.
    pub id: &'static str,
    /// The answer.
    pub answer: Answer,
}

/// What is asked for. Its fields are the body of the request; those of a GET or a DELETE are parameters. What is
/// written of the type and of its fields is what the document and the help say.
pub trait Verb:
    Clone + fmt::Debug + Serialize + DeserializeOwned + ToSchema + Send + 'static
{
    /// What it comes to.
    type Report: fmt::Debug + Serialize + DeserializeOwned + ToSchema + Send + 'static;

    /// Its place in the API; none where only the command line knows what it needs, such as files beside it.
    const ROUTE: Option<Route>;

    /// Who does it.
    const BY: By;

    /// Whether the answer waits for its end.
    fn is_waited_for(&self) -> bool {
        true
    }

    /// Refuses at once what a serving process does not do.
    ///
    /// # Errors
    /// Why not.
    fn admit(&self, _by: &Serving, _name: Option<&VolumeName>) -> Result<(), NodeError> {
        Ok(())
    }

    /// Does it with a volume that is served here, on the thread of the volume.
    fn on_served(
        self,
        volume: Served,
        on_progress: OnProgress<'_>,
    ) -> impl Future<Output = Result<Self::Report, NodeError>> {
        self.on_store(volume.place, on_progress)
    }

    /// Does it with the store.
    fn on_store(
        self,
        place: Place,
        on_progress: OnProgress<'_>,
    ) -> impl Future<Output = Result<Self::Report, NodeError>>;

    /// The requests that it is sent as: one has a bounded length.
    fn parts(self) -> Vec<Self> {
        vec![self]
    }

    /// What there is to do in all of its parts, for who hears of progress.
    fn size(&self) -> u64 {
        0
    }

    /// Adds the report of the next part to that of those before it.
    fn join(_so_far: &mut Self::Report, _next: Self::Report) {}
}

/// That it was done to a volume, where there is nothing else to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Named {
    /// Name of the volume.
    pub name: String,
}
