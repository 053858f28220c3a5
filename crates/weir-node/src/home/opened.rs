//! A note beside the journal of a volume, with the name of the volume: it is there while the volume is open, and until
//! it was closed with everything in the store. The journal itself does not say so, and the store may be unreachable
//! when somebody asks (`weir status`).
//!
//! No decision about data depends on the note, so an error of the disk here fails no opening and no close.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use weir_device::VolumeId;
use weir_log::Closed;
use weir_log::catalog::VolumeName;

use crate::data_directory::DataDirectory;

/// Notes that the volume is open for writing.
pub(crate) fn note(data: &DataDirectory, id: VolumeId, name: &VolumeName) {
    let path = data.opened_as(id);
    if noted(data, id).as_ref() == Some(name) {
        return;
    }
    if let Err(error) = write(&path, name) {
        tracing::warn!(volume = %name, path = %path.display(), %error, "the name was not noted");
    }
}

fn write(path: &Path, name: &VolumeName) -> io::Result<()> {
    // Written to a new file and renamed, so that nobody reads half a name.
    let new = path.with_extension("new");
    let mut options = std::fs::File::options();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    weir_disk::adopt_file(&file, &new)?;
    io::Write::write_all(&mut file, format!("{name}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

/// Removes the note, if the volume was closed with everything in the store.
pub(crate) fn note_closed(data: &DataDirectory, id: VolumeId, closed: Closed) {
    let path = data.opened_as(id);
    let removed = match closed {
        Closed::Clean => std::fs::remove_file(&path),
        // Its journal still holds what the store lacks.
        Closed::LocalOnly => Ok(()),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the note of an open volume stays");
        }
        _ => {}
    }
}

/// The name of a volume that is open, or was not closed with everything in the store.
pub(crate) fn noted(data: &DataDirectory, id: VolumeId) -> Option<VolumeName> {
    let text = std::fs::read_to_string(data.opened_as(id)).ok()?;
    VolumeName::new(text.trim_end()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_noted_until_the_store_has_everything() {
        let directory = tempfile::tempdir().unwrap();
        let (data, id) = (DataDirectory::at(directory.path()).unwrap(), VolumeId([7; 16]));
        std::fs::create_dir_all(data.volume(id)).unwrap();
        assert_eq!(noted(&data, id), None);
        for name in ["demo", "renamed"] {
            let name = VolumeName::new(name).unwrap();
            note(&data, id, &name);
            assert_eq!(noted(&data, id), Some(name));
        }
        note_closed(&data, id, Closed::LocalOnly);
        assert!(noted(&data, id).is_some());
        note_closed(&data, id, Closed::Clean);
        assert_eq!(noted(&data, id), None);
        note_closed(&data, id, Closed::Clean);
        std::fs::write(data.opened_as(id), "no/name").unwrap();
        assert_eq!(noted(&data, id), None);
    }
}
