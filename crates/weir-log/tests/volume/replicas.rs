//! Replicas: at any moment the volume as of one root; cut off anywhere, they go on; promoted, they are volumes that
//! nobody else writes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use weir_device::{DeviceExt, ErrorKind, VolumeId};
use weir_log::catalog::{self, DeleteConsent, VolumeName};
use weir_log::format::object::ObjectVersion;
use weir_log::replica::{self, ReplicaStatus, ReplicateArgs, Replicator};
use weir_log::{
    CheckOptions, GivenUp, LeaseSettings, LogError, MemoryFrameCache, NodeLease, SnapshotView,
    Takeover, check,
};
use weir_store::{Chance, Fault, FaultPlan, Faults, Store};

use crate::support::{
    Host, LEASE, SIZE, expect_bytes, fill, filled, newest_manifest, pattern, read, run, write,
};

fn demo() -> VolumeName {
    VolumeName::new("demo").expect("valid")
}

/// A store elsewhere, and a host with replicators.
struct Elsewhere {
    store: Store,
    faults: Faults,
    host: Host,
    told: Rc<RefCell<ReplicaStatus>>,
}

impl Elsewhere {
    fn new(host: &Host) -> Self {
        let faults = Faults::new(7);
        let store = Store::open("memory://").expect("opens").with_faults(faults.clone());
        Self { store, faults, host: host.other(9), told: Rc::default() }
    }

    async fn try_begin(&self, source: &Host, node: u8) -> Result<Replicator, LogError> {
        self.try_begin_as(demo(), source, node).await
    }

    async fn try_begin_as(
        &self,
        name: VolumeName,
        source: &Host,
        node: u8,
    ) -> Result<Replicator, LogError> {
        let settings = LeaseSettings::of_length(LEASE);
        let (store, env) = (self.store.clone(), self.host.env.clone());
        let lease = NodeLease::start(store, &env, [node; 16], "replicator", settings);
        let told = Rc::clone(&self.told);
        Replicator::begin(ReplicateArgs {
            source: source.store.clone(),
            target: self.store.clone(),
            volume: source.id,
            name,
            env,
            keys: source.keys.clone(),
            lease,
            on_progress: Rc::new(move |status| *told.borrow_mut() = status.clone()),
        })
        .await
    }

    async fn begin(&self, source: &Host) -> Replicator {
        self.try_begin(source, 50).await.expect("begins")
    }

    /// What the replica shows, and what is wrong with it.
    async fn show(&self, volume: VolumeId) -> Vec<u8> {
        let of = (volume, &self.host.keys);
        let cache = Arc::new(MemoryFrameCache::new(256 << 10));
        let (env, patience) = (&self.host.env, Duration::from_secs(30));
        let view = SnapshotView::open_replica(&self.store, env, of, cache.into(), patience).await;
        let bytes = all_of(&view.expect("opens")).await;
        self.expect_whole(volume).await;
        bytes
    }

    async fn show_snapshot(&self, volume: VolumeId, name: &str) -> Vec<u8> {
        let cache = Arc::new(MemoryFrameCache::new(256 << 10));
        let (env, patience) = (&self.host.env, Duration::from_secs(30));
        let name = VolumeName::new(name).expect("valid");
        let of = (volume, &self.host.keys);
        let view = SnapshotView::open(&self.store, env, of, &name, cache.into(), patience).await;
        all_of(&view.expect("opens")).await
    }

    async fn expect_whole(&self, volume: VolumeId) {
        let report = check(
            &self.store,
            &self.host.env,
            (volume, &self.host.keys),
            &CheckOptions::default(),
            |_| {},
        )
        .await
        .expect("answers");
        assert_eq!((report.damage.len(), report.orphans.len()), (0, 0), "{report:?}");
    }

    /// The promoted volume, at a host of its own.
    fn host_of(&self, id: VolumeId) -> Host {
        let mut host = self.host.other(21);
        (host.store, host.open_store, host.id) = (self.store.clone(), self.store.clone(), id);
        host
    }

    async fn objects(&self, volume: VolumeId) -> usize {
        self.store.list(&format!("{volume}/log/"), None).await.expect("listed").len()
    }
}

async fn all_of(view: &SnapshotView) -> Vec<u8> {
    let mut bytes = vec![0xee; usize::try_from(view.size()).expect("small")];
    view.read(0, &mut bytes).await.expect("read");
    bytes
}

