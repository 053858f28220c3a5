//! What a user can do about an error, where that takes more than a word.

use std::io;

use weir_device::ErrorKind;
use weir_disk::DiskError;
use weir_journal::JournalError;
use weir_log::{LogError, RefusalReason};

use super::{NodeError, ProcessId, SILENT};

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

/// What to do where a volume is attached to a running process, or detached from it.
pub(super) fn live_help(error: &NodeError) -> Option<String> {
    Some(match error {
        NodeError::Connected { name, .. } => format!(
            "unmount it and end what uses it, then try again; `weir volume detach {name} --disconnect` sends away \
             those that do not go"
        ),
        NodeError::NotServedHere { name } => format!(
            "`weir volume list` says which process serves what, and on which host; where none does, `weir volume \
             attach {name}` serves it here"
        ),
        NodeError::KeptInJournal { name } => format!(
            "once the store answers, weir volume flush {name} takes the rest there; until then no other node can open \
             it without a loss"
        ),
        NodeError::SingleVolume { .. } => {
            "end that process instead, or serve many volumes with weir serve".into()
        }
        NodeError::PlainParent { snapshot } => format!(
            "`weir volume copy {snapshot} NAME --encrypt` makes a copy that is; for a plain clone leave away \
             --encrypt, and encrypt in the configuration"
        ),
        NodeError::Changing { .. } => "try again when it has ended".into(),
        NodeError::NoAnswer { process: ProcessId(Some(id)), reason, .. } if reason == SILENT => {
            format!(
                "`ps -o stat= -p {id}` says T where it was stopped, and `kill -CONT {id}` lets it go on then; \
                 otherwise its log may say what it waits for"
            )
        }
        NodeError::ReplicaInUse { .. } => {
            "one replicator keeps a replica: end that one (`weir replicate`, or `replicate_to` of a `weir serve`), or \
             let it go on"
                .into()
        }
        NodeError::NothingToDiscard { .. } => {
            "`weir status` names the journals here and the --store of each: name the one that was meant".into()
        }
        NodeError::TooMuch { .. } => "try again once one of them has ended".into(),
        NodeError::TakenBack { name } => {
            format!("`weir volume attach {name}` serves it, if it is wanted")
        }
        NodeError::ServedOtherwise { name, .. } => {
            format!(
                "detach it first (weir volume detach {name}), and attach it again as it is to be"
            )
        }
        NodeError::SnapshotOpen { export } => format!(
            "disconnect them first; it is closed when the last one has left; `weir volume detach {} --disconnect` \
             sends away all clients of the volume and its snapshots",
            export.split('@').next().unwrap_or_default()
        ),
        _ => return None,
    })
}

pub(super) fn salvage_help(name: &str) -> String {
    format!(
        "`weir volume salvage {name} NEW` makes a volume of them, which needs this one until it is flattened; \
         --discard-journal gives them up"
    )
}

/// What to do about an error of a volume.
pub(super) fn log_help(error: &LogError) -> Option<String> {
    let help = match error {
        LogError::Incomplete { .. } => {
            "run the import, copy or salvage again, which goes on with it, or begins anew with --overwrite where it \
             reads a stream; or delete the volume"
        }
        LogError::Journal(JournalError::NotAJournal { .. } | JournalError::WrongVolume { .. }) => {
            "put the right file back; or move it away, and pass --take-over to go on with what the store holds"
        }
        LogError::Journal(error) if error.kind() == ErrorKind::NoSpace => ROOM_HELP,
        LogError::InUse { .. } => {
            "close it there: `weir volume detach` with its name on that host, or end the process that serves it"
        }
        LogError::Held { .. } => {
            "start it there, if that host is to be had; --take-over goes on without what only its journal holds, of \
             which `weir volume salvage` makes a volume there later"
        }
        LogError::Deleted { .. } => {
            "where its name is still there, its deletion was cut off: `weir volume delete` with the name ends it"
        }
        LogError::Dependants { .. } => "flatten or delete those clones first",
        LogError::JournalRefused { refusal, .. } => {
            return Some(format!(
                "{}. The options are those of `weir up`, for which what serves this data directory has to be stopped",
                refusal_help(&refusal.reason)
            ));
        }
        _ => return None,
    };
    Some(help.to_owned())
}

/// What to do about a journal that is not gone on with.
fn refusal_help(reason: &RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Superseded => {
            "`weir volume salvage` first, if what the journal holds is wanted; --discard-journal then opens the volume"
        }
        RefusalReason::OtherHistory => {
            "bring back the newest store; where that is gone, it lacks what was stored between the opening that it is \
             at and the first write of the journal, so that nothing that ever was can be made of both, and `weir \
             volume salvage` makes no volume of them: copy the volume's directory before --discard-journal gives the \
             journal up, if the newer store may be found again"
        }
        RefusalReason::SetBack { .. } => {
            "bring back the newest data directory, if there is one; otherwise choose with --accept-loss or \
             --discard-journal what is given up"
        }
        RefusalReason::StoreSetBack { .. } => {
            "bring back the newest store, if there is one; otherwise choose with --accept-loss or --discard-journal \
             what is given up; the latter needs --take-over as well, which waits until the lease of this opening has \
             ended"
        }
        RefusalReason::Copied => {
            "--adopt-journal, if nobody uses the other file any more; never while its host may still open the volume"
        }
    }
}

pub(super) fn gone_help(store: &str, record: &str) -> String {
    format!(
        "mount it, or give the URL that was used before; to begin anew there, take the line {store} out of {record}; \
         if it is gone for good, so are its volumes but for what their journals hold, which weir status names with \
         their directories: these can be removed once that is not needed"
    )
}

pub(super) fn io_help(error: &io::Error, subject: &str) -> Option<String> {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(format!(
            "free some space on the file system of {subject}, or choose another --data-dir"
        )),
        io::ErrorKind::ReadOnlyFilesystem => Some(
            "make its file system writable; if the disk failed, copy the directory to another one, and open its \
             volumes there with --data-dir and --adopt-journal, which keeps what its journals hold"
                .to_owned(),
        ),
        io::ErrorKind::PermissionDenied => {
            Some("choose a writable directory with --data-dir".to_owned())
        }
        io::ErrorKind::AddrInUse => {
            Some("end the process that listens there, or choose another port".to_owned())
        }
        _ => None,
    }
}
