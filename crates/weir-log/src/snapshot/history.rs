//! What changed on a snapshot since an earlier one, range by range, for clients that ask as they read.
//!
//! The comparison is that of `changes`. Here it is kept open: the indices of both maps, the pieces that differ, and
//! the runs of the last few pieces that were compared, because clients ask on from where an answer ended.
//!
//! Invariants
//!  Y1. The earlier snapshot is the one that was there when the view was opened, by its checkpoint and not by its name.
//!      Its objects never change; once it is deleted they may be gone, and then the comparison fails.
//!  Y2. A run is reported as unchanged only if both maps point at the same bytes there. What could not be read is an
//!      error.
//!  Y3. What lies beyond the end of the earlier snapshot counts as changed, whatever it holds.

use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Mutex;
use weir_device::{ByteRange, ChangedRun, DeviceError, Env, ErrorKind, VolumeId};
use weir_extent::PIECE_BYTES;
use weir_seal::DataKey;
use weir_store::Store;

use crate::error::LogError;
use crate::format::manifest::{Manifest, Origin};
use crate::limits::COMPARED_PIECES_MAX;
use crate::map::pieces::{PieceIndex, PieceReader, differing};
use crate::snapshot::changes::changes_of;

/// The earlier snapshots of a snapshot, and what is known of the way from them.
#[derive(Debug, Default)]
pub(crate) struct Comparisons {
    /// What opens the maps, if they are sealed.
    key: Option<DataKey>,
    /// The snapshot itself.
    root: Option<Origin>,
    after: Mutex<Option<Rc<PieceIndex>>>,
    names: Vec<String>,
    since: BTreeMap<String, Earlier>,
}

/// An earlier snapshot. One request at a time looks at it.
#[derive(Debug)]
struct Earlier {
    root: Origin,
    size: u64,
    open: Mutex<Option<Comparison>>,
}

/// Two maps that are being compared.
#[derive(Debug)]
struct Comparison {
    before: Rc<PieceIndex>,
    after: Rc<PieceIndex>,
    /// Pieces that are not the same in both, in order.
    differing: Vec<u64>,
    compared: Compared,
}

/// The pieces that were compared last.
#[derive(Debug, Default)]
struct Compared {
    numbers: Vec<u64>,
    /// What changed in them: in order, and no two touch.
    changed: Vec<ByteRange>,
}

impl Comparisons {
    /// Those of the snapshot `name`.
    pub(crate) fn of(manifest: &Manifest, name: &str, key: Option<DataKey>) -> Self {
        let volume = VolumeId(manifest.volume.0);
        let position = manifest.snapshots.iter().position(|s| s.name == name && !s.deleting);
        let Some(position) = position else { return Self::default() };
        let earlier = manifest.snapshots[..position].iter().filter(|s| !s.deleting);
        let (mut names, mut since) = (Vec::new(), BTreeMap::new());
        for record in earlier {
            let (root, size) = (record.root(volume), record.size);
            names.push(record.name.clone());
            since.insert(record.name.clone(), Earlier { root, size, open: Mutex::default() });
        }
        let root = Some(manifest.snapshots[position].root(volume));
        Self { key, root, after: Mutex::default(), names, since }
    }

    /// Names of the earlier snapshots, oldest first.
    pub(crate) fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// What changed in a range of the snapshot since the earlier one `since`, as at most `runs_max` runs.
    pub(crate) async fn changed(
        &self,
        (store, env): (&Store, &Env),
        since: &str,
        range: ByteRange,
        runs_max: usize,
    ) -> Result<Vec<ChangedRun>, DeviceError> {
        let (Some(earlier), Some(root)) = (self.since.get(since), self.root) else {
            let message = format!("there is no earlier snapshot {since:?} to compare with");
            return Err(DeviceError::new(ErrorKind::NotFound, message));
        };
        let failed = |error: LogError| {
            let message = format!("what changed since {since:?} cannot be told: {error}");
            DeviceError::new(error.kind(), message)
        };
        let mut open = earlier.open.lock().await;
        if open.is_none() {
            let key = self.key.as_ref();
            let before = PieceIndex::read(store, env, key, earlier.root).await.map_err(failed)?;
            let after = self.after(store, env, root).await.map_err(failed)?;
            *open = Some(Comparison::of(Rc::new(before), after));
        }
        let comparison = open.as_mut().expect("opened just now");
        comparison.changed(store, env, earlier.size, range, runs_max).await.map_err(failed)
    }

