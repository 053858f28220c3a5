//! What a verb is on the command line.

use std::fmt;

use clap::ArgMatches;
use weir_device::LocalBoxFuture;
use weir_log::catalog::VolumeName;

use super::place::Place;
use super::verb::Verb;
use crate::error::NodeError;
use crate::home::Home;
use crate::node::Node;

/// What a command is about: its first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// There is no such argument: the command is about all volumes, or about what its other arguments say.
    Store,
    /// A volume, NAME.
    Volume,
    /// A volume, or a snapshot of it, NAME or VOLUME@SNAPSHOT.
    VolumeOrSnapshot,
    /// A snapshot of a volume, VOLUME@SNAPSHOT.
    Snapshot,
}

/// The progress bar of a command that takes long.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// What it does, as "compacting".
    pub doing: &'static str,
    /// A template of indicatif for the progress, as "{bytes} of {total_bytes} copied".
    pub shows: &'static str,
}

/// What is asked before something is done that cannot be undone.
#[derive(Clone, Debug)]
pub struct Question {
    /// What a person types to agree.
    pub name: String,
    /// The question, without the colon at its end.
    pub asked: String,
    /// What would be done.
    pub doing: String,
    /// How to run the command without being asked.
    pub without_asking: String,
    /// What is said if anything else is typed.
    pub otherwise: String,
}

/// A part of what is printed.
#[derive(Clone, Debug)]
pub enum Section {
    /// As it is.
    Text(String),
    /// Rows under headings, which may be none.
    Table(Vec<&'static str>, Vec<Vec<String>>),
}

/// What people read when a command has done its work.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// On standard output.
    pub sections: Vec<Section>,
    /// On standard error.
    pub notes: Vec<String>,
    /// On standard error as warnings, also for programs.
    pub warnings: Vec<String>,
    /// Something is damaged or left undone, which the exit code says.
    pub is_undone: bool,
}

impl Told {
    /// One note on standard error.
    #[must_use]
    pub fn note(text: String) -> Self {
        Self { notes: vec![text], ..Self::default() }
    }

    /// Text on standard output.
    #[must_use]
    pub fn text(text: String) -> Self {
        Self { sections: vec![Section::Text(text)], ..Self::default() }
    }

    /// Rows on standard output.
    #[must_use]
    pub fn table(headings: Vec<&'static str>, rows: Vec<Vec<String>>) -> Self {
        Self { sections: vec![Section::Table(headings, rows)], ..Self::default() }
    }

    /// The same with a warning, if there is something to know.
    #[must_use]
    pub fn warned(mut self, note: Option<&String>) -> Self {
        self.warnings.extend(note.cloned());
        self
    }

    /// The same with a warning that something is left undone, if there is an obstacle.
    #[must_use]
    pub fn but(mut self, obstacle: Option<&String>) -> Self {
        self.is_undone |= obstacle.is_some();
        self.warned(obstacle)
    }
}

/// A verb on the command line. The fields of the type are its flags and arguments; their comments are the help.
pub trait Command: clap::Args + Clone + std::fmt::Debug + Send + 'static {
    /// The verb.
    type Verb: Verb;

    /// The words, as `["volume", "resize"]`.
    const WORDS: [&'static str; 2];

    /// What it is about.
    const SUBJECT: Subject;

    /// Its progress bar; `None` if it does not take long.
    const BAR: Option<Bar> = None;

    /// Whether it asks a person, unless it is told `--yes`.
    const ASKS: bool = false;

    /// The verb, on the named snapshot if the command is about one.
    fn verb(self, snapshot: Option<VolumeName>) -> Self::Verb;

    /// What a person is asked.
    fn question(
        _verb: &Self::Verb,
        _place: Place,
    ) -> impl Future<Output = Result<Option<Question>, NodeError>> {
        std::future::ready(Ok(None))
    }

    /// The text for people that is made of the report.
    fn tell(name: &str, verb: &Self::Verb, report: &<Self::Verb as Verb>::Report) -> Told;
}

