//! What recovery makes of a scan.

use weir_device::VolumeId;

use super::*;
use crate::format::record::RecordHeader;
use crate::ids::{Identity, JournalId, WriteNumber};

const SEGMENT: u64 = 65536;

/// A journal of two segments, in its second epoch, which began behind the first three records.
fn superblock() -> Superblock {
    Superblock {
        generation: 3,
        identity: Identity { volume: VolumeId([1; 16]), journal: JournalId([2; 16]) },
        boot_id: [3; 16],
        epoch: Epoch(2),
        opening: None,
        announced: Vec::new(),
        manifest: None,
        file: None,
        first_record: RecordSeq(4),
        first_position: JournalPos(SEGMENT + 3 * 4096),
        first_write: WriteNumber(4),
        segment_bytes: SEGMENT,
        tail_position: JournalPos(SEGMENT),
        tail_record: RecordSeq(1),
        tail_write: WriteNumber(1),
        clean_end: None,
        flushed_through: RecordSeq(0),
        loss_accepted_through: RecordSeq(0),
        key: None,
        segments_physical: 2,
        segments: vec![0, 1],
    }
}

/// The record of a block, in the second segment's block `at`.
fn found(epoch: u64, record: u64, at: u64) -> Found {
    let header = RecordHeader {
        epoch: Epoch(epoch),
        record: RecordSeq(record),
        position: JournalPos(SEGMENT + at * 4096),
        first_write: WriteNumber(record),
        acked_through: RecordSeq(0),
        flushed_through: RecordSeq(0),
        record_bytes: 4096,
        salt: None,
        pieces: Vec::new(),
    };
    Found { header, bad_pieces: Vec::new() }
}

#[test]
fn a_dropped_record_does_not_count_beside_one_of_its_number_from_a_newer_epoch() {
    // Record 4 of the first epoch was dropped when the second one began. A journal of several segments may still show
    // it before the place where the second one put its own record 4.
    for dropped in [4, 5] {
        let last = [found(1, dropped, 3), found(2, 4, 4)];
        let all: Vec<Found> =
            [found(1, 1, 0), found(1, 2, 1), found(1, 3, 2)].into_iter().chain(last).collect();
        let superblock =
            Superblock { first_position: JournalPos(SEGMENT + 4 * 4096), ..superblock() };
        // As the superblock of the first epoch has it, which a crash left in force.
        let old = Superblock {
            epoch: Epoch(1),
            first_record: RecordSeq(1),
            first_position: JournalPos(SEGMENT),
            ..superblock.clone()
        };
        assert_eq!(fresh_records(&superblock, &all), [0, 1, 2, 4], "{dropped}");
        assert_eq!(fresh_records(&old, &all), [0, 1, 2, 4], "{dropped}");
    }
}

#[test]
fn an_unreadable_block_where_the_next_record_may_begin_is_no_end() {
    let end = SEGMENT + 3 * 4096;
    let at = [(end, true), (2 * SEGMENT, true), (2 * SEGMENT + 4096, false), (end + 4096, false)];
    for (position, hides) in at {
        let scan = Scan {
            found: vec![found(1, 1, 0), found(1, 2, 1), found(1, 3, 2)],
            unreadable: vec![JournalPos(position)],
            ..Scan::default()
        };
        let judged = judge(&superblock(), true, &scan, AcceptLoss::No);
        assert_eq!(judged.is_err(), hides, "{position}: {judged:?}");
        let accepted = judge(&superblock(), true, &scan, AcceptLoss::Yes).expect("accepted");
        assert_eq!(accepted.damage.len(), usize::from(hides), "{position}");
    }
}
