//! Parsers of single arguments: names, snapshots, numbers of seconds.

use weir_log::catalog::VolumeName;
use weir_node::config::{check_rpo, check_seconds};

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let no_number = || format!("{text:?} is no number of seconds from 0.01 to 86400");
    check_seconds(text.parse().map_err(|_| no_number())?).map_err(|_| no_number())
}

pub(crate) fn rpo(text: &str) -> Result<f64, String> {
    check_rpo(text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?)
}

pub(crate) fn volume_name(text: &str) -> Result<VolumeName, String> {
    VolumeName::new(text).map_err(|error| error.to_string())
}

/// A snapshot of a volume.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotPath {
    /// The volume.
    pub(crate) volume: VolumeName,
    /// The snapshot.
    pub(crate) snapshot: VolumeName,
}

pub(crate) fn snapshot_path(text: &str) -> Result<SnapshotPath, String> {
    let Some((volume, snapshot)) = text.split_once('@') else {
        return Err("a snapshot is named VOLUME@SNAPSHOT, as demo@monday".to_owned());
    };
    Ok(SnapshotPath { volume: volume_name(volume)?, snapshot: snapshot_name(snapshot)? })
}

/// A volume, or a snapshot of it.
#[derive(Clone, Debug)]
pub(crate) struct VolumePath {
    /// The volume.
    pub(crate) volume: VolumeName,
    /// The snapshot of it that is meant, if one is.
    pub(crate) snapshot: Option<VolumeName>,
}

pub(crate) fn volume_path(text: &str) -> Result<VolumePath, String> {
    if !text.contains('@') {
        return Ok(VolumePath { volume: volume_name(text)?, snapshot: None });
    }
    let SnapshotPath { volume, snapshot } = snapshot_path(text)?;
    Ok(VolumePath { volume, snapshot: Some(snapshot) })
}

/// A name of a snapshot, for which the rules of volumes' names hold.
pub(crate) fn snapshot_name(text: &str) -> Result<VolumeName, String> {
    volume_name(text).map_err(|error| error.replacen("volume name", "snapshot name", 1))
}
