//! The form in which a command prints: for people, or as JSON for programs.

use std::ffi::{OsStr, OsString};

use clap::{Args, ValueEnum};

/// Form of a listing.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Form of the output
    #[arg(long, value_name = "FORM", env = "WEIR_OUTPUT", default_value = "table")]
    #[arg(hide_env_values = true)]
    pub(crate) output: OutputForm,
}

/// Form of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people.
    Table,
    /// For programs; stable.
    Json,
}

/// Whether programs read what is printed: `--output json`, or the variable that stands for it.
pub(crate) fn is_for_programs() -> bool {
    is_json(std::env::args_os().skip(1), std::env::var_os("WEIR_OUTPUT").as_deref())
}

fn is_json(words: impl Iterator<Item = OsString>, variable: Option<&OsStr>) -> bool {
    let mut form = variable.is_some_and(|form| form == "json");
    let mut is_next = false;
    for word in words.take_while(|word| word != "--") {
        if is_next {
            form = word == "json";
        } else if let Some(given) = word.to_str().and_then(|word| word.strip_prefix("--output=")) {
            form = given == "json";
        }
        is_next = word == "--output";
    }
    form
}
