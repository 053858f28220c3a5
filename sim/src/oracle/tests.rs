//! The oracle, tested with histories whose verdict is plain.

use super::*;

const SIZE: u64 = 64;

struct Disk(Vec<u8>);

impl Disk {
    fn new() -> Self {
        Self(vec![0; 64])
    }

    fn apply(&mut self, oracle: &Oracle, id: WriteId) {
        let write = oracle.write(id);
        let index = |offset: u64| usize::try_from(offset).expect("a small disk");
        let (from, to) = (index(write.offset), index(write.offset + write.len));
        fill(id, write.pattern, write.offset, &mut self.0[from..to]);
    }

    fn seen(&self) -> Observation {
        Observation { bytes: self.0.clone(), unreadable: Vec::new() }
    }
}

fn answered(oracle: &mut Oracle, offset: u64, len: u64) -> WriteId {
    let id = oracle.begin_write(offset, len, Pattern::Noise, u64::MAX);
    oracle.end_write(id, false);
    id
}

#[test]
fn a_read_must_show_the_last_answered_write() {
    let mut oracle = Oracle::new(SIZE);
    let (mut old, mut new) = (Disk::new(), Disk::new());
    let first = answered(&mut oracle, 0, 32);
    old.apply(&oracle, first);
    new.apply(&oracle, first);
    let second = answered(&mut oracle, 16, 32);
    new.apply(&oracle, second);
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &new.0).is_ok());
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &old.0).is_err());
}

#[test]
fn writes_in_flight_may_show_in_part_and_settle_once_seen() {
    let mut oracle = Oracle::new(SIZE);
    let first = oracle.begin_write(0, 32, Pattern::Noise, u64::MAX);
    let second = oracle.begin_write(0, 32, Pattern::Noise, u64::MAX);
    let mut mixed = Disk::new();
    mixed.apply(&oracle, first);
    let mut other = Disk::new();
    other.apply(&oracle, second);
    let pure = (mixed.0.clone(), other.0.clone());
    mixed.0[..16].copy_from_slice(&other.0[..16]);
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &mixed.0).is_ok());
    oracle.end_write(first, false);
    oracle.end_write(second, false);
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &pure.0).is_ok(), "either may have won");
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &pure.1).is_err(), "but it was the first");
}

#[test]
fn a_write_that_was_never_answered_may_happen_until_its_end_and_not_after() {
    let mut oracle = Oracle::new(SIZE);
    let lost = oracle.begin_write(0, 32, Pattern::Noise, u64::MAX);
    let mut with = Disk::new();
    with.apply(&oracle, lost);
    let (without, shows) = (Disk::new(), |oracle: &mut Oracle, disk: &Disk| {
        let begun = oracle.begin_read();
        oracle.end_read(begun, 0, &disk.0).is_ok()
    });
    assert!(shows(&mut oracle, &without) && shows(&mut oracle, &with), "it happens now");
    assert!(shows(&mut oracle, &without), "nobody knows that it has come to its end");
    oracle.end_unanswered(lost);
    assert!(shows(&mut oracle, &without), "it did not happen");
    assert!(!shows(&mut oracle, &with), "and does not any more");
    let mut oracle = Oracle::new(SIZE);
    let lost = oracle.begin_write(0, 32, Pattern::Noise, u64::MAX);
    let mut with = Disk::new();
    with.apply(&oracle, lost);
    oracle.end_unanswered(lost);
    let later = answered(&mut oracle, 0, 32);
    assert!(!shows(&mut oracle, &with), "what was begun later, and answered, hides it");
    let mut new = Disk::new();
    new.apply(&oracle, later);
    assert!(shows(&mut oracle, &new));
}

#[test]
fn a_kill_keeps_what_was_answered_and_power_loss_what_was_flushed() {
    let mut oracle = Oracle::new(SIZE);
    let mut disk = Disk::new();
    let first = answered(&mut oracle, 0, 8);
    disk.apply(&oracle, first);
    let flush = oracle.begin_flush();
    let late = answered(&mut oracle, 8, 8);
    oracle.end_flush(flush);
    assert!(oracle.recovered(oracle.after_kill(), true, &disk.seen()).is_err());
    assert!(oracle.recovered(oracle.after_power_loss(), true, &disk.seen()).is_ok());
    disk.apply(&oracle, late);
    let message = "what did not show at a recovery is gone for good";
    assert!(oracle.recovered(oracle.after_kill(), true, &disk.seen()).is_err(), "{message}");
}

