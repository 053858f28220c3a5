//! Whether a run shows what its goal asks for. The rules are explained in docs/evidence/README.md.

use crate::model::{Kind, Run, Target, Verdict};

/// Pairs that a ratio must be the mean of.
const PAIRS_MIN: u64 = 10;
/// An interval of which one end is farther from the value than this share of it shows nothing.
const HALF_WIDTH_MAX: f64 = 0.25;

/// Whether a ratio is the mean of as many pairs as it must be.
pub(crate) fn has_pairs(target: &Target, run: &Run) -> bool {
    run.n.unwrap_or(0) >= PAIRS_MIN.max(target.n_at_least.unwrap_or(0))
}

/// What the figures of a run say by themselves.
pub(crate) fn judge(target: &Target, run: &Run) -> Verdict {
    let Some(value) = run.value else {
        return Verdict::Open;
    };
    let too_few = |least: u64| run.n.unwrap_or(0) < least.max(target.n_at_least.unwrap_or(0));
    let enough = match target.kind {
        Kind::Statement => return Verdict::Open,
        Kind::Zero => !too_few(1),
        Kind::Value => !is_too_wide(value, run) && !too_few(0),
        Kind::Ratio | Kind::Cpu => {
            run.low.is_some() && !is_too_wide(value, run) && has_pairs(target, run)
        }
    };
    let figure = match target.kind {
        Kind::Cpu if target.at_most.is_some() => run.high.unwrap_or(value),
        Kind::Cpu => run.low.unwrap_or(value),
        Kind::Ratio | Kind::Value | Kind::Zero | Kind::Statement => value,
    };
    match (target.is_met_by(figure), enough && !run.partial) {
        // One failure is a failure, however few were tried, and however short the run was.
        (false, _) if target.kind == Kind::Zero => Verdict::Missed,
        (false, true) => Verdict::Missed,
        (true, true) => Verdict::Reached,
        (_, false) => Verdict::Open,
    }
}

fn is_too_wide(value: f64, run: &Run) -> bool {
    let (Some(low), Some(high)) = (run.low, run.high) else {
        return false;
    };
    high - value > HALF_WIDTH_MAX * value || value - low > HALF_WIDTH_MAX * value
}

