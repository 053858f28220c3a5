//! `weir snapshot`: verbs on the snapshots of a volume.

use std::process::ExitCode;

use serde_json::json;
use tokio::sync::mpsc;
use weir_log::Change;
use weir_log::catalog::VolumeName;
use weir_node::config::Config;
use weir_node::size::human;
use weir_node::{Home, Node};

use crate::cli::global::Global;
use crate::cli::snapshot::{OwnSnapshotCommand, SnapshotCommand};
use crate::cli::verbs::Below;
use crate::cli::words::{SnapshotPath, snapshot_name};
use crate::process::threads;
use crate::settings::{self, Transfer};
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say};

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
}

async fn dispatch(
    node: &Node,
    setup: &Transfer,
    verb: SnapshotCommand,
) -> Result<ExitCode, Failure> {
    match verb {
        Below::Verb(verb) => verb.run(node, setup.home.clone()).await,
        Below::Own(OwnSnapshotCommand::Diff { from, to, output }) => {
            let diff = diff(node, setup.home.clone(), from, &to, output.output);
            diff.await.map(|()| ExitCode::SUCCESS)
        }
    }
}

/// Prints the differences as they are found. An array without its closing bracket is not complete: the command failed.
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
        // The receiver is gone only after printing has failed.
        let _ = found.send(change).await;
    });
    // It owns the receiver: the comparison does not wait for what is printed no more.
    let print = async move {
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
    // What cannot be printed ends it at once; what was found before an error of the comparison is printed first.
    let (sum, none) = futures_util::try_join!(async { Ok(diff.await) }, print)?;
    let sum = sum?;
    match form {
        OutputForm::Json => output::print(if none { "[]\n" } else { "\n]\n" }),
        OutputForm::Table => {
            let [data, zero] = [sum.data_bytes, sum.zero_bytes].map(human);
            say!("{data} changed to data, {zero} to zeroes");
            if sum.from_size != sum.to_size {
                let [from, to] = [sum.from_size, sum.to_size].map(human);
                say!("the size changed from {from} to {to}");
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
    snapshot_name(name).map_err(Failure::usage)
}
