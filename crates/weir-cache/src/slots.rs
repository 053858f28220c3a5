//! What the table knows of each band that is in it.

use crate::geometry::{BAND_BYTES, Band, DEVICE_BYTES_MAX, DEVICES_MAX, Geometry, Place};

/// One place of the table. It has 32 bytes, half a byte for each block of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Device (24 bits) and number (40 bits) of the band, plus one; 0 where there is none.
    tag: u64,
    /// Blocks that are there.
    pub present: u64,
    /// Blocks of those that the device below does not have yet.
    pub dirty: u64,
    /// When it was last used, counted in uses of the table; it wraps around.
    pub used: u32,
    /// Times that it was read and written since it came, as far as they can be counted.
    pub reads: u16,
    /// See there.
    pub writes: u16,
}

fn tag(band: Band) -> u64 {
    debug_assert!(band.device < DEVICES_MAX && band.number <= DEVICE_BYTES_MAX / BAND_BYTES);
    (u64::from(band.device) << 40 | band.number) + 1
}

impl Slot {
    /// The band that is in it.
    #[must_use]
    pub fn band(&self) -> Option<Band> {
        let tag = self.tag.checked_sub(1)?;
        let device = u32::try_from(tag >> 40).expect("24 bits");
        Some(Band { device, number: tag & ((1 << 40) - 1) })
    }
}

/// All places.
#[derive(Clone, Debug)]
pub struct Slots {
    geometry: Geometry,
    slots: Vec<Slot>,
    uses: u32,
    /// What tells devices apart, whatever their numbers are; those beyond have their number.
    seeds: Vec<u32>,
}

impl Slots {
    /// An empty table.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let bands = usize::try_from(geometry.bands()).expect("a table fits memory");
        Self { geometry, slots: vec![Slot::default(); bands], uses: 0, seeds: Vec::new() }
    }

    /// Bands of a device belong where `seed` says from now on. It has none in the table.
    pub(crate) fn set_seed(&mut self, device: u32, seed: u32) {
        while self.seeds.len() <= device as usize {
            self.seeds.push(u32::try_from(self.seeds.len()).expect("below DEVICES_MAX"));
        }
        self.seeds[device as usize] = seed;
    }

    /// The place that a band takes where it is free.
    #[must_use]
    pub fn home(&self, band: Band) -> Place {
        let seed = self.seeds.get(band.device as usize).copied().unwrap_or(band.device);
        self.geometry.home(seed, band.number)
    }

    /// Its rows and columns.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What is in a place.
    #[must_use]
    pub fn at(&self, place: Place) -> &Slot {
        &self.slots[self.geometry.index(place)]
    }

    pub(crate) fn at_mut(&mut self, place: Place) -> &mut Slot {
        &mut self.slots[self.geometry.index(place)]
    }

    /// Whether a band is in a place.
    #[must_use]
    pub fn is_in(&self, place: Place, band: Band) -> bool {
        self.at(place).tag == tag(band)
    }

    /// The places of a set.
    pub fn set(&self, column: u32) -> impl Iterator<Item = (Place, &Slot)> {
        (0..self.geometry.rows).map(move |row| {
            let place = Place { row, column };
            (place, self.at(place))
        })
    }

    /// Where a band is.
    #[must_use]
    pub fn find(&self, band: Band) -> Option<Place> {
        let tag = tag(band);
        self.set(self.home(band).column).find(|(_, slot)| slot.tag == tag).map(|(place, _)| place)
    }

    /// The free place of a band's set that is nearest to its home.
    #[must_use]
    pub fn free(&self, band: Band) -> Option<Place> {
        let home = self.home(band);
        let free = self.set(home.column).filter(|(_, slot)| slot.tag == 0);
        free.map(|(place, _)| place).min_by_key(|place| self.geometry.distance(place.row, home.row))
    }

    /// How many of the two places beside one in its row hold the bands before and behind this one.
    #[must_use]
    pub fn neighbours(&self, place: Place, band: Band) -> u32 {
        let before = place.column.checked_sub(1).zip(band.previous());
        let is_before = before
            .is_some_and(|(column, previous)| self.is_in(Place { column, ..place }, previous));
        let behind = Place { column: place.column + 1, ..place };
        let is_behind = behind.column < self.geometry.columns && self.is_in(behind, band.next());
        u32::from(is_before) + u32::from(is_behind)
    }

    /// The number of this use.
    pub(crate) fn count_use(&mut self) -> u32 {
        self.uses = self.uses.wrapping_add(1);
        self.uses
    }

    /// How many uses ago something was used.
    #[must_use]
    pub fn age(&self, used: u32) -> u32 {
        self.uses.wrapping_sub(used)
    }

    pub(crate) fn put(&mut self, place: Place, band: Band) -> Slot {
        let used = self.count_use();
        let slot = Slot { tag: tag(band), used, ..Slot::default() };
        std::mem::replace(self.at_mut(place), slot)
    }

    /// All that is in the table, set by set.
    pub fn bands(&self) -> impl Iterator<Item = (Place, Band, &Slot)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((self.geometry.place(index), slot.band()?, slot)))
    }
}
