//! Who may write an export: everybody, or one session alone (exclusive access), and whether anybody else has written
//! since a session had that.
//!
//! Invariants
//!  E1. While a session has exclusive access, every connection that may write is one of that session.
//!  E2. A tag that was given to a session is forgotten, and that is written down where it lasts, before a request of
//!      anybody else that may write is run. Whoever shows the tag that is not forgotten thus knows that nobody else has
//!      written since. Another session that shows it is given a new one, so that of two copies of a client's state one
//!      alone can go on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_device::{DeviceError, mutant};
use weir_nbd::{Admission, Attachment, Exclusive, ExportInfo, Instance, NotAttached, Tag};

/// A session of one export.
type SessionId = [u8; 16];

/// The tag of what an export holds, and the session that was given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The tag.
    pub tag: Tag,
    /// The session.
    pub session: SessionId,
    /// The tag that the session had shown for it, if that was good: it counts for this session until it shows the new
    /// one, since the answer may have been lost.
    pub shown: Option<Tag>,
}

const HELD: &str = "another client has exclusive write access to this export";
const WRITTEN: &str =
    "exclusive access is not possible: another client that may write uses this export";
const FORWARDED: &str =
    "this export is a remote volume itself: two nodes could wait for each other; use its server";
const REPLACED: &str = "the content was replaced meanwhile, by a rollback or a shrink";
const LOST: &str = "exclusive access was lost while the client shook hands: it is to attach again";
const FROZEN: &str = "exclusive access is not possible: this export takes no writes";

/// A session that alone may write.
#[derive(Debug)]
struct Holder {
    session: SessionId,
    /// Connections that have the right.
    count: usize,
    /// Who it is, for people.
    client: String,
}

/// Of one export.
#[derive(Debug, Default)]
struct State {
    /// Connections that may write, by their session, if they belong to one.
    writers: BTreeMap<Option<SessionId>, usize>,
    /// The session that alone may write, if one may.
    holder: Option<Holder>,
    given: Option<Given>,
    /// What is written down.
    kept: Option<Given>,
    /// Tags that were made.
    tags: u128,
    /// Requests are forwarded to another server.
    is_forwarded: bool,
    /// Sessions that have attached, the latest last, and those of them under which the content was replaced.
    seen: VecDeque<SessionId>,
    replaced: VecDeque<SessionId>,
}

/// Sessions that are remembered, of each kind.
const SESSIONS_MAX: usize = 1024;

fn remember(sessions: &mut VecDeque<SessionId>, session: SessionId) {
    sessions.retain(|known| *known != session);
    sessions.push_back(session);
    if sessions.len() > SESSIONS_MAX {
        sessions.pop_front();
    }
}

impl State {
    fn hold(
        &mut self,
        attachment: &Attachment,
        instance: Instance,
        client: &str,
    ) -> Result<Exclusive, NotAttached> {
        let session = attachment.session;
        if let Some(Holder { client: holder, .. }) = self.holder_beside(Some(session)) {
            tracing::warn!(client, holder, "exclusive access is refused: another client has it");
            return Err(NotAttached::Taken(HELD));
        }
        if self.writers.keys().any(|writer| *writer != Some(session)) && !mutant("exclusive_shared")
        {
            tracing::warn!(client, "exclusive access is refused: another client may write");
            return Err(NotAttached::Taken(WRITTEN));
        }
        let count = self.holder.as_ref().map_or(0, |holder| holder.count) + 1;
        self.holder = Some(Holder { session, count, client: client.to_owned() });
        let known = attachment.known;
        if let Some(given) = self.given.filter(|given| given.session == session) {
            let is_unchanged = known.is_some()
                && (known == Some(given.tag) || known == given.shown)
                || mutant("lost_answer_taken_for_unchanged");
            return Ok(Exclusive { tag: given.tag, is_unchanged });
        }
        let is_unchanged = self.given.is_some_and(|given| Some(given.tag) == known);
        self.tags += 1;
        // Of no other opening: an instance is random.
        let tag = u128::from_le_bytes(instance).wrapping_add(self.tags).to_le_bytes();
        self.given = Some(Given { tag, session, shown: known.filter(|_| is_unchanged) });
        Ok(Exclusive { tag, is_unchanged })
    }

