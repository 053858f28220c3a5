//! The lock against a model that knows only who conflicts with whom and who came first.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use futures_util::FutureExt;

use super::*;

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

enum Held {
    Waiting(Pin<Box<RangeLocking>>, Arc<Woken>),
    Granted(RangeGuard),
}

/// One of the model: in the order in which they stand in the queue.
struct Asked {
    range: ByteRange,
    mode: RangeMode,
    /// Tokens of the guards that it stands under, its own last.
    family: Vec<u64>,
    id: u64,
    is_granted: bool,
    held: Held,
}

fn conflict(a: &Asked, b: &Asked) -> bool {
    let is_shared = a.mode == RangeMode::Shared && b.mode == RangeMode::Shared;
    (a.range.start..a.range.end).any(|byte| b.range.start <= byte && byte < b.range.end)
        && !is_shared
        && !a.family.contains(&b.id)
        && !b.family.contains(&a.id)
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Grants in the model whatever can be, then compares with what the lock does.
fn settle(queue: &mut [Asked], context: &str) {
    for index in 0..queue.len() {
        let (before, rest) = queue.split_at(index);
        let is_free = !before.iter().any(|earlier| conflict(earlier, &rest[0]));
        queue[index].is_granted = queue[index].is_granted || is_free;
    }
    for asked in queue.iter_mut() {
        let range = asked.range;
        if let Held::Waiting(locking, woken) = &mut asked.held {
            let is_woken = woken.0.load(Ordering::Relaxed) > 0;
            assert_eq!(is_woken, asked.is_granted, "woken for {range} ({context})");
            let waker = Waker::from(Arc::clone(woken));
            let polled = locking.as_mut().poll(&mut Context::from_waker(&waker));
            match polled {
                Poll::Ready(guard) => {
                    assert!(asked.is_granted, "{range} was granted too early ({context})");
                    asked.held = Held::Granted(guard);
                }
                Poll::Pending => assert!(!asked.is_granted, "{range} waits ({context})"),
            }
        }
    }
    for (index, one) in queue.iter().enumerate() {
        for other in &queue[..index] {
            let together = one.is_granted && other.is_granted;
            assert!(!(together && conflict(one, other)), "R1 ({context})");
        }
    }
}

/// Asks for a range, now and then under the token of one that is granted; stands in the model where it belongs.
fn ask(lock: &RangeLock, queue: &mut Vec<Asked>, dice: &mut Dice, id: u64) {
    let start = dice.below(12);
    let mut range = ByteRange::new(start, start + dice.below(5));
    let mut mode = if dice.below(2) == 0 { RangeMode::Shared } else { RangeMode::Exclusive };
    let granted: Vec<usize> = (0..queue.len()).filter(|i| queue[*i].is_granted).collect();
    let under = (dice.below(3) == 0 && !granted.is_empty())
        .then(|| granted[usize::try_from(dice.below(granted.len() as u64)).expect("small")]);
    let (mut locking, family, at) = match under {
        Some(parent) => {
            let holder = &queue[parent];
            let Held::Granted(guard) = &holder.held else { panic!("it is granted") };
            let within = holder.range;
            let start = within.start + dice.below(within.len() + 1);
            range = ByteRange::new(start, start + dice.below(within.end - start + 1));
            if holder.mode == RangeMode::Shared {
                mode = RangeMode::Shared;
            }
            let locking = lock.lock_under(range, mode, Some(guard.token())).expect("it covers");
            let family = [&holder.family[..], &[holder.id]].concat();
            // Behind those under the same token, before everybody else behind the guard.
            let mut at = parent + 1;
            while at < queue.len() && queue[at].family.contains(&holder.id) {
                at += 1;
            }
            (Box::pin(locking), family, at)
        }
        None => (Box::pin(lock.lock(range, mode)), Vec::new(), queue.len()),
    };
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let (is_granted, held) = match locking.as_mut().poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(guard) => (true, Held::Granted(guard)),
        Poll::Pending => (false, Held::Waiting(locking, woken)),
    };
    let asked = Asked { range, mode, family, id, is_granted: false, held };
    let is_free = !queue[..at].iter().any(|earlier| conflict(earlier, &asked));
    assert_eq!(is_granted, is_free, "{range} {mode:?} as number {id}");
    queue.insert(at, Asked { is_granted, ..asked });
}

