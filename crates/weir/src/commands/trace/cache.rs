//! `weir trace cache`: what a cache on the local disk would have of a trace.

use std::path::Path;

use serde::Serialize;
use weir_cache::policy::Weights;
use weir_cache::replay::{Cache, Policy};
use weir_cache::{BAND_BYTES, DEVICE_BYTES_MAX, DEVICES_MAX, Geometry, Use, tune};
use weir_node::size::human;
use weir_trace::{Format, Op};

use super::memory::Memory;
use super::touched::Touched;
use super::{failed, open};
use crate::cli::trace::{CacheArgs, CacheSize};
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say_of_work};

/// Bytes of memory for a band of a cache that is replayed, at most: its slot, the index, and what the policy notes.
const TABLE_BYTES: u64 = 64;

/// Runs the verb.
pub(super) fn run(args: &CacheArgs) -> Result<(), Failure> {
    let mut memory = Memory::new(&args.memory);
    let mut load = |file| Loaded::read(file, args.format, &mut memory);
    let traces = args.files.iter().map(|file| load(file)).collect::<Result<Vec<_>, _>>()?;
    let mut weights = args.weights.unwrap_or(Weights::DEFAULT);
    if args.tune {
        weights = tuned(&traces, &args.size, weights, &mut memory)?;
    }
    let policies: &[Policy] = match args.policy.as_slice() {
        [] if args.tune => &[Policy::SixFactor],
        [] => &Policy::ALL,
        named => named,
    };
    let mut of_trace = |trace: &Loaded| trace.report(&args.size, policies, weights, &mut memory);
    let report = Report {
        weights: weights.to_array(),
        traces: traces.iter().map(&mut of_trace).collect::<Result<_, _>>()?,
    };
    if args.output.output == OutputForm::Json {
        output::print_json(&report)
    } else {
        print(&report)
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    /// Of the six factors, in the order of `--weights`.
    weights: [f64; Weights::COUNT],
    traces: Vec<OfTrace>,
}

/// One trace.
#[derive(Serialize)]
struct OfTrace {
    trace: String,
    format: &'static str,
    requests: u64,
    /// Bytes of the bands that it touches.
    touched_bytes: u64,
    caches: Vec<Line>,
}

/// One cache.
#[derive(Serialize)]
struct Line {
    /// Bytes of its bands.
    size_bytes: u64,
    policy: &'static str,
    /// Blocks that were asked for, and those of them that were there.
    blocks: u64,
    hits: u64,
    hits_ppm: u64,
    /// Bands that made room, or blocks without bands.
    evictions: u64,
    /// Blocks that were not taken in.
    refused: u64,
    sequential_permille: Option<u64>,
}

/// A request that reads or writes.
struct Request {
    device: u32,
    offset: u64,
    len: u64,
    use_: Use,
}

/// A trace in memory: it is replayed again and again.
struct Loaded {
    name: String,
    format: &'static str,
    requests: Vec<Request>,
    bands: u64,
}

impl Loaded {
    fn read(file: &Path, format: Option<Format>, memory: &mut Memory) -> Result<Self, Failure> {
        let trace = open(file, format)?;
        let (name, format) = (file.display().to_string(), trace.format().name());
        let (mut requests, mut bands) = (Vec::new(), Touched::default());
        for (request, number) in trace.zip(1_u64..) {
            let request = request.map_err(failed)?;
            let use_ = match request.op {
                Op::Read => Use::Read,
                Op::Write => Use::Write,
                Op::Discard | Op::Flush => continue,
            };
            let end = request.offset.checked_add(request.len);
            let device = u32::try_from(request.device).ok().filter(|device| *device < DEVICES_MAX);
            let (Some(end), Some(device)) = (end.filter(|end| *end <= DEVICE_BYTES_MAX), device)
            else {
                return Err(Failure::new(format!(
                    "{name}: request {number} is beyond what a cache can hold: 128 PiB of each of {DEVICES_MAX} disks"
                )));
            };
            let (offset, len) = (request.offset, request.len);
            bands.add(device, offset / BAND_BYTES..end.div_ceil(BAND_BYTES));
            requests.push(Request { device, offset, len, use_ });
            memory.after(len)?;
        }
        if requests.is_empty() {
            return Err(Failure::new(format!("{name}: nothing is read or written in this trace")));
        }
        Ok(Self { name, format, requests, bands: bands.bands() })
    }

    fn geometry(&self, size: CacheSize) -> Geometry {
        Geometry::of_bands(match size {
            CacheSize::Bytes(bytes) => bytes / BAND_BYTES,
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "a share of a number of bands that fit memory"
            )]
            CacheSize::Percent(percent) => (self.bands as f64 * percent / 100.0) as u64,
        })
    }

    fn replay(
        &self,
        policy: Policy,
        geometry: Geometry,
        weights: Weights,
        memory: &mut Memory,
    ) -> Result<Box<dyn Cache>, Failure> {
        if policy != Policy::Blocks {
            let size = human(geometry.bands() * BAND_BYTES);
            memory.room_for(geometry.bands() * TABLE_BYTES, &format!("a cache of {size}"))?;
        }
        let mut cache = policy.cache(geometry, weights);
        for Request { device, offset, len, use_ } in &self.requests {
            match cache.growth_bytes(*len) {
                0 => {}
                more_bytes => memory.room_for(more_bytes, "the replay")?,
            }
            cache.request(*device, *offset, *len, *use_);
            memory.after(*len)?;
        }
        Ok(cache)
    }

    fn report(
        &self,
        sizes: &[CacheSize],
        policies: &[Policy],
        weights: Weights,
        memory: &mut Memory,
    ) -> Result<OfTrace, Failure> {
        let geometries = sizes.iter().map(|size| self.geometry(*size));
        let all =
            geometries.flat_map(|geometry| policies.iter().map(move |policy| (geometry, *policy)));
        let caches = all.map(|(geometry, policy)| {
            let cache = self.replay(policy, geometry, weights, memory)?;
            let counts = cache.counts();
            Ok(Line {
                size_bytes: geometry.bands() * BAND_BYTES,
                policy: policy.name(),
                blocks: counts.blocks,
                hits: counts.hits,
                hits_ppm: counts.hits_ppm(),
                evictions: counts.evictions,
                refused: counts.refused,
                sequential_permille: cache.sequential_permille(),
            })
        });
        Ok(OfTrace {
            trace: self.name.clone(),
            format: self.format,
            requests: self.requests.len() as u64,
            touched_bytes: self.bands * BAND_BYTES,
            caches: caches.collect::<Result<_, Failure>>()?,
        })
    }
}

