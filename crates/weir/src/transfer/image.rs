//! An image that is read: what it is, whether it is whole, and whether it stays as it is.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::qemu::{self, Info};
use crate::terminal::failure::Failure;

/// An image of a disk.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) path: PathBuf,
    pub(super) format: String,
    /// Bytes of the disk.
    pub(super) size: u64,
    /// What tells this content from another: every file of the image as it was when it was opened.
    pub(super) identity: String,
    chain: Vec<Info>,
}

impl Image {
    /// Looks at an image, and refuses one that is truncated or damaged as far as its format can tell.
    pub(super) async fn open(path: &Path, format: Option<&str>) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let failed = |error| Failure::new(format!("reading {shown}: {error}"));
        let path = std::path::absolute(path).map_err(failed)?;
        let metadata = std::fs::metadata(&path).map_err(failed)?;
        if metadata.is_dir() {
            return Err(Failure::new(format!("{shown} is a directory, not an image")));
        }
        let chain = qemu::info(&path, format).await?;
        let meant = qemu::format_of(&path);
        if format.is_none() && meant != "raw" && chain.iter().take(1).any(|one| one.format == "raw")
        {
            let message = format!("{shown} is no {meant} image, though its name says so");
            return Err(Failure::new(message).with_help(
                "get the image again; or pass --format raw, if it is the raw bytes of a disk",
            ));
        }
        for info in chain.iter().filter(|info| info.format != "raw") {
            qemu::check(info).await?;
        }
        let (format, size) = (chain[0].format.clone(), chain[0].virtual_size);
        if size == 0 {
            return Err(Failure::new(format!("{shown} is empty")));
        }
        let identity = identity(&chain);
        Ok(Self { path, format, size, identity, chain })
    }

    /// Whether its identity tells its content. That of a device does not, nor that of what is elsewhere.
    pub(super) fn is_known(&self) -> bool {
        are_files(&self.chain)
    }

    /// Fails if a file of it was written to since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<(), Failure> {
        if identity(&self.chain) == self.identity {
            return Ok(());
        }
        let path = self.path.display();
        Err(Failure::new(format!("{path} was changed while it was read"))
            .with_help("end whatever writes to it, and begin anew with --overwrite"))
    }
}

fn are_files(chain: &[Info]) -> bool {
    chain.iter().all(|info| std::fs::metadata(&info.filename).is_ok_and(|file| file.is_file()))
}

/// Format, size, place and time of change of every file; of one that is elsewhere only its name.
fn identity(chain: &[Info]) -> String {
    let file = |info: &Info| {
        let Ok(metadata) = std::fs::metadata(&info.filename) else {
            return format!("{} {}", info.format, info.filename);
        };
        let (format, size) = (&info.format, metadata.size());
        let (device, inode) = (metadata.dev(), metadata.ino());
        let nanoseconds = i128::from(metadata.mtime()) * 1_000_000_000;
        let changed = nanoseconds + i128::from(metadata.mtime_nsec());
        format!("{format} {size} {device} {inode} {changed}")
    };
    chain.iter().map(file).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_to_without_a_trace_is_not_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, "one").unwrap();
        let info = |filename: &str| Info {
            filename: filename.to_owned(),
            format: "raw".to_owned(),
            virtual_size: 512,
        };
        let file = info(&path.display().to_string());
        assert!(are_files(std::slice::from_ref(&file)));
        for other in ["/dev/null", "https://example.org/disk"] {
            assert!(!are_files(&[file.clone(), info(other)]), "{other}");
        }
    }

    #[test]
    fn an_image_that_is_written_to_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, "one").unwrap();
        let filename = path.display().to_string();
        let info = |format: &str| Info {
            filename: filename.clone(),
            format: format.to_owned(),
            virtual_size: 512,
        };
        let before = identity(&[info("raw")]);
        assert_eq!(identity(&[info("raw")]), before);
        assert_ne!(identity(&[info("qcow2")]), before, "read in another way");
        assert_ne!(identity(&[info("raw"), info("raw")]), before, "based on another");
        std::fs::write(&path, "four").unwrap();
        assert_ne!(identity(&[info("raw")]), before);
    }
}
