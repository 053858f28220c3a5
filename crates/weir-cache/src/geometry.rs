//! The table of bands: rows and columns, and where a band of a device may lie (vStore III-A.3).
//!
//! A column is a set: a band lies in one column only, in any row of it. Neighbouring bands of a device have
//! neighbouring columns, so that what is sequential on the device can be sequential on the disk. Each strip of a device
//! begins at a place of its own (its *virtual offset row*, and a column), so that devices, and objects whose numbers
//! are far apart, do not fight over the same sets.

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;

/// Blocks of a band, a bit each of a `u64`.
pub const BAND_BLOCKS: u32 = 64;

/// Bytes of a band.
pub const BAND_BYTES: u64 = BAND_BLOCKS as u64 * BLOCK_BYTES;

/// Rows of a table that is large enough: a set of so many bands replaces almost as the whole table would.
pub(crate) const ROWS: u32 = 64;

/// Bands that follow each other in the table: 64 MiB, the most that an object of a log volume has.
pub(crate) const STRIP_BANDS: u64 = 256;

/// Devices are numbered below this.
pub const DEVICES_MAX: u32 = 1 << 24;

/// Bytes of a device that can be cached: 128 PiB.
pub const DEVICE_BYTES_MAX: u64 = BAND_BYTES << 39;

/// Consecutive blocks of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Band {
    /// The device, by the number that the table's owner gave it; below [`DEVICES_MAX`].
    pub device: u32,
    /// Its place on the device, in bands; within [`DEVICE_BYTES_MAX`].
    pub number: u64,
}

impl Band {
    /// The one behind it.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }

    /// The one before it.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        Some(Self { number: self.number.checked_sub(1)?, ..self })
    }
}

/// A place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The row.
    pub row: u32,
    /// The column: which set it belongs to.
    pub column: u32,
}

/// Rows and columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bands of a set.
    pub rows: u32,
    /// Sets.
    pub columns: u32,
}

/// A number below `most` for a strip: strips that are numbered one after the other get numbers far from each other
/// (multiples of the golden ratio).
fn spread(strip: u32, salt: u32, most: u32) -> u32 {
    let fraction = u64::from((strip ^ salt).wrapping_mul(0x9e37_79b9));
    u32::try_from((fraction * u64::from(most)) >> 32).expect("below the most")
}

impl Geometry {
    /// A table of about so many bands, and no more; at least one.
    #[must_use]
    pub fn of_bands(bands: u64) -> Self {
        let rows = bands.clamp(1, u64::from(ROWS));
        let columns = (bands / rows).clamp(1, u64::from(u32::MAX));
        let small = |number: u64| u32::try_from(number).expect("it was clamped");
        Self { rows: small(rows), columns: small(columns) }
    }

    /// Bands that it holds.
    #[must_use]
    pub fn bands(self) -> u64 {
        u64::from(self.rows) * u64::from(self.columns)
    }

    /// The place that a band of a device takes where it is free. `seed` tells devices apart.
    #[must_use]
    pub fn home(self, seed: u32, number: u64) -> Place {
        let (strip, within) = (number / STRIP_BANDS, number % STRIP_BANDS);
        let strip = seed.wrapping_add(u32::try_from(strip).expect("within DEVICE_BYTES_MAX"));
        // Bits that have nothing to do with those of the row.
        let start = spread(strip, 0x5bd1_e995, self.columns);
        let (rows, columns) = (u64::from(self.rows), u64::from(self.columns));
        let from_start = u64::from(start) + within;
        let row = (u64::from(spread(strip, 0, self.rows)) + from_start / columns) % rows;
        let small = |number: u64| u32::try_from(number).expect("a remainder of 32 bits");
        Place { row: small(row), column: small(from_start % columns) }
    }

    /// Rows from one to the other, the shorter way around.
    #[must_use]
    pub fn distance(self, one: u32, other: u32) -> u32 {
        let apart = one.abs_diff(other);
        apart.min(self.rows - apart)
    }

