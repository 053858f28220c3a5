//! Keeps what was measured as records in `docs/evidence`, judges it, and renders the pages made from it.
//!
//! Every rule is a function from text to text; only this file and [`tree`] touch the file system.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command-line tool that reads and writes the source tree"
)]

mod append;
mod judge;
mod model;
mod plot;
mod render;
mod tree;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::model::{Goal, Machine, Run, Verdict};
use crate::tree::Tree;

/// Keeps what was measured as records, judges it, and renders the pages made from it.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Look for records that break the rules and for pages that are not what the records give
    Check,
    /// Make the pages and the plot anew
    Render,
    /// Append a run to a goal, and render
    Record(Record),
    /// Print what benchmarks and campaigns can record
    Measures,
}

#[derive(Debug, Args)]
struct Record {
    /// A goal (2/5-qd32), or the measure by which goals are found
    goal: String,
    /// The figure, or the number of failures
    #[arg(long)]
    value: Option<f64>,
    /// Lower end of the 95 % interval
    #[arg(long, requires = "high")]
    low: Option<f64>,
    /// Upper end of the 95 % interval
    #[arg(long, requires = "low")]
    high: Option<f64>,
    /// Pairs, seeds, rounds or checks
    #[arg(long)]
    n: Option<u64>,
    /// Commit of the program that ran, as `weir --version` prints it
    #[arg(long)]
    commit: String,
    /// Load average before the run
    #[arg(long)]
    load: f64,
    /// What was typed
    #[arg(long)]
    command: Option<String>,
    /// One line of at most 200 characters; a longer one is cut
    #[arg(long)]
    note: Option<String>,
    /// For a miss: the page that says why, from the root of the repository
    #[arg(long)]
    why: Option<String>,
    /// Another verdict than the figures give: less, never more
    #[arg(long)]
    verdict: Option<Stated>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stated {
    Missed,
    Partly,
    Open,
    /// Of a statement, which has no figure
    Reached,
}

impl From<Stated> for Verdict {
    fn from(stated: Stated) -> Self {
        match stated {
            Stated::Missed => Self::Missed,
            Stated::Partly => Self::Partly,
            Stated::Open => Self::Open,
            Stated::Reached => Self::Reached,
        }
    }
}

fn check() -> Result<Vec<String>> {
    let tree = Tree::read()?;
    let mut found = render::faults(&tree.goals, &tree.parts);
    found.extend(tree.missing_commits()?);
    found.extend(tree.missing_pages());
    for (path, made) in tree.rendered()? {
        if path == "docs/status.md" {
            found.extend(render::long_lines(&made));
        }
        if !tree.is(&path, &made) {
            found.push(format!(
                "{path} is not what the records give: cargo run -q -p evidence -- render"
            ));
        }
    }
    Ok(found)
}

fn render() -> Result<()> {
    let tree = Tree::read()?;
    for (path, made) in tree.rendered()? {
        if !tree.is(&path, &made) {
            tree.write(&path, &made)?;
            println!("rendered {path}");
        }
    }
    Ok(())
}

fn cores() -> Result<u16> {
    let cores = std::thread::available_parallelism().context("the number of processors")?;
    u16::try_from(cores.get()).context("the number of processors")
}

fn record(of: Record) -> Result<()> {
    let tree = Tree::read()?;
    let goals: Vec<&Goal> = tree
        .goals
        .iter()
        .filter(|goal| goal.place.id() == of.goal || goal.measure.as_deref() == Some(&*of.goal))
        .collect();
    if goals.is_empty() {
        println!("not recorded: no goal is measured by {}", of.goal);
        return Ok(());
    }
    let (commit, dirty) = append::commit_of(&of.commit);
    if commit.len() < 7 || !commit.chars().all(|c| c.is_ascii_hexdigit()) {
        bail!("{} is not a commit: build the program in its repository", of.commit);
    }
    let cores = cores()?;
    let note = of.note.map(|note| note.chars().take(200).collect::<String>().trim().to_owned());
    let run = Run {
        commit,
        dirty,
        date: tree::today()?,
        machine: Machine { cores, kernel: tree::kernel()?, load: append::load_of(of.load, cores) },
        value: of.value,
        low: of.low,
        high: of.high,
        n: of.n,
        verdict: Verdict::Open,
        note: note.filter(|note| !note.is_empty()),
        why: of.why,
        command: of.command,
        partial: false,
    };
    let lower = of.verdict.map(Verdict::from);
    let completed: Vec<(&Goal, Run)> =
        goals.into_iter().map(|goal| (goal, append::complete(goal, run.clone(), lower))).collect();
    // All of them or none: what a record may not say is not written.
    for (goal, done) in &completed {
        if let Some(fault) = judge::disagreement(&goal.goal, done) {
            bail!("{}: {fault}", goal.place.id());
        }
    }
    for (goal, done) in &completed {
        let (id, path) = (goal.place.id(), format!("docs/evidence/{}.toml", goal.place.id()));
        tree.append(&path, &append::toml(done))?;
        println!("recorded {id}: {} ({})", render::found(goal, done), done.verdict.word());
        if done.verdict == Verdict::Missed && done.why.is_none() {
            println!("a miss: say why in {path} (why = \"docs/...\")");
        }
    }
    render()
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Render => render()?,
        Verb::Record(of) => record(of)?,
        Verb::Measures => {
            let tree = Tree::read()?;
            let measures: BTreeSet<&str> =
                tree.goals.iter().filter_map(|goal| goal.measure.as_deref()).collect();
            for measure in measures {
                println!("{measure}");
            }
        }
        Verb::Check => {
            let found = check()?;
            for fault in &found {
                println!("{fault}");
            }
            if !found.is_empty() {
                println!("evidence: {} findings", found.len());
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
