//! What happens to a node while its clients work: outages, failing disks, rot, damage, limits that change, and looks at
//! its invariants.

use std::rc::Rc;
use std::time::Duration;

use weir_device::ErrorKind;
use weir_log::format::object::ObjectHeader;
use weir_log::{JOURNAL_FILE, ObjectId};
use weir_pacer::{Class, Pacer};
use weir_stack::{LimitSettings, StageStatus};

use crate::client::Life;
use crate::dice::Dice;
use crate::harm::Rot;
use crate::profile::DiskTrouble;
use crate::rot::{self, Reach};
use crate::stages;

/// Bytes before the first segment of a journal.
const JOURNAL_DATA_START: u64 = 1 << 20;

/// Distance of the two superblocks of a journal.
const SUPERBLOCK_BYTES: u64 = 4096;

/// Bytes of a superblock that matter in every journal.
const SUPERBLOCK_USED_BYTES: u64 = 160;

/// Name of the directory of the volume's files.
pub(crate) const DIRECTORY: &str = "volume";

/// How a volume names the failure of its journal while it has not failed itself.
const JOURNAL_FAILED: &str = "its journal failed";

/// Time in which operations that waited pass a limit that holds up nothing any more.
const PASSES_WITHIN: Duration = Duration::from_millis(5);

/// What happens to a limit in one life at most: a life that waits for a store that is away lasts long.
const CHANGES_MAX: u64 = 40;

/// Disturbs until the life ends.
pub(crate) async fn run(life: Rc<Life>, mut dice: Dice) {
    let world = Rc::clone(&life.world);
    let mut in_outage = false;
    let mut struck = false;
    let strikes = dice.percent(60);
    loop {
        tokio::time::sleep(Duration::from_millis(dice.within(3..60))).await;
        if life.stopping.get() {
            if in_outage {
                world.set_outage(false, false);
            }
            return;
        }
        look(&life, &mut dice);
        if in_outage {
            world.set_outage(false, false);
            in_outage = false;
        } else if !life.calm.get() && dice.percent(world.profile.outage_percent) {
            in_outage = true;
            let silent = dice.percent(40);
            world.set_outage(!silent, silent);
            let what = if silent { "store silent" } else { "store in outage" };
            let ms = match dice.below(20) {
                0 => dice.within(5_000..130_000),
                1..5 => dice.within(300..5_000),
                _ => dice.within(10..300),
            };
            world.note(what, [ms, 0, 0]);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            continue;
        }
        if strikes && !struck && !life.calm.get() && dice.percent(25) {
            struck = strike(&life, &mut dice).await;
        }
        if world.profile.trouble == DiskTrouble::Full && struck && dice.percent(20) {
            world.disk().set_capacity(None);
            struck = false;
        }
    }
}

/// Samples states worth counting, and checks the invariants of the volume.
fn look(life: &Life, dice: &mut Dice) {
    let status = life.status();
    let mut events = life.world.events.borrow_mut();
    let full = status.journal_used_bytes * 10 >= status.journal_capacity_bytes * 9;
    events.count("seen: journal over 90 % full", u64::from(full));
    events.count("seen: several PUTs in flight", u64::from(status.puts_in_flight > 1));
    drop(events);
    // A volume whose journal failed tells of it when all that was flushed is in the store.
    if status.failure.is_some_and(|failure| !failure.starts_with(JOURNAL_FAILED)) {
        life.expect_failure(ErrorKind::Poisoned);
    }
    // It walks the whole map.
    if dice.percent(8) {
        life.stack.check_invariants();
    }
}