    /// Who keeps this session, or a client without one, from writing.
    fn holder_beside(&self, session: Option<SessionId>) -> Option<&Holder> {
        self.holder.as_ref().filter(|holder| Some(holder.session) != session)
    }

    /// Whether a session has what it was told when it attached.
    fn has_exclusive(&self, session: SessionId) -> bool {
        let holds = self.holder.as_ref().is_some_and(|holder| holder.session == session);
        holds && self.given.is_some_and(|given| given.session == session)
    }

    fn admit(&mut self, session: Option<SessionId>, client: &str) -> Admission {
        if let Some(Holder { client: holder, .. }) = self.holder_beside(session) {
            tracing::info!(
                client,
                holder,
                "the client gets the export read-only: another one has it exclusively"
            );
            return Admission::ReadOnly;
        }
        *self.writers.entry(session).or_default() += 1;
        if self.given.is_some_and(|given| Some(given.session) != session)
            && !mutant("tag_outlives_a_writer")
        {
            self.given = None;
        }
        Admission::AsOffered
    }

    fn release(&mut self, right: &Right) {
        match right.kind {
            Kind::Exclusive(session) => {
                if let Some(holder) = self.holder.as_mut().filter(|h| h.session == session) {
                    holder.count -= 1;
                    if holder.count == 0 {
                        self.holder = None;
                    }
                }
            }
            Kind::Writes(session) => match self.writers.get(&session).copied().unwrap_or(0) {
                0 | 1 => drop(self.writers.remove(&session)),
                more => drop(self.writers.insert(session, more - 1)),
            },
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    exports: Mutex<BTreeMap<String, State>>,
    /// One at a time writes down what was given.
    settling: tokio::sync::Mutex<()>,
}

/// Who may write the exports that one thread serves. Clones are the same; any thread may use them.
#[derive(Clone, Debug, Default)]
pub struct Access(Arc<Shared>);

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// This session alone may write.
    Exclusive(SessionId),
    /// The connection may write.
    Writes(Option<SessionId>),
}

/// What a connection may do. Dropping it gives that up.
#[derive(Debug)]
pub(super) struct Right {
    access: Access,
    export: String,
    kind: Kind,
}

impl Drop for Right {
    fn drop(&mut self) {
        let mut exports = self.access.lock();
        if let Some(state) = exports.get_mut(&self.export) {
            state.release(self);
        }
    }
}

/// What one connection may do with its export.
#[derive(Debug, Default)]
pub(super) struct Rights {
    exclusive: Option<Right>,
    writes: Option<Right>,
}

impl Access {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        // What is behind it is whole between two statements.
        self.0.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn right(&self, export: &str, kind: Kind) -> Right {
        Right { access: self.clone(), export: export.to_owned(), kind }
    }

    /// What was written down of an export before it was opened.
    pub fn restore(&self, export: &str, given: Option<Given>) {
        let mut exports = self.lock();
        let state = exports.entry(export.to_owned()).or_default();
        (state.given, state.kept) = (given, given);
    }

    /// Requests of the export are forwarded to another server: not those of another node, which forwards them already.
    pub fn forwards(&self, export: &str) {
        self.lock().entry(export.to_owned()).or_default().is_forwarded = true;
    }

    /// The content was replaced, not by a client: no session that was given a tag before is given it again.
    pub fn forget(&self, export: &str) {
        if let Some(state) = self.lock().get_mut(export) {
            state.given = None;
            let seen = std::mem::take(&mut state.seen);
            seen.into_iter().for_each(|session| remember(&mut state.replaced, session));
        }
    }

