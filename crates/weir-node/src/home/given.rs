//! A record beside the journal of a volume: the tag that was given with exclusive access, and to which session. It says
//! that nobody else has written since, and so it holds only for the opening that follows the one that wrote it, here,
//! with the journal in place: in every other case another node may have written, or something may be lost.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use weir_device::{DeviceError, ErrorKind};
use weir_frontend::nbd::Given;
use weir_log::OpenReport;

use crate::error::NodeError;
use crate::home::Consent;
use crate::home::opened::replace_file;

/// Where the record of an opening is.
#[derive(Clone, Debug)]
pub(crate) struct GivenRecord {
    pub(crate) path: PathBuf,
    /// Number of the opening.
    pub(crate) epoch: u64,
    /// How many times it was asked to write, and the newest of them that was begun. A caller may go away while its
    /// file is being written: an older one never takes the place of a newer one.
    asked: Arc<AtomicU64>,
    written: Arc<Mutex<u64>>,
}

impl GivenRecord {
    pub(crate) fn new(path: PathBuf, epoch: u64) -> Self {
        let (asked, written) = Default::default();
        Self { path, epoch, asked, written }
    }

    /// Writes down what was given in this opening, durably.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) async fn keep(&self, given: Option<Given>) -> Result<(), DeviceError> {
        let (record, shown) = (self.clone(), self.path.display().to_string());
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let keeping = spawn_blocking(move || {
            let mut written = record.written.lock().unwrap_or_else(PoisonError::into_inner);
            if *written > number {
                return Ok(());
            }
            *written = number;
            keep(&record.path, record.epoch, given)
        });
        let kept = keeping.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        kept.map_err(|error| {
            DeviceError::new(ErrorKind::Unavailable, format!("writing {shown}: {error}"))
        })
    }

    /// As [`restore`], of this opening. Where the operator has consented to something, what is there may be a copy, or
    /// less than there was.
    pub(crate) fn restore(
        &self,
        report: &OpenReport,
        consent: Consent,
    ) -> Result<Option<Given>, NodeError> {
        let restored = match consent == Consent::default() {
            true => restore(&self.path, report),
            false => keep(&self.path, self.epoch, None).map(|()| None),
        };
        restored.map_err(|error| NodeError::io("writing", self.path.display().to_string(), error))
    }
}

/// The text of the record.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The opening that wrote it.
    epoch: u64,
    tag: [u8; 16],
    session: [u8; 16],
    shown: Option<[u8; 16]>,
}

/// What is known at this opening, which writes it down as its own. Where nothing is known the record goes.
///
/// # Errors
/// It cannot be written or removed: the volume must not be served, since a later opening could believe it.
fn restore(path: &Path, report: &OpenReport) -> io::Result<Option<Given>> {
    let is_whole = !report.new_journal && report.poisoned_ranges == 0;
    let found = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found,
    };
    let record = found.ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
    let record =
        record.filter(|record| is_whole && record.epoch.checked_add(1) == Some(report.epoch));
    let given = record.map(|Record { tag, session, shown, .. }| Given { tag, session, shown });
    keep(path, report.epoch, given)?;
    Ok(given)
}

/// Writes down what was given in the opening of this epoch, durably.
///
/// # Errors
/// What the disk says.
fn keep(path: &Path, epoch: u64, given: Option<Given>) -> io::Result<()> {
    let Some(Given { tag, session, shown }) = given else {
        return match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_parent(path),
        };
    };
    let text = serde_json::to_string(&Record { epoch, tag, session, shown })?;
    replace_file(path, &text)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| std::fs::File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_for_the_next_opening_with_the_journal_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("given");
        let given = Some(Given { tag: [1; 16], session: [2; 16], shown: Some([3; 16]) });
        let report = |epoch| OpenReport { epoch, ..OpenReport::default() };
        assert_eq!(restore(&path, &report(4)).unwrap(), None);
        keep(&path, 4, given).unwrap();
        assert_eq!(restore(&path, &report(5)).unwrap(), given);
        assert_eq!(restore(&path, &report(6)).unwrap(), given, "each opening writes it anew");
        assert_eq!(restore(&path, &report(8)).unwrap(), None, "another node was in between");
        assert_eq!(restore(&path, &report(9)).unwrap(), None);
        for lost in [
            OpenReport { new_journal: true, ..report(5) },
            OpenReport { poisoned_ranges: 1, ..report(5) },
        ] {
            keep(&path, 4, given).unwrap();
            assert_eq!(restore(&path, &lost).unwrap(), None);
            assert_eq!(restore(&path, &report(6)).unwrap(), None);
        }
        keep(&path, 4, given).unwrap();
        keep(&path, 4, None).unwrap();
        keep(&path, 4, None).unwrap();
        assert_eq!(restore(&path, &report(5)).unwrap(), None);
        std::fs::write(&path, "no record").unwrap();
        assert_eq!(restore(&path, &report(5)).unwrap(), None);
    }
}
