//! What the threads of a serving process share: which volumes are served, which are not and why, and where clients find
//! the process.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;
use weir_device::{VolumeId, mutant};
use weir_frontend::nbd::{HandOff, Instance, Sources};
use weir_log::OpenReport;
use weir_log::catalog::VolumeName;
use weir_net::tls::Tls;
use weir_store::Store;

use crate::api::types::{AtRisk, Limits};
use crate::error::NodeError;
use crate::home::probe::Probes;
use crate::home::{Home, limits};
use crate::node::NodeHandle;
use crate::node::gate::Gate;
use crate::node::hosted::Hosted;
use crate::node::shard::ShardContext;
use crate::serve::by_hand::ByHand;
use crate::serve::cache::NodeCache;
use crate::serve::events::Events;
use crate::serve::failed::FailedBefore;
use crate::serve::lock::lock;
use crate::serve::nbd_place::NbdPlace;
use crate::serve::replica::Following;
use crate::serve::running::{BeingClosed, Changing, Openings, Running};
use crate::serve::sessions::kept::Sessions;
use crate::serve::spec::{Allowed, EndpointKind, VolumeSet, VolumeSpec};
use crate::serve::views::Views;

/// A volume that is served, as all threads see it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: VolumeName,
    pub(crate) id: VolumeId,
    pub(crate) shard: usize,
    pub(crate) gate: Arc<Gate>,
    /// How it was to be served when it was opened.
    pub(crate) spec: VolumeSpec,
    pub(crate) read_only: bool,
    /// Whether it is the state of a replica, which has the identity of its source and no journal.
    pub(crate) is_replica: bool,
    pub(crate) created: bool,
    pub(crate) place: String,
    pub(crate) report: OpenReport,
    pub(crate) replica: Option<Following>,
    pub(crate) hand_off: HandOff,
    /// Names this opening, for clients that connect again.
    pub(crate) instance: Instance,
    /// Who may use it, as the settings say by now.
    pub(crate) allowed: Mutex<Allowed>,
}

impl Entry {
    /// Whether its bytes are in no store.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.spec.endpoint != EndpointKind::Log
    }
}

/// What the threads of a serving process share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) home: Home,
    /// None while only memory is served.
    pub(crate) store: Option<Store>,
    /// The store is on the disk of the journals.
    pub(crate) store_shares_disk: bool,
    pub(crate) node: NodeHandle,
    /// The cache on the local disk.
    pub(crate) cache: NodeCache,
    /// Whether the disks that the next process needs answer.
    pub(crate) probes: Probes,
    /// Certificates, where clients may speak TLS.
    pub(crate) tls: Option<Tls>,
    /// The numbers of clients' identities.
    pub(crate) sources: Sources,
    pub(crate) events: Events,
    pub(crate) started: Instant,
    pub(crate) is_stopping: AtomicBool,
    /// Becomes true when the process stops, for tasks that wait.
    pub(crate) stopping: watch::Sender<bool>,
    /// Which volumes are to be served.
    pub(crate) volume_set: Mutex<VolumeSet>,
    /// What verbs decided against that.
    pub(crate) by_hand: ByHand,
    /// One volume is served for as long as the process runs, and nothing else.
    pub(crate) is_single: bool,
    /// How a volume is served for which there are no other settings. Where both are locked, the set is locked first.
    pub(crate) template: Mutex<Box<VolumeSpec>>,
    /// The volumes that are offered to clients, by name.
    pub(crate) volumes: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// What ends each of them.
    pub(crate) running: Mutex<BTreeMap<String, Running>>,
    /// Those that a detach or the end of the process closes.
    pub(crate) closing: Mutex<BTreeMap<String, BeingClosed>>,
    /// The openings that have begun.
    pub(crate) openings: Openings,
    /// The volumes that are being attached or detached.
    pub(crate) changing: Changing,
    /// Volumes that should be served and are not, with the reason.
    pub(crate) not_served: Mutex<BTreeMap<String, String>>,
    /// Volumes in no store that failed in the process before this one.
    pub(crate) failed_before: FailedBefore,
    /// Volumes that the configuration no longer names and that are not closed yet, with the reason.
    pub(crate) left: Mutex<BTreeMap<String, String>>,
    /// Whoever has it closes one of those, or takes it to serve it again.
    pub(crate) left_turn: tokio::sync::Mutex<()>,
    /// Whoever has it looks for volumes whose journals keep what the store lacks.
    pub(crate) kept_turn: Arc<tokio::sync::Mutex<()>>,
    pub(crate) views: Views,
    pub(crate) nbd_places: Mutex<Vec<NbdPlace>>,
    pub(crate) limits: Mutex<Limits>,
    /// Sessions of clients that the next process is to go on with.
    pub(crate) sessions: Sessions,
    /// Why the configuration, and the certificates, were not loaded when that was last asked for.
    pub(crate) not_loaded: Mutex<NotLoaded>,
}

