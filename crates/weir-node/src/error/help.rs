//! What a user can do about an error, where that takes more than a word.

use weir_device::ErrorKind;
use weir_disk::DiskError;

/// What to do where a file cannot be opened as a volume.
pub(super) fn image_help(error: &DiskError) -> Option<String> {
    Some(match error {
        DiskError::ImageInUse { .. } => {
            "end what uses it first; several can serve it only if all of them do so with --read-only"
                .into()
        }
        DiskError::NoDirectIo { .. } => {
            "serve it through the page cache, without --file-direct".into()
        }
        error if error.kind() == ErrorKind::NotFound => {
            "a file is made with --size SIZE, or size in the configuration, in a directory that is there, and not \
             where it is only read".into()
        }
        error if error.kind() == ErrorKind::Busy => {
            "it is mounted, or part of another device such as a RAID: see findmnt and lsblk".into()
        }
        _ => return None,
    })
}

/// What to do where a journal has no room.
pub(super) const ROOM_HELP: &str = "free some space there, or choose another --data-dir";

pub(super) fn size_help(name: &str) -> String {
    format!(
        "`weir volume create {name} --size 10G` creates it; `weir up` and `weir volume attach` do so where they are \
         given a --size"
    )
}

pub(super) fn unknown_help(name: &str) -> String {
    format!(
        "`weir volume salvage {name} --dry-run` says what it holds once that is mended; --discard-journal gives it up"
    )
}

pub(super) fn left_help(name: &str) -> String {
    format!(
        "no volume can be made of it any more: `weir volume delete {name} --discard-journal` removes it"
    )
}

pub(super) fn lost_help(name: &str) -> String {
    format!(
        "put the store back as it was; where {name} is gone for good, move the directory of that journal away"
    )
}
