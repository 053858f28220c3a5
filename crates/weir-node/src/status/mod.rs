//! The status of a process: what it serves, what is degraded and why, and what would be lost if the host died now.

pub(crate) mod cache;
pub(crate) mod certificates;
pub(crate) mod metrics;
mod png;
pub(crate) mod watch;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_device::DeviceExt;
use weir_log::{FrameCache, VolumeStatus};
use weir_pacer::{Class, Pacer};
use weir_stack::{Counted, Kind, LayerStatus, LimitSettings, StageStatus};

use crate::api::types::{
    AtRisk, Background, BackgroundClass, CacheReport, FileState, Health, Layer, Lease, Limits,
    LogStatus, Memory, NbdClients, NodeStatus, NotServed, Operations, RemoteState, ServedVolume,
    StoreRequests, VolumeLimit,
};
use crate::error::NodeError;
use crate::node::shard::ShardContext;
use crate::serve::core::{Core, Entry, NotLoaded};
use crate::serve::kept::{self, Kept};
use crate::serve::replica::Following;

/// If an object waits longer than this for the store, the volume is degraded. A PUT of 8 MiB at 1 MB/s takes eight
/// seconds.
const OBJECT_WAIT_MS_MAX: u64 = 15_000;

/// If a write or sync of the journal, or a request to a file, takes longer than this, the volume is degraded: the disk
/// does not answer.
const DISK_WAIT_MS_MAX: u64 = 5_000;

/// Share of the journal, in percent, from which writers wait: the rest of its last segment is too small for a record.
const JOURNAL_PERCENT_FULL: u64 = 97;

/// Share of the journal, in percent, from which writers are slowed down.
const JOURNAL_PERCENT_MAX: u64 = 75;

/// The state of a volume as its thread gives it.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) size: u64,
    pub(crate) clients: u64,
    pub(crate) exclusive: Option<String>,
    pub(crate) operations: [Counted; 4],
    pub(crate) layers: Vec<LayerStatus>,
    pub(crate) log: Option<VolumeStatus>,
}

/// Asks the thread of a volume for its state.
pub(crate) async fn snapshot(core: &Core, entry: &Entry) -> Result<Snapshot, NodeError> {
    core.on_volume(entry, |hosted| async move {
        Ok(Snapshot {
            size: hosted.stack.size(),
            clients: hosted.client_count() as u64,
            exclusive: hosted.access.holder(hosted.name.as_str()),
            operations: hosted.stack.operations(),
            layers: hosted.stack.layers(),
            log: hosted.stack.log_status(),
        })
    })
    .await
}

fn why_objects_wait(log: &VolumeStatus, limits: &Limits) -> &'static str {
    let is_limited =
        limits.upload_bytes_per_second.is_some() || limits.upload_requests_per_second.is_some();
    if log.waits_for_collector {
        "more is overwritten than the collector can copy"
    } else if is_limited && log.put_error.is_none() {
        "uploads are held to the limits that were set (weir limits show), or the store is slow"
    } else {
        "the store is slow or cannot be reached"
    }
}

/// Says that the store does not take objects as it should, and that the oldest write is older than it may be.
fn late(log: &VolumeStatus, limits: &Limits) -> Vec<String> {
    let mut reasons = Vec::new();
    let missed = log.unsent_age_ms.filter(|age| *age > log.rpo_ms).map(|age| {
        let [age, rpo] = [age, log.rpo_ms].map(|ms| format!("{}.{}", ms / 1000, ms % 1000 / 100));
        let more = if log.unsent_age_is_least { " or more" } else { "" };
        format!(
            "the oldest write that is not in the store is {age} s old{more}, and its rpo is {rpo} s"
        )
    });
    let lasting = log.put_error.as_ref().filter(|error| !error.passes);
    let why = why_objects_wait(log, limits);
    if let (Some(error), Some(_)) = (lasting, log.object_wait_ms) {
        reasons.push(format!("the store takes no objects: {}", error.text));
        reasons.extend(missed);
        return reasons;
    }
    let waits = log.object_wait_ms.filter(|wait| *wait > OBJECT_WAIT_MS_MAX);
    if waits.is_none() && missed.is_none() {
        return reasons;
    }
    if let Some(wait) = waits {
        reasons.push(format!("{why}: an object has waited for {} s", wait / 1000));
    }
    reasons.extend(missed.map(|missed| format!("{why}: {missed}")));
    reasons.extend(log.put_error.as_ref().map(|error| error.text.clone()));
    reasons
}

