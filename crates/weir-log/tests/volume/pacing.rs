//! Background work beside clients: it waits for them, until somebody waits for it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};
use weir_log::{LogVolume, MemoryFrameCache};
use weir_pacer::{Class, Pace, Pressure, RequestKind};
use weir_store::Store;

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

/// A class has had so much that even the highest rate does not give it more for hours.
async fn owe(host: &Host, class: Class) {
    let pressure = Pressure::default();
    Pace::new(&host.env.pacer, class, &pressure).leave(1 << 50, 0).await.used();
}

/// Clients of other volumes, who keep the node busy.
fn busy_others(host: &Host) -> tokio::task::JoinHandle<()> {
    let pacer = host.env.pacer.clone();
    tokio::task::spawn_local(async move {
        loop {
            pacer.request(RequestKind::Write, 4096).ended();
            sleep(Duration::from_millis(5)).await;
        }
    })
}

/// A volume whose client writes all the time, and whose uploads have had theirs.
async fn busy_volume(host: &Host) -> (Rc<LogVolume>, tokio::task::JoinHandle<()>) {
    let (volume, _) = host.open().await;
    let client = busy_client(&volume);
    sleep(Duration::from_secs(1)).await;
    owe(host, Class::Upload).await;
    (volume, client)
}

/// More writes at once than a burst may have.
async fn write_until_followed(volume: &LogVolume) {
    for nth in 0_u64.. {
        if volume.status().upload_pressure == 1000 {
            return;
        }
        write(volume, nth % 16 * 4096, &[9; 4096]).await.expect("written");
    }
}

fn percent_full(volume: &LogVolume) -> u64 {
    let status = volume.status();
    status.journal_used_bytes * 100 / status.journal_capacity_bytes
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
fn a_journal_whose_disk_is_full_presses_uploads() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        host.options.journal.segments_max = 64;
        let (volume, client) = busy_volume(&host).await;
        host.disk.set_capacity(Some(1));
        let other = Rc::clone(&volume);
        let writer = tokio::task::spawn_local(async move {
            for nth in 0_u64.. {
                write(&other, nth % 16 * 4096, &[9; 4096]).await.expect("written");
            }
        });
        let begun = Instant::now();
        while volume.status().journal_no_space.is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it fills the disk");
            sleep(Duration::from_millis(10)).await;
        }
        let full = Instant::now();
        while volume.status().upload_pressure < 1000 {
            assert!(full.elapsed() < Duration::from_millis(200), "writers wait for uploads");
            sleep(Duration::from_millis(1)).await;
        }
        writer.abort();
        client.abort();
    });
}

#[test]
fn a_writer_whose_journal_cannot_grow_waits_for_an_upload_and_no_longer() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        // A batch takes more than the journal has, and that is little of what it may have.
        host.options.batch.bytes = 64 << 20;
        host.options.batch.age = Duration::from_secs(300);
        host.options.journal.segments_max = 64;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.expect("written");
        host.disk.set_capacity(Some(1));
        let mut has_said = false;
        for nth in 0_u64..400 {
            let wrote = write(&volume, nth % 16 * 4096, &[9; 4096]);
            timeout(Duration::from_secs(1), wrote).await.expect("in time").expect("written");
            has_said |= volume.status().journal_no_space.is_some();
        }
        assert!(has_said, "the disk is full");
    });
}

#[test]
fn uploads_follow_writes_that_were_too_many_for_a_burst_until_clients_rest() {
    run(async {
        follow_a_load(64 << 20).await;
        // A batch that waits is more than memory should have of the journal.
        follow_a_load(32 << 10).await;
    });
}

