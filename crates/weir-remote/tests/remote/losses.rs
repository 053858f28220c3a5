//! What becomes of acknowledged and of unanswered changes when a connection or a server is lost.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use weir_device::{
    Device, DeviceExt, ErrorKind, Event, FlushScope, IoHeader, Operation, OperationKind, SharedBuf,
    WriteZeroesFlags,
};

use crate::support::{SIZE, Server, byte, fill, run, settle};

#[test]
fn what_was_acknowledged_is_sent_again_to_a_server_that_lost_it() {
    run(async {
        for seed in 0..20 {
            let server = Server::start(seed).await;
            let volume = server.open(|_| {}).await;
            fill(&volume, 100, 5000, 1).await.unwrap();
            volume.flush(FlushScope::Local).await.unwrap();
            assert_eq!(volume.status().unflushed_bytes, 0);
            fill(&volume, 0, 1000, 2).await.unwrap();
            volume.write_zeroes(500, 200, WriteZeroesFlags::default()).await.unwrap();
            fill(&volume, 600, 50, 3).await.unwrap();
            volume.discard(4000, 500).await.unwrap();
            server.reboot().await;
            let expected =
                [(0, 2), (499, 2), (500, 0), (600, 3), (649, 3), (650, 0), (700, 2), (4000, 0)];
            for (offset, mark) in expected {
                assert_eq!(byte(&volume, offset).await.unwrap(), mark, "seed {seed}, {offset}");
            }
            assert_eq!(byte(&volume, 3999).await.unwrap(), 1);
            volume.flush(FlushScope::Local).await.unwrap();
            server.reboot().await;
            assert_eq!(byte(&volume, 600).await.unwrap(), 3, "it is durable now");
        }
    });
}

#[test]
fn a_change_that_survives_by_itself_is_not_undone_by_an_older_one() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 4096, 1).await.unwrap();
        let data = SharedBuf::copy_of(&[2; 100]);
        let forced = Operation::Write { offset: 1000, data, fua: true };
        volume.call(IoHeader::internal(), forced).await.unwrap();
        server.reboot().await;
        assert_eq!(byte(&volume, 1050).await.unwrap(), 2);
        assert_eq!(byte(&volume, 999).await.unwrap(), 1);
    });
}

#[test]
fn nothing_is_read_before_what_was_lost_is_there_again() {
    run(async {
        let server = Rc::new(Server::start(1).await);
        let volume = server.open(|_| {}).await;
        for at in 0..10 {
            fill(&volume, at * 1000, 1000, 9).await.unwrap();
        }
        server.kill().await;
        server.device.crash(SIZE).await;
        let reading = tokio::task::spawn_local({
            let volume = Rc::clone(&volume);
            async move { byte(&volume, 5000).await }
        });
        settle().await;
        server.device.calls.borrow_mut().clear();
        server.begin().await;
        assert_eq!(reading.await.unwrap().unwrap(), 9);
        let calls = server.device.calls.borrow();
        let first_read = calls.iter().position(|(kind, _)| *kind == OperationKind::Read).unwrap();
        assert_eq!(first_read, 10, "{calls:?}");
    });
}

#[test]
fn without_sending_again_a_lost_connection_fails_what_is_not_known() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|args| args.resend = false).await;
        fill(&volume, 0, 100, 1).await.unwrap();
        volume.flush(FlushScope::Local).await.unwrap();
        // Nothing is at stake: reads in flight wait, and go on.
        server.device.hold(true);
        let mut reading = Box::pin(byte(&volume, 50));
        let mut writing = Box::pin(fill(&volume, 200, 100, 2));
        assert!(reading.as_mut().now_or_never().is_none());
        assert!(writing.as_mut().now_or_never().is_none());
        settle().await;
        server.cut();
        server.device.hold(false);
        let error = writing.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("is not known"), "{error}");
        assert_eq!(reading.await.unwrap(), 1);
        fill(&volume, 300, 100, 3).await.expect("it goes on");
        assert!(volume.status().refuses_writes.is_none());
    });
}

#[test]
fn without_sending_again_what_was_not_flushed_is_lost_and_said_to_be() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|args| args.resend = false).await;
        fill(&volume, 0, 100, 1).await.unwrap();
        volume.flush(FlushScope::Local).await.unwrap();
        fill(&volume, 1000, 100, 2).await.unwrap();
        assert_eq!(volume.status().unflushed_bytes, 100);
        server.cut();
        settle().await;
        let kind = |error: weir_device::DeviceError| {
            assert!(error.to_string().contains("100 bytes"), "{error}");
            error.kind()
        };
        let flushed = volume.flush(FlushScope::Local).await;
        assert_eq!(kind(flushed.unwrap_err()), ErrorKind::Poisoned);
        assert_eq!(kind(fill(&volume, 0, 1, 1).await.unwrap_err()), ErrorKind::Poisoned);
        assert_eq!(kind(byte(&volume, 1099).await.unwrap_err()), ErrorKind::Poisoned);
        assert_eq!(byte(&volume, 50).await.unwrap(), 1, "this was flushed");
        assert_eq!(byte(&volume, 1100).await.unwrap(), 0);
        let event = poll_fn(|cx| volume.poll_event(cx)).await;
        assert!(matches!(event, Event::Degraded(_)));
        volume.close(Duration::ZERO).await.expect_err("it says so once more");
    });
}

