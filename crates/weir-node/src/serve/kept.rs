//! Volumes that nobody serves and whose newest writes are in a journal of this data directory alone: a detach or a stop
//! whose store did not take everything in time left them so, or a process that was killed. Whoever means to switch the
//! host off has to learn of them from the status and the metrics of the process that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use weir_device::{VolumeId, mutant};
use weir_log::LOCK_FILE;
use weir_log::catalog::VolumeName;

use crate::api::types::AtRisk;
use crate::data_directory::DataDirectory;
use crate::home::opened;
use crate::serve::core::{Core, Entry};
use crate::serve::lock::lock;
use crate::serve::spec::EndpointKind;
use crate::volumes::unserved::{Beside, holder};

/// How long a status waits for the local disk to list them: what it says beside is worth more than they are.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Such a volume.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    /// What the store lacks of it; none where that is not known, since a process that was killed noted nothing.
    pub(crate) unsent: Option<AtRisk>,
    /// Whether the journal may have more than that: the process that had it open noted nothing.
    pub(crate) is_unknown: bool,
    /// What is wrong with it.
    pub(crate) reason: String,
    /// Nothing is, so far: it is being closed, and that has not taken long.
    pub(crate) is_quiet: bool,
}

impl Kept {
    /// What would be lost with the host.
    pub(crate) fn at_risk(&self) -> AtRisk {
        let is_unknown = self.is_unknown && !mutant("unknown_is_nothing_at_risk");
        let unknown = AtRisk { bytes_are_least: is_unknown, ..AtRisk::default() };
        self.unsent.unwrap_or(unknown)
    }
}

/// What the notes in the data directory say of a volume.
struct Noted {
    id: VolumeId,
    name: VolumeName,
    store: Option<String>,
    unsent: Option<AtRisk>,
    is_held: bool,
}

/// All volumes that are kept, and those that are being closed at this moment, but for those whose journals somebody has
/// just seen served: a volume whose close begins is in both tables. Neither another volume that has the name of one by
/// now hides it, nor a replica that has its identity.
pub(crate) async fn beside(core: &Core, served: &[Arc<Entry>]) -> Vec<Kept> {
    let mut kept = all(core).await;
    let served = journals_of(served);
    kept.retain(|one| !served.contains(&one.id));
    kept
}

/// What the store lacks of them, by their names: several can have had one name.
pub(crate) fn unsent_by_name(kept: &[Kept]) -> BTreeMap<&str, AtRisk> {
    let mut all: BTreeMap<&str, AtRisk> = BTreeMap::new();
    for (name, unsent) in kept.iter().filter_map(|kept| Some((&*kept.name, kept.unsent?))) {
        let sum = all.entry(name).or_default();
        *sum = [*sum, unsent].into_iter().sum();
    }
    all
}

async fn all(core: &Core) -> Vec<Kept> {
    let mut kept = closing(core);
    // A process of one volume speaks of that one alone.
    if core.is_single {
        return kept;
    }
    let own = core.store.as_ref().map_or("none", |store| store.url());
    for Noted { id, name, store, unsent, is_held } in noted(core).await {
        // One that is held is being opened, or worked on by a verb, here or elsewhere: whoever has it speaks of it.
        let is_ours = core.is_noted_not_served(&name) || core.is_left(&name);
        if is_held && !is_ours || kept.iter().any(|one| one.id == id) {
            continue;
        }
        let store = store.filter(|store| store != own && *store != core.home.store_url);
        let beside = core.entry(name.as_str()).filter(|_| store.is_none());
        let reason = match beside {
            Some(entry) => reason_beside(&name, unsent.as_ref(), None, Beside::of(&entry)),
            None => reason(&name, unsent.as_ref(), store.as_deref()),
        };
        let (name, is_unknown) = (name.to_string(), unsent.is_none());
        kept.push(Kept { id, name, unsent, is_unknown, reason, is_quiet: false });
    }
    kept
}

fn closing(core: &Core) -> Vec<Kept> {
    let closing = lock(&core.closing);
    let kept = closing.iter().map(|(name, one)| {
        let is_some = |unsent: &AtRisk| !unsent.is_nothing() || unsent.bytes_are_least;
        let unsent = Some(one.unsent.at_risk()).filter(is_some);
        let is_quiet = one.is_quiet();
        // What is at risk is what no store has: files and other servers are no stores of this process.
        let unsent = unsent.filter(|_| one.endpoint == EndpointKind::Log);
        let (name, reason) = (name.clone(), one.waits());
        Kept { id: one.id, name, unsent, is_unknown: false, reason, is_quiet }
    });
    let is_seen = |one: &Kept| one.unsent.is_some() || !mutant("close_without_log_not_seen");
    kept.filter(is_seen).collect()
}

