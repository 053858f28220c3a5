//! The volume on a host of its own, without faults, and with nothing of it but a store.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::timeout;
use weir_device::{Env, VolumeId};
use weir_disk::sim::{SimDisk, SimDiskOptions};
use weir_log::{LogVolume, MemoryFrameCache, NodeLease, OpenArgs, VolumeOptions};
use weir_store::Store;

use crate::dice::Dice;
use crate::env::{HANG, Hidden, env};
use crate::world::World;

/// The process, its environment and the volume.
pub(crate) type Opened = (Rc<LocalSet>, Env, Rc<LogVolume>);

/// Takes the volume over; `what` names it in what is said when it cannot.
pub(crate) async fn open(
    world: &World,
    dice: &mut Dice,
    (store, id): (&Store, VolumeId),
    what: &str,
) -> Result<Opened, String> {
    let tasks = Rc::new(LocalSet::new());
    let env = env(dice, [8; 16], world.profile.scheduling, &tasks, Hidden::default());
    let settings = world.profile.lease_settings(dice);
    let args = OpenArgs {
        lease: NodeLease::start(store.clone(), &env, [80; 16], "elsewhere", settings),
        store: store.clone(),
        id,
        directory: SimDisk::new(dice.next(), SimDiskOptions::default()).directory(),
        env: env.clone(),
        keys: world.keys.clone(),
        // What its store does not have, it will not have later.
        options: VolumeOptions {
            read_deadline: Duration::from_secs(5),
            ..world.profile.draw_options(dice)
        },
        blocks: Arc::new(MemoryFrameCache::new(world.profile.volume_bytes / 3)).into(),
        accept_loss: false,
        take_over: true,
        discard_journal: false,
        adopt_journal: false,
        incomplete: false,
        on_wait: None,
    };
    match tasks.run_until(timeout(HANG, Box::pin(LogVolume::open(args)))).await {
        Ok(Ok((volume, _))) => Ok((tasks, env, volume)),
        Ok(Err(error)) => Err(format!("{what} does not open: {error}")),
        Err(_) => Err(format!("opening {what} hangs")),
    }
}
