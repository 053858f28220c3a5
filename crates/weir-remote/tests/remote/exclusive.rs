//! Exclusive access: who gets it, what it keeps, and how it is lost.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;
use weir_device::{Device, DeviceExt, ErrorKind, Event, FlushScope};
use weir_remote::{RemoteArgs, RemoteVolume};

use crate::support::{Server, byte, fill, run};

fn alone(args: &mut RemoteArgs) {
    args.exclusive = true;
}

async fn plain(server: &Server) -> Rc<RemoteVolume> {
    server.open(|_| {}).await
}

#[test]
fn others_cannot_write_while_it_is_there_and_can_once_it_is_gone() {
    run(async {
        let server = Server::start_weir(1).await;
        let volume = server.open(|args| (args.exclusive, args.connections) = (true, 3)).await;
        assert!(volume.info().is_exclusive && volume.status().connections == 3);
        fill(&volume, 0, 100, 1).await.unwrap();
        let reader = plain(&server).await;
        assert!(reader.info().is_read_only && !reader.info().is_exclusive);
        assert_eq!(byte(&reader, 50).await.unwrap(), 1);
        assert_eq!(fill(&reader, 0, 1, 2).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        let refused = server.try_open("disk", alone).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert!(refused.to_string().contains("another client has exclusive"), "{refused}");
        volume.close(Duration::ZERO).await.unwrap();
        drop(reader);
        sleep(Duration::from_secs(1)).await;
        let writer = plain(&server).await;
        fill(&writer, 0, 100, 3).await.unwrap();
        let refused = server.try_open("disk", alone).await.unwrap_err();
        assert!(refused.to_string().contains("another client that may write"), "{refused}");
    });
}

#[test]
fn a_server_that_does_not_know_of_it_is_refused() {
    run(async {
        let server = Server::start(1).await;
        let refused = server.try_open("disk", alone).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("--remote-exclusive"), "{refused}");
        let frozen = Server::start_weir(1).await.try_open("frozen", alone).await.unwrap_err();
        assert!(frozen.to_string().contains("takes no writes"), "{frozen}");
    });
}

#[test]
fn cuts_and_restarts_are_a_pause_if_nobody_else_was_there() {
    run(async {
        let server = Server::start_weir(1).await;
        let volume = server.open(alone).await;
        for mark in 1..20 {
            fill(&volume, 0, 1000, mark).await.unwrap();
            match mark % 2 {
                0 => server.cut(),
                _ => server.reboot().await,
            }
            assert_eq!(byte(&volume, 999).await.unwrap(), mark);
        }
        volume.flush(FlushScope::Local).await.unwrap();
        assert!(volume.info().is_exclusive && volume.status().refuses_writes.is_none());
    });
}

/// The first volume has lost its server, and waits between two tries.
async fn lost(server: &Server) -> Rc<RemoteVolume> {
    let volume = server.open(alone).await;
    fill(&volume, 0, 100, 1).await.expect("the server is there");
    volume.flush(FlushScope::Local).await.expect("the server is there");
    fill(&volume, 0, 100, 2).await.expect("the server is there");
    server.kill().await;
    sleep(Duration::from_secs(10)).await;
    server.begin().await;
    volume
}

async fn answers_nothing(volume: &RemoteVolume) {
    for refused in [
        byte(volume, 5000).await.map(drop),
        fill(volume, 5000, 1, 9).await,
        volume.flush(FlushScope::Local).await,
        volume.extents(0, 100, 5).await.map(drop),
    ] {
        let error = refused.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        assert!(error.to_string().contains("100 bytes that were acknowledged"), "{error}");
    }
    let event = poll_fn(|cx| volume.poll_event(cx)).now_or_never();
    assert!(matches!(event, Some(Event::ExclusiveLost(_))), "{event:?}");
    assert!(!volume.info().is_exclusive && volume.status().refuses_writes.is_some());
}

#[test]
fn where_another_client_writes_nothing_is_answered_any_more_and_nothing_is_sent_again() {
    run(async {
        let server = Server::start_weir(1).await;
        let volume = lost(&server).await;
        let other = plain(&server).await;
        fill(&other, 0, 100, 7).await.unwrap();
        answers_nothing(&volume).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(server.device.byte(50).await, 7);
        volume.close(Duration::ZERO).await.unwrap_err();
    });
}

#[test]
fn where_another_client_has_come_and_gone_it_is_the_same() {
    run(async {
        let server = Server::start_weir(1).await;
        let volume = lost(&server).await;
        let other = server.open(alone).await;
        fill(&other, 0, 100, 7).await.unwrap();
        other.close(Duration::ZERO).await.unwrap();
        answers_nothing(&volume).await;
        assert_eq!(server.device.byte(50).await, 7);
        // It does not keep others away either.
        let third = server.open(alone).await;
        assert_eq!(byte(&third, 50).await.unwrap(), 7);
    });
}
