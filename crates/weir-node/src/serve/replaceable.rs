//! Whether this process may be replaced by another program now.
//!
//! The kernel executes no new program, and ends no process, before every thread has come back from its file system:
//! with one that hangs nobody would be served. So the files are asked first for what the replacement will ask them, and
//! what had begun before must have ended. What a detach closes that is in no store has no journal that would keep it
//! for the next process: it is waited for, too.
//!
//! The next process serves nobody before it has written to its data directory and to the store. What this one has done
//! there says little of that: it may have asked neither for long.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::time::{Instant, timeout, timeout_at};
use weir_device::{LocalBoxFuture, VolumeId, mutant, with_causes};
use weir_disk::Question;
use weir_journal::ManifestSeen;
use weir_log::catalog::{self, VolumeName};
use weir_log::{Keys, LogError, Obstacle, Reopening};
use weir_store::Store;

use crate::error::NodeError;
use crate::home::probe::Answer;
use crate::home::{Home, known_stores};
use crate::node::shard::ShardContext;
use crate::serve::core::{Core, Entry};
use crate::serve::events::EventKind;
use crate::serve::lock::lock;
use crate::serve::service::Service;
use crate::serve::spec::EndpointKind;

/// How often it is looked whether something has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What is answered within this time needs no second look at what began meanwhile.
const SOON: Duration = Duration::from_secs(1);

/// What the threads of volumes may need beyond the limit to say what has not ended.
const SAY_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the thread that asks the store may need beyond the limit to say what came of it.
const STORE_SAY_MAX: Duration = Duration::from_secs(2);

/// How long a store may take to be opened that this process does not use: one that nobody used before is probed first.
const STORE_OPEN_MAX: Duration = Duration::from_secs(30);

/// Volumes of which the store is asked at a time whether they could be opened again.
const VOLUMES_ASKED_MAX: usize = 16;

/// What the settings say that the next process will begin with.
#[derive(Clone, Debug)]
pub struct Next {
    /// Where its volumes live.
    pub home: Home,
    /// Whether volumes of the store are among them.
    pub needs_store: bool,
}

impl Service {
    /// Notes that the program was to be replaced and was not, and why: who asked for it sees no log.
    pub fn note_not_replaced(&self, why: &str) {
        self.core.events.note(EventKind::NodeNotReplaced, None, why);
    }

