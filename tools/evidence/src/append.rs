//! Appends a run to a record. What is there stays as it is, byte for byte.

use std::fmt::Write;

use crate::judge::{has_pairs, judge};
use crate::model::{Goal, Kind, Load, Run, Verdict};

/// Whether what was typed is one of the goal's commands. Options may stand in any order; a word in capitals in the
/// goal's command stands for anything; where files of a run lie, and `--record` itself, is nobody's concern.
pub(crate) fn is_the_goals(goal: &Goal, typed: &str) -> bool {
    goal.commands.iter().any(|wanted| {
        let (wanted, typed) = (options(wanted), options(typed));
        wanted.len() == typed.len()
            && wanted.iter().zip(&typed).all(|(w, t)| {
                w.len() == t.len() && w.iter().zip(t).all(|(w, t)| w == t || is_placeholder(w))
            })
    })
}

fn is_placeholder(word: &str) -> bool {
    word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// The command and its options, each with its values, sorted.
fn options(command: &str) -> Vec<Vec<String>> {
    const NOT_COMPARED: [&str; 5] = ["--record", "--dir", "--json", "--keep", "--seed"];
    let mut groups: Vec<Vec<String>> = vec![Vec::new()];
    for word in command.replace(['"', '\''], "").split_whitespace() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) if word.starts_with("--") => (name, Some(value)),
            _ => (word, None),
        };
        if name.starts_with("--") {
            groups.push(Vec::new());
        }
        if let Some(group) = groups.last_mut() {
            group.push(name.to_owned());
            group.extend(value.map(str::to_owned));
        }
    }
    groups.retain(|group| !group.first().is_some_and(|name| NOT_COMPARED.contains(&name.as_str())));
    groups.sort();
    groups
}

/// Completes a new run: whether it is partial, its verdict, and for a repeated miss the page that says why.
pub(crate) fn complete(goal: &Goal, mut run: Run, lower: Option<Verdict>) -> Run {
    if let Some(typed) = run.command.take()
        && !is_the_goals(goal, &typed)
    {
        // A ratio of enough pairs is judged by those; a count or a figure only says what was run.
        let is_ratio = matches!(goal.goal.kind, Kind::Ratio | Kind::Cpu);
        run.partial = !is_ratio || !has_pairs(&goal.goal, &run);
        run.command = Some(typed);
    }
    run.verdict = judge(&goal.goal, &run);
    if let Some(lower) = lower {
        run.verdict = lower;
    }
    if run.verdict == Verdict::Missed && run.why.is_none() {
        run.why = goal.run.iter().rev().find_map(|before| before.why.clone());
    }
    run
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out + "\""
}

/// The run as a table of TOML.
pub(crate) fn toml(run: &Run) -> String {
    let mut text = format!("\n[[run]]\ncommit = {}\n", quoted(&run.commit));
    if run.dirty {
        text.push_str("dirty = true\n");
    }
    let _ = write!(
        text,
        "date = {}\nmachine = {{ cores = {}, kernel = {}, load = \"{}\" }}\n",
        run.date,
        run.machine.cores,
        quoted(&run.machine.kernel),
        run.machine.load.word()
    );
    for (name, figure) in [("value", run.value), ("low", run.low), ("high", run.high)] {
        if let Some(figure) = figure {
            let _ = writeln!(text, "{name} = {figure}");
        }
    }
    if let Some(n) = run.n {
        let _ = writeln!(text, "n = {n}");
    }
    let _ = writeln!(text, "verdict = \"{}\"", run.verdict.word());
    for (name, words) in [("note", &run.note), ("why", &run.why), ("command", &run.command)] {
        if let Some(words) = words {
            let _ = writeln!(text, "{name} = {}", quoted(words));
        }
    }
    if run.partial {
        text.push_str("partial = true\n");
    }
    text
}

/// The version of a kernel without what its builder added: `6.1.0` of `6.1.0-56-cloud-amd64`.
pub(crate) fn kernel_of(release: &str) -> String {
    release.trim().split(['-', '+']).next().unwrap_or_default().to_owned()
}

/// A machine is quiet when its load average before the run leaves half of its cores free.
pub(crate) fn load_of(average: f64, cores: u16) -> Load {
    if average <= f64::from(cores) / 2.0 { Load::Quiet } else { Load::Busy }
}

