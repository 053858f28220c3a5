//! Encrypted volumes: nothing of them shows in the store or on the disk, and only their own key opens them.

use weir_device::ErrorKind;
use weir_disk::OpenMode;
use weir_log::catalog::RekeyKeys;
use weir_log::{CheckOptions, JOURNAL_FILE, KeyError, Keys, LogError, catalog, check};

use crate::support::{
    Host, SIZE, expect_bytes, fill, filled, keys, name, pattern, read, run, show, write,
};

const MARK: &[u8; 16] = b"marked plaintext";

fn shows_mark(bytes: &[u8]) -> bool {
    bytes.windows(MARK.len()).any(|window| window == MARK)
}

/// Everything the store holds, by key.
async fn stored(host: &Host) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for listed in host.store.list("", None).await.expect("listed") {
        all.push((listed.key.clone(), host.store.get(&listed.key).await.expect("there").to_vec()));
    }
    all
}

async fn journal(host: &Host) -> Vec<u8> {
    let file = host.disk.directory().open(JOURNAL_FILE, OpenMode::Existing).await.expect("there");
    let len = usize::try_from(file.len().await.expect("known")).expect("small");
    let (bytes, result) = file.read_at(weir_device::AlignedBuf::zeroed(len), 0).await;
    result.expect("read");
    bytes.to_vec()
}

#[test]
fn nothing_of_what_is_written_shows_and_all_of_it_comes_back() {
    run(async {
        for encrypted in [false, true] {
            let host = if encrypted { Host::encrypted().await } else { Host::new().await };
            // Bytes that do not shrink, so that the marks among them show where nothing is encrypted.
            let mut data = pattern(7, 37 << 10);
            for at in (100..data.len() - MARK.len()).step_by(1000) {
                data[at..at + MARK.len()].copy_from_slice(MARK);
            }
            let written = data.clone();
            host.in_killed_process(|volume| async move {
                write(&volume, 100, &written).await.expect("written");
                volume.flush_remote().await.expect("in the store");
                // Some of it only in the journal.
                write(&volume, 200_000, &written).await.expect("written");
                // Too little for an object.
                write(&volume, 300_000, b"rest").await.expect("written");
            })
            .await;
            let (volume, report) = host.open().await;
            assert!(report.replayed_writes > 0);
            expect_bytes(&volume, 100, &data).await;
            expect_bytes(&volume, 200_000, &data).await;
            volume.flush_remote().await.expect("in the store");
            let store = stored(&host).await;
            let objects = store.iter().filter(|(key, _)| key.contains("/log/"));
            assert_eq!(objects.clone().any(|(_, bytes)| shows_mark(bytes)), !encrypted, "objects");
            assert!(objects.count() > 0);
            let others = store.iter().filter(|(key, _)| !key.contains("/log/"));
            assert!(!others.clone().any(|(_, bytes)| shows_mark(bytes)), "in what is no object");
            assert_eq!(shows_mark(&journal(&host).await), !encrypted);
            drop(volume);
        }
    });
}

#[test]
fn snapshots_rollback_collection_and_takeover_work_as_without() {
    run(async {
        let host = Host::encrypted().await;
        let first = host
            .in_killed_process(|volume| async move {
                let first = fill(&volume, 1).await;
                volume.snapshot(&name("first")).await.expect("taken");
                for round in 2..6 {
                    fill(&volume, round).await;
                    volume.flush_remote().await.expect("in the store");
                }
                first
            })
            .await;
        assert!(show(&host, "first").await == first);
        let elsewhere = host.other(9);
        let (volume, _) = elsewhere.try_open(|args| args.take_over = true).await.expect("opens");
        volume.rollback(&name("first")).await.expect("goes back");
        expect_bytes(&volume, 0, &first).await;
        volume.close().await.expect("closed");
        drop(volume);
        let volume = (host.id, &host.keys);
        let report = check(&host.store, &host.env, volume, &CheckOptions::default(), |_| {})
            .await
            .expect("answers");
        assert_eq!((report.damage.len(), report.without_key), (0, None));
    });
}

