//! Rules about source text: widths, ASCII, banned words, lengths of files and functions.

use crate::Finding;

/// Widest code line, as rustfmt has it.
const CODE_COLUMNS_MAX: usize = 100;
/// Widest line with a comment or a text in it: prose with code names in it does not break well at 100.
const PROSE_COLUMNS_MAX: usize = 120;
/// Longest Rust file.
pub(crate) const FILE_LINES_MAX: usize = 800;
/// Above this (tests aside) a file gets a note.
const FILE_LINES_AIM: usize = 500;
/// Longest function, from the line of `fn` to its closing brace.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;

/// Words that code must not have.
const BANNED_CODE: [&str; 6] =
    ["dbg!", "todo!", "unimplemented!", "#[ignore", "thread_rng", "ThreadRng"];
/// Words that a comment may have only with an issue number: `WORD(#12)`.
const BANNED_COMMENT: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];

/// A length that an exception can allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) rule: &'static str,
    /// The file, or `file::function`.
    pub(crate) place: String,
    pub(crate) line: usize,
    pub(crate) value: usize,
    pub(crate) limit: usize,
    /// What is counted.
    pub(crate) what: String,
}

/// A source text taken apart: the same bytes and lines, with the rest blanked out.
#[derive(Debug)]
pub(crate) struct Masked {
    /// Without comments and without what strings hold.
    pub(crate) code: Vec<u8>,
    /// Only comments.
    pub(crate) comments: Vec<u8>,
}

/// What the scanner is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    BlockComment(usize),
    Text,
    RawText(usize),
}

impl Masked {
    pub(crate) fn of(text: &str) -> Self {
        let bytes = text.as_bytes();
        let blank = || bytes.iter().map(|&b| if b == b'\n' { b } else { b' ' }).collect();
        let mut masked = Self { code: blank(), comments: blank() };
        let mut state = State::Code;
        let mut at = 0;
        while at < bytes.len() {
            let (next, taken) = step(state, &bytes[at..], at > 0 && is_word(bytes[at - 1]));
            let end = (at + taken).min(bytes.len());
            match (state, next) {
                (State::LineComment | State::BlockComment(_), _)
                | (_, State::LineComment | State::BlockComment(_)) => {
                    masked.comments[at..end].copy_from_slice(&bytes[at..end]);
                }
                (State::Code, State::Code) => {
                    masked.code[at..end].copy_from_slice(&bytes[at..end]);
                }
                _ => {}
            }
            state = next;
            at = end;
        }
        masked
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// What follows at the head of `rest`: the next state, and how many bytes belong to this step.
fn step(state: State, rest: &[u8], after_word: bool) -> (State, usize) {
    match state {
        State::Code => step_code(rest, after_word),
        State::LineComment if rest[0] == b'\n' => (State::Code, 1),
        State::LineComment => (State::LineComment, 1),
        State::BlockComment(depth) if rest.starts_with(b"/*") => {
            (State::BlockComment(depth + 1), 2)
        }
        State::BlockComment(1) if rest.starts_with(b"*/") => (State::Code, 2),
        State::BlockComment(depth) if rest.starts_with(b"*/") => {
            (State::BlockComment(depth - 1), 2)
        }
        State::BlockComment(depth) => (State::BlockComment(depth), 1),
        State::Text if rest[0] == b'\\' => (State::Text, 2),
        State::Text if rest[0] == b'"' => (State::Code, 1),
        State::Text => (State::Text, 1),
        State::RawText(hashes) => {
            let closes = rest[0] == b'"'
                && rest.len() > hashes
                && rest[1..=hashes].iter().all(|&b| b == b'#');
            if closes { (State::Code, 1 + hashes) } else { (State::RawText(hashes), 1) }
        }
    }
}

fn step_code(rest: &[u8], after_word: bool) -> (State, usize) {
    if rest.starts_with(b"//") {
        return (State::LineComment, 2);
    }
    if rest.starts_with(b"/*") {
        return (State::BlockComment(1), 2);
    }
    if rest[0] == b'"' {
        return (State::Text, 1);
    }
    if !after_word && (rest[0] == b'r' || rest.starts_with(b"br")) {
        let prefix = if rest[0] == b'b' { 2 } else { 1 };
        let hashes = rest[prefix..].iter().take_while(|&&b| b == b'#').count();
        if rest.get(prefix + hashes) == Some(&b'"') {
            return (State::RawText(hashes), prefix + hashes + 1);
        }
    }
    if rest[0] == b'\'' {
        return (State::Code, char_literal(rest));
    }
    (State::Code, 1)
}

/// Length of the character literal at the head, or 1 where the quote starts a lifetime.
fn char_literal(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let close = rest.iter().skip(3).position(|&b| b == b'\'');
        return close.map_or(1, |i| i + 4);
    }
    let text = std::str::from_utf8(&rest[1..rest.len().min(6)]);
    let valid = text.map_or_else(|e| e.valid_up_to(), str::len);
    let first = std::str::from_utf8(&rest[1..=valid]).ok().and_then(|t| t.chars().next());
    match first {
        Some(c) if rest.get(1 + c.len_utf8()) == Some(&b'\'') => c.len_utf8() + 2,
        _ => 1,
    }
}

/// Rules of single lines: ASCII, width, blanks.
pub(crate) fn lines(file: &str, text: &str, is_rust: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut add = |rule, message: String| {
            findings.push(Finding::new(file, index + 1, rule, message));
        };
        if let Some(found) = line.chars().find(|c| !c.is_ascii()) {
            add("ascii", format!("{found:?} is not ASCII"));
        }
        if line.ends_with([' ', '\t']) {
            add("blanks", "trailing blanks".to_owned());
        }
        if is_rust && line.contains('\t') {
            add("blanks", "a tab".to_owned());
        }
        let start = line.trim_start();
        let is_text = line.contains('"') || line.ends_with('\\');
        // A script's texts stand in documents of their own, without a mark at each line.
        let is_prose = !is_rust || is_text || start.starts_with("//") || start.starts_with('#');
        let max = if is_prose { PROSE_COLUMNS_MAX } else { CODE_COLUMNS_MAX };
        let columns = line.chars().count();
        let checked = !file.ends_with(".toml") && !line.contains("://");
        if checked && columns > max {
            add("width", format!("{columns} columns, {max} are allowed"));
        }
    }
    findings
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    bytes[..at].iter().filter(|&&b| b == b'\n').count() + 1
}

