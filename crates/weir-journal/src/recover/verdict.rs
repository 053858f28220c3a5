//! Decides, from what the scan found, which records count, where they end, and what is damage. Pure.
//!
//! A record that is missing or torn is the end of the journal if nobody was promised it, and damage if somebody was.
//! The proof of a promise is in later records and in the superblock:
//!
//! - `flushed_through` always counts: a sync had covered the record.
//! - `acked_through` counts only while the host has not rebooted since the epoch began: a writer was answered, and
//!   nothing but damage can undo what the disk had taken. After a loss of power an acknowledged record that no sync
//!   covered may be missing without any fault.
//!
//! Records of an older epoch may stand behind the place where a newer epoch began: recovery had dropped them, and the
//! newer epoch has not written over them yet. They are stale: neither records nor proof of anything.

#[cfg(test)]
mod tests;

use weir_device::mutant;

use super::scan::{Found, Scan};
use super::{AcceptLoss, Damage, DamageKind};
use crate::format::superblock::Superblock;
use crate::format::to_u64;
use crate::ids::{Epoch, JournalPos, RecordSeq};

/// What counts.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Indices into the scan's records: those that count, in order.
    pub(crate) records: Vec<usize>,
    /// Where the next record goes.
    pub(crate) end: JournalPos,
    /// Last record that counts or was given up as lost.
    pub(crate) last_record: RecordSeq,
    pub(crate) damage: Vec<Damage>,
    /// Records behind the end that were never promised.
    pub(crate) dropped_records: u64,
    pub(crate) dropped_bytes: u64,
    pub(crate) stale_records: u64,
}

/// Damage that may not be passed over without consent.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) damage: Damage,
}

/// The whole decision.
pub(crate) fn judge(
    superblock: &Superblock,
    same_boot: bool,
    scan: &Scan,
    accept: AcceptLoss,
) -> Result<Verdict, Refusal> {
    let fresh = fresh_records(superblock, &scan.found);
    let stale_records = to_u64(scan.found.len() - fresh.len());
    let promised = promised_through(superblock, same_boot, scan, &fresh);
    let mut walk = Walk {
        superblock,
        accept,
        promised,
        verdict: Verdict {
            records: Vec::with_capacity(fresh.len()),
            end: superblock.tail_position,
            last_record: RecordSeq(superblock.tail_record.0.saturating_sub(1)),
            damage: Vec::new(),
            dropped_records: 0,
            dropped_bytes: 0,
            stale_records,
        },
        cut: None,
    };
    walk.run(scan, &fresh)?;
    walk.check_unreadable(scan)?;
    Ok(walk.verdict)
}

/// Indices of the records that are not stale, in the order of positions.
fn fresh_records(superblock: &Superblock, found: &[Found]) -> Vec<usize> {
    if mutant("stale_epoch_accepted") {
        return (0..found.len()).collect();
    }
    let mut fresh = Vec::with_capacity(found.len());
    // From the back: what a newer epoch wrote further on shows that an older record before it, with the same number
    // or a higher one, was dropped once.
    let mut newest: Option<(Epoch, RecordSeq)> = None;
    for (index, Found { header, .. }) in found.iter().enumerate().rev() {
        let in_epoch = header.position >= superblock.first_position
            || header.record >= superblock.first_record;
        if in_epoch && header.epoch < superblock.epoch {
            continue;
        }
        if let Some((epoch, record)) = newest
            && (header.epoch < epoch && header.record >= record)
        {
            continue;
        }
        newest = Some((header.epoch, header.record));
        fresh.push(index);
    }
    fresh.reverse();
    // From the front: an older epoch does not come back behind a newer one.
    let mut epoch = Epoch(0);
    fresh.retain(|index| {
        let keep = found[*index].header.epoch >= epoch;
        epoch = epoch.max(found[*index].header.epoch);
        keep
    });
    fresh
}

/// Last record that somebody was promised, as far as can be proven.
fn promised_through(
    superblock: &Superblock,
    same_boot: bool,
    scan: &Scan,
    fresh: &[usize],
) -> RecordSeq {
    let mut promised = superblock.flushed_through;
    for index in fresh {
        let header = &scan.found[*index].header;
        promised = promised.max(header.flushed_through);
        if same_boot {
            promised = promised.max(header.acked_through);
        }
    }
    promised
}

