//! The oracle: what a byte of the volume may be, by the device contract and the prefix rule.
//!
//! Time is a count of events: every call and every answer has a moment of its own. The volume is cut into segments,
//! each with the writes that may show there. A write is *superseded* as of a moment `T` where another write of the
//! segment is later than it (was issued after it was answered, or was seen to win) and is *applied* as of `T` (was
//! answered by then). A read issued at `T` must show, at every byte, a write that is not superseded as of `T`.
//!
//! A crash is the same question with another `T`: after `kill -9` it is the crash itself; after power loss, the newest
//! successful flush (its issue); after loss of the disk, the newest successful remote flush. Beyond that point
//! causality holds: if a write shows anywhere, everything that was answered before it was issued is applied, so `T`
//! rises to the issue of the newest write that shows, until nothing changes. And a write that fits a record of the
//! journal shows whole: where a part of it does, nothing that is certainly older shows where the rest would have to be.
//!
//! What recovery shows is definite from then on: a write that does not show where it would have to be on top is gone
//! for good, and one that shows is on top of all others there.

mod matching;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::{BTreeMap, BTreeSet};

use weir_device::{Extent, ExtentState};

use self::matching::{Run, match_segment};
use crate::content::{Pattern, WriteId, fill};
use crate::islands::Islands;

/// Longest run of zeroes that extents may report as data: the collector closes holes of 8 KiB, some side by side.
const PLUGGED_BYTES_MAX: u64 = 32 << 10;

/// A point in the order of events.
pub(crate) type Moment = u64;

/// A write, discard or zeroing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) pattern: Pattern,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) issued: Moment,
    pub(crate) acked: Option<Moment>,
    /// It was never answered, and whoever was to carry it out has let go of it: if it happened, it was before.
    ended: Option<Moment>,
    /// Answered with forced unit access.
    pub(crate) fua: bool,
    /// It fits one record of the journal, so that it shows whole or not at all.
    whole: bool,
}

impl Write {
    /// Whether nothing of it happened after `moment`.
    fn is_over_by(&self, moment: Moment) -> bool {
        self.acked.or(self.ended).is_some_and(|at| at <= moment)
    }
}

/// A write that may show in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) id: WriteId,
    /// Higher is later, whatever the moments say: it was seen to win.
    rank: u32,
    /// It was seen, or another tied write of the same bytes: neither is known to be later.
    tied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    items: Vec<Item>,
    /// Only writes issued from here on supersede: what was there before could not be read.
    loose_before: Moment,
}

/// The latest applied writes of a segment: the highest rank, and the newest issue among those of that rank.
#[derive(Clone, Copy, Debug, Default)]
struct Bar {
    rank: u32,
    issued: Moment,
    tied_issued: Moment,
}

/// As of when writes are certainly applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// Everything answered by this moment.
    pub(crate) through: Moment,
    /// Also every write that was answered with forced unit access.
    pub(crate) fua: bool,
}

impl Point {
    /// Everything that was answered is certain.
    pub(crate) const ALL: Self = Self { through: Moment::MAX, fua: true };

    pub(crate) fn at(through: Moment) -> Self {
        Self { through, fua: false }
    }

    /// What is certain after both.
    pub(crate) fn min(self, other: Self) -> Self {
        Self { through: self.through.min(other.through), fua: self.fua && other.fua }
    }
}

/// What the volume shows after recovery.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) bytes: Vec<u8>,
    /// Ranges whose reading failed, and may fail: sorted, apart.
    pub(crate) unreadable: Vec<(u64, u64)>,
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub(crate) struct Violation(pub(crate) String);

#[derive(Clone)]
pub(crate) struct Oracle {
    size: u64,
    now: Moment,
    writes: Vec<Write>,
    segments: BTreeMap<u64, Segment>,
    flushed: Moment,
    /// When the last recovery was judged.
    recovered_at: Moment,
    remote: Moment,
    readers: BTreeSet<Moment>,
}