fn positions<'a>(text: &'a [u8], word: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    text.windows(word.len()).enumerate().filter(move |(_, w)| *w == word).map(|(at, _)| at)
}

/// The paths inside the crate that the code of a module names, in imports and elsewhere, without `crate`. `own` is the
/// path of the module, which `super`, `self` and the modules that it declares are relative to.
pub(crate) fn imported_paths(code: &[u8], own: &[&str]) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(code);
    let mut found = Vec::new();
    let owned = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
    let parent = &own[..own.len().saturating_sub(1)];
    let mut roots = vec![
        ("crate".to_owned(), Vec::new()),
        ("super".to_owned(), owned(parent)),
        ("self".to_owned(), owned(own)),
    ];
    for child in declared_modules(&text) {
        let mut base = owned(own);
        base.push(child.to_owned());
        roots.push((child.to_owned(), base));
    }
    for (root, base) in roots {
        let root = format!("{root}::");
        for (at, _) in text.match_indices(&root) {
            let before = at.checked_sub(1).and_then(|i| text.as_bytes().get(i));
            if before.is_some_and(|&b| is_word(b) || b == b':') {
                continue;
            }
            expand(&text[at + root.len()..], &base, &mut found);
        }
    }
    found
}

/// The modules that code declares as files of their own: `mod name;`.
fn declared_modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (before, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
        let is_declaration = before.is_empty() || before.starts_with("pub");
        (is_declaration && name.bytes().all(is_word)).then_some(name)
    })
}

/// Adds the paths of a tree of names to `found`: `a::{b, c::d}` is `a::b` and `a::c::d`. The length of what was read.
fn expand(text: &str, base: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = base.to_vec();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        if text[at..].starts_with('{') {
            at += 1;
            while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
                match rest.as_bytes()[0] {
                    b'}' => return at + 1,
                    b if is_word(b) => at += expand(rest, &path, found),
                    _ => at += rest.chars().next().map_or(1, char::len_utf8),
                }
            }
            return at;
        }
        let name: String =
            text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        at += name.len();
        match name.as_str() {
            "super" => drop(path.pop()),
            "self" | "" => {}
            _ => path.push(name),
        }
        match text[at..].strip_prefix("::") {
            Some(_) => at += 2,
            None => break,
        }
    }
    found.push(path);
    at
}

/// Words that must not be there, and lints silenced without a reason.
pub(crate) fn banned(file: &str, masked: &Masked) -> Vec<Finding> {
    let mut findings = Vec::new();
    for word in BANNED_CODE {
        for at in positions(&masked.code, word.as_bytes()) {
            let message = format!("`{word}` does not belong in the tree");
            findings.push(Finding::new(file, line_of(&masked.code, at), "banned", message));
        }
    }
    for word in BANNED_COMMENT {
        for at in positions(&masked.comments, word.as_bytes()) {
            let around = &masked.comments[at + word.len()..];
            let before = at.checked_sub(1).map(|i| masked.comments[i]);
            let part_of_word = [around.first().copied(), before].into_iter().flatten().any(is_word);
            if !part_of_word && !around.starts_with(b"(#") {
                let message = format!("{word} needs an issue number: {word}(#12)");
                findings.push(Finding::new(file, line_of(&masked.comments, at), "banned", message));
            }
        }
    }
    for word in ["[allow(", "[expect("] {
        for at in positions(&masked.code, word.as_bytes()) {
            let rest = &masked.code[at..];
            let end = rest.iter().position(|&b| b == b']').unwrap_or(rest.len());
            if positions(&rest[..end], b"reason").next().is_none() {
                let message = "a silenced lint needs `reason = \"...\"`".to_owned();
                findings.push(Finding::new(file, line_of(&masked.code, at), "banned", message));
            }
        }
    }
    findings
}

