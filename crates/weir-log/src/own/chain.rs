//! A chain of numbered versions in a store: the one conditional operation that everything about ownership is made of.
//!
//! A change is a new version, created create-only under the next number. **It counts only when a listing made after the
//! reply shows it as the highest number with its predecessor present**: old versions are deleted, which makes their
//! numbers free again, and a writer that slept could otherwise go on creating versions beside the real owner for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weir_store::{Put, RetryPolicy, Store, StoreError};

use crate::limits::DAMAGED_ATTEMPTS_MAX;

/// Which old versions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Versions behind the newest one that are always kept; at least 1, which [`Retention`]'s users rely on.
    pub versions_min: u64,
    /// Younger versions are kept as well.
    pub age_min: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { versions_min: 64, age_min: Duration::from_secs(3600) }
    }
}

/// What became of a version.
#[derive(Debug)]
pub(crate) enum Created {
    /// It counts; these are the numbers that the listing showed, ascending.
    Counts(Vec<u64>),
    /// Another writer is there.
    Refused(String),
    /// Nobody is, but versions before it are gone that nobody may have pruned: the store was emptied or set back.
    Lost(String),
}

/// Key of a version below `prefix`.
pub(crate) fn key(prefix: &str, number: u64) -> String {
    format!("{prefix}{number:016x}.json")
}

