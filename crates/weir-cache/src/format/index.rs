//! The index that a clean stop leaves: which bands are where, and what their blocks must be. Layout:
//! docs/formats/cache.md#saved-index.

use std::mem::size_of;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::run::DeviceIdentity;
use super::{DecodeError, within};
use crate::geometry::{BAND_BLOCKS, BAND_BYTES, DEVICE_BYTES_MAX, Geometry, Place};

/// First bytes of an index.
pub const MAGIC: [u8; 8] = *b"WEIR-CIX";
/// Format version.
pub const VERSION: u32 = 1;

/// Bytes of its head.
pub const HEAD_BYTES: usize = size_of::<HeadV1>();
/// Bytes of a device.
pub const DEVICE_BYTES: usize = 32;
/// The policy keeps the band before those that are new.
const FLAG_KEPT: u32 = 1;

/// Bytes of a band.
pub const BAND_ENTRY_BYTES: usize = size_of::<BandV1>();

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeadV1 {
    magic: [u8; 8],
    version: U32,
    devices: U32,
    bands: U32,
    reserved: U32,
}

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BandV1 {
    device: U32,
    row: U32,
    column: U32,
    flags: U32,
    band: U64,
    present: U64,
    checks: [U32; BAND_BLOCKS as usize],
}

const _: () = assert!(HEAD_BYTES == 24 && BAND_ENTRY_BYTES == 288);

/// How much of each there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHead {
    /// Devices.
    pub devices: u32,
    /// Bands.
    pub bands: u32,
}

impl IndexHead {
    /// The bytes that store it.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let head = HeadV1 {
            magic: MAGIC,
            version: U32::new(VERSION),
            devices: U32::new(self.devices),
            bands: U32::new(self.bands),
            reserved: U32::ZERO,
        };
        head.as_bytes().try_into().expect("as long as it is")
    }

    /// Bytes of the whole index.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let (devices, bands) = (u64::from(self.devices), u64::from(self.bands));
        HEAD_BYTES as u64 + devices * DEVICE_BYTES as u64 + bands * BAND_ENTRY_BYTES as u64
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(input: &[u8]) -> Result<Self, DecodeError> {
        let Ok((head, _)) = HeadV1::ref_from_prefix(input) else {
            return Err(DecodeError::Short { have: input.len() });
        };
        if head.magic != MAGIC {
            return Err(DecodeError::Magic);
        }
        if head.version.get() != VERSION {
            return Err(DecodeError::Version { found: head.version.get(), known: VERSION });
        }
        within("reserved", head.reserved.get().into(), 0..=0)?;
        Ok(Self { devices: head.devices.get(), bands: head.bands.get() })
    }
}

/// A band that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBand {
    /// Its device, by its place in the index.
    pub device: u32,
    /// Where it lies.
    pub place: Place,
    /// Whether the policy keeps it before those that are new.
    pub is_kept: bool,
    /// Which band of the device.
    pub band: u64,
    /// Blocks that are there.
    pub present: u64,
    /// The first 32 bits of the hash of each block; 0 of one that is not there.
    pub checks: [u32; BAND_BLOCKS as usize],
}

impl IndexBand {
    /// The bytes that store it.
    #[must_use]
    pub fn encode(&self) -> [u8; BAND_ENTRY_BYTES] {
        let band = BandV1 {
            device: U32::new(self.device),
            row: U32::new(self.place.row),
            column: U32::new(self.place.column),
            flags: U32::new(if self.is_kept { FLAG_KEPT } else { 0 }),
            band: U64::new(self.band),
            present: U64::new(self.present),
            checks: self.checks.map(U32::new),
        };
        band.as_bytes().try_into().expect("as long as it is")
    }

    /// Reads one of a cache with this geometry, of an index with so many devices.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(input: &[u8], geometry: Geometry, devices: u32) -> Result<Self, DecodeError> {
        let Ok((band, _)) = BandV1::ref_from_prefix(input) else {
            return Err(DecodeError::Short { have: input.len() });
        };
        let below = |field, value: u32, end: u32| {
            if value < end {
                Ok(())
            } else {
                Err(DecodeError::Field { field, value: value.into() })
            }
        };
        below("device", band.device.get(), devices)?;
        below("row", band.row.get(), geometry.rows)?;
        below("column", band.column.get(), geometry.columns)?;
        within("flags", band.flags.get().into(), 0..=FLAG_KEPT.into())?;
        within("band", band.band.get(), 0..=DEVICE_BYTES_MAX / BAND_BYTES)?;
        Ok(Self {
            device: band.device.get(),
            place: Place { row: band.row.get(), column: band.column.get() },
            is_kept: band.flags.get() & FLAG_KEPT != 0,
            band: band.band.get(),
            present: band.present.get(),
            checks: band.checks.map(U32::get),
        })
    }
}

/// The device at a place of an index.
///
/// # Errors
/// Where there are too few bytes.
pub fn decode_device(input: &[u8]) -> Result<DeviceIdentity, DecodeError> {
    let bytes = input.first_chunk().ok_or(DecodeError::Short { have: input.len() })?;
    Ok(DeviceIdentity(*bytes))
}