/// Makes the trouble of this seed happen; `false` if it could not.
pub(crate) async fn strike(life: &Rc<Life>, dice: &mut Dice) -> bool {
    let world = &life.world;
    let disk = &world.disks[life.host];
    let journal = format!("{DIRECTORY}/{JOURNAL_FILE}");
    match world.profile.trouble {
        DiskTrouble::None if world.profile.store_damage => return damage_object(life, dice).await,
        DiskTrouble::None => return true,
        DiskTrouble::Sync => {
            life.disk_failed.set(true);
            disk.fail_next_syncs(1);
            world.harm.sync_failing[life.host].set(true);
            world.note("disk: sync will fail", [0; 3]);
        }
        DiskTrouble::Write => {
            life.disk_failed.set(true);
            disk.change_options(|options| options.write_errors_per_million = 100_000);
            world.note("disk: writes will fail", [0; 3]);
        }
        DiskTrouble::Read => {
            world.harm.reads_fail[life.host].set(true);
            disk.change_options(|options| options.read_errors_per_million = 200_000);
            world.note("disk: reads fail", [0; 3]);
        }
        DiskTrouble::Full => {
            disk.set_capacity(Some(0));
            world.note("disk: full", [0; 3]);
        }
        DiskTrouble::Rot => {
            if world.harm.rot.borrow().is_some() {
                return true;
            }
            if dice.percent(30) {
                // There are two copies, so this needs no excuse.
                let offset = dice.below(2) * SUPERBLOCK_BYTES + dice.below(SUPERBLOCK_USED_BYTES);
                disk.rot(&journal, offset);
                world.note("disk: a superblock rotted", [offset, 0, 0]);
                return true;
            }
            let segments = life.status().journal_capacity_bytes;
            let offset = JOURNAL_DATA_START + dice.below(segments);
            let before = disk.counters().bytes_rotted;
            let Reach { ranges, header } =
                rot::reach(disk, &journal, offset, world.profile.segment_bytes);
            disk.rot(&journal, offset);
            if disk.counters().bytes_rotted == before {
                return false;
            }
            let at = world.oracle.borrow_mut().tick();
            world.note("disk: a byte rotted", [offset, ranges.len() as u64, u64::from(header)]);
            if header {
                world.note("  in the header of a record", [0; 3]);
            }
            world.harm.rot.replace(Some(Rot { at, ranges, header }));
        }
    }
    true
}

/// Flips a bit of an object, or hides it.
async fn damage_object(life: &Rc<Life>, dice: &mut Dice) -> bool {
    let world = &life.world;
    if world.damaged.borrow().is_some() {
        return true;
    }
    let prefix = format!("{}/log/", world.id.get());
    let Ok(listed) = world.bare_store.list(&prefix, None).await else { return false };
    // An object whose PUT is not answered yet would be taken for another writer's.
    let committed = life.status().committed_sequence;
    let sequence = |key: &str| ObjectId::parse_key(key).map_or(u64::MAX, |id| id.seq.0);
    let mut listed = listed;
    listed.retain(|object| sequence(&object.key) <= committed);
    if listed.is_empty() {
        return false;
    }
    let victim = &listed[usize::try_from(dice.below(listed.len() as u64)).expect("an index")];
    let Ok(bytes) = world.bare_store.get(&victim.key).await else { return false };
    let Ok(header) = ObjectHeader::decode(&bytes) else { return false };
    let ranges = header.extents.iter().map(|extent| (extent.offset, extent.offset + extent.len));
    world.harm.object_damaged.set(true);
    *world.damaged.borrow_mut() = Some((victim.key.clone(), ranges.collect()));
    if dice.percent(50) {
        world.faults.hide(&victim.key);
        world.note("object hidden", [header.id.seq.0, 0, 0]);
    } else {
        let at = dice.below(bytes.len() as u64);
        world.faults.flip_bit(&victim.key, at);
        world.note("object damaged", [header.id.seq.0, at, 0]);
    }
    true
}

// --- stages ------------------------------------------------------------------------------------------------------

/// Changes the limit of a volume until its life ends.
pub(crate) async fn change_limits(life: Rc<Life>, mut dice: Dice) {
    let world = Rc::clone(&life.world);
    let Some(pace) = world.profile.stages.changes else { return };
    for _ in 0..CHANGES_MAX {
        let percent = u32::try_from(dice.within(10..200)).expect("small");
        tokio::time::sleep(pace * percent / 100).await;
        let is_over = life.stopping.get() || life.closing.get() || life.calm.get();
        if is_over || world.is_violated() {
            return;
        }
        match dice.below(10) {
            0..3 => life.set_limit("limit set", stages::usual_limit(&mut dice)),
            3 => life.remove_limit().await,
            _ => life.narrow(&mut dice).await,
        }
    }
}

