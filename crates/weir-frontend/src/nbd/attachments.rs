//! Which connections are one client's use of an export: a connection that is made anew takes the place of the lost one.
//!
//! Invariants
//!  A1. No request of a connection runs before every connection of an older generation of its session has ended. What
//!      those had in flight has ended by then, or is left to rule 5 of the device contract: no later write is undone by
//!      it.
//!  A2. A connection that is older than the newest one of its session is turned away.
//!
//! Clients that attach connect anew without losing anything. So they are sent away, too, where they are to learn what
//! is told in the handshake only: the size of the export.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use weir_device::mutant;
use weir_nbd::Attachment;

use super::error::NbdError;

/// Sessions that are remembered without a connection: a late connection of one that is not is taken for a new one.
const IDLE_SESSIONS_MAX: usize = 1024;

/// A session of an export.
type Key = (String, [u8; 16]);

#[derive(Debug)]
struct Member {
    number: u64,
    generation: u64,
}

#[derive(Debug, Default)]
struct Known {
    newest: u64,
    /// Those that have joined before are to come anew.
    renewed_at: u64,
    members: Vec<Member>,
    /// When a connection came or went last.
    used: u64,
}

#[derive(Debug, Default)]
struct Sessions {
    known: BTreeMap<Key, Known>,
    numbers: u64,
}

#[derive(Debug, Default)]
struct Shared {
    sessions: Mutex<Sessions>,
    /// Told after every change.
    changed: Notify,
}

/// The sessions of the clients of a listener. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Attachments(Arc<Shared>);

/// A connection among those of its session. Dropping it takes it out: it has ended.
#[derive(Debug)]
pub(super) struct Attached {
    attachments: Attachments,
    key: Key,
    number: u64,
    generation: u64,
}

impl Sessions {
    /// Forgets the sessions that were used longest ago, if there are too many without a connection.
    fn forget(&mut self) {
        let idle = self.known.iter().filter(|(_, known)| known.members.is_empty());
        if idle.clone().count() > IDLE_SESSIONS_MAX
            && let Some((key, _)) = idle.min_by_key(|(_, known)| known.used)
        {
            let key = key.clone();
            self.known.remove(&key);
        }
    }
}

impl Attachments {
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection joins its session, and has older ones end.
    ///
    /// # Errors
    /// [`NbdError::Replaced`], by A2.
    pub(super) fn join(&self, export: &str, attachment: Attachment) -> Result<Attached, NbdError> {
        let key = (export.to_owned(), attachment.session);
        let generation = attachment.generation;
        let mut sessions = self.lock();
        sessions.numbers += 1;
        let number = sessions.numbers;
        let known = sessions.known.entry(key.clone()).or_default();
        if generation < known.newest && !mutant("old_generation_served") {
            return Err(NbdError::Replaced);
        }
        (known.newest, known.used) = (generation, number);
        known.members.push(Member { number, generation });
        drop(sessions);
        self.0.changed.notify_waiters();
        Ok(Attached { attachments: self.clone(), key, number, generation })
    }
}

impl Attachments {
    /// Has all connections of sessions with an export come anew.
    pub fn renew(&self, export: &str) {
        let mut sessions = self.lock();
        sessions.numbers += 1;
        let now = sessions.numbers;
        let of_export = sessions.known.iter_mut().filter(|((name, _), _)| name == export);
        of_export.for_each(|(_, known)| known.renewed_at = now);
        drop(sessions);
        self.0.changed.notify_waiters();
    }
}

impl Attached {
    async fn until(&self, is_so: impl Fn(&Known) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.attachments.0.changed.notified());
            changed.as_mut().enable();
            if self.attachments.lock().known.get(&self.key).is_none_or(&is_so) {
                return;
            }
            changed.await;
        }
    }

    /// Returns once every older connection has ended (A1).
    pub(super) async fn alone(&self) {
        if mutant("old_generation_runs_on") {
            return;
        }
        self.until(|known| known.members.iter().all(|other| other.generation >= self.generation))
            .await;
    }

    /// Returns once a newer connection is there, or should be: this one is to end at once.
    pub(super) async fn replaced(&self) {
        if mutant("old_generation_runs_on") {
            return std::future::pending().await;
        }
        self.until(|known| known.newest > self.generation || known.renewed_at > self.number).await;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut sessions = self.attachments.lock();
        sessions.numbers += 1;
        let now = sessions.numbers;
        if let Some(known) = sessions.known.get_mut(&self.key) {
            known.members.retain(|member| member.number != self.number);
            known.used = now;
        }
        sessions.forget();
        drop(sessions);
        self.attachments.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn attachment(session: u8, generation: u64) -> Attachment {
        Attachment { session: [session; 16], generation, exclusive: false, known: None }
    }

    #[test]
    fn a_newer_connection_waits_for_older_ones_and_has_them_end() {
        let all = Attachments::default();
        let [one, two] = [0, 1].map(|_| all.join("disk", attachment(1, 5)).expect("joins"));
        one.alone().now_or_never().expect("they are of the same generation");
        assert!(one.replaced().now_or_never().is_none());
        let other = all.join("disk", attachment(2, 1)).expect("another session");
        other.alone().now_or_never().expect("it has nobody");
        let elsewhere = all.join("other", attachment(1, 1)).expect("another export");
        let newer = all.join("disk", attachment(1, 6)).expect("joins");
        assert!(newer.alone().now_or_never().is_none());
        for old in [one, two] {
            assert!(newer.alone().now_or_never().is_none());
            old.replaced().now_or_never().expect("it is to end");
        }
        newer.alone().now_or_never().expect("they have ended");
        for unconcerned in [&other, &elsewhere, &newer] {
            assert!(unconcerned.replaced().now_or_never().is_none());
        }
    }

    #[test]
    fn connections_that_are_to_come_anew_end_and_later_ones_do_not() {
        let all = Attachments::default();
        let old = all.join("disk", attachment(1, 5)).expect("joins");
        let elsewhere = all.join("other", attachment(1, 5)).expect("joins");
        all.renew("disk");
        old.replaced().now_or_never().expect("it is to end");
        assert!(elsewhere.replaced().now_or_never().is_none());
        let new = all.join("disk", attachment(1, 6)).expect("joins");
        assert!(new.replaced().now_or_never().is_none());
    }

    #[test]
    fn an_older_connection_is_turned_away_also_when_the_newer_one_has_left() {
        let all = Attachments::default();
        drop(all.join("disk", attachment(1, 5)).expect("joins"));
        assert!(matches!(all.join("disk", attachment(1, 4)), Err(NbdError::Replaced)));
        all.join("disk", attachment(1, 5)).expect("as new as the newest");
    }

    #[test]
    fn what_is_remembered_of_sessions_is_bounded() {
        let all = Attachments::default();
        let stays = all.join("disk", attachment(255, 1));
        for number in 0..3 * IDLE_SESSIONS_MAX as u128 {
            let session = number.to_be_bytes();
            let one = Attachment { session, ..attachment(0, 1) };
            drop(all.join("disk", one).expect("joins"));
        }
        assert!(all.lock().known.len() <= IDLE_SESSIONS_MAX + 2);
        assert!(all.join("disk", attachment(255, 0)).is_err());
        drop(stays);
    }
}
