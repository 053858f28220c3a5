//! Every history that a journal and a store can have between them, as far as somebody thought of it.

use weir_journal::{Epoch, FileMatch, WriteNumber};

use std::collections::BTreeSet;

use weir_journal::ManifestSeen;

use super::*;
use crate::format::manifest::{
    CheckpointRef, EpochEntry, HexId, Holder, MarkRecord, PLAIN_FORMAT, Takeover, VolumeState,
};
use crate::recover::evidence::{HeldWrite, Witness};

/// The openings of node A are a1, a2, ..., those of node B b1, ...
fn opening(name: &str) -> HexId {
    let mut id = [0; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    HexId(id)
}

/// The journals are the letters of the openings.
fn journal_of(name: &str) -> HexId {
    HexId([name.as_bytes()[0]; 16])
}

fn mark(epoch: u64, write: u64) -> WriteMark {
    WriteMark { epoch: Epoch(epoch), write: WriteNumber(write) }
}

/// A volume in a store.
struct World {
    manifest: Manifest,
    witnesses: Vec<Witness>,
    listed: BTreeSet<(u64, u64)>,
    sent: WriteMark,
}

impl World {
    fn new() -> Self {
        let manifest = Manifest {
            format: PLAIN_FORMAT,
            number: 1,
            nonce: HexId([1; 16]),
            volume: HexId([2; 16]),
            name: "demo".into(),
            size: 1 << 20,
            state: VolumeState::Active,
            written_at: 0,
            epochs: Vec::new(),
            takeover: Takeover::Manual,
            holder: None,
            checkpoint: None,
            origin: None,
            replica: None,
            lineage: Vec::new(),
            origins: Vec::new(),
            snapshots: Vec::new(),
            pending_deletions: Vec::new(),
            encryption: None,
            object_version: None,
            closed: None,
            salvage: Vec::new(),
            checksum: String::new(),
        };
        let (witnesses, listed) = (Vec::new(), BTreeSet::new());
        Self { manifest, witnesses, listed, sent: WriteMark::default() }
    }

    fn holder(&mut self, name: &str) {
        let node = journal_of(name);
        self.manifest.holder = Some(Holder {
            name: name.into(),
            node,
            incarnation: HexId([9; 16]),
            journal: journal_of(name),
        });
    }

    /// The version that makes an opening the holder.
    fn published(mut self, name: &str, epoch: u64) -> Self {
        let previous = self.manifest.epochs.iter().rfind(|e| e.first_sequence.is_some());
        self.manifest.epochs.push(EpochEntry {
            epoch,
            first_sequence: None,
            after_write: None,
            journal: journal_of(name),
            opening: Some(opening(name)),
            previous: previous.and_then(|entry| entry.opening),
        });
        self.holder(name);
        self
    }

    /// The version that gives it its sequences.
    fn owned(mut self, first: u64, after: WriteMark) -> Self {
        let entry = self.manifest.epochs.last_mut().expect("published");
        entry.first_sequence = Some(first);
        entry.after_write = Some(after.into());
        self
    }

    fn opened(self, name: &str, epoch: u64, first: u64, after: WriteMark) -> Self {
        self.published(name, epoch).owned(first, after)
    }

    /// An opening by a program that knew no ids.
    fn legacy(mut self, name: &str, epoch: u64, first: Option<u64>, after: WriteMark) -> Self {
        let after_write = first.map(|_| MarkRecord::from(after));
        self.manifest.epochs.push(EpochEntry {
            epoch,
            first_sequence: first,
            after_write,
            journal: journal_of(name),
            opening: None,
            previous: None,
        });
        self.holder(name);
        self
    }

    fn closed(mut self) -> Self {
        self.manifest.holder = None;
        self
    }

    fn object(mut self, seq: u64, epoch: u64) -> Self {
        self.listed.insert((seq, epoch));
        self
    }

    fn checkpoint(mut self, epoch: u64, as_of: u64, sent: WriteMark) -> Self {
        self.manifest.checkpoint = Some(CheckpointRef { sequence: as_of + 1, epoch, as_of });
        self.sent = sent;
        self
    }

    fn witness(mut self, name: &str, write: u64, who: WitnessKind) -> Self {
        let write = WriteNumber(write);
        self.witnesses.push(Witness { opening: opening(name), write, who });
        self
    }

    fn view(&self) -> StoreView<'_> {
        StoreView {
            manifest: &self.manifest,
            witnesses: &self.witnesses,
            listed: &self.listed,
            sent: self.sent,
        }
    }

    fn decide(&self, journal: &JournalView) -> Decision {
        decide(journal, &self.view(), Consent::default())
    }

    fn reason(&self, journal: &JournalView) -> Refusal {
        match self.decide(journal) {
            Decision::Refuse(refusal) => *refusal,
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// A journal of 100 bytes a write, in force under `name` at `epoch`, holding these writes of that epoch.
fn journal(name: &str, epoch: u64, writes: std::ops::RangeInclusive<u64>) -> JournalView {
    JournalView {
        journal: journal_of(name),
        epoch,
        opening: Some(opening(name)),
        announced: Vec::new(),
        manifest: None,
        file: FileMatch::Same,
        last_write: WriteNumber(*writes.end()),
        held: writes.map(|write| HeldWrite { mark: mark(epoch, write), bytes: 100 }).collect(),
    }
}

fn empty(name: &str, epoch: u64, last_write: u64) -> JournalView {
    JournalView { held: Vec::new(), ..journal(name, epoch, last_write..=last_write) }
}

fn old_program(view: JournalView) -> JournalView {
    JournalView { opening: None, ..view }
}

/// A new file in which no opening is in force yet.
fn never_begun(announced: &[&str]) -> JournalView {
    let announced: Vec<HexId> = announced.iter().map(|name| opening(name)).collect();
    JournalView { opening: None, announced, ..empty("b", 0, 0) }
}

fn announcing(mut view: JournalView, names: &[&str]) -> JournalView {
    view.announced = names.iter().map(|name| opening(name)).collect();
    view
}

fn in_file(mut view: JournalView, file: FileMatch) -> JournalView {
    view.file = file;
    view
}

const NONE: Consent = Consent { discard_journal: false, adopt_journal: false, accept_loss: false };
const DISCARD: Consent = Consent { discard_journal: true, ..NONE };
const ADOPT: Consent = Consent { adopt_journal: true, ..NONE };
const LOSS: Consent = Consent { accept_loss: true, ..NONE };

fn at_a1() -> World {
    World::new().opened("a1", 1, 1, mark(0, 0))
}

#[test]
fn the_journal_of_the_newest_opening_is_replayed_at_once() {
    let world = at_a1().object(1, 1);
    assert_eq!(world.decide(&journal("a1", 1, 1..=9)), Decision::Replay(Wait::Nothing));
    assert_eq!(world.closed().decide(&journal("a1", 1, 1..=9)), Decision::Replay(Wait::Nothing));
}

/// D1: a store was set back, another node went on in it, and the first node comes back with a journal of openings that
/// the store does not know any more.
#[test]
fn a_journal_of_openings_that_the_store_forgot_is_refused() {
    let world = at_a1().opened("b1", 2, 2, mark(1, 5)).closed();
    let refused = world.reason(&journal("a3", 3, 6..=9));
    assert_eq!(refused.reason, RefusalReason::OtherHistory);
    assert_eq!((refused.writes, refused.bytes), (4, 400));
    assert_eq!((refused.opening, refused.epoch), (Some(opening("a3")), 3));
    assert_eq!((refused.newest, refused.newest_epoch), (Some(opening("b1")), 2));
    let with = |consent| decide(&journal("a3", 3, 6..=9), &world.view(), consent);
    assert!(matches!(with(ADOPT), Decision::Refuse(_)), "it is not a copy");
    assert!(matches!(with(LOSS), Decision::Refuse(_)), "it would be no prefix");
    assert_eq!(with(DISCARD), Decision::SetAside(Wait::Nothing));
}

#[test]
fn a_journal_of_openings_that_the_store_forgot_is_refused_though_nobody_else_was_there() {
    let refused = at_a1().reason(&journal("a3", 3, 6..=9));
    assert_eq!(refused.reason, RefusalReason::OtherHistory);
    assert_eq!(World::new().reason(&journal("a1", 1, 1..=1)).reason, RefusalReason::OtherHistory);
}

/// D1 with the epochs the other way round: the numbers of two histories say nothing about each other.
#[test]
fn an_epoch_of_another_history_is_no_evidence() {
    let world = at_a1().opened("b1", 2, 2, mark(1, 5)).opened("b2", 3, 4, mark(2, 9)).closed();
    let refused = world.reason(&journal("a2", 2, 6..=7));
    assert_eq!(refused.reason, RefusalReason::OtherHistory);
    let refused = world.reason(&journal("a4", 9, 6..=7));
    assert_eq!(refused.reason, RefusalReason::OtherHistory);
}

/// D3: the data directory was set back to a backup of an earlier opening.
#[test]
fn an_old_copy_of_the_directory_is_not_the_journal_of_the_newest_opening() {
    let world = at_a1().opened("a2", 2, 3, mark(1, 5)).object(3, 2);
    // Some of what it holds came after the point that the next opening begins with.
    let refused = world.reason(&journal("a1", 1, 1..=7));
    assert_eq!((refused.reason, refused.writes), (RefusalReason::Superseded, 2));
    // Nothing is lost with it; but the true journal may hold acknowledged writes.
    let aside = world.decide(&journal("a1", 1, 1..=5));
    assert_eq!(aside, Decision::SetAside(Wait::LeaseAndConsent));
    assert_eq!(world.decide(&empty("a1", 1, 5)), Decision::ReuseEmpty(Wait::LeaseAndConsent));
    assert_eq!(world.closed().decide(&empty("a1", 1, 5)), Decision::ReuseEmpty(Wait::Nothing));
}

/// D3, the other half: the copy was used, and the true directory comes back.
#[test]
fn the_true_directory_does_not_come_back_over_what_went_on_with_a_copy() {
    let world = at_a1().opened("a2", 2, 3, mark(1, 5)).object(3, 2);
    let world = world.opened("c1", 3, 4, mark(2, 8)).closed();
    let refused = world.reason(&journal("a2", 2, 6..=12));
    assert_eq!(
        (refused.reason, refused.writes, refused.bytes),
        (RefusalReason::Superseded, 4, 400)
    );
    assert_eq!(world.decide(&journal("a2", 2, 6..=8)), Decision::SetAside(Wait::Nothing));
}

/// Data path 7: a copied directory beside the live holder.
#[test]
fn a_copied_file_is_not_replayed_beside_its_original() {
    let world = at_a1().object(1, 1);
    let copy = in_file(journal("a1", 1, 1..=9), FileMatch::Other);
    let refused = world.reason(&copy);
    assert_eq!((refused.reason, refused.writes), (RefusalReason::Copied, 9));
    // Adopted it still waits for the lease of the one that it is a copy of.
    assert_eq!(decide(&copy, &world.view(), ADOPT), Decision::Replay(Wait::Lease));
    assert_eq!(decide(&copy, &world.view(), DISCARD), Decision::SetAside(Wait::LeaseAndConsent));
    let unknown = in_file(journal("a1", 1, 1..=9), FileMatch::Unknown);
    assert_eq!(world.decide(&unknown), Decision::Replay(Wait::Nothing), "refuses nobody");
}

/// A directory brought over by rsync after a clean close has nothing that the store lacks.
#[test]
fn a_copied_file_with_nothing_unsent_is_set_aside() {
    let world = at_a1().checkpoint(1, 4, mark(1, 9));
    let copy = in_file(journal("a1", 1, 1..=9), FileMatch::Other);
    assert_eq!(world.decide(&copy), Decision::SetAside(Wait::LeaseAndConsent));
    let world = world.closed();
    assert_eq!(world.decide(&copy), Decision::SetAside(Wait::Nothing));
    assert_eq!(decide(&copy, &world.view(), ADOPT), Decision::Replay(Wait::Nothing));
    let closed = at_a1().closed().witness("a1", 9, WitnessKind::Close);
    assert_eq!(closed.decide(&copy), Decision::SetAside(Wait::Nothing));
    let more = in_file(journal("a1", 1, 1..=10), FileMatch::Other);
    assert_eq!(
        (world.reason(&more).reason, world.reason(&more).writes),
        (RefusalReason::Copied, 1)
    );
}

#[test]
fn a_copied_file_that_is_empty_does_not_go_on_under_the_id_of_its_original() {
    let world = at_a1().opened("b1", 2, 2, mark(1, 5)).closed();
    let copy = in_file(empty("a1", 1, 5), FileMatch::Other);
    assert_eq!(world.decide(&copy), Decision::SetAside(Wait::Nothing));
}

/// H4, whatever the journal holds and whoever owns the newest sequences.
#[test]
fn a_store_without_the_version_that_the_journal_knows_was_set_back() {
    let knows = |number, nonce, view| JournalView {
        manifest: Some(ManifestSeen { number, nonce: [nonce; 16] }),
        ..view
    };
    let mut world = at_a1();
    (world.manifest.number, world.manifest.nonce) = (7, HexId([1; 16]));
    let own = || journal("a1", 1, 1..=9);
    for view in [own(), knows(6, 2, own()), knows(7, 1, own())] {
        assert_eq!(world.decide(&view), Decision::Replay(Wait::Nothing));
    }
    for (known, view) in [(8, knows(8, 1, own())), (7, knows(7, 2, own()))] {
        let reason = RefusalReason::StoreSetBack { known, newest: 7 };
        assert_eq!(world.reason(&view).reason, reason);
        let with = |consent| decide(&view, &world.view(), consent);
        let accept = Consent { accept_loss: true, ..Consent::default() };
        assert_eq!(with(accept), Decision::Replay(Wait::Nothing));
        let discard = Consent { discard_journal: true, ..Consent::default() };
        assert!(matches!(with(discard), Decision::SetAside(_)));
        let adopt = Consent { adopt_journal: true, ..Consent::default() };
        assert!(matches!(with(adopt), Decision::Refuse(_)));
    }
    let reason = RefusalReason::StoreSetBack { known: 8, newest: 7 };
    assert_eq!(world.reason(&knows(8, 1, empty("b1", 2, 9))).reason, reason);
    // What it holds is of an opening that the store does not know: that says more.
    let other = knows(8, 1, journal("b1", 2, 1..=9));
    assert_eq!(world.reason(&other).reason, RefusalReason::OtherHistory);
}

/// A backup of the directory from within the same opening.
#[test]
fn a_journal_that_ends_before_a_witness_was_set_back() {
    let world = at_a1().witness("a1", 20, WitnessKind::Lease);
    let refused = world.reason(&journal("a1", 1, 1..=19));
    assert!(matches!(refused.reason, RefusalReason::SetBack { seen: 20, .. }), "{refused:?}");
    assert_eq!(refused.last_write, 19);
    assert_eq!(world.decide(&journal("a1", 1, 1..=20)), Decision::Replay(Wait::Nothing));
    let with = |consent| decide(&journal("a1", 1, 1..=19), &world.view(), consent);
    assert!(matches!(with(ADOPT), Decision::Refuse(_)), "what is missing is not in the copy");
    assert_eq!(with(DISCARD), Decision::SetAside(Wait::LeaseAndConsent));
    assert_eq!(with(LOSS), Decision::Replay(Wait::Nothing), "a prefix, as in other losses");
    let others = at_a1().witness("b1", 20, WitnessKind::Lease);
    assert_eq!(others.decide(&journal("a1", 1, 1..=2)), Decision::Replay(Wait::Nothing));
}

#[test]
fn a_journal_from_before_a_clean_close_holds_nothing_that_the_store_lacks() {
    let world = at_a1().closed().witness("a1", 20, WitnessKind::Close);
    assert_eq!(world.decide(&journal("a1", 1, 1..=12)), Decision::SetAside(Wait::Nothing));
    assert_eq!(world.decide(&journal("a1", 1, 1..=20)), Decision::Replay(Wait::Nothing));
}

#[test]
fn the_committed_prefix_is_a_witness() {
    let world = at_a1();
    let view = world.view();
    let refused = check_prefix(&journal("a1", 1, 1..=9), &view, mark(1, 10)).unwrap_err();
    assert!(matches!(refused.reason, RefusalReason::SetBack { seen: 10, .. }));
    assert_eq!(check_prefix(&journal("a1", 1, 1..=9), &view, mark(1, 9)), Ok(()));
    // Written by an opening before: this journal has other numbers.
    assert_eq!(check_prefix(&journal("a2", 2, 1..=1), &view, mark(1, 10)), Ok(()));
    // Programs that knew no openings sent batches before they were flushed.
    assert_eq!(check_prefix(&old_program(journal("a1", 1, 1..=9)), &view, mark(1, 10)), Ok(()));
}

#[test]
fn a_volume_that_was_closed_and_was_elsewhere_meanwhile_asks_no_question() {
    let world = at_a1().closed().opened("b1", 2, 4, mark(1, 9)).closed();
    assert_eq!(world.decide(&journal("a1", 1, 1..=9)), Decision::SetAside(Wait::Nothing));
    assert_eq!(world.decide(&empty("a1", 1, 9)), Decision::ReuseEmpty(Wait::Nothing));
    let held = at_a1().closed().opened("b1", 2, 4, mark(1, 9));
    assert_eq!(held.decide(&journal("a1", 1, 1..=9)), Decision::SetAside(Wait::LeaseAndConsent));
}

#[test]
fn what_a_takeover_gave_up_is_refused_with_what_is_at_stake() {
    let world = at_a1().opened("b1", 2, 4, mark(1, 6)).opened("b2", 3, 6, mark(2, 20));
    let refused = world.reason(&journal("a1", 1, 1..=9));
    assert_eq!(
        (refused.reason, refused.writes, refused.bytes),
        (RefusalReason::Superseded, 3, 300)
    );
    // The first step of a takeover: it owns nothing, and may have been cut off there.
    let published = at_a1().published("b1", 2);
    assert_eq!(published.decide(&journal("a1", 1, 1..=9)), Decision::Replay(Wait::Lease));
    // And the one who took over comes back, before and after it owned its sequences.
    assert_eq!(published.decide(&never_begun(&["b1"])), Decision::ReuseEmpty(Wait::Nothing));
    let owned = published.owned(4, mark(1, 6));
    assert_eq!(owned.decide(&never_begun(&["b1"])), Decision::Replay(Wait::Nothing));
    assert_eq!(owned.reason(&journal("a1", 1, 1..=9)).reason, RefusalReason::Superseded);
}

#[test]
fn several_openings_that_own_nothing_change_nothing() {
    let world = at_a1().published("b1", 2).published("c1", 3).published("a2", 4);
    let view = announcing(journal("a1", 1, 1..=9), &["a2"]);
    assert_eq!(world.decide(&view), Decision::Replay(Wait::Nothing), "it is the holder itself");
    let world = world.published("b2", 5);
    assert_eq!(world.decide(&view), Decision::Replay(Wait::Lease));
}

#[test]
fn every_step_between_announcement_and_begin_belongs_to_the_journal() {
    let view = announcing(journal("a1", 1, 1..=9), &["a2"]);
    // Announced, and not published: perhaps not yet.
    assert_eq!(at_a1().decide(&view), Decision::Replay(Wait::Nothing));
    let published = at_a1().published("a2", 2);
    assert_eq!(published.decide(&view), Decision::Replay(Wait::Nothing));
    let owned = published.owned(3, mark(1, 5));
    assert_eq!(owned.decide(&view), Decision::Replay(Wait::Nothing));
    // Taken over after each of these steps.
    for world in [at_a1(), at_a1().published("a2", 2), owned] {
        let taken = world.opened("b1", 3, 3, mark(1, 5)).closed();
        let refused = taken.reason(&view);
        assert_eq!((refused.reason, refused.writes), (RefusalReason::Superseded, 4));
        let nothing = announcing(journal("a1", 1, 1..=5), &["a2"]);
        assert_eq!(taken.decide(&nothing), Decision::SetAside(Wait::Nothing));
    }
}

#[test]
fn an_announced_opening_that_was_published_late_is_still_ours() {
    let view = announcing(journal("a1", 1, 1..=9), &["a2", "a3", "a4"]);
    for late in ["a2", "a3", "a4"] {
        let world = at_a1().published(late, 2);
        assert_eq!(world.decide(&view), Decision::Replay(Wait::Nothing));
        let empty = announcing(empty("a1", 1, 9), &["a2", "a3", "a4"]);
        assert_eq!(world.decide(&empty), Decision::Replay(Wait::Nothing));
    }
    // A takeover that announced, and whose file is kept although another took over meanwhile.
    let world = at_a1().opened("c1", 2, 4, mark(1, 9)).published("b1", 3);
    assert_eq!(world.decide(&never_begun(&["b1"])), Decision::ReuseEmpty(Wait::Nothing));
    let world = at_a1().opened("c1", 2, 4, mark(1, 9));
    assert_eq!(world.decide(&never_begun(&["b1"])), Decision::ReuseEmpty(Wait::LeaseAndConsent));
}

/// A backup of the directory from between the announcement of an opening and its begin.
#[test]
fn a_journal_that_announced_an_opening_with_objects_was_set_back() {
    let view = announcing(journal("a1", 1, 1..=9), &["a2"]);
    let world = at_a1().opened("a2", 2, 3, mark(1, 9)).object(3, 2);
    assert!(matches!(world.reason(&view).reason, RefusalReason::SetBack { seen: 10, .. }));
    let in_checkpoint = at_a1().opened("a2", 2, 3, mark(1, 9)).checkpoint(2, 5, mark(2, 30));
    assert!(matches!(in_checkpoint.reason(&view).reason, RefusalReason::SetBack { .. }));
    let renewed = at_a1().opened("a2", 2, 3, mark(1, 9)).witness("a2", 10, WitnessKind::Lease);
    assert!(matches!(renewed.reason(&view).reason, RefusalReason::SetBack { seen: 10, .. }));
    // Objects of others, or of its own before.
    let others = at_a1().opened("a2", 2, 3, mark(1, 9)).object(3, 1).object(2, 1).object(9, 7);
    assert_eq!(others.decide(&view), Decision::Replay(Wait::Nothing));
}

#[test]
fn a_new_volume_and_a_journal_that_was_never_begun() {
    assert_eq!(World::new().decide(&never_begun(&[])), Decision::ReuseEmpty(Wait::Nothing));
    let published = World::new().published("b1", 1);
    assert_eq!(published.decide(&never_begun(&["b1"])), Decision::ReuseEmpty(Wait::Nothing));
    assert_eq!(
        published.decide(&never_begun(&["b9"])),
        Decision::ReuseEmpty(Wait::LeaseAndConsent)
    );
    let owned = published.owned(1, mark(0, 0));
    assert_eq!(owned.decide(&never_begun(&["b1"])), Decision::Replay(Wait::Nothing));
}

fn legacy_a1() -> World {
    World::new().legacy("a1", 1, Some(1), mark(0, 0)).object(1, 1).object(2, 1)
}

#[test]
fn a_journal_of_an_old_program_is_its_epoch() {
    let view = old_program(journal("a1", 1, 1..=9));
    assert_eq!(legacy_a1().decide(&view), Decision::Replay(Wait::Nothing));
    assert_eq!(legacy_a1().closed().decide(&view), Decision::Replay(Wait::Nothing));
    // The epoch is the same, the journal is not.
    let others = World::new().legacy("b1", 1, Some(1), mark(0, 0));
    assert_eq!(others.reason(&view).reason, RefusalReason::OtherHistory);
}

#[test]
fn an_old_program_that_died_before_its_superblock_said_so_is_gone_on_with() {
    let view = old_program(journal("a1", 1, 1..=9));
    let published = legacy_a1().legacy("a2", 2, None, mark(0, 0));
    assert_eq!(published.decide(&view), Decision::Replay(Wait::Nothing));
    let owned = legacy_a1().legacy("a2", 2, Some(3), mark(1, 5));
    assert_eq!(owned.decide(&view), Decision::Replay(Wait::Nothing));
    let twice =
        legacy_a1().legacy("a2", 2, Some(3), mark(1, 5)).legacy("a3", 3, Some(3), mark(1, 5));
    assert_eq!(twice.decide(&view), Decision::Replay(Wait::Nothing));
    let never = JournalView { journal: journal_of("a"), ..never_begun(&[]) };
    let first = World::new().legacy("a1", 1, None, mark(0, 0));
    assert_eq!(first.decide(&never), Decision::ReuseEmpty(Wait::Nothing));
    // A takeover of another old program that was cut off.
    let other = legacy_a1().legacy("b1", 2, None, mark(0, 0));
    assert_eq!(other.decide(&view), Decision::Replay(Wait::Lease));
}

/// D3 for a journal of an old program.
#[test]
fn an_old_copy_shows_by_the_objects_of_later_epochs() {
    let view = old_program(journal("a1", 1, 1..=9));
    let world = legacy_a1().legacy("a2", 2, Some(3), mark(1, 5)).object(3, 2);
    let refused = world.reason(&view);
    assert_eq!((refused.reason, refused.writes), (RefusalReason::Superseded, 4));
    let world = legacy_a1().legacy("a2", 2, Some(3), mark(1, 5)).checkpoint(2, 3, mark(2, 9));
    assert_eq!(world.reason(&view).reason, RefusalReason::Superseded);
    let less = old_program(journal("a1", 1, 1..=5));
    assert_eq!(world.decide(&less), Decision::SetAside(Wait::LeaseAndConsent));
}

#[test]
fn a_journal_of_an_old_program_is_superseded_and_set_back_like_any_other() {
    let view = old_program(journal("a1", 1, 1..=9));
    let taken = legacy_a1().legacy("b1", 2, Some(3), mark(1, 5)).closed();
    let refused = taken.reason(&view);
    assert_eq!((refused.reason, refused.writes), (RefusalReason::Superseded, 4));
    let nothing = old_program(journal("a1", 1, 1..=5));
    assert_eq!(taken.decide(&nothing), Decision::SetAside(Wait::Nothing));
    let by_new_program = legacy_a1().opened("b1", 2, 3, mark(1, 5)).closed();
    assert_eq!(by_new_program.reason(&view).writes, 4);
    assert_eq!(by_new_program.decide(&nothing), Decision::SetAside(Wait::Nothing));
    // D1: the store was set back, and the journal is of an epoch that it does not know.
    let ahead = old_program(journal("a1", 3, 6..=9));
    assert_eq!(taken.reason(&ahead).reason, RefusalReason::OtherHistory);
    assert_eq!(legacy_a1().reason(&ahead).reason, RefusalReason::OtherHistory);
}

#[test]
fn the_first_opening_of_an_upgrade_may_stop_at_every_step() {
    let view = announcing(old_program(journal("a1", 1, 1..=9)), &["a2"]);
    assert_eq!(legacy_a1().decide(&view), Decision::Replay(Wait::Nothing));
    let published = legacy_a1().published("a2", 2);
    assert_eq!(published.decide(&view), Decision::Replay(Wait::Nothing));
    let owned = published.owned(3, mark(1, 5));
    assert_eq!(owned.decide(&view), Decision::Replay(Wait::Nothing));
    let taken = owned.opened("b1", 3, 3, mark(1, 5)).closed();
    assert_eq!(
        (taken.reason(&view).reason, taken.reason(&view).writes),
        (RefusalReason::Superseded, 4)
    );
}

#[test]
fn what_a_journal_holds_of_earlier_epochs_counts_as_well() {
    let mut view = journal("a2", 2, 8..=9);
    view.held.insert(0, HeldWrite { mark: mark(1, 7), bytes: 100 });
    let world = at_a1().opened("a2", 2, 3, mark(1, 6)).opened("b1", 3, 4, mark(1, 6)).closed();
    assert_eq!((world.reason(&view).writes, world.reason(&view).bytes), (3, 300));
    let world = at_a1().opened("a2", 2, 3, mark(1, 6)).opened("b1", 3, 4, mark(2, 8)).closed();
    assert_eq!(world.reason(&view).writes, 1);
}
