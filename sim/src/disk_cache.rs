//! The band cache of a process, on the disk of its host: in four of ten seeds without a disk fault.

use std::rc::Rc;

use weir_cache::engine::{BLOCKS_FILE, CacheSize, Found};
use weir_device::Env;
use weir_log::BlockStore;

use crate::dice::Dice;
use crate::profile::DiskTrouble;
use crate::world::World;

/// As small as may be: 24 bands of four frames each.
const CACHE_BYTES: u64 = 8 << 20;

/// Directory of the cache on the disk of a host.
const CACHE_DIRECTORY: &str = "cache";

/// Seeds that have one, in a hundred.
const PERCENT: u64 = 40;

/// Openings, in a hundred, before which some bytes of the file rot. Nothing excuses what they do.
const ROT_PERCENT: u64 = 40;

/// Closes, in a hundred, after which the process ends without saving what the cache has.
const KILLED_PERCENT: u64 = 30;

/// What becomes of the cache. Its dice are its own, so that the rest of a seed does not hang on them.
#[derive(Debug)]
pub(crate) struct DiskCache {
    dice: Dice,
    is_used: bool,
}

impl DiskCache {
    pub(crate) fn new(seed: u64, world: &World) -> Self {
        let mut dice = Dice::new(seed, 61);
        // What a fault of the disk excuses is counted there, whose file it was.
        let is_calm = world.profile.trouble == DiskTrouble::None;
        let is_used = dice.percent(PERCENT) && is_calm;
        Self { dice, is_used }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// A process is about to open the volume.
    pub(crate) fn begin(&mut self, world: &World) -> bool {
        if self.is_used && self.dice.percent(ROT_PERCENT) {
            for _ in 0..1 + self.dice.below(20) {
                let path = format!("{CACHE_DIRECTORY}/{BLOCKS_FILE}");
                world.disk().rot(&path, self.dice.below(CACHE_BYTES));
            }
            world.note("cache: bytes rotted", [0; 3]);
        }
        self.is_used
    }

    /// Whether a process that closed its volume saves what its cache has.
    pub(crate) fn is_saved(&mut self) -> bool {
        self.is_used && !self.dice.percent(KILLED_PERCENT)
    }
}

/// Opens the cache, unless the process has it already. It goes without one where that fails.
pub(crate) async fn open(world: &Rc<World>, env: &Env, blocks: &BlockStore) {
    if blocks.disk.is_there() {
        return;
    }
    let Ok(directory) = world.disk().directory().subdirectory(CACHE_DIRECTORY).await else {
        return;
    };
    let size = CacheSize::Exactly(CACHE_BYTES);
    let event = match blocks.disk.open(&directory, env, size).await {
        Ok((_, Found::New)) => "cache: new",
        Ok((_, Found::Nothing(_))) => "cache: of no use",
        Ok((_, Found::Index)) => "cache: as it was left",
        Ok((_, Found::Unknown(_))) => "cache: read after a crash",
        Err(_) => "cache: none",
    };
    world.note(event, [0; 3]);
    let disk = Rc::clone(&blocks.disk);
    env.spawn_local(async move { disk.recover().await });
}

/// The process ends in order.
pub(crate) async fn close(world: &World, blocks: &BlockStore) {
    let Ok(directory) = world.disk().directory().subdirectory(CACHE_DIRECTORY).await else {
        return;
    };
    let closed = blocks.disk.close(&directory).await;
    world.note(if closed.is_ok() { "cache: saved" } else { "cache: not saved" }, [0; 3]);
}
