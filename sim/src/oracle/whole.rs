//! Writes that are in one record of the journal: there whole, or not at all.

use std::collections::BTreeSet;

use super::{Item, Observation, Oracle, Point, Run, Violation, WriteId};

impl Oracle {
    /// Where such a write shows, nothing that is certainly older shows in the rest of its range.
    pub(super) fn check_whole(
        &self,
        runs: &[Run],
        point: Point,
        seen: &Observation,
    ) -> Result<(), Violation> {
        let certain = runs.iter().filter(|run| run.items.len() == 1).map(|run| run.items[0].id);
        let fits = |id: &WriteId| self.write(*id).whole;
        let shown: BTreeSet<WriteId> = certain.filter(fits).collect();
        for run in runs.iter().filter(|run| !run.items.is_empty()) {
            let (_, segment) = self.segments.range(..=run.start).next_back().expect("from 0 on");
            let hides = |later: &&Item| {
                let older = |item: &Item| item.id != later.id && self.is_later(**later, *item);
                shown.contains(&later.id) && run.items.iter().all(older)
            };
            if let Some(torn) = segment.items.iter().find(hides) {
                let Violation(text) = self.wrong_byte("recovery", run.start, 0, &seen.bytes, point);
                let torn = self.describe(&[*torn]);
                return Err(Violation(format!("{text}\n  shows elsewhere, and not here: {torn}")));
            }
        }
        Ok(())
    }
}
