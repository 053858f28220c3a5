//! The law behind a lock, with clocks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::control::{Control, Verdict};
use crate::limits::BYTES_PER_OPERATION;
use crate::{Class, Given, RequestKind, Sample, Seen, Work, mutant};

/// The pacer of a node. A clone is the same pacer.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    control: Control,
    /// Background work gets everything, whatever clients feel.
    drain: bool,
    given: [Given; Class::COUNT],
}

/// Leave that was given. Dropped without [`Leave::used`], it comes back.
#[derive(Debug)]
#[must_use = "leave that is dropped comes back"]
pub struct Leave {
    pacer: Pacer,
    work: Work,
    /// It was taken off what its class has.
    is_charged: bool,
    is_used: bool,
}

/// What an ask comes to.
enum Answer {
    Wait(Duration),
    Go { is_charged: bool },
}

/// A request of a client on its way. Dropped without [`Request::ended`], its time counts for nothing.
#[derive(Debug)]
pub struct Request {
    pacer: Pacer,
    kind: RequestKind,
    bytes: u64,
    depth: usize,
    began: Instant,
    has_ended: bool,
}

impl Default for Pacer {
    fn default() -> Self {
        Self(Arc::new(Inner { began: Instant::now(), state: Mutex::default() }))
    }
}

impl Work {
    /// What it counts as.
    fn cost(&self) -> u64 {
        self.bytes + self.operations * BYTES_PER_OPERATION
    }
}

impl Pacer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// A client's request goes to the disk.
    #[must_use]
    pub fn request(&self, kind: RequestKind, bytes: u64) -> Request {
        let mut state = self.state();
        state.control.on_begin(self.now(), bytes);
        let depth = state.control.requests();
        drop(state);
        Request { pacer: self.clone(), kind, bytes, depth, began: Instant::now(), has_ended: false }
    }

    /// Waits until the work may go. `pressure` is asked again and again meanwhile: from 0, nothing presses, to 1,
    /// clients wait for it.
    pub async fn leave(&self, work: Work, pressure: impl Fn() -> f64) -> Leave {
        let asked = Instant::now();
        let at_first = mutant("leave_asks_pressure_once").then(&pressure);
        loop {
            let pressure = at_first.unwrap_or_else(&pressure);
            match self.ask(&work, pressure, asked) {
                Answer::Wait(pause) => tokio::time::sleep(pause).await,
                Answer::Go { is_charged } => return self.leave_of(work, is_charged),
            }
        }
    }

    /// As [`Pacer::leave`], on a thread that may block.
    #[allow(clippy::disallowed_methods, reason = "this thread may block, and has no runtime")]
    pub fn leave_blocking(&self, work: Work, pressure: impl Fn() -> f64) -> Leave {
        let asked = Instant::now();
        loop {
            match self.ask(&work, pressure(), asked) {
                Answer::Wait(pause) => std::thread::sleep(pause),
                Answer::Go { is_charged } => return self.leave_of(work, is_charged),
            }
        }
    }

    fn leave_of(&self, work: Work, is_charged: bool) -> Leave {
        Leave { pacer: self.clone(), work, is_charged, is_used: false }
    }

    /// Whether it may go, or how long to wait before the next try.
    fn ask(&self, work: &Work, pressure: f64, asked: Instant) -> Answer {
        let now = self.now();
        let mut state = self.state();
        let verdict = match state.drain {
            true => Verdict::Free,
            false => state.control.ask(now, work.class, work.cost(), pressure),
        };
        let is_charged = match verdict {
            Verdict::NotBefore(then) => return Answer::Wait(then.saturating_sub(now)),
            Verdict::Granted => true,
            Verdict::Free => false,
        };
        let given = &mut state.given[work.class.index()];
        given.bytes += work.bytes;
        given.operations += work.operations;
        given.waited += asked.elapsed();
        Answer::Go { is_charged }
    }

    /// With `true` all background work gets leave, what waits included; with `false` the law decides again.
    pub fn set_drain(&self, drain: bool) {
        self.state().drain = drain;
    }

    /// Whether background work gets everything.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state().drain
    }

    /// The state of the law.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let state = self.state();
        let seen = state.control.seen(self.now());
        let bytes_per_second = seen.bytes_per_second.filter(|_| !state.drain);
        Seen { bytes_per_second, ..seen }
    }

    /// What a class has had.
    #[must_use]
    pub fn given(&self, class: Class) -> Given {
        self.state().given[class.index()]
    }
}

impl Leave {
    /// The work was done, or is under way for good.
    pub fn used(mut self) {
        self.is_used = true;
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        let mut state = self.pacer.state();
        if self.is_charged && !mutant("dropped_leave_stays_charged") {
            state.control.give_back(self.work.class, self.work.cost());
        }
        let given = &mut state.given[self.work.class.index()];
        given.bytes -= self.work.bytes;
        given.operations -= self.work.operations;
    }
}

