//! The lives of the node: opening, judging what recovery shows, work, and the end.

mod backups;
mod copies;
mod ending;
mod process;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, timeout};
use weir_device::{DeviceExt, ErrorKind};
use weir_log::{Closed, LogError, OpenArgs, OpenReport, Takeover, VolumeOptions};
use weir_stack::{EndpointSpec, QUIESCE_MAX, Stack, StackError, StackSpec};
use weir_store::Fault;

use self::backups::Backups;
use self::copies::Copies;
use crate::client::{self, Life};
use crate::clones;
use crate::dice::Dice;
use crate::disk_cache::{self, DiskCache};
use crate::env::{HANG, Hidden, Process, Stop, env};
use crate::heard::Heard;
use crate::known::Known;
use crate::nbd::{self, Access, Nbd};
use crate::nemesis::{self, DIRECTORY};
use crate::observe::observe;
use crate::oracle::{Oracle, Point};
use crate::profile::End;
use crate::replicas;
use crate::snapshots;
use crate::verbs;
use crate::world::World;

/// Every volume that is opened here is a log volume.
pub(crate) fn of_log(error: StackError) -> LogError {
    match error {
        StackError::Log(error) => error,
        StackError::Device(error) => unreachable!("no other device is opened: {error}"),
    }
}

/// Openings tried before that is a violation; most of them crash on purpose.
const OPENINGS_MAX: u64 = 24;

/// How long a close waits at least for what stages hold.
const CLOSE_DRAIN: Duration = Duration::from_secs(30);

/// Shortest time for which an opening tries again what the store refuses.
pub(crate) const OPENING_PATIENCE: Duration = Duration::from_secs(120);

/// What is known between two lives.
pub(crate) struct Node {
    world: Rc<World>,
    dice: Dice,
    /// What is certain at the next look at the volume.
    pending: Point,
    causal: bool,
    /// The disk here is not the one that the last opening was on.
    foreign: bool,
    /// The last opening was not closed, and is on a disk that is not here.
    must_be_held: bool,
    take_over: bool,
    accept_loss: bool,
    /// The end of the journal may be rotten, and nothing in the journal proves it.
    rot_unproved: bool,
    discard_journal: bool,
    copies: Copies,
    backups: Backups,
    /// The last life ended with a close, perhaps with writes that only the journal has.
    is_closed: bool,
    /// It was a clean one: the store has everything.
    closed_clean: bool,
    /// The process that the last life left.
    left: Option<Process>,
    process_dice: Dice,
    /// For what is served over NBD.
    nbd_dice: Dice,
    disk_cache: DiskCache,
}

struct Opened {
    process: Process,
    life: Rc<Life>,
    /// The owner, who hears of the volume and holds it.
    hearing: JoinHandle<()>,
}

impl Node {
    pub(crate) fn new(world: Rc<World>, seed: u64) -> Self {
        let (pending, disk_cache) = (Point::ALL, DiskCache::new(seed, &world));
        Self {
            world,
            dice: Dice::new(seed, 3),
            pending,
            causal: true,
            foreign: false,
            must_be_held: false,
            take_over: false,
            accept_loss: false,
            rot_unproved: false,
            discard_journal: false,
            copies: Copies::new(seed),
            backups: Backups::new(seed),
            is_closed: false,
            closed_clean: false,
            left: None,
            process_dice: Dice::new(seed, 47),
            nbd_dice: Dice::new(seed, 45),
            disk_cache,
        }
    }

    /// The whole run.
    pub(crate) async fn run(&mut self) -> Result<(), Stop> {
        self.create().await?;
        self.world.usual_faults();
        let profile = self.world.profile.clone();
        for life in 1..=profile.lives {
            let target = profile.operations * life / profile.lives;
            let opened = self.open().await?;
            let end = self.draw_end();
            self.live(&opened, target, end).await?;
            if self.may_live_on(&opened, end).await? {
                self.detach(opened).await;
            } else {
                if end == End::Close && self.is_closed && self.disk_cache.is_saved() {
                    let Process { tasks, blocks, .. } = &opened.process;
                    tasks.run_until(disk_cache::close(&self.world, blocks)).await;
                }
                self.end(opened, end);
                self.set_store_back(end).await;
            }
            self.go_on()?;
            if std::mem::take(&mut self.closed_clean) && self.world.encrypted {
                self.rekey().await?;
            }
        }
        Box::pin(self.last_life()).await
    }

