//! Whose bands are in the cache, and how many each owner may have.

use std::collections::HashMap;

use super::devices::Devices;
use crate::format::run::DeviceIdentity;
use crate::geometry::{Band, Place};
use crate::slots::Slots;

/// Whose a device is: all devices of an owner have the first half of their identity in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub [u8; 16]);

impl Owner {
    /// The owner of a device.
    #[must_use]
    pub fn of(device: &DeviceIdentity) -> Self {
        let mut owner = [0; 16];
        owner.copy_from_slice(&device.0[..16]);
        Self(owner)
    }
}

/// Bands by owner.
#[derive(Debug, Default)]
pub(super) struct Shares {
    bands: HashMap<Owner, u64>,
    limits: HashMap<Owner, u64>,
}

impl Shares {
    /// An owner has a band more.
    pub(super) fn comes(&mut self, owner: Owner) {
        *self.bands.entry(owner).or_default() += 1;
    }

    /// An owner has a band less.
    pub(super) fn goes(&mut self, owner: Owner) {
        let bands = self.bands.get_mut(&owner).expect("a band has an owner");
        *bands -= 1;
        if *bands == 0 {
            self.bands.remove(&owner);
        }
    }

    /// Bands of each owner that has some.
    pub(super) fn all(&self) -> impl Iterator<Item = (Owner, u64)> {
        self.bands.iter().map(|(owner, bands)| (*owner, *bands))
    }

    /// An owner may have so many bands from now on; `None` takes the limit away. What it has beyond is left to it until
    /// others need the places.
    pub(super) fn limit(&mut self, owner: Owner, bands: Option<u64>) {
        match bands {
            Some(bands) => self.limits.insert(owner, bands),
            None => self.limits.remove(&owner),
        };
    }

    /// Bands that an owner may have, where that is limited.
    pub(super) fn limit_of(&self, owner: Owner) -> Option<u64> {
        self.limits.get(&owner).copied()
    }

    /// Whether an owner has all that it may.
    pub(super) fn is_full(&self, owner: Owner) -> bool {
        let has = self.bands.get(&owner).copied().unwrap_or_default();
        self.limit_of(owner).is_some_and(|limit| has >= limit)
    }
}

/// The place of a band that makes room for another one of the same owner, which has all that it may: in the set of the
/// new one that which was not used for longest.
pub(super) fn own_place(slots: &Slots, devices: &Devices, band: Band) -> Option<Place> {
    let owner = devices.owner(band.device);
    let own = slots
        .set(slots.home(band).column)
        .filter(|(_, slot)| slot.band().is_some_and(|there| devices.owner(there.device) == owner));
    own.max_by_key(|(_, slot)| slots.age(slot.used)).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_counted_and_limited_by_owner() {
        let mut shares = Shares::default();
        let (one, other) = (Owner([1; 16]), Owner([2; 16]));
        shares.limit(one, Some(2));
        shares.comes(one);
        assert!(!shares.is_full(one));
        shares.comes(one);
        shares.comes(other);
        assert!(shares.is_full(one) && !shares.is_full(other));
        shares.goes(one);
        assert!(!shares.is_full(one), "what goes is given back");
        shares.limit(one, Some(0));
        assert!(shares.is_full(one));
        shares.limit(one, None);
        assert!(!shares.is_full(one));
        shares.goes(one);
        assert_eq!(shares.all().collect::<Vec<_>>(), [(other, 1)]);
    }
}
