//! Metrics as Prometheus reads them (OpenMetrics), put together anew for every scrape. The table is in
//! `docs/operations/metrics.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use weir_cache::engine::CacheCounts;
use weir_log::{FrameCache, VolumeStatus};
use weir_net::tls::Holder;
use weir_remote::RemoteStatus;
use weir_stack::{BUCKETS_US, Counted, Kind, StageStatus};

use crate::api::types::{
    AtRisk, Background, BackgroundClass, CacheReport, Health, Lease, Limits, NbdClients,
    ReplicaState, StoreRequests,
};
use crate::serve::core::Core;
use crate::serve::kept::{self, Kept};
use crate::status::{self, Snapshot};

/// What one scrape found.
#[derive(Debug)]
struct Scrape {
    volumes: Vec<(String, Health, Snapshot)>,
    replicas: Vec<(String, ReplicaState)>,
    not_served: u64,
    kept: Vec<Kept>,
    store: StoreRequests,
    limits: Limits,
    background: Background,
    cache: CacheReport,
    /// Of all caches since the process began.
    cache_counts: CacheCounts,
    lease: Option<Lease>,
    certificates: Vec<(&'static str, Holder)>,
    frame_cache: u64,
    unused_buffers: u64,
    resident: u64,
    requests: u64,
    clients: NbdClients,
    cpu_seconds: f64,
    uptime_seconds: f64,
    events: u64,
}

/// The text of one scrape.
pub(crate) async fn render(core: &Arc<Core>) -> String {
    let (mut volumes, mut replicas, mut served) = (Vec::new(), Vec::new(), Vec::new());
    let limits = core.limits();
    for entry in core.entries() {
        replicas.extend(entry.replica.as_ref().map(|r| (entry.name.to_string(), r.status())));
        // A volume that is being closed is left out.
        if let Ok(snapshot) = status::snapshot(core, &entry).await {
            let (health, _) = status::judge_layers(&snapshot, &limits);
            volumes.push((entry.name.to_string(), health, snapshot));
            served.push(entry);
        }
    }
    let mut kept = kept::beside(core, &served).await;
    kept.retain(|one| !one.is_quiet);
    let scrape = Scrape {
        volumes,
        replicas,
        not_served: status::not_served(core, &kept).len() as u64,
        kept,
        store: status::store_requests(core),
        limits,
        background: status::background(core.node.pacer()),
        cache: core.cache.report(),
        cache_counts: core.cache.counts(),
        lease: status::lease(core).await,
        certificates: status::certificates::of(core),
        frame_cache: core.node.cache.bytes(),
        unused_buffers: core.node.unused_buffer_bytes(),
        requests: core.node.clients.memory.shared_bytes() as u64,
        clients: status::nbd_clients(core),
        resident: status::resident_bytes(),
        cpu_seconds: cpu_seconds(),
        uptime_seconds: core.started.elapsed().as_secs_f64(),
        events: core.events.count(),
    };
    let mut registry = Registry::with_prefix("weir");
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}

/// CPU time of the process, as the kernel counts it.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a process are far from 2^52")]
    let nanoseconds = time.tv_nsec as f64;
    #[expect(clippy::cast_precision_loss, reason = "seconds of a process are far from 2^52")]
    let seconds = time.tv_sec as f64;
    seconds + nanoseconds / 1e9
}

type Written = Result<(), std::fmt::Error>;