async fn noted(core: &Core) -> Vec<Noted> {
    let data = core.home.data.clone();
    let served: BTreeSet<VolumeId> = journals_of(&core.entries());
    let look = async {
        // One look at a time, also where the disk hangs and those who asked have given up.
        let turn = Arc::clone(&core.kept_turn).lock_owned().await;
        let looked = tokio::task::spawn_blocking(move || {
            let found = look(&data, &served);
            drop(turn);
            found
        });
        looked.await.unwrap_or_default()
    };
    tokio::time::timeout(LOOK_TIME, look).await.unwrap_or_default()
}

/// The volumes among them that have journals here.
fn journals_of(entries: &[Arc<Entry>]) -> BTreeSet<VolumeId> {
    let hides = |entry: &&Arc<Entry>| !entry.is_replica || mutant("replica_hides_journal");
    entries.iter().filter(hides).map(|entry| entry.id).collect()
}

fn look(data: &DataDirectory, served: &BTreeSet<VolumeId>) -> Vec<Noted> {
    // What cannot be read is named by `weir status`, which looks at the journals themselves.
    let volumes = data.volumes().unwrap_or_default().into_iter();
    let not_served = volumes.filter(|volume| !served.contains(volume));
    let noted = not_served.filter_map(|id| {
        let name = opened::noted(data, id)?;
        let (store, unsent) = (opened::noted_store(data, id), opened::noted_unsent(data, id));
        let is_held = holder(&data.volume(id).join(LOCK_FILE)).is_some();
        Some(Noted { id, name, store, unsent, is_held })
    });
    noted.collect()
}

/// What is wrong, and the command that mends it; with its store where that has to be named.
pub(crate) fn reason(name: &VolumeName, unsent: Option<&AtRisk>, store: Option<&str>) -> String {
    let store = flag_of(store);
    if unsent.is_some_and(AtRisk::is_nothing) {
        return format!(
            "no acknowledged write is in its journal alone, but the store could not be told that it was closed: \
             `weir volume flush {name}{store}` does that"
        );
    }
    let what = held(unsent);
    format!(
        "{what}: `weir volume flush {name}{store}` takes them to the store, or says what can be done where another \
         host went on with the volume or deleted it"
    )
}

fn flag_of(store: Option<&str>) -> String {
    store.map_or_else(String::new, |store| format!(" --store {store}"))
}

/// The same of one whose name another volume has that is served, which commands with the name mean: one of the same
/// store, or one that is in none.
pub(crate) fn reason_beside(
    name: &VolumeName,
    unsent: Option<&AtRisk>,
    store: Option<&str>,
    beside: Beside,
) -> String {
    let store = flag_of(store);
    let what = match unsent.is_some_and(AtRisk::is_nothing) {
        true => "no acknowledged write is in its journal alone".to_owned(),
        false => held(unsent),
    };
    let taken = "another volume is served under its name";
    if beside == Beside::Elsewhere {
        return format!(
            "{what}, and {taken}, which is in no store: once that is detached, `weir volume flush {name}{store}` takes \
             them to the store"
        );
    }
    format!(
        "{what}, and {taken}: where the volume was renamed elsewhere, `weir volume flush NEW{store}` with the new name \
         takes them to the store; where it was deleted elsewhere, `weir volume delete {name} --discard-journal{store}` \
         removes that journal alone; where the store was set back, bring it back as it was"
    )
}

impl Beside {
    fn of(entry: &Entry) -> Self {
        if entry.is_elsewhere() { Self::Elsewhere } else { Self::InStore }
    }
}

/// What the journal may hold.
fn held(unsent: Option<&AtRisk>) -> String {
    match unsent {
        Some(unsent) => {
            let age = unsent.oldest_age_ms.map(|age| age / 1000);
            let more = if unsent.age_is_least { " or more" } else { "" };
            let age =
                age.map_or_else(String::new, |age| format!(", the oldest of it {age} s old{more}"));
            format!("{} of acknowledged writes are in its journal alone{age}", unsent.what())
        }
        None => {
            "its journal was not closed, and may have the only copy of acknowledged writes".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_bytes_and_what_to_do() {
        let name = VolumeName::new("demo").unwrap();
        let oldest_age_ms = Some(61_500);
        let unsent = AtRisk { bytes: 3 << 20, blocks: 768, oldest_age_ms, ..AtRisk::default() };
        assert_eq!(
            reason(&name, Some(&unsent), None),
            "3.0 MiB of acknowledged writes are in its journal alone, the oldest of it 61 s old: \
             `weir volume flush demo` takes them to the store, or says what can be done where another host went on \
             with the volume or deleted it"
        );
        let nothing = reason(&name, Some(&AtRisk::default()), None);
        assert!(nothing.starts_with("no acknowledged write is in its journal alone"), "{nothing}");
        let zeroes = reason(&name, Some(&AtRisk { blocks: 7, ..AtRisk::default() }), None);
        let expected = "zeroes and discards of acknowledged writes are in its journal alone: ";
        assert!(zeroes.starts_with(expected), "{zeroes}");
        let unknown = reason(&name, None, Some("s3://other"));
        assert!(unknown.contains("may have the only copy"), "{unknown}");
        assert!(unknown.contains("`weir volume flush demo --store s3://other`"), "{unknown}");
    }
}
