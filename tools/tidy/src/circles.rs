//! Which file may import which: no large circles, and nothing of a log volume's rooms knows the volume.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::source::{Masked, Measure, imported_paths};
use crate::tree::File;

/// Most files that may import each other in a circle. A pair that only makes sense together is no harm; a circle of a
/// dozen files can only be read as a whole.
const CIRCLE_FILES_MAX: usize = 4;

/// Rooms above all others of their crate: who may name one is listed, everybody else must do without.
const TOP_ROOMS: [TopRoom; 1] = [TopRoom {
    crate_root: "crates/weir-log/src/",
    room: "volume",
    known_to: &["crates/weir-log/src/volume/", "crates/weir-log/src/lib.rs"],
}];

struct TopRoom {
    crate_root: &'static str,
    room: &'static str,
    /// Files and folders that may name it.
    known_to: &'static [&'static str],
}

/// The folder of the crate that a file is part of the code of, with `src/`; `None` for tests, examples and tools alone.
fn crate_root(path: &str) -> Option<&str> {
    let at = path.find("/src/")?;
    Some(&path[..at + "/src/".len()])
}

/// The path of the module that a file is, without the crate: `["write", "batch"]`.
fn module_of(path: &str) -> Option<Vec<&str>> {
    let inside = path.strip_prefix(crate_root(path)?)?.strip_suffix(".rs")?;
    let mut parts: Vec<&str> = inside.split('/').collect();
    if matches!(parts.as_slice(), ["lib" | "main"]) || parts.last() == Some(&"mod") {
        parts.pop();
    }
    Some(parts)
}

/// The code of a file without its tests, which may import what they like.
fn without_tests(code: &[u8]) -> &[u8] {
    const TESTS: &[u8] = b"#[cfg(test)]\nmod tests {";
    let at = code.windows(TESTS.len()).position(|window| window == TESTS);
    &code[..at.unwrap_or(code.len())]
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("/golden.rs") || path.contains("/tests/")
}

/// What every file of the workspace's crates imports of its own crate, by the paths of the files.
fn imports(files: &[File]) -> BTreeMap<&str, BTreeSet<&str>> {
    let of_code =
        |f: &&File| f.is_rust() && crate_root(&f.path).is_some() && !is_test_file(&f.path);
    let mut by_module: BTreeMap<(&str, Vec<&str>), &str> = BTreeMap::new();
    for file in files.iter().filter(of_code) {
        if let (Some(root), Some(module)) = (crate_root(&file.path), module_of(&file.path)) {
            by_module.insert((root, module), &file.path);
        }
    }
    let mut found = BTreeMap::new();
    for file in files.iter().filter(of_code) {
        let (Some(root), Some(own)) = (crate_root(&file.path), module_of(&file.path)) else {
            continue;
        };
        let masked = Masked::of(&file.text);
        let mut targets = BTreeSet::new();
        for path in imported_paths(without_tests(&masked.code), &own) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            // The longest module that the path begins with; what follows is declared there.
            let target =
                (1..=path.len()).rev().find_map(|len| by_module.get(&(root, path[..len].to_vec())));
            if let Some(target) = target.filter(|target| **target != file.path) {
                targets.insert(*target);
            }
        }
        found.insert(file.path.as_str(), targets);
    }
    found
}

/// Everything that can be reached from a file over imports.
fn reached<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut waiting: Vec<&str> = imports.get(from).into_iter().flatten().copied().collect();
    while let Some(next) = waiting.pop() {
        if seen.insert(next) {
            waiting.extend(imports.get(next).into_iter().flatten().copied());
        }
    }
    seen
}