struct Walk<'a> {
    superblock: &'a Superblock,
    accept: AcceptLoss,
    promised: RecordSeq,
    verdict: Verdict,
    /// End of the first record that was dropped, if its header was whole.
    cut: Option<JournalPos>,
}

impl Walk<'_> {
    fn run(&mut self, scan: &Scan, fresh: &[usize]) -> Result<(), Refusal> {
        for (order, index) in fresh.iter().enumerate() {
            let Found { header, bad_pieces } = &scan.found[*index];
            let expected = self.verdict.last_record.next();
            if header.record < expected {
                continue;
            }
            if header.record > expected {
                let last_missing = RecordSeq(header.record.0 - 1);
                self.lose(expected, last_missing.min(self.promised), header.position)?;
                if last_missing > self.promised || mutant("rot_is_end") {
                    self.stop(scan, &fresh[order..]);
                    return Ok(());
                }
            }
            if !bad_pieces.is_empty() {
                let is_damage = header.record <= self.promised && !mutant("rot_is_end");
                if !is_damage {
                    self.stop(scan, &fresh[order..]);
                    return Ok(());
                }
                for piece in bad_pieces {
                    let piece = header.pieces[*piece];
                    self.verdict.damage.push(Damage {
                        kind: DamageKind::Payload { offset: piece.offset, len: piece.len },
                        first: header.record,
                        last: header.record,
                        position: header.position.plus(u64::from(piece.payload)),
                        lost_bytes: piece.len,
                    });
                }
            }
            self.verdict.records.push(*index);
            self.verdict.last_record = header.record;
            self.verdict.end = header.end();
        }
        let expected = self.verdict.last_record.next();
        let listed = to_u64(self.superblock.segments.len()) * self.superblock.segment_bytes;
        self.lose(expected, self.promised, self.superblock.tail_position.plus(listed))
    }

    /// Records `first..=last`, if there are any, were promised and are not there; `until` is where what follows begins.
    fn lose(
        &mut self,
        first: RecordSeq,
        last: RecordSeq,
        until: JournalPos,
    ) -> Result<(), Refusal> {
        if last < first || mutant("rot_is_end") {
            return Ok(());
        }
        let position = self.verdict.end;
        let lost_bytes = until.0.saturating_sub(position.0);
        let damage = Damage { kind: DamageKind::Records, first, last, position, lost_bytes };
        self.give_up(damage)?;
        self.verdict.last_record = last;
        Ok(())
    }

    fn give_up(&mut self, damage: Damage) -> Result<(), Refusal> {
        let known = damage.kind == DamageKind::Records
            && damage.last <= self.superblock.loss_accepted_through;
        if !known && self.accept == AcceptLoss::No {
            return Err(Refusal { damage });
        }
        self.verdict.damage.push(damage);
        Ok(())
    }

    /// Everything from here on was never promised.
    fn stop(&mut self, scan: &Scan, rest: &[usize]) {
        for index in rest {
            self.verdict.dropped_records += 1;
            self.verdict.dropped_bytes += u64::from(scan.found[*index].header.record_bytes);
        }
        self.cut = rest.first().map(|index| scan.found[*index].header.end());
    }

    /// A block that could not be read, where the next record may begin or inside the one that was dropped first, may
    /// hide a record that was promised: that is no proof of an end.
    fn check_unreadable(&mut self, scan: &Scan) -> Result<(), Refusal> {
        let end = self.verdict.end;
        let segment_bytes = self.superblock.segment_bytes;
        let next_segment = JournalPos((end.0 / segment_bytes + 1) * segment_bytes);
        let hides = |position: JournalPos| {
            position == end
                || position == next_segment
                || (position > end && self.cut.is_some_and(|cut| position < cut))
        };
        let hidden = scan.unreadable.iter().copied().find(|position| hides(*position));
        let Some(position) = hidden else {
            return Ok(());
        };
        let next = self.verdict.last_record.next();
        let lost_bytes = next_segment.0 - end.0;
        let kind = DamageKind::Unreadable;
        self.give_up(Damage { kind, first: next, last: next, position, lost_bytes })
    }
}