    /// What is wrong with the store of the next process, in words, if it does not take an object within `limit`, and
    /// half a minute where it has to be opened first. Nothing where volumes of a store are neither served now nor in
    /// the settings, as far as these are known.
    #[inline(never)]
    pub fn store_fails<'a>(
        &'a self,
        next: Option<&'a Next>,
        limit: Duration,
    ) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let mut entries = self.core.entries();
            entries.retain(|entry| !entry.is_elsewhere());
            if entries.is_empty() && !next.is_some_and(|next| next.needs_store) {
                return None;
            }
            let home = next.map_or(&self.core.home, |next| &next.home);
            if !known_stores::answers(home, &self.core.probes, limit).await {
                return Some("the file system of the store does not answer".to_owned());
            }
            let Ok(served) = timeout(limit, served_here(&self.core, entries)).await else {
                return Some(THREAD_HANGS.to_owned());
            };
            let many =
                STORE_SAY_MAX * u32::try_from(served.len() / VOLUMES_ASKED_MAX).unwrap_or(u32::MAX);
            // As the next process will find it. A question to a store that is gone waits until it is back.
            if let Err(gone) = known_stores::check_not_gone(home) {
                return Some(gone.to_string());
            }
            let is_same = home.store_url == self.core.home.store_url;
            let (used, home) = (self.core.store.clone(), home.clone());
            let open = if is_same && used.is_some() { Duration::ZERO } else { STORE_OPEN_MAX };
            // The keys of this process are no matter: the settings may name another place of them by now.
            let keys = next.map(|next| next.home.keys.clone());
            let ask = move |context: Rc<ShardContext>| async move {
                let store = match (&used, is_same) {
                    (Some(used), true) => used.clone(),
                    _ => home.open_or_make_store(&context).await?,
                };
                if used.is_some_and(|used| used.location() != store.location()) {
                    let why = format!(
                        "the settings name another store, {}, and what is in journals is for the one in use: restart \
                         weir instead, which brings it there first",
                        store.url()
                    );
                    return Ok(vec![Wrong { of: None, why }]);
                }
                let mut random = || context.env.random.next_u64();
                store.takes_objects(&mut random, limit).await?;
                known_stores::check_not_emptied(&context, &home, &store).await?;
                volumes_that_would_not_open(&context, (&store, keys.as_ref()), served).await
            };
            match timeout(limit + open + STORE_SAY_MAX + many, self.core.node.run(0, ask)).await {
                Err(_) if open.is_zero() => Some("the store does not answer".to_owned()),
                Err(_) => Some(
                    "the store, which is not in use yet, is slow to answer its probe".to_owned(),
                ),
                Ok(Ok(Err(error)) | Err(error)) => {
                    Some(format!("the store fails: {}", with_causes(&error)))
                }
                Ok(Ok(Ok(found))) => first_that_counts(found, |name, id| {
                    self.core.entry(name.as_str()).is_some_and(|entry| entry.id == id)
                }),
            }
        })
    }

    /// What is wrong with the data directory, in words, if its disk does not take a file within `limit`, or the next
    /// process is to have another one.
    #[inline(never)]
    pub fn data_fails<'a>(
        &'a self,
        next: Option<&'a Next>,
        limit: Duration,
    ) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let directory = self.core.home.data.path();
            let shown = directory.display();
            if let Some(Next { home, .. }) = next.filter(|next| next.home.data.path() != directory)
            {
                let other = home.data.path().display();
                return Some(format!(
                    "the settings name another data directory, {other}, and the journals are in {shown}: restart weir \
                     instead"
                ));
            }
            match self.core.probes.ask(directory.to_owned(), limit).await {
                Answer::Takes => None,
                Answer::Hangs => Some(format!("the disk of {shown} does not answer")),
                Answer::Refuses(why) => Some(format!("{shown} takes no files: {why}")),
            }
        })
    }

    /// Whether the disk of the cache answers, as far as this process uses it. This process must not be replaced while
    /// it does not.
    #[inline(never)]
    pub fn cache_answers<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        Box::pin(async move { self.core.cache.answers(&self.core.home).await })
    }

    /// What this process must not be replaced beside, in words, if that does not end within `limit`: a close of a
    /// volume in no store, a file that does not answer what its close will ask it, or a thread that has not come back
    /// from a file system. Files are flushed by it. Waits for `limit` and a second at most; what was asked goes on
    /// after that.
    #[inline(never)]
    pub fn unanswered<'a>(&'a self, limit: Duration) -> LocalBoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let until = Instant::now() + limit;
            if let Some(why) = close_that_goes_on(&self.core, until).await {
                return Some(why);
            }
            if let Some(why) = file_that_hangs(&self.core, until).await {
                return Some(why);
            }
            loop {
                let asked = Instant::now();
                // What began while others were waited for may hang as well.
                let question = Question::ask();
                let found = thread_that_hangs(&self.core, question, until).await;
                if found.is_some() || asked.elapsed() < SOON {
                    return found;
                }
            }
        })
    }
}

/// What is said of a thread of volumes from which nothing comes.
const THREAD_HANGS: &str = "a thread of volumes does not answer";

/// A volume of a store that is served.
struct ServedOne {
    name: VolumeName,
    id: VolumeId,
    /// It refuses writes: another host took it over, or its store was replaced.
    has_failed: bool,
    /// The version of its manifest that the store is known to have.
    known: Option<ManifestSeen>,
}

/// Why the next process would not serve what this one does.
struct Wrong {
    /// The volume that it is about.
    of: Option<(VolumeName, VolumeId)>,
    why: String,
}

/// What is wrong with the first that is still served, or with no volume in particular: one may have been detached or
/// renamed since it was asked for.
fn first_that_counts(
    found: Vec<Wrong>,
    is_served: impl Fn(&VolumeName, VolumeId) -> bool,
) -> Option<String> {
    let counts = |wrong: &Wrong| wrong.of.as_ref().is_none_or(|(name, id)| is_served(name, *id));
    found.into_iter().find(counts).map(|wrong| wrong.why)
}

async fn served_here(core: &Core, entries: Vec<Arc<Entry>>) -> Vec<ServedOne> {
    let mut served = Vec::new();
    for entry in entries {
        let log = core.on_volume(&entry, |hosted| async move { Ok(hosted.stack.log_status()) });
        // One that is being closed is left out.
        let Ok(log) = log.await else { continue };
        let has_failed = log.as_ref().is_some_and(|log| log.failure.is_some());
        // A replica has no journal that knows more than the store.
        let known = log.map(|log| log.manifest);
        served.push(ServedOne { name: entry.name.clone(), id: entry.id, has_failed, known });
    }
    served
}

