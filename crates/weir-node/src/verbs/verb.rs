//! What a verb is: what is asked for, who does it, and what is done.

use std::fmt;

use axum::http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::place::{Place, Served, Serving};
use crate::error::NodeError;

/// Called with the progress of a verb: how much is done, and how much there is in all.
pub type OnProgress<'a> = &'a dyn Fn(u64, u64);

/// Which process does what a verb asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The process of this data directory that serves the volume, if there is one; otherwise the process that was
    /// asked, on the store.
    Holder,
    /// The process that was asked, on the store. Such a verb leaves a volume that is served as it is, or has it
    /// detached first.
    Anyone,
    /// The same, on a thread of its own: the verb computes for too long to share a thread with clients.
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

/// A verb. The fields of the type are the body of the request; for a GET or a DELETE they are parameters of the query.
/// The comments on the type and its fields are what the OpenAPI document and the help say.
pub trait Verb:
    Clone + fmt::Debug + Serialize + DeserializeOwned + ToSchema + Send + 'static
{
    /// The result.
    type Report: fmt::Debug + Serialize + DeserializeOwned + ToSchema + Send + 'static;

    /// Its route in the API. `None` if it needs what only the command line has, such as a key file.
    const ROUTE: Option<Route>;

    /// Which process does it.
    const BY: By;

    /// Whether it is about the volume of the store, also where another one is served under its name: one that makes
    /// clear which is which.
    const IS_OF_STORE: bool = false;

    /// Whether the process that serves the volume needs no store for it. Then it is found by the name that it serves
    /// the volume under, where the store does not say whose name that is.
    fn is_local(&self) -> bool {
        false
    }

    /// The report of one that is not waited for: it is sent as soon as the work has begun, which is when it reports its
    /// progress for the first time. What fails before is answered as an error.
    fn begun(&self) -> Option<Self::Report> {
        None
    }

    /// Refuses, before anything is begun, what a serving process does not do.
    ///
    /// # Errors
    /// The reason.
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

    /// The requests that it is sent as. A long verb is several of them, as a request has a bounded length.
    fn parts(self) -> Vec<Self> {
        vec![self]
    }

    /// How much there is to do in all of its parts, in the unit of its progress.
    fn size(&self) -> u64 {
        0
    }

    /// Adds the report of the next part to that of those before it.
    fn join(_so_far: &mut Self::Report, _next: Self::Report) {}
}

/// The report of a verb that has no other result than that it was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Named {
    /// Name of the volume.
    pub name: String,
    /// What whoever asked has to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
