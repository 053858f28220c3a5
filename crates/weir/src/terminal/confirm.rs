//! Asking a person before something is done that cannot be undone.

use std::io::{IsTerminal, Write};

use weir_node::verbs::command::Question;

use crate::terminal::failure::Failure;

/// Goes on only once a person typed the name of what is at stake.
pub(crate) fn by_name(question: &Question) -> Result<(), Failure> {
    let Question { name, asked, doing, without_asking, otherwise } = question;
    if !std::io::stdin().is_terminal() {
        let message = format!("{doing} would ask, but nobody is there");
        return Err(Failure::usage(message).with_help(without_asking.clone()));
    }
    let failed = |error| Failure::new(format!("asking: {error}"));
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{asked}: ").and_then(|()| stderr.flush()).map_err(failed)?;
    drop(stderr);
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == *name {
        return Ok(());
    }
    Err(Failure::new(otherwise.clone()))
}
