//! The one list of exceptions, which may only shrink.

use crate::Finding;
use crate::source::Measure;

const FILE: &str = "tools/tidy/exceptions.txt";

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exception {
    rule: String,
    place: String,
    value: usize,
    line: usize,
}

/// Reads the list; malformed lines are findings.
pub(crate) fn parse(text: &str) -> (Vec<Exception>, Vec<Finding>) {
    let mut list = Vec::new();
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [rule, place, value] if value.parse::<usize>().is_ok() => list.push(Exception {
                rule: (*rule).to_owned(),
                place: (*place).to_owned(),
                value: value.parse().unwrap_or(0),
                line: index + 1,
            }),
            _ => findings.push(Finding::new(
                FILE,
                index + 1,
                "exceptions",
                "expected <rule> <place> <value>".to_owned(),
            )),
        }
    }
    (list, findings)
}

/// Measures beyond their limit that no exception allows, and exceptions that allow more than is needed.
pub(crate) fn judge(measures: &[Measure], list: &[Exception], max: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let allowed = |m: &Measure| {
        let entry = list.iter().find(|e| e.rule == m.rule && e.place == m.place);
        entry.map_or(m.limit, |e| e.value)
    };
    for m in measures.iter().filter(|m| m.value > allowed(m)) {
        let file = m.place.split("::").next().unwrap_or(&m.place);
        let (place, value, what) = (&m.place, m.value, &m.what);
        let message = format!("{place}: {value}, {} are allowed, of {what}", allowed(m));
        findings.push(Finding::new(file, m.line, m.rule, message));
    }
    for entry in list {
        let needed = measures
            .iter()
            .filter(|m| m.rule == entry.rule && m.place == entry.place && m.value > m.limit)
            .map(|m| m.value)
            .max();
        let message = match needed {
            Some(value) if value == entry.value => continue,
            Some(value) if value > entry.value => continue,
            Some(value) => format!("{} needs {value} only: lower it", entry.place),
            None => format!("{} needs no exception any more: remove it", entry.place),
        };
        findings.push(Finding::new(FILE, entry.line, "exceptions", message));
    }
    if list.len() > max {
        let message =
            format!("{} exceptions, {max} are allowed: the list may only shrink", list.len());
        findings.push(Finding::new(FILE, 0, "exceptions", message));
    }
    if list.len() < max {
        let message = format!("{} exceptions: lower EXCEPTIONS_MAX from {max}", list.len());
        findings.push(Finding::new(FILE, 0, "exceptions", message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(value: usize) -> Measure {
        let (place, what) = ("a.rs".to_owned(), "lines".to_owned());
        Measure { rule: "line-count", place, line: 0, value, limit: 800, what }
    }

    #[test]
    fn an_exception_allows_exactly_what_it_says() {
        let (list, broken) = parse("# comment\n\nline-count a.rs 900\n");
        assert!(broken.is_empty());
        assert!(judge(&[measure(900)], &list, 1).is_empty());
        assert_eq!(judge(&[measure(901)], &list, 1).len(), 1);
        assert_eq!(judge(&[measure(850)], &list, 1).len(), 1);
        assert_eq!(judge(&[measure(10)], &list, 1).len(), 1);
    }

    #[test]
    fn the_list_may_only_shrink() {
        let (list, _) = parse("line-count a.rs 900\n");
        assert_eq!(judge(&[measure(900)], &list, 0).len(), 1);
        assert_eq!(judge(&[measure(900)], &list, 2).len(), 1);
        assert_eq!(parse("line-count a.rs").1.len(), 1);
    }
}