#[test]
fn a_replica_follows_from_root_to_root_with_its_snapshots_and_gives_up_what_it_does_not_need() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        let first = filled(&host, 1).await;
        let mut replicator = there.begin(&host).await;
        assert!(replicator.move_root().await.unwrap());
        assert!(!replicator.move_root().await.unwrap(), "nothing is new");
        assert!(there.show(host.id).await == first);
        let (volume, _) = host.open().await;
        volume.snapshot(&VolumeName::new("kept").unwrap()).await.unwrap();
        assert!(replicator.look().await.unwrap(), "a snapshot is new");
        let mut written = 0;
        for round in 2..10 {
            fill(&volume, round).await;
            written += SIZE;
            volume.flush_remote().await.unwrap();
        }
        let last = fill(&volume, 10).await;
        volume.close().await.unwrap();
        drop(volume);
        let before = replicator.status().sent_bytes;
        assert!(replicator.look().await.unwrap());
        assert!(replicator.status().lag_bytes > 0 && replicator.status().as_of.is_some());
        assert!(replicator.move_root().await.unwrap());
        let sent = replicator.status().sent_bytes - before;
        assert!(
            sent < written / 2,
            "{sent} of {written} bytes: what died between two roots is not sent"
        );
        assert!(there.show(host.id).await == last);
        assert!(there.show_snapshot(host.id, "kept").await == first);
        assert_eq!(replicator.status().lag_bytes, 0);
        assert_eq!(*there.told.borrow(), *replicator.status());
        let with_snapshot = there.objects(host.id).await;
        let (volume, _) = host.open().await;
        volume.delete_snapshot(&VolumeName::new("kept").unwrap()).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        assert!(replicator.move_root().await.unwrap(), "the snapshot goes at the replica too");
        assert!(there.objects(host.id).await < with_snapshot);
        assert!(there.show(host.id).await == last);
        let refused = there.host_of(host.id).try_open(|_| {}).await.unwrap_err();
        assert!(matches!(refused, LogError::Replica { .. }), "{refused}");
        assert!(refused.to_string().contains("weir volume promote demo"), "{refused}");
    });
}

/// Objects are copied as they are: whoever cannot read those of the source cannot read the replica's.
#[test]
fn a_replica_says_which_versions_the_objects_of_its_source_have() {
    run(async {
        let mut host = Host::new().await;
        let there = Elsewhere::new(&host);
        for (version, said) in
            [(ObjectVersion::V3, (Some(3), 4)), (ObjectVersion::V4, (Some(4), 5))]
        {
            host.options.object_version = version;
            filled(&host, said.1.into()).await;
            let mut replicator = there.begin(&host).await;
            assert!(replicator.move_root().await.unwrap());
            replicator.end().await.expect("ended");
            let manifest = newest_manifest(&there.host_of(host.id)).await;
            assert_eq!((manifest.object_version, manifest.format), said);
        }
    });
}

#[test]
fn cut_off_anywhere_the_replica_shows_a_root_and_the_next_run_goes_on() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        there.faults.change(|plan| {
            plan.latency = Duration::from_millis(1)..=Duration::from_millis(30);
            plan.lost_reply = Chance::percent(10);
            plan.put.server_error = Chance::percent(10);
            plan.delete.server_error = Chance::percent(20);
        });
        let mut shown: Vec<Vec<u8>> = Vec::new();
        for round in 0..6 {
            shown.push(filled(&host, round).await);
            let mut cuts = 0;
            loop {
                let patience = Duration::from_millis(20 + 37 * cuts);
                let work = async {
                    let mut replicator = there.begin(&host).await;
                    replicator.move_root().await.expect("moved");
                    replicator.end().await.expect("ended");
                };
                if timeout(patience, work).await.is_ok() {
                    break;
                }
                cuts += 1;
                // Its lease runs out: whoever comes next is admitted.
                tokio::time::sleep(LEASE * 2).await;
                there.faults.change(|plan| plan.lost_reply = Chance::NEVER);
                let cache = Arc::new(MemoryFrameCache::new(256 << 10));
                let patience = Duration::from_secs(30);
                let (store, env) = (&there.store, &there.host.env);
                let of = (host.id, &host.keys);
                match SnapshotView::open_replica(store, env, of, cache.into(), patience).await {
                    Ok(view) => assert!(shown.contains(&all_of(&view).await), "one root, whole"),
                    Err(LogError::NoReplica { .. } | LogError::Inconsistent { .. }) => {
                        assert_eq!(round, 0, "there was a root already");
                    }
                    Err(error) => panic!("{error}"),
                }
                there.faults.change(|plan| plan.lost_reply = Chance::percent(10));
            }
            assert!(cuts > 2, "cut off {cuts} times only");
            assert!(there.show(host.id).await == shown[shown.len() - 1]);
        }
    });
}

