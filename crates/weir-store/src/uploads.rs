//! Limits of uploads: so many bytes and so many requests a second, changed while they are in force.
//!
//! Two token buckets with debt: a PUT waits until neither bucket owes anything, then takes its whole size, so that an
//! object may be larger than what a second allows and the average still holds. PUTs wait in the order in which they
//! came; the first of them watches the buckets, the others wait for it. Those that somebody waits for have a queue of
//! their own, which goes first, three of four times: a flush is not to wait for all that other volumes may send at
//! their leisure. Nothing is kept for a PUT but its place in a queue, and a PUT that is given up leaves it.
//!
//! Time is tokio's, which the simulation controls.

use std::fmt;
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use weir_device::mutant;

use crate::limits::{UNDELAYED_PUT_BYTES_MAX, UPLOAD_PAUSE_MAX};

/// What uploads may take; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadRates {
    /// Bytes of objects a second.
    pub bytes_per_second: Option<NonZeroU64>,
    /// PUT requests a second.
    pub requests_per_second: Option<NonZeroU64>,
}

/// The handle on the limits of one or more stores. Clones share one budget.
///
/// Every attempt counts, one that failed as well. PUTs of at most 64 KiB are counted and do not wait: they are
/// manifests and leases, and what waits for those is everything.
#[derive(Clone, Default)]
pub struct UploadLimits {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Held by the PUT that is next; tokio's mutex is first come, first served.
    turn: tokio::sync::Mutex<()>,
    /// Whether there is one, as a count.
    calm: AtomicUsize,
    /// The same of those that somebody waits for, and how many these are.
    awaited_turn: tokio::sync::Mutex<()>,
    awaited: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    rates: UploadRates,
    bytes: Bucket,
    requests: Bucket,
    /// PUTs that somebody waits for and that went since one of the others did.
    awaited_in_a_row: u32,
}

/// Tokens in billionths, so that nanoseconds times a rate need no division.
#[derive(Default)]
struct Bucket {
    level: i128,
    as_of: Option<Instant>,
}

const BILLION: i128 = 1_000_000_000;

/// PUTs that somebody waits for and that go one after the other before one of the others does: under a limit that is
/// less than what one volume writes, the others would never have anything in the store.
const AWAITED_IN_A_ROW_MAX: u32 = 3;

/// How often the next PUT looks whether somebody waits for it by now.
const LOOK: Duration = Duration::from_millis(100);

/// How often those behind it look. They may be many.
const LOOK_FROM_AFAR: Duration = Duration::from_secs(1);

/// Counts a PUT as long as it waits for the limits.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bucket {
    /// Brings the level up to `now`; at most one second's worth is saved up.
    fn refill(&mut self, rate: Option<NonZeroU64>, now: Instant) {
        let since = self.as_of.map_or(Duration::ZERO, |as_of| now.saturating_duration_since(as_of));
        self.as_of = Some(now);
        let Some(rate) = rate else {
            self.level = 0;
            return;
        };
        let rate = i128::from(rate.get());
        let gained = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX).saturating_mul(rate);
        let seconds = if mutant("upload_limit_saves_up_for_ever") { 1 << 40 } else { 1 };
        let most = rate.saturating_mul(BILLION).saturating_mul(seconds);
        self.level = self.level.saturating_add(gained).min(most);
    }

    fn take(&mut self, rate: Option<NonZeroU64>, tokens: u64) {
        if rate.is_some() {
            self.level = self.level.saturating_sub(i128::from(tokens).saturating_mul(BILLION));
        }
    }

    /// How long until nothing is owed.
    fn debt(&self, rate: Option<NonZeroU64>) -> Duration {
        let Some(rate) = rate.filter(|_| self.level < 0) else { return Duration::ZERO };
        let rate = i128::from(rate.get());
        let owed = -self.level;
        let nanos = owed / rate + i128::from(owed % rate != 0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(UPLOAD_PAUSE_MAX)
    }
}

impl State {
    fn refill(&mut self, now: Instant) {
        self.bytes.refill(self.rates.bytes_per_second, now);
        self.requests.refill(self.rates.requests_per_second, now);
    }

    fn debt(&self) -> Duration {
        let bytes = self.bytes.debt(self.rates.bytes_per_second);
        bytes.max(self.requests.debt(self.rates.requests_per_second))
    }

    fn take(&mut self, bytes: u64) {
        self.bytes.take(self.rates.bytes_per_second, bytes);
        self.requests.take(self.rates.requests_per_second, 1);
    }
}

impl UploadLimits {
    /// Limits to begin with.
    #[must_use]
    pub fn new(rates: UploadRates) -> Self {
        let limits = Self::default();
        limits.lock().rates = rates;
        limits
    }

    /// The limits in force.
    #[must_use]
    pub fn rates(&self) -> UploadRates {
        self.lock().rates
    }

