//! Clock, randomness and tasks of a simulated node, all from the seed.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::Instant;
use weir_device::{BufferPool, Clock, Env, NoNetwork, Random, Spawn};
use weir_log::{BlockStore, NodeLease};

use crate::dice::Dice;

/// Longest delay before a background task begins: a busy pool of worker threads.
const BACKGROUND_DELAY_MS_MAX: u64 = 4;

/// Times that a task may be passed over before it begins.
const YIELDS_MAX: u64 = 3;

/// Simulated time after which an operation hangs, with a store that works.
pub(crate) const HANG: Duration = Duration::from_secs(300);

/// The run ends here: a violation was noted.
#[derive(Debug)]
pub(crate) struct Stop;

/// Time that a clock does not know of: its machine was paused, and nobody told it.
pub(crate) type Hidden = Rc<Cell<Duration>>;

struct SimClock {
    started: Instant,
    boot_id: [u8; 16],
    hidden: Hidden,
}

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        Duration::from_secs(1_800_000_000) + self.boottime()
    }

    fn boottime(&self) -> Duration {
        self.started.elapsed().saturating_sub(self.hidden.get())
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }
}

struct SimRandom(RefCell<Dice>);

impl Random for SimRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let mut dice = self.0.borrow_mut();
        for chunk in bytes.chunks_mut(8) {
            let word = dice.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// How tasks are scheduled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduling {
    /// Background tasks that begin late, in a hundred.
    pub(crate) late_percent: u64,
    /// Tasks that are passed over some times, in a hundred.
    pub(crate) yield_percent: u64,
}

struct SimSpawn {
    /// Weak: the tasks in it hold this.
    tasks: Weak<LocalSet>,
    dice: RefCell<Dice>,
    scheduling: Scheduling,
    spawned: Cell<u64>,
}

impl SimSpawn {
    fn start(&self, delay: Duration, task: Pin<Box<dyn Future<Output = ()>>>) {
        // Without tasks the node is dead, and what it wanted to do dies with it.
        let Some(tasks) = self.tasks.upgrade() else { return };
        self.spawned.set(self.spawned.get() + 1);
        let yields = {
            let mut dice = self.dice.borrow_mut();
            if dice.percent(self.scheduling.yield_percent) { dice.below(YIELDS_MAX + 1) } else { 0 }
        };
        if delay.is_zero() && yields == 0 {
            tasks.spawn_local(task);
            return;
        }
        tasks.spawn_local(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            task.await;
        });
    }
}

impl Spawn for SimSpawn {
    fn local(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.start(Duration::ZERO, task);
    }

    fn background(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let delay = {
            let mut dice = self.dice.borrow_mut();
            let late = dice.percent(self.scheduling.late_percent);
            if late { dice.below(BACKGROUND_DELAY_MS_MAX + 1) } else { 0 }
        };
        self.start(Duration::from_millis(delay), task);
    }
}

/// The surroundings of one life of a node, whose tasks run in `tasks` and die with it.
pub(crate) fn env(
    dice: &mut Dice,
    boot_id: [u8; 16],
    scheduling: Scheduling,
    tasks: &Rc<LocalSet>,
    hidden: Hidden,
) -> Env {
    Env {
        clock: Rc::new(SimClock { started: Instant::now(), boot_id, hidden }),
        random: Rc::new(SimRandom(RefCell::new(Dice::new(dice.next(), 1)))),
        spawn: Rc::new(SimSpawn {
            tasks: Rc::downgrade(tasks),
            dice: RefCell::new(Dice::new(dice.next(), 2)),
            scheduling,
            spawned: Cell::new(0),
        }),
        network: Rc::new(NoNetwork),
        buffers: BufferPool::new(1 << 20),
        files: Rc::new(weir_device::NoFileReads),
        pacer: weir_device::Pacer::default(),
    }
}

/// What volumes of one process share.
#[derive(Clone)]
pub(crate) struct Process {
    /// Its tasks, which die with it.
    pub(crate) tasks: Rc<LocalSet>,
    pub(crate) env: Env,
    pub(crate) lease: NodeLease,
    pub(crate) blocks: BlockStore,
}
