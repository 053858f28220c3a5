//! The records and pages of the repository, and what only git and the system know.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use toml::value::Datetime;

use crate::model::{Goal, Part, Parts};
use crate::{plot, render};

/// What is below `docs/`.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// Path from the root of the repository, and text.
    pages: Vec<(String, String)>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) parts: Vec<Part>,
}

fn walk(root: &Path, directory: &str, files: &mut Vec<String>) -> Result<()> {
    let entries =
        std::fs::read_dir(root.join(directory)).with_context(|| format!("reading {directory}"))?;
    for entry in entries {
        let entry = entry?;
        let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            walk(root, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

impl Tree {
    /// Of the repository that cargo runs this program in; of the one that it was built in without cargo. The two differ
    /// where several checkouts share a target directory.
    pub(crate) fn read() -> Result<Self> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR");
        let package =
            package.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        Self::read_at(&package.join("../.."))
    }

    fn read_at(root: &Path) -> Result<Self> {
        const PARTS: &str = "docs/evidence/parts.toml";
        let mut paths = Vec::new();
        walk(root, "docs", &mut paths)?;
        paths.sort();
        let (mut pages, mut goals, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for path in paths {
            let is_record = path.starts_with("docs/evidence/") && path.ends_with(".toml");
            if !is_record && !path.ends_with(".md") && path != plot::PATH {
                continue;
            }
            let text = std::fs::read_to_string(root.join(&path))
                .with_context(|| format!("reading {path}"))?;
            if path == PARTS {
                let read: Parts = toml::from_str(&text).with_context(|| path.clone())?;
                parts = read.part;
            } else if is_record {
                goals.push(Goal::parse(&path, &text).map_err(|fault| anyhow!(fault))?);
            } else {
                pages.push((path, text));
            }
        }
        if parts.is_empty() {
            bail!("{PARTS} names no part");
        }
        goals.sort_by(|a, b| a.place.cmp(&b.place));
        Ok(Self { root: root.to_owned(), pages, goals, parts })
    }

    /// Every page that has generated parts, and the plot, as the records give them.
    pub(crate) fn rendered(&self) -> Result<Vec<(String, String)>> {
        let mut made = vec![(plot::PATH.to_owned(), plot::svg(&self.goals))];
        for (path, text) in &self.pages {
            if path.ends_with(".md") && path != "docs/evidence/README.md" {
                let page = render::page(path, text, &self.goals, &self.parts)
                    .map_err(|fault| anyhow!(fault))?;
                made.push((path.clone(), page));
            }
        }
        Ok(made)
    }

    /// Whether a page is this text already.
    pub(crate) fn is(&self, path: &str, text: &str) -> bool {
        self.pages.iter().any(|(p, t)| p == path && t == text)
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        std::fs::write(self.root.join(path), text).with_context(|| format!("writing {path}"))
    }

    pub(crate) fn append(&self, path: &str, text: &str) -> Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(self.root.join(path))
            .with_context(|| format!("opening {path}"))?;
        file.write_all(text.as_bytes()).with_context(|| format!("writing {path}"))
    }

    /// Pages that a record names as the reason of a miss and that are not there.
    pub(crate) fn missing_pages(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for goal in &self.goals {
            for why in goal.run.iter().filter_map(|run| run.why.as_deref()) {
                let path = why.split('#').next().unwrap_or_default();
                if !self.root.join(path).is_file() {
                    missing.push(format!("{}: there is no {path}", goal.place.id()));
                }
            }
        }
        missing
    }

    fn git(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.arg("-C").arg(&self.root).args(arguments);
        command
    }

    /// Commits of runs that are not in the history. Where there is no history to look into, nothing is said to be
    /// missing; the run says that it did not look.
    pub(crate) fn missing_commits(&self) -> Result<Vec<String>> {
        let shallow = self.git(&["rev-parse", "--is-shallow-repository"]).output();
        let whole =
            shallow.is_ok_and(|done| done.status.success() && done.stdout.trim_ascii() == b"false");
        if !whole {
            println!("note: no whole git history here: the commits of runs are not looked for");
            return Ok(Vec::new());
        }
        let runs: Vec<(String, &str)> = self
            .goals
            .iter()
            .flat_map(|goal| goal.run.iter().map(|run| (goal.place.id(), run.commit.as_str())))
            .collect();
        let mut child = self
            .git(&["cat-file", "--batch-check"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("git cat-file")?;
        let asked: String =
            runs.iter().map(|(_, commit)| format!("{commit}^{{commit}}\n")).collect();
        let mut input = child.stdin.take().context("git cat-file has an input")?;
        // Written by a thread of its own, so that neither side waits with a full pipe.
        let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()));
        let done = child.wait_with_output().context("git cat-file")?;
        writer.join().map_err(|_| anyhow!("the thread that asks git ended early"))??;
        let answers = String::from_utf8_lossy(&done.stdout);
        if answers.lines().count() != runs.len() {
            bail!("git cat-file answered {} of {} commits", answers.lines().count(), runs.len());
        }
        Ok(runs
            .iter()
            .zip(answers.lines())
            .filter(|(_, answer)| !answer.contains(" commit "))
            .map(|((id, commit), _)| format!("{id}: there is no commit {commit}"))
            .collect())
    }
}

/// The kernel's version.
pub(crate) fn kernel() -> Result<String> {
    let release =
        std::fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel's version")?;
    Ok(crate::append::kernel_of(&release))
}

/// The day, in UTC.
pub(crate) fn today() -> Result<Datetime> {
    let done = Command::new("date").args(["-u", "+%Y-%m-%d"]).output().context("date")?;
    let text = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    text.parse().with_context(|| format!("date printed {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository of two files and no history.
    fn small(record: &str) -> (tempfile::TempDir, Result<Tree>) {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(root.path().join("docs/evidence/1")).expect("a directory");
        for (path, text) in [
            ("docs/evidence/parts.toml", "[[part]]\nnumber = 1\ntitle = \"First\"\n"),
            ("docs/status.md", "<!-- evidence: status -->\n<!-- /evidence -->\n"),
            ("docs/evidence/1/1-a.toml", record),
        ] {
            std::fs::write(root.path().join(path), text).expect("a file");
        }
        let tree = Tree::read_at(root.path());
        (root, tree)
    }

    const RECORD: &str =
        "claim = \"A\"\ncommands = [\"x\"]\ngoal = { kind = \"zero\", unit = \"failures\" }\n";

    #[test]
    fn a_page_that_is_not_what_the_records_give_is_seen() {
        let (_root, tree) = small(RECORD);
        let tree = tree.expect("a tree");
        let made = tree.rendered().expect("pages");
        assert!(made.iter().all(|(path, text)| !tree.is(path, text)));
        for (path, text) in &made {
            std::fs::create_dir_all(tree.root.join("docs/benchmarks")).expect("a directory");
            tree.write(path, text).expect("a page");
        }
        let again = Tree::read_at(&tree.root).expect("a tree");
        assert!(made.iter().all(|(path, text)| again.is(path, text)));
        again.append("docs/evidence/1/1-a.toml", "measure = 1\n").expect("a record");
        assert!(Tree::read_at(&tree.root).is_err(), "a field of the wrong type");
    }

    #[test]
    fn commits_and_pages_that_are_nowhere_are_seen() {
        let record = format!(
            "{RECORD}[[run]]\ncommit = \"0123456789abcdef\"\ndate = 2026-11-25\n\
             machine = {{ cores = 2, kernel = \"6.1\", load = \"quiet\" }}\nvalue = 1\nn = 1\n\
             verdict = \"missed\"\nwhy = \"docs/none.md\"\n"
        );
        let (root, tree) = small(&record);
        let tree = tree.expect("a tree");
        assert_eq!(tree.missing_pages(), ["1/1-a: there is no docs/none.md"]);
        assert!(tree.missing_commits().expect("no history").is_empty());
        let made = Command::new("git").arg("init").arg("-q").arg(root.path()).status();
        if made.is_ok_and(|status| status.success()) {
            let missing = tree.missing_commits().expect("git answers");
            assert_eq!(missing, ["1/1-a: there is no commit 0123456789abcdef"]);
        }
    }
}
