//! `weir volume`: verbs on volumes, through the process that serves one, or on the store itself.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use weir_log::catalog::VolumeName;
use weir_node::control::FlushScope;
use weir_node::{Home, Listed, Node, Shown};

use crate::cli::{Global, OutputForm, VolumeCommand};
use crate::failure::Failure;
use crate::output;
use crate::place;
use crate::size::human;

/// How often a bar moves while nothing is reported.
const TICK: Duration = Duration::from_millis(200);

/// Runs the verb.
pub(crate) fn run(global: &Global, verb: VolumeCommand) -> Result<(), Failure> {
    let home = place::home(global)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("starting the runtime: {error}")))?;
    let node = Node::start(global.node_config())?;
    let result = runtime.block_on(dispatch(&node, home, verb));
    node.shut_down();
    result
}

async fn dispatch(node: &Node, home: Home, verb: VolumeCommand) -> Result<(), Failure> {
    match verb {
        VolumeCommand::Create { name, size, takeover, output } => {
            let created = node.create_volume(home, name, size.0, takeover.into()).await?;
            let shown = Shown { details: created, process: None, serving: None };
            show(&shown, output.output)
        }
        VolumeCommand::List { output } => list(&node.list_volumes(home).await?, output.output),
        VolumeCommand::Show { name, output } => {
            show(&node.show_volume(home, name).await?, output.output)
        }
        VolumeCommand::Delete { name, take_over, yes } => {
            delete(node, home, name, take_over, yes).await
        }
        VolumeCommand::Set { name, takeover } => {
            Ok(node.set_takeover(home, name, takeover.into()).await?)
        }
        VolumeCommand::Flush { name, remote, wait } => flush(node, home, name, remote, wait).await,
    }
}

fn list(volumes: &[Listed], form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(&volumes);
    }
    let row = |volume: &Listed| {
        let summary = &volume.summary;
        let state = match (&volume.process, &summary.holder) {
            (Some(process), _) => format!("served by {process}"),
            (None, Some(holder)) => format!("not closed on {holder}"),
            (None, None) => "closed".to_owned(),
        };
        let uri = volume.uri.clone().unwrap_or_default();
        vec![summary.name.to_string(), human(summary.size_bytes), state, uri]
    };
    output::print_table(&["NAME", "SIZE", "STATE", "URI"], volumes.iter().map(row).collect())
}

fn show(shown: &Shown, form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(shown);
    }
    let details = &shown.details;
    let summary = &details.summary;
    let checkpoint = details.checkpoint_as_of.map_or("none".to_owned(), |s| format!("as of {s}"));
    let mut rows = vec![
        ("name", summary.name.to_string()),
        ("id", summary.id.clone()),
        ("size", format!("{} ({} bytes)", human(summary.size_bytes), summary.size_bytes)),
        ("holder", summary.holder.clone().unwrap_or_else(|| "none".to_owned())),
        ("takeover", format!("{:?}", summary.takeover).to_lowercase()),
        ("openings", details.epoch.to_string()),
        ("objects", format!("{}, {}", details.objects, human(details.object_bytes))),
        ("checkpoint", checkpoint),
    ];
    if let Some(process) = &shown.process {
        rows.push(("served by", process.to_string()));
    }
    if let Some(status) = &shown.serving {
        rows.push(("uri", status.uri.clone()));
        rows.push(("not in the store yet", human(status.pending_bytes)));
    }
    let rows = rows.into_iter().map(|(key, value)| vec![key.to_owned(), value]).collect();
    output::print_table(&[], rows)
}

async fn delete(
    node: &Node,
    home: Home,
    name: VolumeName,
    take_over: bool,
    yes: bool,
) -> Result<(), Failure> {
    if !yes {
        ask(&node.show_volume(home.clone(), name.clone()).await?)?;
    }
    let bar = ProgressBar::no_length().with_message(format!("deleting {name}"));
    bar.set_style(style("{spinner} {msg}: {pos} of {len} objects"));
    let progress = bar.clone();
    let deleted = node.delete_volume(home, name.clone(), take_over, move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let result = deleted.await;
    bar.finish_and_clear();
    Ok(result?)
}

/// Deleting cannot be undone, so a person types the name.
fn ask(shown: &Shown) -> Result<(), Failure> {
    let summary = &shown.details.summary;
    let name = &summary.name;
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("deleting {name} would ask, but nobody is there"))
            .with_help("pass --yes to delete without being asked"));
    }
    eprint!("Delete {name} ({}) and everything in it? Type its name: ", human(summary.size_bytes));
    let failed = |error| Failure::new(format!("asking: {error}"));
    std::io::stderr().flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == name.as_str() {
        return Ok(());
    }
    Err(Failure::new(format!("{name} was not deleted")))
}

async fn flush(
    node: &Node,
    home: Home,
    name: VolumeName,
    remote: bool,
    wait: bool,
) -> Result<(), Failure> {
    let scope = if remote { FlushScope::Store } else { FlushScope::LocalDisk };
    // A local flush is over in milliseconds, and its end is all there is to know.
    let wait = wait || !remote;
    let bar = ProgressBar::new_spinner().with_message(format!("flushing {name}"));
    bar.set_style(style("{spinner} {msg}: {prefix} to go"));
    bar.enable_steady_tick(TICK);
    let progress = bar.clone();
    let flushed = node.flush_volume(home, name, scope, wait, move |pending| {
        progress.set_prefix(human(pending));
    });
    let result = flushed.await;
    bar.finish_and_clear();
    Ok(result?)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this file are well formed")
}
