//! Weir in deterministic simulation: one node with a faulty disk, a faulty object store, crashes and losses of the
//! disk, and an oracle of the device contract and the prefix rule. Everything follows from one seed.
//!
//! `README.md` beside this file states the model and how to replay a seed.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::exit,
    clippy::disallowed_methods,
    reason = "a program of its own: it prints, measures real time, and runs seeds on threads"
)]

mod audit;
mod client;
mod clones;
mod content;
mod dice;
mod disk_cache;
mod duo;
mod elsewhere;
mod env;
mod events;
mod excuses;
mod harm;
mod heard;
mod islands;
mod known;
mod mutants;
mod nbd;
mod nemesis;
mod node;
mod observe;
mod oracle;
mod profile;
mod remote;
mod repairs;
mod replicas;
mod report;
mod require;
mod rot;
mod run;
mod sizes;
mod snapshots;
mod stages;
mod under_way;
mod verbs;
mod world;
mod write_back;

use std::cell::Cell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use clap::Parser;

use self::remote::REMOTE;
use self::report::Report;
use self::run::Verdict;

/// CPU time after which a seed is stuck: a thousand times what one takes.
const STUCK: Duration = Duration::from_secs(120);

/// Real time after which it is stuck without using any: a machine with other work may starve this for minutes.
const ASLEEP: Duration = Duration::from_secs(3600);

/// Real time after which a seed is worth a line: it may show an endless loop that time ends.
const SLOW: Duration = Duration::from_secs(4);

/// Pause between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// Simulates Weir from seeds, and checks the device contract and the prefix rule.
#[derive(Parser, Debug)]
#[command(name = "weir-sim")]
struct Arguments {
    /// Seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// Run this seed alone, with a trace on stderr (RUST_LOG chooses, default weir_sim=debug,info).
    #[arg(long)]
    seed: Option<u64>,
    /// Nodes: 2 for two of them over one store, 1 for one. Where neither it nor --remote is given there is some of
    /// everything: five eighths of the seeds with one node, two with two, one of remote volumes.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=2))]
    nodes: Option<u64>,
    /// A remote volume of one node over a server of another, instead of volumes over a store.
    #[arg(long, conflicts_with = "nodes")]
    remote: bool,
    /// One node, and only seeds with a band cache on its disk: so many of them are run.
    #[arg(long, conflicts_with_all = ["nodes", "remote", "seed"])]
    cached: bool,
    /// Threads; each runs seeds of its own.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Stop after so many minutes, whatever is left.
    #[arg(long)]
    minutes: Option<u64>,
    /// Run every seed twice and compare.
    #[arg(long)]
    check_determinism: bool,
    /// Go on after a violation, and list them at the end.
    #[arg(long)]
    keep_going: bool,
    /// Run every deliberate bug (or those named) until it is caught; needs a build with --cfg weir_mutants.
    #[arg(long, num_args = 0.., value_name = "NAME")]
    mutants: Option<Vec<String>>,
    /// The names of the deliberate bugs, one a line.
    #[arg(long)]
    list_mutants: bool,
    /// Nothing but violations.
    #[arg(long)]
    quiet: bool,
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let traced = arguments.seed.is_some();
    let directives = if traced { "weir_sim=debug,info" } else { "off" };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(directives));
    if traced {
        let format = tracing_subscriber::fmt().without_time().with_writer(std::io::stderr);
        format.with_env_filter(filter).with_ansi(false).init();
    }
    if arguments.list_mutants {
        return mutants::list();
    }
    if let Some(names) = &arguments.mutants {
        return mutants::run_all(names, arguments.seeds);
    }
    name_seed_in_panics();
    if let Some(seed) = arguments.seed {
        let verdict = run_one(seed, &arguments);
        println!("{:#?}", verdict.counts);
        return if report_violation(&verdict) { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let report = campaign(&arguments);
    let missing = require::missing(&report, arguments.cached);
    for line in &missing {
        println!("NOT MET: {line}");
    }
    if report.seeds == 0 {
        println!("no seed was run");
    }
    // A mutant must be caught by what it does, not by what it keeps from happening.
    let is_mutant = cfg!(weir_mutants) && std::env::var_os("WEIR_MUTANT").is_some();
    let enough = report.seeds > 0 && (missing.is_empty() || is_mutant);
    if report.violations.is_empty() && enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A release assertion of the engine ends the process; the message must say which seed it was.
fn name_seed_in_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("\nVIOLATION in seed {}: an assertion failed", SEED.get());
        default(info);
        eprintln!("replay: cargo run --release -p weir-sim -- --seed {}", SEED.get());
    }));
}

