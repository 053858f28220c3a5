//! `weir cache` without a process that serves.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test of the whole program, outside any test module"
)]

use std::process::{Command, Stdio};

/// A data directory of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The exit code of a command, what it printed, and its messages.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WEIR_")) {
            command.env_remove(name);
        }
        command.env("WEIR_DATA_DIR", self.0.path().join("data")).args(arguments);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let [printed, said] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code().unwrap(), printed, said)
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let (code, printed, said) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {said}");
        printed
    }

    fn fails(&self, expected: i32, arguments: &[&str]) -> String {
        let (code, printed, said) = self.run(arguments);
        assert_eq!((code, &printed[..]), (expected, ""), "{arguments:?}: {said}");
        said
    }
}

#[test]
fn a_cache_is_made_shown_and_removed_without_a_process() {
    let place = Place::new();
    let errors = place.fails(1, &["cache", "show"]);
    assert!(
        errors.contains("there is no cache in ") && errors.contains("cache create"),
        "{errors}"
    );
    let errors = place.fails(1, &["cache", "destroy", "--yes"]);
    assert!(errors.contains("there is no cache in "), "{errors}");
    let errors = place.fails(2, &["cache", "create", "off"]);
    assert!(errors.contains("\"off\" is no size"), "{errors}");
    let errors = place.fails(1, &["cache", "create", "900P"]);
    assert!(errors.contains("a cache of 900.0 PiB leaves less than 256.0 MiB"), "{errors}");
    place.ok(&["cache", "create", "16M"]);
    let errors = place.fails(1, &["cache", "create", "16M"]);
    assert!(errors.contains("blocks is there already"), "{errors}");
    let shown = place.ok(&["cache", "show"]);
    for line in ["format  version ", "closed in order", "opened  1 time"] {
        assert!(shown.replace("   ", "  ").contains(line), "{line}: {shown}");
    }
    let errors = place.fails(1, &["cache", "resize", "32M"]);
    assert!(
        errors.contains("no process has a cache in ") && errors.contains("--cache SIZE"),
        "{errors}"
    );
    let errors = place.fails(2, &["cache", "destroy"]);
    assert!(errors.contains("nobody is there") && errors.contains("--yes"), "{errors}");
    place.ok(&["cache", "destroy", "--yes"]);
    place.fails(1, &["cache", "show"]);
}
