//! Verbs go through every stage: nothing acknowledged is missed, nobody waits for ever, everybody hears of it.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};
use weir_device::{Device, DeviceExt, ErrorKind, Event, FlushScope, IoHeader, Operation};
use weir_device::{SourceId, VolumeId};
use weir_log::{Closed, MemoryFrameCache};
use weir_stack::{EndpointSpec, LimitSettings, QUIESCE_MAX, Stack, StackSpec, StageSpec, ViewArgs};

use crate::split::splitter;
use crate::support::{Host, SIZE, in_memory, name, read, run, write};
use crate::write_back::{Knobs, write_back};

const CLOSE: Duration = Duration::from_secs(60);

fn next_event(stack: &Stack) -> Option<Event> {
    poll_fn(|cx| stack.poll_event(cx)).now_or_never()
}

/// Opens a snapshot on another host.
async fn view(host: &Host, snapshot: &str) -> Rc<Stack> {
    let args = ViewArgs {
        store: host.store.clone(),
        id: host.id,
        keys: weir_log::Keys::default(),
        blocks: std::sync::Arc::new(MemoryFrameCache::new(256 << 10)).into(),
        read_deadline: Duration::from_secs(1),
    };
    let spec = StackSpec::plain(EndpointSpec::Snapshot(args, name(snapshot)));
    Stack::open(&host.env, spec).await.expect("there is one").0
}

/// Writes blocks one after the other, for ever, and counts those that were acknowledged.
fn writer(stack: &Rc<Stack>, pause: Duration) -> (Rc<Cell<u64>>, tokio::task::JoinHandle<()>) {
    let (count, stack) = (Rc::new(Cell::new(0)), Rc::clone(stack));
    let counted = Rc::clone(&count);
    let task = spawn_local(async move {
        while counted.get() * 4096 < SIZE {
            write(&stack, counted.get() * 4096, 5).await.expect("written");
            counted.set(counted.get() + 1);
            sleep(pause).await;
        }
    });
    (count, task)
}

