//! The two hosts: their processes, and what happens to them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};
use weir_device::Env;
use weir_log::{NodeLease, Retention};
use weir_store::{Faults, Store};

use super::{Duo, Fate};
use crate::client::Life;
use crate::env::{Hidden, env};
use crate::oracle::Point;
use crate::snapshots;

/// Time from the look at the lease to the request.
const ON_ITS_WAY_MAX: Duration = Duration::from_millis(100);

pub(super) type Driver = Pin<Box<dyn Future<Output = ()>>>;

/// A process of a node.
pub(super) struct Process {
    pub(super) tasks: Rc<LocalSet>,
    pub(super) env: Env,
    pub(super) hidden: Hidden,
    pub(super) lease: NodeLease,
    pub(super) life: Option<Rc<Life>>,
}

/// A host: its disk is `world.disks[index]`.
pub(super) struct Side {
    pub(super) index: usize,
    pub(super) gate: Faults,
    pub(super) store: Store,
    pub(super) node: [u8; 16],
    pub(super) process: RefCell<Option<Process>>,
    pub(super) driver: Cell<Option<Driver>>,
    /// The process is not polled until then.
    pub(super) stopped_until: Cell<Option<Instant>>,
    pub(super) stopped_since: Cell<Instant>,
    pub(super) hides: Cell<bool>,
    /// The store is out of its reach from then on.
    pub(super) cut_off_at: Cell<Option<Instant>>,
    /// The store is out of its reach until then.
    pub(super) cut_off_until: Cell<Option<Instant>>,
    /// When its last process ended.
    pub(super) ended: Cell<Option<Instant>>,
    /// What is certain when its journal is replayed.
    pub(super) pending: Cell<Point>,
    /// An opening that was allowed to take the volume was cut off, perhaps after it had; its journal is still there.
    pub(super) may_be_holder: Cell<bool>,
    pub(super) take_over: Cell<bool>,
    pub(super) discard_journal: Cell<bool>,
    /// When it last went on after it was stopped.
    pub(super) resumed_at: Cell<Option<Instant>>,
    /// When another opening took the volume of the process that runs here.
    pub(super) superseded_at: Cell<Option<Instant>>,
    /// When that other opening began.
    pub(super) rival_since: Cell<Option<Instant>>,
}

impl Duo {
    pub(super) fn start_process(&self, side: &Side) {
        if side.process.borrow().is_some() {
            return;
        }
        let tasks = Rc::new(LocalSet::new());
        let hidden = Hidden::default();
        let mut dice = self.dice.borrow_mut();
        let boot_id = self.world.disks[side.index].boot_id();
        let scheduling = self.world.profile.scheduling;
        let env = env(&mut dice, boot_id, scheduling, &tasks, Rc::clone(&hidden));
        let mut settings = self.world.profile.lease_settings(&mut dice);
        if self.copied {
            // Numbers that the other one left behind are free again soon.
            settings.retention = Retention { versions_min: 1, age_min: Duration::ZERO };
        }
        let name = ["left", "right"][side.index];
        let lease = NodeLease::start(side.store.clone(), &env, side.node, name, settings);
        let polled = Rc::clone(&tasks);
        let driver = async move { polled.run_until(std::future::pending::<()>()).await };
        side.driver.set(Some(Box::pin(driver)));
        *side.process.borrow_mut() = Some(Process { tasks, env, hidden, lease, life: None });
    }

    /// The process ends; `crash` does to the disk what comes with it.
    pub(super) fn end_process(&self, side: &Side, fate: Fate) {
        let Some(process) = side.process.borrow_mut().take() else { return };
        let rival_since = side.rival_since.take();
        self.look_who_deleted(side, process.life.as_deref(), rival_since);
        if let Some(life) = &process.life {
            life.count(&process.env.pacer);
        }
        let world = &self.world;
        let disk = &world.disks[side.index];
        world.ends_verbs(side.index);
        snapshots::on_crash(world, side.index);
        // Nobody knows what a page cache holds after a failed sync; the host restarts.
        let fate = match fate {
            Fate::DiskLost => fate,
            _ if world.harm.sync_failed_on(side.index) => Fate::PowerLost,
            _ => fate,
        };
        world.harm.settle_syncs(side.index, &mut world.oracle.borrow_mut());
        let oracle = self.world.oracle.borrow();
        let (what, point) = match fate {
            Fate::PowerLost => ("crash: power lost", oracle.after_power_loss()),
            Fate::DiskLost => ("crash: disk lost", oracle.after_disk_loss()),
            _ => ("crash: kill -9", oracle.after_kill()),
        };
        drop(oracle);
        self.world.note(what, [side.index as u64, point.through, 0]);
        match fate {
            Fate::PowerLost => disk.crash_power(),
            Fate::DiskLost => {
                disk.lose_disk();
                side.may_be_holder.set(false);
                self.journal_of.set(self.journal_of.get().filter(|of| *of != side.index));
            }
            _ => disk.crash_process(),
        }
        side.pending.set(side.pending.get().min(point));
        if self.owner.get() == Some(side.index) {
            self.owner.set(None);
        }
        side.ended.set(Some(Instant::now()));
        if side.stopped_until.take().is_some() {
            world.stops[side.index].borrow_mut().end();
        }
        side.hides.set(false);
        self.reconnect(side);
        side.driver.set(None);
        drop(process);
        // Those that were on their way when it ended are given up only now, and may happen later.
        self.note_late_puts(side.gate.take_watched().puts, rival_since);
    }