fn run_one(seed: u64, arguments: &Arguments) -> Verdict {
    SEED.set(seed);
    let started = Instant::now();
    let nodes = match (arguments.remote, arguments.nodes) {
        _ if arguments.cached => 1,
        (true, _) => REMOTE,
        (false, Some(nodes)) => nodes,
        (false, None) => match seed % 8 {
            3 | 7 => 2,
            5 => REMOTE,
            _ => 1,
        },
    };
    let mut verdict = run::run(seed, nodes);
    if started.elapsed() >= SLOW {
        eprintln!("seed {seed} took {:.1} s", started.elapsed().as_secs_f64());
    }
    if arguments.check_determinism {
        let second = run::run(seed, nodes);
        if second.hash != verdict.hash || second.counts != verdict.counts {
            verdict.violation = Some("the seed took another course the second time".into());
        }
    }
    verdict
}

/// CPU time of this process so far, as Linux counts it: in hundredths of a second, fields 14 and 15 after the name.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn report_violation(verdict: &Verdict) -> bool {
    let Some(violation) = &verdict.violation else { return false };
    println!("\nVIOLATION in seed {}: {violation}", verdict.seed);
    println!("last events:\n{}", verdict.tail);
    let (kind, seed) = (run::flag(verdict.nodes), verdict.seed);
    println!("replay: cargo run --release -p weir-sim -- {kind} --seed {seed}\n");
    true
}

fn campaign(arguments: &Arguments) -> Report {
    let started = Instant::now();
    let seeds = usize::try_from(arguments.seeds).unwrap_or(usize::MAX);
    let is_wanted = |seed: &u64| !arguments.cached || run::has_disk_cache(*seed);
    let seeds = Mutex::new((arguments.start..).filter(is_wanted).take(seeds));
    let deadline = arguments.minutes.map(|minutes| started + Duration::from_secs(minutes * 60));
    let (last, stop) = (AtomicU64::new(arguments.start), AtomicBool::new(false));
    let (sender, verdicts) = mpsc::channel();
    let mut report = Report::default();
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            let sender = sender.clone();
            let (seeds, last, stop) = (&seeds, &last, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let next = seeds.lock().expect("no thread panics while it takes one").next();
                    let Some(seed) = next else { return };
                    if deadline.is_some_and(|at| Instant::now() >= at) {
                        return;
                    }
                    last.store(seed, Ordering::Relaxed);
                    if sender.send(run_one(seed, arguments)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut told = Instant::now();
        let mut heard = (Instant::now(), cpu_time());
        loop {
            match verdicts.recv_timeout(STUCK) {
                Ok(verdict) => {
                    heard = (Instant::now(), cpu_time());
                    let bad = report_violation(&verdict);
                    report.add(verdict);
                    if bad && !arguments.keep_going {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout)
                    if heard.0.elapsed() < ASLEEP && cpu_time().saturating_sub(heard.1) < STUCK => {
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let last = last.load(Ordering::Relaxed);
                    eprintln!("VIOLATION in seed {last} or before: it does not come to an end");
                    std::process::exit(3);
                }
            }
            if !arguments.quiet && told.elapsed() >= PROGRESS {
                told = Instant::now();
                eprintln!("{} seeds, {} s", report.seeds, started.elapsed().as_secs());
            }
        }
    });
    if !arguments.quiet {
        println!("{}", report.table(started.elapsed()));
    }
    let seeds: Vec<String> = report.violations.iter().map(|v| v.seed.to_string()).collect();
    if !seeds.is_empty() {
        println!("seeds with violations: {}", seeds.join(" "));
    }
    report
}