#[test]
fn a_second_replicator_is_refused_and_a_dead_one_is_waited_for() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        let data = filled(&host, 1).await;
        let first = there.begin(&host).await;
        let refused = there.try_begin(&host, 51).await.unwrap_err();
        assert!(
            matches!(&refused, LogError::InUse { node, .. } if node == "replicator"),
            "{refused}"
        );
        drop(first);
        let begun = Instant::now();
        let mut second = there.try_begin(&host, 51).await.unwrap();
        assert!(begun.elapsed() >= LEASE, "only after the whole lease");
        assert!(second.move_root().await.unwrap());
        second.end().await.unwrap();
        let begun = Instant::now();
        let mut third = there.try_begin(&host, 52).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "the second one ended");
        assert!(!third.move_root().await.unwrap());
        assert!(there.show(host.id).await == data);
    });
}

#[test]
fn a_promoted_replica_goes_on_by_itself_and_the_old_primary_changes_nothing() {
    run(async {
        let host = Host::encrypted().await;
        let there = Elsewhere::new(&host);
        let (volume, _) = host.open().await;
        let first = fill(&volume, 1).await;
        volume.snapshot(&VolumeName::new("before").unwrap()).await.unwrap();
        let data = fill(&volume, 2).await;
        volume.close().await.unwrap();
        drop(volume);
        let mut replicator = there.begin(&host).await;
        replicator.move_root().await.unwrap();
        let id = replica::promote(&there.store, &there.host.env, &demo()).await.unwrap();
        assert_ne!(id, host.id);
        assert_eq!(catalog::find(&there.store, &there.host.env, &demo()).await.unwrap(), id);
        let again = replica::promote(&there.store, &there.host.env, &demo()).await.unwrap();
        assert_eq!(again, id, "asked for again, it is done already");

        // The replicator still runs, and the primary comes back and goes on.
        filled(&host, 3).await;
        let refused = replicator.move_root().await.unwrap_err();
        assert!(matches!(refused, LogError::Promoted { to, .. } if to == id), "{refused}");
        let refused = there.try_begin(&host, 51).await.unwrap_err();
        assert!(matches!(refused, LogError::Promoted { .. }), "{refused}");

        let promoted = there.host_of(id);
        let (volume, report) = promoted.open().await;
        assert_eq!(report.committed_sequence, 0, "a stream of its own");
        expect_bytes(&volume, 0, &data).await;
        write(&volume, 5000, &[9; 3000]).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        there.expect_whole(id).await;
        assert!(there.show_snapshot(id, "before").await == first);

        let (volume, _) = promoted.open().await;
        expect_bytes(&volume, 5000, &[9; 3000]).await;
        expect_bytes(&volume, 8000, &data[8000..]).await;
        let mut last = Vec::new();
        for round in 30..36 {
            last = fill(&volume, round).await;
            volume.flush_remote().await.unwrap();
        }
        expect_bytes(&volume, 0, &last).await;
        volume.rollback(&VolumeName::new("before").unwrap()).await.unwrap();
        expect_bytes(&volume, 0, &first).await;
        volume.delete_snapshot(&VolumeName::new("before").unwrap()).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        let (volume, _) = promoted.open().await;
        expect_bytes(&volume, 0, &first).await;
        volume.close().await.unwrap();
        drop(volume);
        there.expect_whole(id).await;
    });
}

/// The reply to a PUT is lost, and the look at what is there then reads a wrong bit.
#[test]
fn a_bit_that_flips_on_the_way_does_not_stop_a_replicator() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        let mut replicator = there.begin(&host).await;
        for round in 1..20 {
            let data = filled(&host, round).await;
            there.faults.change(|plan| {
                plan.lost_reply = Chance::percent(50);
                plan.flipped_bit = Chance::percent(30);
            });
            replicator.move_root().await.expect("tried again");
            there.faults.calm();
            assert!(there.show(host.id).await == data);
        }
        let flipped = there.faults.counts().of(Fault::FlippedBit);
        assert!(flipped > 5, "{flipped} bits flipped");
    });
}

