//! What a volume is asked to do beside reads and writes: what is under way, and what falls together with it.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{DeviceError, DeviceExt, ErrorKind};

use weir_log::Takeover;
use weir_stack::QUIESCE_MAX;

use crate::client::{Life, PAUSE_STEP};
use crate::dice::Dice;
use crate::heard::{self, Heard};
use crate::under_way::Active;
use crate::world::World;

/// Bytes of the oracle that a volume must have to be shrunk.
const SHRUNK_BYTES_MIN: u64 = 64 << 10;

/// Time in which a refusal reaches whoever asked.
const THAWED_MAX: Duration = Duration::from_secs(1);

/// A verb that is under way, until this is dropped.
pub(crate) struct Doing {
    world: Rc<World>,
    number: u64,
}

impl Doing {
    /// Whoever asked for it has gone, and it goes on until its process ends.
    pub(crate) fn goes_on(self) {
        std::mem::forget(self);
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        self.world.verbs.active.borrow_mut().retain(|active| active.number != self.number);
    }
}

impl World {
    /// A verb begins on a host.
    pub(crate) fn begin(self: &Rc<Self>, host: usize, verb: &'static str) -> Doing {
        let number = self.verbs.begun.get() + 1;
        self.verbs.begun.set(number);
        let mut active = self.verbs.active.borrow_mut();
        let mut events = self.events.borrow_mut();
        for other in active.iter() {
            events.count_pair(verb.min(other.verb), verb.max(other.verb));
        }
        if self.outages.borrow().is_now() {
            events.count_pair(verb, "outage");
        }
        active.push(Active { number, host, verb });
        Doing { world: Rc::clone(self), number }
    }

    /// Something happens to a host while verbs are under way there.
    pub(crate) fn meets(&self, host: usize, what: &'static str) {
        let mut events = self.events.borrow_mut();
        for active in self.verbs.active.borrow().iter().filter(|active| active.host == host) {
            events.count_pair(active.verb, what);
        }
    }

    /// A process ends: what was under way in it is cut off.
    pub(crate) fn ends_verbs(&self, host: usize) {
        self.meets(host, "crash");
        self.verbs.active.borrow_mut().retain(|active| active.host != host);
    }
}

/// Grows, shrinks and compacts the volume until its life ends.
pub(crate) async fn run(life: Rc<Life>, mut dice: Dice) {
    let world = Rc::clone(&life.world);
    if !dice.percent(world.profile.verbs_percent) {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(dice.within(5..400))).await;
        let over = life.stopping.get() || life.closing.get() || life.refused_since.get().is_some();
        if over || world.is_violated() {
            return;
        }
        match dice.below(10) {
            0..8 => {
                life.resizing.set(true);
                let all = world.bytes_within(life.stack.size());
                if all > SHRUNK_BYTES_MIN && dice.percent(50) {
                    life.shrink(&mut dice).await;
                } else {
                    life.grow(&mut dice).await;
                }
                life.resizing.set(false);
            }
            8 if world.profile.nodes == 2 => life.set_takeover(&mut dice).await,
            _ => life.compact(&mut dice).await,
        }
    }
}

/// Hears what happens to the volume, as long as the process lives. What clients are refused with must be heard, too.
pub(crate) async fn hear(life: Rc<Life>) {
    let (world, heard) = (Rc::clone(&life.world), Rc::clone(&life.heard));
    let stack = Rc::clone(&life.stack);
    drop(life);
    let judging = async {
        loop {
            heard.failed.notified().await;
            let is_fenced = heard.failed_with.take() == Some(ErrorKind::Fenced);
            let is_heard =
                |heard: &Heard| heard.is_lost.get() || (!is_fenced && heard.is_degraded.get());
            if !heard.has(is_heard).await {
                world.violate("a volume refuses operations, and its owner never heard of it");
            }
            world.events.borrow_mut().count("heard: a failure", 1);
        }
    };
    futures_util::join!(heard::run(stack, Rc::clone(&heard)), judging);
}

