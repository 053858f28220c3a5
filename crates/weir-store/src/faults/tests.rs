use super::*;
use crate::{ATTEMPT_TIMEOUT, RetryPolicy, Store, StoreError};

fn faulty(seed: u64) -> (Store, Faults) {
    let faults = Faults::new(seed);
    (Store::open("memory://").expect("open").with_faults(faults.clone()), faults)
}

fn body() -> Vec<Bytes> {
    vec![Bytes::from((0..200).collect::<Vec<u8>>())]
}

/// A store that holds `o/k`, 200 bytes, put without faults.
async fn with_object(seed: u64) -> (Store, Faults) {
    let (store, faults) = faulty(seed);
    assert_eq!(store.put_create("o/k", body()).await.expect("put"), Put::Created);
    (store, faults)
}

#[tokio::test(start_paused = true)]
async fn each_operation_has_its_own_errors() {
    let always = |plan: &mut FaultPlan, kind: usize| {
        let faults = OperationFaults { server_error: Chance::ALWAYS, ..OperationFaults::default() };
        *[&mut plan.put, &mut plan.get, &mut plan.list, &mut plan.delete][kind] = faults;
    };
    for kind in 0..4 {
        let (store, faults) = with_object(1).await;
        faults.change(|plan| always(plan, kind));
        let results = [
            store.put_create("o/k", body()).await.err(),
            store.get("o/k").await.err(),
            store.list("", None).await.err(),
            store.delete("o/k").await.err(),
        ];
        for (index, result) in results.into_iter().enumerate() {
            let unavailable = matches!(result, Some(StoreError::Unavailable { .. }));
            assert_eq!((unavailable, result.is_some()), (index == kind, index == kind));
        }
        assert_eq!(faults.counts().of(Fault::ServerError), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn throttling_hanging_outage_and_silence_have_their_errors() {
    let (store, faults) = with_object(1).await;
    faults.change(|plan| plan.get.throttled = Chance::ALWAYS);
    let error = store.get("o/k").await.expect_err("throttled");
    assert!(matches!(error, StoreError::Throttled { .. }), "{error}");

    faults.calm();
    faults.change(|plan| plan.get.timeout = Chance::ALWAYS);
    let started = Instant::now();
    let error = store.get("o/k").await.expect_err("hangs");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    assert_eq!(started.elapsed(), ATTEMPT_TIMEOUT);

    faults.calm();
    faults.change(|plan| plan.outage = true);
    let error = store.list("", None).await.expect_err("outage");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");

    faults.calm();
    faults.change(|plan| plan.silence = true);
    let error = store.delete("o/k").await.expect_err("silence");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");

    faults.calm();
    store.get("o/k").await.expect("calm again, and the object was not deleted");
    for fault in [Fault::Throttled, Fault::TimedOut, Fault::Outage, Fault::Silence] {
        assert_eq!(faults.counts().of(fault), 1, "{fault:?}");
    }
    assert_eq!(store.counters().failures, 4);
}

#[tokio::test(start_paused = true)]
async fn short_bodies_are_caught_by_the_length_check() {
    let (store, faults) = with_object(7).await;
    faults.change(|plan| plan.short_body = Chance::ALWAYS);
    for error in [
        store.get_range("o/k", 10..20).await.expect_err("short"),
        store.get("o/k").await.expect_err("short"),
        store.get_head("o/k", 50).await.expect_err("short"),
    ] {
        let StoreError::Short { expected, got, object_bytes: 200, .. } = &error else {
            panic!("{error}");
        };
        assert!(got < expected);
        assert!(error.is_retryable(), "the object is long enough: {error}");
    }
    assert_eq!(faults.counts().of(Fault::ShortBody), 3);

    faults.change(|plan| plan.short_body = Chance::percent(50));
    let mut dice = Dice(1);
    let policy = RetryPolicy::reads();
    let read = || store.get_range("o/k", 10..20);
    for _ in 0..20 {
        let bytes =
            store.retry(&policy, &mut || dice.next(), None, read).await.expect("in the end");
        assert_eq!(bytes, (10..20).collect::<Vec<u8>>());
    }
    let counters = store.counters();
    assert!(counters.retries > 0);
    assert_eq!(counters.retries, faults.counts().of(Fault::ShortBody) - 3);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_shows_as_exists_on_the_second_attempt() {
    let (store, faults) = faulty(1);
    faults.change(|plan| plan.lost_reply = Chance::ALWAYS);
    let error = store.put_create("o/k", body()).await.expect_err("lost");
    assert!(error.is_retryable(), "{error}");
    faults.calm();
    assert_eq!(store.put_create("o/k", body()).await.expect("put"), Put::Exists);

    faults.change(|plan| plan.lost_reply = Chance::ALWAYS);
    store.delete("o/k").await.expect_err("lost");
    faults.calm();
    store.get("o/k").await.expect_err("deleted all the same");
    assert_eq!(faults.counts().of(Fault::LostReply), 2);
}

#[tokio::test(start_paused = true)]
async fn a_late_put_appears_after_its_caller_got_an_error() {
    let (store, faults) = faulty(3);
    let delay = Duration::from_secs(10);
    faults.change(|plan| {
        plan.late_put = Chance::ALWAYS;
        plan.late_put_delay = delay..=delay;
    });
    store.put_create("o/k", body()).await.expect_err("late");
    faults.calm();
    tokio::time::advance(delay - Duration::from_millis(1)).await;
    assert!(store.list("", None).await.expect("list").is_empty());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(store.list("", None).await.expect("list").len(), 1);
    assert_eq!(store.get("o/k").await.expect("get"), body().concat());
    assert_eq!(faults.counts().of(Fault::LatePutLanded), 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_put_never_replaces_an_object() {
    let (store, faults) = faulty(3);
    faults.change(|plan| plan.late_put = Chance::ALWAYS);
    store.put_create("o/k", body()).await.expect_err("late");
    faults.calm();
    let other = vec![Bytes::from_static(b"other")];
    assert_eq!(store.put_create("o/k", other).await.expect("put"), Put::Created);
    faults.land_late_puts().await;
    assert_eq!(store.get("o/k").await.expect("get"), b"other"[..]);
    assert_eq!(faults.counts().of(Fault::LatePutRefused), 1);
}

#[tokio::test(start_paused = true)]
async fn a_put_whose_node_crashed_or_gave_up_waiting_may_happen_later() {
    let (store, faults) = faulty(3);
    let second = Duration::from_secs(1);
    faults.change(|plan| {
        plan.latency = second..=second;
        plan.late_put = Chance::ALWAYS;
    });
    // A crash: the future is dropped on its way to the store.
    let crashed = store.put_create("o/crashed", body());
    tokio::time::timeout(Duration::from_nanos(1), crashed).await.expect_err("still on its way");
    // A timeout in silence.
    faults.change(|plan| plan.silence = true);
    let error = store.put_create("o/silent", body()).await.expect_err("silence");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    faults.calm();
    assert_eq!(faults.late_puts(), 2);
    faults.land_late_puts().await;
    assert_eq!(store.list("o/", None).await.expect("list").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_put_dropped_while_its_reply_travels_is_done() {
    let (store, faults) = faulty(5);
    let second = Duration::from_secs(1);
    faults.change(|plan| plan.latency = second..=second);
    let (mut done, mut undone) = (0, 0);
    for number in 0..100 {
        let key = format!("o/{number}");
        let put = store.put_create(&key, body());
        tokio::time::timeout(second / 2, put).await.expect_err("takes a second");
        match store.get(&key).await {
            Ok(_) => done += 1,
            Err(_) => undone += 1,
        }
    }
    assert!(done > 20 && undone > 20, "done {done}, undone {undone}");
}

#[tokio::test(start_paused = true)]
async fn bits_flip_where_they_were_told_to() {
    let (store, faults) = with_object(1).await;
    faults.flip_bit("o/k", 100);
    let mut wrong = body().concat();
    wrong[100] ^= 1;
    assert_eq!(store.get("o/k").await.expect("get"), wrong);
    assert_eq!(store.get_range("o/k", 90..101).await.expect("get"), wrong[90..101]);
    assert_eq!(store.get_range("o/k", 0..100).await.expect("get"), wrong[..100]);
    assert_eq!(store.get_range("o/k", 101..200).await.expect("get"), wrong[101..]);
    assert_eq!(faults.counts().of(Fault::FlippedBit), 2);
    faults.heal("o/k");
    assert_eq!(store.get("o/k").await.expect("get"), body().concat());

    faults.change(|plan| plan.flipped_bit = Chance::ALWAYS);
    for _ in 0..50 {
        let bytes = store.get_range("o/k", 20..60).await.expect("get");
        let bits: u32 = bytes.iter().zip(20..60_u8).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(bits, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn hidden_objects_are_not_found_but_keep_their_key() {
    let (store, faults) = with_object(1).await;
    faults.hide("o/k");
    for error in [
        store.get("o/k").await.expect_err("hidden"),
        store.get_range("o/k", 0..1).await.expect_err("hidden"),
        store.get_head("o/k", 1).await.expect_err("hidden"),
    ] {
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
    }
    assert_eq!(store.put_create("o/k", body()).await.expect("put"), Put::Exists);
    assert_eq!(faults.counts().of(Fault::MissingKey), 3);
}

#[tokio::test(start_paused = true)]
async fn stale_lists_leave_out_only_what_is_new() {
    let (store, faults) = with_object(9).await;
    faults.change(|plan| plan.stale_list = Chance::ALWAYS);
    tokio::time::advance(Duration::from_secs(11)).await;
    store.put_create("o/new", body()).await.expect("put");
    let mut lengths = [0; 3];
    for _ in 0..20 {
        tokio::time::advance(Duration::from_millis(200)).await;
        let listed = store.list("o/", None).await.expect("list");
        assert_eq!(listed[0].key, "o/k", "the old object is always there");
        lengths[listed.len()] += 1;
    }
    assert!(lengths[1] > 0 && lengths[2] > 0, "{lengths:?}");
    assert_eq!(faults.counts().of(Fault::StaleList), lengths[1]);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(store.list("o/", None).await.expect("list").len(), 2);
}

/// Everything at once, twice from one seed and once from another.
#[tokio::test(start_paused = true)]
async fn the_same_seed_misbehaves_in_the_same_way() {
    let run = async |seed| {
        let (store, faults) = faulty(seed);
        faults.keep_trace(300);
        faults.change(|plan| {
            let some = Chance::percent(5);
            let operation = OperationFaults { server_error: some, throttled: some, timeout: some };
            *plan = FaultPlan {
                latency: Duration::from_millis(1)..=Duration::from_millis(500),
                put: operation.clone(),
                get: operation.clone(),
                list: operation.clone(),
                delete: operation,
                lost_reply: some,
                late_put: some,
                short_body: some,
                flipped_bit: some,
                missing_key: some,
                stale_list: Chance::percent(50),
                ..FaultPlan::default()
            };
        });
        let mut dice = Dice(99);
        for _ in 0..2000 {
            let key = format!("o/{}", dice.below(40));
            // What comes of it is in the trace.
            let _ = match dice.below(5) {
                0 | 1 => store.put_create(&key, body()).await.err(),
                2 => store.get_range(&key, 3..100).await.err(),
                3 => store.list("o/", None).await.err(),
                _ => store.delete(&key).await.err(),
            };
        }
        (faults.trace(), faults.counts())
    };
    let (first, counts) = run(1).await;
    assert_eq!(first.len(), 300);
    assert_eq!((first.clone(), counts.clone()), run(1).await);
    assert_ne!(first, run(2).await.0);
    for (fault, count) in counts.iter() {
        let by_chance = !matches!(fault, Fault::Outage | Fault::Silence);
        assert_eq!(count > 0, by_chance, "{}", fault.name());
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_by_chance_does_so_no_more_often_in_a_row_than_the_plan_says() {
    let (store, faults) = with_object(1).await;
    faults.change(|plan| {
        plan.in_a_row_max = Some(2);
        plan.get.server_error = Chance::ALWAYS;
        plan.lost_reply = Chance::ALWAYS;
    });
    for turn in 0..2 {
        for _ in 0..2 {
            let error = store.get("o/k").await.expect_err("by chance");
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
            store.put_create("o/l", body()).await.expect_err("its reply is lost");
        }
        store.get("o/k").await.expect("the third one is answered");
        let put = store.put_create("o/l", body()).await.expect("so is this one");
        assert_eq!(put, Put::Exists, "turn {turn}: it was done, only its reply was lost");
    }
    faults.change(|plan| plan.outage = true);
    for _ in 0..4 {
        store.get("o/k").await.expect_err("an outage is not chance");
    }
}
