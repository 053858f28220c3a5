//! `weir volume` and its verbs.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use weir_log::Takeover;
use weir_log::catalog::VolumeName;
use weir_node::size::Size;

use crate::cli::verbs::{Below, Group};
use crate::cli::words::{VolumePath, volume_name, volume_path};
use crate::terminal::form::Output;

/// How a check goes about it.
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckLimits {
    /// Bytes per second read from the store at most, as 100M [default: no limit]
    #[arg(long, value_name = "BYTES", env = "WEIR_LIMIT", hide_env_values = true)]
    #[arg(value_parser = check_limit)]
    limit: Option<Size>,
    /// A file that remembers what was found whole: a check that is interrupted goes on with it. It is removed when the
    /// check has come to its end
    #[arg(long, value_name = "FILE", env = "WEIR_RESUME", hide_env_values = true)]
    pub(crate) resume: Option<PathBuf>,
}

impl CheckLimits {
    /// Bytes read per second at most.
    pub(crate) fn bytes_per_second(&self) -> Option<NonZeroU64> {
        self.limit.and_then(|limit| NonZeroU64::new(limit.0))
    }
}

/// Bytes per second below which a check comes to no end: an object of 8 MiB alone would take half an hour.
const CHECK_LIMIT_MIN: u64 = 4 << 10;

fn check_limit(text: &str) -> Result<Size, String> {
    let Size(bytes) = text.parse()?;
    if bytes < CHECK_LIMIT_MIN {
        return Err(format!(
            "{bytes} bytes per second are too few for a check to come to its end: give 4K or more, as 100M"
        ));
    }
    Ok(Size(bytes))
}

/// What happens when the lease of a volume's holder runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakeoverKind {
    /// A person decides, with --take-over; without the store, I/O goes on
    Manual,
    /// Another node takes the volume by itself; without the store, I/O stops in time
    Auto,
}

impl From<TakeoverKind> for Takeover {
    fn from(kind: TakeoverKind) -> Self {
        match kind {
            TakeoverKind::Manual => Self::Manual,
            TakeoverKind::Auto => Self::Auto,
        }
    }
}

/// `weir volume salvage`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SalvageCommand {
    /// Name of the volume that was taken over
    #[arg(value_parser = volume_name)]
    pub(crate) name: VolumeName,
    /// Name of the volume to make
    #[arg(value_parser = volume_name, required_unless_present = "dry_run")]
    pub(crate) new: Option<VolumeName>,
    /// Only say what there is
    #[arg(long, env = "WEIR_DRY_RUN", hide_env_values = true)]
    pub(crate) dry_run: bool,
    /// Leave out what is damaged in the journal, and what the store lost before that
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// What happens when the lease of the node that holds the new volume runs out
    #[arg(long, value_name = "KIND", env = "WEIR_TAKEOVER", default_value = "manual")]
    #[arg(hide_env_values = true)]
    pub(crate) takeover: TakeoverKind,
    /// Form of the output
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `weir volume`.
pub(crate) type VolumeCommand = Below<OwnVolumeCommand>;

