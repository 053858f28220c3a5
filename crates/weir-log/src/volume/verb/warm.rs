//! Warming the cache on the local disk with what a volume holds, or one of its snapshots.

use std::convert::Infallible;
use std::rc::Rc;

use weir_device::{ByteRange, DeviceError, ErrorKind};

use crate::limits::APPLY_STEP_EXTENTS;
use crate::read::warm::{self, Wanted, WarmReport};
use crate::read::{Part, resolve, resolve_objects};
use crate::snapshot::view::SnapshotView;
use crate::volume::LogVolume;
use crate::volume::shared::Shared;

impl LogVolume {
    /// Brings what objects hold of `range` to the cache on the local disk, or as much of a snapshot. What the journal
    /// holds is there already. `on_progress` hears of bytes done and bytes in all. Clients do not wait for it.
    ///
    /// # Errors
    /// A range that is empty or goes beyond the volume, no cache, one that is too small, a store that fails, or that
    /// the volume was closed, failed, was set back or shrunk. What is not cached in the end is no error: the report
    /// says so.
    pub async fn warm(
        &self,
        snapshot: Option<&SnapshotView>,
        range: ByteRange,
        on_progress: impl Fn(u64, u64),
    ) -> Result<WarmReport, DeviceError> {
        let shared = &self.shared;
        shared.check_owned()?;
        let size = snapshot.map_or_else(|| shared.state.borrow().size, |s| s.record().size);
        check_range(&range, size)?;
        let generation = shared.generation.get();
        let goes_on = || goes_on(shared, generation);
        goes_on()?;
        let fetcher = snapshot.map_or(&shared.fetcher, |snapshot| &snapshot.fetcher);
        let wanted = async || of_map(shared, snapshot, &range).await;
        let warming = warm::warm(fetcher, wanted, &goes_on, &on_progress);
        // Also in the middle of a read: a store that is away must not keep a close waiting.
        let ended = shared.wait_in_background::<Infallible>(|_| {
            goes_on_unlocked(shared, generation).err().map(Err)
        });
        tokio::select! {
            biased;
            Err(error) = ended, if !weir_device::mutant("warming_outlives_its_volume") => Err(error),
            warmed = warming => warmed,
        }
    }
}

fn check_range(range: &ByteRange, size: u64) -> Result<(), DeviceError> {
    let (from, to) = (range.start, range.end);
    let wrong = match () {
        () if from >= size => format!(
            "the range begins at byte {from}, beyond the end of the volume, which has {size} bytes"
        ),
        () if from >= to => {
            format!("the range {from}..{to} is empty: give it as FROM..TO, as 1G..2G")
        }
        () if to > size => {
            format!("the range {from}..{to} goes beyond the volume, which has {size} bytes")
        }
        () => return Ok(()),
    };
    Err(DeviceError::new(ErrorKind::Invalid, wrong))
}

/// Whether the volume still is what it was.
fn goes_on(shared: &Shared, generation: u64) -> Result<(), DeviceError> {
    shared.check_failure()?;
    goes_on_unlocked(shared, generation)
}

/// The same without its failure, where the state is borrowed.
fn goes_on_unlocked(shared: &Shared, generation: u64) -> Result<(), DeviceError> {
    shared.check_not_closing()?;
    if shared.generation.get() != generation {
        let message = "the volume was set back to a snapshot meanwhile: warm it again";
        return Err(DeviceError::new(ErrorKind::Unavailable, message));
    }
    Ok(())
}

/// What a range is made of, some parts of the map at a time.
async fn of_map(
    shared: &Rc<Shared>,
    snapshot: Option<&SnapshotView>,
    range: &ByteRange,
) -> Result<Wanted, DeviceError> {
    let (mut wanted, mut at) = (Wanted::default(), range.start);
    while at < range.end {
        let (from, mut parts) = (at, 0);
        let mut add = |part: Part| {
            wanted.add(&part);
            at = part.offset + part.len;
            parts += 1;
            parts < APPLY_STEP_EXTENTS
        };
        match snapshot {
            None => {
                let state = shared.state.borrow();
                resolve(&state.writes.overlay, &state.head.objects, from, range.end - from, add);
            }
            Some(view) => drop(resolve_objects(&view.objects, from, range.end, &mut add)),
        }
        tokio::task::yield_now().await;
        shared.check_stopped()?;
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_none_says_why() {
        let why =
            |start, end| check_range(&ByteRange { start, end }, 4096).map_err(|e| e.to_string());
        assert_eq!(why(0, 4096), Ok(()));
        // What `5G..` of a smaller volume is.
        let beyond = why(8192, 4096).unwrap_err();
        assert!(beyond.contains("beyond the end of the volume, which has 4096 bytes"), "{beyond}");
        assert!(why(7, 7).unwrap_err().contains("is empty"));
        assert!(why(7, 8192).unwrap_err().contains("goes beyond the volume"));
    }
}
