//! Lines in the log about clients that are refused. Who may not use anything can be refused as often as it likes: what
//! it sends must not fill the disk of the log.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use weir_device::{Peer, mutant};

/// Time between two lines about the same client and reason.
const INTERVAL: Duration = Duration::from_secs(5);

/// Lines within that time, about all clients and reasons together: somebody may have any number of addresses.
const LINES_MAX: usize = 32;

/// Bytes that are shown of what a client sent.
const SHOWN_MAX: usize = 100;

/// Bytes of an error about it, with our own words.
const ERROR_MAX: usize = 400;

/// Bits of an IPv6 address that tell hosts of one network apart: whoever has one of its addresses has them all.
const HOST_BITS: u32 = 64;

/// Which refusals were logged lately. Cheap to clone; used from any thread.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    /// When there was a line about a client and a reason, of the last [`INTERVAL`].
    last: BTreeMap<(String, String), Instant>,
    /// Refusals of all clients since the last line.
    left_out: u64,
}

impl Refusals {
    /// Has `say` log that a client was refused, unless that was logged of this client a moment ago, or much of others
    /// was. It is told how many such lines, about whomever, were left out since the last one: the next line of anybody
    /// says it, so that no count is lost with a client that does not come again. Reasons that differ in numbers alone
    /// count as the same.
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
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |last: &Instant| now.duration_since(*last) < INTERVAL;
        said.last.retain(|_, last| is_recent(last));
        let is_enough = said.last.contains_key(&key) || said.last.len() >= LINES_MAX;
        if is_enough && !mutant("refusals_all_logged") {
            said.left_out = said.left_out.saturating_add(1);
            return None;
        }
        said.last.insert(key, now);
        Some(std::mem::take(&mut said.left_out))
    }
}

/// The client behind a connection, for [`Refusals::note`]: its user, its address, or its network where that is one of
/// IPv6.
#[must_use]
pub fn origin(peer: &Peer) -> String {
    match peer {
        Peer::Host(IpAddr::V6(address)) => {
            let network = Ipv6Addr::from_bits((address.to_bits() >> HOST_BITS) << HOST_BITS);
            format!("{network}/{}", Ipv6Addr::BITS - HOST_BITS)
        }
        Peer::Host(IpAddr::V4(address)) => address.to_string(),
        Peer::User(number) => format!("uid:{number}"),
        Peer::Unknown => String::new(),
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

/// What is written counts, not what was sent: a character that is escaped takes up to ten bytes.
fn cut(text: &str, bytes_max: usize) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        let before = shown.len();
        match character.is_control() {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
        if shown.len() > bytes_max {
            shown.truncate(before);
            shown.push_str("...");
            break;
        }
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
        assert_eq!(noted(&refusals, "one", "magic 0x1"), None);
        assert_eq!(noted(&refusals, "one", "token"), Some(2), "another reason");
        assert_eq!(noted(&refusals, "two", "magic 0xffff"), Some(0), "another client");
        assert_eq!(noted(&refusals, "one", "magic 0x1"), None);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(noted(&refusals, "three", "token"), Some(1), "of one that does not come again");
        assert_eq!(noted(&refusals, "one", "magic 0x3"), Some(0));
        assert_eq!(noted(&refusals, "two", "magic 0xffff"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn of_clients_without_number_few_are_logged_and_all_are_counted() {
        const CLIENTS: usize = 4096;
        let refusals = Refusals::default();
        let (mut lines, mut left_out) = (0, 0);
        let mut flood = |from: usize| {
            for client in from..from + CLIENTS {
                if let Some(before) = noted(&refusals, &format!("client {client}"), "token") {
                    (lines, left_out) = (lines + 1, left_out + before);
                }
            }
            (lines, left_out + refusals.0.lock().expect("whole").left_out)
        };
        assert_eq!(flood(0), (LINES_MAX, (CLIENTS - LINES_MAX) as u64));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(flood(CLIENTS), (2 * LINES_MAX, 2 * (CLIENTS - LINES_MAX) as u64));
        assert_eq!(refusals.0.lock().expect("whole").last.len(), LINES_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let of = |address: &str| origin(&Peer::host(address.parse().expect("an address")));
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(of("2001:db8:1:2:ffff::"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:3::1"), of("2001:db8:1:2::1"));
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7", "it comes by IPv4");
        assert_eq!(origin(&Peer::User(7)), "uid:7");
    }

    #[test]
    fn little_is_shown_of_what_a_client_sends() {
        assert_eq!(shown("/v1/volumes"), "/v1/volumes");
        assert_eq!(shown("a\u{1b}[2J\n\u{9b}"), "a\\u{1b}[2J\\n\\u{9b}");
        assert_eq!(shown(&"a".repeat(SHOWN_MAX)), "a".repeat(SHOWN_MAX));
        for sent in ["\u{e4}", "\u{9b}", "\u{1f600}", "a"] {
            let long = shown(&sent.repeat(60_000));
            assert!((SHOWN_MAX - 6..=SHOWN_MAX + 3).contains(&long.len()), "{long}");
            assert!(long.ends_with("..."), "{long}");
        }
        assert_eq!(shown_error(&"a".repeat(60_000)).len(), ERROR_MAX + 3);
    }
}