/// The volumes that the next process could not open, or would open another one in the place of, and why. This process
/// serves them from memory, and can mend that in part.
async fn volumes_that_would_not_open(
    context: &ShardContext,
    (store, keys): (&Store, Option<&Keys>),
    served: Vec<ServedOne>,
) -> Result<Vec<Wrong>, NodeError> {
    let asked = served.into_iter().map(async |ServedOne { name, id, has_failed, known }| {
        let found = if has_failed {
            has_another(context, store, (&name, id)).await?
        } else {
            let volume = Reopening { id, name: &name, known, keys };
            weir_log::obstacle_to_opening(store, &context.env, volume).await?
        };
        let why = found.map(|obstacle| what_to_do(&name, &obstacle));
        Ok::<_, NodeError>(why.map(|why| Wrong { of: Some((name, id)), why }))
    });
    let answers: Vec<_> = stream::iter(asked).buffer_unordered(VOLUMES_ASKED_MAX).collect().await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

/// Whether the store has another volume under the name of one that failed: clients would find that one. All else about
/// one that failed is for the next process to judge, which may not be able to open it.
async fn has_another(
    context: &ShardContext,
    store: &Store,
    (name, id): (&VolumeName, VolumeId),
) -> Result<Option<Obstacle>, NodeError> {
    match catalog::find(store, &context.env, name).await {
        Ok(found) if found != id && !mutant("failed_volumes_are_no_matter") => {
            Ok(Some(Obstacle::other_volume()))
        }
        Ok(_) | Err(LogError::NoSuchVolume { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn what_to_do(name: &VolumeName, obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Damage(wrong) => format!(
            "volume {name} could not be opened again, as what the store has of it is damaged: {wrong}; `weir volume \
             repair {name}` writes that anew"
        ),
        Obstacle::OtherStore(why) => format!(
            "volume {name} could not be opened again: {why}; put the store back as it was, or, where that is meant, \
             `weir volume detach {name}` first"
        ),
        Obstacle::Key(why) => format!("volume {name} could not be opened again: {why}"),
    }
}

/// A close of a volume in no store that does not end in time, and what it waits for.
async fn close_that_goes_on(core: &Core, until: Instant) -> Option<String> {
    loop {
        let found = {
            let closing = lock(&core.closing);
            let mut elsewhere = closing.iter().filter(|(_, one)| one.endpoint != EndpointKind::Log);
            elsewhere.next().map(|(name, one)| format!("volume {name}: {}", one.waits()))
        }?;
        if Instant::now() >= until {
            return Some(found);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A file that is served and does not answer in time.
async fn file_that_hangs(core: &Core, until: Instant) -> Option<String> {
    let entries = core.entries().into_iter();
    let asked = entries.map(async |entry: Arc<Entry>| {
        let EndpointKind::File(file) = &entry.spec.endpoint else { return None };
        let asking = core.on_volume(&entry, |hosted| async move {
            hosted.stack.answers().await;
            Ok(())
        });
        // An error means that it is closed by now.
        let is_late = timeout_at(until, asking).await.is_err();
        let told = format!("{}, of volume {}, does not answer", file.path.display(), entry.name);
        is_late.then_some(told)
    });
    join_all(asked).await.into_iter().flatten().next()
}

/// A file that a thread, or a request of a ring, has been with since the question, and does not come back in time.
async fn thread_that_hangs(core: &Core, question: Question, until: Instant) -> Option<String> {
    loop {
        let of_shards = (0..core.node.shard_count()).map(|shard| {
            let rings = core
                .node
                .run(shard, move |context| async move { context.disks.unanswered(question) });
            timeout_at(until + SAY_TIME_MAX, rings)
        });
        let mut files = question.unanswered();
        for of_shard in join_all(of_shards).await {
            match of_shard {
                Ok(found) => files.extend(found.unwrap_or_default()),
                Err(_) => return Some(THREAD_HANGS.to_owned()),
            }
        }
        let hangs = format!("{} does not answer", files.first()?);
        if Instant::now() >= until {
            return Some(hangs);
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_any_more_hides_nothing_of_what_is() {
        let (gone, here) = (VolumeId([1; 16]), VolumeId([2; 16]));
        let name = |text: &str| VolumeName::new(text).unwrap();
        let of = |text: &str, id| {
            let (of, why) = (Some((name(text), id)), text.to_owned());
            Wrong { of, why }
        };
        let is_served = |of: &VolumeName, id| *of == name("served") && id == here;
        let found = |found| first_that_counts(found, is_served);
        assert_eq!(
            found(vec![of("detached", gone), of("served", here)]).as_deref(),
            Some("served")
        );
        assert_eq!(found(vec![of("served", gone)]), None, "another one has its name");
        let none = Wrong { of: None, why: "store".to_owned() };
        assert_eq!(found(vec![of("detached", gone), none]).as_deref(), Some("store"));
    }
}