/// What is wrong with a volume.
pub(crate) fn judge(log: &VolumeStatus, limits: &Limits) -> (Health, Vec<String>) {
    if let Some(failure) = &log.failure {
        return (Health::Failed, vec![format!("it takes no writes: {failure}")]);
    }
    let mut reasons = Vec::new();
    if let Some(file) = &log.journal_no_space {
        reasons.push(format!(
            "the local disk is full: the journal {file} cannot grow, and writers wait until what it holds is uploaded"
        ));
    }
    if let Some(wait) = log.journal_wait_ms.filter(|wait| *wait > DISK_WAIT_MS_MAX) {
        let seconds = wait / 1000;
        reasons.push(format!(
            "the local disk does not answer: a write or sync of the journal has waited for {seconds} s"
        ));
    }
    reasons.extend(late(log, limits));
    let percent = log.journal_used_bytes.saturating_mul(100) / log.journal_capacity_bytes.max(1);
    if percent >= JOURNAL_PERCENT_MAX {
        reasons.push(match percent >= JOURNAL_PERCENT_FULL {
            true => {
                "the journal is full: writers wait until the store has taken some of it".to_owned()
            }
            false => format!("the journal is {percent} % full: writers are slowed down"),
        });
    }
    if !log.lease_held {
        reasons.push(
            match log.takeover {
                weir_log::Takeover::Manual => {
                    "the node's lease ran out: no flush to the store ends until it is renewed"
                }
                weir_log::Takeover::Auto => "the node's lease ran out: requests are refused",
            }
            .to_owned(),
        );
    }
    reasons.extend(log.upload_note.clone());
    let names = "weir volume check names what is damaged";
    reasons.extend(log.read_failure.as_ref().map(|failure| format!("{failure}; {names}")));
    reasons.extend(log.snapshot_failure.as_ref().map(|failure| {
        format!(
            "a snapshot cannot be read, and nothing is deleted from the store until it can, or is deleted, and the \
             volume was opened anew: {failure}; {names}"
        )
    }));
    (if reasons.is_empty() { Health::Ok } else { Health::Degraded }, reasons)
}

/// What was counted, by kind.
pub(crate) fn operations(counted: &[Counted; 4]) -> Vec<Operations> {
    let row = |(kind, counted): (&Kind, &Counted)| Operations {
        kind: kind.name().to_owned(),
        count: counted.count(),
        errors: counted.errors,
        bytes: counted.bytes,
        time_us: counted.nanoseconds / 1000,
    };
    Kind::ALL.iter().zip(counted).map(row).collect()
}

impl From<LimitSettings> for VolumeLimit {
    fn from(limit: LimitSettings) -> Self {
        Self {
            iops: limit.iops.map(std::num::NonZeroU64::get),
            bytes_per_second: limit.bytes_per_second.map(std::num::NonZeroU64::get),
            burst_ms: u64::try_from(limit.burst.as_millis()).unwrap_or(u64::MAX),
            cache_share: None,
        }
    }
}

/// What is wrong with a remote volume or a file.
fn trouble(stage: &StageStatus) -> Option<(Health, String)> {
    let refuses_writes = match stage {
        StageStatus::Remote(remote) => &remote.refuses_writes,
        StageStatus::File(file) => &file.refuses_writes,
        _ => return None,
    };
    if let Some(why) = refuses_writes {
        return Some((Health::Failed, format!("it takes no writes: {why}")));
    }
    let remote = match stage {
        StageStatus::Remote(remote) => remote,
        StageStatus::File(file) => {
            let most = Duration::from_millis(DISK_WAIT_MS_MAX);
            let wait = file.unanswered.filter(|wait| *wait > most)?;
            let (path, seconds) = (&file.path, wait.as_secs());
            let why = format!("{path} does not answer: a request has waited for {seconds} s");
            return Some((Health::Degraded, why));
        }
        _ => return None,
    };
    let why = remote.trouble.as_deref().unwrap_or("connecting");
    let lost = format!("there is no connection to {}: {why}", remote.url);
    (!remote.is_connected).then_some((Health::Degraded, lost))
}