#[test]
fn whoever_waits_waits_for_what_conflicts_and_came_before_and_for_nothing_else() {
    let (mut waited, mut given_up, mut nested) = (0, 0, 0);
    for seed in 0..400 {
        let (lock, mut dice, mut queue) = (RangeLock::default(), Dice(seed), Vec::new());
        for step in 0..120 {
            let context = format!("seed {seed}, step {step}");
            if queue.is_empty() || dice.below(5) < 3 && queue.len() < 24 {
                ask(&lock, &mut queue, &mut dice, step);
                let newest = queue.iter().find(|asked| asked.id == step).expect("it is there");
                waited += usize::from(!newest.is_granted);
                nested += usize::from(!newest.family.is_empty());
            } else {
                let index = usize::try_from(dice.below(queue.len() as u64)).expect("small");
                // A guard is dropped, or a future that still waits, or one that was granted and not polled since.
                let gone = queue.remove(index);
                given_up += usize::from(!gone.is_granted);
                drop(gone);
            }
            settle(&mut queue, &context);
            let held = queue.iter().filter(|asked| asked.is_granted).count();
            assert_eq!(lock.counts(), (held, queue.len() - held), "{context}");
        }
        drop(queue);
        assert_eq!(lock.counts(), (0, 0));
        assert!(lock.try_lock(ByteRange::new(0, 100), RangeMode::Exclusive).is_some());
    }
    assert!(waited > 5000 && given_up > 2000 && nested > 1000, "{waited} {given_up} {nested}");
}

#[test]
fn one_that_was_granted_and_goes_unpolled_lets_the_next_one_in() {
    let lock = RangeLock::default();
    let range = ByteRange::new(0, 10);
    let first = lock.lock(range, RangeMode::Exclusive).now_or_never().expect("free");
    let second = lock.lock(range, RangeMode::Exclusive);
    let mut third = Box::pin(lock.lock(range, RangeMode::Shared));
    assert!(third.as_mut().now_or_never().is_none());
    drop(first);
    assert!(third.as_mut().now_or_never().is_none(), "the second has it");
    drop(second);
    assert!(third.now_or_never().is_some());
}

#[test]
fn a_token_opens_what_its_guard_holds_and_no_more() {
    let lock = RangeLock::default();
    let guard =
        lock.lock(ByteRange::new(10, 20), RangeMode::Exclusive).now_or_never().expect("free");
    let token = Some(guard.token());
    let mut behind = Box::pin(lock.lock(ByteRange::new(15, 16), RangeMode::Shared));
    assert!(behind.as_mut().now_or_never().is_none());
    let under =
        |start, end| lock.lock_under(ByteRange::new(start, end), RangeMode::Exclusive, token);
    let child = under(12, 18).expect("covered").now_or_never().expect("nobody else is in there");
    assert_eq!(under(5, 15).unwrap_err().kind(), ErrorKind::Bug, "it would wait for itself");
    let elsewhere = under(20, 30).expect("not held").now_or_never().expect("free");
    let mut sibling = Box::pin(under(17, 19).expect("covered"));
    assert!(
        sibling.as_mut().now_or_never().is_none(),
        "two calls of the copier exclude each other"
    );
    // The copier is dropped; what it had begun goes on, and is still protected.
    drop(guard);
    assert!(behind.as_mut().now_or_never().is_none());
    drop(child);
    assert!(behind.as_mut().now_or_never().is_some() && sibling.now_or_never().is_some());
    drop(elsewhere);
    let other = RangeLock::default();
    let unknown = other.lock_under(ByteRange::new(0, 5), RangeMode::Exclusive, token);
    assert!(unknown.expect("an ordinary one").now_or_never().is_some());
}