impl Oracle {
    pub(crate) fn new(size: u64) -> Self {
        let blank = Write {
            pattern: Pattern::Hole,
            offset: 0,
            len: size,
            issued: 0,
            acked: Some(1),
            ended: None,
            fua: false,
            whole: true,
        };
        let items = vec![Item { id: WriteId(0), rank: 0, tied: false }];
        Self {
            size,
            now: 1,
            writes: vec![blank],
            segments: BTreeMap::from([(0, Segment { items, loose_before: 0 })]),
            flushed: 0,
            recovered_at: 0,
            remote: 0,
            readers: BTreeSet::new(),
        }
    }

    pub(crate) fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    pub(crate) fn write(&self, id: WriteId) -> &Write {
        &self.writes[id.0 as usize]
    }

    /// Makes `at` the begin of a segment.
    fn cut(&mut self, at: u64) {
        if at >= self.size || self.segments.contains_key(&at) {
            return;
        }
        let before = self.segments.range(..at).next_back().expect("segments begin at 0");
        let copy = before.1.clone();
        self.segments.insert(at, copy);
    }

    /// Start, end and items of the segments that touch a range.
    fn touching(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &Segment)> {
        let first = self.segments.range(..=start).next_back().map_or(0, |(at, _)| *at);
        let starts = self.segments.range(first..end);
        let ends = self.segments.range(first + 1..).map(|(at, _)| *at);
        starts.zip(ends.chain([self.size])).map(|((at, segment), end)| (*at, end, segment))
    }

    /// A write, discard or zeroing is issued to an opening whose journal takes writes of up to `whole_bytes_max` as one
    /// record.
    pub(crate) fn begin_write(
        &mut self,
        offset: u64,
        len: u64,
        pattern: Pattern,
        whole_bytes_max: u64,
    ) -> WriteId {
        let issued = self.tick();
        let id = WriteId(u32::try_from(self.writes.len()).expect("few writes per seed"));
        let whole = pattern.is_zero() || len <= whole_bytes_max;
        let (acked, ended) = (None, None);
        self.writes.push(Write { pattern, offset, len, issued, acked, ended, fua: false, whole });
        if len > 0 {
            self.cut(offset);
            self.cut(offset + len);
            for (_, segment) in self.segments.range_mut(offset..offset + len) {
                let rank = segment.items.iter().map(|item| item.rank).max().unwrap_or(0);
                segment.items.push(Item { id, rank, tied: false });
            }
        }
        id
    }

    /// It was answered with success.
    pub(crate) fn end_write(&mut self, id: WriteId, fua: bool) {
        let now = self.tick();
        let write = &mut self.writes[id.0 as usize];
        write.acked = Some(now);
        write.fua = fua;
        if fua {
            self.flushed = self.flushed.max(write.issued);
        }
    }

    /// It will never be answered, and nothing of it happens from now on.
    pub(crate) fn end_unanswered(&mut self, id: WriteId) {
        let now = self.tick();
        self.writes[id.0 as usize].ended.get_or_insert(now);
    }

    pub(crate) fn begin_flush(&mut self) -> Moment {
        self.tick()
    }

    pub(crate) fn end_flush(&mut self, begun: Moment) {
        self.tick();
        self.flushed = self.flushed.max(begun);
    }

    pub(crate) fn end_remote_flush(&mut self, begun: Moment) {
        self.tick();
        self.remote = self.remote.max(begun);
        self.prune();
    }

    /// The volume shows what `other` shows, a snapshot that was seen, and the store holds that.
    pub(crate) fn set_back(&mut self, other: &Self) {
        let now = self.tick();
        self.segments.clone_from(&other.segments);
        for item in self.segments.values().flat_map(|segment| &segment.items) {
            self.writes[item.id.0 as usize].acked.get_or_insert(now);
        }
        self.flushed = now;
        self.recovered_at = now;
        self.remote = now;
        self.prune();
    }