/// What is more than one verb.
#[derive(Debug, Subcommand)]
pub(crate) enum OwnVolumeCommand {
    /// Read everything a volume has in the store, and report what is damaged or missing
    Check {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// How it goes about it
        #[command(flatten)]
        limits: CheckLimits,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Check a volume, say what is lost for good, and give that up: damaged and missing objects, and those that nobody
    /// needs. Clients are not interrupted
    Repair {
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Lost bytes read as zeroes from then on; otherwise reads of them fail until they are written again
        #[arg(long)]
        zero: bool,
        /// Do not ask
        #[arg(long, env = "WEIR_YES", hide_env_values = true)]
        yes: bool,
        /// How the check goes about it
        #[command(flatten)]
        limits: CheckLimits,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Make a volume of an image: raw, qcow2 and whatever else qemu-img reads. It is there when all of it is in the
    /// store; run again, an import that was interrupted goes on
    Import {
        /// The image, a file or a block device; `-` for raw bytes from standard input, as many as --size says
        source: PathBuf,
        /// Name of the volume
        #[arg(value_parser = volume_name)]
        name: VolumeName,
        /// Size of the volume, if it is to be larger than the image
        #[arg(long, value_name = "SIZE", env = "WEIR_SIZE", hide_env_values = true)]
        size: Option<Size>,
        /// Format of the image [default: what qemu-img takes it for]
        #[arg(long, value_name = "FORMAT", env = "WEIR_FORMAT", hide_env_values = true)]
        format: Option<String>,
        /// Write over a volume of that name
        #[arg(long)]
        overwrite: bool,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Write a volume into an image. Run again, an export that was interrupted goes on if the volume was not used since
    Export {
        /// Name of the volume, or VOLUME@SNAPSHOT; or URL of a store with /NAME at its end
        #[arg(value_name = "NAME", value_parser = volume_place)]
        from: VolumePlace,
        /// The image; `-` for the raw bytes on standard output
        #[arg(value_name = "DEST")]
        path: PathBuf,
        /// Format of the image [default: by the end of its name, raw unless that is one of qemu-img's]
        #[arg(long, value_name = "FORMAT", env = "WEIR_FORMAT", hide_env_values = true)]
        format: Option<String>,
        /// Write over a file of that name
        #[arg(long)]
        overwrite: bool,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Make a volume of another one, in the same store or in another. Run again, a copy that was interrupted goes on if
    /// the other one was not used since
    Copy {
        /// Name of a volume, or VOLUME@SNAPSHOT; or URL of a store with /NAME at its end
        #[arg(value_parser = volume_place)]
        from: VolumePlace,
        /// The same: demo2, or s3://bucket/prefix/demo2
        #[arg(value_parser = volume_place)]
        to: VolumePlace,
        /// Write over a volume of that name
        #[arg(long)]
        overwrite: bool,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Make a volume of what a takeover gave up: what it took, and what the old journal in this data directory holds
    Salvage(SalvageCommand),
}

impl Group for OwnVolumeCommand {
    const NAME: &'static str = "volume";
}

/// A volume, in the store of the command or in one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePlace {
    pub(crate) store: Option<String>,
    pub(crate) name: VolumeName,
    /// The snapshot of it that is meant, if one is.
    pub(crate) snapshot: Option<VolumeName>,
}

/// A volume or a snapshot in a store.
fn in_store(store: Option<String>, text: &str) -> Result<VolumePlace, String> {
    let VolumePath { volume, snapshot } = volume_path(text)?;
    Ok(VolumePlace { store, name: volume, snapshot })
}

fn volume_place(text: &str) -> Result<VolumePlace, String> {
    if !text.contains("://") {
        return in_store(None, text);
    }
    let (store, name) = text.rsplit_once('/').unwrap_or((text, ""));
    if !store.contains("://") || name.is_empty() {
        return Err(format!("{text:?} names a store, but no volume in it: put /NAME behind it"));
    }
    in_store(Some(store.to_owned()), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_alone_or_behind_its_store() {
        let place = |text: &str| {
            let VolumePlace { store, name, snapshot } = volume_place(text).unwrap();
            let snapshot = snapshot.map_or_else(String::new, |snapshot| format!("@{snapshot}"));
            (store.unwrap_or_default(), format!("{name}{snapshot}"))
        };
        let pair = |store: &str, name: &str| (store.to_owned(), name.to_owned());
        assert_eq!(place("demo"), pair("", "demo"));
        assert_eq!(place("s3://bucket/prefix/demo"), pair("s3://bucket/prefix", "demo"));
        assert_eq!(place("file:///srv/demo"), pair("file:///srv", "demo"));
        assert_eq!(place("demo@cut"), pair("", "demo@cut"));
        assert_eq!(place("file:///srv/demo@cut"), pair("file:///srv", "demo@cut"));
        for wrong in ["s3://bucket", "s3://bucket/prefix/", "s3://b/a b", "a/b", ""] {
            assert!(volume_place(wrong).is_err(), "{wrong}");
        }
    }
}
