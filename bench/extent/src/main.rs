//! Measures the extent map beside `BTreeMap` and `rangemap`: thread CPU time, and bytes by a counting allocator.
//!
//! `cargo run --release -p weir-bench-extent -- [extents] [map...] [128GiB...]`, by default 10 million and all;
//! `--record` adds what it found to the records (docs/evidence);
//! `-- [extents] pieces` measures the encoding alone.
#![allow(unsafe_code, reason = "a counting allocator is an unsafe trait")]
#![allow(clippy::print_stdout, reason = "this program's product is a table on standard output")]

mod discard;
mod heap;
mod maps;
mod record;
mod work;

use std::hint::black_box;

use weir_extent::ExtentMap;

use crate::maps::{Map, Ranges, Tree};
use crate::work::{Dice, Work, cpu_ns};

const OPERATIONS: u64 = 3_000_000;

fn main() {
    let mut count = 10_000_000;
    let mut names = Vec::new();
    let mut works = Vec::new();
    let load = record::load();
    let mut recording = false;
    for argument in std::env::args().skip(1) {
        if argument == "--record" {
            recording = true;
            continue;
        }
        match argument.parse() {
            Ok(number) => count = number,
            Err(_) if argument.contains("iB") => works.push(argument),
            Err(_) => names.push(argument),
        }
    }
    if names.iter().any(|name| name == "pieces") {
        return discard::measure_pieces(count);
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    println!("{count} extents; ns of thread CPU time per operation; bytes by a counting allocator");
    println!("one load that waits for the one before, from 128 MiB: {} ns", work::load_ns());
    println!("look-up: existing extents, independent | chained: each waits for the one before");
    println!("update: overwrites an existing extent | insert: anywhere, mostly new\n");
    println!(
        "{:<30} {:<12} {:>9} {:>7} {:>7} {:>8} {:>7} {:>7} {:>9}",
        "work", "map", "extents", "fill", "look-up", "chained", "update", "insert", "B/extent"
    );
    let mut figures = record::Figures::default();
    for work in [Work::Blocks128GiB, Work::Bytes32GiB, Work::Blocks16TiB] {
        if !works.is_empty()
            && !works.iter().any(|wanted| work.name().replace(" ", "").contains(wanted.as_str()))
        {
            continue;
        }
        if wanted(ExtentMap::NAME) {
            let own = measure::<ExtentMap>(work, count);
            figures.found.extend(own.of_goals(work));
        }
        if wanted(Tree::NAME) {
            measure::<Tree>(work, count);
        }
        if wanted(Ranges::NAME) {
            measure::<Ranges>(work, count);
        }
    }
    if wanted(ExtentMap::NAME) && works.is_empty() {
        println!();
        discard::measure(count);
    }
    if recording {
        record::record(&figures, count, &load);
    }
}

/// What a map did, in nanoseconds and tenths of a byte.
struct Measured {
    lookup: u64,
    update: u64,
    tenths_per_extent: u64,
}

impl Measured {
    /// The measures of docs/evidence, with their figures.
    fn of_goals(&self, work: Work) -> Vec<(String, String)> {
        let name = match work {
            Work::Blocks128GiB => "aligned",
            Work::Bytes32GiB => "unaligned",
            Work::Blocks16TiB => "sparse",
        };
        let bytes = format!("{}.{}", self.tenths_per_extent / 10, self.tenths_per_extent % 10);
        let mut found = vec![(format!("extent:bytes-{name}"), bytes)];
        if work == Work::Blocks128GiB {
            found.push(("extent:look-up".to_owned(), self.lookup.to_string()));
            found.push(("extent:update".to_owned(), self.update.to_string()));
        }
        found
    }
}

fn per(total: u64, count: u64) -> u64 {
    total / count.max(1)
}

fn measure<M: Map>(work: Work, count: u64) -> Measured {
    let heap_before = heap::live_bytes();
    let mut map = M::new();
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let start = cpu_ns();
    let mut filled = 0;
    while filled < count || (work == Work::Bytes32GiB && map.extents() < count) {
        let (offset, len) = work.extent(filled, &mut dice);
        map.insert(offset, len, dice.address());
        filled += 1;
    }
    let fill = per(cpu_ns() - start, filled);
    let extents = map.extents();
    let bytes = heap::live_bytes() - heap_before;

    let mut hits = 0;
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        let (offset, _) = work.extent(dice.roll(filled), &mut dice);
        hits += u64::from(black_box(map.lookup(offset)).is_some());
    }
    let lookup = per(cpu_ns() - start, OPERATIONS);
    assert!(hits > OPERATIONS / 4, "look-ups mostly hit");

    let mut chain = 0;
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        let (offset, _) = work.extent(dice.roll(filled) ^ (chain >> 60), &mut dice);
        chain = map.lookup(offset).unwrap_or(0);
    }
    black_box(chain);
    let chained = per(cpu_ns() - start, OPERATIONS);

    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        let (offset, len) = work.extent(dice.roll(filled), &mut dice);
        black_box(map.insert(offset, len, dice.address()));
    }
    let update = per(cpu_ns() - start, OPERATIONS);

    let start = cpu_ns();
    for step in 0..OPERATIONS / 3 {
        let (offset, len) = work.extent(filled + step, &mut dice);
        black_box(map.insert(offset, len, dice.address()));
    }
    let insert = per(cpu_ns() - start, OPERATIONS / 3);
    let tenths = u64::try_from(bytes).expect("u64 holds a usize") * 10 / extents;
    println!(
        "{:<30} {:<12} {:>9} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7}.{}",
        work.name(),
        M::NAME,
        extents,
        fill,
        lookup,
        chained,
        update,
        insert,
        tenths / 10,
        tenths % 10
    );
    Measured { lookup, update, tenths_per_extent: tenths }
}
