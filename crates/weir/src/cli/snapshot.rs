//! `weir snapshot` and its verbs.

use clap::Subcommand;

use crate::cli::verbs::{Below, Group};
use crate::cli::words::{SnapshotPath, snapshot_path};
use crate::terminal::form::Output;

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
