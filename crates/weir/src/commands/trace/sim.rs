//! `weir trace sim`: what the writes of a trace would come to as objects.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;
use weir_log::{Merging, Replay, ReplayReport};
use weir_node::size::{Size, human};
use weir_trace::{Op, Request, TraceError};

use super::memory::Memory;
use super::{failed, open};
use crate::cli::trace::{SimArgs, TraceShape};
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output;

/// Runs the verb.
pub(super) fn run(args: SimArgs) -> Result<(), Failure> {
    let SimArgs { file, generate, format, batch, memory, output } = args;
    let memory = Memory::new(&memory);
    let report = match (file, generate) {
        (Some(file), _) => {
            let trace = open(&file, format)?;
            let form = trace.format().name();
            sim(file.display().to_string(), form, trace, &batch, memory)?
        }
        (None, Some(shape)) => {
            let (name, shape) = match shape {
                TraceShape::Zipf => ("zipf", weir_trace::Shape::Zipf),
                TraceShape::Holes => ("holes", weir_trace::Shape::Holes),
            };
            let requests = weir_trace::generate(shape).into_iter().map(Ok);
            sim(name.to_owned(), "generated", requests, &batch, memory)?
        }
        (None, None) => return Err(Failure::usage("name a trace, or pass --generate")),
    };
    print(&report, output.output)
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
    extents_with_merging: u64,
    /// As a volume does it: with merging, and with small holes filled by the collector.
    extents: u64,
    map_bytes: u64,
    /// Bytes sent to the store, those of the collector included, by bytes written, in thousandths.
    amplification_without_merging_permille: u64,
    amplification_with_merging_permille: u64,
    amplification_permille: u64,
    /// Part of the written bytes that merging spares the store, in thousandths.
    merged_permille: u64,
}

/// The disks of a trace, each a volume, with batches of one size: plain, merged, and with plugged holes.
struct Column {
    batch_bytes: u64,
    disks: BTreeMap<u64, [Replay; 3]>,
    is_spent: Rc<dyn Fn() -> bool>,
}

impl Column {
    fn each(&mut self, device: u64, mut apply: impl FnMut(&mut Replay)) {
        let (batch_bytes, is_spent) = (self.batch_bytes, &self.is_spent);
        let new = |merging| Replay::new(batch_bytes, merging).until(Rc::clone(is_spent));
        let all = [Merging::Off, Merging::On, Merging::Plugging];
        let disk = self.disks.entry(device).or_insert_with(|| all.map(new));
        disk.iter_mut().for_each(&mut apply);
    }

    /// Makes objects of what is left.
    fn close(&mut self) {
        self.disks.values_mut().flatten().for_each(Replay::close);
    }

    fn finish(self, written_bytes: u64) -> Line {
        let mut sums = [ReplayReport::default(); 3];
        for column in self.disks.into_values() {
            for (sum, replay) in sums.iter_mut().zip(column) {
                *sum += replay.finish();
            }
        }
        let [plain, merged, plugged] = sums;
        let amplification = |report: &ReplayReport| {
            let sent = report.stored_bytes + report.collected_bytes;
            (sent * 1000).checked_div(written_bytes).unwrap_or(0)
        };
        let spared = plain.stored_bytes - merged.stored_bytes;
        Line {
            batch_bytes: self.batch_bytes,
            objects: plugged.objects,
            stored_bytes: merged.stored_bytes,
            extents_without_merging: plain.extents,
            extents_with_merging: merged.extents,
            extents: plugged.extents,
            map_bytes: plugged.map_bytes,
            amplification_without_merging_permille: amplification(&plain),
            amplification_with_merging_permille: amplification(&merged),
            amplification_permille: amplification(&plugged),
            merged_permille: (spared * 1000).checked_div(plain.stored_bytes).unwrap_or(0),
        }
    }
}