async fn follow_a_load(memory_bytes: usize) {
    let mut host = Host::new().await;
    host.options.batch.rpo = Duration::from_secs(600);
    host.options.journal.resident_bytes_max = memory_bytes;
    let two_batches = 2 * host.options.batch.bytes;
    let is_small = memory_bytes < 1 << 20;
    let (volume, client) = busy_volume(&host).await;
    let percent = || percent_full(&volume);
    let mut nth = 0;
    while percent() < 60 {
        assert!(volume.status().upload_pressure < 1000, "a burst is taken in");
        write(&volume, nth % 16 * 4096, &[9; 4096]).await.expect("written");
        nth += 1;
    }
    // The client goes on, and finds uploads close behind it.
    sleep(Duration::from_secs(5)).await;
    let mut has_eased = false;
    for nth in 0..500 {
        let status = volume.status();
        if status.unsent_bytes >= two_batches {
            // One is closed, at least.
            let least = if is_small { 1000 } else { 500 };
            assert!(status.upload_pressure >= least, "{nth}: {}", status.upload_pressure);
            has_eased |= status.upload_pressure < 1000;
        }
        if nth == 100 {
            volume.flush_remote().await.expect("an empty journal is no end of it");
        }
        // Two batches and one that is filled; the journal gives back a sixth at a time.
        assert!(percent() < 45, "{nth}: {} %", percent());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(has_eased || is_small, "what keeps up goes in short pieces");
    client.abort();
    let _ = client.await;
    sleep(Duration::from_secs(3)).await;
    volume.flush_remote().await.expect("stored");
    for nth in 0..20 {
        write(&volume, nth % 16 * 4096, &[1; 4096]).await.expect("written");
    }
    let status = volume.status();
    assert!(status.unsent_bytes >= two_batches && percent() < 50, "{status:?}");
    assert_eq!(status.upload_pressure, 0, "the next burst is one again");
}

#[test]
fn uploads_follow_a_load_that_goes_on_sooner_than_a_burst() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        host.options.batch.age = Duration::from_secs(300);
        let (volume, _) = host.open().await;
        let others = busy_others(&host);
        sleep(Duration::from_secs(1)).await;
        owe(&host, Class::Upload).await;
        for nth in 0_u64.. {
            if percent_full(&volume) >= 55 {
                break;
            }
            assert!(volume.status().upload_pressure < 1000, "a burst is taken in");
            write(&volume, nth % 16 * 4096, &[9; 4096]).await.expect("written");
        }
        volume.flush_remote().await.expect("stored");
        // A twentieth of the journal per second, and a batch in two.
        for nth in 0..80 {
            write(&volume, nth % 16 * 4096, &[9; 4096]).await.expect("written");
            // From half of it on, and not where a burst would settle.
            let most = if nth < 60 { 59 } else { 45 };
            assert!(percent_full(&volume) <= most, "{nth}: {} %", percent_full(&volume));
            sleep(Duration::from_millis(250)).await;
        }
        others.abort();
    });
}

#[test]
fn uploads_follow_a_load_that_goes_on_once_its_data_gets_old() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(8);
        host.options.journal.segments_max = 80;
        let (volume, client) = busy_volume(&host).await;
        // It fills a quarter of the journal before age alone would press fully.
        sleep(Duration::from_secs(6)).await;
        for nth in 0..400 {
            assert!(percent_full(&volume) < 30, "{nth}: a burst");
            let age = volume.status().unsent_age_ms.unwrap_or(0);
            assert!(age < 5000, "{nth}: {age} ms");
            sleep(Duration::from_millis(50)).await;
        }
        client.abort();
    });
}

#[test]
fn uploads_follow_a_load_that_became_light_until_little_waits() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        host.options.journal.segments_max = 24;
        let (volume, client) = busy_volume(&host).await;
        let slow = Duration::from_secs(25);
        host.faults.change(|plan| plan.latency = slow..=slow);
        while volume.status().upload_pressure < 1000 {
            sleep(Duration::from_millis(50)).await;
        }
        assert!(percent_full(&volume) < 60, "the load goes on");
        client.abort();
        let _ = client.await;
        let others = busy_others(&host);
        sleep(Duration::from_secs(23)).await;
        let waits = || volume.status().unsent_bytes;
        assert!(waits() > 12 * host.options.batch.bytes, "the store is slow");
        host.faults.change(|plan| plan.latency = Duration::ZERO..=Duration::ZERO);
        sleep(Duration::from_secs(15)).await;
        // A sixteenth of the journal, and what a batch has.
        assert!(waits() <= 7 * host.options.batch.bytes, "{} bytes", waits());
        others.abort();
    });
}

#[test]
fn what_follows_a_load_is_pressed_by_age_as_well() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(8);
        let (volume, client) = busy_volume(&host).await;
        write_until_followed(&volume).await;
        client.abort();
        let _ = client.await;
        let others = busy_others(&host);
        write(&volume, 0, &[1; 512]).await.expect("written");
        for nth in 0..190 {
            let age = volume.status().unsent_age_ms.unwrap_or(0);
            assert!(age < 8000, "{nth}: {age} ms");
            sleep(Duration::from_millis(50)).await;
        }
        others.abort();
    });
}