/// A metric with one value.
fn single(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    write: impl FnOnce(&mut MetricEncoder<'_>) -> Written,
) -> Written {
    write(&mut encoder.encode_descriptor(name, help, None, kind)?)
}

fn gauge(metric: &mut MetricEncoder<'_>, value: u64) -> Written {
    // As a float, which holds the whole range to sixteen digits.
    #[expect(clippy::cast_precision_loss, reason = "a scraper keeps floats anyway")]
    metric.encode_gauge(&(value as f64))
}

fn counter(metric: &mut MetricEncoder<'_>, value: u64) -> Written {
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

/// A gauge of a log volume: its name, its help and where it is found.
type LogGauge = (&'static str, &'static str, fn(&VolumeStatus) -> u64);

const LOG_GAUGES: [LogGauge; 19] = [
    ("journal_used_bytes", "Bytes of the journal that cannot be written over yet", |log| {
        log.journal_used_bytes
    }),
    ("journal_capacity_bytes", "Bytes that the journal can hold", |log| log.journal_capacity_bytes),
    ("journal_resident_bytes", "Memory of copies of what is in the journal", |log| {
        log.journal_resident_bytes
    }),
    ("dirty_bytes", "Acknowledged bytes that are not in the store yet", |log| log.unsent_bytes),
    (
        "dirty_blocks",
        "Acknowledged blocks of writes, of up to 4 KiB, that are not in the store yet",
        |log| log.acked_write.saturating_sub(log.committed_write),
    ),
    ("puts_in_flight", "Objects on their way to the store", |log| log.puts_in_flight),
    ("committed_sequence", "Last object of the committed prefix", |log| log.committed_sequence),
    ("checkpoint_sequence", "Sequence that the newest checkpoint is as of", |log| {
        log.checkpoint_as_of.unwrap_or(0)
    }),
    ("map_entries", "Entries of the map of objects", |log| log.map_extents),
    ("overlay_entries", "Entries of the map of the journal", |log| log.overlay_extents),
    ("map_bytes", "Memory of both maps", |log| log.map_bytes),
    ("live_bytes", "Bytes of objects that can still be read", |log| log.live_bytes),
    ("shared_bytes", "Of them, those in objects of volumes that this one is a clone of", |log| {
        log.shared_bytes
    }),
    ("used_bytes", "Payload bytes of objects that can still be read in part", |log| log.used_bytes),
    ("object_bytes", "Payload bytes of all objects that are not deleted yet", |log| {
        log.object_bytes
    }),
    ("pending_deletions", "Objects that nothing needs and that are not deleted yet", |log| {
        log.pending_deletions
    }),
    ("epoch", "Number of this opening", |log| log.epoch),
    (
        "waits_for_collector",
        "1 while objects of data wait for the collector, which is behind",
        |log| u64::from(log.waits_for_collector),
    ),
    ("lease_held", "1 while the node holds the lease under which the volume is open", |log| {
        u64::from(log.lease_held)
    }),
];

const LOG_COUNTERS: [LogGauge; 10] = [
    ("rpo_missed", "Batches that came into the store later than the rpo", |log| log.rpo_missed),
    ("objects_written", "Objects written since the volume was opened", |log| log.objects_written),
    ("checkpoints_published", "Checkpoints published since the volume was opened", |log| {
        log.checkpoints_published
    }),
    ("data_bytes", "Payload bytes of objects of clients' writes", |log| log.data_bytes),
    ("collected_objects", "Objects written by the collector", |log| log.collected_objects),
    ("collected_bytes", "Payload bytes in them", |log| log.collected_bytes),
    ("deleted_objects", "Objects deleted", |log| log.deleted_objects),
    ("reclaimed_bytes", "Payload bytes of objects that were given up for deletion", |log| {
        log.reclaimed_bytes
    }),
    ("cache_hits", "Reads beyond memory that the cache on the local disk answered", |log| {
        log.cache_hits
    }),
    ("cache_misses", "Reads beyond memory that it did not", |log| log.cache_misses),
];

/// The gauge to watch.
const OLDEST: &str = "volume_oldest_dirty_seconds";

/// Gauges of a log volume that are fractions, in thousandths.
const LOG_RATIOS: [LogGauge; 3] = [
    (
        OLDEST,
        "Age of the oldest acknowledged byte that is not in the store; zero where there is none",
        |log| log.unsent_age_ms.unwrap_or(0),
    ),
    ("volume_rpo_seconds", "How old that byte may become", |log| log.rpo_ms),
    (
        "volume_upload_pressure",
        "How much presses uploads: 0 where they yield to clients, 1 where they yield to nobody",
        |log| log.upload_pressure,
    ),
];

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Written {
        self.encode_node(&mut encoder)?;
        self.encode_store(&mut encoder)?;
        self.encode_background(&mut encoder)?;
        self.encode_cache(&mut encoder)?;
        self.encode_lease(&mut encoder)?;
        self.encode_volumes(&mut encoder)?;
        self.encode_replicas(&mut encoder)?;
        self.encode_logs(&mut encoder)?;
        self.encode_remotes(&mut encoder)?;
        self.encode_operations(&mut encoder)
    }
}

impl Scrape {
    fn encode_node(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        single(encoder, "build", "The program", MetricType::Info, |m| m.encode_info(&version))?;
        let help = "CPU time of the process";
        single(encoder, "process_cpu_seconds", help, MetricType::Counter, |m| {
            m.encode_counter::<NoLabelSet, _, u64>(&self.cpu_seconds, None)
        })?;
        let help = "Time since the process began to serve";
        single(encoder, "uptime_seconds", help, MetricType::Gauge, |m| {
            m.encode_gauge(&self.uptime_seconds)
        })?;
        let help = "Memory by kind";
        let mut memory =
            encoder.encode_descriptor("memory_bytes", help, None, MetricType::Gauge)?;
        for (kind, bytes) in [
            ("resident", self.resident),
            ("frame_cache", self.frame_cache),
            ("unused_buffers", self.unused_buffers),
            ("requests", self.requests),
        ] {
            gauge(&mut memory.encode_family(&[("kind", kind)])?, bytes)?;
        }
        let help = "Clients of NBD that can be connected at a time";
        single(encoder, "nbd_clients_max", help, MetricType::Gauge, |m| {
            gauge(m, self.clients.most)
        })?;
        let help = "Clients of NBD that were turned away for want of a place";
        single(encoder, "nbd_clients_refused", help, MetricType::Counter, |m| {
            counter(m, self.clients.refused)
        })?;
        if !self.certificates.is_empty() {
            let help = "When certificates for TLS expire, in seconds since the epoch of Unix";
            let name = "certificate_expires_seconds";
            let mut expires = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (role, holder) in &self.certificates {
                let family = &[("role", *role), ("name", holder.name.as_str())];
                gauge(&mut expires.encode_family(family)?, holder.expires.as_secs())?;
            }
        }
        let help = "Volumes that should be served and are not, or are not and have writes in a journal alone";
        single(encoder, "volumes_not_served", help, MetricType::Gauge, |m| {
            gauge(m, self.not_served)
        })?;
        let help = "Events since the process began";
        single(encoder, "events", help, MetricType::Counter, |m| counter(m, self.events))
    }

    fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let store = &self.store;
        let help = "Requests to the store, failed ones included";
        let kinds = [
            ("put", store.puts),
            ("get", store.gets),
            ("list", store.lists),
            ("delete", store.deletes),
        ];
        family(encoder, "store_requests", help, "kind", &kinds)?;
        let kinds = [("up", store.bytes_up), ("down", store.bytes_down)];
        family(encoder, "store_bytes", "Bytes to and from the store", "direction", &kinds)?;
        single(encoder, "store_failures", "Requests that failed", MetricType::Counter, |m| {
            counter(m, store.failures)
        })?;
        single(encoder, "store_retries", "Requests made again", MetricType::Counter, |m| {
            counter(m, store.retries)
        })?;
        let help = "Time that uploads waited for their limits";
        single(encoder, "store_upload_wait_seconds", help, MetricType::Counter, |m| {
            let seconds = seconds_of(store.upload_wait_ms, 1e3);
            m.encode_counter::<NoLabelSet, _, u64>(&seconds, None)
        })?;
        for (name, help, limit) in [
            (
                "limit_upload_bytes_per_second",
                "Limit on bytes uploaded; zero where there is none",
                self.limits.upload_bytes_per_second,
            ),
            (
                "limit_upload_requests_per_second",
                "Limit on upload requests; zero where there is none",
                self.limits.upload_requests_per_second,
            ),
        ] {
            single(encoder, name, help, MetricType::Gauge, |m| gauge(m, limit.unwrap_or(0)))?;
        }
        Ok(())
    }

    fn encode_background(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let background = &self.background;
        type Of = fn(&BackgroundClass) -> u64;
        let counters: [(&str, &str, Of); 2] = [
            ("background_bytes", "Bytes that work in the background moved", |class| class.bytes),
            ("background_operations", "Operations in the background that move no bytes", |class| {
                class.operations
            }),
        ];
        for (name, help, value) in counters {
            let classes = background.classes.iter();
            let values: Vec<_> = classes.map(|one| (one.class.as_str(), value(one))).collect();
            family(encoder, name, help, "class", &values)?;
        }
        let help = "Time that work in the background waited for clients";
        let name = "background_wait_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for one in &background.classes {
            let labels = [("class", one.class.as_str())];
            let mut member = metric.encode_family(&labels)?;
            let seconds = seconds_of(one.waited_ms, 1e3);
            member.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
        }
        let help =
            "Bytes per second that clients leave to the background; zero where nothing bounds it";
        single(encoder, "background_bytes_per_second", help, MetricType::Gauge, |m| {
            gauge(m, background.bytes_per_second.unwrap_or(0))
        })?;
        let help = "What clients' requests take, as a multiple of what they take alone";
        single(encoder, "background_latency_ratio", help, MetricType::Gauge, |m| {
            m.encode_gauge(&background.latency)
        })?;
        let help = "What clients' requests may take, as such a multiple";
        single(encoder, "background_latency_target_ratio", help, MetricType::Gauge, |m| {
            m.encode_gauge(&background.latency_target)
        })?;
        let help = "1 while work in the background yields to nobody";
        single(encoder, "limit_drain", help, MetricType::Gauge, |m| {
            gauge(m, u64::from(self.limits.drain))
        })
    }

    fn encode_cache(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let cache = &self.cache;
        for (name, help, value) in [
            (
                "cache_capacity_bytes",
                "Bytes of objects that the local disk can hold",
                cache.capacity_bytes,
            ),
            ("cache_bytes", "Bytes of objects that the local disk holds", cache.bytes),
        ] {
            single(encoder, name, help, MetricType::Gauge, |m| gauge(m, value))?;
        }
        let counts = &self.cache_counts;
        let refused = [("share", counts.over_share), ("wear", counts.worn)];
        let help = "Frames that a limit kept from the cache on the local disk";
        family(encoder, "cache_fills_refused", help, "limit", &refused)?;
        let looks = [("hit", counts.hits), ("miss", counts.misses)];
        family(encoder, "cache_reads", "Looks into the cache on the local disk", "result", &looks)?;
        let failed = [("damaged", counts.damaged), ("failed", counts.failed_reads)];
        let help = "Reads of the cache on the local disk that the store answered instead";
        family(encoder, "cache_read_errors", help, "reason", &failed)?;
        for (name, help, value) in [
            (
                "cache_filled_bytes",
                "Bytes written to the cache on the local disk",
                counts.filled_bytes,
            ),
            (
                "cache_fills_failed",
                "Writes to it that failed or took too long",
                counts.failed_fills,
            ),
            ("cache_fills", "Frames written to the cache on the local disk", counts.fills),
            ("cache_copied", "Frames that the collector read from the local disk", counts.copied),
            ("cache_fills_dropped", "Frames that came too fast to be cached", counts.dropped),
            (
                "cache_evictions",
                "Bands that made room in the cache on the local disk",
                counts.evictions,
            ),
        ] {
            single(encoder, name, help, MetricType::Counter, |m| counter(m, value))?;
        }
        Ok(())
    }

    fn encode_lease(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let Some(lease) = &self.lease else { return Ok(()) };
        let help = "Length of the lease: how long other nodes wait";
        single(encoder, "lease_length_seconds", help, MetricType::Gauge, |m| {
            m.encode_gauge(&seconds_of(lease.length_ms, 1e3))
        })?;
        let help = "Time until this node stops relying on its lease; zero once that has passed";
        single(encoder, "lease_left_seconds", help, MetricType::Gauge, |m| {
            m.encode_gauge(&seconds_of(lease.left_ms, 1e3))
        })?;
        let help = "Renewals of the lease";
        single(encoder, "lease_renewals", help, MetricType::Counter, |m| {
            counter(m, lease.renewals)
        })?;
        let help = "Deadlines of the lease that were missed";
        single(encoder, "lease_missed", help, MetricType::Counter, |m| counter(m, lease.missed))
    }

    fn encode_replicas(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        type Of = fn(&ReplicaState) -> u64;
        let gauges: [(&str, &str, Of); 3] = [
            ("replica_lag_bytes", "Bytes written after what the replica shows", |r| r.lag_bytes),
            ("replica_lag_seconds", "Age of what the replica shows", |r| r.lag_seconds),
            ("replica_waits", "1 while the replica waits for a store", |replica| {
                u64::from(replica.trouble.is_some())
            }),
        ];
        for (name, help, value) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (volume, replica) in &self.replicas {
                let labels = [("volume", volume.as_str())];
                gauge(&mut metric.encode_family(&labels)?, value(replica))?;
            }
        }
        Ok(())
    }

    fn encode_remotes(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        type Of = fn(&RemoteStatus) -> u64;
        let metrics: [(&str, &str, MetricType, Of); 3] = [
            ("remote_connected", "1 while there is a connection", MetricType::Gauge, |remote| {
                u64::from(remote.is_connected)
            }),
            ("remote_lost", "Times that the connection was lost", MetricType::Counter, |r| r.lost),
            ("remote_unflushed_bytes", "Acknowledged and not flushed", MetricType::Gauge, |r| {
                r.unflushed_bytes
            }),
        ];
        for (name, help, kind, value) in metrics {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (volume, _, snapshot) in &self.volumes {
                let Some(layer) = snapshot.layers.last() else { continue };
                let StageStatus::Remote(remote) = &layer.stage else { continue };
                let labels = [("volume", volume.as_str())];
                let mut member = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => counter(&mut member, value(remote))?,
                    _ => gauge(&mut member, value(remote))?,
                }
            }
        }
        Ok(())
    }

    fn encode_volumes(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        type Of = fn(Health, &Snapshot) -> u64;
        let gauges: [(&str, &str, Of); 3] = [
            ("volume_size_bytes", "Size", |_, volume| volume.size),
            ("volume_clients", "Clients connected", |_, volume| volume.clients),
            ("volume_health", "0 well, 1 degraded, 2 takes no writes", |health, _| health as u64),
        ];
        for (name, help, value) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (volume, health, snapshot) in &self.volumes {
                let labels = [("volume", volume.as_str())];
                gauge(&mut metric.encode_family(&labels)?, value(*health, snapshot))?;
            }
        }
        Ok(())
    }

    fn logs(&self) -> impl Iterator<Item = (&str, &VolumeStatus)> {
        self.volumes
            .iter()
            .filter_map(|(name, _, snapshot)| snapshot.log.as_ref().map(|log| (name.as_str(), log)))
    }

    fn encode_logs(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        for (kind, metrics) in
            [(MetricType::Gauge, &LOG_GAUGES[..]), (MetricType::Counter, &LOG_COUNTERS[..])]
        {
            for (name, help, value) in metrics {
                let name = format!("volume_{name}");
                let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
                let mut kept = self.unsent_of_kept(|unsent| match name.as_str() {
                    "volume_dirty_bytes" => Some(unsent.bytes),
                    "volume_dirty_blocks" => Some(unsent.blocks),
                    _ => None,
                });
                for (volume, log) in self.logs() {
                    let labels = [("volume", volume)];
                    let mut member = metric.encode_family(&labels)?;
                    let value = value(log) + kept.remove(volume).unwrap_or(0);
                    match kind {
                        MetricType::Counter => counter(&mut member, value)?,
                        _ => gauge(&mut member, value)?,
                    }
                }
                for (volume, value) in kept {
                    gauge(&mut metric.encode_family(&[("volume", volume)])?, value)?;
                }
            }
        }
        for (name, help, thousandths) in LOG_RATIOS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            let is_oldest = name == OLDEST;
            let oldest = |unsent: AtRisk| is_oldest.then(|| unsent.oldest_age_ms.unwrap_or(0));
            let mut kept = self.unsent_of_kept(oldest);
            for (volume, log) in self.logs() {
                let value = thousandths(log).max(kept.remove(volume).unwrap_or(0));
                let value = seconds_of(value, 1e3);
                metric.encode_family(&[("volume", volume)])?.encode_gauge(&value)?;
            }
            for (volume, value) in kept {
                let value = seconds_of(value, 1e3);
                metric.encode_family(&[("volume", volume)])?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    /// What the store lacks of volumes that nobody serves, as a value of each name: a name that one of them shares with
    /// a volume that is served has one series all the same.
    fn unsent_of_kept(&self, value: impl Fn(AtRisk) -> Option<u64>) -> BTreeMap<&str, u64> {
        let all = kept::unsent_by_name(&self.kept).into_iter();
        all.filter_map(|(name, unsent)| Some((name, value(unsent)?))).collect()
    }

    fn encode_operations(&self, encoder: &mut DescriptorEncoder<'_>) -> Written {
        let each = || {
            self.volumes.iter().flat_map(|(name, _, snapshot)| {
                let kinds = Kind::ALL.iter().zip(&snapshot.operations);
                kinds.map(move |(kind, counted)| {
                    ([("volume", name.as_str()), ("operation", kind.name())], counted)
                })
            })
        };
        let help = "Time from the device's taking an operation to its answer";
        let name = "operation_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, counted) in each() {
            Latency(counted).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Operations that passed a layer of a volume's stack";
        let name = "layer_operations";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (volume, _, snapshot) in &self.volumes {
            for layer in &snapshot.layers {
                let layer_name = layer.stage.name();
                for (kind, counted) in Kind::ALL.iter().zip(&layer.operations) {
                    let labels = [
                        ("volume", volume.as_str()),
                        ("layer", layer_name),
                        ("operation", kind.name()),
                    ];
                    counter(&mut metric.encode_family(&labels)?, counted.count())?;
                }
            }
        }
        type Of = fn(&Counted) -> u64;
        let counters: [(&str, &str, Of); 2] = [
            ("operation_bytes", "Bytes of operations that succeeded", |counted| counted.bytes),
            ("operation_errors", "Operations that failed", |counted| counted.errors),
        ];
        for (name, help, value) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, counted) in each() {
                counter(&mut metric.encode_family(&labels)?, value(counted))?;
            }
        }
        Ok(())
    }
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: &[(&str, u64)],
) -> Written {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in values {
        counter(&mut metric.encode_family(&[(label, *value)])?, *count)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a time to sixteen digits is enough")]
fn seconds_of(count: u64, per_second: f64) -> f64 {
    count as f64 / per_second
}

struct Latency<'a>(&'a Counted);

impl Latency<'_> {
    fn encode(&self, mut metric: MetricEncoder<'_>) -> Written {
        let bounds = BUCKETS_US.iter().map(|bound| seconds_of(*bound, 1e6));
        let bounds = bounds.chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.0.buckets).collect();
        let sum = seconds_of(self.0.nanoseconds, 1e9);
        metric.encode_histogram::<NoLabelSet>(sum, self.0.count(), &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn background() -> Background {
        let (class, waited_ms) = ("upload".to_owned(), 2500);
        let upload = BackgroundClass { class, bytes: 100, operations: 4, waited_ms };
        let (latency, latency_target) = (1.25, 1.05);
        Background { bytes_per_second: Some(9), latency, latency_target, classes: vec![upload] }
    }

    fn lease() -> Lease {
        Lease {
            node: String::new(),
            incarnation: String::new(),
            length_ms: 60_000,
            left_ms: 41_500,
            renewals: 9,
            missed: 1,
            note: None,
        }
    }

    fn kept() -> Kept {
        let unsent =
            AtRisk { bytes: 8192, blocks: 2, oldest_age_ms: Some(61_500), ..AtRisk::default() };
        Kept {
            id: weir_device::VolumeId([7; 16]),
            name: "detached".to_owned(),
            unsent: Some(unsent),
            is_unknown: false,
            reason: String::new(),
            is_quiet: false,
        }
    }

    fn holder() -> Holder {
        let (name, serial) = ("node".to_owned(), "01".to_owned());
        let [begins, expires] = [0, 99].map(std::time::Duration::from_secs);
        Holder { name, serial, begins, expires }
    }

    #[test]
    fn a_scrape_reads_as_openmetrics() {
        let mut counted = Counted { bytes: 8192, nanoseconds: 30_000, ..Counted::default() };
        (counted.buckets[0], counted.buckets[1]) = (1, 1);
        let operations = [counted, Counted::default(), Counted::default(), Counted::default()];
        let (exclusive, layers, log) = (None, Vec::new(), None);
        let snapshot = Snapshot { size: 1 << 40, clients: 2, exclusive, operations, layers, log };
        let scrape = Scrape {
            volumes: vec![("demo".to_owned(), Health::Degraded, snapshot)],
            replicas: vec![(
                "demo".to_owned(),
                ReplicaState { lag_bytes: 77, ..Default::default() },
            )],
            not_served: 1,
            // Two volumes that had one name: a series has their sum.
            kept: vec![kept(), kept()],
            store: StoreRequests { puts: 7, upload_wait_ms: 1500, ..StoreRequests::default() },
            limits: Limits { drain: true, ..Limits::default() },
            cache: CacheReport::default(),
            cache_counts: CacheCounts::default(),
            background: background(),
            lease: Some(lease()),
            certificates: vec![("server", holder())],
            frame_cache: 5,
            unused_buffers: 7,
            requests: 8,
            clients: NbdClients { connected: 2, most: 2048, most_of_one: 1024, refused: 3 },
            resident: 6,
            cpu_seconds: 1.5,
            uptime_seconds: 2.0,
            events: 3,
        };
        let mut registry = Registry::with_prefix("weir");
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "weir_store_requests_total{kind=\"put\"} 7",
            "weir_cache_fills_refused_total{limit=\"wear\"} 0",
            "weir_volume_size_bytes{volume=\"demo\"} 1099511627776.0",
            "weir_volume_health{volume=\"demo\"} 1.0",
            "weir_replica_lag_bytes{volume=\"demo\"} 77.0",
            "weir_operation_seconds_sum{volume=\"demo\",operation=\"read\"} 0.00003",
            "weir_operation_seconds_bucket{le=\"0.00002\",volume=\"demo\",operation=\"read\"} 1",
            "weir_operation_seconds_bucket{le=\"+Inf\",volume=\"demo\",operation=\"read\"} 2",
            "weir_operation_bytes_total{volume=\"demo\",operation=\"read\"} 8192",
            "weir_process_cpu_seconds_total 1.5",
            "weir_store_upload_wait_seconds_total 1.5",
            "weir_background_bytes_total{class=\"upload\"} 100",
            "weir_background_operations_total{class=\"upload\"} 4",
            "weir_background_wait_seconds_total{class=\"upload\"} 2.5",
            "weir_background_bytes_per_second 9.0",
            "weir_background_latency_ratio 1.25",
            "weir_background_latency_target_ratio 1.05",
            "weir_limit_drain 1.0",
            "weir_lease_length_seconds 60.0",
            "weir_lease_left_seconds 41.5",
            "weir_lease_renewals_total 9",
            "weir_lease_missed_total 1",
            "weir_volume_dirty_bytes{volume=\"detached\"} 16384.0",
            "weir_volume_dirty_blocks{volume=\"detached\"} 4.0",
            "weir_volume_oldest_dirty_seconds{volume=\"detached\"} 61.5",
            "weir_certificate_expires_seconds{role=\"server\",name=\"node\"} 99.0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        let series = || text.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0));
        let different: BTreeSet<&str> = series().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(different.len(), series().filter(|line| !line.starts_with('#')).count());
    }
}
