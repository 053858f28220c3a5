//! The commands that are one verb each: their words and flags, their help, what they ask and what they print, all as
//! the verb itself says.

use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Subcommand};
use indicatif::ProgressBar;
use weir_node::verbs::command::{
    Bar, CommandEntry, Names, Outcome, Section, Subject, Told, TypedCommand,
};
use weir_node::verbs::commands;
use weir_node::verbs::verb::Named;
use weir_node::{Home, Node, NodeError};

use crate::cli::words::{SnapshotPath, VolumePath, snapshot_path, volume_name, volume_path};
use crate::terminal::failure::{DAMAGED, Failure};
use crate::terminal::form::{Output, OutputForm};
use crate::terminal::output::say;
use crate::terminal::{confirm, output};

/// How often a bar moves while nothing is reported.
const TICK: Duration = Duration::from_millis(200);

/// Id of the argument that names the volume or snapshot.
const SUBJECT: &str = "subject";

/// Id of the flag that answers the question of a command.
const YES: &str = "yes";

/// A command that was typed, to be run.
#[derive(Debug)]
pub(crate) struct Typed {
    command: TypedCommand,
    bar: Option<Bar>,
    /// Whether a person is asked first.
    asks: bool,
    form: OutputForm,
}

impl Typed {
    /// Runs the command.
    pub(crate) async fn run(self, node: &Node, home: Home) -> Result<ExitCode, Failure> {
        if self.asks {
            let question = self.command.question(node, home.clone()).await?;
            question.as_ref().map_or(Ok(()), confirm::by_name)?;
        }
        let bar = progress_bar(self.bar, self.command.name());
        let progress = bar.clone();
        let called = self.command.run(node, home, move |done, total| {
            progress.set_length(total);
            progress.set_position(done);
        });
        let outcome = match self.bar {
            Some(bar_of) => output::with_lines(&bar, bar_of.shows, called).await,
            None => called.await,
        };
        bar.finish_and_clear();
        let Outcome { told, json } = done(outcome)?;
        match self.form {
            OutputForm::Json => output::print_made_json(json)?,
            OutputForm::Table => print(&told)?,
        }
        for warning in &told.warnings {
            say!("warning: {warning}");
        }
        Ok(if told.is_undone { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS })
    }
}

/// A deletion that removed what was left of deleted volumes, and nothing else, did what was asked for.
fn done(outcome: Result<Outcome, NodeError>) -> Result<Outcome, NodeError> {
    if let Err(error @ NodeError::NothingToDiscard { name, removed: 1.., .. }) = &outcome {
        let note = error.to_string();
        let report = Named { name: name.clone(), note: Some(note.clone()) };
        return Ok(Outcome { told: Told::note(note), json: serde_json::to_string_pretty(&report) });
    }
    outcome
}

fn progress_bar(bar: Option<Bar>, subject: &str) -> ProgressBar {
    let Some(bar) = bar else { return ProgressBar::hidden() };
    let shown = ProgressBar::no_length().with_message(format!("{} {subject}", bar.doing));
    shown.set_style(output::style(&format!("{{spinner}} {{msg}}: {}", bar.shows)));
    shown.enable_steady_tick(TICK);
    shown
}

/// Prints what people read.
pub(crate) fn print(told: &Told) -> Result<(), Failure> {
    for section in &told.sections {
        match section {
            Section::Text(text) => output::print(text)?,
            Section::Table(headings, rows) => output::print_table(headings, rows.clone())?,
        }
    }
    for note in &told.notes {
        say!("{note}");
    }
    Ok(())
}

/// The subcommands of `weir volume` or `weir snapshot`: those that are one verb each, and the others.
#[derive(Debug)]
pub(crate) enum Below<O> {
    /// A command that is one verb.
    Verb(Typed),
    /// Another command.
    Own(O),
}

/// The command that such subcommands belong to.
pub(crate) trait Group {
    /// The word.
    const NAME: &'static str;
}

fn clap_command(entry: &CommandEntry) -> clap::Command {
    let mut command = clap::Command::new(entry.words[1]);
    let subject = Arg::new(SUBJECT).required(true);
    match entry.subject {
        Subject::Store => {}
        Subject::Volume => {
            let name = subject.value_name("NAME").value_parser(volume_name);
            command = command.arg(name.help("Name of the volume"));
        }
        Subject::VolumeOrSnapshot => {
            let path = subject.value_name("NAME[@SNAPSHOT]").value_parser(volume_path);
            command = command.arg(path.help("The volume, or a snapshot of it, as demo@monday"));
        }
        Subject::Snapshot => {
            let path = subject.value_name("VOLUME@SNAPSHOT").value_parser(snapshot_path);
            command = command.arg(path.help("The volume and the snapshot, as demo@monday"));
        }
    }
    let command = (entry.augment_args)(command);
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let mut command = Output::augment_args(command);
    if entry.asks {
        let yes = Arg::new(YES).long(YES).action(ArgAction::SetTrue).help("Do not ask");
        command = command.arg(yes.env("WEIR_YES").hide_env_values(true));
    }
    if let Some(about) = about {
        command = command.about(about);
    }
    match long_about {
        Some(long_about) => command.long_about(long_about),
        None => command.long_about(None::<&str>),
    }
}

fn parse(entry: &CommandEntry, matches: &mut ArgMatches) -> Result<Typed, clap::Error> {
    let names = match entry.subject {
        Subject::Store => Names::default(),
        Subject::Volume => Names { volume: matches.remove_one(SUBJECT), snapshot: None },
        Subject::VolumeOrSnapshot => {
            let path = matches.remove_one::<VolumePath>(SUBJECT);
            let (volume, snapshot) = path.map(|path| (path.volume, path.snapshot)).unzip();
            Names { volume, snapshot: snapshot.flatten() }
        }
        Subject::Snapshot => {
            let path = matches.remove_one::<SnapshotPath>(SUBJECT);
            let (volume, snapshot) = path.map(|path| (path.volume, path.snapshot)).unzip();
            Names { volume, snapshot }
        }
    };
    let asks = entry.asks && !matches.get_flag(YES);
    let command = entry.parse(matches, names)?;
    let form = Output::from_arg_matches_mut(matches)?.output;
    Ok(Typed { command, bar: entry.bar, asks, form })
}

impl<O: Subcommand + Group> FromArgMatches for Below<O> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let Some(name) = matches.subcommand_name().map(str::to_owned) else {
            return Err(clap::Error::raw(ErrorKind::MissingSubcommand, "a command is missing"));
        };
        if O::has_subcommand(&name) {
            return O::from_arg_matches_mut(matches).map(Self::Own);
        }
        let Some((_, mut below)) = matches.remove_subcommand() else {
            return Err(clap::Error::raw(ErrorKind::MissingSubcommand, "a command is missing"));
        };
        let words = [O::NAME, &name];
        let entry = commands().into_iter().find(|entry| entry.words == words);
        let unknown = || clap::Error::raw(ErrorKind::InvalidSubcommand, "no such command");
        parse(&entry.ok_or_else(unknown)?, &mut below).map(Self::Verb)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<O: Subcommand + Group> Subcommand for Below<O> {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let below = commands().into_iter().filter(|entry| entry.words[0] == O::NAME);
        O::augment_subcommands(command.subcommands(below.map(|entry| clap_command(&entry))))
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        let command = Self::augment_subcommands(clap::Command::new("weir"));
        command.get_subcommands().any(|below| below.get_name() == name)
    }
}
