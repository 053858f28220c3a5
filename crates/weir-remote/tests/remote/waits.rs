//! What waits, for how long, and what is said then.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;
use weir_device::{Address, DeviceExt, ErrorKind, FlushScope, OperationKind};

use crate::support::{DEADLINE, Server, byte, fill, run, settle};

#[test]
fn calls_wait_for_a_server_that_comes_back() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        server.kill().await;
        let began = Instant::now();
        let mut writing = Box::pin(fill(&volume, 0, 100, 1));
        assert!(writing.as_mut().now_or_never().is_none());
        let mut reading = Box::pin(byte(&volume, 200));
        assert!(reading.as_mut().now_or_never().is_none());
        tokio::time::sleep(DEADLINE - Duration::from_secs(4)).await;
        let status = volume.status();
        assert!(!status.is_connected && status.requests == 2 && status.trouble.is_some());
        server.begin().await;
        writing.await.expect("a pause, not an error");
        assert_eq!(reading.await.unwrap(), 0);
        assert!(began.elapsed() < DEADLINE);
        assert!(volume.status().is_connected);
    });
}

#[test]
fn a_call_fails_at_its_deadline_and_later_ones_go_on() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        server.kill().await;
        let began = Instant::now();
        let (written, read, flushed) = futures_util::join!(
            fill(&volume, 0, 100, 1),
            byte(&volume, 0),
            volume.flush(FlushScope::Local),
        );
        let waited = began.elapsed();
        assert!(waited >= DEADLINE && waited < DEADLINE * 5 / 4, "{waited:?}");
        for error in [written.unwrap_err(), read.unwrap_err(), flushed.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let message = error.to_string();
            assert!(message.contains("nbd://server/disk: no answer within 30 s"), "{message}");
            assert!(message.contains("refused"), "it says why: {message}");
        }
        server.begin().await;
        fill(&volume, 0, 100, 2).await.expect("it is there again");
        assert_eq!(server.device.byte(0).await, 2);
        assert_eq!(server.device.count(OperationKind::Write), 1, "what failed is never sent");
    });
}

#[test]
fn a_request_that_the_server_never_answers_fails_at_its_deadline() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|args| args.resend = false).await;
        server.device.hold(true);
        let began = Instant::now();
        let error = fill(&volume, 0, 100, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(began.elapsed() >= DEADLINE);
        server.device.hold(false);
    });
}

#[test]
fn a_connection_that_fell_silent_is_made_anew_before_the_deadline() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 100, 1).await.unwrap();
        for connection in server.network.connections() {
            server.network.silence(connection);
        }
        let began = Instant::now();
        assert_eq!(byte(&volume, 50).await.unwrap(), 1);
        assert!(began.elapsed() < DEADLINE / 2, "{:?}", began.elapsed());
        assert_eq!(volume.status().lost, 1);
    });
}

#[test]
fn a_silent_server_without_requests_is_left_alone() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        byte(&volume, 0).await.unwrap();
        tokio::time::sleep(Duration::from_secs(100_000)).await;
        byte(&volume, 0).await.unwrap();
        assert_eq!(volume.status().lost, 0);
    });
}

#[test]
fn flushes_that_wait_together_are_one() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 100, 1).await.unwrap();
        let flushes = (0..50).map(|_| volume.flush(FlushScope::Local));
        for flushed in join_all(flushes).await {
            flushed.unwrap();
        }
        let count = server.device.count(OperationKind::Flush);
        assert!(count <= 2, "{count} flushes");
        fill(&volume, 0, 100, 1).await.unwrap();
        volume.flush(FlushScope::Local).await.unwrap();
        assert_eq!(server.device.count(OperationKind::Flush), count + 1);
    });
}

#[test]
fn the_same_bytes_count_once_among_what_is_not_flushed() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        for nth in 0..1200_u64 {
            fill(&volume, nth % 4 * 65536, 65536, 1).await.unwrap();
        }
        settle().await;
        assert!(server.device.count(OperationKind::Flush) == 0, "the same bytes count once");
    });
}

#[test]
fn much_that_is_not_flushed_is_flushed_without_being_asked() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        // Each keeps a page of memory.
        for nth in 0..18_000_u64 {
            fill(&volume, nth * 16, 1, 1).await.unwrap();
        }
        settle().await;
        assert!(server.device.count(OperationKind::Flush) > 0);
        assert!(volume.status().unflushed_bytes < 18_000);
    });
}

#[test]
fn a_volume_that_is_closed_has_flushed() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 100, 7).await.unwrap();
        volume.close(Duration::ZERO).await.expect("it closes");
        server.reboot().await;
        assert_eq!(server.device.byte(99).await, 7);
        let error = fill(&volume, 0, 1, 1).await.unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    });
}

#[test]
fn closing_says_what_the_server_did_not_flush() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 100, 7).await.unwrap();
        server.kill().await;
        let error = volume.close(Duration::from_secs(2)).await.unwrap_err();
        assert!(error.to_string().contains("100 bytes"), "{error}");
    });
}

#[test]
fn what_cannot_be_opened_says_why_at_once() {
    run(async {
        let server = Server::start(1).await;
        let began = Instant::now();
        let missing = server.try_open("other", |_| {}).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        server.network.refuse(&Address::Tcp("server:10809".to_owned()), true);
        let refused = server.try_open("disk", |_| {}).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().starts_with("nbd://server/disk: connecting"), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn a_caller_that_goes_away_loses_only_its_answer() {
    run(async {
        let server = Server::start(1).await;
        let volume = Rc::clone(&server.open(|_| {}).await);
        server.device.hold(true);
        let mut writing = Box::pin(fill(&volume, 0, 100, 1));
        assert!(writing.as_mut().now_or_never().is_none());
        settle().await;
        drop(writing);
        let later = fill(&volume, 0, 100, 2);
        server.device.hold(false);
        later.await.unwrap();
        assert_eq!(byte(&volume, 50).await.unwrap(), 2);
        assert_eq!(server.device.byte(50).await, 2);
    });
}

#[test]
fn changes_of_the_same_bytes_are_sent_one_after_the_other() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        server.device.hold(true);
        let mut first = Box::pin(fill(&volume, 0, 100, 1));
        let mut second = Box::pin(fill(&volume, 99, 100, 2));
        let mut apart = Box::pin(fill(&volume, 300, 100, 3));
        for change in [&mut first, &mut second, &mut apart] {
            assert!(change.as_mut().now_or_never().is_none());
        }
        settle().await;
        assert_eq!(server.device.count(OperationKind::Write), 2, "the second one waits");
        server.device.hold(false);
        for change in [first, second, apart] {
            change.await.unwrap();
        }
        assert_eq!(byte(&volume, 99).await.unwrap(), 2);
    });
}
