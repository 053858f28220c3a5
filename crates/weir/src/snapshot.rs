//! `weir snapshot`: verbs on the snapshots of a volume.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use weir_node::Node;
use weir_node::api::types::{Snapshot, SnapshotAction};
use weir_node::config::Config;
use weir_node::size::human;

use crate::cli::{Global, OutputForm, SnapshotCommand, SnapshotPath};
use crate::failure::Failure;
use crate::output;
use crate::settings::{self, Transfer};
use crate::threads;

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
            snapshot.name.clone(),
            date(snapshot.created_at),
            human(snapshot.size_bytes),
            snapshot.last_write.to_string(),
        ]
    };
    let rows = snapshots.iter().map(row).collect();
    output::print_table(&["NAME", "TAKEN", "SIZE", "LAST WRITE"], rows)
}

/// Seconds since 1970 as a date and a time of day, UTC.
fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(time).to_string()
}

/// What was written since is given up, so a person says yes.
fn ask(path: &SnapshotPath) -> Result<(), Failure> {
    let SnapshotPath { volume, snapshot } = path;
    if !std::io::stdin().is_terminal() {
        let message = format!("going back to {volume}@{snapshot} would ask, but nobody is there");
        return Err(Failure::usage(message).with_help("pass --yes to go back without being asked"));
    }
    eprint!("Give up everything written to {volume} since {snapshot}? Type the volume's name: ");
    let failed = |error| Failure::new(format!("asking: {error}"));
    std::io::stderr().flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == volume.as_str() {
        return Ok(());
    }
    Err(Failure::new(format!("{volume} stays as it is")))
}
