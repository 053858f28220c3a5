//! What keeps the bytes of the server: it answers after a while, and loses what was not flushed with its power.
//!
//! Late, it carries out a change only when it answers it; otherwise at once, as a log volume takes its place in the log
//! at once. A change that is dropped before it was carried out never is.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use weir_device::{
    AlignedBuf, Body, Change, Device, DeviceError, DeviceInfo, Extent, ExtentState, IoHeader,
    Operation, Reply, Segment,
};

use crate::dice::Dice;

/// Size in bytes.
pub(super) const SIZE: u64 = 16 << 10;

type Bytes = Vec<u8>;

/// One change of a range: its new bytes.
type Changed = (usize, Bytes);

pub(super) struct Medium {
    now: RefCell<Bytes>,
    stable: RefCell<Bytes>,
    pending: RefCell<Vec<Changed>>,
    dice: RefCell<Dice>,
    is_late: bool,
    /// How long it takes at most.
    pub(super) answer_ms_max: Cell<u64>,
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a small medium")
}

fn changes(operation: &Operation) -> Vec<Changed> {
    let zeroes = |offset: u64, len: u64| (to_usize(offset), vec![0; to_usize(len)]);
    match operation {
        Operation::Write { offset, data, .. } => vec![(to_usize(*offset), data.to_vec())],
        Operation::WriteZeroes { offset, len, .. } | Operation::Discard { offset, len } => {
            vec![zeroes(*offset, *len)]
        }
        Operation::Batch { segments, .. } => segments
            .iter()
            .map(|Segment { offset, change }| match change {
                Change::Data(data) => (to_usize(*offset), data.to_vec()),
                Change::Zeroes(len) | Change::Discard(len) => zeroes(*offset, *len),
            })
            .collect(),
        Operation::Read { .. } | Operation::Flush(_) | Operation::Extents { .. } => Vec::new(),
    }
}

fn apply(bytes: &mut [u8], (at, new): &Changed) {
    bytes[*at..at + new.len()].copy_from_slice(new);
}

impl Medium {
    pub(super) fn new(seed: u64, is_late: bool) -> Self {
        let empty = vec![0; to_usize(SIZE)];
        Self {
            now: RefCell::new(empty.clone()),
            stable: RefCell::new(empty),
            pending: RefCell::default(),
            dice: RefCell::new(Dice::new(seed, 41)),
            is_late,
            answer_ms_max: Cell::new(2),
        }
    }

    async fn take_time(&self) {
        let ms = {
            let mut dice = self.dice.borrow_mut();
            let most = self.answer_ms_max.get() + 1;
            if dice.percent(2) { dice.below(most * 20) } else { dice.below(most) }
        };
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    fn carry_out(&self, changes: Vec<Changed>) {
        let mut now = self.now.borrow_mut();
        for changed in changes {
            apply(&mut now, &changed);
            self.pending.borrow_mut().push(changed);
        }
    }

    fn persist(&self) {
        let mut stable = self.stable.borrow_mut();
        self.pending.borrow_mut().drain(..).for_each(|changed| apply(&mut stable, &changed));
    }

    /// Loses its power: what was not flushed is there or not, as the dice say, in the order in which it came.
    pub(super) fn lose_power(&self) {
        let kept = self.dice.borrow_mut().pick(&[0, 50, 90]);
        self.pending.borrow_mut().retain(|_| self.dice.borrow_mut().percent(kept));
        self.persist();
        self.now.replace(self.stable.borrow().clone());
    }
}

impl Device for Medium {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::local(SIZE)
    }

    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        operation.check_bounds(SIZE)?;
        let mut changes = changes(&operation);
        let fua = match &operation {
            Operation::Write { fua, .. } | Operation::Batch { fua, .. } => *fua,
            Operation::WriteZeroes { flags, .. } => flags.fua,
            _ => false,
        };
        if !self.is_late {
            self.carry_out(std::mem::take(&mut changes));
        }
        self.take_time().await;
        self.carry_out(changes);
        if fua || matches!(operation, Operation::Flush(_)) {
            self.persist();
        }
        Ok(Reply::new(match operation {
            Operation::Read { offset, len } => {
                let now = self.now.borrow();
                let at = to_usize(offset);
                Body::Data(AlignedBuf::copy_of(&now[at..at + to_usize(len)]).into())
            }
            Operation::Extents { len, .. } => {
                Body::Extents(vec![Extent { len, state: ExtentState::Data }])
            }
            _ => Body::Done,
        }))
    }
}