    /// The volume was cut off by `id`, a discard up to the end, while no client was at work: what was not answered
    /// before is older, and the store holds all of it.
    pub(crate) fn end_shrink(&mut self, id: WriteId) {
        self.end_write(id, false);
        let item = Item { id, rank: 0, tied: false };
        let offset = self.write(id).offset;
        for (_, segment) in self.segments.range_mut(offset..) {
            put_on_top(segment, item);
        }
        let now = self.tick();
        self.end_remote_flush(now);
    }

    /// What is certain after the death of the process.
    pub(crate) fn after_kill(&self) -> Point {
        Point { through: self.now, fua: true }
    }

    /// What is certain after loss of power.
    pub(crate) fn after_power_loss(&self) -> Point {
        Point { through: self.flushed.max(self.remote), fua: true }
    }

    /// What is certain after loss of the disk.
    pub(crate) fn after_disk_loss(&self) -> Point {
        Point::at(self.remote)
    }

    fn is_applied(&self, id: WriteId, point: Point) -> bool {
        let write = self.write(id);
        write.acked.is_some_and(|acked| acked <= point.through || (point.fua && write.fua))
    }

    /// Whether `later` is certainly later than `earlier` where both are.
    fn is_later(&self, later: Item, earlier: Item) -> bool {
        if later.rank != earlier.rank {
            return later.rank > earlier.rank;
        }
        if later.tied && earlier.tied {
            return false;
        }
        self.write(earlier.id).is_over_by(self.write(later.id).issued)
    }

    /// What a write of the segment has to reach to show as of `point`.
    fn bar(&self, segment: &Segment, point: Point) -> Bar {
        let mut bar = Bar::default();
        for item in &segment.items {
            let write = self.write(item.id);
            if write.issued < segment.loose_before || !self.is_applied(item.id, point) {
                continue;
            }
            if item.rank > bar.rank {
                bar = Bar { rank: item.rank, ..Bar::default() };
            }
            if item.rank == bar.rank {
                let newest = if item.tied { &mut bar.tied_issued } else { &mut bar.issued };
                *newest = (*newest).max(write.issued);
            }
        }
        bar
    }

    /// Whether an applied write is later than `item`: see [`Oracle::is_later`].
    fn is_superseded(&self, item: Item, bar: &Bar) -> bool {
        if item.rank != bar.rank {
            return item.rank < bar.rank;
        }
        let issued = if item.tied { bar.issued } else { bar.issued.max(bar.tied_issued) };
        // A write is over after it was issued, so it never supersedes itself.
        self.write(item.id).is_over_by(issued)
    }

    /// What may show in a segment as of `point`, newest first.
    fn allowed(&self, segment: &Segment, point: Point, into: &mut Vec<Item>) {
        into.clear();
        let bar = self.bar(segment, point);
        let items = segment.items.iter().rev();
        into.extend(items.filter(|item| !self.is_superseded(**item, &bar)));
    }

    /// A read is issued.
    pub(crate) fn begin_read(&mut self) -> Moment {
        let now = self.tick();
        self.readers.insert(now);
        now
    }

    /// A read failed or was given up.
    pub(crate) fn abandon_read(&mut self, begun: Moment) {
        self.readers.remove(&begun);
    }

    /// A read that was issued at `begun` shows `bytes`.
    pub(crate) fn end_read(
        &mut self,
        begun: Moment,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        self.readers.remove(&begun);
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset + bytes.len() as u64;
        let point = Point { through: begun, fua: false };
        let (mut allowed, mut runs) = (Vec::new(), Vec::new());
        let mut settled: Vec<(u64, Item)> = Vec::new();
        for (segment_start, segment_end, segment) in self.touching(offset, end) {
            let (from, to) = (segment_start.max(offset), segment_end.min(end));
            let seen = part(bytes, from - offset, to - offset);
            self.allowed(segment, point, &mut allowed);
            runs.clear();
            match_segment(self, from, seen, &allowed, &mut runs)
                .map_err(|at| self.wrong_byte("a read", at, offset, bytes, point))?;
            let quiet = |item: &Item| self.write(item.id).is_over_by(begun - 1);
            if allowed.len() > 1 && segment.items.iter().all(quiet) {
                let whole = from == segment_start && to == segment_end && runs.len() == 1;
                if let (true, [only]) = (whole, &runs[0].items[..]) {
                    settled.push((segment_start, *only));
                }
            }
        }
        for (start, winner) in settled {
            let segment = self.segments.get_mut(&start).expect("segments are cut by writes only");
            put_on_top(segment, winner);
        }
        Ok(())
    }

