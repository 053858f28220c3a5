//! Every stage in every place keeps the contract.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{
    Device, DeviceError, DeviceInfo, IoHeader, Operation, Reply, SourceId, VolumeId, conformance,
};
use weir_stack::{LimitSettings, Stack, StageSpec, TraceSpec};

use crate::split::splitter;
use crate::support::{Host, MemorySink, in_memory, run};
use crate::write_back::{Knobs, write_back};

/// The operations of the suite, as a client would make them: limits hold for clients only.
struct AsClient(Rc<Stack>);

impl Device for AsClient {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let io = IoHeader::of_client(SourceId(1), VolumeId([1; 16]));
        self.0.call(io, operation).await
    }
}

fn limit() -> StageSpec {
    let burst = Some(Duration::from_millis(20));
    StageSpec::Limit(LimitSettings::checked(Some(500), Some(8 << 20), burst).expect("valid"))
}

fn trace(sink: &Rc<MemorySink>) -> StageSpec {
    StageSpec::Trace(TraceSpec::new(Rc::clone(sink) as Rc<_>, "demo".to_owned()))
}

/// Every stage alone, and all of them in two orders.
fn stacks() -> Vec<(&'static str, Vec<StageSpec>)> {
    let (hits, knobs, sink) = (Rc::new(Cell::new(0)), Rc::default(), Rc::default());
    vec![
        ("plain", Vec::new()),
        ("limit", vec![limit()]),
        ("trace", vec![trace(&sink)]),
        ("splitter", vec![splitter(&hits)]),
        ("write-back", vec![write_back(&knobs)]),
        ("all", vec![limit(), trace(&sink), splitter(&hits), write_back(&Rc::<Knobs>::default())]),
        (
            "reversed",
            vec![splitter(&hits), write_back(&Rc::<Knobs>::default()), trace(&sink), limit()],
        ),
    ]
}

#[test]
fn every_stack_over_memory_conforms() {
    run(async {
        for seed in 0..3 {
            for (name, stages) in stacks() {
                let stack = AsClient(in_memory(300_001, stages).await);
                conformance::run(&stack, seed, 200).await;
                assert_eq!(stack.0.in_flight(), 0, "{name}");
            }
        }
    });
}

#[test]
fn every_stack_over_a_log_volume_conforms_and_is_there_elsewhere() {
    run(async {
        for (nth, (name, stages)) in (0..).zip(stacks()) {
            let host = Host::new().await;
            let stack = AsClient(host.open(stages).await);
            conformance::run(&stack, nth, 150).await;
            let mut shown = vec![0; 1 << 20];
            weir_device::DeviceExt::read(&stack, 0, &mut shown).await.expect("read");
            stack.0.close(Duration::from_secs(60)).await.expect("closes");
            let elsewhere = host.other().open(Vec::new()).await;
            let mut found = vec![0; 1 << 20];
            weir_device::DeviceExt::read(&*elsewhere, 0, &mut found).await.expect("read");
            assert!(shown == found, "{name}: what was acknowledged is elsewhere");
        }
    });
}

#[test]
fn a_stage_that_keeps_what_was_read_answers_from_it() {
    run(async {
        let hits = Rc::new(Cell::new(0));
        let stack = in_memory(300_001, vec![splitter(&hits)]).await;
        conformance::run(&AsClient(stack), 1, 300).await;
        assert!(hits.get() > 50, "{}", hits.get());
    });
}
