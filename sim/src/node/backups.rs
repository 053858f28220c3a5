//! A store that is set back to a backup, between two lives, while the host keeps its data directory.
//!
//! What the backup lacks may be missing afterwards, but only where somebody was asked: the journal, which knows more
//! than the store, is refused, or the gap is. Where the journal covers the difference nothing is missing.

use std::fmt::Display;

use bytes::Bytes;

use super::Node;
use crate::dice::Dice;
use crate::env::Stop;
use crate::oracle::Oracle;
use crate::profile::{DiskTrouble, End};

/// Ends of a life, in a hundred, after which a backup of the store is made.
const BACKUP_PERCENT: u64 = 50;

/// Ends of a life, in a hundred, after which the store is set back, if there is a backup.
const RESTORED_PERCENT: u64 = 50;

/// Everything in a store, and what clients knew then.
struct Backup {
    files: Vec<(String, Bytes)>,
    oracle: Oracle,
}

/// Backups of the store.
pub(super) struct Backups {
    /// A stream of its own: seeds in which nothing is set back keep their course.
    dice: Dice,
    kept: Option<Backup>,
    /// The store was set back, and the volume has not been opened since.
    pub(super) restored: bool,
    /// Somebody was told what is missing, and went on.
    pub(super) agreed: bool,
}

impl Backups {
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed, 18), kept: None, restored: false, agreed: false }
    }
}

impl Node {
    /// A life has ended so, and its process is gone.
    pub(super) async fn set_store_back(&mut self, end: End) {
        let profile = &self.world.profile;
        // Others know what they have seen in the store: snapshots, replicas and verbs have judges of their own.
        let others = profile.snapshots || profile.replicas || profile.verbs_percent > 0;
        let harmed = profile.store_damage || profile.trouble != DiskTrouble::None;
        let is_here = matches!(end, End::Kill | End::Power | End::Close);
        if others || harmed || self.world.encrypted {
            return;
        }
        if is_here
            && !self.foreign
            && self.backups.dice.percent(RESTORED_PERCENT)
            && let Some(backup) = self.backups.kept.take()
        {
            self.restore(backup).await;
        } else if self.backups.dice.percent(BACKUP_PERCENT) {
            let oracle = self.world.oracle.borrow().clone();
            self.backups.kept = Some(Backup { files: self.files().await, oracle });
        }
    }

    async fn files(&self) -> Vec<(String, Bytes)> {
        let store = &self.world.bare_store;
        let mut files = Vec::new();
        for listed in store.list("", None).await.expect("a store in memory") {
            let bytes = store.get(&listed.key).await.expect("listed just now");
            files.push((listed.key, bytes));
        }
        files
    }

    async fn restore(&mut self, backup: Backup) {
        // Nobody sets a store back while requests to it are on their way.
        self.world.faults.land_late_puts().await;
        let store = &self.world.bare_store;
        for (key, _) in self.files().await {
            store.delete(&key).await.expect("a store in memory");
        }
        for (key, bytes) in backup.files {
            store.put_create(&key, vec![bytes]).await.expect("a store in memory");
        }
        // A directory of the history that is gone is refused in ways that tests of their own judge.
        self.copies.forget();
        self.world.note("store set back", [0; 3]);
        self.world.set_back.replace(Some(backup.oracle));
        (self.backups.restored, self.foreign) = (true, true);
    }

    /// An opening was refused because of what the store lacks: what an operator says then.
    pub(super) fn judge_gap(&mut self, error: &impl Display) -> Result<(), Stop> {
        if !self.backups.restored || self.accept_loss {
            return self.violate(format!("the store lacks something without a reason: {error}"));
        }
        self.world.note("gap accepted", [0; 3]);
        (self.accept_loss, self.causal, self.backups.agreed) = (true, false, true);
        let back = self.world.set_back.borrow();
        let certain = back.as_ref().expect("set back").after_disk_loss();
        self.pending = self.pending.min(certain);
        Ok(())
    }
}
