//! Asking a person before something is done that cannot be undone.

use std::io::{IsTerminal, Write};

use crate::failure::Failure;

/// What is asked, and what is said otherwise.
pub(crate) struct Question<'a> {
    /// What a person types to say yes.
    pub(crate) name: &'a str,
    /// The question, without the colon at its end.
    pub(crate) asked: &'a str,
    /// What would be done.
    pub(crate) doing: &'a str,
    /// How to have it done without a person.
    pub(crate) without_asking: &'a str,
    /// How things are if anything else is typed.
    pub(crate) otherwise: &'a str,
}

/// Goes on only once a person typed the name of what is at stake.
pub(crate) fn by_name(question: &Question<'_>) -> Result<(), Failure> {
    let Question { name, asked, doing, without_asking, otherwise } = question;
    if !std::io::stdin().is_terminal() {
        let message = format!("{doing} would ask, but nobody is there");
        return Err(Failure::usage(message).with_help(*without_asking));
    }
    eprint!("{asked}: ");
    let failed = |error| Failure::new(format!("asking: {error}"));
    std::io::stderr().flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == *name {
        return Ok(());
    }
    Err(Failure::new((*otherwise).to_owned()))
}