    /// Changes the limits, for PUTs that wait already, too. What was taken under the old ones stays taken, unless a
    /// limit is lifted.
    pub fn set(&self, rates: UploadRates) {
        let mut state = self.lock();
        if state.rates != UploadRates::default() {
            state.refill(Instant::now());
        }
        state.rates = rates;
        if rates.bytes_per_second.is_none() {
            state.bytes = Bucket::default();
        }
        if rates.requests_per_second.is_none() {
            state.requests = Bucket::default();
        }
        drop(state);
        if !mutant("raised_upload_limit_wakes_nobody") {
            self.shared.changed.notify_waiters();
        }
    }

    /// Waits until a PUT of `bytes` bytes may begin. Dropping the future gives the place up. `is_awaited`: whether
    /// somebody waits for it, which may begin meanwhile.
    pub(crate) async fn admit(&self, bytes: u64, is_awaited: impl Fn() -> bool) {
        if self.rates() == UploadRates::default() {
            return;
        }
        if bytes <= UNDELAYED_PUT_BYTES_MAX {
            let mut state = self.lock();
            state.refill(Instant::now());
            state.take(bytes);
            return;
        }
        let is_awaited = || is_awaited() && !mutant("upload_limit_knows_one_queue");
        if self.admit_calmly(bytes, is_awaited).await {
            return;
        }
        let _waits = Waits::new(&self.shared.awaited);
        let _turn = self.shared.awaited_turn.lock().await;
        loop {
            // Made before looking, so that no change between looking and waiting is missed.
            let changed = self.shared.changed.notified();
            let Err(pause) = self.take(bytes, true) else { return };
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Waits among what nobody waits for; false once somebody waits for this one.
    async fn admit_calmly(&self, bytes: u64, is_awaited: impl Fn() -> bool) -> bool {
        let mut turn = pin!(self.shared.turn.lock());
        let mut has_turn = None;
        while !is_awaited() {
            let changed = self.shared.changed.notified();
            let pause = match has_turn.as_ref().map(|_| self.take(bytes, false)) {
                Some(Ok(())) => return true,
                Some(Err(pause)) => pause.min(LOOK),
                None => LOOK_FROM_AFAR,
            };
            tokio::select! {
                biased;
                turn = &mut turn, if has_turn.is_none() => {
                    has_turn = Some((turn, Waits::new(&self.shared.calm)));
                }
                () = changed, if has_turn.is_some() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        false
    }

    /// Takes what a PUT of so many bytes needs, or says how long to wait before another look: what others took is still
    /// owed, or it is the turn of the other queue.
    fn take(&self, bytes: u64, is_awaited: bool) -> Result<(), Duration> {
        let mut state = self.lock();
        state.refill(Instant::now());
        let debt = state.debt();
        if !debt.is_zero() {
            return Err(debt);
        }
        let others = if is_awaited { &self.shared.calm } else { &self.shared.awaited };
        let others_wait = others.load(Ordering::Relaxed) > 0;
        let most =
            if mutant("awaited_uploads_starve_others") { u32::MAX } else { AWAITED_IN_A_ROW_MAX };
        let is_turn_of_awaited = state.awaited_in_a_row < most;
        if others_wait && is_turn_of_awaited != is_awaited {
            return Err(LOOK);
        }
        state.take(bytes);
        state.awaited_in_a_row =
            if is_awaited { state.awaited_in_a_row.saturating_add(1) } else { 0 };
        drop(state);
        if others_wait {
            self.shared.changed.notify_waiters();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for UploadLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UploadLimits").field(&self.rates()).finish()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn bytes(rate: u64) -> UploadRates {
        UploadRates { bytes_per_second: NonZeroU64::new(rate), ..UploadRates::default() }
    }

    /// Nobody waits for it.
    fn calm() -> bool {
        false
    }

    #[tokio::test(start_paused = true)]
    async fn the_average_holds_for_objects_larger_than_a_second_allows() {
        let limits = UploadLimits::new(bytes(MIB));
        let started = Instant::now();
        for _ in 0..5 {
            limits.admit(8 * MIB, calm).await;
        }
        // The first began at once, and each of the others when the one before it was paid for.
        assert_eq!(started.elapsed().as_secs(), 32);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_limited_and_a_pause_saves_up_one_second() {
        let rates = UploadRates { requests_per_second: NonZeroU64::new(10), ..bytes(1 << 40) };
        let limits = UploadLimits::new(rates);
        limits.admit(MIB, calm).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        let started = Instant::now();
        for _ in 0..31 {
            limits.admit(MIB, calm).await;
        }
        assert_eq!(started.elapsed().as_millis().div_euclid(100), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_puts_go_in_their_order_and_leave_nothing_behind() {
        let limits = UploadLimits::new(bytes(MIB));
        let next = AtomicUsize::new(0);
        let put = async |number: usize| {
            limits.admit(MIB, calm).await;
            assert_eq!(next.fetch_add(1, Ordering::Relaxed), number, "out of order");
        };
        let started = Instant::now();
        join_all((0..50).map(put)).await;
        assert_eq!(started.elapsed().as_secs(), 49);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_when_the_debt_is_paid_does_not_overtake_who_waited_for_it() {
        let limits = UploadLimits::new(bytes(MIB));
        limits.admit(MIB, calm).await;
        limits.admit(MIB, calm).await;
        let order = Mutex::new(Vec::new());
        let put = async |name: &'static str| {
            limits.admit(MIB, calm).await;
            order.lock().expect("no panic under the lock").push(name);
        };
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            put("late").await;
        };
        futures_util::join!(late, put("early"));
        assert_eq!(*order.lock().expect("no panic under the lock"), ["early", "late"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_waits_for_overtakes_what_nobody_does() {
        let limits = UploadLimits::new(bytes(MIB));
        limits.admit(MIB, calm).await;
        let order = Mutex::new(Vec::new());
        let put = async |number: usize, is_awaited: &dyn Fn() -> bool| {
            limits.admit(MIB, is_awaited).await;
            order.lock().expect("no panic under the lock").push(number);
        };
        let began = Instant::now();
        let calm_ones = join_all((0..4).map(|number| put(number, &calm)));
        // One is among them from the beginning, and somebody waits for it after a second and a half.
        let is_late = || began.elapsed() >= Duration::from_millis(1500);
        let promoted = put(10, &is_late);
        let awaited = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            futures_util::join!(put(20, &|| true), put(21, &|| true));
        };
        futures_util::join!(calm_ones, promoted, awaited);
        assert_eq!(*order.lock().expect("no panic under the lock"), [20, 21, 10, 0, 1, 2, 3]);
        assert_eq!(began.elapsed().as_secs(), 7, "and the average holds");
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_goes_on_beside_what_somebody_does() {
        let limits = UploadLimits::new(bytes(MIB));
        limits.admit(MIB, calm).await;
        let began = Instant::now();
        let awaited = join_all((0..20).map(|_| limits.admit(MIB, || true)));
        let calm_one = async {
            limits.admit(MIB, calm).await;
            began.elapsed().as_secs()
        };
        let (calm_after, _) = futures_util::join!(calm_one, awaited);
        assert!(calm_after <= 4, "after {calm_after} s");
        assert_eq!(began.elapsed().as_secs(), 21, "and the average holds");
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_waits_for_has_three_of_four_turns_beside_many_others() {
        let limits = UploadLimits::new(bytes(MIB));
        limits.admit(MIB, calm).await;
        let began = Instant::now();
        let calm_ones = join_all((0..20).map(|_| limits.admit(MIB, calm)));
        let awaited = async {
            join_all((0..9).map(|_| limits.admit(MIB, || true))).await;
            began.elapsed().as_secs()
        };
        let (_, awaited_after) = futures_util::join!(calm_ones, awaited);
        assert!(awaited_after <= 13, "after {awaited_after} s");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_at_no_pace_is_waited_for() {
        let store = crate::Store::open("memory://").expect("open");
        store.limits().set(bytes(MIB));
        let pacer = weir_pacer::Pacer::default();
        let pressure = weir_pacer::Pressure::default();
        let pace = weir_pacer::Pace::new(&pacer, weir_pacer::Class::Upload, &pressure);
        let background = store.at_pace(pace);
        let body = || vec![bytes::Bytes::from(vec![1; 1 << 20])];
        background.put_create("first", body()).await.expect("put");
        let began = Instant::now();
        let keys: Vec<String> = (0..10).map(|nth| format!("calm{nth}")).collect();
        let calm_ones = join_all(keys.iter().map(|key| background.put_create(key, body())));
        let client = async {
            store.put_create("client", body()).await.expect("put");
            began.elapsed().as_secs()
        };
        let (_, after) = futures_util::join!(calm_ones, client);
        assert!(after <= 2, "after {after} s");
    }

    #[tokio::test(start_paused = true)]
    async fn small_puts_do_not_wait_and_are_paid_for() {
        let limits = UploadLimits::new(bytes(64 << 10));
        limits.admit(MIB, calm).await;
        let started = Instant::now();
        for _ in 0..4 {
            limits.admit(64 << 10, calm).await;
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        limits.admit(MIB, calm).await;
        assert_eq!(started.elapsed().as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_reaches_puts_that_wait() {
        let limits = UploadLimits::new(bytes(1024));
        let started = Instant::now();
        let puts = join_all((0..3).map(|_| limits.admit(10 * MIB, calm)));
        let change = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            limits.set(bytes(10 * MIB));
        };
        futures_util::join!(puts, change);
        // One at once, one when the first is paid for at the new rate, one a second later.
        assert!(
            (11_900..12_100).contains(&started.elapsed().as_millis()),
            "{:?}",
            started.elapsed()
        );
        let started = Instant::now();
        let puts = join_all((0..3).map(|_| limits.admit(1000 * MIB, calm)));
        futures_util::join!(puts, async { limits.set(UploadRates::default()) });
        assert_eq!(started.elapsed(), Duration::ZERO, "no limit is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_put_that_is_given_up_holds_nobody_up() {
        let limits = UploadLimits::new(bytes(MIB));
        limits.admit(2 * MIB, calm).await;
        let given_up = tokio::time::timeout(Duration::from_secs(1), limits.admit(100 * MIB, calm));
        assert!(given_up.await.is_err());
        let started = Instant::now();
        limits.admit(MIB, calm).await;
        assert_eq!(started.elapsed().as_secs(), 1);
    }
}