#[test]
fn a_promotion_cut_off_anywhere_is_the_same_one_when_asked_for_again() {
    run(async {
        for cut_ms in (1..200).step_by(9) {
            let host = Host::new().await;
            let there = Elsewhere::new(&host);
            let data = filled(&host, 1).await;
            let mut replicator = there.begin(&host).await;
            replicator.move_root().await.unwrap();
            there.faults.change(|plan| {
                plan.latency = Duration::from_millis(1)..=Duration::from_millis(20);
            });
            let env = &there.host.env;
            let name = demo();
            let promotion = replica::promote(&there.store, env, &name);
            let first =
                timeout(Duration::from_millis(cut_ms), promotion).await.ok().map(Result::unwrap);
            let id = replica::promote(&there.store, env, &demo()).await.unwrap();
            assert!(first.is_none_or(|first| first == id), "one volume, not two");
            let (volume, _) = there.host_of(id).open().await;
            expect_bytes(&volume, 0, &data).await;
        }
    });
}

#[test]
fn what_is_being_copied_stays_at_the_source_until_its_replicator_is_given_up() {
    run(async {
        let mut host = Host::new().await;
        host.options.replica_patience = Duration::from_secs(60);
        let there = Elsewhere::new(&host);
        let old = filled(&host, 1).await;
        let before = crate::support::objects(&host).await;
        // It dies in the middle of its first root.
        there.faults.change(|plan| {
            plan.latency = Duration::from_millis(500)..=Duration::from_millis(500);
        });
        let mut replicator = there.begin(&host).await;
        let cut = timeout(Duration::from_millis(1500), replicator.move_root()).await;
        assert!(cut.is_err(), "not done yet");
        let (volume, _) = host.open().await;
        fill(&volume, 2).await;
        volume.snapshot(&VolumeName::new("root").unwrap()).await.unwrap();
        let began = Instant::now();
        let repaired = volume.repair(&[], GivenUp::Error, |_| {}).await.unwrap();
        assert!(repaired.pending_deletions > 0, "{repaired:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "a repair does not wait for replicators");
        let now = crate::support::objects(&host).await;
        assert!(before.iter().all(|key| now.contains(key)), "the replicator may need them");
        tokio::time::sleep(Duration::from_secs(120)).await;
        let now = crate::support::objects(&host).await;
        assert!(!now.contains(&before[0]), "it is dead");
        assert_eq!(volume.status().pending_deletions, 0);
        there.faults.calm();
        let last = fill(&volume, 3).await;
        volume.close().await.unwrap();
        drop(volume);
        replicator.move_root().await.unwrap();
        assert!(there.show(host.id).await == last && old != last);
    });
}

#[test]
fn what_a_volume_is_asked_to_publish_is_at_the_replica_and_before_that_nothing_is_whole_there() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        let (volume, _) = host.open().await;
        // Too little for a checkpoint that the volume publishes by itself.
        let data = pattern(1, 5000);
        write(&volume, 0, &data).await.unwrap();
        volume.flush_remote().await.unwrap();
        let mut replicator = there.begin(&host).await;
        assert!(!replicator.look().await.unwrap(), "nothing is published");
        assert!(replicator.status().lag_bytes > 0 && replicator.status().as_of.is_none());
        let env = &there.host.env;
        let is_empty = async || {
            let listed = catalog::list(&there.store, env).await.unwrap().volumes;
            let of = (host.id, &there.host.keys);
            let checked = check(&there.store, env, of, &CheckOptions::default(), |_| {}).await;
            (listed[0].is_empty_replica, checked.unwrap().incomplete.is_some())
        };
        assert_eq!(is_empty().await, (true, true));
        volume.publish().await.unwrap();
        assert!(replicator.look().await.unwrap() && replicator.move_root().await.unwrap());
        assert!(there.show(host.id).await[..5000] == data);
        assert_eq!(is_empty().await, (false, false));
        volume.publish().await.unwrap();
        assert!(!replicator.look().await.unwrap(), "nothing is new");
    });
}

/// Writes the volume anew, until what it held before is collected; what it holds then.
async fn written_anew(host: &Host) -> Vec<u8> {
    let (volume, _) = host.open().await;
    let data = fill(&volume, 2).await;
    volume.snapshot(&VolumeName::new("root").expect("valid")).await.expect("taken");
    tokio::time::sleep(Duration::from_secs(60)).await;
    data
}

