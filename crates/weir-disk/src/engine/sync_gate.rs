//! One sync of a file at a time; those who come meanwhile share the next one.
//!
//! The kernel reports lost writes of a file once per descriptor. Of two syncs side by side one may
//! take that report and the other succeed and be heard first, though it should have covered the
//! same writes. One at a time, with the failure kept for all that follow, nothing slips through;
//! and merging is what a disk wants anyway.
//!
//! Invariants
//!  G1. A caller is answered by a sync that started after it called.
//!  G2. While a sync runs no other is started for the file; whoever runs it goes on until nobody
//!      waits.
//!  G3. After a failure every answer is that failure.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use tokio::sync::oneshot;

/// What a sync covers; a later one covers more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SyncKind {
    /// `fdatasync`: data, and what is needed to find it.
    Data,
    /// `fsync`.
    DataAndMetadata,
}

/// Tells one caller how its sync went.
type Answer = oneshot::Sender<Result<(), Errno>>;

/// Callers that share a sync.
#[derive(Debug)]
pub(crate) struct SyncGroup {
    pub(crate) kind: SyncKind,
    answers: Vec<Answer>,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    next: Option<SyncGroup>,
    failed: Option<Errno>,
}

/// The syncs of one file.
#[derive(Debug, Default)]
pub(crate) struct SyncGate {
    state: Mutex<State>,
}

impl SyncGate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a sync. Where a group comes back, the caller has to see to it that it and all later
    /// ones are run.
    pub(crate) fn join(
        &self,
        kind: SyncKind,
    ) -> (oneshot::Receiver<Result<(), Errno>>, Option<SyncGroup>) {
        let (answer, answered) = oneshot::channel();
        let mut state = self.lock();
        let next = state.next.get_or_insert(SyncGroup { kind, answers: Vec::new() });
        next.kind = next.kind.max(kind);
        next.answers.push(answer);
        let group = if state.is_running { None } else { state.next.take() };
        state.is_running = true;
        (answered, group)
    }

    /// The sync of a group has ended: answers it, and gives the next group to be run, if there is
    /// one.
    pub(crate) fn finish(&self, group: SyncGroup, result: Result<(), Errno>) -> Option<SyncGroup> {
        let mut state = self.lock();
        if let Err(errno) = result {
            state.failed.get_or_insert(errno);
        }
        let result = state.failed.map_or(Ok(()), Err);
        let next = state.next.take();
        state.is_running = next.is_some();
        drop(state);
        for answer in group.answers {
            // A caller that went away is not told; the failure stays for those who come later.
            let _ = answer.send(result);
        }
        next
    }

    /// The group cannot be run: its callers find their answers gone.
    pub(crate) fn give_up(&self, group: SyncGroup) {
        let mut state = self.lock();
        let next = state.next.take();
        state.is_running = false;
        drop(state);
        drop((group, next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Answered = oneshot::Receiver<Result<(), Errno>>;

    fn take(answered: &mut Answered) -> Option<Result<(), Errno>> {
        answered.try_recv().ok()
    }

    #[test]
    fn a_caller_is_not_answered_by_a_sync_that_was_running_already() {
        let gate = SyncGate::default();
        let (mut first, group) = gate.join(SyncKind::Data);
        let (mut second, none) = gate.join(SyncKind::Data);
        let (mut third, also_none) = gate.join(SyncKind::DataAndMetadata);
        assert!(none.is_none() && also_none.is_none());
        let next = gate.finish(group.unwrap(), Ok(())).unwrap();
        assert_eq!(take(&mut first), Some(Ok(())));
        assert_eq!((take(&mut second), take(&mut third)), (None, None));
        assert_eq!(next.kind, SyncKind::DataAndMetadata, "the stronger kind serves both");
        assert!(gate.finish(next, Ok(())).is_none());
        assert_eq!((take(&mut second), take(&mut third)), (Some(Ok(())), Some(Ok(()))));
        let (_, group) = gate.join(SyncKind::Data);
        let group = group.unwrap();
        assert_eq!(group.kind, SyncKind::Data);
        gate.join(SyncKind::DataAndMetadata);
        gate.join(SyncKind::Data);
        let next = gate.finish(group, Ok(())).unwrap();
        assert_eq!(next.kind, SyncKind::DataAndMetadata, "whoever asked for it first");
    }

    #[test]
    fn a_failure_is_the_answer_for_ever_even_if_nobody_heard_it() {
        let gate = SyncGate::default();
        let (gone, group) = gate.join(SyncKind::Data);
        drop(gone);
        let (mut waiting, _) = gate.join(SyncKind::Data);
        let next = gate.finish(group.unwrap(), Err(Errno::IO)).unwrap();
        gate.finish(next, Ok(()));
        assert_eq!(take(&mut waiting), Some(Err(Errno::IO)));
        let (mut later, group) = gate.join(SyncKind::Data);
        gate.finish(group.unwrap(), Err(Errno::NOSPC));
        assert_eq!(take(&mut later), Some(Err(Errno::IO)), "the first failure is told");
    }

    #[test]
    fn giving_up_lets_later_callers_try_again() {
        let gate = SyncGate::default();
        let (mut first, group) = gate.join(SyncKind::Data);
        let (mut second, _) = gate.join(SyncKind::Data);
        gate.give_up(group.unwrap());
        assert!(matches!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(matches!(second.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(gate.join(SyncKind::Data).1.is_some());
    }
}
