//! `weir volume list`.

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::command::{Command, Subject, Told};
use super::place::Place;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::{Listed, VolumeState};
use crate::error::NodeError;
use crate::size::human;
use crate::volumes::list;

/// List the volumes of the store, and the files and remote volumes that are served
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ListVolumes {}

/// The volumes of a store, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct VolumeList(pub Vec<Listed>);

impl Verb for ListVolumes {
    type Report = VolumeList;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::GET,
        path: "/v1/volumes",
        id: "list_volumes",
        answer: Answer::Report(200),
    });
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<VolumeList, NodeError> {
        Ok(VolumeList(list::list(&place.context, &place.home).await?))
    }
}

impl Command for ListVolumes {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "list"];
    const SUBJECT: Subject = Subject::Store;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    /// One that cannot be read is a line as well, and says so by the exit code.
    fn tell(_name: &str, _verb: &Self, VolumeList(volumes): &VolumeList) -> Told {
        let rows = volumes.iter().map(row).collect();
        let mut told = Told::table(vec!["NAME", "SIZE", "STATE", "URI"], rows);
        for Listed { name, error, .. } in volumes {
            let unreadable = error.as_ref();
            let warning = unreadable.map(|error| format!("volume {name} cannot be read: {error}"));
            told = told.but(warning.as_ref());
        }
        told
    }
}

fn row(volume: &Listed) -> Vec<String> {
    let state = match (&volume.process, &volume.holder, volume.state) {
        (Some(process), _, VolumeState::Incomplete) => format!("being filled by {process}"),
        (Some(process), _, _) => match volume.kind.as_deref() {
            Some(kind) => format!("{kind}, served by {process}"),
            None => format!("served by {process}"),
        },
        (None, Some(holder), VolumeState::Active) if volume.holder_renews => {
            format!("open on {holder}")
        }
        (None, Some(holder), VolumeState::Active) => format!("not closed on {holder}"),
        (None, None, VolumeState::Active) => "closed".to_owned(),
        (None, _, VolumeState::Replica) if volume.empty_replica => {
            "replica, nothing complete yet".to_owned()
        }
        (None, _, state) => state.to_string(),
    };
    let size = match volume.state {
        VolumeState::Unreadable => String::new(),
        _ => human(volume.size_bytes),
    };
    vec![volume.name.clone(), size, state, volume.uri.clone().unwrap_or_default()]
}
