//! The files of the repository, read once.

use std::path::Path;

/// Directories that hold nothing of ours.
const SKIPPED: [&str; 6] = [".git", "target", "artifacts", "corpus", "coverage", "node_modules"];

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct File {
    /// From the root of the repository, with `/`.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

impl File {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Rust, shell and configuration: what must be ASCII.
    pub(crate) fn is_source(&self) -> bool {
        let shell = self.path.ends_with(".sh") || self.text.starts_with("#!");
        self.is_rust() || shell || self.path.ends_with(".toml")
    }
}

/// Every UTF-8 file under `root`, in order of path.
pub(crate) fn read(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    walk(root, "", &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn walk(directory: &Path, prefix: &str, files: &mut Vec<File>) {
    let entries = std::fs::read_dir(directory).expect("a directory of the repository is readable");
    for entry in entries {
        let entry = entry.expect("a directory of the repository is readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        let kind = entry.file_type().expect("a directory entry has a type");
        if kind.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(&entry.path(), &path, files);
            }
        } else if kind.is_file()
            && let Ok(text) = std::fs::read_to_string(entry.path())
        {
            files.push(File { path, text });
        }
    }
}
