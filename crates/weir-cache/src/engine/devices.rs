//! Devices by number: what a slot of the table names in three bytes.

use std::collections::HashMap;

use super::shares::{Owner, Shares};
use crate::format::run::DeviceIdentity;
use crate::geometry::DEVICES_MAX;

/// A device that has a band in the cache.
#[derive(Clone, Copy, Debug)]
struct Device {
    identity: DeviceIdentity,
    bands: u32,
}

/// Devices with bands in the cache. Numbers of others are given again.
#[derive(Debug, Default)]
pub(super) struct Devices {
    numbers: HashMap<DeviceIdentity, u32>,
    devices: Vec<Option<Device>>,
    free: Vec<u32>,
    pub(super) shares: Shares,
}

/// What tells the bands of a device apart from those of others, in this process and the next.
pub(super) fn seed_of(identity: &DeviceIdentity) -> u32 {
    let hash = blake3::hash(&identity.0);
    let bytes = hash.as_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Devices {
    pub(super) fn number(&self, identity: &DeviceIdentity) -> Option<u32> {
        self.numbers.get(identity).copied()
    }

    /// A device gets a band more. Its number, and whether it is new; `None` where there are too many devices.
    pub(super) fn add(&mut self, identity: &DeviceIdentity) -> Option<(u32, bool)> {
        if let Some(&number) = self.numbers.get(identity) {
            let device = self.devices[number as usize].as_mut().expect("a number has a device");
            device.bands += 1;
            self.shares.comes(Owner::of(identity));
            return Some((number, false));
        }
        let device = Some(Device { identity: *identity, bands: 1 });
        let number = match self.free.pop() {
            Some(number) => {
                self.devices[number as usize] = device;
                number
            }
            None => {
                let number = u32::try_from(self.devices.len()).ok()?;
                if number >= DEVICES_MAX {
                    return None;
                }
                self.devices.push(device);
                number
            }
        };
        self.numbers.insert(*identity, number);
        self.shares.comes(Owner::of(identity));
        Some((number, true))
    }

    /// A device loses a band.
    pub(super) fn remove(&mut self, number: u32) {
        let slot = &mut self.devices[number as usize];
        let device = slot.as_mut().expect("a band has a device");
        if !weir_device::mutant("cache_share_not_given_back") {
            self.shares.goes(Owner::of(&device.identity));
        }
        device.bands -= 1;
        if device.bands == 0 {
            self.numbers.remove(&device.identity);
            *slot = None;
            self.free.push(number);
        }
    }

    /// Whose a device with bands is.
    pub(super) fn owner(&self, number: u32) -> Owner {
        let device = self.devices[number as usize].as_ref().expect("a band has a device");
        Owner::of(&device.identity)
    }

    /// All of them, by number.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, DeviceIdentity)> {
        let numbered = (0..).zip(&self.devices);
        numbered.filter_map(|(number, device)| Some((number, device.as_ref()?.identity)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_its_number_as_long_as_it_has_a_band() {
        let mut devices = Devices::default();
        let identity = |byte| DeviceIdentity([byte; 32]);
        assert_eq!(devices.add(&identity(1)), Some((0, true)));
        assert_eq!(devices.add(&identity(2)), Some((1, true)));
        assert_eq!(devices.add(&identity(1)), Some((0, false)));
        devices.remove(0);
        assert_eq!(devices.number(&identity(1)), Some(0));
        devices.remove(0);
        assert_eq!(devices.number(&identity(1)), None);
        assert_eq!(devices.add(&identity(3)), Some((0, true)), "the number is free");
        assert_eq!(devices.all().collect::<Vec<_>>(), [(0, identity(3)), (1, identity(2))]);
    }
}