impl Life {
    /// The volume has another size: its owner must have heard.
    pub(crate) async fn must_hear_of_size(&self, size: u64) {
        if !self.heard.has(|heard| heard.size.get() == size).await {
            self.world.violate(format!("nobody heard that the volume has {size} bytes now"));
        }
        self.world.events.borrow_mut().count("heard: another size", 1);
    }

    /// The volume was set back: whoever keeps anything of it must have heard.
    pub(crate) async fn must_hear_of_content(&self, before: u64) {
        if !self.heard.has(|heard| heard.generation.get() > before).await {
            self.world.violate("nobody heard that the content was replaced");
        }
        self.world.events.borrow_mut().count("heard: another content", 1);
    }

    /// The volume refuses operations with this kind of error: its owner must hear, however little it asks for.
    pub(crate) fn expect_failure(&self, kind: ErrorKind) {
        self.heard.failed_with.set(Some(kind));
        self.heard.failed.notify_one();
    }

    /// Asks for a larger size, while clients are at work. Nobody may use what is new before the volume says so.
    async fn grow(&self, dice: &mut Dice) {
        let (world, present) = (&self.world, self.stack.size());
        let from = world.bytes_within(present);
        let all = world.profile.volume_bytes;
        let size = if from < all && dice.percent(90) {
            world.profile.islands.place(dice.within(from..all)) + 1
        } else {
            present + dice.below(1 << 30)
        };
        world.sizes.add(size);
        world.note("grow", [present, size, 0]);
        if let Some(nbd) = self.nbd() {
            nbd.meets("resize");
        }
        let doing = world.begin(self.host, "grow");
        self.meets_waiting("resize");
        let result = self.stack.resize(size, false, QUIESCE_MAX).await;
        drop(doing);
        if self.judge_verb("a growth", &result, |_| false) && !self.superseded.get() {
            world.note("  resized", [size, 0, 0]);
            self.settle_size("a growth", size).await;
        }
    }

    /// Asks for a smaller size, while no client is at work; one may have gone away without its answer just before.
    async fn shrink(self: &Rc<Self>, dice: &mut Dice) {
        let (world, present) = (&self.world, self.stack.size());
        let bytes = world.bytes_within(present);
        let left = bytes * dice.within(20..100) / 100;
        self.paused.set(true);
        while self.operating.get() > 0 && !self.stopping.get() {
            tokio::time::sleep(PAUSE_STEP).await;
        }
        if let Some(nbd) = self.nbd() {
            nbd.meets("resize");
            // Nobody may be connected.
            nbd.close().await;
        }
        let over = self.stopping.get() || self.closing.get() || self.refused_since.get().is_some();
        if over || self.stack.size() != present {
            return self.let_in();
        }
        if dice.percent(50) {
            let patience = Duration::from_micros(dice.below(2_000));
            let _ = tokio::time::timeout(patience, self.write_at_end(dice)).await;
        }
        let size = world.profile.islands.place(left - 1) + 1;
        world.sizes.add(size);
        let id = self.begin_cut(left);
        world.note("shrink", [present, size, id.0.into()]);
        if dice.percent(25) {
            // No client brings the end of this life nearer.
            let (life, pause) = (Rc::clone(self), Duration::from_micros(dice.below(120_000)));
            tokio::task::spawn_local(async move {
                tokio::time::sleep(pause).await;
                life.cut.set(true);
                life.reached.notify_one();
            });
        }
        self.freeze();
        let (doing, begun) = (world.begin(self.host, "shrink"), Instant::now());
        let growing = self.grow_beside(present, dice);
        let shrinking = self.stack.resize(size, true, QUIESCE_MAX);
        let (grown, result) = futures_util::join!(growing, shrinking);
        drop(doing);
        self.thaw();
        // A write that nobody waits for any more may be in flight until the journal, which is full, is in the store.
        let held_up =
            |error: &DeviceError| error.kind() == ErrorKind::Busy && world.outage_since(begun);
        if self.judge_verb("a shrink", &result, held_up) {
            if self.superseded.get() {
                if self.honest.get() {
                    world.violate("a shrink of a superseded owner succeeded");
                }
            } else {
                world.oracle.borrow_mut().end_shrink(id);
                world.note("  resized", [size, 0, 0]);
                // The two went one after the other, and the one that came last counts.
                let is = self.stack.size();
                let last = grown.filter(|grown| *grown == is).unwrap_or(size);
                self.settle_size("a shrink", last).await;
            }
        }
        self.let_in();
    }