/// The circles of a set of imports: each is the files that reach each other.
fn circles<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|file| (*file, reached(imports, file))).collect();
    let mut found = BTreeSet::new();
    for (file, targets) in &reach {
        let mutual = |other: &&&str| reach.get(**other).is_some_and(|back| back.contains(file));
        let circle: Vec<&str> = targets.iter().filter(mutual).copied().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// How many files each circle has. Its place is the code of its crate: which file is the first changes too easily.
pub(crate) fn measure(files: &[File]) -> Vec<Measure> {
    let imports = imports(files);
    let measured = |circle: Vec<&str>| Measure {
        rule: "circles",
        place: crate_root(circle[0]).unwrap_or(circle[0]).to_owned(),
        line: 0,
        value: circle.len(),
        limit: CIRCLE_FILES_MAX,
        what: format!("files in a circle of imports: {}", circle.join(", ")),
    };
    circles(&imports).into_iter().map(measured).collect()
}

/// Files that name a room that they must do without, in code or in a link of their documentation.
pub(crate) fn name_top_rooms(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for top in &TOP_ROOMS {
        let named = format!("crate::{}", top.room);
        let inside = |f: &&File| f.is_rust() && f.path.starts_with(top.crate_root);
        let is_known = |f: &File| top.known_to.iter().any(|known| f.path.starts_with(known));
        for file in files.iter().filter(inside).filter(|f| !is_known(f)) {
            for (index, line) in file.text.lines().enumerate() {
                let mut after = line.match_indices(&named).map(|(at, _)| &line[at + named.len()..]);
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                if after.any(|rest| !rest.starts_with(is_word)) {
                    let message = format!("only {} may name {named}", top.known_to.join(" and "));
                    findings.push(Finding::new(&file.path, index + 1, "rooms", message));
                }
            }
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

    fn too_large(files: &[File]) -> Vec<Measure> {
        measure(files).into_iter().filter(|circle| circle.value > circle.limit).collect()
    }

    /// `count` files, each of which imports the next, and the last one the first.
    fn ring(count: usize, import: impl Fn(usize) -> String) -> Vec<File> {
        let path = |n: usize| match n {
            0 => "crates/x/src/f0/mod.rs".to_owned(),
            n => format!("crates/x/src/f{n}.rs"),
        };
        (0..count).map(|n| file(&path(n), &import((n + 1) % count))).collect()
    }

    #[test]
    fn a_circle_of_more_than_four_files_is_found_however_it_imports() {
        let plain = |to| format!("use crate::f{to}::Thing;\n");
        assert_eq!(too_large(&ring(4, plain)), []);
        assert_eq!(too_large(&ring(5, plain)).len(), 1);
        let nested = |to| format!("use crate::{{a, f{to}::{{self, Thing as Other}}}};\n");
        assert_eq!(too_large(&ring(5, nested)).len(), 1);
        let inline = |to| format!("fn go() {{ crate::f{to}::go() }}\n");
        assert_eq!(too_large(&ring(5, inline)).len(), 1);
        let again = |to| format!("pub use crate::f{to}::*;\n");
        assert_eq!(too_large(&ring(5, again)).len(), 1);
        let relative = |to| match to {
            1 => "use super::f1::Thing;\n".to_owned(),
            to => format!("use super::f{to}::{{Thing}};\n"),
        };
        assert_eq!(too_large(&ring(5, relative)).len(), 1);
    }

    /// A head file that exports again what its files declare imports them all, and they import it.
    #[test]
    fn a_circle_through_the_exports_of_a_head_file_is_found() {
        let head = |names: &[&str]| {
            let line = |name: &&str| format!("mod {name};\npub use {name}::{{Thing, other}};\n");
            file("crates/x/src/room/mod.rs", &names.iter().map(line).collect::<String>())
        };
        let part = |name: &&str| {
            file(&format!("crates/x/src/room/{name}.rs"), "use super::{Thing, other};\n")
        };
        let room =
            |names: &[&str]| -> Vec<File> { names.iter().map(part).chain([head(names)]).collect() };
        assert_eq!(too_large(&room(&["a", "b", "c"])), []);
        assert_eq!(too_large(&room(&["a", "b", "c", "d"]))[0].value, 5);
    }

    #[test]
    fn comments_texts_and_tests_are_no_imports() {
        let comment =
            |to| format!("//! See [`crate::f{to}`].\nconst A: &str = \"crate::f{to}::a\";\n");
        assert_eq!(too_large(&ring(9, comment)), []);
        let test = |to| format!("#[cfg(test)]\nmod tests {{\n    use crate::f{to}::Thing;\n}}\n");
        assert_eq!(too_large(&ring(9, test)), []);
    }

    #[test]
    fn a_lower_room_does_not_name_the_volume() {
        let count = |path: &str, text: &str| name_top_rooms(&[file(path, text)]).len();
        let names =
            "use crate::volume::LogVolume;\n//! [`crate::volume`]\nuse crate::volumes::X;\n";
        assert_eq!(count("crates/weir-log/src/write/batch.rs", names), 2);
        assert_eq!(count("crates/weir-log/src/volume/task/upload.rs", names), 0);
        assert_eq!(count("crates/weir-log/src/lib.rs", names), 0);
        assert_eq!(count("crates/weir-node/src/a.rs", names), 0);
    }
}
