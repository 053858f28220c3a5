//! The backend that misbehaves. Decisions are taken under the lock, waiting happens outside it.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, pending};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, sleep};
use weir_device::{BufferPool, FileReads};

use super::{Chance, Dice, Fault, FaultPlan, Faults, LatePut, OperationFaults, State};
use crate::backend::{Backend, Got, Listed, Put, Reply, ReplyHere, Room, clamp};
use crate::{Place, StoreError};

/// A backend under the power of a [`Faults`] handle.
pub(super) struct Faulty {
    url: Arc<str>,
    inner: Arc<dyn Backend>,
    faults: Faults,
}

/// What an injected error says of itself.
#[derive(Debug, thiserror::Error)]
#[error("injected: {0}")]
struct Injected(&'static str);

#[derive(Clone, Copy)]
enum Operation {
    Put,
    Get,
    List,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }

    fn faults(self, plan: &FaultPlan) -> &OperationFaults {
        match self {
            Self::Put => &plan.put,
            Self::Get => &plan.get,
            Self::List => &plan.list,
            Self::Delete => &plan.delete,
        }
    }

    /// What keeps it from being done, by chance.
    fn chance_fault(self, plan: &FaultPlan, dice: &mut Dice) -> Option<Fault> {
        let faults = self.faults(plan);
        if faults.timeout.happens(|| dice.next()) {
            Some(Fault::TimedOut)
        } else if faults.server_error.happens(|| dice.next()) {
            Some(Fault::ServerError)
        } else if faults.throttled.happens(|| dice.next()) {
            Some(Fault::Throttled)
        } else {
            None
        }
    }
}

/// A PUT that the store has not seen yet. Dropped in this state (a timeout, a crash of the node), the request may
/// still be on its way.
struct OnItsWay<'a> {
    faulty: &'a Faulty,
    key: &'a str,
    parts: Option<Vec<Bytes>>,
}

impl OnItsWay<'_> {
    /// It arrived, or it never will.
    fn take(&mut self) -> Vec<Bytes> {
        self.parts.take().unwrap_or_default()
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let mut state = self.faulty.faults.lock();
        let State { dice, plan, .. } = &mut *state;
        if plan.late_put.happens(|| dice.next()) {
            state.put_off(self.faulty.late_put(self.key, parts));
        }
    }
}

impl Faulty {
    pub(super) fn new(url: Arc<str>, inner: Arc<dyn Backend>, faults: Faults) -> Self {
        Self { url, inner, faults }
    }

    fn late_put(&self, key: &str, parts: Vec<Bytes>) -> LatePut {
        LatePut { backend: Arc::clone(&self.inner), key: key.to_owned(), parts }
    }

    fn unavailable(&self, key: &str, what: &'static str) -> StoreError {
        StoreError::Unavailable {
            place: Place::new(&self.url, key),
            source: Arc::new(Injected(what)),
        }
    }

    /// The way to the store: time passes, and the request may not arrive. Returns how long the reply takes.
    async fn arrive(&self, operation: Operation, key: &str) -> Result<Duration, StoreError> {
        let (there, back) = self.faults.lock().latency();
        if !there.is_zero() {
            sleep(there).await;
        }
        if self.faults.late_puts() > 0 {
            self.faults.land(Some(Instant::now())).await;
        }
        let fault = self.faults.lock().fault_of(operation, key);
        let Some(fault) = fault else { return Ok(back) };
        let error = match fault {
            Fault::TimedOut | Fault::Silence => {
                self.faults.lock().note(operation.name(), key, || format!("{fault:?}"));
                return pending().await;
            }
            Fault::Throttled => StoreError::Throttled {
                place: Place::new(&self.url, key),
                source: Arc::new(Injected("429 Too Many Requests")),
            },
            Fault::Outage => self.unavailable(key, "connection refused"),
            _ => self.unavailable(key, "500 Internal Server Error"),
        };
        Err(error)
    }

    /// The way back, and an entry in the trace.
    async fn answer<T: fmt::Debug>(
        &self,
        operation: Operation,
        key: &str,
        work: impl Future<Output = Result<(T, Duration), StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let result = match work.await {
            Ok((value, back)) => {
                if !back.is_zero() {
                    sleep(back).await;
                }
                self.faults.lock().answered(operation, key);
                Ok(value)
            }
            Err(error) => Err(error),
        };
        self.faults.lock().note(operation.name(), key, || match &result {
            Ok(value) => summary(&format!("{value:?}")),
            Err(error) => format!("{error:?}"),
        });
        result
    }