impl From<LayerStatus> for Layer {
    fn from(layer: LayerStatus) -> Self {
        let mut row = Self {
            kind: layer.stage.name().to_owned(),
            operations: operations(&layer.operations),
            dirty_bytes: layer.dirty_bytes,
            ..Self::default()
        };
        row.note = trouble(&layer.stage).map(|(_, why)| why);
        match layer.stage {
            StageStatus::Limit { settings, waiting, delayed } => {
                row.limit = Some(settings.into());
                (row.waiting, row.delayed) = (Some(waiting), Some(delayed));
            }
            StageStatus::Trace(trace) => {
                (row.recorded, row.missing) = (Some(trace.recorded), Some(trace.dropped));
                row.note = trace.error.or_else(|| {
                    trace.is_full.then(|| "the trace has reached its size, and ends".to_owned())
                });
            }
            StageStatus::Remote(remote) => {
                row.remote = Some(RemoteState {
                    url: remote.url,
                    connected: remote.is_connected,
                    exclusive: remote.is_exclusive,
                    connections: remote.connections as u64,
                    server: remote.server,
                    lost: remote.lost,
                    requests: remote.requests as u64,
                    unflushed_bytes: remote.unflushed_bytes,
                });
            }
            StageStatus::File(file) => {
                row.file = Some(FileState { path: file.path, direct: file.is_direct });
            }
            StageStatus::Other(_) => {}
        }
        row
    }
}

/// How a volume is, and why: whatever its bytes are kept in.
fn judge_layers(snapshot: &Snapshot, limits: &Limits) -> (Health, Vec<String>) {
    let judged = snapshot.log.as_ref().map(|log| judge(log, limits));
    let (mut health, mut reasons) = judged.unwrap_or((Health::Ok, Vec::new()));
    for (how, why) in snapshot.layers.iter().filter_map(|layer| trouble(&layer.stage)) {
        reasons.push(why);
        health = if health == Health::Failed { health } else { how };
    }
    (health, reasons)
}

/// The status of one volume.
pub(crate) async fn of_volume(core: &Core, entry: &Entry) -> Result<ServedVolume, NodeError> {
    let snapshot = snapshot(core, entry).await?;
    let limits = core.limits();
    let (mut health, mut reasons) = judge_layers(&snapshot, &limits);
    let replica = entry.replica.as_ref().map(Following::status);
    if let Some(trouble) = replica.as_ref().and_then(|replica| replica.trouble.as_ref()) {
        reasons.push(format!("the replica is behind: {trouble}"));
        health = if health == Health::Ok { Health::Degraded } else { health };
    }
    let settings = snapshot.layers.iter().find_map(|layer| match layer.stage {
        StageStatus::Limit { settings, .. } => Some(settings),
        _ => None,
    });
    let cache_share = core.cache.share_of(entry.id);
    let limit = VolumeLimit { cache_share, ..settings.unwrap_or_default().into() };
    Ok(ServedVolume {
        limit: limit.is_some().then_some(limit),
        name: entry.name.to_string(),
        id: entry.id.to_string(),
        uri: core.uri(entry.name.as_str()),
        size_bytes: snapshot.size,
        read_only: entry.read_only,
        clients: snapshot.clients,
        exclusive: snapshot.exclusive,
        health,
        reasons,
        at_risk: snapshot.log.as_ref().map(AtRisk::from).unwrap_or_default(),
        operations: operations(&snapshot.operations),
        layers: snapshot.layers.into_iter().map(Layer::from).collect(),
        replica,
        log: snapshot.log.map(|log| LogStatus {
            epoch: log.epoch,
            committed_sequence: log.committed_sequence,
            checkpoint_as_of: log.checkpoint_as_of,
            journal_used_bytes: log.journal_used_bytes,
            journal_capacity_bytes: log.journal_capacity_bytes,
            journal_resident_bytes: log.journal_resident_bytes,
            rpo_ms: log.rpo_ms,
            rpo_missed: log.rpo_missed,
            upload_pressure: log.upload_pressure,
            cache_hits: log.cache_hits,
            cache_misses: log.cache_misses,
            puts_in_flight: log.puts_in_flight,
            objects_written: log.objects_written,
            checkpoints_published: log.checkpoints_published,
            map_entries: log.map_extents + log.overlay_extents,
            map_bytes: log.map_bytes,
            live_bytes: log.live_bytes,
            shared_bytes: log.shared_bytes,
            used_bytes: log.used_bytes,
            object_bytes: log.object_bytes,
            data_bytes: log.data_bytes,
            collected_objects: log.collected_objects,
            collected_bytes: log.collected_bytes,
            deleted_objects: log.deleted_objects,
            reclaimed_bytes: log.reclaimed_bytes,
            pending_deletions: log.pending_deletions,
            waits_for_collector: log.waits_for_collector,
            lease_held: log.lease_held,
            takeover: log.takeover.into(),
        }),
    })
}

