use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::time::{Duration, sleep};

use super::*;
use crate::backend::{Backend, Got, Listed, Reply};
use crate::{Chance, Faults, OperationFaults};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    IgnoresCondition,
    LooksThenCreates,
    StaleListing,
    WrongRange,
    KeepsDeleted,
}

/// A store with a fault. It takes some time, so that what runs at the same time meets.
#[derive(Debug)]
struct Bad {
    fault: Fault,
    inner: Store,
    listings: AtomicU64,
    puts: AtomicU64,
}

impl Bad {
    async fn put(&self, key: &str, parts: Vec<Bytes>) -> Result<Put, StoreError> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        let there = self.inner.get(key).await.is_ok();
        sleep(Duration::from_millis(1)).await;
        match (self.fault, there) {
            (Fault::IgnoresCondition, _) | (Fault::LooksThenCreates, false) => {
                self.inner.delete(key).await?;
                self.inner.put_create(key, parts).await
            }
            _ => self.inner.put_create(key, parts).await,
        }
    }
}

impl Backend for Bad {
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put> {
        Box::pin(self.put(key, parts))
    }

    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got> {
        Box::pin(async move {
            let bytes = self.inner.get(key).await?;
            let object_bytes = u64::try_from(bytes.len()).expect("small");
            let mut range = crate::backend::clamp(range, object_bytes);
            if self.fault == Fault::WrongRange && range.start > 0 {
                range = range.start - 1..range.end - 1;
            }
            let at = |offset: u64| usize::try_from(offset).expect("small");
            Ok(Got { bytes: bytes.slice(at(range.start)..at(range.end)), object_bytes })
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        Box::pin(async move {
            let mut listed = self.inner.list(prefix, after).await?;
            if self.fault == Fault::StaleListing
                && self.listings.fetch_add(1, Ordering::Relaxed) % 2 == 1
            {
                listed.pop();
            }
            Ok(listed)
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            match self.fault {
                Fault::KeepsDeleted => Ok(()),
                _ => self.inner.delete(key).await,
            }
        })
    }

    fn identity(&self) -> String {
        format!("{:?}", self.fault)
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

fn store(fault: Fault, single_writer: bool) -> (Store, Arc<Bad>) {
    let inner = Store::open("memory://").expect("open");
    let (listings, puts) = (AtomicU64::new(0), AtomicU64::new(0));
    let bad = Arc::new(Bad { fault, inner, listings, puts });
    (Store::on(Arc::clone(&bad) as Arc<dyn Backend>, single_writer), bad)
}

fn random() -> impl FnMut() -> u64 + Send {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 7
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_store_passes_and_nothing_stays_behind() {
    let (store, bad) = store(Fault::None, false);
    let report = store.probe(&mut random()).await.expect("probe");
    assert_eq!((report.verdict, report.left_behind), (Verdict::Usable, 0), "{report:?}");
    assert_eq!(report.finding(), None);
    assert_eq!(report.checks.len(), 5);
    assert_eq!(bad.inner.list("", None).await.expect("list"), []);
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_found_and_named() {
    for (fault, name, verdict) in [
        (Fault::IgnoresCondition, checks::CREATE, Verdict::SingleWriter),
        (Fault::LooksThenCreates, checks::RACE, Verdict::SingleWriter),
        (Fault::StaleListing, "listing", Verdict::Unusable),
        (Fault::WrongRange, "ranges", Verdict::Unusable),
        (Fault::KeepsDeleted, "delete", Verdict::Unusable),
    ] {
        let (store, _) = store(fault, false);
        let report = store.probe(&mut random()).await.expect("probe");
        assert_eq!(report.verdict, verdict, "{fault:?} {report:?}");
        let failed = report.checks.iter().find(|check| !check.passed).expect("a failed check");
        assert_eq!(failed.name, name, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_not_taken_for_a_bad_one() {
    let (store, _) = store(Fault::None, false);
    let faults = Faults::new(7);
    faults.change(|plan| {
        let often = OperationFaults { server_error: Chance::percent(20), ..Default::default() };
        plan.put = often.clone();
        plan.get = often.clone();
        plan.list = often;
        plan.lost_reply = Chance::percent(20);
    });
    let report = store.with_faults(faults).probe(&mut random()).await.expect("probe");
    assert_eq!(report.verdict, Verdict::Usable, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_opening_probes_and_the_others_remember() {
    let (store, bad) = store(Fault::None, false);
    store.admit(Access::Read, &mut random()).await.expect("readable");
    assert_eq!(bad.inner.list("", None).await.expect("list"), [], "a look leaves nothing");
    store.admit(Access::Write, &mut random()).await.expect("usable");
    let listed = bad.inner.list("", None).await.expect("list");
    assert_eq!(listed.len(), 1, "{listed:?}");
    let puts = bad.puts.load(Ordering::Relaxed);
    store.admit(Access::Write, &mut random()).await.expect("usable");
    assert_eq!(bad.puts.load(Ordering::Relaxed), puts, "probed again");

    // What is no record, or another store's, is not believed.
    let key = &listed[0].key;
    bad.inner.delete(key).await.expect("delete");
    let other = ProbeRecord::new("elsewhere".to_owned(), Verdict::Usable, None).encode();
    bad.inner.put_create(key, vec![other.into()]).await.expect("put");
    store.admit(Access::Write, &mut random()).await.expect("usable");
    assert!(bad.puts.load(Ordering::Relaxed) > puts, "believed");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lets_two_writers_win_is_refused_unless_there_is_one() {
    let (store, bad) = store(Fault::LooksThenCreates, false);
    for _ in 0..2 {
        let error = store.admit(Access::Write, &mut random()).await.expect_err("refused");
        assert!(matches!(error, StoreError::Unsafe { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("racing writers") && text.contains("--single-writer"), "{text}");
    }
    store.admit(Access::Read, &mut random()).await.expect("readable");
    let alone = Store::on(bad, true);
    alone.admit(Access::Write, &mut random()).await.expect("a single writer");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_loses_data_is_refused_in_any_mode_and_probed_again() {
    let (store, bad) = store(Fault::WrongRange, true);
    for _ in 0..2 {
        let puts = bad.puts.load(Ordering::Relaxed);
        let error = store.admit(Access::Write, &mut random()).await.expect_err("refused");
        assert!(error.to_string().contains("lose data"), "{error}");
        assert!(bad.puts.load(Ordering::Relaxed) > puts, "a bad verdict is not remembered");
    }
}
