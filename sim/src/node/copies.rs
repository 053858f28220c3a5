//! What people do with data directories between two lives: one is brought to other files by a copy, as `rsync` does for
//! a new disk, or an old one is put back in the place of what was lost.
//!
//! A copy of the newest directory loses nothing: it is gone on with once somebody says so, or nothing is in it that the
//! store lacks. Of an old one nothing may show, and nobody may be spared the question that a lost disk gives rise to.

use weir_disk::sim::{CopyAs, SimCopy};
use weir_log::{OpenReport, Refusal, RefusalReason};

use super::Node;
use crate::dice::Dice;
use crate::env::Stop;
use crate::nemesis::DIRECTORY;
use crate::profile::{DiskTrouble, End};

/// Ends of a life, in a hundred, after which the directory is kept to be put back later.
const KEPT_PERCENT: u64 = 40;

/// Lost disks, in a hundred, in the place of which a directory that was kept is put.
const PUT_BACK_PERCENT: u64 = 50;

/// Kills and losses of power, in a hundred, after which the directory is copied to other files.
const COPIED_PERCENT: u64 = 12;

/// Refusals of a copy, in a hundred, after which somebody goes on with it; else it is given up.
const ADOPTED_PERCENT: u64 = 70;

/// Data directories, and what the operator said about the one that is here.
#[derive(Debug)]
pub(super) struct Copies {
    /// A stream of its own: seeds in which nothing is copied keep their course.
    dice: Dice,
    /// A directory of an opening that others have followed, and its host.
    kept: Option<(usize, SimCopy)>,
    /// The directory is a copy, which nothing was opened with yet.
    copied: bool,
    /// Nor was an opening cut off that may have made another journal.
    untouched: bool,
    pub(super) adopt: bool,
    /// What comes after this life is done by those who have the volume's own directory.
    pub(super) is_last: bool,
}

impl Copies {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed, 17),
            kept: None,
            copied: false,
            untouched: false,
            adopt: false,
            is_last: false,
        }
    }

    /// The directory that was kept is not put back.
    pub(super) fn forget(&mut self) {
        self.kept = None;
    }
}

impl Node {
    /// A life has ended so, and its process is gone.
    pub(super) fn copy_directories(&mut self, end: End) {
        // The bytes that rotted are known for one journal only.
        if self.world.profile.trouble == DiskTrouble::Rot {
            return;
        }
        let (world, host) = (&self.world, self.world.host.get());
        match end {
            End::DiskLoss => {
                if !self.copies.dice.percent(PUT_BACK_PERCENT) {
                    return;
                }
                let Some((from, copy)) = self.copies.kept.take() else { return };
                let same = from == host && self.copies.dice.percent(50);
                let copy_as = if same { CopyAs::SameFiles } else { CopyAs::NewFiles };
                world.disk().put_copy(DIRECTORY, &copy, copy_as);
                world.note("directory set back", [u64::from(same), 0, 0]);
            }
            End::Kill | End::Power | End::Close => {
                if self.copies.dice.percent(KEPT_PERCENT) {
                    self.copies.kept = Some((host, world.disk().copy_directory(DIRECTORY)));
                }
                if end != End::Close
                    && !self.copies.is_last
                    && self.copies.dice.percent(COPIED_PERCENT)
                {
                    let copy = world.disk().copy_directory(DIRECTORY);
                    world.disk().put_copy(DIRECTORY, &copy, CopyAs::NewFiles);
                    world.note("directory copied", [0; 3]);
                    (self.copies.copied, self.copies.untouched) = (true, true);
                    self.foreign = true;
                }
            }
            End::Move => {}
        }
    }

    /// An opening was cut off, or failed: it may have made a journal of its own.
    pub(super) fn copy_was_touched(&mut self) {
        self.copies.untouched = false;
    }

    /// An opening came about.
    pub(super) fn judge_copy(&mut self, report: &OpenReport) -> Result<(), Stop> {
        let copied = std::mem::take(&mut self.copies.copied);
        let untouched = std::mem::take(&mut self.copies.untouched);
        let adopted = std::mem::take(&mut self.copies.adopt);
        if untouched && !adopted && !report.new_journal {
            return self.violate("a copied journal was gone on with, and nobody was asked");
        }
        if copied {
            let what = if adopted { "  copy adopted" } else { "  copy not gone on with" };
            self.world.note(what, [0; 3]);
        }
        Ok(())
    }

    /// A journal was refused: whether it may be, and what an operator says then.
    pub(super) fn judge_refused_journal(&mut self, refusal: &Refusal) -> Result<(), Stop> {
        if let RefusalReason::StoreSetBack { .. } = refusal.reason {
            return self.judge_gap(refusal);
        }
        if matches!(refusal.reason, RefusalReason::SetBack { .. })
            && self.rot_unproved
            && !self.accept_loss
        {
            // The journal cannot tell that its last record is rotten, but the store knows that there was one.
            self.world.note("rotten end noticed by the store", [0; 3]);
            self.accept_loss = true;
            return Ok(());
        }
        if !self.foreign || self.discard_journal || refusal.writes == 0 {
            return self.violate(format!("a journal was refused without a reason: {refusal}"));
        }
        if self.copies.copied != (refusal.reason == RefusalReason::Copied) {
            return self.violate(format!("a journal was refused for another reason: {refusal}"));
        }
        if !self.copies.copied {
            self.world.note("superseded journal given up", [0; 3]);
            self.discard_journal = true;
            self.backups.agreed = true;
        } else if self.copies.adopt {
            return self.violate(format!("a copy was to be adopted and is refused: {refusal}"));
        } else if self.copies.dice.percent(ADOPTED_PERCENT) {
            self.copies.adopt = true;
        } else {
            // What it holds is lost, and that was said.
            self.discard_journal = true;
            self.pending = self.pending.min(self.world.oracle.borrow().after_disk_loss());
        }
        Ok(())
    }
}