/// The number in a key of [`key`].
pub(crate) fn parse_key(key: &str) -> Option<u64> {
    let digits = key.rsplit_once('/')?.1.strip_suffix(".json")?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Numbers of the versions below `prefix`, ascending. One attempt.
pub(crate) async fn numbers(store: &Store, prefix: &str) -> Result<Vec<u64>, StoreError> {
    let listed = store.list(prefix, None).await?;
    let mut numbers: Vec<u64> = listed.iter().filter_map(|l| parse_key(&l.key)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// What shows that the store lost something that a version stands on, if it did.
pub(crate) type Lost<'a> = &'a dyn Fn() -> LocalBoxFuture<'a, Result<Option<String>, StoreError>>;

/// For a version that stands on the one before it alone.
pub(crate) fn nothing_lost() -> LocalBoxFuture<'static, Result<Option<String>, StoreError>> {
    Box::pin(std::future::ready(Ok(None)))
}

/// What differs from chain to chain in [`create`].
#[derive(Clone, Copy)]
pub(crate) struct CreateRules<'a> {
    /// Whether the version before is asked for, too: a store that lost it, but has this one, would look whole to the
    /// next opening.
    pub(crate) asks_for_last: bool,
    /// Asked before each attempt: the store may have been set back while it was away.
    pub(crate) lost: Lost<'a>,
    /// Whether bytes are a version as its writer wrote it: only such a one proves another writer.
    pub(crate) is_whole: fn(&[u8]) -> bool,
    /// A deliberate bug: believe the reply, do not list.
    pub(crate) without_list: bool,
}

/// Creates version `number`, or says what shows that something is lost that it stands on. One attempt.
async fn put_unless_lost(
    store: &Store,
    (prefix, number): (&str, u64),
    body: &Bytes,
    rules: CreateRules<'_>,
) -> Result<Result<Put, String>, StoreError> {
    if let Some(evidence) = (rules.lost)().await? {
        return Ok(Err(evidence));
    }
    // After that, which waits for a store that is away.
    if rules.asks_for_last && number > 1 && !weir_device::mutant("version_over_a_gap") {
        let last = key(prefix, number - 1);
        match store.get_head(&last, 1).await {
            Err(StoreError::NotFound { .. }) => return Ok(Err(format!("{last} is not there"))),
            found => found.map(|_| ())?,
        }
    }
    store.put_create(&key(prefix, number), vec![body.clone()]).await.map(Ok)
}

/// Why version `number` was not created, where something is missing that it stands on: another writer deletes what its
/// own versions do not need.
fn refused_or_lost(key: &str, number: u64, listed: &[u64], evidence: String) -> Created {
    match listed.last().filter(|_| !weir_device::mutant("takeover_called_set_back")) {
        Some(seen) if *seen >= number => {
            Created::Refused(format!("{key} is not the newest: {seen} is there"))
        }
        _ => Created::Lost(evidence),
    }
}

/// Creates version `number` with `body`, which no other writer has, and finds out whether it counts.
///
/// # Errors
/// What the store says, if `policy` ends; the version may be there, or appear later.
pub(crate) async fn create(
    store: &Store,
    policy: &RetryPolicy,
    random: &mut impl FnMut() -> u64,
    prefix: &str,
    number: u64,
    body: &Bytes,
    rules: CreateRules<'_>,
) -> Result<Created, StoreError> {
    let key = key(prefix, number);
    let (mut damaged, mut pause) = (0, policy.first_delay);
    loop {
        let put = || put_unless_lost(store, (prefix, number), body, rules);
        match store.retry(policy, random, None, put).await? {
            Ok(Put::Created) => break,
            Ok(_) => {}
            Err(evidence) => {
                let listed = store.retry(policy, random, None, || numbers(store, prefix)).await?;
                return Ok(refused_or_lost(&key, number, &listed, evidence));
            }
        }
        // Perhaps our own, from an attempt whose reply was lost. Gone means that others are far ahead: the listing
        // below shows them.
        let get = || async {
            match store.get(&key).await {
                Err(StoreError::NotFound { .. }) => Ok(None),
                other => other.map(Some),
            }
        };
        match store.retry(policy, random, None, get).await? {
            None => continue,
            Some(there) if there == *body => break,
            Some(there) if (rules.is_whole)(&there) => {
                return Ok(Created::Refused(format!("{key} was written by another")));
            }
            Some(_) => {}
        }
        // Damaged on its way, as a rule. Being fenced is final, so it is read again before this writer gives up.
        damaged += 1;
        if damaged == DAMAGED_ATTEMPTS_MAX {
            return Ok(Created::Refused(format!("{key} is there, and damaged")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(policy.max_delay);
    }
    if rules.without_list {
        // With this deliberate bug old versions are pruned nevertheless, as a writer would do that remembers what it
        // created instead of listing; otherwise no number would become free again.
        return Ok(Created::Counts((number.saturating_sub(16).max(1)..=number).collect()));
    }
    if weir_device::mutant("prune_too_eagerly") && number > 1 {
        let predecessor = self::key(prefix, number - 1);
        store.retry(policy, random, None, || store.delete(&predecessor)).await?;
    }
    let list = || numbers(store, prefix);
    let listed = store.retry(policy, random, None, list).await?;
    let highest = listed.last() == Some(&number);
    let before = number == 1 || listed.iter().rev().nth(1) == Some(&(number - 1));
    if highest && before {
        return Ok(Created::Counts(listed));
    }
    if highest {
        // A writer that pruned our predecessor has published newer versions, so its newest one would be the highest,
        // not ours.
        let before = listed.iter().rev().nth(1).map_or("nothing".to_owned(), u64::to_string);
        return Ok(Created::Lost(format!("{key} is the newest, and {before} is there before it")));
    }
    let seen = listed.last().copied().unwrap_or(0);
    Ok(Created::Refused(format!("{key} is not the newest with its predecessor: {seen} is there")))
}

/// Decides which old versions may go. Their age is the time since this process first saw them, so that no clock of
/// another host matters.
#[derive(Debug, Default)]
pub(crate) struct Pruner {
    seen: BTreeMap<u64, Duration>,
    /// Versions up to this one were found to be old by their own record.
    known_old: u64,
    /// A record was read already.
    asked: bool,
}

impl Pruner {
    /// Takes note of a listing whose highest number counts, at `now` of a clock that never jumps back; the numbers that
    /// may be deleted.
    pub(crate) fn on_listing(
        &mut self,
        listed: &[u64],
        now: Duration,
        retention: &Retention,
    ) -> Vec<u64> {
        let Some(newest) = listed.last() else { return Vec::new() };
        self.seen.retain(|number, _| listed.binary_search(number).is_ok());
        for number in listed {
            self.seen.entry(*number).or_insert(now);
        }
        let bound = newest.saturating_sub(retention.versions_min.max(1));
        let old = |number: u64, seen: Duration| {
            number <= self.known_old || now.saturating_sub(seen) >= retention.age_min
        };
        self.seen
            .iter()
            .filter(|(number, seen)| **number < bound && old(**number, **seen))
            .map(|(number, _)| *number)
            .collect()
    }

    /// The newest version that could go if its record says that it is old; asked once, for the versions that were there
    /// before this process.
    pub(crate) fn worth_reading(&mut self, listed: &[u64], retention: &Retention) -> Option<u64> {
        let newest = listed.last()?;
        let bound = newest.saturating_sub(retention.versions_min.max(1));
        let candidate = listed.iter().rev().copied().find(|number| *number < bound);
        (!std::mem::replace(&mut self.asked, true)).then_some(candidate)?
    }

    /// A record says that its version, and so every earlier one, is old enough.
    pub(crate) fn note_old(&mut self, number: u64) {
        self.known_old = self.known_old.max(number);
    }
}

#[cfg(test)]
mod tests {
    use weir_store::Faults;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn retention() -> Retention {
        Retention { versions_min: 3, age_min: 10 * SECOND }
    }

    #[test]
    fn only_versions_that_are_far_back_and_old_may_go() {
        let mut pruner = Pruner::default();
        let listed: Vec<u64> = (1..=9).collect();
        assert!(pruner.on_listing(&listed, SECOND, &retention()).is_empty(), "none is old");
        assert_eq!(pruner.on_listing(&listed, 11 * SECOND, &retention()), [1, 2, 3, 4, 5]);
        let later: Vec<u64> = (5..=12).collect();
        assert_eq!(pruner.on_listing(&later, 12 * SECOND, &retention()), [5, 6, 7, 8]);
    }

    #[test]
    fn what_a_record_says_makes_everything_before_it_old() {
        let mut pruner = Pruner::default();
        let listed: Vec<u64> = (1..=9).collect();
        assert!(pruner.on_listing(&listed, SECOND, &retention()).is_empty());
        assert_eq!(pruner.worth_reading(&listed, &retention()), Some(5));
        pruner.note_old(5);
        assert_eq!(pruner.worth_reading(&listed, &retention()), None);
        assert_eq!(pruner.on_listing(&listed, SECOND, &retention()), [1, 2, 3, 4, 5]);
        assert_eq!(Pruner::default().worth_reading(&[7, 8, 9], &retention()), None);
    }

    /// What [`create`] comes to where the store has `there` under the number, damaged for a while.
    async fn create_beside(there: &'static [u8], damaged_for: Duration) -> Created {
        let faults = Faults::new(1);
        let store = Store::open("memory://").expect("a store").with_faults(faults.clone());
        for (number, body) in [(1, &b"one"[..]), (2, there)] {
            let body = vec![Bytes::from_static(body)];
            assert_eq!(
                store.put_create(&key("p/", number), body).await.expect("put"),
                Put::Created
            );
        }
        faults.flip_bit(&key("p/", 2), 0);
        let heal = async {
            tokio::time::sleep(damaged_for).await;
            faults.heal(&key("p/", 2));
        };
        let (lost, is_whole): (_, fn(&[u8]) -> bool) = (&nothing_lost, |bytes| bytes != b"uwo");
        let rules = CreateRules { asks_for_last: false, lost, is_whole, without_list: false };
        let (policy, body) = (RetryPolicy::forever(), Bytes::from_static(b"two"));
        let mut random = || 0;
        let created = create(&store, &policy, &mut random, "p/", 2, &body, rules);
        futures_util::join!(created, heal).0.expect("the store works")
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_was_damaged_on_its_way_fences_nobody() {
        let created = create_beside(b"two", Duration::from_millis(900)).await;
        assert!(matches!(&created, Created::Counts(listed) if *listed == [1, 2]), "{created:?}");
        let created = create_beside(b"two", Duration::from_secs(3600)).await;
        assert!(
            matches!(&created, Created::Refused(why) if why.contains("damaged")),
            "{created:?}"
        );
        let created = create_beside(b"another", Duration::ZERO).await;
        assert!(
            matches!(&created, Created::Refused(why) if why.contains("another")),
            "{created:?}"
        );
    }

    #[test]
    fn who_has_the_number_or_a_later_one_is_another_writer() {
        let is_refused = |listed: &[u64]| {
            let created = refused_or_lost("key", 3, listed, "an object is gone".to_owned());
            matches!(created, Created::Refused(_))
        };
        assert!(is_refused(&[1, 2, 3]) && is_refused(&[5, 6]));
        assert!(!is_refused(&[]) && !is_refused(&[1, 2]), "the store was set back");
    }

    #[test]
    fn keys_read_back() {
        let key = key("a/manifest/", 0x2a);
        assert_eq!(key, "a/manifest/000000000000002a.json");
        assert_eq!(parse_key(&key), Some(0x2a));
        assert_eq!(parse_key("a/manifest/2a.json"), None);
    }
}
