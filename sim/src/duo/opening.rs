//! Openings, and whether they succeed and fail for a reason.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;
use weir_device::{DeviceExt, ErrorKind};
use weir_log::{
    BlockStore, LogError, MemoryFrameCache, NodeLease, OpenArgs, OpenReport, VolumeOptions,
};
use weir_stack::{EndpointSpec, Stack, StackSpec};
use weir_store::Fault;

use super::{ATTEMPTS_MAX, Duo, Fate, OPENING_MAX, OPENINGS_MAX};
use crate::client::Life;
use crate::dice::Dice;
use crate::env::Stop;
use crate::heard::Heard;
use crate::nemesis::{self, DIRECTORY};
use crate::node::{OPENING_PATIENCE, of_log};
use crate::observe::observe;
use crate::oracle::Point;
use crate::replicas;
use crate::snapshots;
use crate::verbs;

type OpenResult = Result<(Rc<Stack>, OpenReport), LogError>;

/// An opening under way.
pub(super) struct Attempt {
    pub(super) side: usize,
    pub(super) started: Instant,
    pub(super) take_over: bool,
    pub(super) discard_journal: bool,
    pub(super) options: VolumeOptions,
    lease: NodeLease,
    blocks: BlockStore,
    pub(super) result: Rc<RefCell<Option<OpenResult>>>,
    pub(super) done: Rc<Notify>,
}

impl Duo {
    pub(super) fn begin_attempt(&self, index: usize) -> Attempt {
        let side = &self.sides[index];
        self.world.calm_disk_of(index);
        self.start_process(side);
        let process = side.process.borrow();
        let process = process.as_ref().expect("just started");
        let options = self.world.profile.draw_options(&mut self.dice.borrow_mut());
        let attempt = Attempt {
            side: index,
            started: Instant::now(),
            take_over: side.take_over.get(),
            discard_journal: side.discard_journal.get(),
            options: options.clone(),
            lease: process.lease.clone(),
            blocks: Arc::new(MemoryFrameCache::new(self.world.profile.volume_bytes / 3)).into(),
            result: Rc::default(),
            done: Rc::default(),
        };
        self.world.note("opening", [index as u64, u64::from(attempt.take_over), 0]);
        if attempt.take_over || self.world.rule.may_be_auto() {
            // Whoever has it may find itself superseded from here on.
            for other in [0, 1] {
                if let Some(life) = self.life(other) {
                    life.may_be_fenced.set(true);
                }
            }
        }
        let root = self.world.disks[index].directory();
        let (id, env, lease) = (self.world.id.get(), process.env.clone(), process.lease.clone());
        let blocks = attempt.blocks.clone();
        let (store, discard_journal) = (side.store.clone(), side.discard_journal.get());
        let (result, done) = (Rc::clone(&attempt.result), Rc::clone(&attempt.done));
        let (take_over, keys) = (attempt.take_over, self.world.keys.clone());
        let stages = self.world.describe_stages();
        process.tasks.spawn_local(async move {
            let opened = async {
                let directory = root.subdirectory(DIRECTORY).await?;
                let stack_env = env.clone();
                let args = OpenArgs {
                    store,
                    id,
                    directory,
                    env,
                    options,
                    blocks,
                    keys,
                    lease,
                    accept_loss: false,
                    take_over,
                    discard_journal,
                    adopt_journal: false,
                    incomplete: false,
                    on_wait: None,
                };
                let spec = StackSpec { endpoint: EndpointSpec::Log(Box::new(args)), stages };
                Stack::open(&stack_env, spec).await.map_err(of_log)
            };
            *result.borrow_mut() = Some(opened.await);
            done.notify_one();
        });
        attempt
    }

