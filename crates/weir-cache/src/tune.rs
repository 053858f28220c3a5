//! Weights of the six factors that do well, found by trying.

use crate::policy::Weights;

/// What is tried for a weight; what counts is how they compare.
const TRIED: [f64; 6] = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Rounds after which it ends, whether or not the last one found something better.
const ROUNDS_MAX: usize = 4;

/// Changes one weight after the other to whatever does best, until nothing does better. `judge` says how well weights
/// do: the more, the better.
pub fn tune(start: Weights, mut judge: impl FnMut(Weights) -> f64) -> (Weights, f64) {
    let (mut best, mut most) = (start, judge(start));
    for _ in 0..ROUNDS_MAX {
        let before = most;
        for at in 0..Weights::COUNT {
            for weight in TRIED {
                let mut tried = best.to_array();
                if tried[at].to_bits() == weight.to_bits() {
                    continue;
                }
                tried[at] = weight;
                let tried = Weights::from(tried);
                let judged = judge(tried);
                if judged > most {
                    (best, most) = (tried, judged);
                }
            }
        }
        if most <= before {
            break;
        }
    }
    (best, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_weights_are_found_one_by_one() {
        let wanted = [4.0, 0.0, 2.0, 0.5, 0.25, 1.0];
        let judge = |weights: Weights| {
            -weights
                .to_array()
                .iter()
                .zip(wanted)
                .map(|(one, other)| (one - other).abs())
                .sum::<f64>()
        };
        let (best, most) = tune(Weights::EQUAL, judge);
        assert_eq!(best.to_array(), wanted);
        assert!(most.abs() < 1e-9, "{most}");
    }
}
