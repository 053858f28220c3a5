//! `weir snapshot` and its verbs.

use clap::Subcommand;
use weir_log::catalog::VolumeName;

use super::{Output, volume_name};

/// A snapshot of a volume.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotPath {
    /// The volume.
    pub(crate) volume: VolumeName,
    /// The snapshot.
    pub(crate) snapshot: VolumeName,
}

pub(super) fn snapshot_path(text: &str) -> Result<SnapshotPath, String> {
    let Some((volume, snapshot)) = text.split_once('@') else {
        return Err("a snapshot is named VOLUME@SNAPSHOT, as demo@monday".to_owned());
    };
    Ok(SnapshotPath { volume: volume_name(volume)?, snapshot: volume_name(snapshot)? })
}

/// `weir snapshot`.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot: all that was acknowledged before is in it. No client notices; returns when the store has it
    Create {
        /// The volume and a name for the snapshot, as demo@monday
        #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = snapshot_path)]
        path: SnapshotPath,
    },
    /// List the snapshots of a volume, oldest first
    List {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        volume: VolumeName,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
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
    /// Delete a snapshot; the space of what nothing else needs comes back
    Delete {
        /// The volume and the snapshot, as demo@monday
        #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = snapshot_path)]
        path: SnapshotPath,
    },
    /// Set a volume without clients back to a snapshot, and give up what was written since
    Rollback {
        /// The volume and the snapshot, as demo@monday
        #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = snapshot_path)]
        path: SnapshotPath,
        /// Do not ask
        #[arg(long, env = "WEIR_YES", hide_env_values = true)]
        yes: bool,
    },
}
