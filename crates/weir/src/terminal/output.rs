//! Standard output: listings for people and for programs. A reader that has gone away ends the command quietly.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::ProgressStyle;
use serde::Serialize;

use crate::terminal::failure::Failure;

/// How a bar or a spinner looks.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this program are well formed")
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

/// Writes a value as JSON, indented, with a line break at the end.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("writing JSON: {error}")))?;
    print(&format!("{text}\n"))
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
