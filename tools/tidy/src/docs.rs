//! Rules about documentation: READMEs, links, the book's table of contents, names of functions.

use std::collections::BTreeSet;

use crate::Finding;
use crate::source::Masked;
use crate::tree::File;

/// Longest README of a crate.
const README_LINES_MAX: usize = 40;

/// Every crate has a short README.
pub(crate) fn readmes(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let path = manifest.path.replace("Cargo.toml", "README.md");
        match files.iter().find(|f| f.path == path) {
            None => {
                let message = "a crate needs a README.md".to_owned();
                findings.push(Finding::new(&manifest.path, 0, "readme", message));
            }
            Some(readme) if readme.text.lines().count() > README_LINES_MAX => {
                let message = format!("a crate's README has at most {README_LINES_MAX} lines");
                findings.push(Finding::new(&path, 0, "readme", message));
            }
            Some(_) => {}
        }
    }
    findings
}

/// A link of a page: where it stands, and its target.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for part in line.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                found.push((index + 1, target.to_owned()));
            }
        }
    }
    found
}

/// `base/../x` without the dots.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// Every relative link leads to a file, and to a heading where it names one.
pub(crate) fn links(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in files.iter().filter(|f| f.is_markdown()) {
        for (line, target) in targets(&page.text) {
            if is_external(&target) {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
            let full = if path.is_empty() { page.path.clone() } else { resolve(&page.path, path) };
            let file = files.iter().find(|f| f.path == full);
            let is_directory = files.iter().any(|f| f.path.starts_with(&format!("{full}/")));
            let has_heading = heading.is_empty()
                || file.is_some_and(|f| {
                    f.text.lines().any(|l| l.starts_with('#') && anchor(l) == heading)
                });
            if (file.is_none() && !is_directory) || !has_heading {
                let message = format!("{target} leads nowhere");
                findings.push(Finding::new(&page.path, line, "links", message));
            }
        }
    }
    findings
}

/// The table of contents reaches every page of the book.
pub(crate) fn summary(files: &[File]) -> Vec<Finding> {
    const SUMMARY: &str = "docs/SUMMARY.md";
    let Some(contents) = files.iter().find(|f| f.path == SUMMARY) else {
        return vec![Finding::new(SUMMARY, 0, "links", "the book has no contents".to_owned())];
    };
    let reached: BTreeSet<String> =
        targets(&contents.text).into_iter().map(|(_, t)| resolve(SUMMARY, &t)).collect();
    files
        .iter()
        .filter(|f| f.path.starts_with("docs/") && f.is_markdown() && f.path != SUMMARY)
        .filter(|f| !reached.contains(&f.path))
        .map(|f| Finding::new(&f.path, 0, "links", format!("{SUMMARY} does not reach it")))
        .collect()
}

/// Words in backquotes that name something of ours: `weir_log::read::resolve`.
fn code_names(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in line.split('`').skip(1).step_by(2) {
            let word = word.trim_end_matches("()");
            let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
            if plain && word.starts_with("weir") && word.contains("::") {
                found.push((index + 1, word.to_owned()));
            }
        }
    }
    found
}

/// Whether the crate's code declares `name`, as a function, type, constant or module.
fn declares(code: &[String], name: &str) -> bool {
    const KEYWORDS: [&str; 8] =
        ["fn ", "struct ", "enum ", "trait ", "mod ", "const ", "type ", "static "];
    code.iter().any(|text| {
        KEYWORDS.iter().any(|keyword| {
            let wanted = format!("{keyword}{name}");
            text.match_indices(&wanted).any(|(at, _)| {
                let next = text[at + wanted.len()..].chars().next();
                !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
            })
        })
    })
}

/// Everything that docs/architecture.md names as `crate::path::name` exists in that crate.
pub(crate) fn names(files: &[File]) -> Vec<Finding> {
    const PAGE: &str = "docs/architecture.md";
    let Some(page) = files.iter().find(|f| f.path == PAGE) else {
        return vec![Finding::new(PAGE, 0, "names", "the page is missing".to_owned())];
    };
    let mut findings = Vec::new();
    for (line, name) in code_names(&page.text) {
        let mut parts = name.split("::");
        let directory = parts.next().unwrap_or_default().replace('_', "-");
        let home = match directory.strip_prefix("weir-") {
            Some(outside @ ("sim" | "bench")) => format!("{outside}/src/"),
            _ => format!("crates/{directory}/src/"),
        };
        let code: Vec<String> = files
            .iter()
            .filter(|f| f.is_rust() && f.path.starts_with(&home))
            .map(|f| String::from_utf8_lossy(&Masked::of(&f.text).code).into_owned())
            .collect();
        if let Some(missing) = parts.find(|part| !declares(&code, part)) {
            let message = format!("{name}: {home} declares no {missing}");
            findings.push(Finding::new(PAGE, line, "names", message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn links_must_lead_somewhere() {
        let page = "[a](b.md) [b](b.md#two-words) [c](https://x.y/z) [d](c.md) [e](b.md#no)";
        let files = [file("docs/a.md", page), file("docs/b.md", "# Two words!\n")];
        let found = links(&files);
        assert_eq!(found.len(), 2);
        assert!(found[0].message.starts_with("b.md#no") || found[0].message.starts_with("c.md"));
    }

    #[test]
    fn the_contents_reach_every_page() {
        let files = [file("docs/SUMMARY.md", "[a](a/x.md)"), file("docs/a/x.md", "")];
        assert!(summary(&files).is_empty());
        let files = [file("docs/SUMMARY.md", ""), file("docs/a/x.md", "")];
        assert_eq!(summary(&files).len(), 1);
    }

    #[test]
    fn named_functions_must_exist() {
        let code =
            file("crates/weir-log/src/read/mod.rs", "struct Reader; impl Reader { fn go() {} }");
        let page = |name: &str| file("docs/architecture.md", &format!("see `{name}`"));
        assert!(names(&[page("weir_log::Reader::go"), file(&code.path, &code.text)]).is_empty());
        assert_eq!(names(&[page("weir_log::Reader::gone"), code]).len(), 1);
    }

    #[test]
    fn a_crate_needs_a_short_readme() {
        let manifest = || file("crates/x/Cargo.toml", "");
        assert_eq!(readmes(&[manifest()]).len(), 1);
        assert_eq!(readmes(&[manifest(), file("crates/x/README.md", &"\n".repeat(41))]).len(), 1);
        assert!(readmes(&[manifest(), file("crates/x/README.md", "# x\n")]).is_empty());
    }
}
