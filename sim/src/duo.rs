//! Two nodes over one store: one owns the volume, the other wants it, and things happen to both.
//!
//! A node that is stopped (SIGSTOP, a suspended host) is one whose tasks are not polled. What it had sent is done late,
//! what it had received is read late, and its clock goes on, unless the seed says that the clock hides the time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};
use weir_device::{Env, ErrorKind};
use weir_log::{
    Closed, LogError, LogVolume, MemoryFrameCache, NodeLease, OpenArgs, OpenReport, Takeover,
    VolumeOptions,
};
use weir_store::{Fault, Faults, Store};

use crate::client::{self, Life};
use crate::dice::Dice;
use crate::env::{Hidden, env};
use crate::nemesis::DIRECTORY;
use crate::node::{HANG, Stop};
use crate::observe::observe;
use crate::oracle::Point;
use crate::world::World;

/// Attempts of one node to open the volume before it gives up for the round.
const ATTEMPTS_MAX: u64 = 8;

/// Attempts at an opening that must succeed in the end.
const OPENINGS_MAX: u64 = 40;

/// Longest time that an opening may take: waiting for its own lease and for the holder's, with a failing store.
const OPENING_MAX: Duration = Duration::from_secs(600);

type Driver = Pin<Box<dyn Future<Output = ()>>>;

/// What happens to the owner of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing.
    Lives,
    /// `kill -9`.
    Killed,
    /// Its host loses power.
    PowerLost,
    /// Its disk is gone.
    DiskLost,
    /// It closes the volume.
    Closes,
    /// It is stopped for a while, and its clock goes on.
    Stopped,
    /// It is stopped for a while, and its clock does not know.
    Hidden,
    /// It cannot reach the store for a while.
    CutOff,
    /// It hears late that it has renewed its lease, and cannot reach the store from then on.
    Delayed,
}

const FATES: [Fate; 9] = [
    Fate::Lives,
    Fate::Killed,
    Fate::PowerLost,
    Fate::DiskLost,
    Fate::Closes,
    Fate::Stopped,
    Fate::Hidden,
    Fate::CutOff,
    Fate::Delayed,
];

/// A process of a node.
struct Process {
    tasks: Rc<LocalSet>,
    env: Env,
    hidden: Hidden,
    lease: NodeLease,
    life: Option<Rc<Life>>,
}

/// A host: its disk is `world.disks[index]`.
struct Side {
    index: usize,
    gate: Faults,
    store: Store,
    node: [u8; 16],
    process: RefCell<Option<Process>>,
    driver: Cell<Option<Driver>>,
    /// The process is not polled until then.
    stopped_until: Cell<Option<Instant>>,
    stopped_since: Cell<Instant>,
    hides: Cell<bool>,
    /// The store is out of its reach until then.
    cut_off_until: Cell<Option<Instant>>,
    /// When its last process ended.
    ended: Cell<Option<Instant>>,
    /// What is certain when its journal is replayed.
    pending: Cell<Point>,
    take_over: Cell<bool>,
    discard_journal: Cell<bool>,
}

/// An opening under way.
struct Attempt {
    side: usize,
    started: Instant,
    take_over: bool,
    discard_journal: bool,
    options: VolumeOptions,
    result: Rc<RefCell<Option<Result<(Rc<LogVolume>, OpenReport), LogError>>>>,
    done: Rc<Notify>,
}

/// One seed with two nodes.
pub(crate) struct Duo {
    world: Rc<World>,
    sides: [Side; 2],
    dice: RefCell<Dice>,
    auto: bool,
    /// The side whose opening counts.
    owner: Cell<Option<usize>>,
    /// The newest epoch of a completed opening.
    epoch: Cell<u64>,
    /// The side whose journal certainly holds what the last owner answered.
    journal_of: Cell<Option<usize>>,
    /// The last owner certainly did not close the volume.
    must_be_held: Cell<bool>,
    /// An opening was begun that may have changed the manifest without coming to its end.
    epoch_may_have_moved: Cell<bool>,
    /// Something was done to the store's reachability or to a process.
    disturbed: Cell<bool>,
}

