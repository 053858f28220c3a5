//! Checks the rules of the repository that rustc, rustfmt and clippy do not know. See README.md for the table.
//!
//! Every rule is a function from text to findings; only this file and [`tree`] touch the file system.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a command-line tool that reads the source tree"
)]

mod arrows;
mod circles;
mod docs;
mod exceptions;
mod source;
mod tree;

use std::path::Path;
use std::process::ExitCode;

/// How many exceptions there may be. Lower it with the list; raising it is a decision. These are the circles of imports
/// that were there when the rule was made.
const EXCEPTIONS_MAX: usize = 0;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// File, from the root of the repository.
    pub(crate) file: String,
    /// Line, from 1; 0 where the whole file is meant.
    pub(crate) line: usize,
    /// The rule's name, as in README.md.
    pub(crate) rule: &'static str,
    /// What is wrong.
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, rule: &'static str, message: String) -> Self {
        Self { file: file.to_owned(), line, rule, message }
    }
}

fn check(root: &Path) -> (Vec<Finding>, Vec<String>) {
    let files = tree::read(root);
    let mut findings = Vec::new();
    let mut measures = Vec::new();
    let mut notes = Vec::new();
    for file in &files {
        if file.is_rust() {
            let masked = source::Masked::of(&file.text);
            findings.extend(source::banned(&file.path, &masked));
            measures.extend(source::measure(&file.path, &file.text, &masked));
            notes.extend(source::note_long(&file.path, &file.text));
        }
        if file.is_source() {
            findings.extend(source::lines(&file.path, &file.text, file.is_rust()));
        }
    }
    measures.extend(circles::measure(&files));
    let listed = files.iter().find(|f| f.path == "tools/tidy/exceptions.txt");
    let (list, broken) = exceptions::parse(listed.map_or("", |f| f.text.as_str()));
    findings.extend(broken);
    findings.extend(exceptions::judge(&measures, &list, EXCEPTIONS_MAX));
    findings.extend(arrows::check(&files));
    findings.extend(circles::name_top_rooms(&files));
    findings.extend(docs::readmes(&files));
    findings.extend(docs::links(&files));
    findings.extend(docs::summary(&files));
    findings.extend(docs::names(&files));
    findings.sort();
    (findings, notes)
}

fn main() -> ExitCode {
    // The manifest's directory is tools/tidy: the repository is two levels up, wherever the command is run from.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (findings, notes) = check(&root);
    for note in notes {
        println!("note: {note}");
    }
    for finding in &findings {
        println!("{}:{}: {}: {}", finding.file, finding.line, finding.rule, finding.message);
    }
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("tidy: {} findings", findings.len());
    ExitCode::FAILURE
}
