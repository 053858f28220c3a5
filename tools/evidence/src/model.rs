//! A goal and its runs, as they stand in `docs/evidence/PART/LINE-NAME.toml`. See docs/evidence/README.md.

use serde::Deserialize;
use toml::value::{Date, Datetime};

/// Longest claim: a line of docs/status.md also has the figure, the goal and the commit.
const CLAIM_CHARS_MAX: usize = 80;
/// Longest note of a run.
const NOTE_CHARS_MAX: usize = 200;

/// A chapter of the work: docs/evidence/parts.toml.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// The directory of its goals.
    pub(crate) number: u8,
    /// Its heading.
    pub(crate) title: String,
}

/// All of docs/evidence/parts.toml.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parts {
    /// In order.
    pub(crate) part: Vec<Part>,
}

/// What is claimed, how it is measured, and every run that was written down.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Goal {
    /// Where it stands, from its path; not in the file.
    #[serde(skip)]
    pub(crate) place: Place,
    /// One line without figures of a run.
    pub(crate) claim: String,
    /// What to type. A word in capitals stands for anything.
    pub(crate) commands: Vec<String>,
    /// Hardware, store or setting that the goal is about.
    pub(crate) applies: Option<String>,
    /// The name under which benchmarks and campaigns record; none where runs are entered by hand.
    pub(crate) measure: Option<String>,
    /// What must be so.
    pub(crate) goal: Target,
    /// Oldest first.
    #[serde(default)]
    pub(crate) run: Vec<Run>,
}

/// `PART/LINE-NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) part: u8,
    pub(crate) line: u8,
    pub(crate) name: String,
}

impl Place {
    /// From `docs/evidence/2/5-qd32.toml`.
    pub(crate) fn of(path: &str) -> Result<Self, String> {
        let wrong = || format!("{path} is not docs/evidence/PART/LINE-NAME.toml");
        let (part, file) = path
            .strip_prefix("docs/evidence/")
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(wrong)?;
        let (line, name) =
            file.strip_suffix(".toml").and_then(|stem| stem.split_once('-')).ok_or_else(wrong)?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(wrong());
        }
        let number = |text: &str| text.parse::<u8>().map_err(|_| wrong());
        Ok(Self { part: number(part)?, line: number(line)?, name: name.to_owned() })
    }

    /// As pages name it: `2.5 qd32`.
    pub(crate) fn label(&self) -> String {
        format!("{}.{} {}", self.part, self.line, self.name)
    }

    /// As the command line names it: `2/5-qd32`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}-{}", self.part, self.line, self.name)
    }
}

/// How a figure is held against the goal: docs/evidence/README.md has the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A geometric mean over pairs, with its interval.
    Ratio,
    /// Processor time, judged by the end of its interval.
    Cpu,
    /// A figure by itself.
    Value,
    /// A count of failures, of which there may be none; `n` says out of how many.
    Zero,
    /// Something that is there or is not; the note says what was seen.
    Statement,
}

/// The goal's number and its direction.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// Of the value.
    pub(crate) unit: String,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    /// Pairs, seeds, rounds or checks that a run must have.
    pub(crate) n_at_least: Option<u64>,
}

impl Target {
    /// Whether a figure is on the right side of the goal.
    pub(crate) fn is_met_by(&self, figure: f64) -> bool {
        let failures = self.kind == Kind::Zero && figure != 0.0;
        !failures
            && self.at_least.is_none_or(|least| figure >= least)
            && self.at_most.is_none_or(|most| figure <= most)
    }
}

/// What a run showed. The order is that of docs/status.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The goal is not met.
    Missed,
    /// A part of what is claimed is so; the note says which.
    Partly,
    /// Not shown: no run, too few pairs, too wide an interval.
    Open,
    /// The goal is met, by the rules.
    Reached,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Missed => "missed",
            Self::Partly => "partly",
            Self::Open => "open",
            Self::Reached => "reached",
        }
    }
}

/// Whether something else ran on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    Quiet,
    Busy,
    /// Nobody wrote it down.
    Unknown,
}

impl Load {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Busy => "busy",
            Self::Unknown => "unknown",
        }
    }
}