    async fn put(&self, key: &str, parts: Vec<Bytes>) -> Result<(Put, Duration), StoreError> {
        let mut request = OnItsWay { faulty: self, key, parts: Some(parts) };
        let arrived = self.arrive(Operation::Put, key).await;
        let parts = request.take();
        let back = arrived?;
        if self.faults.lock().puts_off(key) {
            self.faults.lock().put_off(self.late_put(key, parts));
            return Err(self.unavailable(key, "connection reset, the PUT happens later"));
        }
        let watched = WatchedPut { faulty: self, key };
        let put = self.inner.put_create(key, parts).await?;
        drop(watched);
        let mut state = self.faults.lock();
        if put == Put::Created {
            state.note_created(key);
        }
        if state.loses_reply(Operation::Put, key) {
            return Err(self.unavailable(key, "connection reset after the PUT was done"));
        }
        Ok((put, back))
    }

    async fn read(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<(Got, Duration), StoreError> {
        let back = self.arrive(Operation::Get, key).await?;
        let got = self.inner.get(key, range.clone()).await?;
        let start = clamp(range, got.object_bytes).start;
        match self.faults.lock().damaged(key, start, got) {
            Some(got) => Ok((got, back)),
            None => Err(StoreError::NotFound { place: Place::new(&self.url, key) }),
        }
    }

    async fn listing(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<(Vec<Listed>, Duration), StoreError> {
        let back = self.arrive(Operation::List, prefix).await?;
        let listed = self.inner.list(prefix, after).await?;
        Ok((self.faults.lock().aged(listed), back))
    }

    async fn remove(&self, key: &str) -> Result<((), Duration), StoreError> {
        if let Some(watched) = &mut self.faults.lock().watched {
            watched.deletes.push((Instant::now(), key.to_owned()));
        }
        let back = self.arrive(Operation::Delete, key).await?;
        self.inner.delete(key).await?;
        if self.faults.lock().loses_reply(Operation::Delete, key) {
            return Err(self.unavailable(key, "connection reset after the DELETE was done"));
        }
        Ok(((), back))
    }
}

/// A PUT that reaches the store below, answered or given up by then.
struct WatchedPut<'a> {
    faulty: &'a Faulty,
    key: &'a str,
}

impl Drop for WatchedPut<'_> {
    fn drop(&mut self) {
        if let Some(watched) = &mut self.faulty.faults.lock().watched {
            watched.puts.push((Instant::now(), self.key.to_owned()));
        }
    }
}

impl State {
    /// How long a request and its reply take.
    fn latency(&mut self) -> (Duration, Duration) {
        let whole = self.dice.duration(&self.plan.latency);
        if whole.is_zero() {
            return (whole, whole);
        }
        let there = self.dice.duration(&(Duration::ZERO..=whole));
        (there, whole - there)
    }

    /// What keeps an operation from being done, if anything.
    fn fault_of(&mut self, operation: Operation, key: &str) -> Option<Fault> {
        let fault = if self.plan.silence {
            Fault::Silence
        } else if self.plan.outage {
            Fault::Outage
        } else {
            self.by_chance(operation, key, |plan, dice| operation.chance_fault(plan, dice))?
        };
        self.count(fault);
        Some(fault)
    }

    /// Asks chance, unless it let too many attempts of the same in a row fail.
    fn by_chance<T>(
        &mut self,
        operation: Operation,
        key: &str,
        ask: impl FnOnce(&FaultPlan, &mut Dice) -> Option<T>,
    ) -> Option<T> {
        let Some(max) = self.plan.in_a_row_max else { return ask(&self.plan, &mut self.dice) };
        let before = self.in_a_row.entry((operation.name(), key.to_owned())).or_default();
        let fault = if *before < max { ask(&self.plan, &mut self.dice) } else { None };
        *before += u32::from(fault.is_some());
        fault
    }

    /// Whether what concerns keys that [`FaultPlan::lost_of`] names happens to an operation.
    fn is_lost(
        &mut self,
        operation: Operation,
        key: &str,
        chance: impl FnOnce(&FaultPlan) -> Chance,
    ) -> bool {
        let is_lost =
            |plan: &FaultPlan, dice: &mut Dice| chance(plan).happens(|| dice.next()).then_some(());
        key.contains(self.plan.lost_of) && self.by_chance(operation, key, is_lost).is_some()
    }

    /// An operation is answered.
    fn answered(&mut self, operation: Operation, key: &str) {
        if !self.in_a_row.is_empty() {
            let _ = self.in_a_row.remove(&(operation.name(), key.to_owned()));
        }
    }

    fn puts_off(&mut self, key: &str) -> bool {
        self.is_lost(Operation::Put, key, |plan| plan.late_put)
    }

    fn loses_reply(&mut self, operation: Operation, key: &str) -> bool {
        let lost = self.is_lost(operation, key, |plan| plan.lost_reply);
        if lost {
            self.count(Fault::LostReply);
        }
        lost
    }