fn key_error(error: LogError) -> KeyError {
    match error {
        LogError::Key(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_key_that_is_missing_wrong_or_changed_is_told_apart_and_nothing_is_written() {
    run(async {
        let host = Host::encrypted().await;
        let data = filled(&host, 1).await;
        let (before, journal_before) = (stored(&host).await, journal(&host).await);
        for (keys, message) in [
            (Keys::default(), "no key is configured"),
            (keys(&[1]), "and the test has key"),
            (keys(&[1, 2]), ", key"),
        ] {
            let refused = host.try_open(|args| args.keys = keys).await;
            let error = key_error(refused.expect_err("refused"));
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        let now = stored(&host).await;
        let leases = |all: &[(String, Vec<u8>)]| {
            all.iter().filter(|(key, _)| !key.starts_with("leases/")).cloned().collect::<Vec<_>>()
        };
        assert!(leases(&now) == leases(&before) && journal(&host).await == journal_before);
        let (volume, _) = host.try_open(|args| args.keys = keys(&[1, 0x0f])).await.expect("opens");
        expect_bytes(&volume, 0, &data).await;
    });
}

#[test]
fn a_key_is_wrapped_anew_without_rewriting_anything() {
    run(async {
        let host = Host::encrypted().await;
        let (volume, _) = host.open().await;
        let data = fill(&volume, 1).await;
        let (store, env, demo) = (&host.store, &host.env, &name("demo"));
        let new = keys(&[0x55]);
        let open = catalog::rekey(store, env, demo, RekeyKeys { old: &host.keys, new: &new }).await;
        assert_eq!(open.expect_err("it is open").kind(), ErrorKind::Busy);
        volume.close().await.expect("closed");
        drop(volume);
        let is_object = |(key, _): &(String, Vec<u8>)| key.contains("/log/");
        let objects = stored(&host).await.into_iter().filter(is_object).collect::<Vec<_>>();
        let wrong = catalog::rekey(store, env, demo, RekeyKeys { old: &new, new: &new })
            .await
            .expect_err("refused");
        assert!(matches!(key_error(wrong), KeyError::Wrong { .. }));
        let none =
            catalog::rekey(store, env, demo, RekeyKeys { old: &host.keys, new: &Keys::default() })
                .await;
        assert_eq!(key_error(none.expect_err("refused")), KeyError::NoneToWrapWith);
        catalog::rekey(store, env, demo, RekeyKeys { old: &host.keys, new: &new })
            .await
            .expect("wrapped");
        assert!(stored(&host).await.into_iter().filter(is_object).collect::<Vec<_>>() == objects);
        let old = host.try_open(|_| {}).await.expect_err("the old key is of no use");
        assert!(matches!(key_error(old), KeyError::Wrong { .. }));
        let (volume, _) = host.try_open(|args| args.keys = new).await.expect("opens");
        expect_bytes(&volume, 0, &data).await;
        let plain = Host::new().await;
        let both = RekeyKeys { old: &host.keys, new: &host.keys };
        let refused = catalog::rekey(&plain.store, &plain.env, demo, both).await;
        let error = key_error(refused.expect_err("refused")).to_string();
        assert!(error.contains("weir volume copy"), "{error}");
    });
}

#[test]
fn a_check_without_the_key_verifies_checksums_and_says_so() {
    run(async {
        let host = Host::encrypted().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.close().await.expect("closed");
        drop(volume);
        for (keys, without) in [(&host.keys, false), (&Keys::default(), true), (&keys(&[1]), true)]
        {
            let volume = (host.id, keys);
            let report = check(&host.store, &host.env, volume, &CheckOptions::default(), |_| {})
                .await
                .expect("answers");
            assert_eq!((report.damage.len(), report.without_key.is_some()), (0, without));
            assert!(report.objects > 0);
        }
    });
}

/// One wrong bit anywhere in the body of an object is an error, never wrong bytes.
#[test]
fn a_flipped_bit_is_damage() {
    run(async {
        let host = Host::encrypted().await;
        let data = filled(&host, 1).await;
        let objects = stored(&host).await.into_iter().filter(|(key, _)| key.contains("/log/"));
        let (key, good) = objects.max_by_key(|(_, bytes)| bytes.len()).expect("objects");
        // In a frame, and in the tag at the end of the last one.
        for at in [good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            host.store.delete(&key).await.expect("deleted");
            host.store.put_create(&key, vec![bad.into()]).await.expect("put");
            for keys in [&host.keys, &Keys::default()] {
                let volume = (host.id, keys);
                let report =
                    check(&host.store, &host.env, volume, &CheckOptions::default(), |_| {})
                        .await
                        .expect("answers");
                assert_eq!(report.damage.len(), 1, "byte {at}: {report:?}");
                assert_eq!(report.damage[0].place, key);
            }
            let (volume, _) = host.open().await;
            let mut failed = 0;
            for block in 0..SIZE / 4096 {
                let from = usize::try_from(block * 4096).expect("small");
                match read(&volume, block * 4096, 4096).await {
                    Ok(bytes) => assert!(bytes == data[from..from + 4096], "block {block}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt);
                        failed += 1;
                    }
                }
            }
            assert!(failed > 0);
            volume.close().await.expect("closed");
            drop(volume);
        }
    });
}