    /// Whether some byte of a range may be of a write that is `such`, as of `point`.
    pub(crate) fn may_show(
        &self,
        point: Point,
        offset: u64,
        len: u64,
        such: impl Fn(&Write) -> bool,
    ) -> bool {
        let mut allowed = Vec::new();
        self.touching(offset, offset + len).any(|(_, _, segment)| {
            self.allowed(segment, point, &mut allowed);
            allowed.iter().any(|item| such(self.write(item.id)))
        })
    }

    /// Everything that was answered by then is durable on the disk.
    pub(crate) fn flushed(&self) -> Moment {
        self.flushed.max(self.remote)
    }

    /// Holes and zeroes that `extents`, asked at `begun`, reports must be able to read as zeroes. Whether
    /// a zeroing from before the last recovery was lost cannot be seen in bytes: it excuses a hole. So does a zeroing
    /// of a whole piece of the map, which becomes a hole; adjacent ones become one object, and only one that covers
    /// what lies between islands makes a piece whole. What is not exact was told in blocks.
    pub(crate) fn check_extents(
        &self,
        begun: Moment,
        (offset, islands): (u64, &Islands),
        extents: &[Extent],
        is_exact: bool,
    ) -> Result<(), Violation> {
        let mut at = offset;
        let mut allowed = Vec::new();
        for extent in extents {
            let end = at + extent.len;
            let wanted: &[Pattern] = match extent.state {
                // In blocks, data reaches beyond its bytes.
                ExtentState::Data if !is_exact => &[],
                ExtentState::Data => {
                    self.check_data(begun, at, end)?;
                    &[]
                }
                ExtentState::Zero => &[Pattern::Zero, Pattern::Hole],
                ExtentState::Hole => &[Pattern::Hole],
            };
            for (start, segment_end, segment) in self.touching(at, end) {
                self.allowed(segment, Point::at(begun), &mut allowed);
                let (from, to) = (start.max(at), segment_end.min(end));
                let zeroes_pieces = |at| {
                    let zeroes = self.writes.iter().filter(|w| w.pattern == Pattern::Zero);
                    let mut spanning = zeroes.map(|w| (w.offset, w.len));
                    spanning.any(|range| islands.spans_piece_of(at, range))
                };
                let fits = |item: &Item| {
                    let pattern = self.write(item.id).pattern;
                    wanted.contains(&pattern)
                        || (pattern == Pattern::Zero
                            && zeroes_pieces(from)
                            && zeroes_pieces(to - 1))
                        || self.happens_to_be_zero(item.id, from, to)
                };
                if !wanted.is_empty() && !allowed.iter().any(fits) {
                    let state = extent.state;
                    let list = self.describe(&allowed);
                    return Err(Violation(format!(
                        "extents: {state:?} reported at {}, where only these may show: {list}",
                        start.max(at)
                    )));
                }
            }
            at = end;
        }
        Ok(())
    }

    /// What is reported as data must be able to show data, but for what the collector writes into small holes.
    fn check_data(&self, begun: Moment, start: u64, end: u64) -> Result<(), Violation> {
        let mut allowed = Vec::new();
        let mut holes_since = start;
        for (segment_start, segment_end, segment) in self.touching(start, end) {
            self.allowed(segment, Point::at(begun), &mut allowed);
            if allowed.iter().any(|item| !self.write(item.id).pattern.is_zero()) {
                holes_since = segment_end;
            } else if segment_end.min(end).saturating_sub(holes_since) > PLUGGED_BYTES_MAX {
                let (from, list) = (segment_start.max(holes_since), self.describe(&allowed));
                return Err(Violation(format!(
                    "extents: data reported from {holes_since}, where there is none: at {from} {list}"
                )));
            }
        }
        Ok(())
    }