    /// What is left of a body that starts at byte `start` of its object; nothing, if the object is hidden.
    fn damaged(&mut self, key: &str, start: u64, mut got: Got) -> Option<Got> {
        let dice = &mut self.dice;
        if self.missing.contains(key) || self.plan.missing_key.happens(|| dice.next()) {
            self.count(Fault::MissingKey);
            return None;
        }
        let len = got.bytes.len();
        let within = |offset: u64| {
            let offset = usize::try_from(offset.checked_sub(start)?).ok()?;
            (offset < len).then_some(offset)
        };
        if let Some(offset) = self.flipped.get(key).and_then(|offset| within(*offset)) {
            got.bytes = with_flipped_bit(&got.bytes, offset, 0);
            self.count(Fault::FlippedBit);
        }
        let len_u64 = u64::try_from(len).expect("a length fits 64 bits");
        let dice = &mut self.dice;
        if len > 0 && self.plan.flipped_bit.happens(|| dice.next()) {
            let offset = within(start + dice.below(len_u64)).expect("below the length");
            got.bytes = with_flipped_bit(&got.bytes, offset, dice.below(8));
            self.count(Fault::FlippedBit);
        }
        let dice = &mut self.dice;
        if len > 0 && self.plan.short_body.happens(|| dice.next()) {
            let left = within(start + dice.below(len_u64)).expect("below the length");
            got.bytes.truncate(left);
            self.count(Fault::ShortBody);
        }
        Some(got)
    }

    /// A listing as it was some time ago, as far as what was created since is concerned.
    fn aged(&mut self, mut listed: Vec<Listed>) -> Vec<Listed> {
        let dice = &mut self.dice;
        if !self.plan.stale_list.happens(|| dice.next()) {
            return listed;
        }
        let age = dice.duration(&(Duration::ZERO..=self.plan.stale_list_age_max));
        let now = Instant::now();
        let recent = self.created.iter().rev().take_while(|(at, _)| now - *at <= age);
        let unseen: BTreeSet<&str> = recent.map(|(_, key)| key.as_str()).collect();
        let before = listed.len();
        listed.retain(|listed| !unseen.contains(listed.key.as_str()));
        if listed.len() < before {
            self.count(Fault::StaleList);
        }
        listed
    }
}

fn with_flipped_bit(bytes: &Bytes, offset: usize, bit: u64) -> Bytes {
    let mut bytes = BytesMut::from(&bytes[..]);
    bytes[offset] ^= 1 << bit;
    bytes.freeze()
}

/// The start of a long text: bodies and listings do not belong into a trace.
fn summary(text: &str) -> String {
    text.chars().take(200).collect()
}

impl Backend for Faulty {
    fn put_create<'a>(&'a self, key: &'a str, parts: Vec<Bytes>) -> Reply<'a, Put> {
        Box::pin(self.answer(Operation::Put, key, self.put(key, parts)))
    }

    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>) -> Reply<'a, Got> {
        Box::pin(self.answer(Operation::Get, key, self.read(key, range)))
    }

    /// Half of what is asked for is not in memory; nothing is while the store fails, or something is late.
    fn get_now(&self, key: &str, range: &Range<u64>) -> Option<Got> {
        let mut state = self.faults.lock();
        let State { plan, late, dice, .. } = &mut *state;
        if plan.outage || plan.silence || !late.is_empty() || dice.below(2) == 0 {
            return None;
        }
        let got = self.inner.get_now(key, range)?;
        let start = clamp(Some(range.clone()), got.object_bytes).start;
        state.damaged(key, start, got)
    }

    /// Every other read, with the faults of [`Backend::get`].
    fn get_here<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        _files: &'a dyn FileReads,
        _buffers: &'a BufferPool,
    ) -> ReplyHere<'a> {
        Box::pin(async move {
            if self.faults.lock().dice.below(2) == 0 {
                return None;
            }
            Some(self.get(key, Some(range)).await.map(|got| got.bytes))
        })
    }

    fn requests_are_cheap(&self) -> bool {
        !self.faults.lock().costly_requests && self.inner.requests_are_cheap()
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> Reply<'a, Vec<Listed>> {
        Box::pin(self.answer(Operation::List, prefix, self.listing(prefix, after)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> Reply<'a, ()> {
        Box::pin(self.answer(Operation::Delete, key, self.remove(key)))
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn device(&self) -> Option<u64> {
        self.inner.device()
    }

    fn room(&self) -> Reply<'_, Option<Room>> {
        let is_full = self.faults.lock().plan.no_room;
        match is_full {
            true => Box::pin(async { Ok(Some(Room { free: 0, total: 1 << 30 })) }),
            false => self.inner.room(),
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).finish_non_exhaustive()
    }
}