/// Where a run was made.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) cores: u16,
    /// Version of the kernel, or `unknown`.
    pub(crate) kernel: String,
    pub(crate) load: Load,
}

/// One run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Of the program that ran.
    pub(crate) commit: String,
    /// The tree had changes when it was built.
    #[serde(default)]
    pub(crate) dirty: bool,
    pub(crate) date: Datetime,
    pub(crate) machine: Machine,
    pub(crate) value: Option<f64>,
    /// Ends of the 95 % interval.
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
    /// Pairs, seeds, rounds or checks.
    pub(crate) n: Option<u64>,
    pub(crate) verdict: Verdict,
    pub(crate) note: Option<String>,
    /// For a miss: the page that says why, from the root of the repository.
    pub(crate) why: Option<String>,
    /// What was typed, where it was not the goal's command.
    pub(crate) command: Option<String>,
    /// A shorter run than the goal asks for: it decides nothing unless it missed.
    #[serde(default)]
    pub(crate) partial: bool,
}

impl Run {
    pub(crate) fn day(&self) -> Option<Date> {
        self.date.date
    }

    /// The commit as pages show it.
    pub(crate) fn build(&self) -> String {
        let dirty = if self.dirty { "+" } else { "" };
        format!("{}{dirty}", self.commit)
    }
}

impl Goal {
    /// Reads one record.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, String> {
        let place = Place::of(path)?;
        let mut goal: Self = toml::from_str(text).map_err(|error| format!("{path}: {error}"))?;
        goal.place = place;
        Ok(goal)
    }

    /// The run that the goal stands by: the newest one that was as long as it must be, or that missed.
    pub(crate) fn newest(&self) -> Option<&Run> {
        self.run.iter().rev().find(|run| !run.partial || run.verdict == Verdict::Missed)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.newest().map_or(Verdict::Open, |run| run.verdict)
    }

    /// What is wrong with the record, apart from the judgement of its figures.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.claim.is_empty() || self.claim.chars().count() > CLAIM_CHARS_MAX {
            faults.push(format!(
                "the claim has at least one and at most {CLAIM_CHARS_MAX} characters"
            ));
        }
        if self.claim.contains(['\n', '|']) {
            faults.push("the claim is one line without a vertical bar".to_owned());
        }
        if self.commands.is_empty() {
            faults.push("there is no command".to_owned());
        }
        let bounds =
            usize::from(self.goal.at_least.is_some()) + usize::from(self.goal.at_most.is_some());
        let wanted = match self.goal.kind {
            Kind::Ratio | Kind::Cpu | Kind::Value => 1,
            Kind::Zero | Kind::Statement => 0,
        };
        if bounds != wanted {
            faults.push(format!("a goal of this kind has {wanted} of at_least and at_most"));
        }
        for (number, run) in (1..).zip(&self.run) {
            faults.extend(run.faults().into_iter().map(|fault| format!("run {number}: {fault}")));
        }
        if !self.run.is_sorted_by_key(Run::day) {
            faults.push("the runs are not in order of their dates".to_owned());
        }
        faults
    }
}

impl Run {
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let length = self.commit.len();
        if !(7..=40).contains(&length) || !self.commit.chars().all(|c| c.is_ascii_hexdigit()) {
            faults.push(format!("{} is no commit", self.commit));
        }
        if self.date.date.is_none() || self.date.time.is_some() {
            faults.push("the date is a day".to_owned());
        }
        match (self.low, self.value, self.high) {
            (None, _, None) => {}
            (Some(low), Some(value), Some(high)) if low <= value && value <= high => {}
            _ => faults.push("an interval has two ends, with the value between them".to_owned()),
        }
        if let Some(note) = &self.note
            && (note.is_empty() || note.chars().count() > NOTE_CHARS_MAX || note.contains('\n'))
        {
            faults.push(format!("a note is one line of at most {NOTE_CHARS_MAX} characters"));
        }
        if self.verdict == Verdict::Missed && self.why.is_none() {
            faults.push("a miss names the page that says why (why = \"docs/...\")".to_owned());
        }
        if self.verdict == Verdict::Partly && self.note.is_none() {
            faults.push("what is shown partly needs a note that says which part".to_owned());
        }
        faults
    }
}