    /// The client that has exclusive access now, if one has: its name as in the log.
    #[must_use]
    pub fn holder(&self, export: &str) -> Option<String> {
        Some(self.lock().get(export)?.holder.as_ref()?.client.clone())
    }

    /// A connection says what it belongs to, or a sentence why it may not. What it said before counts no more.
    pub(super) fn attach(
        &self,
        info: &ExportInfo,
        attachment: &Attachment,
        (client, rights): (&str, &mut Rights),
    ) -> Result<Option<Exclusive>, NotAttached> {
        rights.exclusive = None;
        if let Some(state) = self.lock().get_mut(&info.name) {
            if state.is_forwarded {
                return Err(NotAttached::Refused(FORWARDED));
            }
            if state.replaced.contains(&attachment.session) {
                return Err(NotAttached::Taken(REPLACED));
            }
        }
        let (session, Some(instance)) = (attachment.session, info.instance) else {
            return Ok(None);
        };
        if !info.read_only {
            let mut exports = self.lock();
            remember(&mut exports.entry(info.name.clone()).or_default().seen, session);
        }
        if !attachment.exclusive {
            return Ok(None);
        }
        if info.read_only {
            return Err(NotAttached::Refused(FROZEN));
        }
        let mut exports = self.lock();
        let state = exports.entry(info.name.clone()).or_default();
        let given = state.hold(attachment, instance, client)?;
        drop(exports);
        rights.exclusive = Some(self.right(&info.name, Kind::Exclusive(session)));
        Ok(Some(given))
    }

    /// A connection begins with an export.
    pub(super) fn admit(
        &self,
        info: &ExportInfo,
        attachment: Option<&Attachment>,
        (client, rights): (&str, &mut Rights),
    ) -> Result<Admission, &'static str> {
        // What was said of another export, or taken back.
        if !attachment.is_some_and(|attachment| attachment.exclusive) {
            rights.exclusive = None;
        }
        if info.read_only {
            return Ok(Admission::AsOffered);
        }
        let session = attachment.map(|attachment| attachment.session);
        let mut exports = self.lock();
        let state = exports.entry(info.name.clone()).or_default();
        // Another opening, or a verb, may have come in between.
        let lacks = |attachment: &&Attachment| {
            attachment.exclusive && !state.has_exclusive(attachment.session)
                || state.replaced.contains(&attachment.session)
        };
        if attachment.as_ref().is_some_and(lacks) {
            return Err(LOST);
        }
        let admission = state.admit(session, client);
        drop(exports);
        if admission == Admission::AsOffered {
            rights.writes = Some(self.right(&info.name, Kind::Writes(session)));
        }
        Ok(admission)
    }