    /// What an owner stored beside the opening that superseded it: its successor may have deleted that by then.
    fn note_late_puts(&self, puts: Vec<(Instant, String)>, rival_since: Option<Instant>) {
        let Some(since) = rival_since else { return };
        let late = puts.into_iter().filter(|(at, _)| *at >= since);
        self.world.late_puts.borrow_mut().extend(late.map(|(_, key)| key));
    }

    /// A superseded owner deletes nothing: what it deletes was its garbage, but it cannot know whether it still is.
    /// Requests that were on their way are tried again, so that the first attempt counts.
    fn look_who_deleted(&self, side: &Side, life: Option<&Life>, rival_since: Option<Instant>) {
        let watched = side.gate.take_watched();
        self.note_late_puts(watched.puts, rival_since);
        let superseded = side.superseded_at.take();
        let (Some(superseded), Some(life)) = (superseded, life) else { return };
        if !life.honest.get() {
            return;
        }
        let since = superseded.max(side.resumed_at.get().unwrap_or(superseded)) + ON_ITS_WAY_MAX;
        let mut seen = BTreeSet::new();
        for (at, key) in watched.deletes {
            if seen.insert(key.clone()) && at > since && key.contains("/log/") {
                self.world.violate(format!("a superseded owner deleted {key}"));
            }
        }
    }

    pub(super) fn stop(&self, side: &Side, time: Duration, hides: bool) {
        self.disturbed.set(true);
        let what = if hides { "node stopped, clock as well" } else { "node stopped" };
        self.world.note(what, [side.index as u64, as_ms(time), 0]);
        side.stopped_since.set(Instant::now());
        if side.stopped_until.get().is_none() {
            self.world.stops[side.index].borrow_mut().begin();
        }
        side.stopped_until.set(Some(Instant::now() + time));
        side.hides.set(hides);
        if hides && let Some(life) = self.life(side.index) {
            life.honest.set(false);
        }
    }

    pub(super) fn resume(&self, side: &Side) {
        if side.stopped_until.take().is_none() {
            return;
        }
        self.world.note("node goes on", [side.index as u64, 0, 0]);
        self.world.stops[side.index].borrow_mut().end();
        side.resumed_at.set(Some(Instant::now()));
        if side.hides.take()
            && let Some(process) = &*side.process.borrow()
        {
            process.hidden.set(process.hidden.get() + side.stopped_since.get().elapsed());
        }
    }

    pub(super) fn cut_off(&self, side: &Side, time: Duration) {
        self.disturbed.set(true);
        let silent = self.percent(50);
        self.world.note("node cut off", [side.index as u64, as_ms(time), u64::from(silent)]);
        side.gate.change(|plan| (plan.outage, plan.silence) = (!silent, silent));
        self.world.outages.borrow_mut().begin();
        side.cut_off_until.set(Some(Instant::now() + time));
    }

    pub(super) fn reconnect(&self, side: &Side) {
        side.cut_off_at.set(None);
        if side.cut_off_until.take().is_some() {
            self.world.note("node reaches the store again", [side.index as u64, 0, 0]);
            side.gate.change(|plan| (plan.outage, plan.silence) = (false, false));
            self.world.outages.borrow_mut().end();
        }
    }

    /// Does what is due by now; when the next thing is.
    pub(super) fn do_what_is_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for side in &self.sides {
            if side.stopped_until.get().is_some_and(|at| at <= now) {
                self.resume(side);
            }
            if side.cut_off_at.get().is_some_and(|at| at <= now) {
                side.cut_off_at.set(None);
                self.cut_off(side, self.leases(10..40));
            }
            if side.cut_off_until.get().is_some_and(|at| at <= now) {
                self.reconnect(side);
            }
            let due = [&side.stopped_until, &side.cut_off_at, &side.cut_off_until];
            for at in due.into_iter().filter_map(Cell::get) {
                next = Some(next.map_or(at, |earlier: Instant| earlier.min(at)));
            }
        }
        next
    }

    /// Waits for `work`, doing what is due meanwhile; `None` if it takes longer than `limit`.
    pub(super) async fn wait<T>(
        &self,
        work: impl Future<Output = T>,
        limit: Duration,
    ) -> Option<T> {
        let mut work = Box::pin(timeout(limit, work));
        loop {
            let next = self.do_what_is_due();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                result = &mut work => return result.ok(),
                () = due => {}
            }
        }
    }
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("short")
}
