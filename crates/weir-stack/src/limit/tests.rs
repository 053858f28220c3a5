//! The limit on a clock that stands still while anybody can do something.

use std::cell::RefCell;

use tokio::task::{LocalSet, spawn_local};
use weir_device::{
    DeviceExt, FlushScope, MemoryDevice, Segment, SharedBuf, SourceId, VolumeId, conformance,
};

use super::*;

fn limited(iops: Option<u64>, bytes: Option<u64>, burst_ms: u64) -> LimitSettings {
    LimitSettings::checked(iops, bytes, Some(Duration::from_millis(burst_ms))).expect("valid")
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(36_000), test).await.expect("nobody is forgotten");
    });
}

/// Requests of `bytes` each that pass within `time`, by a client with one after the other.
async fn passed(rate: &Rate, bytes: u64, time: Duration) -> u64 {
    let until = Instant::now() + time;
    let mut count = 0;
    while tokio::time::timeout_at(until, rate.pass(1, bytes)).await.is_ok() {
        count += 1;
    }
    count
}

/// The operations of the suite, as a client would make them.
struct AsClient<D>(D);

impl<D: Device> Device for AsClient<D> {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let io = IoHeader::of_client(SourceId(1), VolumeId([1; 16]));
        self.0.call(io, operation).await
    }
}

#[test]
fn a_limited_device_conforms_and_holds_up() {
    run(async {
        for seed in 0..4 {
            let rate = Rc::new(Rate::new(limited(Some(50), Some(1 << 20), 20)));
            let limit = Limit::new(MemoryDevice::new(300_001), Rc::clone(&rate));
            conformance::run(&AsClient(limit), seed, 200).await;
            assert!(rate.delayed() > 50 && rate.waiting() == 0, "{}", rate.delayed());
        }
    });
}

#[test]
fn the_rate_is_kept_over_ten_seconds_and_the_burst_passes_at_once() {
    run(async {
        let ten = Duration::from_secs(10);
        for (iops, burst_ms) in [(1, 1000), (7, 500), (100, 100), (1000, 10), (25_000, 100)] {
            let rate = Rate::new(limited(Some(iops), None, burst_ms));
            let begun = Instant::now();
            let at_once = passed(&rate, 4096, Duration::ZERO).await;
            let burst = (iops * burst_ms / 1000).max(1);
            assert_eq!(at_once, burst, "{iops} per second, a burst of {burst_ms} ms");
            let later = passed(&rate, 4096, begun + ten - Instant::now()).await;
            let off = later.abs_diff(iops * 10);
            assert!(off * 100 <= iops * 10 * 2 || off <= 1, "{iops}: {later} in ten seconds");
            // After a pause it is there again, and no more than it.
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert_eq!(passed(&rate, 4096, Duration::ZERO).await, burst);
        }
    });
}

#[test]
fn a_request_larger_than_the_burst_passes_and_the_next_one_waits_for_what_it_owes() {
    run(async {
        let rate = Rate::new(limited(None, Some(1 << 20), 100));
        let begun = Instant::now();
        rate.pass(1, 32 << 20).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        rate.pass(1, 1).await;
        // 32 s of debt, less the burst.
        let waited = begun.elapsed().as_millis();
        assert!((31_900..31_910).contains(&waited), "{waited} ms");
    });
}