    /// Whether the few bytes `from..to` of a write are zeroes by chance, so that a recovery may have taken them for it.
    fn happens_to_be_zero(&self, id: WriteId, from: u64, to: u64) -> bool {
        let mut bytes = [0xff; 8];
        let Some(bytes) = usize::try_from(to - from).ok().and_then(|len| bytes.get_mut(..len))
        else {
            return false;
        };
        fill(id, self.write(id).pattern, from, bytes);
        bytes.iter().all(|byte| *byte == 0)
    }

    /// Judges what recovery shows after everything beyond `point` was at stake, and makes it definite.
    pub(crate) fn recovered(
        &mut self,
        point: Point,
        causal: bool,
        seen: &Observation,
    ) -> Result<Recovery, Violation> {
        let mut point = point;
        let runs = loop {
            let (runs, newest) = self.match_all(point, seen)?;
            if !causal || newest <= point.through {
                break runs;
            }
            point.through = newest;
        };
        if causal {
            self.check_whole(&runs, point, seen)?;
        }
        let now = self.tick();
        let mut recovery = Recovery { through: point.through, ..Recovery::default() };
        self.settle(&runs, now, &mut recovery);
        self.flushed = now;
        self.recovered_at = now;
        self.prune();
        Ok(recovery)
    }

    /// Matches every readable byte with what may show there; also the issue of the newest write that certainly shows.
    fn match_all(&self, point: Point, seen: &Observation) -> Result<(Vec<Run>, Moment), Violation> {
        let (mut runs, mut allowed) = (Vec::new(), Vec::new());
        let mut unreadable = seen.unreadable.iter().copied().peekable();
        for (start, end, segment) in self.touching(0, self.size) {
            self.allowed(segment, point, &mut allowed);
            let mut at = start;
            while at < end {
                while unreadable.next_if(|(_, to)| *to <= at).is_some() {}
                let (bad_from, bad_to) = unreadable.peek().copied().unwrap_or((self.size, 0));
                if bad_from <= at {
                    let to = bad_to.min(end);
                    runs.push(Run { start: at, items: Vec::new() });
                    at = to;
                    continue;
                }
                let to = bad_from.min(end);
                let bytes = part(&seen.bytes, at, to);
                match_segment(self, at, bytes, &allowed, &mut runs)
                    .map_err(|at| self.wrong_byte("recovery", at, 0, &seen.bytes, point))?;
                at = to;
            }
        }
        let oldest = |run: &Run| run.items.iter().map(|item| self.write(item.id).issued).min();
        let newest = runs.iter().filter_map(oldest).max().unwrap_or(0);
        Ok((runs, newest))
    }

    /// Keeps what may have been overwritten before the observation, on top what was seen.
    fn settle(&mut self, runs: &[Run], now: Moment, recovery: &mut Recovery) {
        let old = std::mem::take(&mut self.segments);
        let mut visible = BTreeSet::new();
        let mut last: Option<u64> = None;
        for run in runs {
            let (_, segment) = old.range(..=run.start).next_back().expect("segments begin at 0");
            let mut kept = segment.clone();
            if run.items.is_empty() {
                kept.loose_before = now;
            } else {
                visible.extend(run.items.iter().map(|item| item.id));
                kept.items.retain(|item| {
                    let shown = |top: &Item| top.id == item.id || !self.is_later(*item, *top);
                    run.items.iter().any(shown)
                });
                match &run.items[..] {
                    [only] => put_on_top(&mut kept, *only),
                    tied => self.tie(&mut kept, tied, now),
                }
            }
            if last.is_some_and(|at| self.segments[&at] == kept) {
                continue;
            }
            self.segments.insert(run.start, kept);
            last = Some(run.start);
        }
        let mut open: BTreeSet<WriteId> = BTreeSet::new();
        for segment in self.segments.values() {
            let ids = segment.items.iter().map(|item| item.id);
            open.extend(ids.filter(|id| self.write(*id).acked.is_none()));
        }
        for id in open {
            recovery.unanswered_kept += u64::from(visible.contains(&id));
            self.writes[id.0 as usize].acked = Some(now);
        }
    }