/// The weights that have the most hits, each trace and size counting alike.
fn tuned(
    traces: &[Loaded],
    sizes: &[CacheSize],
    start: Weights,
    memory: &mut Memory,
) -> Result<Weights, Failure> {
    let caches = u32::try_from(traces.len() * sizes.len()).expect("few traces and sizes");
    let (mut tried, mut failure) = (0, None);
    let mut sum_of_hits = |weights: Weights| {
        let mut sum = 0.0;
        for (trace, size) in
            traces.iter().flat_map(|trace| sizes.iter().map(move |size| (trace, *size)))
        {
            let geometry = trace.geometry(size);
            let cache = trace.replay(Policy::SixFactor, geometry, weights, memory)?;
            let hits_ppm = u32::try_from(cache.counts().hits_ppm()).expect("at most a million");
            sum += f64::from(hits_ppm) / 10_000.0;
        }
        Ok::<_, Failure>(sum)
    };
    let judge = |weights: Weights| {
        if failure.is_some() {
            return 0.0;
        }
        let mean = match sum_of_hits(weights) {
            Ok(sum) => sum / f64::from(caches),
            Err(error) => {
                failure = Some(error);
                return 0.0;
            }
        };
        tried += 1;
        say_of_work!("{tried}: {} have {mean:.3} % of the blocks", shown(weights.to_array()));
        mean
    };
    let (best, mean) = tune(start, judge);
    if let Some(failure) = failure {
        return Err(failure);
    }
    say_of_work!("best: {} have {mean:.3} %", shown(best.to_array()));
    Ok(best)
}

fn shown(weights: [f64; Weights::COUNT]) -> String {
    weights.map(|weight| weight.to_string()).join(",")
}

fn print(report: &Report) -> Result<(), Failure> {
    output::print(&format!("weights of the six factors: {}\n", shown(report.weights)))?;
    for trace in &report.traces {
        let OfTrace { trace, format, requests, touched_bytes, caches } = trace;
        let touched = human(*touched_bytes);
        output::print(&format!(
            "\n{trace} ({format}): {requests} requests, bands of {touched}\n\n"
        ))?;
        let percent = |ppm: u64| format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100);
        let row = |line: &Line| {
            vec![
                human(line.size_bytes),
                line.policy.to_owned(),
                percent(line.hits_ppm),
                line.evictions.to_string(),
                line.sequential_permille
                    .map_or("-".to_owned(), |permille| percent(permille * 1000)),
            ]
        };
        let headings = ["SIZE", "POLICY", "HITS", "EVICTIONS", "SEQUENTIAL"];
        output::print_table(&headings, caches.iter().map(row).collect())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use weir_node::size::Size;

    use super::*;
    use crate::cli::trace::MemoryLimit;

    /// A table takes its new memory at once, and between two looks at what the process has: it is asked for before.
    #[test]
    fn a_table_that_has_no_room_to_grow_ends_the_replay() {
        let requests = vec![Request { device: 0, offset: 0, len: 4096, use_: Use::Write }];
        let trace = Loaded { name: "t".to_owned(), format: "csv", requests, bands: 1 };
        let geometry = trace.geometry(CacheSize::Bytes(BAND_BYTES));
        let replay = |memory_limit| {
            let mut memory = Memory::new(&MemoryLimit { memory_limit });
            trace.replay(Policy::Blocks, geometry, Weights::DEFAULT, &mut memory).map(drop)
        };
        replay(Size(1 << 40)).expect("there is room");
        let error = replay(Size(1)).expect_err("there is none");
        assert!(error.message().contains("more than the 1 B it may"), "{}", error.message());
    }
}