#[test]
fn a_change_counts_at_once_for_those_who_wait() {
    run(async {
        let rate = Rc::new(Rate::new(limited(Some(1), Some(10), 1000)));
        rate.pass(1, 36_000).await;
        let order = Rc::new(RefCell::new(Vec::new()));
        let waiting: Vec<_> = (0..20)
            .map(|nth| {
                let (rate, order) = (Rc::clone(&rate), Rc::clone(&order));
                spawn_local(async move {
                    rate.pass(1, 100).await;
                    order.borrow_mut().push(nth);
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((rate.waiting(), rate.delayed()), (20, 20));
        // Those given up leave nothing behind, the first one included.
        for nth in [0, 7] {
            waiting[nth].abort();
        }
        tokio::task::yield_now().await;
        assert_eq!(rate.waiting(), 18);
        let begun = Instant::now();
        // 35,890 bytes are owed: a second at the new rate. The burst is used.
        rate.set(limited(None, Some(35_890), 100));
        for (nth, task) in waiting.into_iter().enumerate() {
            assert_eq!(task.await.is_ok(), ![0, 7].contains(&nth));
        }
        let waited = begun.elapsed().as_millis();
        assert!((980..1060).contains(&waited), "{waited} ms");
        assert_eq!(*order.borrow(), (1..20).filter(|n| *n != 7).collect::<Vec<_>>(), "in order");
        rate.pass(1, 1 << 40).await;
        let task = {
            let rate = Rc::clone(&rate);
            spawn_local(async move { rate.pass(1, 1).await })
        };
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        rate.set(LimitSettings::default());
        task.await.expect("passes");
        assert_eq!(begun.elapsed(), Duration::ZERO, "nothing is limited any more");
    });
}

#[test]
fn a_burst_that_was_used_is_not_owed_at_a_lower_rate() {
    run(async {
        // Half of it, and a tenth of the rate.
        let rate = Rate::new(limited(Some(1000), None, 60_000));
        rate.pass(30_000, 0).await;
        let begun = Instant::now();
        rate.set(limited(Some(100), None, 60_000));
        rate.pass(1, 0).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // The other half is there, and no more than it.
        assert_eq!(passed(&rate, 0, Duration::ZERO).await, 2999);
        // All of a burst, and a shorter one: the next one comes at the new rate.
        rate.set(limited(Some(10), None, 1000));
        let begun = Instant::now();
        rate.pass(1, 0).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(100));
    });
}

#[test]
fn a_large_request_has_its_turn_though_small_ones_keep_coming() {
    run(async {
        let rate = Rc::new(Rate::new(limited(None, Some(1000), 1000)));
        rate.pass(1, 500).await;
        let (begun, small) = (Instant::now(), Rc::clone(&rate));
        // Each of them alone would find what it needs, and all of it would never be there at once.
        let others = spawn_local(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                small.pass(1, 100).await;
            }
        });
        let large = tokio::time::timeout(Duration::from_secs(60), rate.pass(1, 1000));
        large.await.expect("it has its turn");
        assert_eq!(begun.elapsed().as_millis().div_ceil(10), 50, "when all of it was there");
        others.abort();
    });
}

#[test]
fn flushes_and_what_comes_from_inside_are_never_held_up() {
    run(async {
        let rate = Rc::new(Rate::new(limited(Some(1), Some(1), 100)));
        rate.pass(1, 1 << 30).await;
        let limit = Limit::new(MemoryDevice::new(1 << 20), Rc::clone(&rate));
        let begun = Instant::now();
        limit.write(0, SharedBuf::copy_of(&[1; 4096])).await.expect("of the process itself");
        let client = AsClient(limit);
        client.flush(FlushScope::Store).await.expect("flushed");
        client.extents(0, 4096, 1).await.expect("reported");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        rate.set(limited(Some(10), None, 100));
        let change = |change| Segment { offset: 0, change };
        let segments = vec![
            change(Change::Data(SharedBuf::copy_of(&[1; 512]))),
            change(Change::Zeroes(1 << 20)),
            change(Change::Discard(1 << 20)),
        ];
        let batch = Operation::Batch { segments, fua: true };
        assert_eq!(cost(&batch), (3, 512));
        client.internal(batch).await.expect("written");
        client.discard(0, 1 << 20).await.expect("given up");
        let waited = begun.elapsed().as_millis();
        // One operation was owed, and each piece of the batch counts.
        assert!((400..=402).contains(&waited), "{waited} ms");
    });
}

#[test]
fn what_lets_nothing_through_is_refused() {
    for (iops, bytes, burst, why) in [
        (Some(0), None, None, "0 operations per second"),
        (None, Some(0), None, "0 bytes per second"),
        (Some(1), None, Some(Duration::from_millis(9)), "a burst of 0.009 s is none of 0.01"),
        (Some(1), None, Some(Duration::from_secs(3601)), "to 3600 s"),
    ] {
        let error = LimitSettings::checked(iops, bytes, burst).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(LimitSettings::checked(None, None, None).expect("none").is_unlimited());
}