impl Life {
    /// Something happens while operations wait in the limit.
    pub(crate) fn meets_waiting(&self, what: &'static str) {
        if stages::waiting(&self.stack) > 0 {
            self.world.events.borrow_mut().count_pair(what, "operations at the limit");
        }
    }

    /// Something happens while a stage holds what it has acknowledged.
    pub(crate) fn meets_dirty(&self, what: &'static str) {
        if self.stack.dirty_bytes() > 0 {
            self.world.events.borrow_mut().count_pair(what, "dirty stage");
        }
    }

    fn set_limit(&self, what: &'static str, settings: LimitSettings) {
        self.meets_waiting(what);
        self.world.note(what, [0; 3]);
        self.stack.set_limit(settings);
    }

    /// Holds operations up for a while, and lets all of them go.
    async fn narrow(&self, dice: &mut Dice) {
        self.set_limit("limit lowered", stages::narrow_limit(dice));
        let ms = match dice.below(20) {
            0 => dice.within(1_000..20_000),
            1..5 => dice.within(200..1_000),
            _ => dice.within(5..200),
        };
        tokio::time::sleep(Duration::from_millis(ms)).await;
        if self.closing.get() {
            return;
        }
        if dice.percent(50) {
            return self.remove_limit().await;
        }
        self.set_limit("limit raised", stages::wide_limit());
        self.nobody_waits().await;
        self.set_limit("limit set", stages::usual_limit(dice));
    }

    /// Has operations wait when the volume is closed, for longer than that may take.
    pub(crate) async fn narrow_for_close(&self) {
        if self.world.profile.stages.changes.is_none() {
            return;
        }
        let (narrow, pause) = {
            let mut dice = self.world.stages_dice.borrow_mut();
            (stages::narrow_limit(&mut dice), Duration::from_millis(dice.below(60)))
        };
        self.set_limit("limit lowered", narrow);
        tokio::time::sleep(pause).await;
    }

    async fn remove_limit(&self) {
        self.set_limit("limit removed", LimitSettings::default());
        self.nobody_waits().await;
    }

    /// With nothing limited, nobody may wait at the limit.
    async fn nobody_waits(&self) {
        // A process that was stopped meanwhile runs its tasks in any order when it goes on.
        for _ in 0..3 {
            tokio::time::sleep(PASSES_WITHIN).await;
            if self.closing.get() || stages::waiting(&self.stack) == 0 {
                return;
            }
        }
        let waiting = stages::waiting(&self.stack);
        self.world.violate(format!("{waiting} operations wait at a limit that is none"));
    }

    /// What the life came to, for the report.
    pub(crate) fn count(&self, pacer: &Pacer) {
        self.count_stages();
        let status = self.status();
        let mut events = self.world.events.borrow_mut();
        events.count("objects written", status.objects_written);
        events.count("checkpoints published", status.checkpoints_published);
        events.count("objects written by the collector", status.collected_objects);
        events.count("objects deleted", status.deleted_objects);
        events.count("rpo missed", status.rpo_missed);
        events.count("cache: reads answered", status.cache_hits);
        events.count("cache: reads not answered", status.cache_misses);
        for (class, waited) in [
            (Class::Upload, "paced: uploads wait for leave"),
            (Class::Copy, "paced: copies wait for leave"),
        ] {
            events.count(waited, u64::from(!pacer.given(class).waited.is_zero()));
        }
    }

    /// What the stages did in a life.
    fn count_stages(&self) {
        let mut events = self.world.events.borrow_mut();
        for layer in self.stack.layers() {
            match layer.stage {
                StageStatus::Limit { delayed, .. } => events.count("operations delayed", delayed),
                StageStatus::Trace(trace) => {
                    events.count("trace: requests recorded", trace.recorded);
                    events.count("trace: requests dropped", trace.dropped);
                }
                StageStatus::Remote(_) | StageStatus::File(_) | StageStatus::Other(_) => {}
            }
        }
    }
}