    /// Waits for an opening to end, and judges it; whether it succeeded.
    pub(super) async fn end_attempt(&self, attempt: Attempt) -> Result<bool, Stop> {
        let side = &self.sides[attempt.side];
        let crash_after = self.percent(self.world.profile.crash_in_opening_percent);
        let crash_after = crash_after.then(|| self.leases(0..20));
        let limit = crash_after.unwrap_or(OPENING_MAX);
        if self.wait(attempt.done.notified(), limit).await.is_none() {
            if crash_after.is_none() {
                return self.violate("opening hangs");
            }
            self.world.note("crash: while opening", [0; 3]);
            side.may_be_holder.set(side.may_be_holder.get() || attempt.take_over);
            self.note_possible_epoch(&attempt);
            self.end_process(side, Fate::Killed);
            return Ok(false);
        }
        let result = attempt.result.take().expect("it is done");
        match result {
            Ok((stack, report)) => {
                self.opened(&attempt, stack, &report).await?;
                Ok(true)
            }
            Err(error) => {
                self.judge_refusal(&attempt, &error)?;
                let is_early = matches!(error, LogError::InUse { .. } | LogError::Held { .. });
                let may_be = attempt.take_over && !is_early;
                side.may_be_holder.set(side.may_be_holder.get() || may_be);
                self.note_possible_epoch(&attempt);
                self.end_process(side, Fate::Killed);
                Ok(false)
            }
        }
    }

    /// It may have taken the volume, and may not.
    pub(super) fn note_possible_epoch(&self, attempt: &Attempt) {
        self.epoch_may_have_moved.set(true);
        let same = self.journal_of.get() == Some(attempt.side) && !attempt.discard_journal;
        if !same && (attempt.take_over || self.world.rule.may_be_auto() || !self.must_be_held.get())
        {
            self.journal_of.set(None);
        }
    }

    pub(super) async fn opened(
        &self,
        attempt: &Attempt,
        stack: Rc<Stack>,
        report: &OpenReport,
    ) -> Result<(), Stop> {
        let side = &self.sides[attempt.side];
        let world = &self.world;
        world.note("opened", [report.epoch, report.committed_sequence, report.replayed_writes]);
        if report.epoch < self.epoch.get() {
            // It was superseded before anybody looked at it.
            let life = self.new_life(attempt, stack);
            life.superseded.set(true);
            life.superseded_at.set(Some(Instant::now()));
            if let Some(process) = &mut *side.process.borrow_mut() {
                process.life = Some(life);
            }
            return Ok(());
        }
        self.epoch.set(report.epoch);
        world.events.borrow_mut().count("recovery: new journal", u64::from(report.new_journal));
        // A takeover that was told to, and was cut off, is finished without being told again.
        let allowed = attempt.take_over || world.rule.may_be_auto() || side.may_be_holder.get();
        if report.new_journal && self.must_be_held.get() && !allowed {
            return self.violate("opened without take-over beside a holder that was not closed");
        }
        self.supersede(1 - attempt.side, attempt.started)?;
        self.sides.iter().for_each(|side| side.may_be_holder.set(false));
        side.take_over.set(false);
        side.discard_journal.set(false);
        let life = self.new_life(attempt, stack);
        if let Some(process) = &mut *side.process.borrow_mut() {
            life.honest.set(process.hidden.get().is_zero());
            process.life = Some(Rc::clone(&life));
            process.tasks.spawn_local(verbs::hear(Rc::clone(&life)));
        }
        let point = if self.journal_of.get() == Some(attempt.side) && !report.new_journal {
            side.pending.get()
        } else {
            world.oracle.borrow().after_disk_loss()
        };
        let mut dice = Dice::new(self.dice.borrow_mut().next(), 21);
        let seen = self.wait(observe(&life, point, &mut dice), OPENING_MAX).await;
        let Some(seen) = seen else { return self.violate("looking at the volume hangs") };
        if life.refused_since.get().is_some() {
            // It missed its deadline while it was looked at: nothing was learnt.
            self.note_possible_epoch(attempt);
            self.end_process(side, Fate::Killed);
            self.must_be_held.set(true);
            return Ok(());
        }
        let seen = seen?;
        let judged = world.oracle.borrow_mut().recovered(point, true, &seen);
        let Some(recovery) = world.check(judged) else { return Err(Stop) };
        world.detail("verified", [point.through, recovery.through, recovery.unanswered_kept]);
        for side in &self.sides {
            side.pending.set(Point::ALL);
        }
        self.owner.set(Some(attempt.side));
        self.journal_of.set(Some(attempt.side));
        self.must_be_held.set(true);
        self.epoch_may_have_moved.set(false);
        self.begin_verbs(attempt.side, &life, dice).await
    }