#[test]
fn a_short_write_that_was_under_way_shows_whole_or_not_at_all() {
    let mut oracle = Oracle::new(SIZE);
    let mut disk = Disk::new();
    let first = answered(&mut oracle, 0, 32);
    disk.apply(&oracle, first);
    let second = oracle.begin_write(0, 32, Pattern::Noise, u64::MAX);
    let beside = oracle.begin_write(20, 4, Pattern::Noise, u64::MAX);
    let mut whole = Disk(disk.0.clone());
    whole.apply(&oracle, second);
    let mut half = Disk(disk.0.clone());
    half.0[..16].copy_from_slice(&whole.0[..16]);
    let seen = half.seen();
    assert!(oracle.clone().recovered(oracle.after_kill(), true, &seen).is_err());
    whole.apply(&oracle, beside);
    assert!(oracle.recovered(oracle.after_kill(), true, &whole.seen()).is_ok());
}

#[test]
fn power_loss_must_not_lose_a_flushed_write() {
    let mut oracle = Oracle::new(SIZE);
    answered(&mut oracle, 0, 8);
    let flush = oracle.begin_flush();
    oracle.end_flush(flush);
    let seen = Disk::new().seen();
    assert!(oracle.recovered(oracle.after_power_loss(), true, &seen).is_err());
}

#[test]
fn a_forced_write_is_flushed_with_all_before_it() {
    let mut oracle = Oracle::new(SIZE);
    let before = answered(&mut oracle, 0, 8);
    let forced = oracle.begin_write(8, 8, Pattern::Noise, u64::MAX);
    oracle.end_write(forced, true);
    let mut disk = Disk::new();
    disk.apply(&oracle, forced);
    assert!(oracle.recovered(oracle.after_power_loss(), true, &disk.seen()).is_err());
    disk.apply(&oracle, before);
    assert!(oracle.recovered(oracle.after_power_loss(), true, &disk.seen()).is_ok());
}

#[test]
fn what_shows_after_a_loss_is_a_prefix() {
    let mut oracle = Oracle::new(SIZE);
    let writes: Vec<WriteId> = (0..4).map(|n| answered(&mut oracle, n * 8, 8)).collect();
    let mut disk = Disk::new();
    disk.apply(&oracle, writes[0]);
    disk.apply(&oracle, writes[2]);
    let point = oracle.after_disk_loss();
    assert!(oracle.recovered(point, true, &disk.seen()).is_err(), "the second is missing");
    disk.apply(&oracle, writes[1]);
    let recovery = oracle.recovered(point, true, &disk.seen()).unwrap();
    assert!(recovery.through >= oracle.write(writes[1]).acked.unwrap());
}

#[test]
fn loss_of_the_disk_may_go_back_behind_a_recovery_but_not_behind_a_remote_flush() {
    let mut oracle = Oracle::new(SIZE);
    let sent = answered(&mut oracle, 0, 8);
    let flush = oracle.begin_flush();
    oracle.end_remote_flush(flush);
    let local = answered(&mut oracle, 0, 8);
    let mut disk = Disk::new();
    disk.apply(&oracle, local);
    assert!(oracle.recovered(oracle.after_kill(), true, &disk.seen()).is_ok());
    disk.apply(&oracle, sent);
    assert!(oracle.recovered(oracle.after_disk_loss(), true, &disk.seen()).is_ok());
    let mut oracle = Oracle::new(SIZE);
    answered(&mut oracle, 0, 8);
    let flush = oracle.begin_flush();
    oracle.end_remote_flush(flush);
    let blank = Disk::new().seen();
    assert!(oracle.recovered(oracle.after_disk_loss(), true, &blank).is_err());
}

#[test]
fn bytes_that_cannot_be_read_stay_open_until_they_are_written_again() {
    let mut oracle = Oracle::new(SIZE);
    let first = answered(&mut oracle, 0, 32);
    let mut seen = Disk::new().seen();
    seen.unreadable.push((0, 32));
    assert!(oracle.recovered(oracle.after_kill(), true, &seen).is_ok());
    let mut disk = Disk::new();
    disk.apply(&oracle, first);
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &disk.0).is_ok());
    answered(&mut oracle, 0, 32);
    let begun = oracle.begin_read();
    assert!(oracle.end_read(begun, 0, &disk.0).is_err());
}

#[test]
fn zeroes_that_cannot_be_told_apart_excuse_each_other() {
    let mut oracle = Oracle::new(SIZE);
    let zero = oracle.begin_write(0, 64, Pattern::Zero, u64::MAX);
    oracle.end_write(zero, false);
    let blank = Disk::new().seen();
    assert!(oracle.recovered(oracle.after_power_loss(), true, &blank).is_ok());
    let now = oracle.tick();
    let hole = [Extent { len: 64, state: ExtentState::Hole }];
    assert!(
        oracle.check_extents(now, (0, &Islands::one(oracle.size)), &hole, true).is_ok(),
        "the zeroing may have been lost"
    );
    let data = answered(&mut oracle, 0, 8);
    assert!(oracle.write(data).acked.is_some());
    let now = oracle.tick();
    assert!(oracle.check_extents(now, (0, &Islands::one(oracle.size)), &hole, true).is_err());
}
