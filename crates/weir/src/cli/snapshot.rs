//! `weir snapshot` and its verbs.

use clap::Subcommand;
use weir_log::catalog::VolumeName;

use super::{Output, volume_name};
use crate::verbs::{Below, Group};

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

/// A name of a snapshot, for which the rules of volumes' names hold.
pub(crate) fn snapshot_name(text: &str) -> Result<VolumeName, String> {
    volume_name(text).map_err(|error| error.replacen("volume name", "snapshot name", 1))
}

/// `weir snapshot`.
pub(crate) type SnapshotCommand = Below<OwnSnapshotCommand>;

/// What is more than one verb.
#[derive(Debug, Subcommand)]
pub(crate) enum OwnSnapshotCommand {
    /// Print which bytes differ between two snapshots, for backups of what changed. Reads only what describes them
    Diff {
        /// The volume and the earlier snapshot, as demo@monday
        #[arg(value_name = "VOLUME@FROM", value_parser = snapshot_path)]
        from: SnapshotPath,
        /// The later snapshot of the same volume, as demo@tuesday or tuesday
        #[arg(value_name = "TO")]
        to: String,
        /// Form of the output; JSON comes as one array, an element for each run of bytes, as they are found
        #[command(flatten)]
        output: Output,
    },
}

impl Group for OwnSnapshotCommand {
    const NAME: &'static str = "snapshot";
}
