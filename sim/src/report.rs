//! The table at the end of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::run::Verdict;

/// Sums over seeds.
#[derive(Debug, Default)]
pub(crate) struct Report {
    counts: BTreeMap<&'static str, (u64, u64)>,
    /// Seeds by the number of their nodes, and those of them with an event.
    seeds_of: BTreeMap<u64, u64>,
    seeds_with: BTreeMap<(u64, &'static str), u64>,
    operations: Vec<u64>,
    crashes: Vec<u64>,
    store_faults: Vec<u64>,
    pub(crate) seeds: u64,
    pub(crate) violations: Vec<Verdict>,
}

fn median(numbers: &[u64]) -> u64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

impl Report {
    pub(crate) fn add(&mut self, verdict: Verdict) {
        self.seeds += 1;
        *self.seeds_of.entry(verdict.nodes).or_default() += 1;
        for (what, count) in &verdict.counts {
            *self.seeds_with.entry((verdict.nodes, what)).or_default() += 1;
            let entry = self.counts.entry(what).or_default();
            entry.0 += count;
            entry.1 += 1;
        }
        self.operations.push(verdict.operations);
        self.crashes.push(verdict.crashes);
        self.store_faults.push(verdict.store_faults);
        if verdict.violation.is_some() {
            self.violations.push(verdict);
        }
    }

    /// Seeds with so many nodes.
    pub(crate) fn seeds_of(&self, nodes: u64) -> u64 {
        self.seeds_of.get(&nodes).copied().unwrap_or(0)
    }

    /// Those of them in which an event was met.
    pub(crate) fn seeds_with(&self, nodes: u64, event: &'static str) -> u64 {
        self.seeds_with.get(&(nodes, event)).copied().unwrap_or(0)
    }

    /// The table, as text.
    pub(crate) fn table(&self, elapsed: Duration) -> String {
        let mut text = format!("{:<44} {:>14} {:>10}\n", "event", "times", "in seeds");
        for (what, (times, seeds)) in &self.counts {
            text.push_str(&format!("{what:<44} {times:>14} {seeds:>10}\n"));
        }
        let seconds = elapsed.as_secs_f64().max(0.001);
        // Counts of seeds and seconds of a run are far below what 52 bits hold.
        let rate = f64::from(u32::try_from(self.seeds).unwrap_or(u32::MAX)) / seconds;
        text.push_str(&format!(
            "\nper seed, median: {} client operations, {} crashes, {} store faults\n\
             {} seeds, {} violations, {:.1} s, {:.1} seeds/s\n",
            median(&self.operations),
            median(&self.crashes),
            median(&self.store_faults),
            self.seeds,
            self.violations.len(),
            seconds,
            rate
        ));
        text
    }
}