    fn go_on(&self) -> Result<(), Stop> {
        if self.world.is_violated() { Err(Stop) } else { Ok(()) }
    }

    fn violate<T>(&self, message: impl Into<String>) -> Result<T, Stop> {
        self.world.violate(message);
        Err(Stop)
    }

    fn draw_end(&mut self) -> End {
        self.world.profile.draw_end(&mut self.dice)
    }

    async fn create(&mut self) -> Result<(), Stop> {
        let tasks = Rc::new(LocalSet::new());
        let world = &self.world;
        let (boot_id, scheduling) = (world.disk().boot_id(), world.profile.scheduling);
        let env = env(&mut self.dice, boot_id, scheduling, &tasks, Hidden::default());
        match tasks.run_until(world.create(&env, Takeover::Manual)).await {
            Ok(()) => Ok(()),
            Err(error) => self.violate(format!("creating the volume: {error}")),
        }
    }

    // --- opening -------------------------------------------------------------------------------------------------

    /// Opens the volume, crashing on the way as the dice say, and judges what it shows.
    async fn open(&mut self) -> Result<Opened, Stop> {
        for _ in 0..OPENINGS_MAX {
            let opened = self.open_once().await?;
            self.go_on()?;
            let Some(opened) = opened else { continue };
            if self.dice.percent(self.world.profile.crash_in_opening_percent / 2) {
                let busy = Duration::from_micros(self.dice.below(40_000));
                opened.process.tasks.run_until(tokio::time::sleep(busy)).await;
                self.world.note("crash: right after opening", [0; 3]);
                let end = self.draw_crash();
                self.end(opened, end);
                continue;
            }
            let verified = opened.process.tasks.run_until(self.verify(&opened.life)).await;
            verified?;
            let world = Rc::clone(&self.world);
            let looked =
                opened.process.tasks.run_until(snapshots::look(&world, &mut self.dice)).await;
            if let Some(wrong) = looked {
                return self.violate(wrong);
            }
            return Ok(opened);
        }
        self.violate("opening does not come to an end")
    }

    fn draw_crash(&mut self) -> End {
        if self.dice.percent(50) { End::Kill } else { End::Power }
    }

    async fn open_once(&mut self) -> Result<Option<Opened>, Stop> {
        self.world.calm_disk();
        let world = Rc::clone(&self.world);
        let profile = &world.profile;
        let process = self.process();
        let options = profile.draw_options(&mut self.dice);
        let crash_after = self
            .dice
            .percent(profile.crash_in_opening_percent)
            .then(|| Duration::from_micros(self.dice.below(60_000)));
        let outage = self.dice.percent(profile.outage_percent);
        let outage = outage.then(|| Duration::from_millis(self.dice.below(3_000)));
        let is_cached = self.disk_cache.begin(&world);
        let opening = self.attempt(options.clone(), &process, (outage, is_cached));
        let limit = crash_after.unwrap_or(HANG);
        let opened = process.tasks.run_until(timeout(limit, opening)).await;
        world.end_outage();
        match opened {
            Err(_) if crash_after.is_some() => {
                world.note("crash: while opening", [0; 3]);
                self.copy_was_touched();
                let end = self.draw_crash();
                self.crash(end);
                Ok(None)
            }
            Err(_) => self.violate("opening hangs"),
            Ok(Ok((stack, report))) => {
                self.opened(&report)?;
                let life = self.life(stack, &process, &options);
                let hearing = process.tasks.spawn_local(verbs::hear(Rc::clone(&life)));
                Ok(Some(Opened { process, life, hearing }))
            }
            Ok(Err(error)) => {
                self.judge_refusal(&error)?;
                // The process ends, and another one tries.
                self.crash(End::Kill);
                Ok(None)
            }
        }
    }

