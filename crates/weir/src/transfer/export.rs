//! Writing a volume into an image, which is `NAME.part` until all of it is there.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use weir_node::size::human;
use weir_node::{CopyRecord, Node};

use super::copier::{self, Job};
use super::fill::follows;
use super::place::{Place, VolumeAt, reach_to_read};
use super::qemu;
use crate::process::signals::Signals;
use crate::settings::Transfer;
use crate::terminal::failure::Failure;
use crate::terminal::output::say_of_work;

/// What is to be written.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    path: PathBuf,
    format: String,
    overwrite: bool,
}

/// An image that was written.
#[derive(Debug, Serialize)]
pub(crate) struct Exported {
    /// Its path.
    pub(crate) path: String,
    /// Its format.
    pub(crate) format: String,
    /// Bytes of the disk.
    pub(crate) size_bytes: u64,
    /// Bytes that it takes in its file system.
    pub(crate) file_bytes: u64,
}

fn failed(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{action} {}: {error}", path.display()))
}

impl Wanted {
    /// Checks what can be checked before the volume is touched.
    pub(super) fn new(
        path: &Path,
        format: Option<String>,
        overwrite: bool,
    ) -> Result<Self, Failure> {
        let path = std::path::absolute(path).map_err(|error| failed("writing", path, &error))?;
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("writing", &path, &error)),
            Ok(metadata) if !metadata.is_file() => {
                let message = format!("{} is no file", path.display());
                return Err(Failure::new(message).with_help(
                    "name a file; for a disk: weir up NAME -- sh -c 'qemu-img convert -n -O raw \"$WEIR_URI\" DISK'",
                ));
            }
            Ok(_) if overwrite => {}
            Ok(_) => {
                return Err(Failure::new(format!("{} exists already", path.display()))
                    .with_help("choose another name, or pass --overwrite"));
            }
        }
        let format = format.unwrap_or_else(|| qemu::format_of(&path).to_owned());
        Ok(Self { path, format, overwrite })
    }

    fn part(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".part");
        name.into()
    }
}

/// What tells a file from another that was put in its place, and from one with other bytes.
fn identity(format: &str, path: &Path, source: &str) -> std::io::Result<String> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok(format!("{format} {} {} of {source}", metadata.dev(), metadata.ino()))
}

/// Writes the image.
pub(super) async fn run(
    node: &Node,
    setup: &Transfer,
    source: &VolumeAt,
    wanted: &Wanted,
    signals: &mut Signals,
) -> Result<Exported, Failure> {
    let place = reach_to_read(node, setup, source, signals).await?;
    let written = write(&place, wanted, signals).await;
    let ended = place.end(signals).await;
    let size_bytes = written?;
    ended?;
    let metadata = std::fs::metadata(&wanted.path);
    let metadata = metadata.map_err(|error| failed("reading", &wanted.path, &error))?;
    Ok(Exported {
        path: wanted.path.display().to_string(),
        format: wanted.format.clone(),
        size_bytes,
        file_bytes: metadata.blocks() * 512,
    })
}

async fn write(place: &Place, wanted: &Wanted, signals: &mut Signals) -> Result<u64, Failure> {
    let part = wanted.part();
    let mut record = begin(place, wanted, &part).await?;
    let path = place.at.home.data.copy_record(place.id);
    let failed_record = |error: std::io::Error| failed("writing", &path, &error);
    record.write(&path).map_err(failed_record)?;
    if record.done_bytes > 0 {
        say_of_work!("going on after {} of {}", human(record.done_bytes), human(place.size));
    }
    let job = Job {
        source: qemu::nbd_node(&place.uri)?,
        source_bytes: place.size,
        target: qemu::file_node(&part, &wanted.format)?,
        target_bytes: place.size,
        target_is_zero: true,
        done_bytes: record.done_bytes,
        label: format!("copying {} to {}", place.at, wanted.path.display()),
    };
    let keep = async |done_bytes| {
        sync(&part)?;
        record.done_bytes = done_bytes;
        record.write(&path).map_err(failed_record)
    };
    let copied = copier::run(&job, signals, keep).await;
    copied.map_err(|failure| {
        place.with_way_to_read(failure.clone()).unwrap_or_else(|| {
            let part = part.display();
            let again = match place.is_served_elsewhere() {
                true => "to begin anew, as an export of a served volume does",
                false => "to go on where it stopped",
            };
            let help = format!("run the same command again {again}; removing {part} gives it up");
            failure.with_help(help)
        })
    })?;
    finish(place, wanted, &part)?;
    // It says nothing any more; one that stays names a file that is gone.
    let _ = std::fs::remove_file(&path);
    Ok(place.size)
}

/// The record of the copy to go on with, or a blank file and its record.
async fn begin(place: &Place, wanted: &Wanted, part: &Path) -> Result<CopyRecord, Failure> {
    let (Wanted { format, overwrite, .. }, source) = (wanted, place.identity());
    let path = place.at.home.data.copy_record(place.id);
    let record = CopyRecord::read(&path).map_err(|error| failed("reading", &path, &error))?;
    let name = wanted.path.display().to_string();
    if let Ok(there) = identity(format, part, &source) {
        let ours = record.filter(|record| record.name == name && record.identity == there);
        match ours {
            Some(mut record) if follows(place.opening, record.opening) => {
                record.opening = place.opening;
                return Ok(record);
            }
            Some(_) => say_of_work!("the volume was open since the last try: beginning anew"),
            None if *overwrite => {}
            None => {
                return Err(Failure::new(format!("{} exists already", part.display())).with_help(
                    "another export left it, or writes it; remove it, or pass --overwrite",
                ));
            }
        }
        std::fs::remove_file(part).map_err(|error| failed("removing", part, &error))?;
    }
    qemu::create(part, format, place.size).await?;
    let identity =
        identity(format, part, &source).map_err(|error| failed("reading", part, &error))?;
    Ok(CopyRecord::new(name, identity, place.opening, true))
}

fn sync(path: &Path) -> Result<(), Failure> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| failed("syncing", path, &error))
}

/// Gives the file its name.
fn finish(place: &Place, wanted: &Wanted, part: &Path) -> Result<(), Failure> {
    if wanted.format == "raw" {
        // It was created with whole sectors.
        let file = OpenOptions::new().write(true).open(part);
        let cut = file.and_then(|file| file.set_len(place.size));
        cut.map_err(|error| failed("writing", part, &error))?;
    }
    sync(part)?;
    if !wanted.overwrite && wanted.path.exists() {
        return Err(Failure::new(format!("{} appeared meanwhile", wanted.path.display()))
            .with_help(format!("move it away, and rename {}: it is whole", part.display())));
    }
    std::fs::rename(part, &wanted.path).map_err(|error| failed("renaming", part, &error))?;
    sync(wanted.path.parent().unwrap_or(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_written_over_unless_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        assert_eq!(Wanted::new(&path, None, false).unwrap().format, "raw");
        std::fs::write(&path, "x").unwrap();
        assert!(Wanted::new(&path, None, false).is_err());
        let wanted = Wanted::new(&path, Some("qcow2".to_owned()), true).unwrap();
        assert_eq!(wanted.part(), directory.path().join("disk.img.part"));
        assert!(Wanted::new(directory.path(), None, true).is_err(), "a directory never");
    }
}