/// What is wrong with the verdict that a record states, or nothing.
///
/// A person may state less than the figures show, never more; and a figure that is on the wrong side of the goal may
/// be called a miss although its interval is too wide to prove it.
pub(crate) fn disagreement(target: &Target, run: &Run) -> Option<String> {
    let judged = judge(target, run);
    let stated = run.verdict;
    let fails = run.value.is_some_and(|value| !target.is_met_by(value));
    let agrees = match stated {
        Verdict::Reached if target.kind == Kind::Statement => run.note.is_some(),
        Verdict::Reached => judged == Verdict::Reached,
        Verdict::Missed => judged == Verdict::Missed || fails || target.kind == Kind::Statement,
        Verdict::Partly => run.note.is_some() && (judged != Verdict::Missed || run.why.is_some()),
        Verdict::Open => {
            judged == Verdict::Open || (judged == Verdict::Reached && run.note.is_some())
        }
    };
    if agrees {
        return None;
    }
    let reason = match target.kind {
        Kind::Statement => "a statement needs a note of what was seen".to_owned(),
        Kind::Ratio | Kind::Cpu => format!(
            "a ratio needs {PAIRS_MIN} pairs and an interval within 25 % of it; processor time is judged by the \
             far end of the interval"
        ),
        Kind::Value => "the value is held against the goal".to_owned(),
        Kind::Zero => "one failure is a miss, and n says how many were tried".to_owned(),
    };
    Some(format!(
        "the verdict is `{}` and the figures say `{}`: {reason}",
        stated.word(),
        judged.word()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Load, Machine};

    fn target(kind: Kind, at_least: Option<f64>, at_most: Option<f64>) -> Target {
        Target { kind, unit: "x".to_owned(), at_least, at_most, n_at_least: None }
    }

    fn run(value: f64, interval: Option<(f64, f64)>, n: u64) -> Run {
        Run {
            commit: "0123456".to_owned(),
            dirty: false,
            date: "2026-11-25".parse().expect("a date"),
            machine: Machine { cores: 2, kernel: "6.1".to_owned(), load: Load::Quiet },
            value: Some(value),
            low: interval.map(|(low, _)| low),
            high: interval.map(|(_, high)| high),
            n: Some(n),
            verdict: Verdict::Open,
            note: None,
            why: None,
            command: None,
            partial: false,
        }
    }

    #[test]
    fn a_ratio_is_reached_by_the_mean_of_ten_pairs() {
        let goal = target(Kind::Ratio, Some(1.3), None);
        assert_eq!(judge(&goal, &run(1.35, Some((1.21, 1.52)), 10)), Verdict::Reached);
        assert_eq!(judge(&goal, &run(1.29, Some((1.21, 1.52)), 10)), Verdict::Missed);
        assert_eq!(judge(&goal, &run(1.35, Some((1.21, 1.52)), 9)), Verdict::Open, "nine pairs");
        assert_eq!(judge(&goal, &run(1.35, None, 10)), Verdict::Open, "no interval");
    }

    #[test]
    fn a_wide_interval_shows_nothing() {
        let goal = target(Kind::Ratio, None, Some(1.3));
        assert_eq!(judge(&goal, &run(1.0, Some((0.75, 1.25)), 10)), Verdict::Reached);
        assert_eq!(judge(&goal, &run(1.0, Some((0.74, 1.10)), 10)), Verdict::Open);
        assert_eq!(judge(&goal, &run(1.0, Some((0.90, 1.26)), 10)), Verdict::Open);
        assert_eq!(judge(&goal, &run(1.6, Some((1.08, 2.39)), 10)), Verdict::Open);
    }

    #[test]
    fn processor_time_is_judged_by_the_far_end() {
        let most = target(Kind::Cpu, None, Some(1.05));
        assert_eq!(judge(&most, &run(1.02, Some((1.00, 1.04)), 10)), Verdict::Reached);
        assert_eq!(judge(&most, &run(1.03, Some((0.98, 1.08)), 25)), Verdict::Missed);
        assert_eq!(judge(&most, &run(1.00, None, 10)), Verdict::Open);
        let least = target(Kind::Cpu, Some(2.0), None);
        assert_eq!(judge(&least, &run(2.1, Some((1.9, 2.3)), 10)), Verdict::Missed);
    }

    #[test]
    fn one_failure_is_a_miss_and_none_of_none_shows_nothing() {
        let mut goal = target(Kind::Zero, None, None);
        assert_eq!(judge(&goal, &run(0.0, None, 50)), Verdict::Reached);
        assert_eq!(judge(&goal, &run(0.0, None, 0)), Verdict::Open);
        assert_eq!(judge(&goal, &run(1.0, None, 50)), Verdict::Missed);
        goal.n_at_least = Some(100);
        assert_eq!(judge(&goal, &run(0.0, None, 99)), Verdict::Open);
        assert_eq!(judge(&goal, &run(1.0, None, 99)), Verdict::Missed);
        assert_eq!(judge(&goal, &run(0.0, None, 100)), Verdict::Reached);
    }

    #[test]
    fn a_partial_run_decides_nothing_but_a_failure() {
        let mut short = run(9.0, None, 50);
        short.partial = true;
        assert_eq!(judge(&target(Kind::Value, None, Some(2.0)), &short), Verdict::Open);
        assert_eq!(judge(&target(Kind::Value, None, Some(10.0)), &short), Verdict::Open);
        assert_eq!(judge(&target(Kind::Zero, None, None), &short), Verdict::Missed);
        short.value = Some(0.0);
        assert_eq!(judge(&target(Kind::Zero, None, None), &short), Verdict::Open);
    }

    #[test]
    fn a_value_needs_no_pairs() {
        let goal = target(Kind::Value, None, Some(2.0));
        assert_eq!(judge(&goal, &run(1.2, None, 0)), Verdict::Reached);
        assert_eq!(judge(&goal, &run(2.1, None, 0)), Verdict::Missed);
    }

    #[test]
    fn a_person_may_state_less_and_never_more() {
        let goal = target(Kind::Ratio, None, Some(1.3));
        let mut stated = run(1.6, Some((1.08, 2.39)), 3);
        for (verdict, agrees) in
            [(Verdict::Missed, true), (Verdict::Open, true), (Verdict::Reached, false)]
        {
            stated.verdict = verdict;
            assert_eq!(disagreement(&goal, &stated).is_none(), agrees, "{verdict:?}");
        }
        let mut missed = run(1.4, Some((1.3, 1.5)), 10);
        assert!(disagreement(&goal, &missed).is_some(), "a miss is not open");
        missed.verdict = Verdict::Partly;
        missed.note = Some("a part".to_owned());
        assert!(disagreement(&goal, &missed).is_some(), "a miss that is told as partly says why");
        let mut reached = run(1.1, Some((1.0, 1.2)), 10);
        reached.verdict = Verdict::Missed;
        assert!(disagreement(&goal, &reached).is_some(), "what is met is not missed");
        reached.verdict = Verdict::Open;
        assert!(disagreement(&goal, &reached).is_some(), "less than shown needs a note");
        reached.note = Some("the machine slept".to_owned());
        assert!(disagreement(&goal, &reached).is_none());
    }
}