impl Request {
    /// It is done.
    pub fn ended(mut self) {
        self.has_ended = true;
        let (kind, bytes, depth) = (self.kind, self.bytes, self.depth);
        let sample = Sample { kind, bytes, depth, took: self.began.elapsed() };
        let now = self.pacer.now();
        self.pacer.state().control.on_end(now, &sample);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.has_ended && !mutant("abandoned_request_stays_pending") {
            self.pacer.state().control.on_abandoned(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const UPLOAD: Work = Work { class: Class::Upload, bytes: 1 << 10, operations: 0 };

    /// Takes leave until there is none; how often.
    fn take_all(pacer: &Pacer, used: bool) -> usize {
        let mut count = 0;
        while let Some(leave) = pacer.leave(UPLOAD, || 0.0).now_or_never() {
            match used {
                true => leave.used(),
                false => drop(leave),
            }
            count += 1;
            if count == 1000 {
                break;
            }
        }
        count
    }

    #[tokio::test(start_paused = true)]
    async fn leave_that_is_dropped_comes_back() {
        let pacer = Pacer::default();
        pacer.request(RequestKind::Write, 4096).ended();
        tokio::time::sleep(Duration::from_millis(100)).await;
        pacer.request(RequestKind::Write, 4096).ended();
        pacer.leave(UPLOAD, || 0.0).await.used();
        assert_eq!(take_all(&pacer, false), 1000);
        assert!(take_all(&pacer, true) < 1000);
        assert_eq!(take_all(&pacer, true), 0);
        assert_eq!(pacer.given(Class::Upload).bytes % (1 << 10), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn leave_that_cost_nothing_gives_nothing_back() {
        let pacer = Pacer::default();
        drop(pacer.leave(Work { bytes: 1 << 40, ..UPLOAD }, || 0.0).await);
        let _client = pacer.request(RequestKind::Write, 4096);
        drop(pacer.leave(Work { bytes: 1 << 40, ..UPLOAD }, || 1.0).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _other = pacer.request(RequestKind::Write, 4096);
        pacer.leave(UPLOAD, || 0.0).await.used();
        assert!(take_all(&pacer, true) < 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_given_up_takes_nothing() {
        let pacer = Pacer::default();
        let _client = pacer.request(RequestKind::Write, 4096);
        let before = pacer.given(Class::Copy);
        for _ in 0..100 {
            let work = Work { class: Class::Copy, bytes: 1 << 30, operations: 1 };
            assert!(pacer.leave(work, || 0.0).now_or_never().is_none(), "clients are alone");
        }
        assert_eq!(pacer.given(Class::Copy), before);
        tokio::time::timeout(Duration::from_millis(200), pacer.leave(UPLOAD, || 0.0))
            .await
            .expect("nothing was taken by those that gave up")
            .used();
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_node_is_drained_nothing_waits_and_the_law_counts_nothing() {
        let pacer = Pacer::default();
        let _client = pacer.request(RequestKind::Write, 4096);
        let work = Work { class: Class::Upload, bytes: 1 << 30, operations: 1 };
        assert!(pacer.leave(work, || 0.0).now_or_never().is_none(), "the client is alone");
        assert!(pacer.seen().bytes_per_second.is_some());
        pacer.set_drain(true);
        assert!(pacer.is_draining());
        assert_eq!(pacer.seen().bytes_per_second, None, "nothing bounds it");
        assert!(!crate::Pace::new(&pacer, Class::Upload, &crate::Pressure::default()).is_bounded());
        pacer.leave(work, || 0.0).now_or_never().expect("goes at once").used();
        assert_eq!(pacer.given(Class::Upload).bytes, 1 << 30);
        let unused = pacer.leave(work, || 0.0).now_or_never().expect("goes at once");
        pacer.set_drain(false);
        drop(unused);
        assert_eq!(pacer.given(Class::Upload).bytes, 1 << 30);
        assert!(pacer.leave(work, || 0.0).now_or_never().is_none(), "as before");
        tokio::time::sleep(Duration::from_millis(200)).await;
        pacer.leave(UPLOAD, || 0.0).await.used();
        assert!(take_all(&pacer, true) < 1000, "no leave came from the drain");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_goes_as_soon_as_the_node_is_drained() {
        let pacer = Pacer::default();
        let client = pacer.clone();
        let _clients = tokio::spawn(async move {
            loop {
                client.request(RequestKind::Write, 4096).ended();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let work = Work { class: Class::Upload, bytes: 1 << 30, operations: 0 };
        tokio::time::sleep(Duration::from_secs(2)).await;
        pacer.leave(work, || 0.0).await.used();
        let begun = Instant::now();
        let drain = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pacer.set_drain(true);
        };
        let (leave, ()) = futures_util::join!(pacer.leave(work, || 0.0), drain);
        leave.used();
        let waited = begun.elapsed();
        assert!((1000..1030).contains(&waited.as_millis()), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_vanished_waits_for_nothing() {
        let pacer = Pacer::default();
        let client = pacer.request(RequestKind::Write, 4096);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(pacer.seen().bytes_per_second.is_some(), "it waits");
        drop(client);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(pacer.seen().bytes_per_second, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_as_soon_as_a_client_waits_for_it() {
        let pacer = Pacer::default();
        let _client = pacer.request(RequestKind::Write, 4096);
        let begun = Instant::now();
        let pressure = || if begun.elapsed() < Duration::from_millis(1) { 0.0 } else { 1.0 };
        let work = Work { class: Class::Upload, bytes: 8 << 20, operations: 0 };
        pacer.leave(work, pressure).await.used();
        assert!(begun.elapsed() <= Duration::from_millis(21), "{:?}", begun.elapsed());
        assert!(pacer.given(Class::Upload).waited > Duration::ZERO);
    }
}