    async fn after(
        &self,
        store: &Store,
        env: &Env,
        root: Origin,
    ) -> Result<Rc<PieceIndex>, LogError> {
        let mut after = self.after.lock().await;
        if let Some(after) = &*after {
            return Ok(Rc::clone(after));
        }
        let read = Rc::new(PieceIndex::read(store, env, self.key.as_ref(), root).await?);
        *after = Some(Rc::clone(&read));
        Ok(read)
    }
}

impl Comparison {
    fn of(before: Rc<PieceIndex>, after: Rc<PieceIndex>) -> Self {
        let differing = differing(&before, &after);
        Self { before, after, differing, compared: Compared::default() }
    }

    async fn changed(
        &mut self,
        store: &Store,
        env: &Env,
        from_size: u64,
        range: ByteRange,
        runs_max: usize,
    ) -> Result<Vec<ChangedRun>, LogError> {
        let mut found = Runs { runs: Vec::new(), runs_max };
        let mut at = range.start;
        // Y3.
        let common_end = range.end.min(from_size);
        while at < common_end && !found.is_full() {
            let number = at / PIECE_BYTES;
            let next = self.differing.partition_point(|differing| *differing < number);
            let differing = self.differing.get(next).copied();
            if differing != Some(number) {
                let end = differing.map_or(common_end, |d| common_end.min(d * PIECE_BYTES));
                found.add(end - at, false);
                at = end;
                continue;
            }
            if !self.compared.numbers.contains(&number) {
                if !found.runs.is_empty() {
                    // The client asks on from here, and has an answer meanwhile.
                    return Ok(found.into_runs());
                }
                self.compare(store, env, next).await?;
            }
            let end = common_end.min((number + 1) * PIECE_BYTES);
            found.add_all(&self.compared.changed, ByteRange { start: at, end });
            at = end;
        }
        if at < range.end && !found.is_full() {
            found.add(range.end - at, true);
        }
        Ok(found.into_runs())
    }

    /// Compares the piece at `index` of those that differ, and some that follow.
    async fn compare(&mut self, store: &Store, env: &Env, index: usize) -> Result<(), LogError> {
        // What fails must not leave a part that looks like all (Y2).
        self.compared = Compared::default();
        let numbers = self.differing[index..].iter().copied().take(COMPARED_PIECES_MAX);
        let numbers: Vec<u64> = numbers.collect();
        let mut before = PieceReader::new(store, env, Rc::clone(&self.before));
        let mut after = PieceReader::new(store, env, Rc::clone(&self.after));
        before.fetch(&numbers).await?;
        after.fetch(&numbers).await?;
        let mut changed: Vec<ByteRange> = Vec::new();
        for number in &numbers {
            for change in changes_of(&before, &after, *number, u64::MAX)? {
                let (start, end) = (change.offset, change.offset + change.len);
                match changed.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => changed.push(ByteRange { start, end }),
                }
            }
        }
        self.compared = Compared { numbers, changed };
        Ok(())
    }
}

/// Runs of an answer, alternating.
struct Runs {
    runs: Vec<ChangedRun>,
    runs_max: usize,
}

impl Runs {
    /// Whether the last run that has a place has ended.
    fn is_full(&self) -> bool {
        self.runs.len() > self.runs_max
    }

    fn into_runs(mut self) -> Vec<ChangedRun> {
        self.runs.truncate(self.runs_max);
        self.runs
    }

    fn add(&mut self, len: u64, changed: bool) {
        match self.runs.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.changed == changed => last.len += len,
            _ => self.runs.push(ChangedRun { len, changed }),
        }
    }

    fn add_all(&mut self, changed: &[ByteRange], range: ByteRange) {
        let mut at = range.start;
        let first = changed.partition_point(|run| run.end <= at);
        for run in &changed[first..] {
            if run.start >= range.end || self.is_full() {
                break;
            }
            let (start, end) = (run.start.max(at), run.end.min(range.end));
            self.add(start - at, false);
            self.add(end - start, true);
            at = end;
        }
        if !self.is_full() {
            self.add(range.end - at, false);
        }
    }
}