/// What is wrong with the process beside its volumes.
fn process_reasons(core: &Core, cache: &CacheReport) -> Vec<String> {
    let mut reasons: Vec<String> = core.tls.iter().flat_map(certificates::troubles).collect();
    let NotLoaded { configuration, volumes, certificates: unread } = core.not_loaded();
    reasons.extend(volumes.map(|why| {
        format!(
            "the volumes that the configuration names were not known at the last reload, and those that were served \
             stay: {why}"
        )
    }));
    let not_loaded = [("configuration was", configuration), ("certificates were", unread)];
    reasons.extend(not_loaded.into_iter().filter_map(|(what, why)| {
        Some(format!(
            "the {what} not loaded at the last reload, and what was before counts: {}",
            why?
        ))
    }));
    if cache.failed {
        let why = cache.none_because.as_deref().unwrap_or("its disk failed");
        reasons
            .push(format!("the cache on the local disk is left out until the next start: {why}"));
    }
    if let (Some(why), true) = (&cache.none_because, cache.missing) {
        reasons
            .push(format!("there is no cache on the local disk, and there should be one: {why}"));
    }
    if core.is_stopping.load(Ordering::Relaxed) {
        reasons.push("the process is stopping".to_owned());
    }
    reasons
}

/// The volumes that should be served and are not, and those that nobody serves while the store lacks some of them.
fn not_served(core: &Core, kept: &[Kept]) -> Vec<NotServed> {
    let mut all = core.not_served();
    for Kept { name, reason, .. } in kept {
        let both = all.get(name).map(|why| format!("{why}; {reason}"));
        all.insert(name.clone(), both.unwrap_or_else(|| reason.clone()));
    }
    let at_risk = kept::unsent_by_name(kept);
    let row = |(name, reason): (String, String)| {
        let at_risk = at_risk.get(name.as_str()).copied();
        NotServed { name, reason, at_risk }
    };
    all.into_iter().map(row).collect()
}