impl Duo {
    pub(crate) fn new(world: Rc<World>, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 20);
        let copied = dice.percent(15);
        let side = |index: usize| {
            let gate = Faults::new(index as u64);
            let store = world.store.clone().with_faults(gate.clone());
            let node = if copied { [7; 16] } else { [u8::try_from(index).expect("two") + 1; 16] };
            Side {
                index,
                gate,
                store: store.with_attempt_timeout(world.profile.attempt_timeout),
                node,
                process: RefCell::default(),
                driver: Cell::default(),
                stopped_until: Cell::default(),
                stopped_since: Cell::new(Instant::now()),
                hides: Cell::default(),
                cut_off_until: Cell::default(),
                ended: Cell::default(),
                pending: Cell::new(Point::ALL),
                take_over: Cell::default(),
                discard_journal: Cell::default(),
            }
        };
        if copied {
            world.note("two nodes of one name", [0; 3]);
        }
        let sides = [side(0), side(1)];
        let auto = dice.percent(50);
        world.note(if auto { "takeover: auto" } else { "takeover: manual" }, [0; 3]);
        Self {
            world,
            sides,
            dice: RefCell::new(dice),
            auto,
            owner: Cell::new(None),
            epoch: Cell::new(0),
            journal_of: Cell::new(None),
            must_be_held: Cell::new(false),
            epoch_may_have_moved: Cell::new(false),
            disturbed: Cell::new(false),
        }
    }

    /// The whole run: the script, and both processes beside it.
    pub(crate) async fn run(self) -> Result<(), Stop> {
        let mut script = Box::pin(self.script());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = script.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            for side in &self.sides {
                if side.stopped_until.get().is_some() {
                    continue;
                }
                if let Some(mut driver) = side.driver.take() {
                    // It never ends by itself.
                    let _ = driver.as_mut().poll(cx);
                    side.driver.set(Some(driver));
                }
            }
            Poll::Pending
        })
        .await
    }

    // --- small things --------------------------------------------------------------------------------------------

    fn go_on(&self) -> Result<(), Stop> {
        if self.world.is_violated() { Err(Stop) } else { Ok(()) }
    }

    fn violate<T>(&self, message: impl Into<String>) -> Result<T, Stop> {
        self.world.violate(message);
        Err(Stop)
    }

    fn percent(&self, percent: u64) -> bool {
        self.dice.borrow_mut().percent(percent)
    }

    /// A time of `tenths` tenths of a lease.
    fn leases(&self, tenths: std::ops::Range<u64>) -> Duration {
        let tenths = self.dice.borrow_mut().within(tenths);
        self.world.profile.lease * u32::try_from(tenths).expect("few") / 10
    }

    fn life(&self, side: usize) -> Option<Rc<Life>> {
        self.sides[side].process.borrow().as_ref()?.life.clone()
    }

    // --- processes -----------------------------------------------------------------------------------------------

    fn start_process(&self, side: &Side) {
        if side.process.borrow().is_some() {
            return;
        }
        let tasks = Rc::new(LocalSet::new());
        let hidden = Hidden::default();
        let mut dice = self.dice.borrow_mut();
        let boot_id = self.world.disks[side.index].boot_id();
        let scheduling = self.world.profile.scheduling;
        let env = env(&mut dice, boot_id, scheduling, &tasks, Rc::clone(&hidden));
        let settings = self.world.profile.lease_settings(&mut dice);
        let name = ["left", "right"][side.index];
        let lease = NodeLease::start(side.store.clone(), &env, side.node, name, settings);
        let polled = Rc::clone(&tasks);
        let driver = async move { polled.run_until(std::future::pending::<()>()).await };
        side.driver.set(Some(Box::pin(driver)));
        *side.process.borrow_mut() = Some(Process { tasks, env, hidden, lease, life: None });
    }

    /// The process ends; `crash` does to the disk what comes with it.
    fn end_process(&self, side: &Side, fate: Fate) {
        let Some(process) = side.process.borrow_mut().take() else { return };
        let disk = &self.world.disks[side.index];
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
                self.journal_of.set(self.journal_of.get().filter(|of| *of != side.index));
            }
            _ => disk.crash_process(),
        }
        side.pending.set(side.pending.get().min(point));
        if self.owner.get() == Some(side.index) {
            self.owner.set(None);
        }
        side.ended.set(Some(Instant::now()));
        side.stopped_until.set(None);
        side.hides.set(false);
        self.reconnect(side);
        side.driver.set(None);
        drop(process);
    }

    fn stop(&self, side: &Side, time: Duration, hides: bool) {
        self.disturbed.set(true);
        let what = if hides { "node stopped, clock as well" } else { "node stopped" };
        self.world.note(what, [side.index as u64, as_ms(time), 0]);
        side.stopped_since.set(Instant::now());
        side.stopped_until.set(Some(Instant::now() + time));
        side.hides.set(hides);
        if hides && let Some(life) = self.life(side.index) {
            life.honest.set(false);
        }
    }

    fn resume(&self, side: &Side) {
        if side.stopped_until.take().is_none() {
            return;
        }
        self.world.note("node goes on", [side.index as u64, 0, 0]);
        if side.hides.take()
            && let Some(process) = &*side.process.borrow()
        {
            process.hidden.set(process.hidden.get() + side.stopped_since.get().elapsed());
        }
    }

    fn cut_off(&self, side: &Side, time: Duration) {
        self.disturbed.set(true);
        let silent = self.percent(50);
        self.world.note("node cut off", [side.index as u64, as_ms(time), u64::from(silent)]);
        side.gate.change(|plan| (plan.outage, plan.silence) = (!silent, silent));
        side.cut_off_until.set(Some(Instant::now() + time));
    }

    fn reconnect(&self, side: &Side) {
        if side.cut_off_until.take().is_some() {
            self.world.note("node reaches the store again", [side.index as u64, 0, 0]);
            side.gate.change(|plan| (plan.outage, plan.silence) = (false, false));
            // Reads that hung meanwhile had a reason.
            self.world.set_outage(false, false);
        }
    }

    /// Does what is due by now; when the next thing is.
    fn do_what_is_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for side in &self.sides {
            if side.stopped_until.get().is_some_and(|at| at <= now) {
                self.resume(side);
            }
            if side.cut_off_until.get().is_some_and(|at| at <= now) {
                self.reconnect(side);
            }
            for at in [side.stopped_until.get(), side.cut_off_until.get()].into_iter().flatten() {
                next = Some(next.map_or(at, |earlier: Instant| earlier.min(at)));
            }
        }
        next
    }

    /// Waits for `work`, doing what is due meanwhile; `None` if it takes longer than `limit`.
    async fn wait<T>(&self, work: impl Future<Output = T>, limit: Duration) -> Option<T> {
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

    // --- opening -------------------------------------------------------------------------------------------------

    fn begin_attempt(&self, index: usize) -> Attempt {
        let side = &self.sides[index];
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
            result: Rc::default(),
            done: Rc::default(),
        };
        self.world.note("opening", [index as u64, u64::from(attempt.take_over), 0]);
        if attempt.take_over || self.auto {
            // Whoever has it may find itself superseded from here on.
            for other in [0, 1] {
                if let Some(life) = self.life(other) {
                    life.may_be_fenced.set(true);
                }
            }
        }
        let root = self.world.disks[index].directory();
        let (id, env, lease) = (self.world.id.get(), process.env.clone(), process.lease.clone());
        let cache = Arc::new(MemoryFrameCache::new(self.world.profile.volume_bytes / 3));
        let (store, discard_journal) = (side.store.clone(), side.discard_journal.get());
        let (result, done) = (Rc::clone(&attempt.result), Rc::clone(&attempt.done));
        let take_over = attempt.take_over;
        process.tasks.spawn_local(async move {
            let opened = async {
                let directory = root.subdirectory(DIRECTORY).await?;
                LogVolume::open(OpenArgs {
                    store,
                    id,
                    directory,
                    env,
                    options,
                    cache,
                    lease,
                    accept_loss: false,
                    take_over,
                    discard_journal,
                })
                .await
            };
            *result.borrow_mut() = Some(opened.await);
            done.notify_one();
        });
        attempt
    }

    /// Waits for an opening to end, and judges it; whether it succeeded.
    async fn end_attempt(&self, attempt: Attempt) -> Result<bool, Stop> {
        let side = &self.sides[attempt.side];
        let crash_after = self.percent(self.world.profile.crash_in_opening_percent);
        let crash_after = crash_after.then(|| self.leases(0..20));
        let limit = crash_after.unwrap_or(OPENING_MAX);
        if self.wait(attempt.done.notified(), limit).await.is_none() {
            if crash_after.is_none() {
                return self.violate("opening hangs");
            }
            self.world.note("crash: while opening", [0; 3]);
            self.note_possible_epoch(&attempt);
            self.end_process(side, Fate::Killed);
            return Ok(false);
        }
        let result = attempt.result.take().expect("it is done");
        match result {
            Ok((volume, report)) => {
                self.opened(&attempt, volume, &report).await?;
                Ok(true)
            }
            Err(error) => {
                self.judge_refusal(&attempt, &error)?;
                self.note_possible_epoch(&attempt);
                self.end_process(side, Fate::Killed);
                Ok(false)
            }
        }
    }

    /// It may have taken the volume, and may not.
    fn note_possible_epoch(&self, attempt: &Attempt) {
        self.epoch_may_have_moved.set(true);
        let same = self.journal_of.get() == Some(attempt.side) && !attempt.discard_journal;
        if !same && (attempt.take_over || self.auto || !self.must_be_held.get()) {
            self.journal_of.set(None);
        }
    }

    async fn opened(
        &self,
        attempt: &Attempt,
        volume: Rc<LogVolume>,
        report: &OpenReport,
    ) -> Result<(), Stop> {
        let side = &self.sides[attempt.side];
        let world = &self.world;
        world.note("opened", [report.epoch, report.committed_sequence, report.replayed_writes]);
        if report.epoch < self.epoch.get() {
            // It was superseded before anybody looked at it.
            let life = self.new_life(volume, &attempt.options);
            life.superseded.set(true);
            if let Some(process) = &mut *side.process.borrow_mut() {
                process.life = Some(life);
            }
            return Ok(());
        }
        self.epoch.set(report.epoch);
        world.events.borrow_mut().count("recovery: new journal", u64::from(report.new_journal));
        let allowed = attempt.take_over || self.auto;
        if report.new_journal && self.must_be_held.get() && !allowed {
            return self.violate("opened without take-over beside a holder that was not closed");
        }
        if let Some(old) = self.life(1 - attempt.side)
            && !old.superseded.replace(true)
        {
            world.note("owner superseded", [attempt.side as u64, 0, 0]);
            if old.honest.get() && old.volume.status().lease_held {
                return self.violate("a volume was taken whose holder still holds its lease");
            }
        }
        side.take_over.set(false);
        side.discard_journal.set(false);
        let life = self.new_life(volume, &attempt.options);
        if let Some(process) = &mut *side.process.borrow_mut() {
            life.honest.set(process.hidden.get().is_zero());
            process.life = Some(Rc::clone(&life));
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
        Ok(())
    }

    fn new_life(&self, volume: Rc<LogVolume>, options: &VolumeOptions) -> Rc<Life> {
        Rc::new(Life {
            world: Rc::clone(&self.world),
            volume,
            read_deadline: options.read_deadline,
            stopping: Cell::new(false),
            calm: Cell::new(false),
            closing: Cell::new(false),
            disk_failed: Cell::new(false),
            superseded: Cell::new(false),
            honest: Cell::new(true),
            // A deadline may pass because the store is slow.
            may_be_fenced: Cell::new(self.auto || self.epoch_may_have_moved.get()),
            auto: self.auto,
            refused_since: Cell::new(None),
            at_work: Cell::new(0),
            target: Cell::new(0),
            reached: Notify::new(),
        })
    }

    /// An opening was refused: was there a reason, and what would an operator do?
    fn judge_refusal(&self, attempt: &Attempt, error: &LogError) -> Result<(), Stop> {
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
            LogError::Held { .. } if !attempt.take_over && !self.auto => {
                world.note("refused: not closed", [attempt.side as u64, 0, 0]);
                if self.percent(85) {
                    side.take_over.set(true);
                }
            }
            LogError::JournalSuperseded { .. } if !side.discard_journal.get() => {
                world.note("superseded journal given up", [attempt.side as u64, 0, 0]);
                side.discard_journal.set(true);
            }
            LogError::Fenced { .. } if other_was_there || late => {
                world.note("refused: another was faster", [attempt.side as u64, 0, 0]);
            }
            LogError::LeaseMissed { .. } if self.auto => {
                world.note("refused: own lease missed", [attempt.side as u64, 0, 0]);
            }
            _ if error.kind() == ErrorKind::Unavailable
                && world.outage_since(attempt.started, Duration::ZERO) => {}
            _ => {
                return self.violate(format!("opening failed without a reason: {error}"));
            }
        }
        Ok(())
    }

    /// Opens the volume on a side, however often it takes.
    async fn own(&self, side: usize) -> Result<(), Stop> {
        for _ in 0..OPENINGS_MAX {
            let opened = self.end_attempt(self.begin_attempt(side)).await?;
            self.go_on()?;
            if opened && self.owner.get().is_some() {
                return Ok(());
            }
            // An operator who waits a little, and decides in the end.
            tokio::time::sleep(self.leases(0..5)).await;
            if self.percent(30) {
                self.sides[side].take_over.set(true);
            }
        }
        self.violate("opening does not come to an end")
    }

    /// The other side tries a few times.
    async fn contend(&self, index: usize) -> Result<(), Stop> {
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

    // --- rounds --------------------------------------------------------------------------------------------------

    async fn script(&self) -> Result<(), Stop> {
        self.create().await?;
        self.world.usual_faults();
        let rounds = self.dice.borrow_mut().within(2..5);
        for _ in 0..rounds {
            self.round().await?;
            self.go_on()?;
        }
        self.finish().await
    }

    async fn create(&self) -> Result<(), Stop> {
        let side = &self.sides[0];
        self.start_process(side);
        let env = side.process.borrow().as_ref().expect("started").env.clone();
        let name = weir_log::catalog::VolumeName::new("simulated").expect("a valid name");
        let size = self.world.profile.device_bytes();
        let takeover = if self.auto { Takeover::Auto } else { Takeover::Manual };
        let store = &self.world.store;
        match weir_log::catalog::create_as(store, &env, &name, size, takeover).await {
            Ok(id) => self.world.id.set(id),
            Err(error) => return self.violate(format!("creating the volume: {error}")),
        }
        self.end_process(side, Fate::Killed);
        side.pending.set(Point::ALL);
        Ok(())
    }

    async fn round(&self) -> Result<(), Stop> {
        // Who lost a race.
        for index in [0, 1] {
            if self.life(index).is_some_and(|life| life.superseded.get()) {
                self.bury(index).await?;
            }
        }
        if self.owner.get().is_none() {
            let side = usize::from(self.percent(50));
            if self.percent(25) {
                self.race(side).await?;
            }
            if self.owner.get().is_none() {
                self.own(side).await?;
            }
        }
        self.work().await?;
        let Some(index) = self.owner.get() else { return Ok(()) };
        let side = &self.sides[index];
        let weights = if self.auto {
            [10, 8, 4, 4, 6, 30, 6, 24, 12]
        } else {
            [10, 12, 6, 5, 8, 24, 8, 24, 6]
        };
        let fate = FATES[self.dice.borrow_mut().weighted(&weights)];
        match fate {
            Fate::Lives => {}
            Fate::Killed | Fate::PowerLost | Fate::DiskLost => self.end_process(side, fate),
            Fate::Closes => self.close(index).await?,
            Fate::Stopped | Fate::Hidden => {
                let time = self.leases(2..40);
                self.stop(side, time, fate == Fate::Hidden);
            }
            Fate::CutOff => {
                let time = self.leases(2..40);
                self.cut_off(side, time);
            }
            Fate::Delayed => self.delay_renewal(side).await,
        }
        self.go_on()?;
        if self.percent(80) {
            self.contend(1 - index).await?;
        }
        self.settle(index).await
    }

    /// Both sides try at once.
    async fn race(&self, first: usize) -> Result<(), Stop> {
        self.world.note("race of two openings", [0; 3]);
        for side in &self.sides {
            side.take_over.set(self.percent(70));
        }
        let one = self.begin_attempt(first);
        let pause = self.leases(0..4);
        self.wait(std::future::pending::<()>(), pause).await;
        let two = self.begin_attempt(1 - first);
        self.end_attempt(one).await?;
        self.go_on()?;
        self.end_attempt(two).await?;
        self.go_on()
    }

    /// The clients of the owner work for a while.
    async fn work(&self) -> Result<(), Stop> {
        let Some(index) = self.owner.get() else { return Ok(()) };
        let Some(life) = self.life(index) else { return Ok(()) };
        let operations = self.dice.borrow_mut().within(10..80);
        life.target.set(self.world.operations.get() + operations);
        if life.at_work.get() == 0 && life.refused_since.get().is_none() {
            let clients = self.world.profile.clients;
            life.at_work.set(clients);
            let process = self.sides[index].process.borrow();
            let tasks = &process.as_ref().expect("it owns the volume").tasks;
            for _ in 0..clients {
                let dice = Dice::new(self.dice.borrow_mut().next(), 22);
                tasks.spawn_local(client::run(Rc::clone(&life), dice));
            }
        }
        let limit = self.world.profile.lease * 4;
        self.wait(life.until_target(), limit).await;
        self.go_on()
    }

    /// Stops the node at the moment when a renewal has reached the store, lets it read the reply, and cuts it off.
    async fn delay_renewal(&self, side: &Side) {
        let prefix = format!("nodes/{}/", weir_device::VolumeId(side.node));
        let newest = async || {
            let listed = self.world.bare_store.list(&prefix, None).await.unwrap_or_default();
            listed.last().map(|listed| listed.key.clone())
        };
        let renewed = async {
            let before = newest().await;
            while newest().await == before {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let limit = self.world.profile.lease;
        self.wait(renewed, limit).await;
        let (stop, heard, cut) = (self.leases(1..7), self.leases(1..3), self.leases(10..40));
        self.stop(side, stop, false);
        self.wait(std::future::pending::<()>(), stop).await;
        self.resume(side);
        self.wait(std::future::pending::<()>(), heard).await;
        if side.process.borrow().is_some() {
            self.cut_off(side, cut);
        }
    }

    /// What became of the owner of the round, and of the other one.
    async fn settle(&self, index: usize) -> Result<(), Stop> {
        let side = &self.sides[index];
        let Some(life) = self.life(index) else { return Ok(()) };
        if life.superseded.get() {
            if self.percent(60) {
                // It is away for long, while the new owner goes on.
                let long = Instant::now() + HANG;
                side.stopped_until.set(side.stopped_until.get().map(|_| long));
                side.cut_off_until.set(side.cut_off_until.get().map(|_| long));
                let rounds = self.dice.borrow_mut().within(1..4);
                for _ in 0..rounds {
                    self.work().await?;
                }
            } else if self.percent(50) {
                // Both run for a while.
                self.work().await?;
            }
            self.bury(index).await?;
            return self.go_on();
        }
        if self.percent(60) {
            self.resume(side);
            self.reconnect(side);
        }
        self.work().await?;
        if life.refused_since.get().is_some() {
            self.world.note("owner ended by itself", [index as u64, 0, 0]);
            self.end_process(side, Fate::Killed);
        } else if self.percent(30) {
            let fate = if self.percent(50) { Fate::Killed } else { Fate::PowerLost };
            self.end_process(side, fate);
        }
        self.go_on()
    }

    /// A superseded owner goes on until it knows, and ends.
    async fn bury(&self, index: usize) -> Result<(), Stop> {
        let side = &self.sides[index];
        self.resume(side);
        self.reconnect(side);
        let Some(life) = self.life(index) else { return Ok(()) };
        // What was on its way when it was stopped is done now.
        self.wait(std::future::pending::<()>(), self.leases(1..10)).await;
        self.go_on()?;
        if self.percent(50) && self.wait(life.flush_remote(), HANG).await.is_none() {
            return self.violate("a remote flush of a superseded owner hangs");
        }
        self.go_on()?;
        if life.honest.get() && self.percent(70) {
            let mut dice = Dice::new(self.dice.borrow_mut().next(), 23);
            let fenced = async {
                while life.refused_since.get().is_none() && !self.world.is_violated() {
                    life.write_somewhere(&mut dice).await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            };
            if self.wait(fenced, HANG).await.is_none() {
                return self.violate("a superseded owner is never told");
            }
            self.world.note("superseded owner knows", [index as u64, 0, 0]);
        }
        self.go_on()?;
        let fate = if self.percent(50) { Fate::Killed } else { Fate::PowerLost };
        self.end_process(side, fate);
        Ok(())
    }

    async fn close(&self, index: usize) -> Result<(), Stop> {
        let Some(life) = self.life(index) else { return Ok(()) };
        life.closing.set(true);
        let begun = self.world.oracle.borrow_mut().begin_flush();
        self.world.note("close", [begun, 0, 0]);
        let Some(closed) = self.wait(life.volume.close(), HANG).await else {
            return self.violate("closing hangs");
        };
        let now = self.world.oracle.borrow_mut().tick();
        match closed {
            Ok(Closed::Clean) => {
                self.world.oracle.borrow_mut().end_remote_flush(now);
                self.must_be_held.set(false);
                self.world.note("closed: clean", [0; 3]);
            }
            Ok(Closed::LocalOnly) => {
                self.world.oracle.borrow_mut().end_flush(now);
                self.epoch_may_have_moved.set(true);
                // Perhaps everything arrived all the same, only later than it waited.
                self.must_be_held.set(false);
                self.world.note("closed: rest in the journal", [0; 3]);
            }
            Err(error) if error.kind() == ErrorKind::Fenced && life.may_be_fenced.get() => {
                self.world.note("close failed: fenced", [0; 3]);
            }
            Err(error) => {
                return self.violate(format!("closing failed without a reason: {error:?}"));
            }
        }
        // Clients that were refused come to their end.
        self.wait(std::future::pending::<()>(), Duration::from_secs(1)).await;
        self.end_process(&self.sides[index], Fate::Killed);
        self.go_on()
    }

    /// With a store that works, everything must come to its end, and the store alone must hold it.
    async fn finish(&self) -> Result<(), Stop> {
        for side in &self.sides {
            self.resume(side);
            self.reconnect(side);
            self.end_process(side, Fate::Killed);
        }
        self.world.calm_store();
        let index = usize::from(self.percent(50));
        self.own(index).await?;
        let Some(life) = self.life(index) else { return Ok(()) };
        let mut dice = Dice::new(self.dice.borrow_mut().next(), 24);
        let work = async {
            for _ in 0..5 {
                life.write_somewhere(&mut dice).await;
            }
            life.flush_remote().await;
            life.volume.check_invariants();
        };
        if self.wait(work, HANG).await.is_none() {
            return self.violate("writes or the remote flush hang though the store works");
        }
        self.go_on()?;
        drop(life);
        self.end_process(&self.sides[index], Fate::DiskLost);
        self.own(1 - index).await?;
        self.end_process(&self.sides[1 - index], Fate::Killed);
        self.go_on()
    }
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("short")
}