    /// The process of a side, if there is one, does not own the volume any more.
    fn supersede(&self, side: usize, since: Instant) -> Result<(), Stop> {
        let world = &self.world;
        if let Some(old) = self.life(side)
            && !old.superseded.replace(true)
        {
            world.meets(side, "takeover");
            old.superseded_at.set(Some(Instant::now()));
            self.sides[side].superseded_at.set(Some(Instant::now()));
            self.sides[side].rival_since.set(Some(since));
            world.note("owner superseded", [1 - side as u64, 0, 0]);
            if old.honest.get() && old.status().lease_held {
                return self.violate("a volume was taken whose holder still holds its lease");
            }
        }
        Ok(())
    }

    /// Looks at the snapshots, and lets verbs begin.
    async fn begin_verbs(&self, side: usize, life: &Rc<Life>, mut dice: Dice) -> Result<(), Stop> {
        let (world, side) = (&self.world, &self.sides[side]);
        let looked = Box::pin(snapshots::look(world, &mut dice));
        match self.wait(looked, OPENING_MAX).await {
            None => return self.violate("looking at the snapshots hangs"),
            Some(Some(wrong)) => return self.violate(wrong),
            Some(None) => {}
        }
        if let Some(process) = &*side.process.borrow() {
            let tasks = &process.tasks;
            let stages_dice = Dice::new(world.stages_dice.borrow_mut().next(), 61);
            tasks.spawn_local(nemesis::change_limits(Rc::clone(life), stages_dice));
            tasks.spawn_local(snapshots::run(Rc::clone(life), Dice::new(dice.next(), 27)));
            tasks.spawn_local(verbs::run(Rc::clone(life), Dice::new(dice.next(), 28)));
            tasks.spawn_local(replicas::run(Rc::clone(life), Dice::new(dice.next(), 29)));
        }
        Ok(())
    }

    /// Whether the other side is about to take the volume from this one.
    fn is_contended(&self, side: usize) -> bool {
        let other = &self.sides[1 - side];
        other.take_over.get() && other.process.borrow().is_some()
    }

    pub(super) fn new_life(&self, attempt: &Attempt, stack: Rc<Stack>) -> Rc<Life> {
        let options = &attempt.options;
        Rc::new(Life {
            world: Rc::clone(&self.world),
            heard: Rc::new(Heard::new(stack.size())),
            stack,
            host: attempt.side,
            lease: attempt.lease.clone(),
            blocks: attempt.blocks.clone(),
            read_deadline: options.read_deadline,
            close_deadline: options.close_deadline,
            stopping: Cell::new(false),
            paused: Cell::new(false),
            operating: Cell::new(0),
            thawed: Cell::new(None),
            resizing: Cell::new(false),
            calm: Cell::new(false),
            closing: Cell::new(false),
            frozen: Cell::new(0),
            whole_bytes_max: self.world.whole_bytes_max(options),
            disk_failed: Cell::new(false),
            superseded: Cell::new(false),
            honest: Cell::new(true),
            // A deadline may pass because the store is slow.
            may_be_fenced: Cell::new(
                self.world.rule.may_be_auto()
                    || self.epoch_may_have_moved.get()
                    || self.is_contended(attempt.side),
            ),
            auto: Cell::new(self.world.rule.is_auto()),
            refused_since: Cell::new(None),
            at_work: Cell::new(0),
            beside: Cell::new(0),
            cut: Cell::new(false),
            target: Cell::new(0),
            reached: Notify::new(),
            superseded_at: Cell::new(None),
            nbd: RefCell::default(),
        })
    }

