//! Lines in the log about clients that are refused. Who may not use anything can be refused as often as it likes: what
//! it sends must not fill the disk of the log.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use weir_device::mutant;

/// Time between two lines about the same client and reason.
const INTERVAL: Duration = Duration::from_secs(5);

/// Clients and reasons that are told apart within that time; all others count as one.
const KNOWN_MAX: usize = 1024;

/// Characters that are shown of what a client sent.
const SHOWN_MAX: usize = 100;

/// Characters of an error about it, with our own words.
const ERROR_MAX: usize = 400;

/// Which refusals were logged lately. Cheap to clone; used from any thread.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<(String, String), Said>>>);

#[derive(Debug)]
struct Said {
    last: Instant,
    /// Refusals since then.
    left_out: u64,
}

impl Refusals {
    /// Has `say` log that a client was refused, unless that was logged of this client a moment ago. It is told how many
    /// such lines were left out since. Reasons that differ in numbers alone count as the same.
    pub fn note(
        &self,
        client: impl Display,
        reason: impl Display,
        say: impl FnOnce(Option<NonZeroU64>),
    ) {
        let reason: String =
            reason.to_string().chars().filter(|c| !c.is_ascii_hexdigit()).take(SHOWN_MAX).collect();
        if let Some(left_out) = self.due((shown(&client.to_string()), reason)) {
            say(NonZeroU64::new(left_out));
        }
    }

    /// How many were left out, if a line is due.
    fn due(&self, key: (String, String)) -> Option<u64> {
        let now = Instant::now();
        // What is behind it is whole between two statements.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |said: &Said| now.duration_since(said.last) >= INTERVAL;
        if all.len() >= KNOWN_MAX && !all.contains_key(&key) {
            all.retain(|_, said| !is_over(said));
        }
        let key = match all.len() >= KNOWN_MAX && !all.contains_key(&key) {
            true => (String::new(), String::new()),
            false => key,
        };
        match all.get_mut(&key) {
            Some(said) if !is_over(said) && !mutant("refusals_all_logged") => {
                said.left_out += 1;
                None
            }
            Some(said) => {
                said.last = now;
                Some(std::mem::take(&mut said.left_out))
            }
            None => {
                all.insert(key, Said { last: now, left_out: 0 });
                Some(0)
            }
        }
    }
}

/// The beginning of what a client sent, for the log, without characters that do something to a terminal.
#[must_use]
pub fn shown(text: &str) -> String {
    cut(text, SHOWN_MAX)
}

/// An error for the log, of which a part may be what a client sent.
#[must_use]
pub fn shown_error(error: &impl Display) -> String {
    cut(&error.to_string(), ERROR_MAX)
}

fn cut(text: &str, characters_max: usize) -> String {
    let mut characters = text.chars();
    let mut shown = String::new();
    for character in characters.by_ref().take(characters_max) {
        match character.is_control() {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    if characters.next().is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is logged of a refusal: how many were left out before.
    fn noted(refusals: &Refusals, client: &str, reason: &str) -> Option<u64> {
        let mut told = None;
        refusals.note(client, reason, |left_out| told = Some(left_out.map_or(0, NonZeroU64::get)));
        told
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_logged_now_and_then() {
        let refusals = Refusals::default();
        assert_eq!(noted(&refusals, "one", "magic 0xffff"), Some(0));
        assert_eq!(
            noted(&refusals, "one", "magic 0x1234"),
            None,
            "another number is no other reason"
        );
        assert_eq!(noted(&refusals, "one", "token"), Some(0), "another reason");
        assert_eq!(noted(&refusals, "two", "magic 0xffff"), Some(0), "another client");
        assert_eq!(noted(&refusals, "one", "magic 0x1"), None);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(noted(&refusals, "one", "magic 0x2"), Some(2));
        assert_eq!(noted(&refusals, "one", "magic 0x3"), None);
        assert_eq!(noted(&refusals, "two", "magic 0xffff"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn of_clients_without_number_few_are_logged() {
        let refusals = Refusals::default();
        let flood = |from: usize| {
            let clients = (from..from + 4 * KNOWN_MAX).map(|client| format!("client {client}"));
            clients.filter(|client| noted(&refusals, client, "token").is_some()).count()
        };
        assert_eq!(flood(0), KNOWN_MAX + 1);
        assert_eq!(refusals.0.lock().expect("whole").len(), KNOWN_MAX + 1);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(flood(KNOWN_MAX * 8), KNOWN_MAX + 1, "and again after a while");
        assert!(refusals.0.lock().expect("whole").len() <= KNOWN_MAX + 1);
    }

    #[test]
    fn little_is_shown_of_what_a_client_sends() {
        assert_eq!(shown("/v1/volumes"), "/v1/volumes");
        assert_eq!(shown("a\u{1b}[2J\n\u{9b}"), "a\\u{1b}[2J\\n\\u{9b}");
        let long = shown(&"\u{e4}".repeat(60_000));
        assert_eq!(long.chars().count(), SHOWN_MAX + 3);
        assert!(long.ends_with("..."), "{long}");
        assert_eq!(shown_error(&"a".repeat(60_000)).len(), ERROR_MAX + 3);
    }
}