/// The status of the process.
pub(crate) async fn of_node(core: &Arc<Core>) -> NodeStatus {
    let (mut volumes, mut served) = (Vec::new(), Vec::new());
    for entry in core.entries() {
        // A volume that is being closed is left out.
        if let Ok(volume) = of_volume(core, &entry).await {
            volumes.push(volume);
            served.push(entry);
        }
    }
    let kept = kept::beside(core, &served).await;
    let loud: Vec<Kept> = kept.iter().filter(|kept| !kept.is_quiet).cloned().collect();
    let (told, not_served) = (not_served(core, &loud), not_served(core, &kept));
    let mut reasons: Vec<String> = volumes
        .iter()
        .flat_map(|volume| volume.reasons.iter().map(|r| format!("{}: {r}", volume.name)))
        .collect();
    let is_served = |name: &str| volumes.iter().any(|volume| volume.name == name);
    reasons.extend(told.iter().map(|n| match is_served(&n.name) {
        true => format!("a volume {} that is not served: {}", n.name, n.reason),
        false => format!("{} is not served: {}", n.name, n.reason),
    }));
    reasons.extend(core.left().into_iter().map(|(name, what)| format!("{name}: {what}")));
    let risks = volumes.iter().map(|volume| volume.at_risk);
    let at_risk = risks.chain(kept.iter().map(Kept::at_risk)).sum();
    let lease = lease(core).await;
    reasons.extend(lease.as_ref().filter(|_| is_leased(&volumes)).and_then(overdue));
    let holders = certificates::of(core);
    let cache = core.cache.report();
    reasons.extend(process_reasons(core, &cache));
    let failed =
        volumes.iter().any(|volume| volume.health == Health::Failed) || core.failed_before.is_any();
    let health = match (failed, reasons.is_empty()) {
        (true, _) => Health::Failed,
        (false, true) => Health::Ok,
        (false, false) => Health::Degraded,
    };
    NodeStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        process: std::process::id(),
        node: core.node.node_name.to_string(),
        health,
        reasons,
        store: core.store.as_ref().map_or("none", |store| store.url()).to_owned(),
        store_location: core.store.as_ref().map(weir_store::Store::location),
        store_shares_disk: core.store_shares_disk,
        data_dir: core.home.data.path().display().to_string(),
        uptime_seconds: core.started.elapsed().as_secs(),
        nbd: core.nbd_uris(),
        nbd_clients: nbd_clients(core),
        at_risk,
        not_served,
        names_elsewhere: core.names_elsewhere(),
        store_requests: store_requests(core),
        memory: memory(core, &volumes),
        cache,
        limits: core.limits(),
        background: background(core.node.pacer()),
        lease,
        certificates: holders
            .iter()
            .map(|(role, holder)| certificates::row(role, holder))
            .collect(),
        tls_min_version: core.tls.as_ref().map(|tls| tls.min_version().to_string()),
        last_event: core.events.count(),
        volumes,
    }
}

/// The lease in the store that is served; none while only memory is.
pub(crate) async fn lease(core: &Core) -> Option<Lease> {
    let (store, data) = (core.store.clone()?, core.home.data.clone());
    let look = move |context: Rc<ShardContext>| async move {
        let lease = context.leases.find(&data, &store)?;
        let status = lease.status(&*context.env.clock);
        let length = lease.settings().length.as_millis();
        Some(Lease {
            node: status.node,
            incarnation: status.incarnation,
            length_ms: u64::try_from(length).unwrap_or(u64::MAX),
            left_ms: status.left_ms,
            renewals: status.renewals,
            missed: status.missed,
            note: status.note,
        })
    };
    core.node.run(0, look).await.ok().flatten()
}

/// A lease is renewed only while log volumes are open.
fn is_leased(volumes: &[ServedVolume]) -> bool {
    volumes.iter().any(|volume| volume.log.is_some())
}

/// Says that the lease is not renewed in time, if so. Renewals come when two thirds of the length are left, less the
/// margin.
fn overdue(lease: &Lease) -> Option<String> {
    (lease.left_ms < lease.length_ms / 2).then(|| {
        let note = lease.note.as_ref().map_or(String::new(), |note| format!(": {note}"));
        let (left, tenths) = (lease.left_ms / 1000, lease.left_ms % 1000 / 100);
        format!("the lease is not renewed in time, {left}.{tenths} s are left{note}")
    })
}

/// Counts of the requests to the store.
pub(crate) fn store_requests(core: &Core) -> StoreRequests {
    let Some(store) = &core.store else { return StoreRequests::default() };
    let counted = store.counters();
    StoreRequests {
        puts: counted.puts,
        gets: counted.gets,
        lists: counted.lists,
        deletes: counted.deletes,
        bytes_up: counted.bytes_up,
        bytes_down: counted.bytes_down,
        failures: counted.failures,
        retries: counted.retries,
        upload_wait_ms: counted.upload_wait_ms,
    }
}

