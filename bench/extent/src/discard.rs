//! Discards of whole volumes, and checkpoint pieces.

use weir_extent::{ExtentMap, PIECE_BYTES, STEP_BUDGET, Target};

use crate::work::{Dice, Work, cpu_ns};

const VOLUME_BYTES: u64 = 16 << 40;

/// Discards 16 TiB step by step; prints the total and the longest step.
fn discard(name: &str, map: &mut ExtentMap) {
    let extents = map.extents();
    let mut at = 0;
    let mut steps = 0;
    let mut longest = 0;
    let mut displaced = 0_u64;
    let start = cpu_ns();
    let mut before = start;
    while at < VOLUME_BYTES {
        at += map.remove_step(at, VOLUME_BYTES - at, STEP_BUDGET, |gone| displaced += gone.len);
        let now = cpu_ns();
        longest = longest.max(now - before);
        before = now;
        steps += 1;
    }
    println!(
        "{name:<44} {extents:>9} extents {:>9} us total {steps:>6} steps {:>6} us longest",
        (before - start) / 1000,
        longest / 1000
    );
    assert!(map.extents() == 0, "nothing is left");
}

fn filled(work: Work, count: u64) -> ExtentMap {
    let mut map = ExtentMap::new();
    let mut dice = Dice(99);
    for number in 0..count {
        let (offset, len) = work.extent(number, &mut dice);
        map.insert(offset, len, Target::Linear(dice.address()), |_| {});
    }
    map
}

/// Prints the discard figures, then the piece figures.
pub(crate) fn measure(count: u64) {
    println!("discard of 16 TiB in steps of {STEP_BUDGET} units");
    let mut map = ExtentMap::new();
    discard("blank volume", &mut map);
    map.insert(VOLUME_BYTES - 4096, 4096, Target::Linear(0), |_| {});
    for piece in 0..VOLUME_BYTES / PIECE_BYTES {
        map.insert(piece * PIECE_BYTES, PIECE_BYTES, Target::Fixed(0), |_| {});
    }
    discard("zeroed piece by piece", &mut map);
    discard("blank again", &mut map);
    for chunk in 0..VOLUME_BYTES >> 22 {
        map.insert(chunk << 22, 4 << 20, Target::Linear((chunk * 7919 % (1 << 33)) << 22), |_| {});
    }
    println!("  16 TiB in 4 MiB extents: {} bytes per TiB of map", map.heap_bytes() / 16);
    discard("full, in 4 MiB extents", &mut map);
    discard("4 KiB over 16 TiB", &mut filled(Work::Blocks16TiB, count));
    discard("4 KiB over 128 GiB", &mut filled(Work::Blocks128GiB, count));
    discard("4 KiB over all of 128 GiB (dense)", &mut filled(Work::Blocks128GiB, 1 << 25));
    discard("100-4000 B over 32 GiB", &mut filled(Work::Bytes32GiB, count));
    measure_pieces(count);
}

/// Prints what encoding and decoding costs.
pub(crate) fn measure_pieces(count: u64) {
    pieces("4 KiB over 128 GiB", &filled(Work::Blocks128GiB, count));
    pieces("100-4000 B over 32 GiB", &filled(Work::Bytes32GiB, count));
    pieces("4 KiB over 16 TiB", &filled(Work::Blocks16TiB, count));
}

/// Encodes and decodes every piece.
fn pieces(name: &str, map: &ExtentMap) {
    let extents = map.extents();
    let count = VOLUME_BYTES / PIECE_BYTES;
    let mut encoded: Vec<Vec<u8>> = Vec::new();
    let start = cpu_ns();
    for piece in 0..count {
        let mut bytes = Vec::new();
        map.encode_piece(piece, &mut bytes);
        encoded.push(bytes);
    }
    let encode = (cpu_ns() - start) / extents;
    let bytes: usize = encoded.iter().map(Vec::len).sum();
    let mut copy = ExtentMap::new();
    let start = cpu_ns();
    for (piece, bytes) in (0..count).zip(&encoded) {
        copy.decode_piece(piece, bytes).expect("what was encoded decodes");
    }
    let decode = (cpu_ns() - start) / extents;
    assert!(copy.extents() == extents, "a copy is complete");
    let tenths = u64::try_from(bytes).expect("u64 holds a usize") * 10 / extents;
    println!(
        "pieces, {name:<36} {extents:>9} extents, encode {encode} ns, decode {decode} ns, {}.{} bytes each",
        tenths / 10,
        tenths % 10
    );
}