    fn attempt(
        &self,
        options: VolumeOptions,
        process: &Process,
        (outage, is_cached): (Option<Duration>, bool),
    ) -> impl Future<Output = Result<(Rc<Stack>, OpenReport), LogError>> + use<> {
        let world = Rc::clone(&self.world);
        let Process { env, lease, blocks, .. } = process.clone();
        let (accept_loss, take_over, discard_journal, adopt_journal) =
            (self.accept_loss, self.take_over, self.discard_journal, self.copies.adopt);
        async move {
            if outage.is_some() {
                world.set_outage(true, false);
            }
            if is_cached {
                disk_cache::open(&world, &env, &blocks).await;
            }
            let root = world.disk().directory();
            let stack_env = env.clone();
            let args = OpenArgs {
                store: world.store.clone(),
                id: world.id.get(),
                directory: root.subdirectory(DIRECTORY).await?,
                env,
                options,
                blocks,
                keys: world.keys.clone(),
                lease,
                accept_loss,
                take_over,
                discard_journal,
                adopt_journal,
                incomplete: false,
                on_wait: None,
            };
            world.detail("opening", [u64::from(take_over), u64::from(accept_loss), 0]);
            let endpoint = EndpointSpec::Log(Box::new(args));
            let spec = StackSpec { endpoint, stages: world.describe_stages() };
            let mut opening = Box::pin(Stack::open(&stack_env, spec));
            if let Some(outage) = outage {
                if let Ok(opened) = timeout(outage, &mut opening).await {
                    return opened.map_err(of_log);
                }
                world.set_outage(false, false);
            }
            opening.await.map_err(of_log)
        }
    }

    fn opened(&mut self, report: &OpenReport) -> Result<(), Stop> {
        self.world
            .note("opened", [report.epoch, report.committed_sequence, report.replayed_writes]);
        let mut events = self.world.events.borrow_mut();
        events.count("recovery: writes replayed", report.replayed_writes);
        events.count("recovery: void objects", report.void_objects);
        events.count("recovery: poisoned ranges", report.poisoned_ranges);
        events.count("recovery: new journal", u64::from(report.new_journal));
        drop(events);
        if self.must_be_held && !self.take_over {
            return self.violate("opened without take-over beside a holder that was not closed");
        }
        self.judge_copy(report)?;
        (self.must_be_held, self.foreign) = (false, false);
        (self.take_over, self.accept_loss, self.discard_journal) = (false, false, false);
        Ok(())
    }

    /// An opening was refused: was there a reason, and what would an operator do?
    fn judge_refusal(&mut self, error: &LogError) -> Result<(), Stop> {
        self.world.note("opening refused", [0; 3]);
        tracing::info!(%error, "opening refused");
        let world = Rc::clone(&self.world);
        if !matches!(error, LogError::Held { .. } | LogError::JournalRefused { .. }) {
            self.copy_was_touched();
        }
        match error {
            LogError::Held { .. } if self.foreign && !self.take_over && !self.copies.adopt => {
                world.note("take-over", [0; 3]);
                self.take_over = true;
                self.must_be_held = false;
            }
            LogError::JournalRefused { refusal, .. } => self.judge_refused_journal(refusal)?,
            LogError::ObjectsMissing { .. } => self.judge_gap(error)?,
            LogError::InUse { .. } if world.faults.counts().of(Fault::LatePutQueued) > 0 => {
                world.note("refused for a late renewal", [0; 3]);
            }
            LogError::Fenced { .. } if world.faults.counts().of(Fault::LatePutQueued) > 0 => {
                world.note("fenced by a late manifest", [0; 3]);
            }
            _ if world.damaged.borrow().is_some() => world.heal_object(),
            _ if error.kind() == ErrorKind::Unavailable
                && world.store_was_away(OPENING_PATIENCE) => {}
            LogError::Journal(_) if world.header_rotted() && !self.accept_loss => {
                world.note("loss accepted", [0; 3]);
                self.accept_loss = true;
                self.causal = false;
                self.pending = self.pending.min(world.oracle.borrow().after_disk_loss());
            }
            _ => return self.violate(format!("opening failed without a reason: {error}")),
        }
        Ok(())
    }