#[test]
fn uploads_follow_no_light_load_though_other_clients_are_there() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(600);
        let (volume, client) = busy_volume(&host).await;
        write_until_followed(&volume).await;
        sleep(Duration::from_secs(15)).await;
        client.abort();
        let _ = client.await;
        let others = busy_others(&host);
        for second in 0..25 {
            write(&volume, second * 4096, &[1; 512]).await.expect("written");
            sleep(Duration::from_secs(1)).await;
        }
        let before = volume.status();
        assert_eq!(before.upload_pressure, 0, "its load is light");
        write(&volume, 0, &[2; 512]).await.expect("written");
        sleep(Duration::from_secs(1)).await;
        let after = volume.status();
        assert_eq!(after.objects_written, before.objects_written, "so it waits for others");
        others.abort();
    });
}

#[test]
fn the_age_of_data_presses_uploads() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.rpo = Duration::from_secs(8);
        // So large that the load is light.
        host.options.journal.segments_max = 256;
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
        let others = busy_others(&host);
        sleep(Duration::from_secs(1)).await;
        owe(&host, Class::Upload).await;
        write(&volume, 0, &[1; 4096]).await.expect("written");
        sleep(Duration::from_secs(8)).await;
        assert_eq!(volume.status().unsent_bytes, 0);
        assert_eq!(volume.status().rpo_missed, 0);
        others.abort();
    });
}

#[test]
fn copies_wait_before_they_read() {
    run(async {
        let mut host = Host::new().await;
        host.options.collect.start_percent = 0;
        let cache = Arc::new(MemoryFrameCache::new(256 << 10));
        let (volume, _) =
            host.try_open(|args| args.blocks = cache.clone().into()).await.expect("opens");
        fill(&volume, 1).await;
        volume.flush_remote().await.expect("stored");
        // A quarter of it is dead: less than makes the collector wanted, more than it leaves once it has begun.
        for at in (0..SIZE / 4).step_by(4096) {
            write(&volume, at * 4, &[2; 4096]).await.expect("written");
        }
        volume.close().await.expect("closes");
        drop(volume);
        // Where frames are in the objects is known from here on: what waits is the copy itself.
        let (volume, _) =
            host.try_open(|args| args.blocks = cache.clone().into()).await.expect("opens");
        read(&volume, 0, usize::try_from(SIZE).expect("small")).await.expect("read");
        volume.close().await.expect("closes");
        drop(volume);
        host.options.collect.start_percent = 90;
        let others = busy_others(&host);
        sleep(Duration::from_secs(1)).await;
        owe(&host, Class::Copy).await;
        let (volume, _) =
            host.try_open(|args| args.blocks = cache.clone().into()).await.expect("opens");
        let before = host.store.counters().bytes_down;
        sleep(Duration::from_secs(5)).await;
        let read = host.store.counters().bytes_down - before;
        assert!(read < SIZE / 8, "they have had theirs: {read} bytes");
        others.abort();
        let _ = others.await;
        sleep(Duration::from_secs(5)).await;
        assert!(host.store.counters().bytes_down > before + SIZE / 2, "nobody is there any more");
        assert!(volume.status().collected_objects > 0);
    });
}

/// A directory may lie on the disk that clients use: what a copy reads there has leave, as what it writes has. Its
/// threads wait for the pacer by the clock on the wall.
#[test]
fn copies_have_leave_to_read_a_directory_and_to_write_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", directory.path().display());
        let mut host = Host::over(&url, false).await;
        // One that injects faults has no pieces to wait for.
        host.store = Store::open(&url).expect("opens");
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        for at in (0..SIZE).step_by(4096).filter(|at| at % (32 << 10) < 28 << 10) {
            write(&volume, at, &[2; 4096]).await.expect("written");
        }
        volume.flush_remote().await.expect("stored");
        let copied = async {
            while volume.status().collected_bytes == 0 {
                sleep(Duration::from_millis(10)).await;
            }
            volume.status().collected_bytes
        };
        let copied = timeout(Duration::from_secs(60), copied).await.expect("collected");
        let given = host.env.pacer.given(Class::Copy).bytes;
        assert!(given >= 2 * copied, "leave for {given} bytes, {copied} copied");
        volume.close().await.expect("closed");
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
