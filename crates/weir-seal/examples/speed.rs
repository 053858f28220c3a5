//! What sealing and opening cost: a block as the journal seals it, a frame as an object holds it.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement on the terminal"
)]

use std::hint::black_box;
use std::time::Instant;

use weir_seal::{DataKey, Purpose, counter_nonce};

const ROUNDS: u32 = 9;

/// Best of several rounds, in nanoseconds per call.
fn best(calls: u32, mut call: impl FnMut(u32)) -> f64 {
    let round = |call: &mut dyn FnMut(u32)| {
        let begin = Instant::now();
        (0..calls).for_each(call);
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    (0..ROUNDS).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let data_key = DataKey::draw(|bytes| bytes.fill(7));
    let key = data_key.derive(Purpose::Journal, &[&[1; 56]]);
    let context = [3; 56];
    let derive = best(2000, |n| {
        black_box(data_key.derive(Purpose::Object, &[&n.to_le_bytes()]));
    });
    println!("derive a key   {derive:8.0} ns");
    for bytes in [4 << 10, 64 << 10] {
        let calls = (256 << 20) / u32::try_from(bytes).unwrap_or(1) / ROUNDS;
        let (plain, mut text) = (vec![5; bytes], vec![5; bytes]);
        let seal = best(calls, |n| {
            text.copy_from_slice(&plain);
            black_box(key.seal(counter_nonce(1, n), &context, &mut text));
        });
        let copy = best(calls, |_| black_box(&mut text).copy_from_slice(black_box(&plain)));
        text.copy_from_slice(&plain);
        let tag = key.seal(counter_nonce(1, 0), &context, &mut text);
        let mut out = vec![0; bytes];
        let open = best(calls, |_| {
            let opened = key.open_into(counter_nonce(1, 0), &context, (&text, &tag), &mut out);
            assert!(black_box(opened).is_ok(), "it was sealed just now");
        });
        let rate = |ns: f64| bytes as f64 / ns / 1.073_741_824;
        println!(
            "{:3} KiB: copy and seal {seal:6.0} ns ({:.1} GiB/s), of it the copy {copy:5.0} ns, open {open:6.0} ns \
             ({:.1} GiB/s)",
            bytes >> 10,
            rate(seal),
            rate(open)
        );
    }
}
