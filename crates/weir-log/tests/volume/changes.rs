//! Changed blocks: what a comparison reports makes one snapshot into the other, and it reports little more.

use std::time::Duration;

use weir_device::ErrorKind;
use weir_log::{Change, Changes, changes};

use crate::support::{Host, SIZE, discard, fill, name, pattern, run, show, write};

async fn compare(host: &Host, from: &str, to: &str) -> (Vec<Change>, Changes) {
    let mut found = Vec::new();
    let (from, to) = (name(from), name(to));
    let sum =
        changes(&host.store, &host.env, (host.id, &host.keys), (&from, &to), async |change| {
            found.push(change)
        });
    let sum = sum.await.expect("compared");
    (found, sum)
}

/// Applies what is reported to the first snapshot, as an incremental backup does.
async fn expect_rebuilt(host: &Host, from: &str, to: &str) -> Changes {
    let (found, sum) = compare(host, from, to).await;
    let (mut image, wanted) = (show(host, from).await, show(host, to).await);
    image.resize(wanted.len(), 0);
    let mut last_end = 0;
    for Change { offset, len, zero } in found {
        assert!(offset >= last_end, "in order");
        last_end = offset + len;
        let at = |byte: u64| usize::try_from(byte).expect("small");
        let range = at(offset)..at(offset + len);
        if zero {
            image[range].fill(0);
        } else {
            image[range.clone()].copy_from_slice(&wanted[range]);
        }
    }
    assert!(image == wanted, "{from} to {to}");
    sum
}

#[test]
fn a_backup_of_what_changed_makes_one_snapshot_into_the_other() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        fill(&volume, 1).await;
        volume.snapshot(&name("full")).await.unwrap();
        volume.snapshot(&name("same")).await.unwrap();
        write(&volume, 12_345, &pattern(2, 4096)).await.unwrap();
        discard(&volume, 65_536, 8192).await;
        volume.snapshot(&name("little")).await.unwrap();
        volume.resize(2 * SIZE).await.unwrap();
        fill(&volume, 3).await;
        for n in 0..600 {
            let offset = n * n * 7919 % (SIZE - 5000);
            write(&volume, offset, &pattern(n, 5000)).await.unwrap();
        }
        write(&volume, SIZE + 5, &[7; 100]).await.unwrap();
        volume.flush_remote().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(volume.status().collected_objects > 0, "the collector must have moved something");
        volume.snapshot(&name("much")).await.unwrap();

        assert_eq!(compare(&host, "full", "same").await.0, []);
        let little = expect_rebuilt(&host, "full", "little").await;
        assert_eq!((little.data_bytes, little.zero_bytes), (4096, 8192));
        assert_eq!((little.from_size, little.to_size), (SIZE, SIZE));
        let much = expect_rebuilt(&host, "little", "much").await;
        assert_eq!((much.data_bytes, much.to_size), (SIZE + 100, 2 * SIZE));
        let back = expect_rebuilt(&host, "much", "full").await;
        assert_eq!(back.data_bytes, SIZE, "up to the end of the second one");

        let (from, to) = (name("full"), name("never"));
        let missing =
            changes(&host.store, &host.env, (host.id, &host.keys), (&from, &to), async |_| {})
                .await;
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    });
}