#[test]
fn a_root_that_is_collected_while_it_is_copied_gives_way_to_the_newest() {
    run(async {
        let mut host = Host::new().await;
        // Nobody waits for replicators.
        host.options.replica_patience = Duration::ZERO;
        let there = Elsewhere::new(&host);
        filled(&host, 1).await;
        there.faults.change(|plan| {
            plan.latency = Duration::from_secs(1)..=Duration::from_secs(1);
        });
        let mut replicator = there.begin(&host).await;
        let (moved, last) = futures_util::join!(replicator.move_root(), async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            written_anew(&host).await
        });
        assert!(moved.unwrap());
        assert!(replicator.status().restarts > 0);
        assert!(there.show(host.id).await == last);
    });
}

/// A store that did not find an object once is not taken for proof, after another one was collected, that objects are
/// lost.
#[test]
fn a_root_that_is_collected_after_its_store_did_not_find_an_object_gives_way_too() {
    run(async {
        let mut host = Host::new().await;
        // Nobody waits for replicators.
        host.options.replica_patience = Duration::ZERO;
        let there = Elsewhere::new(&host);
        filled(&host, 1).await;
        let objects = host.store.list(&format!("{}/log/", host.id), None).await.expect("listed");
        there.faults.change(|plan| {
            plan.latency = Duration::from_secs(1)..=Duration::from_secs(1);
        });
        let mut replicator = there.begin(&host).await;
        host.faults.hide(&objects[0].key);
        let (moved, last) = futures_util::join!(replicator.move_root(), async {
            while there.told.borrow().objects_to_copy == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            host.faults.heal(&objects[0].key);
            while there.told.borrow().restarts == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            written_anew(&host).await
        });
        assert!(moved.unwrap());
        assert!(replicator.status().restarts > 1);
        assert!(there.show(host.id).await == last);
    });
}

#[test]
fn damage_does_not_travel_and_a_store_that_fails_is_waited_for() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        let first = filled(&host, 1).await;
        let mut replicator = there.begin(&host).await;
        replicator.move_root().await.unwrap();
        let last = filled(&host, 2).await;
        let key = crate::support::objects(&host).await.pop().unwrap();
        for key in crate::support::objects(&host).await {
            host.faults.flip_bit(&key, 300);
        }
        let refused = replicator.move_root().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert!(there.show(host.id).await == first);
        for key in crate::support::objects(&host).await {
            host.faults.heal(&key);
        }
        host.faults.hide(&key);
        let refused = replicator.move_root().await.unwrap_err();
        assert!(refused.to_string().contains("missing"), "{refused}");
        host.faults.heal(&key);
        there.faults.change(|plan| plan.put.server_error = Chance::ALWAYS);
        let refused = replicator.move_root().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        there.faults.calm();
        replicator.move_root().await.unwrap();
        assert!(there.show(host.id).await == last);
    });
}

#[test]
fn a_promoted_volume_is_replicated_back_with_what_it_has_of_its_first_stream() {
    run(async {
        let host = Host::encrypted().await;
        let (there, back) = (Elsewhere::new(&host), Elsewhere::new(&host));
        let data = filled(&host, 1).await;
        let mut replicator = there.begin(&host).await;
        replicator.move_root().await.unwrap();
        let id = replica::promote(&there.store, &there.host.env, &demo()).await.unwrap();
        let promoted = there.host_of(id);
        // Before it has a checkpoint of its own, and after.
        let mut replicator = back.begin(&promoted).await;
        replicator.move_root().await.unwrap();
        assert!(back.show(id).await == data);
        let (volume, _) = promoted.open().await;
        write(&volume, 0, &[7; 9000]).await.unwrap();
        let expected = read(&volume, 0, data.len()).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        replicator.move_root().await.unwrap();
        assert!(back.show(id).await == expected);
        // A source that is gone ends it, and the replica stays.
        catalog::delete(
            &there.store,
            &there.host.env,
            &demo(),
            DeleteConsent::default(),
            |_, _| {},
        )
        .await
        .unwrap();
        let refused = replicator.move_root().await.unwrap_err();
        assert!(matches!(refused, LogError::Deleted { .. }), "{refused}");
        assert!(back.show(id).await == expected);
    });
}

#[test]
fn a_name_that_stands_for_another_volume_is_refused_before_anything_is_written() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        filled(&host, 1).await;
        catalog::create(&there.store, &there.host.env, &demo(), SIZE).await.unwrap();
        let refused = there.try_begin(&host, 50).await.unwrap_err();
        assert!(matches!(refused, LogError::Exists { .. }), "{refused}");
        let refused = replica::promote(&there.store, &there.host.env, &demo()).await.unwrap_err();
        assert!(matches!(refused, LogError::NoReplica { .. }), "{refused}");
        assert!(there.store.list(&format!("{}/", host.id), None).await.unwrap().is_empty());
    });
}

