//! What a seed draws before it begins, and what each life of its node draws: sizes, speeds, faults.

use std::time::Duration;

use weir_disk::sim::SimDiskOptions;
use weir_journal::JournalConfig;
use weir_log::format::object::ObjectVersion;
use weir_log::{
    BatchLimits, CheckpointLimits, CollectLimits, CollectPolicy, Compression, LeaseSettings,
    MapLimits, Retention, VolumeOptions,
};
use weir_net::sim::SimNetworkOptions;
use weir_store::{Chance, FaultPlan, OperationFaults};

use crate::dice::Dice;
use crate::env::Scheduling;
use crate::islands::Islands;
use crate::stages::StagesProfile;

const KIB: u64 = 1 << 10;

/// A disk fault that a seed is about. One per seed: together they excuse each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskTrouble {
    None,
    /// Syncs that fail.
    Sync,
    /// Writes that fail.
    Write,
    /// Reads that fail.
    Read,
    /// No room for the journal to grow.
    Full,
    /// A flipped byte in the journal.
    Rot,
}

/// How a life of the node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `kill -9`.
    Kill,
    /// The host loses power.
    Power,
    /// The disk is gone.
    DiskLoss,
    /// The volume is opened on another host, whose disk may hold an old journal of it.
    Move,
    /// The volume is closed.
    Close,
}

