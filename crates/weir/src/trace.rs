//! `weir trace`: what a block trace would come to.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use weir_log::{Merging, Replay, ReplayReport};
use weir_node::size::{Size, human};
use weir_trace::{Op, Request, TraceError};

use crate::cli::{OutputForm, TraceCommand, TraceShape};
use crate::failure::Failure;
use crate::output;

/// Runs the verb.
pub(crate) fn run(verb: TraceCommand) -> Result<ExitCode, Failure> {
    match verb {
        TraceCommand::Sim { file, generate, format, batch, output } => {
            let report = match (file, generate) {
                (Some(file), _) => {
                    let failed = |error: TraceError| Failure::new(error.to_string());
                    let trace = weir_trace::open(Path::new(&file), format).map_err(failed)?;
                    let form = trace.format().name();
                    sim(file.display().to_string(), form, trace, &batch).map_err(failed)?
                }
                (None, Some(shape)) => {
                    let (name, shape) = match shape {
                        TraceShape::Zipf => ("zipf", weir_trace::Shape::Zipf),
                        TraceShape::Holes => ("holes", weir_trace::Shape::Holes),
                    };
                    let requests = weir_trace::generate(shape).into_iter().map(Ok);
                    let simulated = sim(name.to_owned(), "generated", requests, &batch);
                    simulated.map_err(|error: TraceError| Failure::new(error.to_string()))?
                }
                (None, None) => return Err(Failure::usage("name a trace, or pass --generate")),
            };
            print(&report, output.output).map(|()| ExitCode::SUCCESS)
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    trace: String,
    format: &'static str,
    reads: u64,
    writes: u64,
    discards: u64,
    written_bytes: u64,
    batches: Vec<Line>,
}

/// What batches of one size come to.
#[derive(Serialize)]
struct Line {
    batch_bytes: u64,
    objects: u64,
    stored_bytes: u64,
    extents_without_merging: u64,
    extents: u64,
    map_bytes: u64,
    /// Part of the written bytes that merging spares the store, in thousandths.
    merged_permille: u64,
}

/// The disks of a trace, each a volume, with batches of one size, merged and not.
struct Pair {
    batch_bytes: u64,
    disks: BTreeMap<u64, [Replay; 2]>,
}

impl Pair {
    fn each(&mut self, device: u64, mut apply: impl FnMut(&mut Replay)) {
        let new = |merging| Replay::new(self.batch_bytes, merging);
        let pair =
            self.disks.entry(device).or_insert_with(|| [new(Merging::On), new(Merging::Off)]);
        pair.iter_mut().for_each(&mut apply);
    }

    fn finish(self) -> Line {
        let mut sums = [ReplayReport::default(); 2];
        for pair in self.disks.into_values() {
            for (sum, replay) in sums.iter_mut().zip(pair) {
                *sum += replay.finish();
            }
        }
        let [merged, plain] = sums;
        let spared = plain.stored_bytes - merged.stored_bytes;
        Line {
            batch_bytes: self.batch_bytes,
            objects: merged.objects,
            stored_bytes: merged.stored_bytes,
            extents_without_merging: plain.extents,
            extents: merged.extents,
            map_bytes: merged.map_bytes,
            merged_permille: (spared * 1000).checked_div(plain.stored_bytes).unwrap_or(0),
        }
    }
}

fn sim(
    trace: String,
    format: &'static str,
    requests: impl Iterator<Item = Result<Request, TraceError>>,
    batches: &[Size],
) -> Result<Report, TraceError> {
    let pair = |&Size(batch_bytes): &Size| Pair { batch_bytes, disks: BTreeMap::new() };
    let mut pairs: Vec<Pair> = batches.iter().map(pair).collect();
    let (mut reads, mut writes, mut discards, mut written_bytes) = (0, 0, 0, 0_u64);
    for request in requests {
        let Request { op, device, offset, len, .. } = request?;
        match op {
            Op::Read => reads += 1,
            Op::Flush => {}
            Op::Write => {
                writes += 1;
                written_bytes = written_bytes.saturating_add(len);
                pairs.iter_mut().for_each(|pair| pair.each(device, |disk| disk.write(offset, len)));
            }
            Op::Discard => {
                discards += 1;
                pairs
                    .iter_mut()
                    .for_each(|pair| pair.each(device, |disk| disk.discard(offset, len)));
            }
        }
    }
    let batches = pairs.into_iter().map(Pair::finish).collect();
    Ok(Report { trace, format, reads, writes, discards, written_bytes, batches })
}

fn print(report: &Report, form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(report);
    }
    let Report { trace, format, reads, writes, discards, written_bytes, .. } = report;
    let written = human(*written_bytes);
    output::print(&format!(
        "{trace} ({format}): {reads} reads, {discards} discards, {writes} writes of {written}\n\n"
    ))?;
    let row = |line: &Line| {
        let Line { extents_without_merging, extents, merged_permille, objects, .. } = line;
        vec![
            human(line.batch_bytes),
            objects.to_string(),
            human(line.stored_bytes),
            extents_without_merging.to_string(),
            extents.to_string(),
            human(line.map_bytes),
            format!("{}.{:03}", merged_permille / 1000, merged_permille % 1000),
        ]
    };
    let headings =
        ["BATCH", "OBJECTS", "STORED", "EXTENTS UNMERGED", "EXTENTS", "MAP", "MERGE RATIO"];
    output::print_table(&headings, report.batches.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shape: weir_trace::Shape, batch: u64) -> Report {
        let requests = weir_trace::generate(shape).into_iter().map(Ok);
        sim("generated".to_owned(), "generated", requests, &[Size(batch)]).unwrap()
    }

    #[test]
    fn merging_shows_where_few_blocks_are_written_again_and_again() {
        let (small, large) =
            (of(weir_trace::Shape::Zipf, 8 << 20), of(weir_trace::Shape::Zipf, 32 << 20));
        let distinct = |writes_per_batch| {
            let blocks: Vec<u64> =
                weir_trace::generate(weir_trace::Shape::Zipf).iter().map(|r| r.offset).collect();
            let batches = blocks.chunks(writes_per_batch);
            let kept =
                batches.map(|batch| batch.iter().collect::<std::collections::BTreeSet<_>>().len());
            kept.sum::<usize>() as u64
        };
        assert_eq!(small.batches[0].stored_bytes, distinct(2048) * 4096);
        assert_eq!(large.batches[0].stored_bytes, distinct(8192) * 4096);
        assert!(small.batches[0].merged_permille > 200, "{}", small.batches[0].merged_permille);
        assert!(large.batches[0].merged_permille > small.batches[0].merged_permille);
    }

    #[test]
    fn holes_make_two_extents_where_one_would_do() {
        let report = of(weir_trace::Shape::Holes, 8 << 20);
        let records = report.writes / 2;
        // The map counts an extent once per region of 512 KiB that it touches.
        let extents = report.batches[0].extents;
        assert!((2 * records..=2 * records + records / 10).contains(&extents), "{extents}");
        assert_eq!(report.batches[0].merged_permille, 0);
    }

    #[test]
    fn every_disk_of_a_trace_is_a_volume() {
        let write = |device, time_us| {
            let (op, offset, len) = (Op::Write, 0, 4096);
            Ok(Request { time_us, op, device, offset, len })
        };
        let requests = [write(0, 1), write(1, 2), write(0, 3)];
        let report = sim("t".to_owned(), "csv", requests.into_iter(), &[Size(1 << 20)]).unwrap();
        assert_eq!((report.writes, report.written_bytes), (3, 3 * 4096));
        assert_eq!((report.batches[0].objects, report.batches[0].stored_bytes), (2, 2 * 4096));
    }
}
