//! What comes after a life: another key for a closed volume, and the last look at everything.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::timeout;
use weir_log::catalog::{self, RekeyKeys, VolumeName};
use weir_stack::QUIESCE_MAX;

use super::Node;
use crate::audit::audit;
use crate::clones;
use crate::dice::Dice;
use crate::env::{HANG, Hidden, Stop, env};
use crate::profile::End;
use crate::repairs;
use crate::replicas;
use crate::snapshots;

/// Seeds without a replica, in a hundred, that end with damage and its repair.
const REPAIRED_PERCENT: u64 = 30;

/// Of the others, those that end with the deletion of everything.
const DELETED_PERCENT: u64 = 30;

impl Node {
    /// Wraps the key of the volume, which is closed, with another one.
    pub(super) async fn rekey(&mut self) -> Result<(), Stop> {
        let world = Rc::clone(&self.world);
        let tasks = Rc::new(LocalSet::new());
        let (boot_id, scheduling) = (world.disk().boot_id(), world.profile.scheduling);
        let env = env(&mut self.dice, boot_id, scheduling, &tasks, Hidden::default());
        let back = self.dice.percent(30);
        let keys = if back { &world.keys } else { &world.new_keys };
        let cut = self.dice.percent(25).then(|| Duration::from_millis(self.dice.below(300)));
        let name = VolumeName::new("simulated").expect("a valid name");
        let work = {
            let keys = RekeyKeys { old: &world.keys, new: keys };
            catalog::rekey(&world.store, &env, &name, keys)
        };
        let work = timeout(cut.unwrap_or(HANG), Box::pin(work));
        world.note("rekey", [u64::from(back), 0, 0]);
        match tasks.run_until(work).await {
            Ok(Ok(now)) => {
                let shown = tasks.run_until(catalog::show(&world.bare_store, &env, &name)).await;
                let shown = shown.ok().and_then(|details| details.encryption);
                if shown.is_none_or(|shown| shown.wrapped_with != now.wrapped_with) {
                    return self.violate("a volume that was given another key does not name it");
                }
                world.note("  rekeyed", [0; 3]);
                Ok(())
            }
            Ok(Err(error)) if world.excuses_store(error.kind()) => Ok(()),
            Ok(Err(error)) => self.violate(format!("another key was refused: {error}")),
            Err(_) if cut.is_some() => {
                world.note("crash: while another key is given", [0; 3]);
                Ok(())
            }
            Err(_) => self.violate("giving another key hangs"),
        }
    }

    /// With a store and a disk that work, everything must come to its end, and the store alone must hold it.
    pub(super) async fn last_life(&mut self) -> Result<(), Stop> {
        self.world.calm_store();
        self.world.heal_object();
        self.copies.is_last = true;
        let opened = self.open().await?;
        let life = Rc::clone(&opened.life);
        let mut dice = Dice::new(self.dice.next(), 8);
        let work = async {
            for _ in 0..5 {
                life.write_somewhere(&mut dice).await;
            }
            life.flush_remote().await;
            life.stack.check_invariants();
        };
        let worked = opened.process.tasks.run_until(timeout(HANG, work)).await;
        self.go_on()?;
        if worked.is_err() {
            return self.violate("writes or the remote flush hang though the store works");
        }
        drop(life);
        if self.dice.percent(50) {
            let mut dice = Dice::new(self.dice.next(), 9);
            opened.process.tasks.run_until(self.close(&opened.life, &mut dice)).await?;
            self.end(opened, End::Close);
            self.world.disk().lose_disk();
            self.foreign = true;
            self.pending = self.pending.min(self.world.oracle.borrow().after_disk_loss());
        } else {
            self.end(opened, End::DiskLoss);
        }
        let opened = self.open().await?;
        let looked = Box::pin(audit(&self.world, &mut self.dice));
        let audited = opened.process.tasks.run_until(looked).await;
        if let Some(wrong) = audited {
            return self.violate(wrong);
        }
        let world = Rc::clone(&self.world);
        if let Some(wrong) = Box::pin(clones::audit(&world, &mut self.dice)).await {
            return self.violate(wrong);
        }
        self.go_on()?;
        if !self.world.profile.replicas {
            if self.dice.percent(30) {
                let work = timeout(HANG, snapshots::remove_all(&opened.life));
                if opened.process.tasks.run_until(work).await.is_err() {
                    return self.violate("deleting all snapshots hangs");
                }
                self.go_on()?;
                let looked = Box::pin(audit(&world, &mut self.dice));
                if let Some(wrong) = opened.process.tasks.run_until(looked).await {
                    return self.violate(format!("without snapshots: {wrong}"));
                }
                self.world.note("all snapshots deleted", [0; 3]);
            }
            self.end(opened, End::Kill);
            self.go_on()?;
            return self.damage_and_repair().await;
        }
        let begun = replicas::Ending::begin(&world, &mut self.dice);
        let begun = opened.process.tasks.run_until(Box::pin(begun)).await;
        self.end(opened, End::Kill);
        self.go_on()?;
        match begun {
            Ok(ending) => Box::pin(self.end_of_replica(ending)).await,
            Err(wrong) => self.violate(wrong),
        }
    }

    async fn damage_and_repair(&mut self) -> Result<(), Stop> {
        let world = Rc::clone(&self.world);
        if !self.dice.percent(REPAIRED_PERCENT) {
            if !self.dice.percent(DELETED_PERCENT) {
                return Ok(());
            }
            let deleted = Box::pin(clones::delete_everything(&world, &mut self.dice)).await;
            return deleted.map_or_else(|| self.go_on(), |wrong| self.violate(wrong));
        }
        let repaired = Box::pin(repairs::run(&world, &mut self.dice)).await;
        repaired.or_else(|wrong| self.violate(wrong))
    }

    /// The source wakes and goes on, while its replica is promoted.
    async fn end_of_replica(&mut self, ending: replicas::Ending) -> Result<(), Stop> {
        let opened = self.open().await?;
        let (life, mut dice) = (Rc::clone(&opened.life), Dice::new(self.dice.next(), 13));
        let work = async {
            for _ in 0..5 {
                life.write_somewhere(&mut dice).await;
            }
            let name = VolumeName::new("last").expect("a valid name");
            let taking = timeout(HANG, life.stack.snapshot(&name, QUIESCE_MAX));
            let Ok(snapshot) = taking.await else {
                return Err("the last snapshot hangs though the store works".to_owned());
            };
            life.judge_verb("the last snapshot", &snapshot, |_| false);
            Box::pin(replicas::take_over(&life.world, ending, &mut dice)).await
        };
        let worked = opened.process.tasks.run_until(Box::pin(work)).await;
        self.end(opened, End::Kill);
        self.go_on()?;
        worked.or_else(|wrong| self.violate(wrong))
    }
}