/// A [`Command`] apart from its type, as the command line reads and runs it. The work of a verb is compiled with this
/// crate, and not once more with the program.
#[derive(Clone, Copy, Debug)]
pub struct CommandEntry {
    /// [`Command::WORDS`].
    pub words: [&'static str; 2],
    /// [`Command::SUBJECT`].
    pub subject: Subject,
    /// [`Command::BAR`].
    pub bar: Option<Bar>,
    /// [`Command::ASKS`].
    pub asks: bool,
    /// Adds its flags and arguments, but for the subject.
    pub augment_args: fn(clap::Command) -> clap::Command,
    parse: ParseFn,
}

type ParseFn = fn(&mut ArgMatches, Names) -> Result<Box<dyn Typed>, clap::Error>;

/// What a command is about.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The volume.
    pub volume: Option<VolumeName>,
    /// The snapshot of it.
    pub snapshot: Option<VolumeName>,
}

impl CommandEntry {
    pub(super) fn of<C: Command>() -> Self {
        Self {
            words: C::WORDS,
            subject: C::SUBJECT,
            bar: C::BAR,
            asks: C::ASKS,
            augment_args: C::augment_args,
            parse: |matches, names| {
                let verb = C::from_arg_matches_mut(matches)?.verb(names.snapshot);
                Ok(Box::new(Words::<C> { verb, name: names.volume }))
            },
        }
    }

    /// The command that was typed.
    ///
    /// # Errors
    /// What is wrong with its arguments.
    pub fn parse(
        &self,
        matches: &mut ArgMatches,
        names: Names,
    ) -> Result<TypedCommand, clap::Error> {
        (self.parse)(matches, names).map(TypedCommand)
    }
}

/// A command that was typed, to be run.
pub struct TypedCommand(Box<dyn Typed>);

/// What came of a command.
#[derive(Debug)]
pub struct Outcome {
    /// For people.
    pub told: Told,
    /// The report as JSON, for programs.
    pub json: serde_json::Result<String>,
}

type OnProgress = Box<dyn Fn(u64, u64) + Send>;

trait Typed {
    fn name(&self) -> Option<&VolumeName>;

    fn question<'a>(
        &self,
        node: &'a Node,
        home: Home,
    ) -> LocalBoxFuture<'a, Result<Option<Question>, NodeError>>;

    fn run<'a>(
        self: Box<Self>,
        node: &'a Node,
        home: Home,
        on_progress: OnProgress,
    ) -> LocalBoxFuture<'a, Result<Outcome, NodeError>>;
}

struct Words<C: Command> {
    verb: C::Verb,
    name: Option<VolumeName>,
}

impl fmt::Debug for TypedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypedCommand")
    }
}

impl TypedCommand {
    /// The volume that it is about; empty if it is about none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name().map_or("", VolumeName::as_str)
    }

    /// What a person is asked before it does what cannot be undone.
    ///
    /// # Errors
    /// When the volume that the question is about cannot be read.
    pub async fn question(&self, node: &Node, home: Home) -> Result<Option<Question>, NodeError> {
        self.0.question(node, home).await
    }

    /// Runs it ([`Node::call`]).
    ///
    /// # Errors
    /// The reason that it was not done.
    pub async fn run(
        self,
        node: &Node,
        home: Home,
        on_progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<Outcome, NodeError> {
        self.0.run(node, home, Box::new(on_progress)).await
    }
}

impl<C: Command> Typed for Words<C> {
    fn name(&self) -> Option<&VolumeName> {
        self.name.as_ref()
    }

    fn question<'a>(
        &self,
        node: &'a Node,
        home: Home,
    ) -> LocalBoxFuture<'a, Result<Option<Question>, NodeError>> {
        Box::pin(node.question::<C>(home, self.name.clone(), self.verb.clone()))
    }

    fn run<'a>(
        self: Box<Self>,
        node: &'a Node,
        home: Home,
        on_progress: OnProgress,
    ) -> LocalBoxFuture<'a, Result<Outcome, NodeError>> {
        let Self { verb, name } = *self;
        Box::pin(async move {
            let report = node.call(home, name.clone(), verb.clone(), on_progress).await?;
            let told = C::tell(name.as_ref().map_or("", VolumeName::as_str), &verb, &report);
            Ok(Outcome { told, json: serde_json::to_string_pretty(&report) })
        })
    }
}
