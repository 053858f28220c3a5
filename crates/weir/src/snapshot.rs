//! `weir snapshot`: verbs on the snapshots of a volume.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use tokio::sync::mpsc;
use weir_log::Change;
use weir_log::catalog::VolumeName;
use weir_node::api::types::{Snapshot, SnapshotAction};
use weir_node::config::Config;
use weir_node::size::human;
use weir_node::{Home, Node};

use crate::cli::{Global, OutputForm, SnapshotCommand, SnapshotPath};
use crate::confirm::{self, Question};
use crate::failure::Failure;
use crate::output;
use crate::settings::{self, Transfer};
use crate::threads;

/// Changes that are found before the ones before them are printed.
const CHANGES_AHEAD_MAX: usize = 1024;

/// Text that is printed at a time, in bytes.
const PRINTED_BYTES: usize = 64 << 10;

/// Runs the verb.
pub(crate) fn run(
    global: &Global,
    file: &Config,
    verb: SnapshotCommand,
) -> Result<ExitCode, Failure> {
    let (config, setup) = settings::transfer(global, file)?;
    threads::on_node(config, async |node| dispatch(node, &setup, verb).await)
        .map(|()| ExitCode::SUCCESS)
}

async fn dispatch(node: &Node, setup: &Transfer, verb: SnapshotCommand) -> Result<(), Failure> {
    let change = async |path: SnapshotPath, action| {
        let SnapshotPath { volume, snapshot } = path;
        node.change_snapshots(setup.home.clone(), volume, snapshot, action).await
    };
    match verb {
        SnapshotCommand::List { volume, output } => {
            list(&node.list_snapshots(setup.home.clone(), volume).await?, output.output)
        }
        SnapshotCommand::Diff { from, to, output } => {
            diff(node, setup.home.clone(), from, &to, output.output).await
        }
        SnapshotCommand::Create { path } => Ok(change(path, SnapshotAction::Take).await?),
        SnapshotCommand::Delete { path } => Ok(change(path, SnapshotAction::Delete).await?),
        SnapshotCommand::Rollback { path, yes } => {
            if !yes {
                ask(&path)?;
            }
            Ok(change(path, SnapshotAction::RollBack).await?)
        }
    }
}

fn list(snapshots: &[Snapshot], form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(&snapshots);
    }
    let row = |snapshot: &Snapshot| {
        vec![
            if snapshot.deleting {
                format!("{} (deleted, needed by clones)", snapshot.name)
            } else {
                snapshot.name.clone()
            },
            date(snapshot.created_at),
            human(snapshot.size_bytes),
            snapshot.last_write.to_string(),
        ]
    };
    let rows = snapshots.iter().map(row).collect();
    output::print_table(&["NAME", "TAKEN", "SIZE", "LAST WRITE"], rows)
}

/// Prints what differs as it is found. An array that does not close is not all: the command failed.
async fn diff(
    node: &Node,
    home: Home,
    from: SnapshotPath,
    to: &str,
    form: OutputForm,
) -> Result<(), Failure> {
    let to = later_of(&from.volume, to)?;
    let (found, mut changes) = mpsc::channel(CHANGES_AHEAD_MAX);
    let ends = (from.snapshot, to);
    let diff = node.diff_snapshots(home, from.volume, ends, async move |change| {
        // Nobody listens any more only once printing has failed.
        let _ = found.send(change).await;
    });
    let print = async {
        let (mut text, mut first) = (String::new(), true);
        while let Some(Change { offset, len, zero }) = changes.recv().await {
            let kind = if zero { "zero" } else { "data" };
            match form {
                OutputForm::Json => {
                    text.push_str(if first { "[\n  " } else { ",\n  " });
                    let run = json!({ "offset": offset, "length": len, "type": kind });
                    text.push_str(&run.to_string());
                }
                OutputForm::Table => text.push_str(&format!("{offset:>16} {len:>12} {kind}\n")),
            }
            first = false;
            if text.len() > PRINTED_BYTES || changes.is_empty() {
                output::print(&text)?;
                text.clear();
            }
        }
        Ok::<bool, Failure>(first)
    };
    let (sum, printed) = futures_util::join!(diff, print);
    let (sum, none) = (sum?, printed?);
    match form {
        OutputForm::Json => output::print(if none { "[]\n" } else { "\n]\n" }),
        OutputForm::Table => {
            let [data, zero] = [sum.data_bytes, sum.zero_bytes].map(human);
            eprintln!("{data} changed to data, {zero} to zeroes");
            if sum.from_size != sum.to_size {
                let [from, to] = [sum.from_size, sum.to_size].map(human);
                eprintln!("the size changed from {from} to {to}");
            }
            Ok(())
        }
    }
}

/// The later snapshot, named with its volume or alone.
fn later_of(volume: &VolumeName, to: &str) -> Result<VolumeName, Failure> {
    let name = match to.split_once('@') {
        Some((other, _)) if other != volume.as_str() => {
            let message = format!(
                "{to} is not of volume {volume}: only snapshots of one volume can be compared"
            );
            return Err(Failure::usage(message));
        }
        Some((_, name)) => name,
        None => to,
    };
    VolumeName::new(name).map_err(|error| Failure::usage(error.to_string()))
}

/// Seconds since 1970 as a date and a time of day, UTC.
fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(time).to_string()
}

/// What was written since is given up, so a person says yes.
fn ask(path: &SnapshotPath) -> Result<(), Failure> {
    let SnapshotPath { volume, snapshot } = path;
    confirm::by_name(&Question {
        name: volume.as_str(),
        asked: &format!(
            "Give up everything written to {volume} since {snapshot}? Type the volume's name"
        ),
        doing: &format!("going back to {volume}@{snapshot}"),
        without_asking: "pass --yes to go back without being asked",
        otherwise: &format!("{volume} stays as it is"),
    })
}
