//! `weir volume`: verbs on volumes, through the process that serves one, or on the store itself.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use weir_log::SalvageReport;
use weir_node::api::types::Shown;
use weir_node::config::Config;
use weir_node::size::{Size, human};
use weir_node::verbs::show::tell_shown;
use weir_node::{Home, Node, SalvageWish};

use crate::cli::global::Global;
use crate::cli::verbs::{self, Below};
use crate::cli::volume::{OwnVolumeCommand, SalvageCommand, VolumeCommand};
use crate::commands::check::{self, Repair};
use crate::process::threads;
use crate::settings::{self, Transfer};
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say};
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
    match verb {
        Below::Verb(verb) => verb.run(node, setup.home.clone()).await,
        Below::Own(verb) => own(node, setup, verb).await,
    }
}

/// Runs a command that is more than one verb.
async fn own(node: &Node, setup: &Transfer, verb: OwnVolumeCommand) -> Result<ExitCode, Failure> {
    let home = setup.home.clone();
    match verb {
        OwnVolumeCommand::Check { name, limits, output } => {
            return check::run(node, home, name, &limits, output.output).await;
        }
        OwnVolumeCommand::Repair { name, zero, yes, limits, output } => {
            let repair = Repair { name, zero, yes, form: output.output };
            return check::repair(node, home, &limits, repair).await;
        }
        OwnVolumeCommand::Salvage(asked) => salvage(node, home, asked).await,
        OwnVolumeCommand::Import { source, name, size, format, overwrite, output } => {
            let target = (name, size.map(|Size(bytes)| bytes), overwrite);
            let imported = transfer::import(node, setup, (&source, format.as_deref()), target);
            show(&imported.await?, output.output)
        }
        OwnVolumeCommand::Export { from, path, format, overwrite, output } => {
            let exported = transfer::export(node, setup, from, (&path, format, overwrite));
            print_export(&exported.await?, output.output)
        }
        OwnVolumeCommand::Copy { from, to, overwrite, output } => {
            show(&transfer::copy(node, setup, (from, to), overwrite).await?, output.output)
        }
    }
    .map(|()| ExitCode::SUCCESS)
}

fn show(shown: &Shown, form: OutputForm) -> Result<(), Failure> {
    match form {
        OutputForm::Json => output::print_json(shown),
        OutputForm::Table => verbs::print(&tell_shown(shown)),
    }
}

fn print_export(exported: &Exported, form: OutputForm) -> Result<(), Failure> {
    if exported.path == transfer::STREAM {
        // Standard output carries the bytes of the volume, and nothing else.
        let text = match form {
            OutputForm::Json => output::to_json(exported)?,
            OutputForm::Table => format!("standard output: raw, {}", human(exported.size_bytes)),
        };
        say!("{text}");
        return Ok(());
    }
    if form == OutputForm::Json {
        return output::print_json(exported);
    }
    let Exported { path, format, size_bytes, file_bytes } = exported;
    let (size, file) = (human(*size_bytes), human(*file_bytes));
    output::print(&format!("{path}: {format}, {size}, takes {file}\n"))
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
    let salvaged = output::with_lines(&bar, "{bytes} of {total_bytes} replayed", salvaged).await;
    bar.finish_and_clear();
    let salvaged = salvaged?;
    if form == OutputForm::Json {
        return output::print_json(&salvaged);
    }
    let found = &salvaged.found;
    let (blocks, bytes) = (found.blocks, human(found.bytes));
    let behind = format!("behind {name}@{}", found.snapshot);
    let holds = format!("the journal holds {blocks} written blocks ({bytes}) {behind}");
    let damaged = match found.damaged_bytes {
        0 => String::new(),
        damaged => format!(", {} of it damaged", human(damaged)),
    };
    let missing = match found.missing_blocks {
        0 => String::new(),
        missing => format!("; {missing} more are lost: neither of the two has them"),
    };
    let made = match &salvaged.volume {
        Some(shown) => format!(
            "\n{} has them; once it is what it should be, weir up {name} --discard-journal gives up the journal",
            shown.name
        ),
        None => String::new(),
    };
    output::print(&format!("{holds}{damaged}{missing}{made}\n{}", damaged_writes(found)))
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
