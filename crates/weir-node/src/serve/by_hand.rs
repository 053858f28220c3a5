//! What verbs decided about volumes against the settings: one that was attached or detached by hand stays so until the
//! process ends, also when the settings are loaded anew or the program is replaced. It counts for as long as the
//! settings say the same of that volume, as whoever changes them decides anew.
//!
//! A volume that was renamed or deleted was detached first. So none is created anew, with nothing in it, under the name
//! of one that this process saw go.

use std::collections::BTreeMap;
use std::sync::Mutex;

use weir_device::VolumeId;
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};

use crate::error::{NodeError, ProcessId};
use crate::serve::core::Core;
use crate::serve::lock::lock;
use crate::serve::spec::{VolumeSet, VolumeSpec};

/// What a verb left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Attached,
    /// The volume that had the name, where that is known.
    Detached(Option<VolumeId>),
}

/// A decision, with what the settings said of the volume then.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    left: Left,
    line: Option<VolumeSpec>,
}

/// The decisions, by the name of the volume.
pub(crate) type ByHand = Mutex<BTreeMap<VolumeName, Decision>>;

impl Core {
    /// What the settings say of a volume; `None` if they do not name it.
    fn line_of(&self, name: &VolumeName) -> Option<VolumeSpec> {
        match &*lock(&self.volume_set) {
            VolumeSet::Listed(specs) => specs.iter().find(|spec| spec.name == *name).cloned(),
            VolumeSet::All(_) => None,
        }
    }

    /// Notes what a verb left.
    pub(crate) fn note_by_hand(&self, name: &VolumeName, left: Left) {
        let line = self.line_of(name);
        // Then the settings say the same.
        let is_as_settings_say = match left {
            Left::Attached => line.is_some(),
            Left::Detached(_) => line.is_none() && !self.serves_all(),
        };
        let mut by_hand = lock(&self.by_hand);
        match is_as_settings_say {
            true => by_hand.remove(name),
            false => by_hand.insert(name.clone(), Decision { left, line }),
        };
    }

    /// Forgets what was decided of volumes of which the settings say something else by now.
    pub(crate) fn forget_where_settings_changed(&self) {
        lock(&self.by_hand).retain(|name, decision| decision.line == self.line_of(name));
    }

    /// Whether a verb attached a volume that the settings do not name.
    pub(crate) fn is_attached_by_hand(&self, name: &VolumeName) -> bool {
        lock(&self.by_hand).get(name).is_some_and(|one| one.left == Left::Attached)
    }

    /// The volumes that verbs detached, and which volumes had these names.
    pub(crate) fn detached_by_hand(&self) -> BTreeMap<VolumeName, Option<VolumeId>> {
        let by_hand = lock(&self.by_hand);
        let detached = by_hand.iter().filter_map(|(name, decision)| match decision.left {
            Left::Detached(volume) => Some((name.clone(), volume)),
            Left::Attached => None,
        });
        detached.collect()
    }

    /// Why a volume that the settings would have served is not, because of what a verb left; `None` if another volume
    /// has got the name since, of which nothing was decided.
    pub(crate) async fn why_left_out(
        &self,
        name: &VolumeName,
        volume: Option<VolumeId>,
    ) -> Result<Option<String>, NodeError> {
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
            Some(Ok(id)) if volume.is_some_and(|volume| volume != id) => {
                lock(&self.by_hand).remove(name);
                None
            }
            _ => Some(format!(
                "it stays detached, as it was by hand; weir volume attach {name} serves it"
            )),
        })
    }

    /// What whoever renamed or deleted a volume has to know where the settings name it still.
    pub(crate) fn still_named(&self, name: &VolumeName) -> Option<String> {
        let line = self.line_of(name)?;
        let process = ProcessId(i32::try_from(std::process::id()).ok());
        let then = match line.size {
            Some(_) => "its next start creates a volume of that name, with nothing in it",
            None => "its next start finds no volume of that name",
        };
        Some(format!(
            "the settings of process {process} still name volume {name}: unless that is changed, {then}"
        ))
    }
}
