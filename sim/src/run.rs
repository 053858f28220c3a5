//! One seed, from its number to its verdict.

use std::collections::BTreeMap;

use crate::disk_cache::DiskCache;
use crate::duo::Duo;
use crate::node::Node;
use crate::remote::{self, Outcome, REMOTE};
use crate::world::World;

/// What became of a seed.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) seed: u64,
    pub(crate) nodes: u64,
    /// The rule that was broken, if one was.
    pub(crate) violation: Option<String>,
    /// The last events before it.
    pub(crate) tail: String,
    /// Differs when anything that was noted differs.
    pub(crate) hash: u64,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) operations: u64,
    pub(crate) crashes: u64,
    pub(crate) store_faults: u64,
}

/// The flag that asks for runs of a kind: so many nodes, or remote volumes.
pub(crate) fn flag(nodes: u64) -> String {
    match nodes {
        REMOTE => "--remote".to_owned(),
        nodes => format!("--nodes={nodes}"),
    }
}

/// Whether a seed, with one node, has a band cache on its disk.
pub(crate) fn has_disk_cache(seed: u64) -> bool {
    DiskCache::new(seed, &World::new(seed, 1)).is_used()
}

/// Runs a seed on this thread.
pub(crate) fn run(seed: u64, nodes: u64) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the system");
    if nodes == REMOTE {
        let Outcome { events, violation, operations } = runtime.block_on(remote::run(seed));
        let crashes = events.counts.iter().filter(|(what, _)| what.starts_with("server "));
        return Verdict {
            seed,
            nodes,
            tail: if violation.is_some() { events.tail() } else { String::new() },
            violation,
            hash: events.hash(),
            crashes: crashes.map(|(_, count)| count).sum(),
            counts: events.counts,
            operations,
            store_faults: 0,
        };
    }
    runtime.block_on(async move {
        weir_seal::audit::begin();
        let world = World::new(seed, nodes);
        let stopped = match nodes {
            2 => Duo::new(world.clone(), seed).run().await.is_err(),
            _ => Box::pin(Node::new(world.clone(), seed).run()).await.is_err(),
        };
        assert!(stopped == world.is_violated(), "a run stops early exactly at a violation");
        verdict(seed, nodes, &world)
    })
}

fn verdict(seed: u64, nodes: u64, world: &World) -> Verdict {
    let mut events = world.events.borrow_mut();
    let mut store_faults = 0;
    for (fault, count) in world.faults.counts().iter() {
        events.count(fault.name(), count);
        store_faults += count;
    }
    for disk in &world.disks {
        let counters = disk.counters();
        events.count("disk: reads", counters.reads);
        events.count("disk: writes", counters.writes);
        events.count("disk: writes failed", counters.writes_failed);
        events.count("disk: syncs", counters.syncs);
        events.count("disk: syncs failed", counters.syncs_failed);
        events.count("disk: writes in flight lost in a crash", counters.in_flight_lost);
        events.count("disk: writes in flight torn in a crash", counters.in_flight_torn);
        events.count("disk: writes that outlived their process", counters.late_writes);
        events.count("disk: looks at a journal that such a write locks", counters.lock_waits);
        events.count("disk: unsynced writes kept", counters.writes_kept);
        events.count("disk: unsynced writes lost", counters.writes_lost);
        events.count("disk: unsynced writes torn", counters.writes_torn);
    }
    let crashes = events.counts.iter().filter(|(what, _)| what.starts_with("crash: "));
    let crashes = crashes.map(|(_, count)| count).sum();
    let (sealed, again) = weir_seal::audit::seen();
    events.count("seal: texts", sealed as u64);
    let twice = (again > 0).then(|| format!("{again} nonces sealed two texts"));
    let violation = world.violation().map(|violation| violation.0).or(twice);
    Verdict {
        seed,
        nodes,
        tail: if violation.is_some() { events.tail() } else { String::new() },
        violation,
        hash: events.hash(),
        counts: events.counts.clone(),
        operations: world.operations.get(),
        crashes,
        store_faults,
    }
}
