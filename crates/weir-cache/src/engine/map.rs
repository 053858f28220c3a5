//! What lies where, for people to look at.

use super::cache::Cache;
use super::shares::Owner;
use crate::geometry::Place;

/// Whose band is in which place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheMap {
    /// Rows of the table.
    pub rows: u32,
    /// Columns that are shown: all, or every so many where there are too many.
    pub columns: u32,
    /// Row by row.
    pub owners: Vec<Option<Owner>>,
}

impl Cache {
    /// The map of the table, with so many columns at most.
    #[must_use]
    pub fn map(&self, columns_max: u32) -> CacheMap {
        let geometry = self.superblock().geometry;
        let step = geometry.columns.div_ceil(columns_max.max(1));
        let columns = geometry.columns.div_ceil(step);
        let mut owners = Vec::new();
        for row in 0..geometry.rows {
            // The lock is let go after each row: reads of clients wait for it.
            let state = self.state();
            owners.extend((0..columns).map(|column| {
                let slot = state.table.slots().at(Place { row, column: column * step });
                Some(state.devices.owner(slot.band()?.device))
            }));
        }
        CacheMap { rows: geometry.rows, columns, owners }
    }
}
