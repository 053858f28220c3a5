//! Completions and manual pages, generated from the flags themselves.

use std::path::Path;

use clap::Command;

use crate::cli;
use crate::terminal::failure::Failure;
use crate::terminal::output;

/// `weir completion SHELL`.
pub(crate) fn completion(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&cli::command()), "weir", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// `weir man [DIR]`.
pub(crate) fn pages(directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = explained(cli::command());
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

/// A name that lives as long as the process, as clap needs it. It is never freed: the process prints a script and ends.
fn kept(name: &str) -> &'static str {
    Box::leak(name.into())
}

/// The command without its hidden flags, which completions would offer otherwise.
fn shown(command: &Command) -> Command {
    let mut shown = Command::new(kept(command.get_name()));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(kept(version)).propagate_version(true);
    }
    let flags = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    shown.args(flags.cloned()).subcommands(verbs.map(self::shown)).disable_help_subcommand(true)
}

/// The command with every flag explained: a page is the long form of the help, and leaves out none of it. `weir help`,
/// which shows the same, has no page.
fn explained(command: Command) -> Command {
    let command = command.mut_args(|argument| argument.hide_short_help(false));
    command.disable_help_subcommand(true).mut_subcommands(explained)
}

fn render(command: &Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    // Otherwise the page of a verb names its last word in the place of the program.
    let program = format!("weir {}", command.get_version().unwrap_or_default());
    clap_mangen::Man::new(command.clone())
        .source(program)
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
        cli::command().debug_assert();
    }

    /// Every visible flag of a command and its verbs, with the words of the command.
    fn flags(command: &Command, words: &str, found: &mut Vec<(String, clap::Arg)>) {
        let visible =
            command.get_arguments().filter(|a| a.get_long().is_some() && !a.is_hide_set());
        found.extend(visible.map(|a| (words.to_owned(), a.clone())));
        for verb in command.get_subcommands() {
            flags(verb, format!("{words} {}", verb.get_name()).trim_start(), found);
        }
    }

    /// Whether the command makes something new, only looks, or is a process that serves. The variables of such a
    /// process, as WEIR_CACHE_SHARE, say nothing to a command that changes what is there: nobody asked for that.
    fn takes_variables(words: &str) -> bool {
        let (group, verb) = words.split_once(' ').unwrap_or((words, ""));
        match group {
            "volume" => matches!(
                verb,
                "create"
                    | "clone"
                    | "import"
                    | "export"
                    | "copy"
                    | "salvage"
                    | "list"
                    | "show"
                    | "check"
            ),
            "snapshot" => matches!(verb, "list" | "diff"),
            "limits" | "cache" => verb == "show",
            group => matches!(
                group,
                "" | "up"
                    | "serve"
                    | "status"
                    | "replicate"
                    | "pki"
                    | "store"
                    | "trace"
                    | "completion"
                    | "man"
            ),
        }
    }

    /// Flags of commands that make something new, which have it replace what is there, or leave a part of that behind.
    fn is_typed(words: &str, flag: &str) -> bool {
        flag == "overwrite" || (words, flag) == ("volume salvage", "accept-loss")
    }

    #[test]
    fn every_flag_can_be_given_in_the_environment_but_for_what_changes_something_that_is_there() {
        // Form, consent, where a new key is, and how a check reads: these change nothing by themselves.
        const HARMLESS: [&str; 6] =
            ["output", "yes", "new-key-file", "new-key-command", "limit", "resume"];
        let mut found = Vec::new();
        flags(&cli::command(), "", &mut found);
        assert!(found.len() > 50, "{}", found.len());
        let changing = found.iter().filter(|(words, _)| !takes_variables(words)).count();
        assert!(changing > 20, "{changing}");
        let typed = found.iter().filter(|(words, flag)| is_typed(words, flag.get_long().unwrap()));
        assert_eq!(typed.count(), 4, "import, export, copy and salvage");
        for (words, flag) in found {
            let long = flag.get_long().unwrap();
            let may =
                (takes_variables(&words) && !is_typed(&words, long)) || HARMLESS.contains(&long);
            let expected = may.then(|| format!("WEIR_{}", long.to_uppercase().replace('-', "_")));
            let variable = flag.get_env().map(|name| name.to_string_lossy().into_owned());
            assert_eq!(variable, expected, "{words} --{long}");
        }
    }

    #[test]
    fn every_flag_is_explained_in_its_page_and_no_hidden_one_is_offered() {
        let mut command = explained(cli::command());
        command.build();
        let mut explained = 0;
        write_pages(&command, "weir", &mut |name, page| {
            let flags = page.split(".TP\n").filter(|part| part.starts_with("\\fB\\-\\-"));
            for flag in flags {
                let explanation = flag.split_once('\n').map_or("", |(_, rest)| rest);
                assert!(explanation.trim().len() > 3, "{name}: {flag}");
                explained += 1;
            }
            Ok(())
        })
        .unwrap();
        assert!(explained > 100, "{explained}");
        for shell in
            [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish]
        {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut shown(&cli::command()), "weir", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("data-dir") && script.contains("rollback"), "{shell}");
            assert!(!script.contains("disk-engine"), "{shell}");
        }
    }

    #[test]
    fn every_page_names_the_program() {
        let mut command = explained(cli::command());
        command.build();
        let mut pages = 0;
        let mut check = |name: &str, page: String| {
            let head = page.lines().find(|line| line.starts_with(".TH")).unwrap_or_default();
            assert!(head.contains("\"weir "), "{name}: {head}");
            pages += 1;
            Ok(())
        };
        write_pages(&command, "weir", &mut check).expect("they are written");
        assert!(pages > 20, "{pages}");
    }
}
