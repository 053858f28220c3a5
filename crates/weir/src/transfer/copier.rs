//! The copying itself: range after range by `qemu-img`, each durable and written down before the next.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::Value;
use weir_node::size::human;

use super::qemu::{self, Piece};
use crate::process::signals::{SIGNAL_BASE, Signals};
use crate::terminal::failure::Failure;
use crate::terminal::output::{self, say_of_work};

/// The smallest range, and the first one, in bytes.
const RANGE_BYTES_MIN: u64 = 64 << 20;

/// The largest range in bytes: what is copied again at most after a crash.
const RANGE_BYTES_MAX: u64 = 16 << 30;

/// A range that took less is followed by one of twice its length: starting a program costs time, holes do not.
const RANGE_SHORT: Duration = Duration::from_secs(2);

/// A range that took longer is followed by one of half its length.
const RANGE_LONG: Duration = Duration::from_secs(15);

/// How often a line says how far it is where no bar can be drawn.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A copy of a whole disk.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) source: Value,
    /// Bytes of the source; the target is zeroed from there on.
    pub(super) source_bytes: u64,
    pub(super) target: Value,
    /// Bytes of the target.
    pub(super) target_bytes: u64,
    /// The target was blank before, and zeroes need not be written.
    pub(super) target_is_zero: bool,
    /// Bytes that are there already.
    pub(super) done_bytes: u64,
    /// What is done to what, as "importing disk.qcow2".
    pub(super) label: String,
}

/// Where the next range ends.
fn range_end(offset: u64, len: u64, source_bytes: u64, target_bytes: u64) -> u64 {
    let boundary = if offset < source_bytes { source_bytes } else { target_bytes };
    (offset + len).min(boundary)
}

fn next_len(len: u64, took: Duration) -> u64 {
    let next = match took {
        _ if took < RANGE_SHORT => len * 2,
        _ if took > RANGE_LONG => len / 2,
        _ => len,
    };
    next.clamp(RANGE_BYTES_MIN, RANGE_BYTES_MAX)
}

/// Copies what is not there yet. `on_range` hears of the bytes that are copied after every range; it makes them durable
/// and writes that down. A signal ends the copy.
pub(super) async fn run(
    job: &Job,
    signals: &mut Signals,
    mut on_range: impl AsyncFnMut(u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut shown = Shown::new(job);
    let zeroes = qemu::zeroes_node();
    let (mut offset, mut len) = (job.done_bytes, RANGE_BYTES_MIN);
    // Behind the end of the source there is nothing to do on a blank target.
    let end = if job.target_is_zero { job.source_bytes } else { job.target_bytes };
    while offset < end {
        let range_end = range_end(offset, len, job.source_bytes, job.target_bytes);
        let piece = Piece {
            source: if offset < job.source_bytes { &job.source } else { &zeroes },
            target: &job.target,
            offset,
            len: range_end - offset,
            target_is_zero: job.target_is_zero,
        };
        let began = Instant::now();
        let convert = qemu::convert(piece, |part| shown.update(offset, piece.len, part));
        let converted = tokio::select! {
            biased;
            number = signals.next() => return Err(interrupted(number)),
            converted = convert => converted,
        };
        converted.map_err(|why| {
            Failure::new(format!("{}: bytes {offset} to {range_end}: {why}", job.label))
        })?;
        on_range(range_end).await?;
        len = next_len(len, began.elapsed());
        offset = range_end;
        shown.update(offset, 0, 0.0);
    }
    Ok(())
}

pub(super) fn interrupted(signal: i32) -> Failure {
    Failure::new("stopped by a signal")
        .with_code(u8::try_from(SIGNAL_BASE + signal).unwrap_or(u8::MAX))
}

/// How far it is, on a terminal or in lines.
struct Shown {
    bar: ProgressBar,
    label: String,
    total: u64,
    last_line: Instant,
}

impl Shown {
    fn new(job: &Job) -> Self {
        let bar = ProgressBar::new(job.target_bytes).with_message(job.label.clone());
        bar.set_style(output::style(
            "{spinner} {msg}: {binary_bytes} of {binary_total_bytes}, {eta} to go",
        ));
        bar.set_position(job.done_bytes);
        bar.reset_eta();
        let (label, total) = (job.label.clone(), job.target_bytes);
        Self { bar, label, total, last_line: Instant::now() }
    }

    fn update(&mut self, offset: u64, len: u64, part: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of a length, for people"
        )]
        let position = offset + (len as f64 * part) as u64;
        self.bar.set_position(position);
        if self.bar.is_hidden() && self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            say_of_work!("{}: {} of {}", self.label, human(position), human(self.total));
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_the_source_does() {
        assert_eq!(range_end(0, 100, 250, 400), 100);
        assert_eq!(range_end(200, 100, 250, 400), 250);
        assert_eq!(range_end(250, 100, 250, 400), 350);
        assert_eq!(range_end(350, 100, 250, 400), 400);
    }

    #[test]
    fn ranges_grow_over_holes_and_shrink_where_it_is_slow() {
        let [short, middle, long] = [1, 5, 20].map(Duration::from_secs);
        assert_eq!(next_len(RANGE_BYTES_MIN, short), 2 * RANGE_BYTES_MIN);
        assert_eq!(next_len(RANGE_BYTES_MAX, short), RANGE_BYTES_MAX);
        assert_eq!(next_len(4 * RANGE_BYTES_MIN, middle), 4 * RANGE_BYTES_MIN);
        assert_eq!(next_len(4 * RANGE_BYTES_MIN, long), 2 * RANGE_BYTES_MIN);
        assert_eq!(next_len(RANGE_BYTES_MIN, long), RANGE_BYTES_MIN);
    }
}