/// What was wrong with the settings at the last reload, if something was.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotLoaded {
    pub(crate) configuration: Option<String>,
    /// The configuration was, but the volumes that it names are not known.
    pub(crate) volumes: Option<String>,
    pub(crate) certificates: Option<String>,
}

impl Core {
    /// What was wrong with the settings at the last reload.
    pub(crate) fn not_loaded(&self) -> NotLoaded {
        lock(&self.not_loaded).clone()
    }

    /// The volumes that are served, by name.
    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.volumes).values().cloned().collect()
    }

    /// The volume of that name, if it is served.
    pub(crate) fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        lock(&self.volumes).get(name).cloned()
    }

    /// Volumes that should be served and are not, and why.
    pub(crate) fn not_served(&self) -> BTreeMap<String, String> {
        lock(&self.not_served).clone()
    }

    /// Notes why a volume is not served; `None` once it is served, or need not be.
    pub(crate) fn note_not_served(&self, name: &VolumeName, why: Option<String>) {
        let mut not_served = lock(&self.not_served);
        match why {
            Some(why) => not_served.insert(name.to_string(), why),
            None => not_served.remove(name.as_str()),
        };
    }

    /// Whether a volume is noted as one that should be served and is not.
    pub(crate) fn is_noted_not_served(&self, name: &VolumeName) -> bool {
        lock(&self.not_served).contains_key(name.as_str())
    }

    /// Removes the notes of volumes for which `is_gone` is true.
    pub(crate) fn forget_not_served(&self, is_gone: impl Fn(&str) -> bool) {
        lock(&self.not_served).retain(|name, _| !is_gone(name));
    }

    /// Number of clients that are connected to a volume.
    pub(crate) async fn client_count(&self, entry: &Entry) -> Result<usize, NodeError> {
        let id = entry.id;
        let count = move |context: Rc<ShardContext>| async move {
            context.hosted.borrow().get(&id).map_or(0, |hosted| hosted.client_count())
        };
        self.node.run(entry.shard, count).await
    }

    /// Volumes that the configuration no longer names and that are not closed yet, and why.
    pub(crate) fn left(&self) -> BTreeMap<String, String> {
        lock(&self.left).clone()
    }

    /// Whether it is one of those.
    pub(crate) fn is_left(&self, name: &VolumeName) -> bool {
        lock(&self.left).contains_key(name.as_str())
    }

    /// Notes the state of such a volume; `None` once it is closed.
    pub(crate) fn note_left(&self, name: &VolumeName, what: Option<String>) {
        let mut left = lock(&self.left);
        match what {
            Some(what) => left.insert(name.to_string(), what),
            None => left.remove(name.as_str()),
        };
    }

    /// What the close of a volume that is being detached still has to put in the store.
    pub(crate) fn unsent_of_closing(&self, name: &str) -> Option<AtRisk> {
        lock(&self.closing).get(name).map(|closing| closing.unsent.at_risk())
    }

    /// Whether this process was told to serve the volume, though another node may have it.
    pub(crate) fn offers(&self, name: &str) -> bool {
        lock(&self.volumes).contains_key(name) || lock(&self.not_served).contains_key(name)
    }

    /// Where clients find a volume.
    pub(crate) fn uri(&self, name: &str) -> String {
        lock(&self.nbd_places).first().map_or_else(String::new, |place| place.uri(name))
    }

    /// Where clients find the process.
    pub(crate) fn nbd_uris(&self) -> Vec<String> {
        lock(&self.nbd_places).iter().map(|place| place.uri("")).collect()
    }

    /// Limits on uploads, and whether clients are spared.
    pub(crate) fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// Sets them, at once.
    pub(crate) fn set_limits(&self, limits: Limits) -> Result<(), NodeError> {
        if let Some(store) = &self.store {
            limits::apply(store, &limits)?;
        }
        self.node.pacer().set_drain(limits.drain);
        *lock(&self.limits) = limits;
        Ok(())
    }

    /// What is said of a volume that was served when it was asked for and is not any more.
    pub(crate) fn gone(&self, name: &VolumeName) -> NodeError {
        gone(self.is_stopping.load(Ordering::Relaxed), name)
    }

    /// Runs `job` with a volume on its thread.
    pub(crate) async fn on_volume<T, F, Work>(&self, entry: &Entry, job: F) -> Result<T, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Hosted>) -> Work + Send + 'static,
        Work: Future<Output = Result<T, NodeError>> + 'static,
    {
        let (id, gone) = (entry.id, self.gone(&entry.name));
        self.node
            .run(entry.shard, move |context| async move {
                let hosted = context.hosted.borrow().get(&id).cloned();
                match hosted {
                    Some(hosted) => job(hosted).await,
                    None => Err(gone),
                }
            })
            .await?
    }

    /// Which volumes are to be served, and how others are, from now on.
    pub(crate) fn set_wanted(&self, volumes: VolumeSet, template: Box<VolumeSpec>) {
        let mut set = lock(&self.volume_set);
        *set = volumes;
        if !mutant("reload_keeps_template") {
            *lock(&self.template) = template;
        }
    }

    /// How a volume of this name is to be served: as the configuration says, otherwise as the template.
    pub(crate) fn spec_of(&self, name: &VolumeName) -> VolumeSpec {
        let set = lock(&self.volume_set);
        let listed = match &*set {
            VolumeSet::Listed(specs) => specs.iter().find(|spec| spec.name == *name).cloned(),
            VolumeSet::All(_) => None,
        };
        let like_others = || VolumeSpec { name: name.clone(), ..(**lock(&self.template)).clone() };
        listed.unwrap_or_else(like_others)
    }

    /// The names that the settings give to volumes in no store, whether they are served or not.
    pub(crate) fn names_elsewhere(&self) -> Vec<String> {
        let VolumeSet::Listed(specs) = &*lock(&self.volume_set) else { return Vec::new() };
        let elsewhere = specs.iter().filter(|spec| spec.endpoint != EndpointKind::Log);
        elsewhere.map(|spec| spec.name.to_string()).collect()
    }

    /// Whether it is one of those.
    pub(crate) fn is_named_elsewhere(&self, name: &VolumeName) -> bool {
        self.names_elsewhere().iter().any(|one| one == name.as_str())
    }

    /// Lets clients use a volume as the settings say by now.
    pub(crate) fn let_in_as_settings_say(&self, entry: &Entry) {
        // Asked for under the lock: whoever comes later finds what is newer.
        let mut allowed = lock(&entry.allowed);
        *allowed = self.spec_of(&entry.name).allowed;
    }

    /// Whether the settings say who may use a volume: they have it served, or a verb has.
    pub(crate) fn is_told_of(&self, name: &VolumeName) -> bool {
        !self.is_attached(name)
            || self.is_attached_by_hand(name)
            || mutant("stale_opening_lets_in_as_template")
    }

    /// The same for all volumes that the settings have served, or that verbs have attached. What the settings do not
    /// name any more lets in whom it did before until it is closed.
    pub(crate) fn let_in_as_settings_say_everywhere(&self) {
        for entry in self.entries() {
            if self.is_told_of(&entry.name) {
                self.let_in_as_settings_say(&entry);
            }
        }
    }

    /// Whether a volume that is served is so only because a verb attached it.
    pub(crate) fn is_attached(&self, name: &VolumeName) -> bool {
        match &*lock(&self.volume_set) {
            VolumeSet::Listed(specs) => !specs.iter().any(|spec| spec.name == *name),
            VolumeSet::All(_) => self.is_attached_by_hand(name),
        }
    }

    /// Whether a volume that is created is to be served at once.
    pub(crate) fn serves_all(&self) -> bool {
        matches!(&*lock(&self.volume_set), VolumeSet::All(_))
    }
}

/// Only a process that stops is to blame for a volume that is not served any more; otherwise it was detached.
fn gone(is_stopping: bool, name: &VolumeName) -> NodeError {
    match is_stopping || mutant("detached_blames_the_stop") {
        true => NodeError::ShuttingDown,
        false => NodeError::NotServedHere { name: name.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_was_detached_is_not_said_to_go_with_the_process() {
        let name = VolumeName::new("demo").unwrap();
        assert!(matches!(gone(true, &name), NodeError::ShuttingDown));
        assert!(matches!(gone(false, &name), NodeError::NotServedHere { .. }));
    }
}
