//! The device that a volume is: batches, data where the cache has it, what replies depend on, news for those above.

use std::future::poll_fn;
use std::time::Duration;

use futures_util::FutureExt;
use weir_device::{
    Change, Device, DeviceExt, ErrorKind, Event, FlushScope, IoHeader, Operation, Segment,
    SharedBuf, Slice,
};
use weir_journal::JournalConfig;
use weir_log::{LogVolume, Takeover};

use crate::support::{Host, SIZE, expect_bytes, leases, name, pattern, read, run, write};

const PIECE: u64 = 4096;

/// From one write of a batch to the next.
const STRIDE: u64 = PIECE + 512;

/// So many writes of a block each, with a gap behind each.
fn batch(count: u8, fua: bool) -> Operation {
    let segments = (0..count).map(|nth| {
        let data = SharedBuf::copy_of(&vec![nth + 1; usize::try_from(PIECE).expect("small")]);
        Segment { offset: u64::from(nth) * STRIDE, change: Change::Data(data) }
    });
    Operation::Batch { segments: segments.collect(), fua }
}

async fn expect_batch(volume: &LogVolume, count: u8) {
    for nth in 0..count {
        let bytes = [nth + 1; 4096];
        expect_bytes(volume, u64::from(nth) * STRIDE, &bytes).await;
    }
}

fn next_event(volume: &LogVolume) -> Option<Event> {
    poll_fn(|cx| volume.poll_event(cx)).now_or_never()
}

#[test]
fn a_batch_of_200_segments_is_one_record_and_one_group_commit() {
    run(async {
        let mut host = Host::new().await;
        // Records as long as by default.
        host.options.journal = JournalConfig { segments_max: 8, ..JournalConfig::default() };
        let (volume, _) = host.open().await;
        write(&volume, 0, &[9; 10]).await.unwrap();
        let before = volume.status();
        volume.internal(batch(200, true)).await.unwrap();
        let after = volume.status();
        assert_eq!(after.journal_records - before.journal_records, 1, "as few records as fit");
        assert_eq!(after.journal_fsyncs - before.journal_fsyncs, 1);
        expect_batch(&volume, 200).await;
    });
}

#[test]
fn a_batch_goes_on_to_its_end_though_its_caller_goes_away() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let call = volume.call(IoHeader::internal(), batch(200, false));
        assert!(call.now_or_never().is_none(), "it is on its way");
        volume.snapshot(&name("later")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        expect_batch(&volume, 200).await;
    });
}

#[test]
fn changes_of_all_kinds_in_a_batch_are_made_in_order() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[7; 4096]).await.unwrap();
        let data = |byte, len| Change::Data(SharedBuf::copy_of(&vec![byte; len]));
        let changes = [
            (0, data(1, 1000)),
            (500, Change::Discard(1000)),
            (900, data(2, 200)),
            (2000, Change::Zeroes(96)),
            (2010, Change::Data(SharedBuf::default())),
        ];
        let segments = changes.map(|(offset, change)| Segment { offset, change }).into();
        volume.internal(Operation::Batch { segments, fua: false }).await.unwrap();
        let mut expected = vec![7; 4096];
        expected[..500].fill(1);
        expected[500..1500].fill(0);
        expected[900..1100].fill(2);
        expected[2000..2096].fill(0);
        expect_bytes(&volume, 0, &expected).await;
    });
}

#[test]
fn a_read_that_the_cache_answers_is_not_copied() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch.bytes = SIZE;
        let (volume, _) = host.open().await;
        let bytes = pattern(1, 200_000);
        write(&volume, 0, &bytes).await.unwrap();
        volume.close().await.unwrap();
        drop(volume);
        // Elsewhere, where no journal has the bytes.
        let host = host.other(5);
        let (volume, _) = host.open().await;
        let ask = async |offset, len| {
            let reply = volume.internal(Operation::Read { offset, len }).await.unwrap();
            reply.into_data().unwrap()
        };
        let first = ask(4096, 100_000).await;
        assert_eq!(first.to_vec(), bytes[4096..104_096]);
        assert!(first.slices().len() > 1, "of several frames");
        assert!(first.slices().iter().all(|slice| matches!(slice, Slice::Cached(_))));
        let [small] = ask(4096, 4096).await.slices().to_vec().try_into().expect("of one frame");
        assert_eq!(small.as_ptr(), first.slices()[0].as_ptr(), "the memory of the cache");
    });
}

#[test]
fn a_rollback_begins_another_content_and_tells_it() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        write(&volume, 0, &[1; 4096]).await.unwrap();
        volume.snapshot(&name("base")).await.unwrap();
        volume.resize(2 * SIZE).await.unwrap();
        assert!(matches!(next_event(&volume), Some(Event::Resized(size)) if size == 2 * SIZE));
        let ask = Operation::Read { offset: 0, len: 10 };
        let before = volume.internal(ask.clone()).await.unwrap().generation;
        assert_eq!(volume.internal(ask.clone()).await.unwrap().generation, before);
        volume.rollback(&name("base")).await.unwrap();
        let after = volume.internal(ask).await.unwrap().generation;
        assert_ne!(before, after, "what was read before is of another content");
        let event = next_event(&volume);
        assert!(
            matches!(event, Some(Event::ContentReplaced { generation }) if generation == after)
        );
        assert!(matches!(next_event(&volume), Some(Event::Resized(size)) if size == SIZE));
        assert!(next_event(&volume).is_none());
        volume.shrink(SIZE / 2).await.unwrap();
        assert!(matches!(next_event(&volume), Some(Event::Resized(size)) if size == SIZE / 2));
    });
}

#[test]
fn replies_depend_on_the_volume_and_do_not_keep_it_open() {
    run(async {
        let host = Host::new().await;
        let (volume, _) = host.open().await;
        let replied = leases(&volume).await;
        replied.check().unwrap();
        volume.close().await.unwrap();
        drop(volume);
        assert_eq!(replied.check().unwrap_err().kind(), ErrorKind::Unavailable);
        let (volume, _) = host.open().await;
        assert_eq!(replied.check().unwrap_err().kind(), ErrorKind::Unavailable);
        leases(&volume).await.check().unwrap();
    });
}

#[test]
fn a_flush_of_the_scope_store_survives_the_host() {
    run(async {
        let (host, gate) = Host::new().await.with_gate();
        let (volume, _) = host.open().await;
        volume.set_takeover(Takeover::Auto).await.unwrap();
        write(&volume, 0, &[1; 4096]).await.unwrap();
        volume.flush(FlushScope::Store).await.unwrap();
        gate.change(|plan| plan.outage = true);
        let other = host.other(5);
        let (taken, _) = other.open().await;
        assert_eq!(read(&taken, 0, 4096).await.unwrap(), [1; 4096]);
        write(&volume, 0, &[2; 10]).await.unwrap_err();
        let event = next_event(&volume);
        assert!(matches!(event, Some(Event::ExclusiveLost(_))), "{event:?}");
    });
}