    /// Now and then somebody else asks for a larger size at the same time: the size that came about, if it did.
    async fn grow_beside(&self, present: u64, dice: &mut Dice) -> Option<u64> {
        let size = present + 1 + dice.below(1 << 20);
        if !dice.percent(25) {
            return None;
        }
        self.world.sizes.add(size);
        let doing = self.world.begin(self.host, "grow");
        let result = self.stack.resize(size, false, QUIESCE_MAX).await;
        drop(doing);
        // It may find the volume frozen.
        self.judge_verb("a growth beside a shrink", &result, |_| false).then_some(size)
    }

    /// Clients may come again.
    fn let_in(&self) {
        if let Some(nbd) = self.nbd() {
            nbd.open();
        }
        self.paused.set(false);
    }

    pub(crate) async fn settle_size(&self, verb: &str, size: u64) {
        let (world, is) = (&self.world, self.stack.size());
        if !world.sizes.settle(size) || is != size {
            world.violate(format!("{is} bytes after {verb} to {size}"));
        }
        self.must_hear_of_size(size).await;
    }

    async fn compact(&self, dice: &mut Dice) {
        let percent = dice.within(50..101);
        self.world.note("compact", [percent, 0, 0]);
        let doing = self.world.begin(self.host, "compaction");
        let result = self.stack.compact(percent, |_, _| {}).await;
        drop(doing);
        // The last one is asked for beside it.
        let beside = |error: &DeviceError| error.kind() == ErrorKind::Busy && self.stopping.get();
        if self.judge_verb("a compaction", &result, beside) {
            self.world.note("  compacted", [percent, 0, 0]);
        }
    }

    /// Changes what happens when the lease runs out. Until that is answered either rule may be in force.
    async fn set_takeover(&self, dice: &mut Dice) {
        let world = &self.world;
        let takeover = if dice.percent(50) { Takeover::Auto } else { Takeover::Manual };
        world.note("takeover set", [u64::from(takeover == Takeover::Auto), 0, 0]);
        world.rule.add(takeover);
        self.may_be_fenced.set(true);
        if takeover == Takeover::Manual {
            self.auto.set(false);
        }
        let doing = world.begin(self.host, "takeover set");
        let result = self.stack.set_takeover(takeover).await;
        drop(doing);
        if self.judge_verb("a change of the takeover", &result, |_| false) {
            if self.superseded.get() {
                return;
            }
            world.note("  takeover changed", [0; 3]);
            world.rule.settle(takeover);
            self.auto.set(takeover == Takeover::Auto);
        }
    }

    /// From now on the volume takes no writes.
    pub(crate) fn freeze(&self) {
        self.frozen.set(self.frozen.get() + 1);
    }

    pub(crate) fn thaw(&self) {
        self.frozen.set(self.frozen.get() - 1);
        self.thawed.set(Some(Instant::now()));
    }

    /// Judges what a verb on the volume came to; whether it succeeded.
    pub(crate) fn judge_verb<T>(
        &self,
        verb: &'static str,
        result: &Result<T, DeviceError>,
        also: impl FnOnce(&DeviceError) -> bool,
    ) -> bool {
        let Err(error) = result else { return true };
        // It may be told a little later that it was refused because the volume was frozen.
        let thawed = self.thawed.get().is_some_and(|at| at.elapsed() < THAWED_MAX);
        let refused = thawed && error.kind() == ErrorKind::Unavailable;
        // A close that does not wait for the store leaves a version on its way, and what comes after it meets that.
        let refused = refused || (self.closing.get() && error.kind() == ErrorKind::Fenced);
        if !self.superseded.get() && !self.may_fail(error) && !refused && !also(error) {
            self.world.violate(format!("{verb} failed without a reason: {error:?}"));
        }
        false
    }
}
