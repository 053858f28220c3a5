//! `weir volume show`.

use std::time::Duration;

use axum::http::Method;
use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::VolumeName;

use super::command::{Command, Section, Subject, Told};
use super::place::Place;
use super::space;
use super::verb::{Answer, By, OnProgress, Route, Verb};
use crate::api::types::{Shown, SnapshotSpace};
use crate::error::NodeError;
use crate::size::{counted, human};

/// Show one volume
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShowVolume {
    /// Say what each snapshot takes in the store, and what deleting it would give back; reads the volume's map
    #[arg(long, env = "WEIR_SPACE", hide_env_values = true)]
    pub space: bool,
}

impl Verb for ShowVolume {
    type Report = Shown;
    const ROUTE: Option<Route> = Some(Route {
        method: Method::GET,
        path: "/v1/volumes/{name}",
        id: "show_volume",
        answer: Answer::Report(200),
    });
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Shown, NodeError> {
        let mut shown = place.show().await?;
        if self.space {
            shown.snapshots = Some(space::of(&place).await?);
        }
        Ok(shown)
    }
}

impl Command for ShowVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "show"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, shown: &Shown) -> Told {
        tell_shown(shown)
    }
}

/// A volume, for people.
pub fn tell_shown(shown: &Shown) -> Told {
    let checkpoint = shown.checkpoint_as_of.map_or("none".to_owned(), |s| format!("as of {s}"));
    let mut rows = vec![
        ("name", shown.name.clone()),
        ("id", shown.id.clone()),
        ("size", format!("{} ({} bytes)", human(shown.size_bytes), shown.size_bytes)),
        ("state", shown.state.to_string()),
        ("holder", holder(shown)),
        ("takeover", shown.takeover.to_string()),
        ("openings", shown.epoch.to_string()),
        ("objects", format!("{}, {}", shown.objects, human(shown.object_bytes))),
        ("checkpoint", checkpoint),
        ("encryption", shown.encryption.clone().unwrap_or_else(|| "none".to_owned())),
    ];
    if let Some(key) = &shown.key {
        rows.push(("key", key.clone()));
    }
    rows.extend(shown.origins.iter().map(|origin| ("clone of", origin.clone())));
    if let Some(process) = &shown.process {
        rows.push(("served by", process.to_string()));
    }
    if let Some(serving) = &shown.serving {
        rows.push(("uri", serving.uri.clone()));
        rows.push(("clients", serving.clients.to_string()));
        if serving.read_only {
            rows.push(("writes", "refused: it is served read-only".to_owned()));
        }
        rows.extend(serving.limit.as_ref().map(|limit| ("limits", limit.to_string())));
        rows.push(("not in the store yet", serving.at_risk.to_string()));
        if let Some(log) = &serving.log {
            if log.rpo_ms > 0 {
                let rpo = Duration::from_millis(log.rpo_ms);
                let missed = match log.rpo_missed {
                    0 => String::new(),
                    1 => ", missed by 1 batch".to_owned(),
                    count => format!(", missed by {count} batches"),
                };
                rows.push(("rpo", format!("{} s{missed}", rpo.as_secs_f64())));
            }
            let [live, used] = [log.live_bytes, log.used_bytes].map(human);
            if log.used_bytes > 0 {
                rows.push(("live share", format!("{}: {live} of {used}", log.live_share())));
            }
            if !shown.origins.is_empty() {
                rows.push(("shared with those", human(log.shared_bytes)));
            }
            if log.data_bytes > 0 {
                rows.push(("written per byte", log.amplification()));
            }
        }
        rows.extend(serving.reasons.iter().map(|reason| ("degraded", reason.clone())));
    }
    let rows = rows.into_iter().map(|(key, value)| vec![key.to_owned(), value]).collect();
    let mut told = Told::table(Vec::new(), rows);
    if let Some(snapshots @ [_, ..]) = shown.snapshots.as_deref() {
        told.sections.push(Section::Text("\n".to_owned()));
        let columns = vec!["SNAPSHOT", "REACHES", "SHARED", "GIVES BACK", ""];
        told.sections.push(Section::Table(columns, snapshots.iter().map(space_row).collect()));
    }
    told
}

/// The node that has the volume, and whether it still does.
fn holder(shown: &Shown) -> String {
    match &shown.holder {
        None => "none".to_owned(),
        Some(holder) if shown.holder_renews => format!("{holder}, which renews its lease"),
        Some(holder) if shown.process.is_none() => format!("{holder}, which did not close it"),
        Some(holder) => holder.clone(),
    }
}

fn space_row(space: &SnapshotSpace) -> Vec<String> {
    let bytes = [space.reached_bytes, space.shared_bytes, space.reclaimable_bytes];
    let mut row = vec![space.name.clone()];
    row.extend(bytes.map(human));
    let clones = counted(space.clones, "clone");
    row.push(match (space.clones, space.deleting) {
        (0, _) => String::new(),
        (_, false) => format!("needed by {clones}"),
        (_, true) => format!("deleted, needed by {clones}"),
    });
    row
}
