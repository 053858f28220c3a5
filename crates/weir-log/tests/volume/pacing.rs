//! Background work beside clients: it waits for them, until somebody waits for it.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use weir_log::LogVolume;
use weir_pacer::{Class, Pace, Pressure, RequestKind};

use super::support::*;

/// A client that writes all the time, and never lets the pacer rest.
fn busy_client(volume: &Rc<LogVolume>) -> tokio::task::JoinHandle<()> {
    let volume = Rc::clone(volume);
    tokio::task::spawn_local(async move {
        for nth in 0_u64.. {
            write(&volume, nth % 4 * 4096, &[7; 4096]).await.expect("written");
            sleep(Duration::from_millis(20)).await;
        }
    })
}

/// Uploads have had so much that even the highest rate does not give them more for hours.
async fn owe(host: &Host) {
    let pressure = Pressure::default();
    Pace::new(&host.env.pacer, Class::Upload, &pressure).leave(1 << 50, 0).await.used();
}

/// A volume whose client writes all the time, and whose uploads have had theirs.
async fn busy_volume(host: &Host) -> (Rc<LogVolume>, tokio::task::JoinHandle<()>) {
    let (volume, _) = host.open().await;
    let client = busy_client(&volume);
    sleep(Duration::from_secs(1)).await;
    owe(host).await;
    (volume, client)
}

#[test]
fn uploads_wait_while_clients_would_feel_them() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        host.options.journal.segments_max = 64;
        let (volume, client) = busy_volume(&host).await;
        sleep(Duration::from_secs(1)).await;
        let before = volume.status().objects_written;
        sleep(Duration::from_secs(5)).await;
        assert!(volume.status().objects_written <= before + 1, "they have had theirs");
        client.abort();
        let _ = client.await;
        sleep(Duration::from_secs(3)).await;
        assert_eq!(volume.status().unsent_bytes, 0, "nobody is there any more");
    });
}

#[test]
fn what_somebody_waits_for_does_not_wait() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        let (volume, client) = busy_volume(&host).await;
        sleep(Duration::from_secs(1)).await;
        let soon = Duration::from_secs(1);
        timeout(soon, volume.flush_remote()).await.expect("a remote flush").expect("stored");
        let taken = timeout(soon, volume.snapshot(&name("now"))).await.expect("a snapshot");
        taken.expect("taken");
        client.abort();
    });
}

#[test]
fn a_journal_that_fills_presses_uploads() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        let (volume, client) = busy_volume(&host).await;
        // Twice as much as the journal holds.
        for nth in 0_u64..400 {
            let wrote = write(&volume, nth % 16 * 4096, &[9; 4096]);
            timeout(Duration::from_secs(1), wrote).await.expect("in time").expect("written");
            let status = volume.status();
            assert!(status.journal_used_bytes * 100 < status.journal_capacity_bytes * 90, "{nth}");
        }
        client.abort();
    });
}

#[test]
fn the_age_of_data_presses_uploads() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(8);
        host.options.journal.segments_max = 64;
        let (volume, client) = busy_volume(&host).await;
        let begun = Instant::now();
        let mut oldest = 0;
        while begun.elapsed() < Duration::from_secs(30) {
            oldest = oldest.max(volume.status().unsent_age_ms.unwrap_or(0));
            sleep(Duration::from_millis(50)).await;
        }
        assert!((4000..8000).contains(&oldest), "{oldest} ms: late, but in time");
        client.abort();
    });
}

#[test]
fn small_batches_wait_up_to_the_rpo_less_their_way() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(10);
        host.options.batch.small_bytes = 64 << 10;
        let way = Duration::from_millis(400);
        host.faults.change(|plan| plan.latency = way..=way);
        let (volume, _) = host.open().await;
        let mut ages = Vec::new();
        for nth in 0..5 {
            let begun = Instant::now();
            write(&volume, 0, &[nth; 4096]).await.expect("written");
            while volume.status().unsent_bytes > 0 {
                sleep(Duration::from_millis(10)).await;
            }
            ages.push(begun.elapsed().as_millis());
        }
        // The first is closed by the age of a batch, the others stretch.
        assert!(ages[1..].iter().all(|age| (8000..10_000).contains(age)), "{ages:?}");
    });
}

/// Other volumes keep the node busy, and nobody asks this one for anything.
#[test]
fn a_quiet_volume_keeps_its_rpo() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(8);
        let (volume, _) = host.open().await;
        let pacer = host.env.pacer.clone();
        let others = tokio::task::spawn_local(async move {
            loop {
                pacer.request(RequestKind::Write, 4096).ended();
                sleep(Duration::from_millis(5)).await;
            }
        });
        sleep(Duration::from_secs(1)).await;
        owe(&host).await;
        write(&volume, 0, &[1; 4096]).await.expect("written");
        sleep(Duration::from_secs(8)).await;
        assert_eq!(volume.status().unsent_bytes, 0);
        assert_eq!(volume.status().rpo_missed, 0);
        others.abort();
    });
}

#[test]
fn a_wait_that_was_given_up_presses_nothing() {
    run(async {
        let mut host = Host::new().await;
        let hour = Duration::from_secs(3600);
        (host.options.batch.age, host.options.batch.rpo) = (hour, hour);
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("written");
        host.faults.change(|plan| plan.silence = true);
        let waits = timeout(Duration::from_secs(1), volume.flush_remote()).await;
        waits.expect_err("the store is silent");
        host.faults.calm();
        // The attempt that got no answer ends, and another one is made.
        sleep(Duration::from_secs(300)).await;
        write(&volume, 8192, &[2; 4096]).await.expect("written");
        let status = volume.status();
        assert_eq!((status.unsent_bytes, status.upload_pressure), (4096, 0), "{status:?}");
    });
}
