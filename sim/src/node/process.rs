//! The process of a node: with its lease and its cache it may live on when its volume is closed, and open it again.

use std::rc::Rc;
use std::sync::Arc;

use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};
use weir_log::{MemoryFrameCache, NodeLease};

use super::{Node, Opened};
use crate::client::{Life, PAUSE_STEP};
use crate::env::{HANG, Hidden, Process, Stop, env};
use crate::profile::End;

/// Clean ends of a life, in a hundred, after which its process lives on.
const LIVES_ON_PERCENT: u64 = 50;

/// Who holds a server that no client has: its life, and whoever looks.
const SERVED_BY_US: usize = 2;

impl Node {
    /// The process that the last life left, or a new one.
    pub(super) fn process(&mut self) -> Process {
        if let Some(process) = self.left.take() {
            return process;
        }
        let world = &self.world;
        let profile = &world.profile;
        let tasks = Rc::new(LocalSet::new());
        let boot_id = world.disk().boot_id();
        let env = env(&mut self.dice, boot_id, profile.scheduling, &tasks, Hidden::default());
        let host = u8::try_from(world.host.get()).expect("two hosts");
        let settings = profile.lease_settings(&mut self.dice);
        let lease = NodeLease::start(world.store.clone(), &env, [host; 16], "simulated", settings);
        let blocks = Arc::new(MemoryFrameCache::new(profile.volume_bytes / 3)).into();
        Process { tasks, env, lease, blocks }
    }

    /// Whether the process of a life that ended so lives on. The volume was closed then, and nothing is under way.
    pub(super) async fn may_live_on(&mut self, opened: &Opened, end: End) -> Result<bool, Stop> {
        let life = &opened.life;
        let is_harmed = life.disk_failed.get() || self.world.harm.any_sync_failed();
        let is_closed = end == End::Close && self.is_closed && !is_harmed;
        if !is_closed || !self.process_dice.percent(LIVES_ON_PERCENT) {
            return Ok(false);
        }
        opened.process.tasks.run_until(self.leave(life)).await
    }

    /// Ends the server, and waits for whoever works with the volume: whether nobody does any more.
    async fn leave(&self, life: &Rc<Life>) -> Result<bool, Stop> {
        let nbd = life.nbd();
        if let Some(nbd) = &nbd
            && timeout(HANG, nbd.end()).await.is_err()
        {
            return self.violate("detaching a closed volume hangs");
        }
        let is_held = || {
            let served = nbd.as_ref().is_some_and(|nbd| Rc::strong_count(nbd) > SERVED_BY_US);
            life.beside.get() > 0 || Rc::strong_count(life) > 1 || served
        };
        let at_rest = async {
            while is_held() {
                sleep(PAUSE_STEP).await;
            }
        };
        Ok(timeout(HANG, at_rest).await.is_ok())
    }

    /// Ends a life whose process lives on.
    pub(super) async fn detach(&mut self, opened: Opened) {
        let Opened { process, life, hearing } = opened;
        hearing.abort();
        // It ends where it waits.
        let _ = process.tasks.run_until(hearing).await;
        life.count(&process.env.pacer);
        self.world.note("detached: its process lives on", [0; 3]);
        // All that was acknowledged is in the journal, or in the store.
        let point = self.world.oracle.borrow().after_power_loss();
        self.pending = self.pending.min(point);
        self.is_closed = false;
        self.left = Some(process);
    }
}