    /// Where a place stands in memory: set by set, so that a look into a set reads memory in order.
    #[must_use]
    pub fn index(self, place: Place) -> usize {
        let index = u64::from(place.column) * u64::from(self.rows) + u64::from(place.row);
        usize::try_from(index).expect("a table fits memory")
    }

    /// The place that stands there.
    #[must_use]
    pub fn place(self, index: usize) -> Place {
        let (index, rows) = (index as u64, u64::from(self.rows));
        let small = |number: u64| u32::try_from(number).expect("a row or a column");
        Place { row: small(index % rows), column: small(index / rows) }
    }

    /// Where a place lies on the disk, in bands: row by row, so that neighbouring columns are neighbours.
    #[must_use]
    pub fn disk_index(self, place: Place) -> u64 {
        u64::from(place.row) * u64::from(self.columns) + u64::from(place.column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_a_strip_have_neighbouring_columns_of_one_row() {
        let geometry = Geometry::of_bands(64 * 1000);
        assert_eq!((geometry.rows, geometry.columns), (64, 1000));
        for seed in 0..50 {
            for number in (0..3000).filter(|number| (number + 1) % STRIP_BANDS != 0) {
                let [here, next] = [number, number + 1].map(|number| geometry.home(seed, number));
                assert_eq!(next.column, (here.column + 1) % geometry.columns);
                let is_last = here.column + 1 == geometry.columns;
                let row = if is_last { (here.row + 1) % geometry.rows } else { here.row };
                assert_eq!(next.row, row, "of {number}");
            }
        }
    }

    /// Objects of 8 MiB, of which each has a strip: wherever a table of 6 GiB keeps them, no set has much more than
    /// others.
    #[test]
    fn strips_that_are_not_full_spread_over_all_sets() {
        let geometry = Geometry::of_bands(24_576);
        let mut bands = vec![0_u32; geometry.columns as usize];
        for object in 0..512 {
            for number in 0..32 {
                bands[geometry.home(7, object * STRIP_BANDS + number).column as usize] += 1;
            }
        }
        let (least, most) = (bands.iter().min().unwrap(), bands.iter().max().unwrap());
        assert!(*least >= 40 && *most <= 46, "{least} to {most} of 42.7");
    }

    #[test]
    fn devices_begin_apart() {
        let geometry = Geometry::of_bands(64 * 1000);
        let begins = |seed| geometry.home(seed, 0);
        let (mut rows, mut columns): (Vec<u32>, Vec<u32>) =
            (0..16).map(begins).map(|place| (place.row, place.column)).unzip();
        rows.sort_unstable();
        columns.sort_unstable();
        rows.dedup();
        columns.dedup();
        assert!(rows.len() == 16 && columns.len() == 16, "{rows:?} {columns:?}");
    }

    #[test]
    fn places_are_counted_in_memory_and_on_disk() {
        let geometry = Geometry { rows: 5, columns: 7 };
        let mut on_disk = Vec::new();
        for index in 0..35 {
            let place = geometry.place(index);
            assert_eq!(geometry.index(place), index);
            on_disk.push(geometry.disk_index(place));
        }
        let beside = Place { row: 3, column: 2 };
        let next = geometry.disk_index(Place { column: 3, ..beside });
        assert_eq!(next, geometry.disk_index(beside) + 1);
        on_disk.sort_unstable();
        assert!(on_disk.into_iter().eq(0..35));
    }

    #[test]
    fn distances_go_the_shorter_way_around() {
        let geometry = Geometry { rows: 8, columns: 1 };
        assert_eq!(geometry.distance(1, 7), 2);
        assert_eq!(geometry.distance(6, 2), 4);
        assert_eq!(geometry.distance(3, 3), 0);
    }

    #[test]
    fn small_tables_are_one_set() {
        for bands in 0..200 {
            let geometry = Geometry::of_bands(bands);
            assert!(geometry.bands() <= bands.max(1) && 2 * geometry.bands() > bands);
        }
    }
}