#[test]
fn a_flush_that_fails_is_never_followed_by_one_that_succeeds() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 100, 1).await.unwrap();
        server.device.failing.set(Some((OperationKind::Flush, ErrorKind::Unavailable)));
        volume.flush(FlushScope::Local).await.unwrap_err();
        server.device.failing.set(None);
        let error = volume.flush(FlushScope::Local).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
    });
}

#[test]
fn an_export_that_comes_back_smaller_is_not_what_it_was() {
    run(async {
        for unflushed in [false, true] {
            let server = Server::start(1).await;
            let volume = server.open(|_| {}).await;
            fill(&volume, 200_000, 100, 1).await.unwrap();
            if !unflushed {
                volume.flush(FlushScope::Local).await.unwrap();
            }
            server.kill().await;
            server.device.crash(100_000).await;
            server.begin().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let event = poll_fn(|cx| volume.poll_event(cx)).await;
            assert!(matches!(event, Event::ExclusiveLost(_)), "{event:?}");
            assert_eq!(byte(&volume, 0).await.unwrap_err().kind(), ErrorKind::Fenced);
            let error = volume.flush(FlushScope::Local).await.unwrap_err();
            assert!(error.to_string().contains("has 100000 bytes now, and had 300001"), "{error}");
            let loss = "100 bytes that were acknowledged and not flushed";
            assert_eq!(error.to_string().contains(loss), unflushed, "{error}");
            assert_eq!(volume.info().size, SIZE);
        }
    });
}

#[test]
fn an_export_that_comes_back_larger_goes_on() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 100, 1).await.unwrap();
        server.kill().await;
        server.device.crash(SIZE * 2).await;
        server.begin().await;
        assert_eq!(byte(&volume, 0).await.unwrap(), 1);
        let event = poll_fn(|cx| volume.poll_event(cx)).await;
        assert!(matches!(event, Event::Resized(size) if size == SIZE * 2), "{event:?}");
        fill(&volume, SIZE + 1, 100, 2).await.unwrap();
    });
}

#[test]
fn errors_of_the_server_are_passed_on() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.open(|_| {}).await;
        for (kind, expected) in [
            (ErrorKind::NoSpace, ErrorKind::NoSpace),
            (ErrorKind::ReadOnly, ErrorKind::ReadOnly),
            (ErrorKind::Corrupt, ErrorKind::Unavailable),
        ] {
            server.device.failing.set(Some((OperationKind::Write, kind)));
            let error = fill(&volume, 0, 10, 1).await.unwrap_err();
            assert_eq!(error.kind(), expected);
            assert!(error.to_string().contains("nbd://server/disk"), "{error}");
        }
        server.device.failing.set(None);
        assert_eq!(byte(&volume, 0).await.unwrap(), 0);
        volume.flush(FlushScope::Local).await.expect("nothing was acknowledged");
    });
}

#[test]
fn a_read_only_export_takes_no_changes() {
    run(async {
        let server = Server::start(1).await;
        let volume = server.try_open("frozen", |_| {}).await.unwrap();
        assert!(volume.info().is_read_only);
        assert_eq!(fill(&volume, 0, 1, 1).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(byte(&volume, 0).await.unwrap(), 0);
        volume.flush(FlushScope::Local).await.expect("there is nothing to flush");
    });
}

#[test]
fn another_weir_is_sent_again_what_it_lost_and_nothing_that_it_has() {
    run(async {
        let server = Server::start_weir(3).await;
        let volume = server.open_plain().await;
        for at in 0..10 {
            fill(&volume, at * 1000, 1000, 4).await.unwrap();
        }
        server.device.calls.borrow_mut().clear();
        server.cut();
        assert_eq!(byte(&volume, 9999).await.unwrap(), 4);
        assert_eq!(server.device.count(OperationKind::Write), 0, "it is the same opening");
        server.reboot().await;
        assert_eq!(byte(&volume, 9999).await.unwrap(), 4);
        assert_eq!(server.device.count(OperationKind::Write), 10);
        volume.flush(FlushScope::Local).await.expect("nothing is lost");
    });
}

#[test]
fn a_write_of_a_lost_connection_never_overtakes_a_later_one() {
    run(async {
        let server = Server::start_weir(1).await;
        let volume = server.open_plain().await;
        let key = server.device.hold_next();
        let mut first = Box::pin(fill(&volume, 0, 100, 1));
        assert!(first.as_mut().now_or_never().is_none());
        settle().await;
        server.cut();
        first.await.expect("it is sent again");
        fill(&volume, 0, 100, 2).await.unwrap();
        // The old handler goes on only now.
        drop(key);
        settle().await;
        assert_eq!(byte(&volume, 50).await.unwrap(), 2);
    });
}

#[test]
fn a_server_that_stops_to_tell_its_openings_apart_is_trusted_with_nothing() {
    run(async {
        let server = Server::start_weir(1).await;
        let volume = server.open_plain().await;
        fill(&volume, 0, 100, 1).await.unwrap();
        server.kill().await;
        server.is_weir.set(false);
        server.begin().await;
        let error = volume.flush(FlushScope::Local).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
        assert!(error.to_string().contains("another server answers"), "{error}");
    });
}
