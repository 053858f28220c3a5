//! The parts of pages that are made from the records, between markers:
//!
//! `<!-- evidence: status -->` ... `<!-- /evidence -->` the newest run of every goal, misses first;
//! `<!-- evidence: table PREFIX -->` the goals with a command that begins with PREFIX;
//! `<!-- evidence: history PREFIX -->` all runs of those goals that have several.

use std::fmt::Write;

use crate::judge::disagreement;
use crate::model::{Goal, Kind, Part, Run, Verdict};

/// Longest line of docs/status.md.
pub(crate) const STATUS_LINE_CHARS_MAX: usize = 160;

const BEGIN: &str = "<!-- evidence: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- /evidence -->";

/// A number as people read it: `100,000`, `0.838`, `1.30`.
pub(crate) fn number(value: f64) -> String {
    let text = if value.fract() == 0.0 {
        format!("{value:.0}")
    } else if value.abs() < 10.0 {
        let three = format!("{value:.3}");
        three.strip_suffix('0').map_or(three.clone(), str::to_owned)
    } else {
        format!("{value:.1}")
    };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

/// The goal's number with its direction.
pub(crate) fn asked(goal: &Goal) -> String {
    let unit = &goal.goal.unit;
    match (goal.goal.kind, goal.goal.at_least, goal.goal.at_most) {
        (Kind::Zero, _, _) => match goal.goal.n_at_least {
            Some(n) => format!("0 {unit} in >= {}", grouped(n)),
            None => format!("0 {unit}"),
        },
        (Kind::Statement, _, _) => unit.clone(),
        (_, Some(least), _) => format!(">= {} {unit}", number(least)),
        (_, None, Some(most)) => format!("<= {} {unit}", number(most)),
        (_, None, None) => unit.clone(),
    }
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The figure of a run with its interval.
pub(crate) fn found(goal: &Goal, run: &Run) -> String {
    let Some(value) = run.value else {
        return "-".to_owned();
    };
    let is_ratio = matches!(goal.goal.kind, Kind::Ratio | Kind::Cpu);
    // A ratio that happens to be 1 is shown as exactly as the others.
    let shown =
        |figure: f64| if is_ratio && figure == 1.0 { "1.00".to_owned() } else { number(figure) };
    let mut text = shown(value);
    if let (Some(low), Some(high)) = (run.low, run.high) {
        let _ = write!(text, " [{}, {}]", shown(low), shown(high));
    }
    match run.n {
        Some(n) if goal.goal.kind == Kind::Zero => {
            let _ = write!(text, " of {}", grouped(n));
        }
        Some(n) if is_ratio => {
            let _ = write!(text, ", n {n}");
        }
        _ => {}
    }
    text
}

/// A path of the repository as a link from a page.
fn link(page: &str, target: &str) -> String {
    let up = page.matches('/').count();
    let from: Vec<&str> = page.split('/').take(up).collect();
    let to: Vec<&str> = target.split('/').collect();
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let mut text = "../".repeat(from.len() - shared);
    text.push_str(&to[shared..].join("/"));
    text
}

fn record_of(goal: &Goal) -> String {
    format!("docs/evidence/{}.toml", goal.place.id())
}

/// Links of a generated part: written as references, so that lines stay short.
#[derive(Default)]
struct References {
    lines: Vec<String>,
    whys: Vec<String>,
}

impl References {
    fn goal(&mut self, page: &str, goal: &Goal) -> String {
        let label = goal.place.label();
        self.add(&label, &link(page, &record_of(goal)));
        format!("[{label}]")
    }

    /// Pages that explain a miss are few: each has a number, so that lines stay short.
    fn why(&mut self, page: &str, run: &Run) -> String {
        let Some(why) = &run.why else {
            return String::new();
        };
        let known = self.whys.iter().position(|target| target == why);
        let index = known.unwrap_or_else(|| {
            self.whys.push(why.clone());
            self.whys.len() - 1
        });
        let label = format!("w{}", index + 1);
        self.add(&label, &link(page, why));
        format!(", [why][{label}]")
    }

    fn add(&mut self, label: &str, target: &str) {
        let line = format!("[{label}]: {target}");
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    fn end(self) -> String {
        if self.lines.is_empty() { String::new() } else { format!("\n{}\n", self.lines.join("\n")) }
    }
}

/// One line for each goal: misses, what is shown partly, what is open, what is reached.
fn status(page: &str, goals: &[Goal], parts: &[Part]) -> String {
    const ORDER: [(Verdict, &str); 4] = [
        (Verdict::Missed, "Missed"),
        (Verdict::Partly, "Partly"),
        (Verdict::Open, "Open"),
        (Verdict::Reached, "Reached"),
    ];
    let mut text = String::from("| part | | missed | partly | open | reached |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- |\n");
    for part in parts {
        let _ = write!(text, "| {} | {} |", part.number, part.title);
        for (verdict, _) in ORDER {
            let of_part = goals.iter().filter(|goal| goal.place.part == part.number);
            let _ = write!(text, " {} |", of_part.filter(|goal| goal.verdict() == verdict).count());
        }
        text.push('\n');
    }
    let mut references = References::default();
    for (verdict, title) in ORDER {
        let _ = write!(text, "\n## {title}\n\n");
        if !goals.iter().any(|goal| goal.verdict() == verdict) {
            text.push_str("Nothing.\n");
            continue;
        }
        text.push_str(
            "| goal | claim | newest | asked | build |\n| --- | --- | --- | --- | --- |\n",
        );
        for goal in goals.iter().filter(|goal| goal.verdict() == verdict) {
            let label = references.goal(page, goal);
            let (figure, build) = match goal.newest() {
                None => ("no run".to_owned(), "-".to_owned()),
                Some(run) if verdict == Verdict::Reached => (found(goal, run), run.build()),
                Some(run) => {
                    let why = references.why(page, run);
                    (found(goal, run), format!("{}{why}", run.build()))
                }
            };
            let _ = writeln!(
                text,
                "| {label} | {} | {figure} | {} | {build} |",
                goal.claim,
                asked(goal)
            );
        }
    }
    text + &references.end()
}

fn has_command(goal: &Goal, prefix: &str) -> bool {
    goal.commands.iter().any(|command| {
        let inner = command
            .strip_prefix("tests/s3/with ")
            .map_or(command.as_str(), |rest| rest.split_once(' ').map_or(rest, |(_, inner)| inner));
        inner.starts_with(prefix) || command.starts_with(prefix)
    })
}

fn machine(run: &Run) -> String {
    let kernel = if run.machine.kernel == "unknown" {
        String::new()
    } else {
        format!(", Linux {}", run.machine.kernel)
    };
    let load = if run.machine.load.word() == "unknown" { "" } else { run.machine.load.word() };
    let comma = if load.is_empty() { "" } else { ", " };
    format!("{} cores{kernel}{comma}{load}", run.machine.cores)
}

/// The claim with what it is about.
fn claim(goal: &Goal) -> String {
    match &goal.applies {
        Some(applies) => format!("{} ({applies})", goal.claim),
        None => goal.claim.clone(),
    }
}

/// The newest run of each goal whose command begins with `prefix`, with what was noted.
fn table(page: &str, goals: &[Goal], prefix: &str) -> String {
    let mut references = References::default();
    let mut text = String::from("| goal | claim | asked | newest | verdict | run | note |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    for goal in goals.iter().filter(|goal| has_command(goal, prefix)) {
        let label = references.goal(page, goal);
        let _ = write!(text, "| {label} | {} | {} |", claim(goal), asked(goal));
        let Some(run) = goal.newest() else {
            text.push_str(" no run | open | - | |\n");
            continue;
        };
        let why = references.why(page, run);
        let _ = writeln!(
            text,
            " {} | {}{why} | {}, {}, {} | {} |",
            found(goal, run),
            run.verdict.word(),
            run.build(),
            run.date,
            machine(run),
            run.note.as_deref().unwrap_or_default()
        );
    }
    text + &references.end()
}

/// Every run of the goals that have more than one.
fn history(page: &str, goals: &[Goal], prefix: &str) -> String {
    let mut text = String::new();
    for goal in goals.iter().filter(|goal| goal.run.len() > 1 && has_command(goal, prefix)) {
        let target = link(page, &record_of(goal));
        let _ = write!(
            text,
            "\n### {}\n\n[{}]({target}), asked: {}\n\n",
            goal.place.label(),
            claim(goal),
            asked(goal)
        );
        text.push_str("| date | build | found | verdict | load | note |\n");
        text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for run in &goal.run {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {}{} | {} | {} |",
                run.date,
                run.build(),
                found(goal, run),
                run.verdict.word(),
                if run.partial { ", short" } else { "" },
                run.machine.load.word(),
                run.note.as_deref().unwrap_or_default()
            );
        }
    }
    text
}

/// The page with its generated parts made anew; itself where it has none.
pub(crate) fn page(
    path: &str,
    text: &str,
    goals: &[Goal],
    parts: &[Part],
) -> Result<String, String> {
    let mut made = String::new();
    let mut rest = text;
    while let Some(at) = line_start(rest, BEGIN) {
        let (before, marked) = rest.split_at(at);
        let (head, after) =
            marked.split_once('\n').ok_or_else(|| format!("{path}: a marker ends the page"))?;
        let what =
            head.strip_prefix(BEGIN).and_then(|what| what.strip_suffix(BEGIN_END)).ok_or_else(
                || format!("{path}: the marker `{head}` does not end with `{BEGIN_END}`"),
            )?;
        let end = line_start(after, END)
            .ok_or_else(|| format!("{path}: `{head}` has no `{END}` after it"))?;
        let (name, prefix) = what.split_once(' ').unwrap_or((what, ""));
        let part = match name {
            "status" => status(path, goals, parts),
            "table" => table(path, goals, prefix),
            "history" => history(path, goals, prefix),
            _ => return Err(format!("{path}: no generated part is called {name}")),
        };
        let _ = write!(made, "{before}{head}\n{part}{END}");
        rest = &after[end + END.len()..];
    }
    Ok(made + rest)
}

/// Where a line begins with `what`.
fn line_start(text: &str, what: &str) -> Option<usize> {
    text.match_indices(what)
        .map(|(at, _)| at)
        .find(|at| *at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n'))
}

/// Lines of the status that are too long, by goal.
pub(crate) fn long_lines(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with('|') && line.chars().count() > STATUS_LINE_CHARS_MAX)
        .map(|line| {
            let length = line.chars().count();
            let excess = length - STATUS_LINE_CHARS_MAX;
            format!("docs/status.md: {excess} characters too long; shorten the claim or the unit: {line}")
        })
        .collect()
}

/// What is wrong with the records themselves.
pub(crate) fn faults(goals: &[Goal], parts: &[Part]) -> Vec<String> {
    let mut faults = Vec::new();
    for goal in goals {
        let id = goal.place.id();
        if !parts.iter().any(|part| part.number == goal.place.part) {
            faults.push(format!("{id}: docs/evidence/parts.toml has no part {}", goal.place.part));
        }
        faults.extend(goal.faults().into_iter().map(|fault| format!("{id}: {fault}")));
        for (number, run) in (1..).zip(&goal.run) {
            faults.extend(
                disagreement(&goal.goal, run).map(|fault| format!("{id}: run {number}: {fault}")),
            );
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSED: &str = r#"
        claim = "Rate of a drain"
        commands = ["bench/drain --runs 10"]
        measure = "drain"
        goal = { kind = "ratio", unit = "x MinIO", at_least = 0.85 }
        [[run]]
        commit = "0123456"
        date = 2026-11-24
        machine = { cores = 2, kernel = "6.1", load = "quiet" }
        value = 0.9
        low = 0.8
        high = 1.0
        n = 10
        verdict = "reached"
        [[run]]
        commit = "89abcde"
        date = 2026-11-25
        machine = { cores = 2, kernel = "6.1", load = "busy" }
        value = 0.838
        low = 0.8
        high = 0.878
        n = 10
        verdict = "missed"
        why = "docs/decisions/0001.md"
    "#;

    fn goals() -> Vec<Goal> {
        let open = r#"
            claim = "Something else"
            commands = ["tests/s3/with minio tests/campaigns/crash"]
            goal = { kind = "zero", unit = "failures", n_at_least = 100000 }
        "#;
        vec![
            Goal::parse("docs/evidence/1/1-open.toml", open).expect("a record"),
            Goal::parse("docs/evidence/1/7-drain.toml", MISSED).expect("a record"),
        ]
    }

    fn parts() -> Vec<Part> {
        vec![Part { number: 1, title: "First".to_owned() }]
    }

    #[test]
    fn numbers_are_grouped_and_keep_two_digits() {
        let found = [1.3, 0.838, 100_000.0, 52.9, 0.0, 1234.5].map(number);
        assert_eq!(found, ["1.30", "0.838", "100,000", "52.9", "0", "1,234.5"]);
    }

    #[test]
    fn misses_come_first_and_a_page_is_rendered_between_its_markers() {
        let text = "# Status\n\n<!-- evidence: status -->\nold\n<!-- /evidence -->\nend\n";
        let made = page("docs/status.md", text, &goals(), &parts()).expect("a page");
        assert!(made.starts_with("# Status\n\n<!-- evidence: status -->\n| part |"));
        assert!(made.ends_with("<!-- /evidence -->\nend\n") && !made.contains("old"));
        let missed = made.find("0.838 [0.80, 0.878], n 10").expect("the newest run");
        assert!(missed < made.find("no run").expect("the open goal"));
        assert!(!made.contains("0.90"), "older runs are no part of the status");
        assert!(made.contains("[w1]: decisions/0001.md"));
        assert!(made.contains("[1.7 drain]: evidence/1/7-drain.toml"));
        assert_eq!(page("docs/status.md", &made, &goals(), &parts()).as_ref(), Ok(&made));
    }

    #[test]
    fn tables_take_the_goals_of_a_command() {
        let text = "<!-- evidence: table tests/campaigns/ -->\n<!-- /evidence -->\n";
        let made = page("docs/operations/x.md", text, &goals(), &parts()).expect("a page");
        assert!(made.contains("[1.1 open]: ../evidence/1/1-open.toml") && !made.contains("drain"));
        let text = "<!-- evidence: history bench/ -->\n<!-- /evidence -->\n";
        let made = page("docs/benchmarks/x.md", text, &goals(), &parts()).expect("a page");
        assert!(made.contains("0.90 [0.80, 1.00], n 10 | reached") && !made.contains("1.1 open"));
    }

    #[test]
    fn a_marker_without_an_end_or_a_name_is_an_error() {
        for text in ["<!-- evidence: status -->\n", "<!-- evidence: no -->\n<!-- /evidence -->\n"] {
            assert!(page("x.md", text, &goals(), &parts()).is_err());
        }
    }

    #[test]
    fn long_lines_of_the_status_are_found() {
        assert_eq!(
            long_lines(&format!("| {} |\n[a]: {}", "x".repeat(157), "y".repeat(200))).len(),
            1
        );
        assert!(long_lines(&format!("| {} |", "x".repeat(156))).is_empty());
    }

    #[test]
    fn records_that_break_the_rules_are_found() {
        let good = goals();
        assert_eq!(faults(&good, &parts()), Vec::<String>::new());
        assert_eq!(faults(&good, &[]).len(), 2, "no such part");
        for (from, to) in [
            ("why = \"docs/decisions/0001.md\"", ""),
            ("verdict = \"missed\"", "verdict = \"reached\""),
            ("2026-11-25", "2026-11-23"),
            ("high = 0.878", "high = 0.82"),
            ("89abcde", "unknown"),
            ("at_least = 0.85", "at_least = 0.85, at_most = 2"),
            ("Rate of a drain", ""),
        ] {
            let text = MISSED.replace(from, to);
            let goal = Goal::parse("docs/evidence/1/7-drain.toml", &text).expect("a record");
            assert!(!faults(&[goal], &parts()).is_empty(), "{from} -> {to}");
        }
        let unknown = MISSED.replace("verdict = \"missed\"", "verdict = \"missed\"\ncolour = 1");
        assert!(Goal::parse("docs/evidence/1/7-drain.toml", &unknown).is_err());
        assert!(Goal::parse("docs/evidence/drain.toml", MISSED).is_err());
    }
}
