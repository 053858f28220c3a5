//! What verbs decided about volumes against the settings: one that was attached or detached by hand stays so until the
//! process ends, also when the settings are loaded anew or the program is replaced. It counts for as long as the
//! settings say the same of that volume, as whoever changes them decides anew.
//!
//! A volume that is to be renamed or deleted is detached first. So none is created anew, with nothing in it, under the
//! name of one that this process saw go. Where the verb did not come to its end, the settings count again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use weir_device::VolumeId;
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};

use crate::error::{NodeError, ProcessId};
use crate::serve::core::Core;
use crate::serve::lock::lock;
use crate::serve::spec::{EndpointKind, VolumeSet, VolumeSpec};

/// What a verb left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Attached,
    /// The volume that had the name, where that is known.
    Detached(Option<VolumeId>),
    /// Detached by a verb that renames or deletes it next.
    Going(VolumeId),
}

/// A decision, with what the settings said of the volume then.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    left: Left,
    line: Option<VolumeSpec>,
    /// When it was made; nothing for one of the process before.
    made: Option<Instant>,
}

/// Time that a verb has to rename or delete a volume that it had detached. After it the settings count for one that is
/// there still.
const GOING_TIME: Duration = Duration::from_secs(60);

/// The decisions, by the name of the volume.
pub(crate) type ByHand = Mutex<BTreeMap<VolumeName, Decision>>;

impl Decision {
    /// Whether the verb may be at work yet.
    fn is_in_its_time(&self) -> bool {
        self.made.is_some_and(|made| made.elapsed() < GOING_TIME)
    }
}

impl Core {
    /// What the settings say of a volume; `None` if they do not name it.
    pub(crate) fn line_of(&self, name: &VolumeName) -> Option<VolumeSpec> {
        match &*lock(&self.volume_set) {
            VolumeSet::Listed(specs) => specs.iter().find(|spec| spec.name == *name).cloned(),
            VolumeSet::All(_) => None,
        }
    }

    /// Notes what a verb left.
    pub(crate) fn note_by_hand(&self, name: &VolumeName, left: Left) {
        self.note_left_by_verb(name, left, Some(Instant::now()));
    }

    /// Notes what a verb left in the process before this one.
    pub(crate) fn note_by_hand_before(&self, name: &VolumeName, left: Left) {
        self.note_left_by_verb(name, left, None);
    }

    fn note_left_by_verb(&self, name: &VolumeName, left: Left, made: Option<Instant>) {
        let line = self.line_of(name);
        // Then the settings say the same.
        let is_as_settings_say = match left {
            Left::Attached => line.is_some(),
            Left::Detached(_) | Left::Going(_) => line.is_none() && !self.serves_all(),
        };
        let mut by_hand = lock(&self.by_hand);
        if self.serves_all() {
            // Of these nothing is created anew, so that there is nothing to know of one that is gone.
            by_hand.retain(|_, one| one.is_in_its_time() || !matches!(one.left, Left::Going(_)));
        }
        match is_as_settings_say {
            true => by_hand.remove(name),
            false => by_hand.insert(name.clone(), Decision { left, line, made }),
        };
    }

    /// Forgets what was decided of volumes of which the settings say something else by now.
    pub(crate) fn forget_where_settings_changed(&self) {
        let is_same = |one: &Option<VolumeSpec>, other: &Option<VolumeSpec>| match (one, other) {
            (Some(one), Some(other)) => one.says_the_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        lock(&self.by_hand).retain(|name, one| is_same(&one.line, &self.line_of(name)));
    }

    /// Whether a verb attached a volume that the settings do not name.
    pub(crate) fn is_attached_by_hand(&self, name: &VolumeName) -> bool {
        lock(&self.by_hand).get(name).is_some_and(|one| one.left == Left::Attached)
    }

    /// Whether a verb detached a volume.
    pub(crate) fn is_detached_by_hand(&self, name: &VolumeName) -> bool {
        lock(&self.by_hand).get(name).is_some_and(|one| one.left != Left::Attached)
    }

    /// The volumes that verbs detached, and what they left.
    pub(crate) fn detached_by_hand(&self) -> BTreeMap<VolumeName, Left> {
        let by_hand = lock(&self.by_hand);
        let detached = by_hand.iter().filter(|(_, one)| one.left != Left::Attached);
        detached.map(|(name, one)| (name.clone(), one.left)).collect()
    }

    /// Forgets what was decided of volumes that are not in the store any more, where nothing would create them anew.
    pub(crate) fn forget_what_is_gone(&self, there: &BTreeSet<VolumeName>) {
        if self.serves_all() {
            lock(&self.by_hand).retain(|name, one| one.is_in_its_time() || there.contains(name));
        }
    }

    /// Why a volume that the settings would have served is not, because of what a verb left; `None` if another volume
    /// has got the name since, of which nothing was decided.
    pub(crate) async fn why_left_out(
        &self,
        name: &VolumeName,
        left: Left,
    ) -> Result<Option<String>, NodeError> {
        let (volume, is_going) = match left {
            Left::Attached => return Ok(None),
            Left::Detached(volume) => (volume, false),
            Left::Going(volume) => (Some(volume), true),
        };
        let stays =
            || format!("it stays detached, as it was by hand; weir volume attach {name} serves it");
        // Of a volume that is in no store the store says nothing: another one may have the name there.
        let line = self.line_of(name);
        if line.is_some_and(|line| line.endpoint != EndpointKind::Log) {
            return Ok(Some(stays()));
        }
        let is_at_work = |one: &Decision| is_going && one.is_in_its_time();
        let is_at_work = lock(&self.by_hand).get(name).is_some_and(is_at_work);
        let found = match self.store.clone() {
            Some(store) => {
                let name = name.clone();
                let find = |context: std::rc::Rc<crate::node::shard::ShardContext>| async move {
                    catalog::find(&store, &context.env, &name).await
                };
                Some(self.node.run(0, find).await?)
            }
            None => None,
        };
        Ok(match found {
            Some(Err(LogError::NoSuchVolume { .. })) => Some(
                "it was renamed or deleted, and is not created anew, though the settings name it"
                    .to_owned(),
            ),
            Some(Ok(id)) if is_at_work && volume == Some(id) => {
                Some("a verb has begun to rename or delete it".to_owned())
            }
            Some(Ok(id)) if is_going || volume.is_some_and(|volume| volume != id) => {
                lock(&self.by_hand).remove(name);
                None
            }
            _ => Some(stays()),
        })
    }

    /// What whoever renamed or deleted a volume has to know where the settings name it still.
    pub(crate) fn still_named(&self, name: &VolumeName) -> Option<String> {
        let line = self.line_of(name)?;
        let process = ProcessId::own();
        let then = match line.size {
            Some(_) => "its next start creates a volume of that name, with nothing in it",
            None => "its next start finds no volume of that name",
        };
        Some(format!(
            "the settings of process {process} still name volume {name}: unless that is changed, {then}"
        ))
    }
}
