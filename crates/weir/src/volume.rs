//! `weir volume`: verbs on volumes, through the process that serves one, or on the store itself.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use weir_log::catalog::VolumeName;
use weir_log::{LogError, SalvageReport};
use weir_node::api::types::{
    AttachVolume, Listed, ResizeVolume, Shown, SnapshotSpace, VolumeState,
};
use weir_node::config::Config;
use weir_node::size::{Size, human};
use weir_node::{FlushScope, Home, KeyPlace, Node, NodeError, SalvageWish, Unserved};

use crate::check::{self, DAMAGED, Repair};
use crate::cli::{Global, OutputForm, SalvageCommand, VolumeCommand};
use crate::confirm::{self, Question};
use crate::failure::Failure;
use crate::output;
use crate::settings::{self, Transfer};
use crate::status;
use crate::threads;
use crate::transfer::{self, Exported};

/// How often a bar moves while nothing is reported.
const TICK: Duration = Duration::from_millis(200);

/// Runs the verb.
pub(crate) fn run(
    global: &Global,
    file: &Config,
    verb: VolumeCommand,
) -> Result<ExitCode, Failure> {
    let (config, setup) = settings::transfer(global, file)?;
    threads::on_node(config, async |node| dispatch(node, &setup, verb).await)
}

async fn dispatch(node: &Node, setup: &Transfer, verb: VolumeCommand) -> Result<ExitCode, Failure> {
    let home = setup.home.clone();
    match verb {
        VolumeCommand::Check { name, limits, output } => {
            return check::run(node, home, name, &limits, output.output).await;
        }
        VolumeCommand::Repair { name, zero, yes, limits, output } => {
            let repair = Repair { name, zero, yes, form: output.output };
            return check::repair(node, home, &limits, repair).await;
        }
        VolumeCommand::Compact { name, to, output } => {
            return compact(node, home, name, to, output.output).await;
        }
        VolumeCommand::Clone { from, name, takeover, output } => {
            let from = (from.volume, from.snapshot);
            show(&node.clone_volume(home, from, name, takeover.into()).await?, output.output)
        }
        VolumeCommand::Salvage(asked) => salvage(node, home, asked).await,
        VolumeCommand::Flatten { name, output } => {
            return flatten(node, home, name, output.output).await;
        }
        VolumeCommand::Resize { name, size, shrink } => {
            resize(node, home, name, size, shrink).await
        }
        VolumeCommand::Create { name, size, takeover, attach, output } => {
            let takeover = takeover.into();
            create(node, home, (name, size.0, takeover), attach, output.output).await
        }
        VolumeCommand::Attach { name, size, read_only, take_over, output } => {
            let asked = AttachVolume { size_bytes: size.map(|size| size.0), read_only, take_over };
            show(&node.attach_volume(home, name, asked).await?, output.output)
        }
        VolumeCommand::Detach { name, disconnect } => {
            Ok(node.detach_volume(home, name, disconnect).await?)
        }
        VolumeCommand::List { output } => {
            return list(&node.list_volumes(home).await?, output.output);
        }
        VolumeCommand::Show { name, space, output } => {
            show(&described(node, home, name, space).await?, output.output)
        }
        VolumeCommand::Delete { name, take_over, discard_journal, yes } => {
            delete(node, home, name, (take_over, discard_journal), yes).await
        }
        VolumeCommand::Set { name, takeover } => {
            Ok(node.set_takeover(home, name, takeover.into()).await?)
        }
        VolumeCommand::Rekey { name, new_key_file, new_key_command, output } => {
            let new = new_key_file.map(KeyPlace::File).or(new_key_command.map(KeyPlace::Command));
            let new = new.map(|place| KeyPlace::keys_of(Some(place)));
            show(&node.rekey_volume(home, name, new).await?, output.output)
        }
        VolumeCommand::Import { source, name, size, format, overwrite, output } => {
            let target = (name, size.map(|Size(bytes)| bytes), overwrite);
            let imported = transfer::import(node, setup, (&source, format.as_deref()), target);
            show(&imported.await?, output.output)
        }
        VolumeCommand::Export { name, path, format, overwrite, output } => {
            let exported = transfer::export(node, setup, name, (&path, format, overwrite));
            print_export(&exported.await?, output.output)
        }
        VolumeCommand::Copy { from, to, overwrite, output } => {
            show(&transfer::copy(node, setup, (from, to), overwrite).await?, output.output)
        }
        VolumeCommand::Promote { name } => promote(node, home, name).await,
        VolumeCommand::Flush { name, remote, wait } => flush(node, home, name, remote, wait).await,
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Creates a volume, and has the process of the data directory serve it where that is asked for.
async fn create(
    node: &Node,
    home: Home,
    (name, size_bytes, takeover): (VolumeName, u64, weir_log::Takeover),
    attach: bool,
    form: OutputForm,
) -> Result<(), Failure> {
    let created = node.create_volume(home.clone(), name.clone(), size_bytes, takeover).await?;
    if !attach {
        return show(&created, form);
    }
    show(&node.attach_volume(home, name, AttachVolume::default()).await?, form)
}

/// What a volume is, and with `space` what its snapshots hold.
async fn described(
    node: &Node,
    home: Home,
    name: VolumeName,
    space: bool,
) -> Result<Shown, Failure> {
    let mut shown = node.show_volume(home.clone(), name.clone()).await?;
    if space {
        shown.snapshots = Some(node.snapshot_space(home, name).await?);
    }
    Ok(shown)
}

async fn resize(
    node: &Node,
    home: Home,
    name: VolumeName,
    size: Size,
    shrink: bool,
) -> Result<(), Failure> {
    let asked = ResizeVolume { size_bytes: size.0, shrink };
    node.resize_volume(home, name.clone(), asked).await?;
    eprintln!("volume {name} has {size} now; clients that ask for its size see it");
    Ok(())
}

/// Lists volumes. One that cannot be read is a line as well, and says so by the exit code.
fn list(volumes: &[Listed], form: OutputForm) -> Result<ExitCode, Failure> {
    let row = |volume: &Listed| {
        let state = match (&volume.process, &volume.holder, volume.state) {
            (Some(process), _, VolumeState::Incomplete) => format!("being filled by {process}"),
            (Some(process), _, _) => format!("served by {process}"),
            (None, Some(holder), VolumeState::Active) if volume.holder_renews => {
                format!("open on {holder}")
            }
            (None, Some(holder), VolumeState::Active) => format!("not closed on {holder}"),
            (None, None, VolumeState::Active) => "closed".to_owned(),
            (None, _, state) => state.to_string(),
        };
        let size = match volume.state {
            VolumeState::Unreadable => String::new(),
            _ => human(volume.size_bytes),
        };
        let uri = volume.uri.clone().unwrap_or_default();
        vec![volume.name.clone(), size, state, uri]
    };
    if form == OutputForm::Json {
        output::print_json(&volumes)?;
    } else {
        let rows = volumes.iter().map(row).collect();
        output::print_table(&["NAME", "SIZE", "STATE", "URI"], rows)?;
    }
    let mut code = ExitCode::SUCCESS;
    for Listed { name, error, .. } in volumes {
        if let Some(error) = error {
            eprintln!("warning: volume {name} cannot be read: {error}");
            code = ExitCode::from(DAMAGED);
        }
    }
    Ok(code)
}

fn show(shown: &Shown, form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(shown);
    }
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
        rows.push(("not in the store yet", status::risk(&serving.at_risk)));
        if let Some(log) = &serving.log {
            let [live, used] = [log.live_bytes, log.used_bytes].map(human);
            rows.push(("live share", format!("{}: {live} of {used}", status::live_share(log))));
            if !shown.origins.is_empty() {
                rows.push(("shared with those", human(log.shared_bytes)));
            }
            rows.push(("written per byte", status::amplification(log)));
        }
        rows.extend(serving.reasons.iter().map(|reason| ("degraded", reason.clone())));
    }
    let rows = rows.into_iter().map(|(key, value)| vec![key.to_owned(), value]).collect();
    output::print_table(&[], rows)?;
    match &shown.snapshots {
        Some(snapshots) if !snapshots.is_empty() => show_space(snapshots),
        _ => Ok(()),
    }
}