/// What a seed is about.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// Bytes that clients use; see [`Islands`].
    pub(crate) volume_bytes: u64,
    pub(crate) islands: Islands,
    pub(crate) segment_bytes: u64,
    pub(crate) lives: u64,
    pub(crate) operations: u64,
    pub(crate) clients: u64,
    /// Share of tiny, block, middling and large operations.
    pub(crate) sizes: [u64; 4],
    /// Operations, in a hundred, that go to a small area.
    pub(crate) hot_percent: u64,
    pub(crate) hot_bytes: u64,
    /// Weights of write, read, zeroes, discard, flush, extents, remote flush, and one past the end.
    pub(crate) mix: [u64; 8],
    pub(crate) fua_percent: u64,
    pub(crate) think_percent: u64,
    pub(crate) think_us: u64,
    pub(crate) disk: SimDiskOptions,
    pub(crate) trouble: DiskTrouble,
    pub(crate) store_damage: bool,
    pub(crate) plan: FaultPlan,
    pub(crate) outage_percent: u64,
    pub(crate) attempt_timeout: Duration,
    pub(crate) scheduling: Scheduling,
    pub(crate) ends: [u64; 5],
    /// Openings, in a hundred, that crash before they are done, or right after.
    pub(crate) crash_in_opening_percent: u64,
    /// Old manifests and lease renewals that are kept.
    pub(crate) retention: Retention,
    pub(crate) lease: Duration,
    /// Whether snapshots are taken. Rot may cost them bytes, as it costs the volume.
    pub(crate) snapshots: bool,
    pub(crate) nodes: u64,
    /// Lives, in a hundred, in which the volume is resized and compacted.
    pub(crate) verbs_percent: u64,
    /// Whether there is a replica. Then nothing is rolled back: the oracle knows one past only.
    pub(crate) replicas: bool,
    /// What work on maps and checkpoints is cut into: so little that volumes of this size cross it.
    pub(crate) map: MapLimits,
    /// Whether clients reach the volume over NBD, and how.
    pub(crate) nbd: Option<NbdProfile>,
    /// What stands between clients and the volume.
    pub(crate) stages: StagesProfile,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Profile {
    /// Bytes of the oracle that a volume of `size` bytes has.
    pub(crate) fn bytes_within(&self, size: u64) -> u64 {
        let islands = &self.islands;
        let (mut low, mut high) = (0, self.volume_bytes);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if islands.place(middle - 1) < size {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let trouble = trouble(dice);
        let odd = if dice.percent(30) { dice.below(4096) } else { 0 };
        let slow_disk = dice.percent(20);
        let volume_bytes = dice.pick(&[192, 256, 384, 512, 1024]) * KIB - odd;
        Self {
            volume_bytes,
            islands: Islands::draw(dice, volume_bytes),
            segment_bytes: dice.pick(&[64, 64, 64, 128, 256]) * KIB,
            lives: dice.within(3..6),
            operations: dice.within(210..380),
            clients: dice.within(1..7),
            sizes: dice.pick(&[[3, 4, 2, 1], [1, 6, 3, 1], [6, 2, 1, 0], [1, 2, 4, 3]]),
            hot_percent: dice.pick(&[0, 40, 80]),
            hot_bytes: dice.pick(&[4, 16, 64]) * KIB,
            mix: [
                50,
                dice.within(10..40),
                dice.below(8),
                dice.below(8),
                dice.pick(&[0, 1, 4, 10, 25]),
                3,
                dice.pick(&[0, 0, 1, 3]),
                1,
            ],
            fua_percent: dice.pick(&[0, 0, 5, 20]),
            think_percent: dice.pick(&[0, 20, 60]),
            think_us: 20_000,
            disk: SimDiskOptions {
                sector_bytes: dice.pick(&[512, 512, 4096]),
                alignment: dice.pick(&[1, 512, 4096]),
                latency_min: Duration::from_micros(20),
                latency_max: if slow_disk { ms(20) } else { ms(dice.within(1..4)) },
                slow_one_in: dice.pick(&[0, 30, 100]),
                late_write_one_in: dice.pick(&[0, 1, 2, 4]),
                late_write_max: ms(dice.pick(&[20, 1_000, 5_000])),
                ..SimDiskOptions::default()
            },
            trouble,
            store_damage: trouble == DiskTrouble::None && dice.percent(16),
            plan: plan(dice),
            outage_percent: dice.pick(&[0, 0, 5, 15]),
            attempt_timeout: ms(dice.within(1000..5000)),
            scheduling: Scheduling {
                late_percent: dice.pick(&[0, 30, 70]),
                yield_percent: dice.pick(&[0, 0, 30]),
            },
            ends: [8, 8, 3, 2, 3],
            crash_in_opening_percent: dice.pick(&[0, 10, 30]),
            retention: Retention {
                versions_min: dice.within(1..5),
                age_min: ms(dice.pick(&[0, 0, 500, 5_000])),
            },
            lease: ms(dice.pick(&[4_000, 8_000, 15_000])),
            snapshots: dice.percent(50) && trouble != DiskTrouble::Rot,
            nodes: 1,
            verbs_percent: dice.pick(&[0, 30, 80]),
            replicas: dice.percent(30) && trouble != DiskTrouble::Rot,
            map: MapLimits {
                apply_step_extents: dice.pick(&[1, 2, 5, 1024]),
                map_step_budget: dice.pick(&[1, 2, 5, 4096]),
                table_piece_entries: dice.pick(&[1, 2, 5, 4096]),
                index_page_entries: dice.pick(&[1, 2, 512]),
            },
            nbd: None,
            stages: StagesProfile::default(),
        }
    }

    /// The same with two nodes in view: their trouble is each other.
    pub(crate) fn with_two_nodes(mut self, dice: &mut Dice) -> Self {
        self.nodes = 2;
        // After rot somebody has to say what he gives up.
        if self.trouble == DiskTrouble::Rot || dice.percent(50) {
            self.trouble = DiskTrouble::None;
        }
        self.store_damage &= self.trouble == DiskTrouble::None;
        self.replicas &= dice.percent(50);
        self.clients = dice.within(1..4);
        self.think_percent = 100;
        self.think_us = dice.pick(&[100_000, 400_000]);
        self.outage_percent = 0;
        // Half of them publish often, so that versions are pruned soon.
        self.mix[6] = dice.pick(&[1, 3, 6]);
        self
    }

    /// How a node keeps its lease.
    pub(crate) fn lease_settings(&self, dice: &mut Dice) -> LeaseSettings {
        LeaseSettings {
            renew_every: self.lease / dice.pick(&[3, 3, 12]),
            // Clocks here all have one speed.
            margin: dice.pick(&[self.lease / 12, Duration::from_millis(1)]),
            retention: self.retention,
            ..LeaseSettings::of_length(self.lease)
        }
    }

    /// Size of the volume.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.islands.place(self.volume_bytes - 1) + 1
    }

    pub(crate) fn draw_end(&self, dice: &mut Dice) -> End {
        [End::Kill, End::Power, End::DiskLoss, End::Move, End::Close][dice.weighted(&self.ends)]
    }

    /// Settings of one opening; they may differ from one to the next.
    pub(crate) fn draw_options(&self, dice: &mut Dice) -> VolumeOptions {
        let age = ms(dice.within(5..80));
        let batch_bytes = dice.pick(&[8, 16, 24, 32, 64]) * KIB;
        VolumeOptions {
            batch: BatchLimits {
                bytes: batch_bytes,
                age,
                rpo: age * u32::try_from(dice.within(1..4)).expect("small"),
                small_bytes: dice.pick(&[0, 4, 16]) * KIB,
            },
            compression: [Compression::None, Compression::Lz4, Compression::Zstd]
                [dice.weighted(&[3, 4, 1])],
            object_version: [ObjectVersion::V4, ObjectVersion::V3, ObjectVersion::V2]
                [dice.weighted(&[3, 1, 1])],
            journal: JournalConfig {
                segment_bytes: self.segment_bytes,
                segments_max: u32::try_from(dice.within(3..8)).expect("small"),
                record_bytes_max: dice.pick(&[32 << 10, 64 << 10, 256 << 10]),
                resident_bytes_max: dice.pick(&[0, 16 << 10, 64 << 10, 1 << 20]),
                queue_bytes_max: dice.pick(&[32, 256]) * KIB,
            },
            checkpoint: CheckpointLimits {
                objects_min: dice.within(1..8),
                data_per_map_byte: dice.pick(&[0, 1, 8]),
                objects_max: dice.within(4..24),
            },
            collect: CollectLimits {
                start_percent: dice.pick(&[0, 50, 70, 90, 99]),
                stop_percent: dice.pick(&[75, 95, 100]),
                policy: dice.pick(&[CollectPolicy::Greedy, CollectPolicy::CostBenefit]),
                // Objects are small here.
                plugs_per_read_min: 1,
            },
            map: self.map,
            puts_in_flight_max: dice.pick(&[1, 2, 4, 4]),
            read_deadline: ms(dice.within(60_000..120_000)),
            close_deadline: ms(dice.pick(&[200, 5_000, 30_000])),
            manifests: self.retention,
            replica_patience: ms(dice.pick(&[0, 1_000, 60_000])),
        }
    }
}