/// Lengths of the file and of every function in it.
pub(crate) fn measure(file: &str, text: &str, masked: &Masked) -> Vec<Measure> {
    let mut measures = vec![Measure {
        rule: "line-count",
        place: file.to_owned(),
        line: 0,
        value: text.lines().count(),
        limit: FILE_LINES_MAX,
        what: "lines".to_owned(),
    }];
    for (name, first, last) in functions(&masked.code) {
        measures.push(Measure {
            rule: "function-lines",
            place: format!("{file}::{name}"),
            line: first,
            value: last - first + 1,
            limit: FUNCTION_LINES_MAX,
            what: "lines".to_owned(),
        });
    }
    measures
}

/// Name, first and last line of every function with a body.
pub(crate) fn functions(code: &[u8]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for at in positions(code, b"fn ") {
        if at > 0 && is_word(code[at - 1]) {
            continue;
        }
        let name: Vec<u8> = code[at + 3..].iter().copied().take_while(|&b| is_word(b)).collect();
        if name.is_empty() {
            continue;
        }
        if let Some(end) = body_end(code, at) {
            let name = String::from_utf8_lossy(&name).into_owned();
            found.push((name, line_of(code, at), line_of(code, end)));
        }
    }
    found
}

/// Where the body of the function that starts at `at` closes; `None` for a declaration without a body.
fn body_end(code: &[u8], at: usize) -> Option<usize> {
    let mut round = 0_usize;
    let mut curly = 0_usize;
    for (index, &byte) in code.iter().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => round += 1,
            b')' | b']' => round = round.saturating_sub(1),
            b'{' => curly += 1,
            b'}' if curly == 1 && round == 0 => return Some(index),
            b'}' => curly = curly.saturating_sub(1),
            b';' if curly == 0 && round == 0 => return None,
            _ => {}
        }
    }
    None
}

/// A note for a file that has grown past what it should be.
pub(crate) fn note_long(file: &str, text: &str) -> Option<String> {
    let code = text.lines().take_while(|l| !l.starts_with("#[cfg(test)]")).count();
    (code > FILE_LINES_AIM).then(|| format!("{file}: {code} lines, the aim is {FILE_LINES_AIM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masking_knows_strings_comments_and_lifetimes() {
        let text =
            "a(\"x // {\", 'q', '\\'', '\"', r#\"\"{\"#); /* { /* } */ */ fn f<'a>() {} // dbg!";
        let masked = Masked::of(text);
        let code = String::from_utf8(masked.code).unwrap();
        assert!(!code.contains("//") && !code.contains("dbg"));
        assert_eq!(code.matches('{').count(), 1);
        assert!(code.contains("fn f<'a>() {}"));
        assert!(String::from_utf8(masked.comments).unwrap().contains("dbg!"));
    }

    #[test]
    fn functions_are_measured_to_their_closing_brace() {
        let text = "trait T { fn a(&self) -> [u8; 4]; }\nfn b() -> [u8; 2]\nwhere\n{\n  x()\n}\n";
        assert_eq!(functions(&Masked::of(text).code), vec![("b".to_owned(), 2, 6)]);
    }

    #[test]
    fn banned_words_are_found_where_they_count() {
        let rules = |text: &str| banned("f.rs", &Masked::of(text)).len();
        assert_eq!(rules("let a = \"dbg!\"; // TODO(#3) later"), 0);
        assert_eq!(rules("dbg!(1); // TODO later"), 2);
        assert_eq!(rules("#[allow(dead_code)]"), 1);
        assert_eq!(rules("#[allow(dead_code, reason = \"because\")]"), 0);
    }

    #[test]
    fn lines_are_checked_for_width_and_ascii() {
        let wide = "x".repeat(101);
        let comment = format!("// {}", "x".repeat(110));
        assert_eq!(lines("f.rs", &wide, true)[0].rule, "width");
        assert!(lines("f.rs", &comment, true).is_empty());
        assert_eq!(lines("f.rs", "// \u{e9}", true)[0].rule, "ascii");
        assert_eq!(lines("f.sh", "x ", false)[0].rule, "blanks");
    }
}
