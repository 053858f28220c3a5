//! What a verb is on the command line.

use weir_log::catalog::VolumeName;

use super::place::Place;
use super::verb::Verb;
use crate::error::NodeError;

/// What a command is about: its first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// There is no such argument: the command is about all volumes, or about what its other arguments say.
    Store,
    /// A volume, NAME.
    Volume,
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