/// The node that has the volume, and whether it still does.
fn holder(shown: &Shown) -> String {
    match &shown.holder {
        None => "none".to_owned(),
        Some(holder) if shown.holder_renews => format!("{holder}, which renews its lease"),
        Some(holder) => holder.clone(),
    }
}

fn show_space(snapshots: &[SnapshotSpace]) -> Result<(), Failure> {
    let row = |space: &SnapshotSpace| {
        let bytes = [space.reached_bytes, space.shared_bytes, space.reclaimable_bytes];
        let mut row = vec![space.name.clone()];
        row.extend(bytes.map(human));
        let clones = match space.clones {
            1 => "1 clone".to_owned(),
            clones => format!("{clones} clones"),
        };
        row.push(match (space.clones, space.deleting) {
            (0, _) => String::new(),
            (_, false) => format!("needed by {clones}"),
            (_, true) => format!("deleted, needed by {clones}"),
        });
        row
    };
    output::print("\n")?;
    let columns = ["SNAPSHOT", "REACHES", "SHARED", "GIVES BACK", ""];
    output::print_table(&columns, snapshots.iter().map(row).collect())
}

fn print_export(exported: &Exported, form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(exported);
    }
    let Exported { path, format, size_bytes, file_bytes } = exported;
    let (size, file) = (human(*size_bytes), human(*file_bytes));
    output::print(&format!("{path}: {format}, {size}, takes {file}\n"))
}