    fn life(&self, stack: Rc<Stack>, process: &Process, options: &VolumeOptions) -> Rc<Life> {
        Rc::new(Life {
            world: Rc::clone(&self.world),
            heard: Rc::new(Heard::new(stack.size())),
            stack,
            host: self.world.host.get(),
            lease: process.lease.clone(),
            blocks: process.blocks.clone(),
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
            may_be_fenced: Cell::new(false),
            auto: Cell::new(false),
            refused_since: Cell::new(None),
            at_work: Cell::new(0),
            beside: Cell::new(0),
            cut: Cell::new(false),
            target: Cell::new(0),
            reached: tokio::sync::Notify::new(),
            superseded_at: Cell::new(None),
            nbd: RefCell::default(),
        })
    }

    // --- what recovery shows -------------------------------------------------------------------------------------

    /// Reads the whole volume, and asks the oracle.
    async fn verify(&mut self, life: &Rc<Life>) -> Result<(), Stop> {
        let seen = observe(life, self.pending, &mut self.dice).await?;
        self.judge(&seen)?;
        life.extents_of_all().await;
        self.go_on()
    }

    fn judge(&mut self, seen: &crate::oracle::Observation) -> Result<(), Stop> {
        let mut oracle = self.world.oracle.borrow_mut();
        let asked = self.pending.through;
        let back = self.world.set_back.take();
        let restored = std::mem::take(&mut self.backups.restored);
        let agreed = std::mem::take(&mut self.backups.agreed);
        // What nobody judged to be right leaves an oracle as it was.
        let (point, causal) = (self.pending, self.causal);
        let set_back = |oracle: &mut Oracle, mut back: Oracle| {
            let judged = back.recovered(back.after_disk_loss(), causal, seen);
            judged.inspect(|_| *oracle = back)
        };
        let judged = match back {
            // Somebody went on with a store that was set back. What was there before may look the same.
            Some(back) if restored && agreed => {
                set_back(&mut oracle, back).or_else(|_| oracle.recovered(point, causal, seen))
            }
            // A rollback that was cut off came about, or it did not.
            Some(back) if !restored => oracle
                .recovered(point, causal, seen)
                .or_else(|wrong| set_back(&mut oracle, back).map_err(|_| wrong)),
            _ => oracle.recovered(point, causal, seen),
        };
        self.pending = Point::ALL;
        drop(oracle);
        (self.causal, self.rot_unproved) = (true, false);
        let Some(recovery) = self.world.check(judged) else { return Err(Stop) };
        self.world.detail("verified", [asked, recovery.through, recovery.unanswered_kept]);
        let mut events = self.world.events.borrow_mut();
        events.count("recovery: unanswered writes kept", recovery.unanswered_kept);
        events.count("recovery: more than was promised", u64::from(recovery.through > asked));
        Ok(())
    }

    // --- work ----------------------------------------------------------------------------------------------------

