//! The commands that are one verb each: their words and flags, their help, what they ask and what they print, all as
//! the verb itself says.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Subcommand};
use indicatif::ProgressBar;
use weir_device::LocalBoxFuture;
use weir_log::catalog::VolumeName;
use weir_node::verbs::command::{Command, Section, Subject, Told};
use weir_node::verbs::{EachCommand, each_command};
use weir_node::{Home, Node};

use crate::cli::words::{SnapshotPath, snapshot_path, volume_name};
use crate::terminal::failure::{DAMAGED, Failure};
use crate::terminal::form::{Output, OutputForm};
use crate::terminal::{confirm, output};

/// How often a bar moves while nothing is reported.
const TICK: Duration = Duration::from_millis(200);

/// Id of the argument that names the volume or snapshot.
const SUBJECT: &str = "subject";

/// Id of the flag that answers the question of a command.
const YES: &str = "yes";

/// A command that was typed, to be run.
pub(crate) struct Typed(Box<dyn Run>);

trait Run {
    fn run<'a>(
        self: Box<Self>,
        node: &'a Node,
        home: Home,
    ) -> LocalBoxFuture<'a, Result<ExitCode, Failure>>;
}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Typed")
    }
}

impl Typed {
    /// Runs the command.
    pub(crate) async fn run(self, node: &Node, home: Home) -> Result<ExitCode, Failure> {
        self.0.run(node, home).await
    }
}

/// A command with its arguments.
struct Words<C> {
    command: C,
    name: Option<VolumeName>,
    snapshot: Option<VolumeName>,
    yes: bool,
    form: OutputForm,
}

impl<C: Command> Run for Words<C> {
    fn run<'a>(
        self: Box<Self>,
        node: &'a Node,
        home: Home,
    ) -> LocalBoxFuture<'a, Result<ExitCode, Failure>> {
        Box::pin(run(*self, node, home))
    }
}

async fn run<C: Command>(words: Words<C>, node: &Node, home: Home) -> Result<ExitCode, Failure> {
    let Words { command, name, snapshot, yes, form } = words;
    let verb = command.verb(snapshot);
    if C::ASKS && !yes {
        let question = node.question::<C>(home.clone(), name.clone(), verb.clone()).await?;
        question.as_ref().map_or(Ok(()), confirm::by_name)?;
    }
    let subject = name.as_ref().map_or_else(String::new, VolumeName::to_string);
    let bar = bar::<C>(&subject);
    let progress = bar.clone();
    let called = node.call(home, name, verb.clone(), move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let report = match C::BAR {
        Some(bar_of) => output::with_lines(&bar, bar_of.shows, called).await,
        None => called.await,
    };
    bar.finish_and_clear();
    let report = report?;
    let told = C::tell(&subject, &verb, &report);
    match form {
        OutputForm::Json => output::print_json(&report)?,
        OutputForm::Table => print(&told)?,
    }
    for warning in &told.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(if told.is_undone { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS })
}

fn bar<C: Command>(subject: &str) -> ProgressBar {
    let Some(bar) = C::BAR else { return ProgressBar::hidden() };
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
        eprintln!("{note}");
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

struct Augment {
    group: &'static str,
    command: clap::Command,
}

impl EachCommand for Augment {
    fn command<C: Command>(&mut self) {
        if C::WORDS[0] == self.group {
            let command = std::mem::take(&mut self.command);
            self.command = command.subcommand(clap_command::<C>());
        }
    }
}

fn clap_command<C: Command>() -> clap::Command {
    let mut command = clap::Command::new(C::WORDS[1]);
    let subject = Arg::new(SUBJECT).required(true);
    match C::SUBJECT {
        Subject::Store => {}
        Subject::Volume => {
            let name = subject.value_name("NAME").value_parser(volume_name);
            command = command.arg(name.help("Name of the volume"));
        }
        Subject::Snapshot => {
            let path = subject.value_name("VOLUME@SNAPSHOT").value_parser(snapshot_path);
            command = command.arg(path.help("The volume and the snapshot, as demo@monday"));
        }
    }
    let command = C::augment_args(command);
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let mut command = Output::augment_args(command);
    if C::ASKS {
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

struct Parse<'a> {
    words: [&'a str; 2],
    matches: &'a mut ArgMatches,
    parsed: Option<Result<Typed, clap::Error>>,
}

impl EachCommand for Parse<'_> {
    fn command<C: Command>(&mut self) {
        if C::WORDS == self.words {
            self.parsed = Some(parse::<C>(self.matches));
        }
    }
}

fn parse<C: Command>(matches: &mut ArgMatches) -> Result<Typed, clap::Error> {
    let (name, snapshot) = match C::SUBJECT {
        Subject::Store => (None, None),
        Subject::Volume => (matches.remove_one::<VolumeName>(SUBJECT), None),
        Subject::Snapshot => matches
            .remove_one::<SnapshotPath>(SUBJECT)
            .map(|SnapshotPath { volume, snapshot }| (volume, snapshot))
            .unzip(),
    };
    let yes = C::ASKS && matches.get_flag(YES);
    let command = C::from_arg_matches_mut(matches)?;
    let form = Output::from_arg_matches_mut(matches)?.output;
    Ok(Typed(Box::new(Words { command, name, snapshot, yes, form })))
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
        let mut parse = Parse { words: [O::NAME, &name], matches: &mut below, parsed: None };
        each_command(&mut parse);
        let unknown = || Err(clap::Error::raw(ErrorKind::InvalidSubcommand, "no such command"));
        parse.parsed.unwrap_or_else(unknown).map(Self::Verb)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<O: Subcommand + Group> Subcommand for Below<O> {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let mut augment = Augment { group: O::NAME, command };
        each_command(&mut augment);
        O::augment_subcommands(augment.command)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        let command = Self::augment_subcommands(clap::Command::new("weir"));
        command.get_subcommands().any(|below| below.get_name() == name)
    }
}