/// What the pacer gave to work in the background, and what bounds that.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate that is regulated up to 8 GiB/s"
)]
pub(crate) fn background(pacer: &Pacer) -> Background {
    let seen = pacer.seen();
    let class = |class: &Class| {
        let given = pacer.given(*class);
        BackgroundClass {
            class: class.name().to_owned(),
            bytes: given.bytes,
            operations: given.operations,
            waited_ms: u64::try_from(given.waited.as_millis()).unwrap_or(u64::MAX),
        }
    };
    Background {
        bytes_per_second: seen.bytes_per_second.map(|rate| rate as u64),
        latency: seen.latency,
        latency_target: seen.target,
        classes: Class::ALL.iter().map(class).collect(),
    }
}

/// Counts of the NBD clients.
pub(crate) fn nbd_clients(core: &Core) -> NbdClients {
    let places = &core.node.clients.places;
    NbdClients {
        connected: places.taken() as u64,
        most: places.max() as u64,
        most_of_one: places.peer_max() as u64,
        refused: places.refused(),
    }
}

/// Memory by kind.
pub(crate) fn memory(core: &Core, volumes: &[ServedVolume]) -> Memory {
    let logs = || volumes.iter().filter_map(|volume| volume.log.as_ref());
    Memory {
        frame_cache: core.node.cache.bytes(),
        maps: logs().map(|log| log.map_bytes).sum(),
        journals: logs().map(|log| log.journal_resident_bytes).sum(),
        requests: core.node.clients.memory.shared_bytes() as u64,
        unused_buffers: core.node.unused_buffer_bytes(),
        resident: resident_bytes(),
    }
}