#[test]
fn a_snapshot_has_what_a_stage_had_not_written_yet_and_is_a_prefix() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let stack = host.open(vec![write_back(&knobs)]).await;
        knobs.pause.set(Duration::from_millis(20));
        let (count, task) = writer(&stack, Duration::from_millis(10));
        sleep(Duration::from_millis(500)).await;
        assert!(knobs.dirty_bytes() > 0);
        let acknowledged = count.get();
        stack.snapshot(&name("one"), QUIESCE_MAX).await.expect("taken");
        assert!(!stack.is_quiesced());
        let at_most = count.get();
        task.await.expect("the writer went on");
        let shown = view(&host, "one").await;
        let mut blocks = Vec::new();
        for block in 0..SIZE / 4096 {
            blocks.push(read(&shown, block * 4096).await.expect("read"));
        }
        let prefix = blocks.iter().take_while(|byte| **byte == 5).count() as u64;
        assert!(blocks[usize::try_from(prefix).unwrap()..].iter().all(|byte| *byte == 0));
        assert!((acknowledged..=at_most).contains(&prefix), "{acknowledged} {prefix} {at_most}");
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn a_snapshot_that_takes_too_long_is_given_up_and_operations_go_on() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let stack = host.open(vec![write_back(&knobs)]).await;
        // While some is written, five times as much becomes dirty.
        knobs.pause.set(Duration::from_millis(500));
        let (count, task) = writer(&stack, Duration::from_millis(100));
        sleep(Duration::from_secs(1)).await;
        let error = stack.snapshot(&name("slow"), Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(!stack.is_quiesced() && stack.snapshots().is_empty());
        let before = count.get();
        sleep(Duration::from_secs(1)).await;
        assert!(count.get() > before, "the writer goes on");
        // The store goes away in the middle of the cut.
        knobs.pause.set(Duration::ZERO);
        task.await.expect("written");
        stack.drain().await.expect("written");
        stack.flush(FlushScope::Store).await.expect("stored");
        let (faults, answer) = (host.faults.clone(), Duration::from_millis(100));
        faults.change(|plan| plan.latency = answer..=answer);
        let begun = Instant::now();
        let watched = Rc::clone(&stack);
        let away = spawn_local(async move {
            while !watched.is_quiesced() {
                sleep(Duration::from_millis(1)).await;
            }
            faults.change(|plan| plan.outage = true);
            sleep(Duration::from_secs(5)).await;
            assert!(watched.is_quiesced());
            sleep(Duration::from_secs(6)).await;
            assert!(!watched.is_quiesced(), "the deadline has passed");
            write(&watched, 0, 8).await.expect("operations go on");
            faults.change(|plan| plan.outage = false);
        });
        write(&stack, 0, 6).await.expect("written");
        let error = stack.snapshot(&name("cut"), Duration::from_secs(10)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        away.await.expect("as expected");
        assert!(begun.elapsed() > Duration::from_secs(10) && stack.snapshots().is_empty());
        stack.snapshot(&name("cut"), QUIESCE_MAX).await.expect("the store is back");
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn a_flush_takes_every_stage_with_it() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let stack = host.open(vec![write_back(&knobs)]).await;
        write(&stack, 4096, 3).await.expect("written");
        assert_eq!(stack.dirty_bytes(), 4096);
        stack.flush(FlushScope::Store).await.expect("flushed");
        assert_eq!(stack.dirty_bytes(), 0);
        stack.snapshot(&name("now"), QUIESCE_MAX).await.expect("taken");
        assert_eq!(read(&*view(&host, "now").await, 4096).await.expect("read"), 3);
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn a_rollback_and_a_resize_reach_every_stage_before_anything_goes_on() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let hits = Rc::new(Cell::new(0));
        let stack = host.open(vec![splitter(&hits), write_back(&knobs)]).await;
        write(&stack, 0, 1).await.expect("written");
        stack.snapshot(&name("base"), QUIESCE_MAX).await.expect("taken");
        write(&stack, 0, 2).await.expect("written");
        assert_eq!(read(&stack, 0).await.expect("read"), 2);
        assert_eq!(read(&stack, 0).await.expect("read"), 2);
        assert_eq!(hits.get(), 1, "it is kept");
        write(&stack, 8192, 2).await.expect("written");
        let waits = Rc::clone(&stack);
        let reader = spawn_local(async move {
            while !waits.is_quiesced() {
                sleep(Duration::from_millis(1)).await;
            }
            read(&waits, 0).await
        });
        stack.rollback(&name("base"), QUIESCE_MAX).await.expect("set back");
        assert_eq!(reader.await.expect("no panic").expect("read"), 1, "nothing old is shown");
        assert_eq!(read(&stack, 8192).await.expect("read"), 0, "nor written later");
        assert_eq!((stack.dirty_bytes(), hits.get()), (0, 1));
        let event = next_event(&stack);
        assert!(matches!(event, Some(Event::ContentReplaced { .. })), "{event:?}");
        assert!(matches!(next_event(&stack), Some(Event::Resized(size)) if size == SIZE));
        stack.resize(2 * SIZE, false, QUIESCE_MAX).await.expect("grows");
        assert_eq!(stack.size(), 2 * SIZE);
        assert!(matches!(next_event(&stack), Some(Event::Resized(size)) if size == 2 * SIZE));
        write(&stack, SIZE, 4).await.expect("written");
        let error = stack.resize(SIZE, false, QUIESCE_MAX).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        stack.resize(SIZE / 2, true, QUIESCE_MAX).await.expect("shrinks");
        assert_eq!((stack.size(), stack.dirty_bytes()), (SIZE / 2, 0));
        assert!(matches!(next_event(&stack), Some(Event::Resized(size)) if size == SIZE / 2));
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn nothing_goes_on_in_the_middle_of_a_rollback_however_long_that_takes() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let stack = host.open(vec![write_back(&knobs)]).await;
        write(&stack, 0, 1).await.expect("written");
        stack.snapshot(&name("base"), QUIESCE_MAX).await.expect("taken");
        write(&stack, 0, 2).await.expect("written");
        stack.flush(FlushScope::Store).await.expect("stored");
        let answer = Duration::from_secs(1);
        host.faults.change(|plan| plan.latency = answer..=answer);
        let waits = Rc::clone(&stack);
        let reader = spawn_local(async move {
            while !waits.is_quiesced() {
                sleep(Duration::from_millis(1)).await;
            }
            let begun = Instant::now();
            (read(&waits, 0).await, begun.elapsed())
        });
        let within = Duration::from_millis(500);
        stack.rollback(&name("base"), within).await.expect("set back");
        let (shown, waited) = reader.await.expect("no panic");
        assert!(waited > within, "the time is that for coming to rest: {waited:?}");
        assert_eq!(shown.expect("read"), 1);
        host.faults.calm();
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn what_a_stage_cannot_write_fails_the_snapshot_that_would_lack_it() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let stack = host.open(vec![write_back(&knobs)]).await;
        write(&stack, 0, 1).await.expect("written");
        knobs.fails.set(true);
        let error = stack.snapshot(&name("one"), QUIESCE_MAX).await.unwrap_err();
        assert!(error.to_string().ends_with("the way down is cut"), "{error}");
        assert!(!stack.is_quiesced() && stack.snapshots().is_empty());
        knobs.fails.set(false);
        stack.snapshot(&name("one"), QUIESCE_MAX).await.expect("taken");
        assert_eq!(read(&*view(&host, "one").await, 0).await.expect("read"), 1);
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn a_close_leaves_nothing_in_a_stage_or_says_so() {
    run(async {
        let (host, knobs) = (Host::new().await, Rc::new(Knobs::default()));
        let stack = host.open(vec![write_back(&knobs)]).await;
        write(&stack, 0, 1).await.expect("written");
        // However quick: a journal keeps what the store lacks, but nothing keeps what a stage has.
        assert_eq!(stack.close(Duration::ZERO).await.expect("closes"), Closed::LocalOnly);
        assert_eq!(knobs.dirty_bytes(), 0);
        assert_eq!(write(&stack, 0, 2).await.unwrap_err().kind(), ErrorKind::Unavailable);
        drop(stack);
        let stack = host.open(vec![write_back(&knobs)]).await;
        assert_eq!(read(&stack, 0).await.expect("read"), 1);
        write(&stack, 4096, 2).await.expect("written");
        knobs.fails.set(true);
        let error = stack.close(CLOSE).await.unwrap_err();
        assert!(error.to_string().starts_with("4096 acknowledged bytes"), "{error}");
        assert!(error.to_string().ends_with("the way down is cut"), "{error}");
        drop(stack);
        // What the endpoint had is whole all the same.
        let stack = host.open(Vec::new()).await;
        assert_eq!(read(&stack, 0).await.expect("read"), 1);
        assert_eq!(stack.close(CLOSE).await.expect("closes"), Closed::Clean);
    });
}

#[test]
fn a_quiesced_stack_lets_what_runs_end_and_nothing_in_until_its_deadline() {
    run(async {
        let (hits, knobs) = (Rc::new(Cell::new(0)), Rc::new(Knobs::default()));
        let stack = in_memory(SIZE, vec![splitter(&hits), write_back(&knobs)]).await;
        write(&stack, 0, 1).await.expect("written");
        knobs.pause.set(Duration::from_secs(3));
        let flushing = Rc::clone(&stack);
        let running = spawn_local(async move { flushing.flush(FlushScope::Local).await });
        sleep(Duration::from_millis(1)).await;
        let error = stack.quiesce(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(!stack.is_quiesced(), "it is undone");
        let quiesced = stack.quiesce(Duration::from_secs(10)).await.expect("it ends in time");
        assert!(running.await.is_ok_and(|flushed| flushed.is_ok()) && stack.in_flight() == 0);
        let waits = Rc::clone(&stack);
        let waiting = spawn_local(async move { write(&waits, 0, 2).await });
        sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished() && quiesced.holds());
        // Two may hold it, and operations go on after the last one.
        let second = stack.quiesce(Duration::from_secs(100)).await.expect("at rest already");
        drop(quiesced);
        sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.expect("no panic").expect("written");
        // Whoever forgets it keeps clients waiting no longer than the deadline.
        let forgotten = stack.quiesce(Duration::from_secs(10)).await.expect("at rest");
        let begun = Instant::now();
        write(&stack, 0, 3).await.expect("written");
        assert_eq!(begun.elapsed().as_secs(), 10);
        assert!(!forgotten.holds() && !stack.is_quiesced());
        drop(forgotten);
        write(&stack, 0, 4).await.expect("written");
    });
}

#[test]
fn a_limit_comes_and_goes_while_the_volume_is_used() {
    run(async {
        let host = Host::new().await;
        let stack = host.open(Vec::new()).await;
        let names = |stack: &Stack| -> Vec<_> {
            stack.layers().iter().map(|layer| layer.stage.name()).collect()
        };
        let client = async |stack: Rc<Stack>, count: u64| {
            let io = IoHeader::of_client(SourceId(1), VolumeId([1; 16]));
            for _ in 0..count {
                let read = Operation::Read { offset: 0, len: 512 };
                stack.call(io, read).await.expect("read");
            }
        };
        client(Rc::clone(&stack), 10).await;
        assert_eq!(names(&stack), ["log"]);
        stack.set_limit(LimitSettings::checked(Some(10), None, None).expect("valid"));
        assert_eq!(names(&stack), ["limit", "log"]);
        let begun = Instant::now();
        client(Rc::clone(&stack), 21).await;
        assert_eq!(begun.elapsed().as_secs(), 2);
        let waiting = spawn_local(client(Rc::clone(&stack), 100));
        sleep(Duration::from_secs(1)).await;
        stack.set_limit(LimitSettings::default());
        waiting.await.expect("it passed");
        assert!(begun.elapsed() < Duration::from_secs(4), "nobody waits for a limit that is gone");
        assert_eq!(names(&stack), ["log"]);
        assert_eq!(stack.operations()[0].count(), 131, "one count of what clients asked for");
        // The events of the device below still come.
        stack.resize(2 * SIZE, false, QUIESCE_MAX).await.expect("grows");
        assert!(matches!(next_event(&stack), Some(Event::Resized(_))));
        stack.close(CLOSE).await.expect("closes");
        drop(stack);
        // One of the description stays, and is changed.
        let limit = LimitSettings::checked(Some(10), None, None).expect("valid");
        let stack = host.open(vec![StageSpec::Limit(limit)]).await;
        assert_eq!(stack.limit(), limit);
        stack.set_limit(LimitSettings::default());
        assert_eq!((names(&stack).len(), stack.limit()), (2, LimitSettings::default()));
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn a_close_loses_nothing_to_operations_that_wait_at_the_limit() {
    run(async {
        let host = Host::new().await;
        let knobs = Rc::new(Knobs::default());
        let limit = LimitSettings::checked(None, Some(1), None).expect("valid");
        let stack = host.open(vec![StageSpec::Limit(limit), write_back(&knobs)]).await;
        let client = |stack: &Rc<Stack>| {
            let (stack, io) =
                (Rc::clone(stack), IoHeader::of_client(SourceId(1), VolumeId([1; 16])));
            spawn_local(async move {
                let data = weir_device::SharedBuf::copy_of(&[7; 4096]);
                stack.call(io, Operation::Write { offset: 0, data, fua: false }).await
            })
        };
        client(&stack).await.expect("no panic").expect("within the burst");
        let waiting = [client(&stack), client(&stack)];
        sleep(Duration::from_secs(1)).await;
        assert_eq!(stack.close(CLOSE).await.expect("nothing is lost"), Closed::Clean);
        assert_eq!(knobs.dirty_bytes(), 0);
        for waiting in waiting {
            let refused = waiting.await.expect("no panic").expect_err("it never passed");
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
        }
        drop(stack);
        let stack = host.open(Vec::new()).await;
        assert_eq!(read(&stack, 0).await.expect("read"), 7);
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn events_come_to_the_owner_without_being_asked_for() {
    run(async {
        let host = Host::new().await;
        let stack = host.open(vec![splitter(&Rc::default())]).await;
        write(&stack, 0, 1).await.expect("written");
        stack.flush(FlushScope::Store).await.expect("stored");
        let owner = Rc::clone(&stack);
        let waiting = spawn_local(async move { poll_fn(|cx| owner.poll_event(cx)).await });
        sleep(Duration::from_millis(1)).await;
        stack.resize(2 * SIZE, false, QUIESCE_MAX).await.expect("grows");
        assert!(matches!(waiting.await.expect("woken"), Event::Resized(size) if size == 2 * SIZE));
        stack.close(CLOSE).await.expect("closes");
    });
}

#[test]
fn what_is_no_log_volume_has_no_such_verbs() {
    run(async {
        let stack = in_memory(SIZE, Vec::new()).await;
        let unsupported = |error: weir_device::DeviceError| {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        };
        unsupported(stack.snapshot(&name("one"), QUIESCE_MAX).await.unwrap_err());
        unsupported(stack.rollback(&name("one"), QUIESCE_MAX).await.unwrap_err());
        unsupported(stack.resize(1, true, QUIESCE_MAX).await.unwrap_err());
        unsupported(stack.compact(50, |_, _| {}).await.unwrap_err());
        assert!(stack.snapshots().is_empty() && stack.log_status().is_none());
        write(&stack, 0, 1).await.expect("nothing stays at rest");
        stack.close(CLOSE).await.expect("closes");
    });
}