fn trouble(dice: &mut Dice) -> DiskTrouble {
    match dice.below(100) {
        0..50 => DiskTrouble::None,
        50..60 => DiskTrouble::Sync,
        60..67 => DiskTrouble::Write,
        67..75 => DiskTrouble::Read,
        75..83 => DiskTrouble::Full,
        _ => DiskTrouble::Rot,
    }
}

/// Failures in a row by chance: a verb that tries again for half a minute has more attempts than these.
const FAILURES_IN_A_ROW_MAX: u32 = 6;

/// Faults of the store that come by chance. Never so many that retries could all fail.
fn plan(dice: &mut Dice) -> FaultPlan {
    let latency = dice.pick(&[(0, 3), (1, 20), (5, 100), (20, 600)]);
    let mut plan = FaultPlan {
        latency: ms(latency.0)..=ms(latency.1),
        late_put_delay: Duration::ZERO..=ms(dice.pick(&[50, 500, 3000])),
        in_a_row_max: Some(FAILURES_IN_A_ROW_MAX),
        ..FaultPlan::default()
    };
    let level = dice.pick(&[0, 1, 1, 3, 6]);
    if level == 0 {
        return plan;
    }
    let mut chance = |percent| {
        if dice.percent(60) { Chance::percent(percent) } else { Chance::NEVER }
    };
    let faults = OperationFaults {
        server_error: chance(level),
        throttled: chance(level / 2),
        timeout: chance(1),
    };
    plan.put = faults.clone();
    plan.put.server_error = chance(level * 4);
    plan.put.timeout = chance(level);
    plan.get = faults.clone();
    plan.list = faults.clone();
    plan.delete = faults;
    plan.lost_reply = chance(level * 2);
    plan.late_put = chance(level * 3);
    plan.short_body = chance(level);
    plan.flipped_bit = chance(1);
    if dice.percent(10) {
        // Retried for a minute, a read still succeeds; believed three times, it does not.
        plan.short_body = Chance::percent(30);
    }
    plan
}

/// How the clients of a seed reach the volume.
#[derive(Clone, Debug)]
pub(crate) struct NbdProfile {
    /// Connections that its clients share.
    pub(crate) connections: u64,
    /// Connections are lost, fall silent, stall, are refused; strangers send garbage. Time between two of these, about.
    pub(crate) trouble: Option<Duration>,
    pub(crate) network: SimNetworkOptions,
}

impl NbdProfile {
    /// Two thirds of the seeds are about clients over NBD. It draws from a stream of its own.
    pub(crate) fn draw(dice: &mut Dice) -> Option<Self> {
        if dice.percent(33) {
            return None;
        }
        let ms = Duration::from_millis;
        let delay = dice.pick(&[(0, 0), (0, 0), (0, 1), (1, 8), (0, 40)]);
        let buffer_bytes = dice.pick(&[2_000, 16 << 10, 64 << 10, 256 << 10]);
        Some(Self {
            connections: dice.within(1..5),
            trouble: dice.percent(60).then(|| ms(dice.pick(&[60, 250, 1_000]))),
            network: SimNetworkOptions {
                delay: ms(delay.0)..=ms(delay.1),
                bytes_per_second: dice.pick(&[None, None, Some(2_000_000), Some(20_000_000)]),
                buffer_bytes,
                read_bytes_max: dice.pick(&[100, 4_096, 64 << 10, 256 << 10]),
                short_one_in: dice.pick(&[0, 2, 10]),
                keepalive: ms(dice.within(5_000..60_000)),
                ..SimNetworkOptions::default()
            },
        })
    }
}