/// Memory of the process as the kernel counts it; zero where it does not say.
#[must_use]
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use weir_log::PutError;

    use super::*;

    fn log() -> VolumeStatus {
        VolumeStatus {
            size_bytes: 1,
            epoch: 1,
            manifest: weir_journal::ManifestSeen { number: 1, nonce: [0; 16] },
            acked_write: 10,
            committed_write: 4,
            committed_sequence: 1,
            checkpoint_as_of: None,
            journal_used_bytes: 10,
            journal_capacity_bytes: 100,
            journal_resident_bytes: 0,
            journal_records: 0,
            journal_fsyncs: 0,
            unsent_bytes: 4096,
            unsent_age_ms: Some(700),
            unsent_age_is_least: false,
            object_wait_ms: Some(20),
            rpo_ms: 60_000,
            rpo_missed: 0,
            upload_pressure: 0,
            cache_hits: 0,
            cache_misses: 0,
            puts_in_flight: 0,
            objects_written: 0,
            checkpoints_published: 0,
            map_extents: 0,
            map_bytes: 0,
            overlay_extents: 0,
            live_bytes: 0,
            shared_bytes: 0,
            used_bytes: 0,
            object_bytes: 0,
            data_bytes: 0,
            collected_objects: 0,
            collected_bytes: 0,
            deleted_objects: 0,
            reclaimed_bytes: 0,
            pending_deletions: 0,
            waits_for_collector: false,
            lease_held: true,
            takeover: weir_log::Takeover::Manual,
            failure: None,
            upload_note: None,
            read_failure: None,
            snapshot_failure: None,
            put_error: None,
            journal_no_space: None,
            journal_wait_ms: None,
        }
    }

    fn judge(log: &VolumeStatus) -> (Health, Vec<String>) {
        super::judge(log, &Limits::default())
    }

    #[test]
    fn a_full_journal_is_more_than_one_that_slows_down() {
        let filled = |percent| VolumeStatus { journal_used_bytes: percent, ..log() };
        let said = [74, 75, 96, 97, 100].map(|percent| judge(&filled(percent)).1.pop());
        let slowed = |percent| format!("the journal is {percent} % full: writers are slowed down");
        let full = "the journal is full: writers wait until the store has taken some of it";
        let [none, from, to, waits, all] = said;
        assert_eq!((none, from, to), (None, Some(slowed(75)), Some(slowed(96))));
        assert_eq!([waits.as_deref(), all.as_deref()], [Some(full); 2]);
    }

    #[test]
    fn a_volume_says_what_is_wrong_with_it() {
        assert_eq!(judge(&log()), (Health::Ok, vec![]));
        let known = AtRisk::default();
        let expected = AtRisk { bytes: 4096, blocks: 6, oldest_age_ms: Some(700), ..known };
        assert_eq!(AtRisk::from(log()), expected);
        let others = [(10, 1, None), (20, 2, Some(900)), (30, 3, Some(8))];
        let other =
            |(bytes, blocks, oldest_age_ms)| AtRisk { bytes, blocks, oldest_age_ms, ..known };
        let others = others.map(other);
        let sum: AtRisk = others.into_iter().chain([expected]).sum();
        let expected = AtRisk { bytes: 4156, blocks: 12, oldest_age_ms: Some(900), ..known };
        assert_eq!(sum, expected);
        let replayed = AtRisk::from(VolumeStatus { unsent_age_is_least: true, ..log() });
        let nothing = VolumeStatus { unsent_bytes: 0, acked_write: 0, committed_write: 0, ..log() };
        let failed =
            VolumeStatus { failure: Some("it was set back".to_owned()), ..nothing.clone() };
        assert!(!AtRisk::from(nothing).bytes_are_least);
        assert!(AtRisk::from(failed).bytes_are_least, "its store may lack anything");
        assert!([sum, replayed, sum].into_iter().sum::<AtRisk>().age_is_least);
        let slow = VolumeStatus { object_wait_ms: Some(16_000), ..log() };
        let (health, reasons) = judge(&slow);
        assert_eq!(health, Health::Degraded);
        assert!(reasons[0].contains("an object has waited for 16 s"), "{reasons:?}");
        let failed = |passes| Some(PutError { passes, text: "it failed".to_owned() });
        let away = VolumeStatus { put_error: failed(true), ..slow.clone() };
        assert_eq!(judge(&away).1[1..], ["it failed"]);
        let briefly = VolumeStatus { object_wait_ms: Some(20), ..away };
        assert_eq!(judge(&briefly), (Health::Ok, vec![]));
        let full = VolumeStatus { put_error: failed(false), ..briefly };
        assert_eq!(judge(&full).1, ["the store takes no objects: it failed"]);
        let old = VolumeStatus { unsent_age_ms: Some(75_400), ..log() };
        let late = "the oldest write that is not in the store is 75.4 s old, and its rpo is 60.0 s";
        let why = "the store is slow or cannot be reached";
        assert_eq!(judge(&old), (Health::Degraded, vec![format!("{why}: {late}")]));
        let replayed = VolumeStatus { unsent_age_is_least: true, ..old.clone() };
        assert!(judge(&replayed).1[0].contains("is 75.4 s old or more, and"));
        let just = VolumeStatus { unsent_age_ms: Some(60_000), ..log() };
        assert_eq!(judge(&just).0, Health::Ok);
        let both = VolumeStatus { object_wait_ms: Some(70_000), ..old };
        let waits = format!("{why}: an object has waited for 70 s");
        assert_eq!(judge(&both).1, [waits, format!("{why}: {late}")]);
        let full = VolumeStatus { put_error: failed(false), ..both };
        assert_eq!(judge(&full).1, ["the store takes no objects: it failed", late]);
        let limits = Limits { upload_bytes_per_second: Some(1), ..Limits::default() };
        assert!(super::judge(&slow, &limits).1[0].starts_with("uploads are held to the limits"));
        let no_room = VolumeStatus { journal_no_space: Some("/d/journal".to_owned()), ..log() };
        let (health, reasons) = judge(&no_room);
        assert_eq!(health, Health::Degraded);
        assert!(reasons[0].contains("the journal /d/journal cannot grow"), "{reasons:?}");
        let damaged = VolumeStatus { read_failure: Some("reads fail".to_owned()), ..log() };
        assert_eq!(
            judge(&damaged),
            (
                Health::Degraded,
                vec!["reads fail; weir volume check names what is damaged".to_owned()]
            )
        );
        let hung = VolumeStatus { journal_wait_ms: Some(6_000), ..log() };
        assert!(judge(&hung).1[0].contains("the local disk does not answer"));
        let behind = VolumeStatus { waits_for_collector: true, ..slow };
        assert!(
            judge(&behind).1[0].contains("the collector can copy: an object has waited for 16")
        );
        let full = VolumeStatus { journal_used_bytes: 80, ..log() };
        assert!(judge(&full).1[0].contains("80 % full"));
        let cut_off = VolumeStatus { lease_held: false, ..log() };
        assert!(judge(&cut_off).1[0].contains("no flush to the store ends until it is renewed"));
        let failed = VolumeStatus { failure: Some("fenced".to_owned()), ..full };
        assert_eq!(judge(&failed), (Health::Failed, vec!["it takes no writes: fenced".to_owned()]));
    }

    #[test]
    fn a_snapshot_that_cannot_be_read_is_no_secret() {
        let hurt = VolumeStatus { snapshot_failure: Some("cut: gone".to_owned()), ..log() };
        let (health, reasons) = judge(&hurt);
        assert_eq!(health, Health::Degraded);
        let said = "nothing is deleted from the store until it can";
        assert!(reasons[0].contains(said), "{reasons:?}");
    }

    #[test]
    fn what_keeps_a_file_or_a_server_from_taking_writes_is_the_health_of_the_volume() {
        let remote = |is_connected, refuses_writes: Option<&str>| {
            StageStatus::Remote(weir_remote::RemoteStatus {
                url: "nbd://far/disk".to_owned(),
                is_connected,
                is_exclusive: false,
                connections: 1,
                server: None,
                lost: 0,
                trouble: None,
                requests: 0,
                unflushed_bytes: 0,
                refuses_writes: refuses_writes.map(str::to_owned),
            })
        };
        let file = |refuses_writes: Option<&str>, unanswered: Option<u64>| {
            let refuses_writes = refuses_writes.map(str::to_owned);
            StageStatus::File(weir_file::FileStatus {
                path: "/f".to_owned(),
                is_direct: false,
                refuses_writes,
                unanswered: unanswered.map(Duration::from_secs),
            })
        };
        let judged = |stage| {
            let layer = LayerStatus { stage, operations: Default::default(), dirty_bytes: 0 };
            let snapshot = Snapshot {
                size: 1,
                clients: 0,
                exclusive: None,
                operations: Default::default(),
                layers: vec![layer],
                log: None,
            };
            judge_layers(&snapshot, &Limits::default())
        };
        assert_eq!(judged(remote(true, None)), (Health::Ok, Vec::new()));
        let away = "there is no connection to nbd://far/disk: connecting".to_owned();
        assert_eq!(judged(remote(false, None)), (Health::Degraded, vec![away]));
        assert_eq!(judged(file(None, Some(4))), (Health::Ok, Vec::new()), "it may be busy");
        let hangs = "/f does not answer: a request has waited for 6 s".to_owned();
        assert_eq!(judged(file(None, Some(6))), (Health::Degraded, vec![hangs]));
        let lost = Some("lost");
        for stage in [remote(true, lost), remote(false, lost), file(lost, Some(6))] {
            let failed = "it takes no writes: lost".to_owned();
            assert_eq!(judged(stage), (Health::Failed, vec![failed]));
        }
        assert_eq!(judged(file(None, None)), (Health::Ok, Vec::new()));
    }

    #[test]
    fn a_lease_whose_renewal_is_late_is_a_reason() {
        let lease = |left_ms| Lease {
            node: String::new(),
            incarnation: String::new(),
            length_ms: 60_000,
            left_ms,
            renewals: 1,
            missed: 0,
            note: Some("refused".to_owned()),
        };
        // Renewed every 20 s up to 55 s: 35 s are left when the next renewal comes.
        assert_eq!(overdue(&lease(34_000)), None);
        let expected = "the lease is not renewed in time, 29.9 s are left: refused";
        assert_eq!(overdue(&lease(29_900)).as_deref(), Some(expected));
    }

    #[test]
    fn the_process_has_memory() {
        assert!(resident_bytes() > 1 << 20);
    }
}