    /// One of `seen` shows, and they cannot be told apart: none of them is later than another from here on.
    fn tie(&self, segment: &mut Segment, seen: &[Item], now: Moment) {
        let is_seen = |item: &Item| seen.iter().any(|other| other.id == item.id);
        let mut hidden = segment.items.iter().filter(|item| !is_seen(item));
        let ranked = seen.iter().any(|item| item.rank != seen[0].rank);
        if ranked || hidden.any(|later| seen.iter().any(|item| self.is_later(*later, *item))) {
            // If it is the older one that shows, what is above it is gone; if not, it is not.
            segment.loose_before = now;
        }
        for item in segment.items.iter_mut().filter(|item| is_seen(item)) {
            item.tied = true;
        }
    }

    /// Forgets what can never show again, whatever crashes.
    fn prune(&mut self) {
        let oldest_reader = self.readers.first().copied().unwrap_or(Moment::MAX);
        let point = Point::at(self.remote.min(oldest_reader));
        let mut segments = std::mem::take(&mut self.segments);
        for segment in segments.values_mut() {
            let bar = self.bar(segment, point);
            segment.items.retain(|item| !self.is_superseded(*item, &bar));
        }
        self.segments = segments;
    }

    fn describe(&self, items: &[Item]) -> String {
        let one = |item: &Item| {
            let write = self.write(item.id);
            format!(
                "write {} ({:?}, {}+{}, issued {}, answered {:?}{})",
                item.id.0,
                write.pattern,
                write.offset,
                write.len,
                write.issued,
                write.acked,
                if write.fua { ", fua" } else { "" }
            )
        };
        items.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    fn wrong_byte(
        &self,
        what: &str,
        at: u64,
        offset: u64,
        bytes: &[u8],
        point: Point,
    ) -> Violation {
        let seen = part(bytes, at - offset, (at - offset + 32).min(bytes.len() as u64));
        let (start, end, segment) =
            self.touching(at, at + 1).next().expect("every byte is in a segment");
        let mut allowed = Vec::new();
        self.allowed(segment, point, &mut allowed);
        let others = self.writes.iter().zip(0_u32..).filter(|(write, id)| {
            let len = (bytes.len() as u64 - (at - offset)).min(8);
            let window = part(bytes, at - offset, at - offset + len);
            matching::shows(WriteId(*id), write.pattern, at, window)
        });
        let others: Vec<Item> =
            others.map(|(_, id)| Item { id: WriteId(id), rank: 0, tied: false }).take(6).collect();
        Violation(format!(
            "{what} as of {point:?} shows wrong bytes at {at} (segment {start}..{end}): {seen:02x?}\n  \
             may show: {}\n  all writes there: {}\n  these bytes are those of: {}",
            self.describe(&allowed),
            self.describe(&segment.items),
            self.describe(&others)
        ))
    }
}

/// What a recovery came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovery {
    /// Everything answered by this moment is there.
    pub(crate) through: Moment,
    /// Writes that nobody was promised, and that show all the same.
    pub(crate) unanswered_kept: u64,
}

/// `winner` was seen: all others are older.
fn put_on_top(segment: &mut Segment, winner: Item) {
    if segment.items.iter().all(|item| item.id == winner.id) {
        return;
    }
    let top = segment.items.iter().map(|item| item.rank).max().unwrap_or(0);
    for item in segment.items.iter_mut().filter(|item| item.id == winner.id) {
        item.rank = top + 1;
        item.tied = false;
    }
}

fn part(bytes: &[u8], from: u64, to: u64) -> &[u8] {
    let index = |at: u64| usize::try_from(at).expect("within the volume, which is in memory");
    &bytes[index(from)..index(to)]
}
