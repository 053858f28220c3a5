//! Two nodes over one store: one owns the volume, the other wants it, and things happen to both.
//!
//! A node that is stopped (SIGSTOP, a suspended host) is one whose tasks are not polled. What it had sent is done late,
//! what it had received is read late, and its clock goes on, unless the seed says that the clock hides the time.

mod opening;
mod side;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::ErrorKind;
use weir_log::{Closed, Takeover};
use weir_store::Faults;

use self::side::Side;
use crate::audit::audit;
use crate::client::{self, Life};
use crate::dice::Dice;
use crate::env::{HANG, Stop};
use crate::nbd::{self, Access, Nbd};
use crate::nemesis;
use crate::oracle::Point;
use crate::replicas;
use crate::world::World;

/// Attempts of one node to open the volume before it gives up for the round.
const ATTEMPTS_MAX: u64 = 8;

/// Attempts at an opening that must succeed in the end.
const OPENINGS_MAX: u64 = 20;

/// Longest time that an opening may take: waiting for its own lease and for the holder's, with a failing store.
const OPENING_MAX: Duration = Duration::from_secs(600);

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

/// One seed with two nodes.
pub(crate) struct Duo {
    world: Rc<World>,
    sides: [Side; 2],
    dice: RefCell<Dice>,
    /// For what is served over NBD.
    nbd_dice: RefCell<Dice>,
    begins_auto: bool,
    /// Both nodes have one name.
    copied: bool,
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
        let copied = dice.percent(25);
        let side = |index: usize| {
            let gate = Faults::new(index as u64);
            gate.watch();
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
                cut_off_at: Cell::default(),
                cut_off_until: Cell::default(),
                ended: Cell::default(),
                pending: Cell::new(Point::ALL),
                may_be_holder: Cell::default(),
                take_over: Cell::default(),
                discard_journal: Cell::default(),
                superseded_at: Cell::default(),
                rival_since: Cell::default(),
                resumed_at: Cell::default(),
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
            nbd_dice: RefCell::new(Dice::new(seed, 46)),
            begins_auto: auto,
            copied,
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
        let takeover = if self.begins_auto { Takeover::Auto } else { Takeover::Manual };
        if let Err(error) = self.world.create(&env, takeover).await {
            return self.violate(format!("creating the volume: {error}"));
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
        let weights = if self.world.rule.is_auto() {
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
            let dice: Vec<Dice> =
                (0..clients).map(|_| Dice::new(self.dice.borrow_mut().next(), 22)).collect();
            let nbd_dice = self.nbd_dice.borrow_mut().next();
            tasks.spawn_local(begin_clients(Rc::clone(&life), dice, nbd_dice));
        }
        let limit = self.world.profile.lease * 4;
        if self.percent(20) {
            let mut dice = Dice::new(self.dice.borrow_mut().next(), 25);
            let struck = Box::pin(nemesis::strike(&life, &mut dice));
            self.wait(struck, limit).await;
        }
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
        if side.process.borrow().is_some() {
            let (stop, heard) = (self.leases(1..7), self.leases(1..3));
            self.stop(side, stop, false);
            side.cut_off_at.set(Some(Instant::now() + stop + heard));
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
        let Some(closed) = self.wait(life.stack.close(life.close_deadline), HANG).await else {
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
                if !life.may_fail(&error) {
                    return self.violate(format!("closing failed without a reason: {error:?}"));
                }
                // The manifest may say that it is closed: what failed may have come after.
                self.must_be_held.set(false);
                self.world.note("close failed", [0; 3]);
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
        self.world.heal_object();
        let index = usize::from(self.percent(50));
        self.must_own(index).await?;
        let Some(life) = self.life(index) else { return Ok(()) };
        let mut dice = Dice::new(self.dice.borrow_mut().next(), 24);
        let work = async {
            for _ in 0..5 {
                life.write_somewhere(&mut dice).await;
            }
            life.flush_remote().await;
            life.stack.check_invariants();
        };
        if self.wait(work, HANG).await.is_none() {
            return self.violate("writes or the remote flush hang though the store works");
        }
        self.go_on()?;
        drop(life);
        self.end_process(&self.sides[index], Fate::DiskLost);
        self.must_own(1 - index).await?;
        // What the opening found unneeded is listed with the next checkpoint.
        let Some(life) = self.life(1 - index) else { return Ok(()) };
        life.stopping.set(true);
        match self.wait(life.stack.compact(1, |_, _| {}), HANG).await {
            None => return self.violate("a compaction hangs though the store works"),
            Some(compacted) => life.judge_verb("the last compaction", &compacted, |error| {
                // The task beside it may have begun one.
                error.kind() == ErrorKind::Busy
            }),
        };
        drop(life);
        self.look_at_store().await?;
        self.end_process(&self.sides[1 - index], Fate::Killed);
        self.go_on()
    }

    /// Nothing that the volume needs is missing, nothing is left, and the replica shows a past.
    async fn look_at_store(&self) -> Result<(), Stop> {
        let world = &self.world;
        let mut dice = Dice::new(self.dice.borrow_mut().next(), 26);
        let looked = async {
            let wrong = Box::pin(audit(world, &mut dice)).await;
            if wrong.is_some() || !world.profile.replicas {
                return wrong;
            }
            Box::pin(replicas::look(world, &mut dice)).await
        };
        match self.wait(looked, HANG).await {
            Some(None) => self.go_on(),
            Some(Some(wrong)) => self.violate(wrong),
            None => self.violate("looking at the store hangs"),
        }
    }
}

/// Sets clients to work, one for each stream of dice. They share the connections of the life where it has any.
async fn begin_clients(life: Rc<Life>, dice: Vec<Dice>, nbd_seed: u64) {
    if life.nbd().is_none()
        && let Some(nbd) = Nbd::begin(&life, Dice::new(nbd_seed, 41)).await
    {
        life.nbd.replace(Some(nbd));
        tokio::task::spawn_local(nbd::trouble::run(Rc::clone(&life), Dice::new(nbd_seed, 44)));
    }
    for (dice, client) in dice.into_iter().zip(0..) {
        let access = life.nbd().map_or(Access::Device, |nbd| nbd.access(client));
        tokio::task::spawn_local(client::run(Rc::clone(&life), access, dice));
    }
}
