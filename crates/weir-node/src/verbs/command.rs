//! What a verb is on the command line.

use weir_log::catalog::VolumeName;

use super::place::Place;
use super::verb::Verb;
use crate::error::NodeError;

/// What a command is about: what stands before its other words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All volumes, or what its other words say.
    Store,
    /// A volume, NAME.
    Volume,
    /// A snapshot of a volume, VOLUME@SNAPSHOT.
    Snapshot,
}

/// How a command that takes its time shows how far it is.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// What it does, as "compacting".
    pub doing: &'static str,
    /// How far it is, as a template of indicatif says: "{bytes} of {total_bytes} copied".
    pub shows: &'static str,
}

/// What is asked before something is done that cannot be undone.
#[derive(Clone, Debug)]
pub struct Question {
    /// What a person types to say yes.
    pub name: String,
    /// The question, without the colon at its end.
    pub asked: String,
    /// What would be done.
    pub doing: String,
    /// How to have it done without a person.
    pub without_asking: String,
    /// How things are if anything else is typed.
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
    /// Nothing but that it is done.
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

    /// The same, where something stands in the way of the rest.
    #[must_use]
    pub fn but(mut self, obstacle: Option<&String>) -> Self {
        self.is_undone |= obstacle.is_some();
        self.warnings.extend(obstacle.cloned());
        self
    }
}

/// A verb on the command line. Its fields are its flags and words; what clap says of them is the help.
pub trait Command: clap::Args + Clone + std::fmt::Debug + Send + 'static {
    /// The verb.
    type Verb: Verb;

    /// The words, as `["volume", "resize"]`.
    const WORDS: [&'static str; 2];

    /// What it is about.
    const SUBJECT: Subject;

    /// How it shows how far it is; none where it is over at once.
    const BAR: Option<Bar> = None;

    /// Whether it asks a person, unless it is told `--yes`.
    const ASKS: bool = false;

    /// What is asked for, of the named snapshot where it is about one.
    fn verb(self, snapshot: Option<VolumeName>) -> Self::Verb;

    /// What a person is asked.
    fn question(
        _verb: &Self::Verb,
        _place: Place,
    ) -> impl Future<Output = Result<Option<Question>, NodeError>> {
        std::future::ready(Ok(None))
    }

    /// What people read of the report.
    fn tell(name: &str, verb: &Self::Verb, report: &<Self::Verb as Verb>::Report) -> Told;
}