/// A commit as `weir --version` prints it: `d23a516-dirty`.
pub(crate) fn commit_of(text: &str) -> (String, bool) {
    let text = text.trim();
    text.strip_suffix("-dirty").map_or((text.to_owned(), false), |clean| (clean.to_owned(), true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Machine;
    use crate::render::faults;

    const GOAL: &str = r#"claim = "Crashes"
commands = ["tests/campaigns/crash --rounds 50", "bench/nbd --pairs 10 --against BINARY"]
measure = "crash"
goal = { kind = "zero", unit = "failed checks" }
"#;

    fn goal(text: &str) -> Goal {
        Goal::parse("docs/evidence/1/3-crash.toml", text).expect("a record")
    }

    fn run(value: f64, command: &str) -> Run {
        Run {
            commit: "0123456".to_owned(),
            dirty: true,
            date: "2026-11-25".parse().expect("a date"),
            machine: Machine { cores: 2, kernel: "6.1.0".to_owned(), load: Load::Quiet },
            value: Some(value),
            low: None,
            high: None,
            n: Some(116),
            verdict: Verdict::Open,
            note: Some("a \"note\" with \\".to_owned()),
            why: None,
            command: Some(command.to_owned()),
            partial: false,
        }
    }

    #[test]
    fn commands_are_compared_by_their_options() {
        let goal = goal(GOAL);
        for (typed, same) in [
            ("tests/campaigns/crash --rounds 50", true),
            ("tests/campaigns/crash --record --rounds=50", true),
            ("tests/campaigns/crash --seed 7 --rounds '50'", true),
            ("tests/campaigns/crash --rounds 5", false),
            ("tests/campaigns/crash", false),
            ("bench/nbd --against /x/weir --pairs 10 --dir /var/tmp", true),
            ("bench/nbd --against /x/weir --pairs 11", false),
        ] {
            assert_eq!(is_the_goals(&goal, typed), same, "{typed}");
        }
    }

    #[test]
    fn what_is_appended_reads_back_and_the_rest_stays() {
        let first = complete(&goal(GOAL), run(0.0, "tests/campaigns/crash --rounds 50"), None);
        assert_eq!((first.verdict, first.partial), (Verdict::Reached, false));
        let text = format!("{GOAL}{}", toml(&first));
        let read = goal(&text);
        assert_eq!(faults(std::slice::from_ref(&read), &[]).len(), 1, "only the part is unknown");
        assert_eq!(read.run[0].note.as_deref(), Some("a \"note\" with \\"));
        assert!(read.run[0].dirty && read.run[0].command.is_none());
    }

    #[test]
    fn a_short_run_decides_nothing_unless_it_missed() {
        let whole = goal(&format!(
            "{GOAL}{}",
            toml(&complete(&goal(GOAL), run(0.0, "tests/campaigns/crash --rounds 50"), None))
        ));
        let short = complete(&whole, run(0.0, "tests/campaigns/crash --rounds 1"), None);
        assert_eq!((short.verdict, short.partial), (Verdict::Open, true));
        let with_short = goal(&format!("{GOAL}{}{}", toml(&whole.run[0]), toml(&short)));
        assert_eq!(with_short.verdict(), Verdict::Reached);
        let failed = complete(&whole, run(1.0, "tests/campaigns/crash --rounds 1"), None);
        let with_failed = goal(&format!("{GOAL}{}{}", toml(&whole.run[0]), toml(&failed)));
        assert_eq!(with_failed.verdict(), Verdict::Missed);
    }

    #[test]
    fn a_ratio_of_few_pairs_does_not_take_the_place_of_one_of_many() {
        let text = GOAL.replace(
            "kind = \"zero\", unit = \"failed checks\"",
            "kind = \"ratio\", unit = \"x\", at_least = 1",
        );
        let other = |n| Run { n: Some(n), ..run(2.0, "bench/nbd --quick") };
        assert!(complete(&goal(&text), other(2), None).partial);
        assert!(!complete(&goal(&text), other(20), None).partial);
    }

    #[test]
    fn a_miss_that_comes_again_keeps_its_reason() {
        let mut missed = complete(&goal(GOAL), run(1.0, "tests/campaigns/crash --rounds 50"), None);
        missed.why = Some("docs/findings.md".to_owned());
        let once = goal(&format!("{GOAL}{}", toml(&missed)));
        let again = complete(&once, run(2.0, "tests/campaigns/crash --rounds 50"), None);
        assert_eq!(again.why.as_deref(), Some("docs/findings.md"));
    }

    #[test]
    fn what_a_machine_says_is_taken_apart() {
        assert_eq!(kernel_of("6.1.0-56-cloud-amd64\n"), "6.1.0");
        assert_eq!(commit_of("d23a516-dirty"), ("d23a516".to_owned(), true));
        assert_eq!(commit_of("d23a516"), ("d23a516".to_owned(), false));
        assert_eq!(load_of(1.0, 2), Load::Quiet);
        assert_eq!(load_of(1.1, 2), Load::Busy);
    }
}
