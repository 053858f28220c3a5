//! `--record`: what was measured becomes a run of every goal that is measured by it (docs/evidence/README.md).

use std::process::Command;

/// The figures that goals are held against: bytes per extent of each work, look-up and update of the first.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Measure and figure, as they are recorded.
    pub(crate) found: Vec<(String, String)>,
}

/// Appends them. The load average is that before the run; where one is not recorded, the reason is printed.
pub(crate) fn record(figures: &Figures, count: u64, load: &str) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let described = Command::new("git")
        .args(["-C", root, "describe", "--always", "--dirty", "--exclude", "*"])
        .output();
    let commit = described.map_or_else(
        |_| "unknown".to_owned(),
        |done| String::from_utf8_lossy(&done.stdout).trim().to_owned(),
    );
    let typed: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--record").collect();
    let dashes = if typed.is_empty() { "" } else { " -- " };
    let command = format!("cargo run --release -p weir-bench-extent{dashes}{}", typed.join(" "));
    for (measure, value) in &figures.found {
        let done = Command::new(env!("CARGO"))
            .current_dir(root)
            .args(["run", "-q", "-p", "evidence", "--", "record", measure, "--value", value])
            .args(["--n", &count.to_string(), "--commit", &commit, "--load", load])
            .args(["--command", &command])
            .status();
        if !done.is_ok_and(|status| status.success()) {
            println!("not recorded: {measure}");
        }
    }
}

/// The load average of the last minute.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("0").to_owned()
}