fn sim(
    trace: String,
    format: &'static str,
    requests: impl Iterator<Item = Result<Request, TraceError>>,
    batches: &[Size],
    mut memory: Memory,
) -> Result<Report, Failure> {
    let is_spent: Rc<dyn Fn() -> bool> = Rc::new(memory.is_spent());
    let column = |&Size(batch_bytes): &Size| {
        let (disks, is_spent) = (BTreeMap::new(), Rc::clone(&is_spent));
        Column { batch_bytes, disks, is_spent }
    };
    let mut columns: Vec<Column> = batches.iter().map(column).collect();
    let (mut reads, mut writes, mut discards, mut written_bytes) = (0, 0, 0, 0_u64);
    for request in requests {
        let Request { op, device, offset, len, .. } = request.map_err(failed)?;
        match op {
            Op::Read => reads += 1,
            Op::Flush => {}
            Op::Write => {
                writes += 1;
                written_bytes = written_bytes.saturating_add(len);
                columns
                    .iter_mut()
                    .for_each(|column| column.each(device, |disk| disk.write(offset, len)));
            }
            Op::Discard => {
                discards += 1;
                columns
                    .iter_mut()
                    .for_each(|column| column.each(device, |disk| disk.discard(offset, len)));
            }
        }
        memory.after(if op == Op::Write { len } else { 0 })?;
    }
    columns.iter_mut().for_each(Column::close);
    memory.within()?;
    let batches = columns.into_iter().map(|column| column.finish(written_bytes)).collect();
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
    let thousandths = |permille: u64| format!("{}.{:03}", permille / 1000, permille % 1000);
    let row = |line: &Line| {
        vec![
            human(line.batch_bytes),
            line.objects.to_string(),
            human(line.stored_bytes),
            line.extents_without_merging.to_string(),
            line.extents_with_merging.to_string(),
            line.extents.to_string(),
            thousandths(line.amplification_without_merging_permille),
            thousandths(line.amplification_with_merging_permille),
            thousandths(line.amplification_permille),
            thousandths(line.merged_permille),
        ]
    };
    let headings = [
        "BATCH",
        "OBJECTS",
        "STORED",
        "EXTENTS: PLAIN",
        "MERGED",
        "PLUGGED",
        "WAF: PLAIN",
        "MERGED",
        "PLUGGED",
        "MERGE RATIO",
    ];
    output::print_table(&headings, report.batches.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::trace::MemoryLimit;

    /// Writes of the Zipf trace that are replayed: enough to show what is asked, few enough for a slow build.
    const WRITES: usize = 50_000;

    fn memory() -> Memory {
        Memory::new(&MemoryLimit { memory_limit: Size(4 << 30) })
    }

    fn of(shape: weir_trace::Shape, batch: u64) -> Report {
        let writes = if shape == weir_trace::Shape::Zipf { WRITES } else { usize::MAX };
        let requests = weir_trace::generate(shape).into_iter().take(writes).map(Ok);
        sim("generated".to_owned(), "generated", requests, &[Size(batch)], memory()).unwrap()
    }

    #[test]
    fn merging_shows_where_few_blocks_are_written_again_and_again() {
        let (small, large) =
            (of(weir_trace::Shape::Zipf, 8 << 20), of(weir_trace::Shape::Zipf, 32 << 20));
        let distinct = |writes_per_batch| {
            let writes = weir_trace::generate(weir_trace::Shape::Zipf).into_iter().take(WRITES);
            let blocks: Vec<u64> = writes.map(|request| request.offset).collect();
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
    fn holes_make_two_extents_where_one_would_do_until_they_are_plugged() {
        let report = of(weir_trace::Shape::Holes, 8 << 20);
        let records = report.writes / 3;
        let line = &report.batches[0];
        // The map counts an extent once per region of 512 KiB that it touches.
        let merged = line.extents_with_merging;
        assert!((2 * records..=2 * records + records / 10).contains(&merged), "{merged}");
        assert!(line.extents < merged / 2, "{} of {merged}", line.extents);
        let (plain, plugged) =
            (line.amplification_with_merging_permille, line.amplification_permille);
        assert!(plain > 1000 && plugged < plain * 11 / 10, "{plugged} after {plain}");
    }

    /// A replay that ended early has counted a part of the trace: that is no report.
    #[test]
    fn what_takes_too_much_memory_at_its_end_is_no_report() {
        let write = Request { time_us: 0, op: Op::Write, device: 0, offset: 0, len: 4096 };
        let little = Memory::new(&MemoryLimit { memory_limit: Size(1) });
        let ended = sim("t".to_owned(), "csv", [Ok(write)].into_iter(), &[Size(1 << 20)], little);
        let error = ended.err().expect("it has taken more");
        assert!(error.message().contains("more than the 1 B it may"), "{}", error.message());
    }

    #[test]
    fn every_disk_of_a_trace_is_a_volume() {
        let write = |device, time_us| {
            let (op, offset, len) = (Op::Write, 0, 4096);
            Ok(Request { time_us, op, device, offset, len })
        };
        let requests = [write(0, 1), write(1, 2), write(0, 3)];
        let report =
            sim("t".to_owned(), "csv", requests.into_iter(), &[Size(1 << 20)], memory()).unwrap();
        assert_eq!((report.writes, report.written_bytes), (3, 3 * 4096));
        assert_eq!((report.batches[0].objects, report.batches[0].stored_bytes), (2, 2 * 4096));
    }
}