    /// Lets clients work until `target` operations are done, and brings the life to the brink of its end.
    async fn live(&mut self, opened: &Opened, target: u64, end: End) -> Result<(), Stop> {
        let (tasks, life) = (&opened.process.tasks, &opened.life);
        let mut dice = Dice::new(self.dice.next(), 4);
        life.target.set(target);
        let clients = life.world.profile.clients;
        life.at_work.set(clients);
        let nbd_dice = Dice::new(self.nbd_dice.next(), 41);
        let nbd = tasks.run_until(Nbd::begin(life, nbd_dice)).await;
        life.nbd.borrow_mut().clone_from(&nbd);
        for client in 0..clients {
            let access = nbd.as_ref().map_or(Access::Device, |nbd| nbd.access(client));
            tasks.spawn_local(client::run(Rc::clone(life), access, Dice::new(dice.next(), 5)));
        }
        let nbd_dice = Dice::new(self.nbd_dice.next(), 44);
        tasks.spawn_local(life.beside_clients(nbd::trouble::run(Rc::clone(life), nbd_dice)));
        tasks.spawn_local(
            life.beside_clients(nemesis::run(Rc::clone(life), Dice::new(dice.next(), 6))),
        );
        let stages_dice = self.world.stages_dice.borrow_mut().next();
        tasks.spawn_local(
            life.beside_clients(nemesis::change_limits(
                Rc::clone(life),
                Dice::new(stages_dice, 61),
            )),
        );
        tasks.spawn_local(
            life.beside_clients(snapshots::run(Rc::clone(life), Dice::new(dice.next(), 10))),
        );
        tasks.spawn_local(
            life.beside_clients(replicas::run(Rc::clone(life), Dice::new(dice.next(), 12))),
        );
        tasks.spawn_local(
            life.beside_clients(verbs::run(Rc::clone(life), Dice::new(dice.next(), 16))),
        );
        let mut clones_dice = Dice::new(dice.next(), 14);
        let (boot_id, scheduling) = (life.world.disk().boot_id(), life.world.profile.scheduling);
        let clones_env = env(&mut clones_dice, boot_id, scheduling, tasks, Hidden::default());
        tasks.spawn_local(life.beside_clients(clones::run(
            Rc::clone(life),
            clones_env,
            clones_dice,
        )));
        tasks.run_until(self.wait_for_target(life)).await?;
        if life.world.harm.rot.borrow().is_some() {
            tasks.run_until(self.prove(life)).await?;
        }
        if dice.percent(30)
            && !self.world.profile.replicas
            && self.world.snapshots.borrow().iter().any(Known::is_seen)
        {
            return tasks.run_until(Box::pin(self.roll_back(life, &mut dice))).await;
        }
        if end == End::Close {
            return tasks.run_until(self.close(life, &mut dice)).await;
        }
        if dice.percent(60) {
            tasks.run_until(tokio::time::sleep(Duration::from_micros(dice.below(8_000)))).await;
        }
        self.go_on()
    }

    async fn wait_for_target(&self, life: &Rc<Life>) -> Result<(), Stop> {
        if timeout(HANG, life.until_target()).await.is_err() {
            // An outage, a full disk or failing reads may last longer than that.
            self.world.note("store calmed to see progress", [0; 3]);
            life.calm.set(true);
            self.world.heal_object();
            self.world.calm_store();
            self.world.calm_disk();
            let done = || self.world.operations.get();
            let mut before = done();
            // What works may be slow.
            while timeout(HANG, life.until_target()).await.is_err() {
                if done() == std::mem::replace(&mut before, done()) {
                    return self.violate("clients hang though store and disk work");
                }
            }
            self.world.usual_faults();
        }
        self.go_on()
    }

    /// Makes rot provable: a record on disk says that those before it were promised. Without such a record nobody can
    /// tell a rotten last record from one that never was.
    async fn prove(&mut self, life: &Rc<Life>) -> Result<(), Stop> {
        let proof = async {
            life.flush().await;
            let proves = life.write_somewhere(&mut Dice::new(self.dice.next(), 7)).await;
            life.flush().await;
            proves
        };
        // It may be refused too: by a volume that is being shrunk.
        if timeout(HANG, proof).await != Ok(true) {
            self.world.note("rot not provable", [0; 3]);
            (self.causal, self.rot_unproved) = (false, true);
            let point = self.world.oracle.borrow().after_disk_loss();
            self.pending = self.pending.min(point);
        }
        self.go_on()
    }

