//! What clients see while nothing happens in the background, by the kind of request.

use crate::limits::{BASELINE_WINDOWS, FASTER_WINDOWS};
use crate::{RequestKind, Sample};

/// Bytes from which on a request is of the next size.
const SIZE_BOUNDS: [u64; 4] = [8 << 10, 32 << 10, 128 << 10, 512 << 10];

/// Requests at a time from which on one is of the next depth.
const DEPTH_BOUNDS: [usize; 4] = [2, 4, 8, 16];

const SIZES: usize = SIZE_BOUNDS.len() + 1;
const DEPTHS: usize = DEPTH_BOUNDS.len() + 1;

/// Kinds of requests: a write, a read and a sync take different times, large ones longer than small ones, and many at a
/// time longer than one.
const KINDS: usize = RequestKind::COUNT * SIZES * DEPTHS;

fn kind(sample: &Sample) -> usize {
    let size = SIZE_BOUNDS.partition_point(|bound| *bound <= sample.bytes);
    let depth = DEPTH_BOUNDS.partition_point(|bound| *bound <= sample.depth);
    (sample.kind.index() * SIZES + size) * DEPTHS + depth
}

/// Mean times in seconds of the latest paused windows, by kind.
#[derive(Debug)]
pub(crate) struct Baseline {
    mean: [Option<f64>; KINDS],
    /// Sum and number of the paused window under way.
    window: [(f64, u32); KINDS],
}

impl Default for Baseline {
    fn default() -> Self {
        Self { mean: [None; KINDS], window: [(0.0, 0); KINDS] }
    }
}

impl Baseline {
    /// The usual time of such a request.
    pub(crate) fn of(&self, sample: &Sample) -> Option<f64> {
        self.mean[kind(sample)]
    }

    /// A request of a paused window.
    pub(crate) fn add(&mut self, sample: &Sample) {
        let (sum, count) = &mut self.window[kind(sample)];
        *sum += sample.took.as_secs_f64();
        *count += 1;
    }

    /// The paused window is over.
    pub(crate) fn end_window(&mut self) {
        for (mean, (sum, count)) in self.mean.iter_mut().zip(&mut self.window) {
            if *count > 0 {
                let now = *sum / f64::from(*count);
                *mean = Some(mean.map_or(now, |before| {
                    let windows = if now < before { FASTER_WINDOWS } else { BASELINE_WINDOWS };
                    before + (now - before) / windows
                }));
            }
            (*sum, *count) = (0.0, 0);
        }
    }
}
