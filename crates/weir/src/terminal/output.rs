//! Standard output: listings for people and for programs; and what is said on standard error. A reader that has gone
//! away ends no work.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::pin::pin;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use weir_node::size::human;

use crate::terminal::failure::Failure;

/// Writes a line to standard error. What cannot be written is left out, where `eprintln!` panics: a server, or a
/// deletion in its middle, must not end because nobody reads what it says.
macro_rules! say {
    ($($line:tt)*) => {
        $crate::terminal::output::write_line(format_args!($($line)*))
    };
}

/// The same about work that goes on. Programs are not told: they read an error there, and nothing else.
macro_rules! say_of_work {
    ($($line:tt)*) => {
        if !$crate::terminal::form::is_for_programs() {
            $crate::terminal::output::write_line(format_args!($($line)*));
        }
    };
}

pub(crate) use {say, say_of_work};

/// What [`say`] does.
pub(crate) fn write_line(line: Arguments<'_>) {
    // In one piece, so that lines of several threads and processes do not mix.
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// How a bar or a spinner looks.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this program are well formed")
}

/// How often a line says how far work is where no bar can be drawn.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Does what a bar shows. Where no bar can be drawn, as in a log, lines say how far it is: who sees nothing for long
/// takes it for stuck. `shows` is the part of the bar's template that says it.
pub(crate) async fn with_lines<T>(
    bar: &ProgressBar,
    shows: &str,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(LINE_INTERVAL, &mut work).await {
            Ok(done) => return done,
            Err(_) if bar.is_hidden() => {
                let far = line(shows, bar.position(), bar.length());
                say_of_work!("{}: {far}", bar.message());
            }
            Err(_) => {}
        }
    }
}

/// A template of a bar, filled in.
fn line(shows: &str, position: u64, length: Option<u64>) -> String {
    let Some(length) = length else { return "at work".to_owned() };
    shows
        .replace("{bytes}", &human(position))
        .replace("{total_bytes}", &human(length))
        .replace("{pos}", &position.to_string())
        .replace("{len}", &length.to_string())
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // `weir volume list | head -1` is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(format!("writing to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// A value as JSON, indented.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    made_json(serde_json::to_string_pretty(value))
}

/// Writes a value as JSON, with a line break at the end.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_made_json(serde_json::to_string_pretty(value))
}

/// Writes what was made JSON already, with a line break at the end.
pub(crate) fn print_made_json(json: serde_json::Result<String>) -> Result<(), Failure> {
    print(&format!("{}\n", made_json(json)?))
}

fn made_json(json: serde_json::Result<String>) -> Result<String, Failure> {
    json.map_err(|error| Failure::new(format!("writing JSON: {error}")))
}

/// Writes rows under headings, if there are any, without lines around them.
pub(crate) fn print_table(headings: &[&str], rows: Vec<Vec<String>>) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    if !headings.is_empty() {
        table.set_header(headings.iter().copied());
    }
    table.add_rows(rows);
    let lines = table.to_string();
    let text: String = lines.lines().map(|line| format!("{}\n", line.trim())).collect();
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_the_bar_would() {
        assert_eq!(line("{pos} of {len} objects", 3, Some(129)), "3 of 129 objects");
        assert_eq!(
            line("{bytes} of {total_bytes} copied", 1 << 20, Some(4 << 20)),
            "1.0 MiB of 4.0 MiB copied"
        );
        assert_eq!(line("{total_bytes} to go", 0, None), "at work");
    }
}