#[test]
fn a_publication_that_failed_does_not_end_a_replicator_whatever_became_of_it() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.snapshot(&VolumeName::new("first").expect("valid")).await.expect("taken");
        let there = Elsewhere::new(&host);
        let mut replicator = there.begin(&host).await;
        replicator.move_root().await.expect("moved");

        // The manifest is published, and nobody hears of it.
        volume.snapshot(&VolumeName::new("second").expect("valid")).await.expect("taken");
        let of_manifest = "/manifest/";
        let lose = |plan: &mut FaultPlan| {
            (plan.lost_reply, plan.lost_of) = (Chance::ALWAYS, of_manifest);
        };
        there.faults.change(lose);
        let error = replicator.move_root().await.expect_err("no answer");
        assert_ne!(error.kind(), ErrorKind::Fenced, "{error}");
        there.faults.calm();
        replicator.look().await.expect("looked");
        let third = fill(&volume, 3).await;
        volume.snapshot(&VolumeName::new("third").expect("valid")).await.expect("taken");
        replicator.move_root().await.expect("it goes on");
        assert!(there.show(host.id).await == third);

        // The next version comes only long after it was given up, and after the one that was meant to follow.
        let late = Duration::from_secs(300);
        there.faults.change(|plan| {
            (plan.late_put, plan.late_put_delay) = (Chance::ALWAYS, late..=late);
            plan.lost_of = of_manifest;
        });
        volume.snapshot(&VolumeName::new("fourth").expect("valid")).await.expect("taken");
        replicator.move_root().await.expect_err("no answer");
        there.faults.calm();
        tokio::time::sleep(2 * late).await;
        let fifth = fill(&volume, 5).await;
        volume.snapshot(&VolumeName::new("fifth").expect("valid")).await.expect("taken");
        replicator.move_root().await.expect("it goes on");
        assert!(there.show(host.id).await == fifth);

        // Another replicator is another one all the same.
        volume.snapshot(&VolumeName::new("sixth").expect("valid")).await.expect("taken");
        there.faults.change(lose);
        replicator.move_root().await.expect_err("no answer");
        there.faults.calm();
        tokio::time::sleep(10 * LEASE).await;
        drop(replicator);
        let other = there.try_begin(&host, 51).await.expect("the first one is dead");
        other.end().await.expect("ended");
        volume.close().await.expect("closed");
    });
}

/// What the replica of a clone shares with another replica of its store, and what it was promoted to reads.
#[test]
fn a_replica_whose_objects_another_one_reads_is_not_deleted() {
    run(async {
        let host = Host::new().await;
        let there = Elsewhere::new(&host);
        let data = filled(&host, 1).await;
        let (volume, _) = host.open().await;
        let (cut, clone) = ("cut", VolumeName::new("clone").unwrap());
        volume.snapshot(&VolumeName::new(cut).unwrap()).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        let from = (&demo(), &VolumeName::new(cut).unwrap());
        let (store, env) = (&host.store, &host.env);
        let id = catalog::create_clone(store, env, from, &clone, Takeover::Manual).await.unwrap();
        let of_clone = Host { id, ..host.other(7) };
        there.begin(&host).await.move_root().await.unwrap();
        let replicator = there.try_begin_as(clone.clone(), &of_clone, 51).await;
        replicator.unwrap().move_root().await.unwrap();

        let delete = async |name: &VolumeName| {
            let (store, env) = (&there.store, &there.host.env);
            catalog::delete(store, env, name, DeleteConsent::default(), |_, _| {}).await
        };
        let refused = delete(&demo()).await.unwrap_err();
        assert!(matches!(&refused, LogError::Dependants { clones, .. } if clones == "clone"));
        let id = replica::promote(&there.store, &there.host.env, &clone).await.unwrap();
        let refused = delete(&demo()).await.unwrap_err();
        assert!(matches!(&refused, LogError::Dependants { clones, .. } if clones == "clone"));
        let (volume, _) = there.host_of(id).open().await;
        expect_bytes(&volume, 0, &data).await;
        volume.close().await.unwrap();
        drop(volume);
        there.expect_whole(id).await;
        delete(&clone).await.unwrap();
        delete(&demo()).await.unwrap();
    });
}