    /// An opening was refused: was there a reason, and what would an operator do?
    pub(super) fn judge_refusal(&self, attempt: &Attempt, error: &LogError) -> Result<(), Stop> {
        let (world, side) = (&self.world, &self.sides[attempt.side]);
        let other = &self.sides[1 - attempt.side];
        tracing::info!(%error, side = attempt.side, "opening refused");
        let other_was_there = other.process.borrow().is_some()
            || other.ended.get().is_some_and(|ended| ended >= attempt.started);
        let late = world.faults.counts().of(Fault::LatePutQueued) > 0;
        match error {
            LogError::InUse { .. } if other_was_there || late => {
                world.note("refused: in use", [attempt.side as u64, 0, 0]);
            }
            LogError::Held { .. }
                if !attempt.take_over && world.rule.was_manual_since(attempt.started) =>
            {
                world.note("refused: not closed", [attempt.side as u64, 0, 0]);
                if self.percent(85) {
                    side.take_over.set(true);
                }
            }
            LogError::JournalRefused { .. } if !side.discard_journal.get() => {
                world.note("superseded journal given up", [attempt.side as u64, 0, 0]);
                side.discard_journal.set(true);
            }
            // Also while it takes the snapshot of what it took over.
            LogError::Fenced { .. } | LogError::NotKept { .. }
                if error.kind() == ErrorKind::Fenced && (other_was_there || late) =>
            {
                world.note("refused: another was faster", [attempt.side as u64, 0, 0]);
            }
            _ if error.kind() == ErrorKind::Fenced && world.rule.may_be_auto() => {
                world.note("refused: own lease missed", [attempt.side as u64, 0, 0]);
            }
            _ if world.damaged.borrow().is_some() => world.heal_object(),
            _ if world.excuses_healed(attempt.started, error.kind()) => {}
            _ if error.kind() == ErrorKind::Unavailable
                && world.store_was_away(OPENING_PATIENCE) => {}
            _ => {
                return self.violate(format!("opening failed without a reason: {error}"));
            }
        }
        Ok(())
    }

    /// Opens the volume on a side, however often it takes. It may miss its lease again and again while the store fails;
    /// with one that works it must come about.
    pub(super) async fn own(&self, side: usize) -> Result<(), Stop> {
        if self.try_to_own(side).await? {
            return Ok(());
        }
        self.world.note("store calmed to see an opening", [0; 3]);
        self.world.heal_object();
        self.world.calm_store();
        self.must_own(side).await?;
        self.world.usual_faults();
        Ok(())
    }

    /// Opens the volume on a side; the store works.
    pub(super) async fn must_own(&self, side: usize) -> Result<(), Stop> {
        if self.try_to_own(side).await? {
            return Ok(());
        }
        self.violate("opening does not come to an end")
    }

    /// Opens the volume on a side; whether it came about.
    async fn try_to_own(&self, side: usize) -> Result<bool, Stop> {
        for _ in 0..OPENINGS_MAX {
            let opened = self.end_attempt(self.begin_attempt(side)).await?;
            self.go_on()?;
            if opened && self.owner.get().is_some() {
                return Ok(true);
            }
            // An operator who waits a little, and decides in the end.
            tokio::time::sleep(self.leases(0..5)).await;
            if self.percent(30) {
                self.sides[side].take_over.set(true);
            }
        }
        Ok(false)
    }

    /// The other side tries a few times.
    pub(super) async fn contend(&self, index: usize) -> Result<(), Stop> {
        if self.life(index).is_some() {
            return Ok(());
        }
        let side = &self.sides[index];
        side.take_over.set(self.percent(50));
        let attempts = self.dice.borrow_mut().within(1..ATTEMPTS_MAX);
        for _ in 0..attempts {
            if self.end_attempt(self.begin_attempt(index)).await? {
                return self.go_on();
            }
            self.go_on()?;
            let pause = self.leases(0..5);
            self.wait(std::future::pending::<()>(), pause).await;
        }
        Ok(())
    }
}
