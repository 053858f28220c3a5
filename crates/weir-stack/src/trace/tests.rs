//! The trace with sinks that are slow, and that fail.

use tokio::task::LocalSet;
use weir_device::{
    Change, DeviceExt, ErrorKind, FlushScope, MemoryDevice, Segment, SharedBuf, conformance,
};

use super::*;
use weir_device::testing::env;

#[derive(Default)]
struct Sink {
    text: RefCell<Vec<u8>>,
    pause: Cell<Duration>,
    fails: Cell<bool>,
}

impl TraceSink for Sink {
    fn append<'a>(&'a self, lines: &'a [u8]) -> LocalBoxFuture<'a, Result<(), DeviceError>> {
        Box::pin(async move {
            tokio::time::sleep(self.pause.get()).await;
            if self.fails.get() {
                return Err(DeviceError::new(ErrorKind::NoSpace, "no space is left"));
            }
            self.text.borrow_mut().extend_from_slice(lines);
            Ok(())
        })
    }
}

impl Sink {
    fn requests(&self) -> Vec<(Op, u64, u64)> {
        let text = std::io::Cursor::new(self.text.borrow().clone());
        let trace = weir_trace::read(text, "memory", None).expect("a trace");
        trace.map(|r| r.expect("a line")).map(|r| (r.op, r.offset, r.len)).collect()
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

fn traced(sink: &Rc<Sink>, change: impl FnOnce(&mut TraceSpec)) -> Trace<MemoryDevice> {
    let mut spec = TraceSpec::new(Rc::clone(sink) as Rc<dyn TraceSink>, "demo".to_owned());
    change(&mut spec);
    Trace::new(MemoryDevice::new(300_001), TraceLog::begin(&env(0), spec))
}

async fn write(trace: &Trace<MemoryDevice>, offset: u64) {
    trace.write(offset, SharedBuf::copy_of(&[1; 512])).await.expect("written");
}

#[test]
fn a_traced_device_conforms_with_a_sink_that_fails_now_and_then() {
    run(async {
        for seed in 0..4 {
            let sink = Rc::new(Sink::default());
            sink.fails.set(seed % 2 == 1);
            let trace = traced(&sink, |_| {});
            conformance::run(&trace, seed, 200).await;
            trace.close().await.expect("closed");
            let status = trace.log.status();
            assert_eq!(status.recorded == 0, seed % 2 == 1, "{status:?}");
        }
    });
}

#[test]
fn what_passes_is_what_a_reader_of_traces_finds() {
    run(async {
        let sink = Rc::new(Sink::default());
        let trace = traced(&sink, |_| {});
        write(&trace, 512).await;
        trace.read(100, &mut [0; 50]).await.expect("read");
        trace.discard(0, 4096).await.expect("discarded");
        trace.extents(0, 4096, 1).await.expect("reported");
        trace.flush(FlushScope::Local).await.expect("flushed");
        let segments = vec![
            Segment { offset: 7, change: Change::Data(SharedBuf::copy_of(&[1; 3])) },
            Segment { offset: 9, change: Change::Zeroes(20) },
        ];
        trace.internal(Operation::Batch { segments, fua: false }).await.expect("written");
        trace.close().await.expect("closed");
        let expected = [
            (Op::Write, 512, 512),
            (Op::Read, 100, 50),
            (Op::Discard, 0, 4096),
            (Op::Flush, 0, 0),
            (Op::Write, 7, 3),
            (Op::Discard, 9, 20),
        ];
        assert_eq!(sink.requests(), expected);
        assert_eq!(trace.log.status(), TraceStatus { recorded: 6, ..TraceStatus::default() });
        // Only some kinds.
        let sink = Rc::new(Sink::default());
        let trace = traced(&sink, |spec| spec.kinds = vec![Kind::Write]);
        trace.read(100, &mut [0; 50]).await.expect("read");
        write(&trace, 0).await;
        trace.close().await.expect("closed");
        assert_eq!(sink.requests(), [(Op::Write, 0, 512)]);
    });
}

#[test]
fn a_sink_that_hangs_delays_nobody_and_what_is_missing_is_said() {
    run(async {
        let sink = Rc::new(Sink::default());
        sink.pause.set(Duration::from_secs(60));
        let trace = traced(&sink, |_| {});
        let begun = tokio::time::Instant::now();
        for nth in 0..20_000 {
            write(&trace, nth).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waited");
        let dropped = trace.log.status().dropped;
        assert!((1000..19_000).contains(&dropped), "{dropped}");
        sink.pause.set(Duration::ZERO);
        trace.close().await.expect("closed");
        let status = trace.log.status();
        assert_eq!(status.recorded + status.dropped, 20_000);
        assert_eq!(sink.requests().len() as u64, status.recorded);
        let text = String::from_utf8(sink.text.borrow().clone()).expect("text");
        assert!(text.contains(&format!("# {dropped} requests are missing\n")), "it is said");
    });
}

#[test]
fn a_sink_that_fails_and_a_trace_that_is_full_cost_records_and_nothing_else() {
    run(async {
        let sink = Rc::new(Sink::default());
        let trace = traced(&sink, |spec| spec.bytes_max = 4000);
        sink.fails.set(true);
        write(&trace, 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = trace.log.status();
        assert_eq!((status.recorded, status.dropped), (0, 1));
        assert_eq!(status.error.as_deref(), Some("no space is left"));
        sink.fails.set(false);
        for nth in 0..1000 {
            write(&trace, nth).await;
        }
        trace.close().await.expect("closed");
        let status = trace.log.status();
        assert!(status.is_full && status.error.is_none(), "{status:?}");
        assert_eq!(status.recorded + status.dropped, 1001);
        assert_eq!(sink.requests().len() as u64, status.recorded);
        assert!(sink.text.borrow().len() < 4500);
        let text = String::from_utf8(sink.text.borrow().clone()).expect("text");
        let missing = text.lines().filter_map(|line| line.strip_prefix("# "));
        let missing = missing.filter_map(|line| line.strip_suffix(" requests are missing"));
        let said: u64 = missing.map(|count| count.parse::<u64>().expect("a number")).sum();
        assert_eq!(said, status.dropped, "what the sink refused is said as well: {text}");
    });
}
