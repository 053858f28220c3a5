//! Completions and manual pages, generated from the flags themselves.

use std::path::Path;

use clap::{Command, CommandFactory};

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output;

/// `weir completion SHELL`.
pub(crate) fn completion(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// `weir man [DIR]`.
pub(crate) fn pages(directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let Some(directory) = directory else {
        return output::print(&render(&command)?);
    };
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(format!("writing {}: {error}", path.display()))
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    write_pages(&command, "weir", &mut |name, page| {
        let path = directory.join(format!("{name}.1"));
        std::fs::write(&path, page).map_err(|error| failed(&path, error))
    })
}

fn render(command: &Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| Failure::new(format!("writing the manual: {error}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn write_pages(
    command: &Command,
    name: &str,
    write: &mut impl FnMut(&str, String) -> Result<(), Failure>,
) -> Result<(), Failure> {
    write(name, render(command)?)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_pages(verb, &format!("{name}-{}", verb.get_name()), write)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_well_formed() {
        Cli::command().debug_assert();
    }
}
