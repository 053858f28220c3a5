//! What passes a whole stack in one piece: batches on their way down, cached bytes on their way up.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{Change, Device, DeviceExt, IoHeader, Operation, Segment, SharedBuf, Slice};
use weir_device::{SourceId, VolumeId};
use weir_log::BatchLimits;
use weir_stack::{LimitSettings, Stack, StageSpec, TraceSpec};

use crate::split::splitter;
use crate::support::{Host, MemorySink, SIZE, in_memory, run, write};

fn stages() -> Vec<StageSpec> {
    let limit = LimitSettings::checked(Some(1_000_000), None, None).expect("valid");
    let sink: Rc<MemorySink> = Rc::default();
    vec![
        StageSpec::Limit(limit),
        StageSpec::Trace(TraceSpec::new(sink, "demo".to_owned())),
        splitter(&Rc::new(Cell::new(0))),
    ]
}

#[test]
fn a_batch_of_200_segments_is_one_group_commit_through_the_whole_stack() {
    run(async {
        let host = Host::new().await;
        let stack = host.open(stages()).await;
        write(&stack, 0, 9).await.expect("written");
        let before = stack.log_status().expect("a log volume");
        let segments = (0..200_u8).map(|nth| {
            let data = SharedBuf::copy_of(&[nth; 512]);
            Segment { offset: u64::from(nth) * 5000, change: Change::Data(data) }
        });
        let batch = Operation::Batch { segments: segments.collect(), fua: true };
        let io = IoHeader::of_client(SourceId(1), VolumeId([1; 16]));
        stack.call(io, batch).await.expect("written");
        let after = stack.log_status().expect("a log volume");
        assert_eq!(after.journal_records - before.journal_records, 1);
        assert_eq!(after.journal_fsyncs - before.journal_fsyncs, 1);
        for nth in 0..200_u8 {
            let mut buf = [0; 512];
            stack.read(u64::from(nth) * 5000, &mut buf).await.expect("read");
            assert_eq!(buf, [nth; 512]);
        }
    });
}

#[test]
fn what_the_cache_has_passes_every_stage_without_a_copy() {
    run(async {
        let mut host = Host::new().await;
        host.options.batch = BatchLimits { bytes: SIZE, ..BatchLimits::default() };
        let stack = host.open(Vec::new()).await;
        for block in 0..32 {
            write(&stack, block * 4096, 7).await.expect("written");
        }
        stack.close(Duration::from_secs(60)).await.expect("closes");
        // Elsewhere, where no journal has the bytes.
        let stack = host.other().open(stages()).await;
        let ask = async |stack: &Stack| {
            let read = Operation::Read { offset: 8192, len: 4096 };
            let data = stack.internal(read).await.expect("read").into_data().expect("data");
            let [slice] = data.slices().to_vec().try_into().expect("in one piece");
            assert!(matches!(slice, Slice::Cached(_)), "in the memory of the cache");
            slice.as_ptr()
        };
        let first = ask(&stack).await;
        assert_eq!(first, ask(&stack).await, "the same memory");
    });
}

#[test]
fn the_call_of_a_stack_is_small() {
    run(async {
        let stack = in_memory(SIZE, Vec::new()).await;
        let read = Operation::Read { offset: 0, len: 512 };
        // Every slot of a connection has room for one.
        let whole = size_of_val(&stack.call(IoHeader::internal(), read));
        assert!(whole < 4096, "{whole} bytes");
    });
}
