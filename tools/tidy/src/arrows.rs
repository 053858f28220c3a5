//! Which crate may import which: the house of docs/architecture.md, floor by floor.

use crate::Finding;
use crate::tree::File;

/// Floor of every crate. A crate imports only crates of lower floors; the device contract is the ground they all
/// stand on, local files the first thing built on it.
const FLOORS: [(&str, u8); 25] = [
    ("weir", 7),
    ("weir-node", 6),
    ("weir-control", 6),
    ("weir-stack", 5),
    ("weir-frontend", 5),
    ("weir-client", 5),
    ("weir-log", 4),
    ("weir-remote", 4),
    ("weir-file", 4),
    ("weir-route", 4),
    ("weir-cache", 3),
    ("weir-journal", 3),
    ("weir-extent", 3),
    ("weir-store", 3),
    ("weir-nbd", 3),
    ("weir-net", 3),
    ("weir-trace", 3),
    ("weir-disk", 2),
    ("weir-seal", 2),
    ("weir-device", 1),
    ("weir-pacer", 0),
    // Outside the house: they test it, and may look into every room.
    ("weir-sim", u8::MAX),
    ("weir-bench-extent", u8::MAX),
    ("weir-tests", u8::MAX),
    ("weir-fuzz", u8::MAX),
];

fn floor(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, floor)| *floor)
}

/// The sections of a manifest whose crates end up in the product.
fn is_dependency_section(header: &str) -> bool {
    let name = header.trim_matches(['[', ']']);
    name == "dependencies"
        || name == "build-dependencies"
        || (name.starts_with("target.") && name.ends_with(".dependencies"))
}

/// Arrows of one manifest that point up or sideways.
fn arrows(path: &str, text: &str) -> Vec<Finding> {
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("name = "))
        .map_or("", |value| value.trim_matches('"'));
    if !name.starts_with("weir") {
        return Vec::new();
    }
    let Some(own) = floor(name) else {
        let message = format!("{name} has no floor in tools/tidy/src/arrows.rs");
        return vec![Finding::new(path, 0, "arrows", message)];
    };
    let mut findings = Vec::new();
    let mut counts = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            counts = is_dependency_section(line);
        }
        let key = line.split(['.', '=', ' ']).next().unwrap_or("");
        if !counts || !key.starts_with("weir") {
            continue;
        }
        if floor(key).is_none_or(|other| other >= own) {
            let message = format!("{name} must not import {key}: only lower floors are open to it");
            findings.push(Finding::new(path, index + 1, "arrows", message));
        }
    }
    findings
}

/// The rule for every manifest.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let manifests = files.iter().filter(|f| f.path.ends_with("/Cargo.toml"));
    manifests.flat_map(|f| arrows(&f.path, &f.text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_down_only() {
        let manifest = |dependency: &str, section: &str| {
            format!("name = \"weir-log\"\n[{section}]\n{dependency}.workspace = true\n")
        };
        let count = |d: &str, s: &str| arrows("x", &manifest(d, s)).len();
        assert_eq!(count("weir-store", "dependencies"), 0);
        assert_eq!(count("weir-cache", "dependencies"), 0);
        assert_eq!(count("weir-remote", "dependencies"), 1);
        assert_eq!(count("weir-node", "dependencies"), 1);
        assert_eq!(count("weir-unknown", "dependencies"), 1);
        assert_eq!(count("weir-remote", "dev-dependencies"), 0);
        assert_eq!(arrows("x", "name = \"weir-new\"\n").len(), 1);
    }
}
