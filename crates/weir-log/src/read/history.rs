//! Which history an object is of. Where a store was set back, other objects get the names of those that are gone; an
//! object's opening tells them apart.

use std::collections::HashMap;
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};
use weir_device::{DeviceError, ErrorKind, VolumeId};
use weir_journal::Epoch;

use crate::format::manifest::{EpochEntry, HexId, Manifest};
use crate::ids::ObjectId;
use crate::read::fetch::{Fetcher, header};

/// Which history the objects of a volume's own stream are of, by their epochs.
#[derive(Debug)]
pub(crate) struct Histories(Vec<(Epoch, HexId)>);

impl Histories {
    /// As the manifest says.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let named = |entry: &EpochEntry| Some((Epoch(entry.epoch), entry.opening?));
        Self(manifest.epochs.iter().filter_map(named).collect())
    }

    /// The openings that have names.
    pub(super) fn named(&self) -> impl Iterator<Item = (Epoch, HexId)> {
        self.0.iter().copied()
    }

    /// The opening of that epoch, or else the next one that has a name: it goes on from exactly one history.
    pub(super) fn find(&self, epoch: Epoch) -> Option<HexId> {
        if weir_device::mutant("cache_without_history") {
            return None;
        }
        let next = self.0.partition_point(|(known, _)| *known < epoch);
        self.0.get(next).map(|(_, opening)| *opening)
    }
}

/// The openings that are being asked for, by the epochs of their streams: once, whoever waits. Without anybody who
/// waits it is given up.
pub(super) type Learning = HashMap<(VolumeId, Epoch), WeakShared<Asking>>;

type Asking = LocalBoxFuture<'static, Result<(), DeviceError>>;
type Asked = Shared<Asking>;

/// Finds out which opening wrote the objects of an epoch, from the header of one that the store has now: what memory
/// knows may be of a history that was given up since.
pub(super) async fn learn(fetcher: &Rc<Fetcher>, object: ObjectId) -> Result<(), DeviceError> {
    let epoch = (object.stream, object.epoch);
    while fetcher.disk.is_unknown(object) {
        let begun = fetcher.learning.borrow().get(&epoch).and_then(WeakShared::upgrade);
        let Some(begun) = begun else { return begin(fetcher, object).await };
        match begun.await {
            // That is said of the object that was asked, and not of this one.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {}
            learned => return learned,
        }
    }
    Ok(())
}

/// Asks an object. Others of its epoch wait for that as well.
fn begin(fetcher: &Rc<Fetcher>, object: ObjectId) -> Asked {
    let (of, epoch) = (Rc::clone(fetcher), (object.stream, object.epoch));
    let asked = async move {
        let learned = header(&of, object).await;
        of.learning.borrow_mut().remove(&epoch);
        learned.map(drop)
    };
    let asked = asked.boxed_local().shared();
    fetcher.learning.borrow_mut().extend(asked.downgrade().map(|weak| (epoch, weak)));
    asked
}

/// Has the history of an object known: that of the volume's own stream is, and of others it is learned.
pub(super) async fn know_history(
    fetcher: &Rc<Fetcher>,
    object: ObjectId,
) -> Result<(), DeviceError> {
    if fetcher.is_of_unknown_history(object) {
        learn(fetcher, object).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_name_have_a_history_each() {
        let [third, fifth] = [HexId([3; 16]), HexId([5; 16])];
        let histories = Histories(vec![(Epoch(3), third), (Epoch(5), fifth)]);
        // Those of older programs, and of entries that are gone, are of the history that the next one goes on from.
        let found = [1, 3, 4, 5, 6].map(|epoch| histories.find(Epoch(epoch)));
        assert_eq!(found, [Some(third), Some(third), Some(fifth), Some(fifth), None]);
    }
}