    async fn close(&mut self, life: &Rc<Life>, dice: &mut Dice) -> Result<(), Stop> {
        let busy = dice.percent(30);
        if !busy {
            self.stop_clients(life).await?;
        }
        life.closing.set(true);
        let begun = self.world.oracle.borrow_mut().begin_flush();
        self.world.note("close", [begun, u64::from(busy), 0]);
        if busy {
            life.narrow_for_close().await;
        }
        if let Some(nbd) = life.nbd() {
            nbd.silence_one();
            nbd.meets("close");
            if self.nbd_dice.percent(70) && timeout(HANG, nbd.detach()).await.is_err() {
                return self.violate("detaching a volume hangs");
            }
        }
        life.meets_waiting("close");
        life.meets_dirty("close");
        let closed = timeout(HANG, life.stack.close(life.close_deadline)).await;
        let now = self.world.oracle.borrow_mut().tick();
        match closed {
            Err(_) => return self.violate("closing hangs"),
            Ok(Ok(Closed::Clean)) => {
                self.world.oracle.borrow_mut().end_remote_flush(now);
                self.world.note("closed: clean", [0; 3]);
                (self.is_closed, self.closed_clean) = (true, true);
            }
            Ok(Ok(Closed::LocalOnly)) => {
                self.world.oracle.borrow_mut().end_flush(now);
                self.is_closed = true;
                self.world.note("closed: rest in the journal", [0; 3]);
            }
            Ok(Err(error)) => {
                self.world.note("close failed", [0; 3]);
                // What a stage holds has no place while the store is away and the journal is full.
                let is_stuck = self.world.profile.stages.holds_writes
                    && error.kind() == ErrorKind::Unavailable
                    && self.world.host_was_away(self.world.host.get(), CLOSE_DRAIN);
                let is_failed = error.kind() == ErrorKind::Poisoned && life.disk_failed.get();
                if !is_failed && !is_stuck {
                    return self.violate(format!("closing failed without a reason: {error:?}"));
                }
            }
        }
        self.stop_clients(life).await
    }

    /// Goes back to a snapshot; the life ends after it, or in the middle.
    async fn roll_back(&mut self, life: &Rc<Life>, dice: &mut Dice) -> Result<(), Stop> {
        if !self.stop_resizes(life).await? {
            return self.go_on();
        }
        let (name, shown, size) = {
            let snapshots = self.world.snapshots.borrow();
            let seen: Vec<&Known> = snapshots.iter().filter(|known| known.is_seen()).collect();
            // It may be on its way out.
            let Some(known) = seen.first() else { return self.go_on() };
            (known.name.clone(), known.oracle.clone().expect("it was seen"), known.size)
        };
        if dice.percent(50) {
            // A client goes away without its answer just before.
            let patience = Duration::from_micros(dice.below(2_000));
            let _ = timeout(patience, life.write_somewhere(&mut Dice::new(dice.next(), 11))).await;
        }
        let mut back = self.world.oracle.borrow().clone();
        back.set_back(&shown);
        let larger = size > life.stack.size();
        self.world.sizes.add(size);
        self.world.set_back.replace(Some(back));
        self.world.note("rollback", [0; 3]);
        let patience = if dice.percent(40) { Duration::from_millis(dice.below(300)) } else { HANG };
        let started = Instant::now();
        life.freeze();
        let doing = self.world.begin(self.world.host.get(), "rollback");
        let content_before = life.heard.generation.get();
        let pause = Duration::from_micros(dice.below(20_000));
        let rolling = async {
            tokio::time::sleep(pause).await;
            life.stack.rollback(&name, QUIESCE_MAX).await
        };
        let deleting = snapshots::remove_beside(life, &name, dice.percent(60));
        let both = async { futures_util::join!(rolling, deleting).0 };
        let result = timeout(patience, both).await;
        life.thaw();
        let Ok(result) = result else {
            doing.goes_on();
            if patience == HANG && !self.world.outage_since(started) {
                return self.violate("a rollback hangs");
            }
            self.world.note("  rollback cut off", [0; 3]);
            return self.go_on();
        };
        let is_leaving = || {
            let snapshots = self.world.snapshots.borrow();
            !snapshots.iter().any(|known| known.name == name && known.is_seen())
        };
        let rolled_back = life.judge_verb("a rollback", &result, |error| {
            let kind = error.kind();
            self.world.excuses_store(kind) || (kind == ErrorKind::NotFound && is_leaving())
        });
        if rolled_back {
            self.world.note("  rolled back", [0; 3]);
            life.settle_size("a rollback", size).await;
            self.world.events.borrow_mut().count("rollback to a larger size", u64::from(larger));
            let back = self.world.set_back.take().expect("set above");
            self.world.oracle.replace(back);
            life.must_hear_of_content(content_before).await;
        } else {
            self.world.note("  rollback refused", [0; 3]);
        }
        self.go_on()
    }

