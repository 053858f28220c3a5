//! The verbs on volumes and snapshots, one file each.
//!
//! A [`Verb`] is what is asked for, and says what it does with a volume that is served here and what it does with the
//! store alone. Everything else is derived from it: the route and its entry in the OpenAPI document ([`route`]), the
//! request to the process that serves the volume ([`call`]), and, with its [`Command`], the words on the command line,
//! their help and their output. A new verb is a file of this directory and its lines in [`each_verb`] and
//! [`each_command`].

mod attach;
mod call;
mod change_snapshots;
mod check;
mod clone;
mod command;
mod compact;
mod create;
mod delete;
mod detach;
mod flatten;
mod flush;
mod limit;
mod list;
mod list_snapshots;
mod place;
mod promote;
mod rekey;
mod rename;
mod repair;
mod resize;
pub(crate) mod route;
mod set;
mod show;
mod space;
mod words;

use std::fmt;

use axum::http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use crate::error::NodeError;

pub use attach::AttachVolume;
pub use change_snapshots::{
    ChangeSnapshots, ChangedSnapshots, DeleteSnapshot, RollBack, SnapshotAction, TakeSnapshot,
};
pub use check::{CheckVolume, OnWhole};
pub use clone::CloneVolume;
pub use command::{Bar, Command, Question, Section, Subject, Told};
pub use compact::CompactVolume;
pub use create::CreateVolume;
pub use delete::DeleteVolume;
pub use detach::DetachVolume;
pub use flatten::FlattenVolume;
pub use flush::{FlushVolume, FlushedVolume};
pub use limit::LimitVolume;
pub use list::{ListVolumes, VolumeList};
pub use list_snapshots::{ListSnapshots, SnapshotList};
pub use place::{Place, Served, Serving};
pub use promote::{PromoteVolume, PromotedVolume};
pub use rekey::RekeyVolume;
pub use rename::RenameVolume;
pub use repair::RepairVolume;
pub use resize::{ResizeVolume, ResizedVolume};
pub use set::{SetTakeover, TakeoverSet};
pub use show::{ShowVolume, tell as tell_shown};
pub use space::{ShowSpace, SpaceList};

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

/// What is done with every verb.
pub(crate) trait EachVerb {
    /// Does it with this one.
    fn verb<V: Verb>(&mut self);
}

/// What is done with every command.
pub trait EachCommand {
    /// Does it with this one.
    fn command<C: Command>(&mut self);
}

/// Every verb that has a route.
pub(crate) fn each_verb(each: &mut impl EachVerb) {
    each.verb::<ListVolumes>();
    each.verb::<CreateVolume>();
    each.verb::<ShowVolume>();
    each.verb::<DeleteVolume>();
    each.verb::<AttachVolume>();
    each.verb::<DetachVolume>();
    each.verb::<FlushVolume>();
    each.verb::<RenameVolume>();
    each.verb::<ResizeVolume>();
    each.verb::<CompactVolume>();
    each.verb::<CloneVolume>();
    each.verb::<FlattenVolume>();
    each.verb::<SetTakeover>();
    each.verb::<LimitVolume>();
    each.verb::<CheckVolume>();
    each.verb::<RepairVolume>();
    each.verb::<ListSnapshots>();
    each.verb::<ChangeSnapshots>();
    each.verb::<ShowSpace>();
}

/// Every command of `weir volume` and `weir snapshot` that is one verb, in the order of the help.
pub fn each_command(each: &mut impl EachCommand) {
    each.command::<CreateVolume>();
    each.command::<ListVolumes>();
    each.command::<ShowVolume>();
    each.command::<AttachVolume>();
    each.command::<DetachVolume>();
    each.command::<SetTakeover>();
    each.command::<LimitVolume>();
    each.command::<RenameVolume>();
    each.command::<ResizeVolume>();
    each.command::<FlushVolume>();
    each.command::<CompactVolume>();
    each.command::<CloneVolume>();
    each.command::<FlattenVolume>();
    each.command::<RekeyVolume>();
    each.command::<PromoteVolume>();
    each.command::<DeleteVolume>();
    each.command::<TakeSnapshot>();
    each.command::<ListSnapshots>();
    each.command::<DeleteSnapshot>();
    each.command::<RollBack>();
}
