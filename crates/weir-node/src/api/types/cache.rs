//! The cache on the local disk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The cache of objects on the local disk, of all volumes together. Counts are since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheReport {
    /// Why there is none, or why it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none_because: Option<String>,
    /// What is done with it at this moment, and for how long: opened, closed, or given another size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changing: Option<String>,
    /// There is none, and there should be one: a size was asked for, or it could not be opened.
    #[serde(default)]
    pub missing: bool,
    /// Its disk failed while it was in use: it holds nothing until the next start.
    #[serde(default)]
    pub failed: bool,
    /// Bytes of its file.
    #[serde(default)]
    pub file_bytes: u64,
    /// Bytes of objects that it can hold, and bytes that it holds.
    pub capacity_bytes: u64,
    /// See there.
    pub bytes: u64,
    /// Bands of 256 KiB that have a place in it, and how many places there are.
    #[serde(default)]
    pub bands: u64,
    /// See there.
    #[serde(default)]
    pub band_places: u64,
    /// How long it is open: the time of the counts.
    #[serde(default)]
    pub open_ms: u64,
    /// Bytes of memory that it takes.
    pub memory_bytes: u64,
    /// Share of it that is known, in thousandths, while it is read after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_permille: Option<u64>,
    /// Looks that found all that they asked for, and looks that did not.
    pub hits: u64,
    /// See there.
    pub misses: u64,
    /// Frames that the collector copied from here, and did not read from the store.
    #[serde(default)]
    pub copied: u64,
    /// Frames that were written to it.
    pub fills: u64,
    /// Bytes of those: what it wears its disk by.
    pub filled_bytes: u64,
    /// Frames that came faster than they could be written beside clients, and were left out.
    pub dropped: u64,
    /// Bands that were not taken in, because their volume has its share and none of it in their place.
    #[serde(default)]
    pub over_share: u64,
    /// Frames that were not written, because as much was written as may be for now.
    #[serde(default)]
    pub worn: u64,
    /// Bytes that may be written to it in a day, where that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear_bytes_per_day: Option<u64>,
    /// Bytes of those that may be written now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear_bytes_left: Option<u64>,
    /// Bands of 256 KiB that made room for others.
    pub evictions: u64,
    /// Blocks that were not what they should be; they were read from the store.
    pub damaged: u64,
    /// Reads that failed or took longer than a second; the store was read instead.
    pub failed_reads: u64,
    /// Writes that failed, or took longer than ten seconds, once for every ten.
    #[serde(default)]
    pub failed_fills: u64,
    /// Time since the last of those three, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_ms: Option<u64>,
}

/// The cache of a process, and what the volumes have of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CacheShown {
    /// Id of the process.
    pub process: u32,
    /// Its file.
    pub path: String,
    /// How it is.
    pub cache: CacheReport,
    /// Looks into it that found all, of a thousand; nothing before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_permille: Option<u64>,
    /// Bytes that are written to it in a day, by what was written since it was opened; nothing in the first hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filled_bytes_per_day: Option<u64>,
    /// The volumes that are served. What is read through a clone counts as a look of the clone; the bands are of the
    /// volume that wrote them.
    pub volumes: Vec<CacheOfVolume>,
    /// Bands of volumes that are not served here, such as the origins of clones.
    pub other_bands: u64,
}

/// What a volume has of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CacheOfVolume {
    /// Name of the volume.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Bands of 256 KiB that hold what it wrote.
    pub bands: u64,
    /// What it may have at most, in percent, where that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<u64>,
    /// Its reads beyond memory that the cache answered, since it was opened.
    pub hits: u64,
    /// Those that it did not.
    pub misses: u64,
    /// Its colour in the map of the cache, as `#ff8000`.
    pub colour: String,
}

/// The file of a cache, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CacheFileReport {
    /// The file.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Version of its format.
    pub version: u32,
    /// Bytes of objects that it can hold.
    pub capacity_bytes: u64,
    /// It was closed in order. While a process uses it, it is not.
    pub closed: bool,
    /// Times that it was opened.
    pub openings: u64,
    /// Why it is of no use, so that the next start begins anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Why it could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// A cache that was given another size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CacheResized {
    /// How it is now.
    pub cache: CacheReport,
    /// What is done about its size at the next start.
    pub next_start: String,
}