async fn delete(
    node: &Node,
    home: Home,
    name: VolumeName,
    consent: (bool, bool),
    yes: bool,
) -> Result<(), Failure> {
    if !yes {
        match node.show_volume(home.clone(), name.clone()).await {
            Ok(shown) => ask(&shown, &node.unserved(home.clone(), &[]).await?)?,
            // What is left of one that is gone is removed without a question where that was asked for.
            Err(NodeError::Log(LogError::NoSuchVolume { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let bar = ProgressBar::no_length().with_message(format!("deleting {name}"));
    bar.set_style(output::style("{spinner} {msg}: {pos} of {len} objects"));
    let progress = bar.clone();
    let deleted = node.delete_volume(home, name.clone(), consent, move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let result = deleted.await;
    bar.finish_and_clear();
    Ok(result?)
}

/// Deleting cannot be undone, so a person types the name.
fn ask(shown: &Shown, unserved: &[Unserved]) -> Result<(), Failure> {
    let name = &shown.name;
    let journal = unserved.iter().find(|one| one.volume.to_string() == shown.id);
    let and = journal.map_or_else(String::new, |one| {
        let path = one.journal.display();
        format!(", also what its journal here may hold and the store lacks ({path} was not closed)")
    });
    confirm::by_name(&Question {
        name,
        asked: &format!(
            "Delete {name} ({}) and everything in it{and}? Type its name",
            human(shown.size_bytes)
        ),
        doing: &format!("deleting {name}"),
        without_asking: "pass --yes to delete without being asked",
        otherwise: &format!("{name} was not deleted"),
    })
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
    bar.set_style(output::style("{spinner} {msg}: {prefix} to go"));
    bar.enable_steady_tick(TICK);
    let progress = bar.clone();
    let flushed = node.flush_volume(home, name, scope, wait, move |pending| {
        progress.set_prefix(human(pending));
    });
    let result = flushed.await;
    bar.finish_and_clear();
    Ok(result?)
}

async fn compact(
    node: &Node,
    home: Home,
    name: VolumeName,
    percent: u64,
    form: OutputForm,
) -> Result<ExitCode, Failure> {
    let bar = ProgressBar::no_length().with_message(format!("compacting {name}"));
    bar.set_style(output::style("{spinner} {msg}: {bytes} of {total_bytes} given up"));
    bar.enable_steady_tick(TICK);
    let progress = bar.clone();
    let compacted = node.compact_volume(home, name.clone(), percent, move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let report = compacted.await;
    bar.finish_and_clear();
    let report = report?;
    match form {
        OutputForm::Json => output::print_json(&report)?,
        OutputForm::Table => {
            let [copied, gone] = [report.copied_bytes, report.reclaimed_bytes].map(human);
            let (before, after) = (report.live_percent_before, report.live_percent_after);
            let objects = report.copied_objects;
            let done = format!("{copied} copied into {objects} objects, {gone} given up");
            output::print(&format!("{name}: {before} % lived, {after} % live now; {done}\n"))?;
        }
    }
    let Some(obstacle) = &report.obstacle else { return Ok(ExitCode::SUCCESS) };
    eprintln!("warning: {obstacle}");
    Ok(ExitCode::from(DAMAGED))
}

async fn promote(node: &Node, home: Home, name: VolumeName) -> Result<(), Failure> {
    let id = node.promote_volume(home, name.clone()).await?;
    eprintln!("{name} is a volume of its own now, {id}");
    Ok(())
}

async fn salvage(node: &Node, home: Home, asked: SalvageCommand) -> Result<(), Failure> {
    let SalvageCommand { name, new, dry_run, accept_loss, takeover, output } = asked;
    let form = output.output;
    let new = new.filter(|_| !dry_run);
    let wish = SalvageWish { name: name.clone(), new, takeover: takeover.into(), accept_loss };
    let bar = ProgressBar::no_length().with_message(format!("salvaging {name}"));
    bar.set_style(output::style("{spinner} {msg}: {bytes} of {total_bytes} replayed"));
    bar.enable_steady_tick(TICK);
    let progress = bar.clone();
    let salvaged = node.salvage_volume(home, wish, move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let salvaged = salvaged.await;
    bar.finish_and_clear();
    let salvaged = salvaged?;
    if form == OutputForm::Json {
        return output::print_json(&salvaged);
    }
    let found = &salvaged.found;
    let (writes, bytes) = (found.writes, human(found.bytes));
    let holds =
        format!("the journal holds {writes} writes of {bytes} behind {name}@{}", found.snapshot);
    let damaged = match found.damaged_bytes {
        0 => String::new(),
        damaged => format!(", {} of it damaged", human(damaged)),
    };
    let made = match &salvaged.volume {
        Some(shown) => format!(
            "\n{} has them; once it is what it should be, weir up {name} --discard-journal gives up the journal",
            shown.name
        ),
        None => String::new(),
    };
    output::print(&format!("{holds}{damaged}{made}\n{}", damaged_writes(found)))
}

/// Lines of a report that name what is damaged.
const DAMAGED_LINES_MAX: usize = 16;

fn damaged_writes(found: &SalvageReport) -> String {
    let mut text = String::new();
    for lost in found.damaged.iter().take(DAMAGED_LINES_MAX) {
        let (from, last) = (lost.offset, lost.offset + lost.bytes - 1);
        text.push_str(&format!(
            "  bytes {from} to {last} of the volume: reads fail where no later write covers them\n"
        ));
    }
    if let Some(more @ 1..) = found.damaged.len().checked_sub(DAMAGED_LINES_MAX) {
        text.push_str(&format!("  and {more} ranges more; --output json names them all\n"));
    }
    text
}

async fn flatten(
    node: &Node,
    home: Home,
    name: VolumeName,
    form: OutputForm,
) -> Result<ExitCode, Failure> {
    let bar = ProgressBar::no_length().with_message(format!("flattening {name}"));
    bar.set_style(output::style("{spinner} {msg}: {bytes} of {total_bytes} copied"));
    bar.enable_steady_tick(TICK);
    let progress = bar.clone();
    let flattened = node.flatten_volume(home, name.clone(), move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let report = flattened.await;
    bar.finish_and_clear();
    let report = report?;
    match form {
        OutputForm::Json => output::print_json(&report)?,
        OutputForm::Table => {
            let copied = human(report.flattened_bytes);
            let origins = match report.origins.as_slice() {
                [] => "it needs no other volume".to_owned(),
                names => format!("it needs {} still", names.join(", ")),
            };
            output::print(&format!("{name}: {copied} copied, {origins}\n"))?;
        }
    }
    let Some(obstacle) = &report.obstacle else { return Ok(ExitCode::SUCCESS) };
    eprintln!("warning: {obstacle}");
    Ok(ExitCode::from(DAMAGED))
}
