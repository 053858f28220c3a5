//! A plot of the newest run of every goal that is a ratio or a figure: how far it is from what is asked.

use std::fmt::Write;

use crate::model::{Goal, Kind, Verdict};

/// Where the plot lies.
pub(crate) const PATH: &str = "docs/benchmarks/goals.svg";

const LEFT: f64 = 520.0;
const WIDTH: f64 = 420.0;
const ROW: f64 = 17.0;
const TOP: f64 = 44.0;
/// The figure divided by the goal, at the left and the right edge.
const LEAST: f64 = 0.25;
const MOST: f64 = 4.0;

/// Distance from the goal: above 1 it is met, whatever its direction.
fn share(goal: &Goal, figure: f64) -> Option<f64> {
    let found = match (goal.goal.at_least, goal.goal.at_most) {
        (Some(least), _) => figure / least,
        (None, Some(most)) => most / figure,
        (None, None) => return None,
    };
    (found.is_finite() && found > 0.0).then_some(found)
}

fn x_of(share: f64) -> f64 {
    LEFT + WIDTH * (share.clamp(LEAST, MOST) / LEAST).ln() / (MOST / LEAST).ln()
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Missed => "#c0392b",
        Verdict::Partly => "#d68910",
        Verdict::Open => "#7f8c8d",
        Verdict::Reached => "#1e8449",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The whole file.
pub(crate) fn svg(goals: &[Goal]) -> String {
    let mut rows: Vec<(&Goal, f64)> = goals
        .iter()
        .filter(|goal| matches!(goal.goal.kind, Kind::Ratio | Kind::Cpu | Kind::Value))
        .filter_map(|goal| Some((goal, share(goal, goal.newest()?.value?)?)))
        .collect();
    rows.sort_by_key(|(goal, _)| goal.verdict());
    let bottom = rows.iter().fold(TOP, |y, _| y + ROW);
    let (right, height) = (LEFT + WIDTH + 20.0, bottom + 24.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {right:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{right:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n\
         <text x=\"{LEFT:.0}\" y=\"16\">newest run of each goal; right of the line its figure meets the goal</text>\n"
    );
    for (mark, name) in [(0.25, "1/4"), (0.5, "1/2"), (1.0, "goal"), (2.0, "2 x"), (4.0, "4 x")] {
        let x = x_of(mark);
        let stroke = if name == "goal" { "#333" } else { "#ddd" };
        let _ = write!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{stroke}\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>\n",
            TOP - 8.0,
            TOP - 12.0
        );
    }
    let mut y = TOP;
    for (goal, at) in rows {
        y += ROW;
        row(&mut text, goal, at, y - ROW / 2.0);
    }
    text + "</svg>\n"
}

fn row(text: &mut String, goal: &Goal, at: f64, y: f64) {
    let ink = colour(goal.verdict());
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{ink}\">{}: {}</text>",
        LEFT - 10.0,
        y + 4.0,
        escape(&goal.place.label()),
        escape(&goal.claim)
    );
    let ends = goal.newest().and_then(|run| Some((run.low?, run.high?)));
    if let Some((low, high)) = ends
        && let (Some(from), Some(to)) = (share(goal, low), share(goal, high))
    {
        let _ = writeln!(
            text,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{ink}\" stroke-width=\"2\"/>",
            x_of(from),
            x_of(to)
        );
    }
    let _ = writeln!(text, "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{ink}\"/>", x_of(at));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_met_lies_right_of_the_line_in_both_directions() {
        let goal = |bound: &str| {
            let text = format!(
                "claim = \"a < b\"\ncommands = [\"x\"]\n\
                 goal = {{ kind = \"value\", unit = \"s\", {bound} }}\n[[run]]\ncommit = \"0123456\"\n\
                 date = 2026-11-25\nmachine = {{ cores = 2, kernel = \"6.1\", load = \"quiet\" }}\n\
                 value = 3\nverdict = \"reached\"\n"
            );
            Goal::parse("docs/evidence/1/1-a.toml", &text).expect("a record")
        };
        assert_eq!(share(&goal("at_least = 2"), 3.0), Some(1.5));
        assert_eq!(share(&goal("at_most = 6"), 3.0), Some(2.0));
        assert_eq!(share(&goal("at_most = 6"), 0.0), None);
        assert!(x_of(1.5) > x_of(1.0) && x_of(100.0) <= LEFT + WIDTH);
        let made = svg(&[goal("at_most = 6")]);
        assert!(made.contains("a &lt; b") && made.ends_with("</svg>\n"));
    }
}