    /// Stops clients and changes of the size; whether these came to their end.
    async fn stop_resizes(&self, life: &Rc<Life>) -> Result<bool, Stop> {
        self.stop_clients(life).await?;
        let resized = async {
            while life.resizing.get() {
                tokio::time::sleep(client::PAUSE_STEP).await;
            }
        };
        if timeout(HANG, resized).await.is_err() {
            return Ok(false);
        }
        if let Some(nbd) = life.nbd()
            && timeout(HANG, nbd.close()).await.is_err()
        {
            self.violate("the server does not let go of clients that leave")?;
        }
        Ok(true)
    }

    async fn stop_clients(&self, life: &Rc<Life>) -> Result<(), Stop> {
        life.stopping.set(true);
        let stopped = async {
            while life.at_work.get() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let mut stopped = Box::pin(stopped);
        if timeout(HANG, &mut stopped).await.is_err() {
            life.calm.set(true);
            self.world.heal_object();
            self.world.calm_store();
            self.world.calm_disk();
            if timeout(HANG, stopped).await.is_err() {
                return self.violate("clients do not come to their end though store and disk work");
            }
        }
        self.go_on()
    }

    // --- the end -------------------------------------------------------------------------------------------------

    /// Ends a life that was opened, and its process with it.
    fn end(&mut self, opened: Opened, end: End) {
        let Opened { process, life, .. } = opened;
        life.count(&process.env.pacer);
        self.is_closed = false;
        if matches!(end, End::DiskLoss | End::Move) {
            self.must_be_held |= !life.closing.get();
        }
        let sync_failed = self.world.harm.any_sync_failed();
        self.crash(match end {
            // Nobody knows what a page cache holds after a failed sync; the host restarts.
            End::Kill | End::Close if sync_failed => End::Power,
            End::Close => End::Kill,
            _ => end,
        });
        // The process is gone; its tasks cannot notice.
        drop(life);
        drop(process);
        self.copy_directories(end);
        if self.dice.percent(60) {
            self.world.heal_object();
        }
    }

    /// What the disk and the oracle learn of a crash. The caller drops the tasks.
    fn crash(&mut self, end: End) {
        let world = &self.world;
        world.ends_verbs(world.host.get());
        snapshots::on_crash(world, world.host.get());
        clones::on_crash(world);
        let oracle = world.oracle.borrow();
        // What a stage holds dies with the process, like what the system holds when the power goes.
        let after_kill = match world.profile.stages.holds_writes {
            true => oracle.after_power_loss(),
            false => oracle.after_kill(),
        };
        let (what, point) = match end {
            End::Kill => ("crash: kill -9", after_kill),
            End::Power => ("crash: power lost", oracle.after_power_loss()),
            End::DiskLoss => ("crash: disk lost", oracle.after_disk_loss()),
            End::Move => ("crash: moved to the other host", oracle.after_disk_loss()),
            End::Close => ("closed", after_kill),
        };
        drop(oracle);
        self.pending = self.pending.min(point);
        let sync_failed = world.harm.any_sync_failed();
        world.harm.settle_syncs(world.host.get(), &mut world.oracle.borrow_mut());
        match end {
            End::Kill | End::Close => world.disk().crash_process(),
            End::Power => world.disk().crash_power(),
            End::DiskLoss => {
                world.disk().lose_disk();
                self.foreign = true;
            }
            End::Move => {
                // As above: a host whose sync failed restarts before anybody looks at its disk again.
                if sync_failed {
                    world.disk().crash_power();
                } else {
                    world.disk().crash_process();
                }
                world.host.set(1 - world.host.get());
                self.foreign = true;
            }
        }
        world.note(what, [point.through, 0, 0]);
    }
}
