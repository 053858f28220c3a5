//! Deliberate bugs, each in a process of its own, until the simulation catches it.

use std::process::{Command, ExitCode};
use std::time::Instant;

/// Every deliberate bug of the product, by the name its code has.
const MUTANTS: &[(&str, &str)] = &[
    ("ack_before_earlier", "acknowledge a record before an earlier one is on disk"),
    ("ack_before_write", "acknowledge a record before it is on disk"),
    ("skip_fdatasync", "answer a flush without a sync"),
    ("flush_joins_running", "let a flush join a sync that runs already"),
    ("reuse_before_tail_durable", "write over the ring before the new tail is durable"),
    ("reuse_pinned_segment", "write over a segment that a read has pinned"),
    ("rot_is_end", "take rot in the journal for its end"),
    ("no_piece_crc", "do not verify what is read back from the journal"),
    ("stale_epoch_accepted", "replay records that an earlier recovery had dropped"),
    ("release_at_put", "release journal space at the PUT, not at the committed prefix"),
    ("one_map", "hide object data by writes that are still in the journal"),
    ("object_beyond_gap", "accept an object beyond a gap"),
    ("superseded_epoch_accepted", "accept an object of a superseded epoch"),
    ("no_copy_on_write", "encode a checkpoint from a map that goes on changing"),
    ("replay_everything", "replay journal writes that objects hold already"),
    ("replay_superseded_journal", "replay a journal whose volume went on elsewhere"),
    ("no_frame_crc", "do not verify frames of objects"),
    ("trust_short_get", "believe the store about the length of a body"),
];

/// Runs the mutants; fails unless every one is caught within `seeds`.
pub(crate) fn run_all(names: &[String], seeds: u64) -> ExitCode {
    if !cfg!(weir_mutants) {
        eprintln!(
            "deliberate bugs need a build with RUSTFLAGS=\"--cfg weir_mutants\"; see sim/mutants"
        );
        return ExitCode::FAILURE;
    }
    let me = std::env::current_exe().expect("a program knows where it is");
    let (mut caught, mut missed) = (0, 0);
    println!("{:<28} {:>10} {:>8}  deliberate bug", "mutant", "seed", "seconds");
    for (name, what) in MUTANTS {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let started = Instant::now();
        let output = Command::new(&me)
            .args(["--quiet", "--start", "1", "--seeds", &seeds.to_string()])
            .env("WEIR_MUTANT", name)
            .output()
            .expect("the same program can be run again");
        let seconds = started.elapsed().as_secs();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let seed = text
            .split("VIOLATION in seed ")
            .nth(1)
            .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
        match seed {
            Some(seed) if !output.status.success() => {
                caught += 1;
                println!("{name:<28} {seed:>10} {seconds:>8}  {what}");
            }
            _ => {
                missed += 1;
                println!("{name:<28} {:>10} {seconds:>8}  {what}", "MISSED");
            }
        }
    }
    println!("\n{caught} caught within {seeds} seeds each, {missed} missed");
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