    /// Has `keep` write down what was given to whom, if that has changed since (E2).
    ///
    /// # Errors
    /// It cannot be written down: nothing may be written to the export.
    pub async fn settle(
        &self,
        export: &str,
        keep: impl AsyncFn(Option<Given>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let unsettled = || {
            let found = self.lock();
            let state = found.get(export)?;
            (state.given != state.kept).then_some(state.given)
        };
        if unsettled().is_none() {
            return Ok(());
        }
        let _turn = self.0.settling.lock().await;
        while let Some(given) = unsettled() {
            keep(given).await?;
            if let Some(state) = self.lock().get_mut(export) {
                state.kept = given;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use weir_device::ErrorKind;

    use super::*;

    fn info(read_only: bool) -> ExportInfo {
        ExportInfo {
            name: "disk".to_owned(),
            description: String::new(),
            size: 1,
            read_only,
            instance: Some([7; 16]),
            volume: None,
            earlier: Arc::default(),
        }
    }

    fn attachment(session: u8, exclusive: bool) -> Attachment {
        Attachment { session: [session; 16], generation: 1, exclusive, known: None }
    }

    fn given(access: &Access) -> Option<Given> {
        access.lock().get("disk").and_then(|state| state.given)
    }

    /// A connection of a session with exclusive access that has begun.
    fn exclusive(access: &Access, session: u8) -> Result<(Tag, Rights), NotAttached> {
        let (given, rights) = showing(access, session, None)?;
        Ok((given.tag, rights))
    }

    fn showing(
        access: &Access,
        session: u8,
        known: Option<Tag>,
    ) -> Result<(Exclusive, Rights), NotAttached> {
        let mut rights = Rights::default();
        let attachment = Attachment { known, ..attachment(session, true) };
        let given = access.attach(&info(false), &attachment, ("one", &mut rights))?.expect("a tag");
        let admission = access.admit(&info(false), Some(&attachment), ("one", &mut rights));
        assert_eq!(admission, Ok(Admission::AsOffered));
        Ok((given, rights))
    }

    /// A connection that asks for nothing.
    fn plain(access: &Access, session: Option<u8>) -> (Admission, Rights) {
        let mut rights = Rights::default();
        let attachment = session.map(|session| attachment(session, false));
        let admission = access.admit(&info(false), attachment.as_ref(), ("another", &mut rights));
        (admission.expect("it has attached here"), rights)
    }

    #[test]
    fn one_session_alone_may_write_as_long_as_one_of_its_connections_is_there() {
        let access = Access::default();
        let (tag, one) = exclusive(&access, 1).expect("nobody is there");
        let (same, two) = exclusive(&access, 1).expect("the same session");
        assert_eq!((tag, access.holder("disk").as_deref()), (same, Some("one")));
        assert_eq!(exclusive(&access, 2).unwrap_err(), NotAttached::Taken(HELD));
        assert_eq!(plain(&access, None).0, Admission::ReadOnly);
        assert_eq!(plain(&access, Some(2)).0, Admission::ReadOnly);
        assert_eq!(plain(&access, Some(1)).0, Admission::AsOffered, "it is the same client");
        drop(one);
        assert_eq!(exclusive(&access, 2).unwrap_err(), NotAttached::Taken(HELD));
        drop(two);
        assert_eq!(access.holder("disk"), None);
        exclusive(&access, 2).expect("nobody has it any more");
    }

    #[test]
    fn it_is_refused_beside_others_that_may_write_and_of_what_takes_no_writes() {
        let access = Access::default();
        let (_, writer) = plain(&access, None);
        assert_eq!(exclusive(&access, 1).unwrap_err(), NotAttached::Taken(WRITTEN));
        let (_, second) = plain(&access, None);
        drop(writer);
        assert_eq!(exclusive(&access, 1).unwrap_err(), NotAttached::Taken(WRITTEN));
        drop(second);
        let (_, own) = plain(&access, Some(1));
        exclusive(&access, 1).expect("its own");
        drop(own);
        let mut rights = Rights::default();
        let refused = access.attach(&info(true), &attachment(1, true), ("one", &mut rights));
        assert_eq!(refused, Err(NotAttached::Refused(FROZEN)));
        let (_, reader) = (access.admit(&info(true), None, ("one", &mut rights)), &rights);
        assert!(reader.writes.is_none(), "who only reads is no writer");
        exclusive(&access, 1).expect("nobody writes");
    }

    #[test]
    fn a_tag_is_the_same_until_somebody_else_may_have_written() {
        let access = Access::default();
        let tag = exclusive(&access, 1).expect("alone").0;
        assert_eq!(exclusive(&access, 1).expect("alone").0, tag);
        drop(plain(&access, Some(1)));
        assert_eq!(exclusive(&access, 1).expect("alone").0, tag, "it has written itself");
        drop(plain(&access, None));
        let second = exclusive(&access, 1).expect("alone").0;
        assert_ne!(second, tag);
        exclusive(&access, 2).expect("alone");
        let third = exclusive(&access, 1).expect("alone").0;
        assert!(third != second && third != tag);
        access.forget("disk");
        let fourth = exclusive(&access, 4).expect("a session that was not there before").0;
        assert!(![tag, second, third].contains(&fourth));
    }

    #[test]
    fn whoever_shows_the_tag_of_before_learns_whether_others_have_written_and_is_given_another() {
        let access = Access::default();
        let shown = |session, known| {
            let (given, _) = showing(&access, session, Some(known)).expect("alone");
            (given.tag, given.is_unchanged)
        };
        let (first, is_unchanged) = shown(1, [9; 16]);
        assert!(!is_unchanged, "it is nobody's");
        let (second, is_unchanged) = shown(2, first);
        assert!(is_unchanged && second != first, "a client that was started anew");
        assert_eq!(shown(2, first), (second, true), "it did not get the answer");
        assert_eq!(shown(2, second), (second, true));
        assert!(!shown(3, first).1, "a copy of the first one");
        let (third, _) = shown(4, [7; 16]);
        drop(plain(&access, None));
        let (fourth, is_unchanged) = shown(4, third);
        assert!(!is_unchanged, "somebody may have written");
        assert!(!shown(4, third).1, "nor where that answer was lost");
        assert!(shown(4, fourth).1);
    }

    #[test]
    fn sessions_under_which_the_content_was_replaced_are_told_so_and_new_ones_are_not() {
        let access = Access::default();
        drop(exclusive(&access, 1).expect("alone"));
        let mut rights = Rights::default();
        let shared = attachment(2, false);
        access.attach(&info(false), &shared, ("one", &mut rights)).expect("shared");
        let (mut between, third) = (Rights::default(), attachment(3, true));
        access.attach(&info(false), &third, ("one", &mut between)).expect("alone");
        access.forget("disk");
        let admitted = access.admit(&info(false), Some(&third), ("one", &mut between));
        assert_eq!(admitted, Err(LOST), "it was told before");
        drop(between);
        for session in [1, 2, 3] {
            let came = attachment(session, false);
            let refused = access.attach(&info(false), &came, ("one", &mut rights));
            assert_eq!(refused, Err(NotAttached::Taken(REPLACED)));
        }
        exclusive(&access, 4).expect("a new one");
    }

    #[test]
    fn what_was_asked_for_and_taken_back_is_nobodys() {
        let access = Access::default();
        let (mut rights, disk) = (Rights::default(), info(false));
        access.attach(&disk, &attachment(1, true), ("one", &mut rights)).expect("alone");
        access
            .attach(&disk, &attachment(1, false), ("one", &mut rights))
            .expect("asks for nothing");
        assert_eq!(access.holder("disk"), None);
        access.attach(&disk, &attachment(1, true), ("one", &mut rights)).expect("alone");
        access.admit(&disk, None, ("one", &mut rights)).expect("it asks for nothing");
        assert_eq!(access.holder("disk"), None, "it begins without what it said of another name");
    }

    #[tokio::test]
    async fn what_was_given_is_written_down_before_it_counts_and_again_when_it_changes() {
        let (access, book) = (Access::default(), RefCell::new(Vec::new()));
        let keep = async |given| {
            book.borrow_mut().push(given);
            Ok(())
        };
        let full = async |_| Err(DeviceError::new(ErrorKind::NoSpace, "the disk is full"));
        drop(plain(&access, None));
        access.settle("disk", full).await.expect("nothing to do");
        drop(exclusive(&access, 1).expect("alone"));
        access.settle("disk", keep).await.expect("kept");
        access.settle("disk", full).await.expect("nothing to do");
        let first = given(&access);
        drop(plain(&access, None));
        access.settle("disk", full).await.expect_err("it cannot be kept");
        access.settle("disk", keep).await.expect("kept");
        assert!(first.is_some() && *book.borrow() == [first, None]);
        let later = Access::default();
        later.restore("disk", first);
        let given = showing(&later, 2, first.map(|given| given.tag)).expect("alone").0;
        assert!(given.is_unchanged, "a server that was started anew still knows");
    }
}
