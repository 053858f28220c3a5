//! Names that two volumes would have: one of the store, and one that is in no store but in a file or on another server.
//!
//! A name says which volume is served as the export of that name, so no volume of the store is given one that the
//! settings or a process of this data directory have for another kind: clients would find other bytes than were meant.

use weir_device::{VolumeId, mutant};
use weir_log::catalog::VolumeName;
use weir_store::Store;

use crate::error::NodeError;
use crate::home::Home;
use crate::home::processes::{Process, holder_among};
use crate::serve::core::Core;

/// What is said of a name that such a volume is served under.
const SERVED: &str =
    "is served here under that name: choose another one for the volume of the store";

/// What is said of a name that the settings have for such a volume, which is not served now.
const NAMED: &str = "the settings of the process that serves here give it that name, though it is not served now: \
                     choose another one for the volume of the store, or take that one out of the settings and load \
                     them anew";

/// What is said where a verb could mean the volume of the store or the one that is served.
pub(crate) const AMBIGUOUS: &str = "is served here under the name of one that is: detach it first, or rename the one \
                                    in the store (weir volume rename), so that it is clear which one is meant";

impl Home {
    /// Refuses a name that a volume of the store is to get, where a volume in no store has it: one that is served from
    /// this data directory, or that the settings of a process there name. Where the processes cannot be asked, that is
    /// no reason to refuse. `serving` is the process itself, if the verb runs in one.
    pub(crate) async fn refuse_taken(
        &self,
        serving: Option<&Core>,
        name: &VolumeName,
    ) -> Result<(), NodeError> {
        let own = serving.is_some_and(|core| core.is_named_elsewhere(name));
        check_not_taken(name, own, &self.processes().await.unwrap_or_default())
    }

    /// The same for a volume that this process is about to make and serve. `is_named`: its own settings give the name
    /// to a volume in no store.
    pub(crate) async fn refuse_taken_by_others(
        &self,
        is_named: bool,
        name: &VolumeName,
    ) -> Result<(), NodeError> {
        check_not_taken(name, is_named, &self.other_processes().await.unwrap_or_default())
    }

    /// As [`Home::holder`], but an error where another volume is served here under the name that is in no store.
    pub(crate) async fn holder_of_one(
        &self,
        store: &Store,
        id: VolumeId,
        name: &VolumeName,
    ) -> Result<Option<Process>, NodeError> {
        let processes = self.processes().await?;
        let are_two = processes.iter().any(|process| process.without_store(name).is_some());
        if are_two && !mutant("name_of_two_volumes_taken") {
            return Err(NodeError::InMemory { name: name.to_string(), reason: AMBIGUOUS });
        }
        Ok(holder_among(processes, store, id))
    }

    /// Refuses a verb on a volume of the store where another volume is served here under its name that is in no store:
    /// it would not be clear which one is meant. Where the processes cannot be asked, that is no reason to refuse.
    pub(crate) async fn refuse_ambiguous(
        &self,
        name: &VolumeName,
        reason: &'static str,
    ) -> Result<(), NodeError> {
        let served = self.holder_without_store(name).await;
        match served.is_ok_and(|one| one.is_some()) && !mutant("name_of_two_volumes_taken") {
            true => Err(NodeError::InMemory { name: name.to_string(), reason }),
            false => Ok(()),
        }
    }
}

/// Refuses a name that one of these processes has for a volume in no store, or this one's settings.
fn check_not_taken(
    name: &VolumeName,
    is_named: bool,
    processes: &[Process],
) -> Result<(), NodeError> {
    let is_served = processes.iter().any(|process| process.without_store(name).is_some());
    let is_named = is_named || processes.iter().any(|process| process.names_elsewhere(name));
    let reason = match (is_served, is_named) {
        _ if mutant("name_of_two_volumes_taken") => return Ok(()),
        (true, _) => SERVED,
        (false, true) if !mutant("name_in_settings_taken") => NAMED,
        (false, _) => return Ok(()),
    };
    Err(NodeError::InMemory { name: name.to_string(), reason })
}
