//! The commit that the program is built from, for `weir --version`: `WEIR_COMMIT`, empty without a repository.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    // Every commit and checkout adds a line to the log of HEAD; a change of the code may make it "dirty".
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=../../crates");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let changed = git(&["status", "--porcelain", "--", ".", "../../crates", "../../Cargo.lock"]);
    let commit = git(&["rev-parse", "--short", "HEAD"]).map_or_else(String::new, |commit| {
        let dirty = changed.is_none_or(|changed| !changed.is_empty());
        format!(" ({commit}{})", if dirty { "-dirty" } else { "" })
    });
    println!("cargo::rustc-env=WEIR_COMMIT={commit}");
}
