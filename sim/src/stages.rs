//! The stages of the stack that a node serves its volume from: a limit that may be set, changed and taken away while
//! clients wait in it, a trace whose sink is slow or fails.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use weir_device::{DeviceError, ErrorKind, LocalBoxFuture};
use weir_stack::{LimitSettings, Stack, StageSpec, StageStatus, TraceSink, TraceSpec};

use crate::dice::Dice;
use crate::write_back::write_back;

/// What the stacks of a seed are made of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StagesProfile {
    /// Lives, in a hundred, that begin with a limit.
    limited_percent: u64,
    /// The limit is changed: time between two changes, about.
    pub(crate) changes: Option<Duration>,
    /// What clients ask for is recorded.
    is_traced: bool,
    /// A stage acknowledges writes before the log volume does.
    pub(crate) holds_writes: bool,
}

impl StagesProfile {
    /// One third of the seeds has no stages. It draws from a stream of its own.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        if dice.percent(33) {
            return Self::default();
        }
        Self {
            limited_percent: dice.pick(&[0, 30, 80]),
            changes: dice.percent(70).then(|| Duration::from_millis(dice.pick(&[60, 250, 1_000]))),
            is_traced: dice.percent(40),
            holds_writes: dice.percent(30),
        }
    }
}

impl StagesProfile {
    /// Whether there may be any stage.
    pub(crate) fn any(&self) -> bool {
        self.limited_percent > 0 || self.changes.is_some() || self.is_traced || self.holds_writes
    }
}

impl StagesProfile {
    /// The stages of an opening, as a node describes them: a limit, and below it the trace of what it lets through.
    pub(crate) fn describe(&self, dice: &mut Dice) -> Vec<StageSpec> {
        let mut stages = Vec::new();
        if dice.percent(self.limited_percent) {
            stages.push(StageSpec::Limit(usual_limit(dice)));
        }
        if self.is_traced {
            let sink = Rc::new(SimSink::new(dice.next(), dice.pick(&[0, 0, 40])));
            stages.push(StageSpec::Trace(TraceSpec::new(sink, "simulated".to_owned())));
        }
        if self.holds_writes {
            stages.push(write_back());
        }
        stages
    }
}

/// A limit as a user may set it: clients wait in it now and then.
pub(crate) fn usual_limit(dice: &mut Dice) -> LimitSettings {
    let burst = Duration::from_millis(dice.pick(&[10, 100, 1_000]));
    let iops = dice.percent(60).then(|| dice.within(100..2_000));
    let bytes = (iops.is_none() || dice.percent(60)).then(|| dice.within(200_000..20_000_000));
    LimitSettings::checked(iops, bytes, Some(burst)).expect("rates above zero")
}

/// One that lets next to nothing through: whoever waits in it would for minutes.
pub(crate) fn narrow_limit(dice: &mut Dice) -> LimitSettings {
    let burst = Duration::from_millis(dice.pick(&[10, 100]));
    let iops = dice.percent(60).then(|| dice.within(1..5));
    let bytes = (iops.is_none() || dice.percent(60)).then(|| dice.within(300..5_000));
    LimitSettings::checked(iops, bytes, Some(burst)).expect("rates above zero")
}

/// One that holds up nothing.
pub(crate) fn wide_limit() -> LimitSettings {
    let most = NonZeroU64::new(1 << 40);
    LimitSettings { iops: most, bytes_per_second: most, ..LimitSettings::default() }
}

/// Operations that wait in the limits of a stack.
pub(crate) fn waiting(stack: &Stack) -> u64 {
    let waits = |stage: StageStatus| match stage {
        StageStatus::Limit { waiting, .. } => waiting,
        StageStatus::Trace(_)
        | StageStatus::Remote(_)
        | StageStatus::File(_)
        | StageStatus::Other(_) => 0,
    };
    stack.layers().into_iter().map(|layer| waits(layer.stage)).sum()
}

/// A trace that goes nowhere: its file is slow, and may fail.
struct SimSink {
    dice: RefCell<Dice>,
    fails_percent: u64,
    lines: Cell<u64>,
}

impl SimSink {
    fn new(seed: u64, fails_percent: u64) -> Self {
        Self { dice: RefCell::new(Dice::new(seed, 62)), fails_percent, lines: Cell::new(0) }
    }
}

impl TraceSink for SimSink {
    fn append<'a>(&'a self, lines: &'a [u8]) -> LocalBoxFuture<'a, Result<(), DeviceError>> {
        let (ms, fails) = {
            let mut dice = self.dice.borrow_mut();
            (dice.pick(&[0, 1, 100]), dice.percent(self.fails_percent))
        };
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            if fails {
                return Err(DeviceError::new(ErrorKind::NoSpace, "the file of the trace is full"));
            }
            let more = lines.iter().filter(|byte| **byte == b'\n').count();
            self.lines.set(self.lines.get() + more as u64);
            Ok(())
        })
    }
}
