//! The processes that serve volumes from a data directory, and which of them has a volume of a store open.
//!
//! A volume is told from others by its identity *and* by the place of its store: a replica has the identity of its
//! source, and so has every volume in a copy of a store. A request for one of them never reaches the other.

use weir_device::{LocalBoxFuture, VolumeId};
use weir_disk::DiskError;
use weir_log::LogError;
use weir_log::catalog::VolumeName;
use weir_store::Store;

use crate::api::client::Client;
use crate::api::types::{Limits, NodeStatus, ServedVolume};
use crate::error::{NodeError, ProcessId};
use crate::home::{Home, known_stores};
use crate::node::Node;

/// A process that serves volumes from this data directory.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub id: ProcessId,
    /// What it says of itself, or why it does not.
    pub status: Result<NodeStatus, NodeError>,
    /// The one volume it serves, if its socket says so.
    volume: Option<VolumeId>,
    pub(crate) client: Client,
}

fn is_replica(volume: &ServedVolume) -> bool {
    volume.layers.last().is_some_and(|last| last.kind == "replica")
}

impl Process {
    /// The volumes that it has open or waits for; without those of a status that it did not give, and without replicas:
    /// the journal of a replica's identity is that of its source.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        let volumes = self.status.iter().flat_map(|status| &status.volumes);
        let volumes = volumes.filter(|volume| !is_replica(volume));
        volumes.filter_map(|volume| VolumeId::parse(&volume.id)).chain(self.volume)
    }

    /// Whether it serves one volume for as long as it runs.
    pub(crate) fn is_single(&self) -> bool {
        self.volume.is_some()
    }

    pub(crate) fn volume(&self, id: VolumeId) -> Option<&ServedVolume> {
        let volumes = self.status.as_ref().ok().map(|status| &status.volumes);
        volumes?.iter().find(|volume| volume.id == id.to_string())
    }

    /// The volume of that name which it serves and which is in no store.
    pub(crate) fn without_store(&self, name: &VolumeName) -> Option<&ServedVolume> {
        self.all_without_store().find(|one| one.name == name.as_str())
    }

    /// The volumes that it serves and that are in no store. A replica has no log of its own, and is in one.
    pub(crate) fn all_without_store(&self) -> impl Iterator<Item = &ServedVolume> {
        let volumes = self.status.iter().flat_map(|status| &status.volumes);
        volumes.filter(|one| one.log.is_none() && !is_replica(one))
    }

    /// Whether its settings give that name to a volume that is in no store.
    pub(crate) fn names_elsewhere(&self, name: &VolumeName) -> bool {
        let names = self.status.iter().flat_map(|status| &status.names_elsewhere);
        names.into_iter().any(|one| one == name.as_str())
    }

    /// Whether it has the volume open. Of a process that does not answer only the volume is known that its socket is
    /// named after; it counts as the holder of that, whichever store is asked for.
    pub(crate) fn holds(&self, store: &Store, id: VolumeId) -> bool {
        match &self.status {
            Err(_) => self.volume == Some(id),
            Ok(status) => self.volume(id).is_some() && is_of(status, store),
        }
    }

    /// Whether it has a volume of that identity open, out of another store.
    pub(crate) fn holds_elsewhere(&self, store: &Store, id: VolumeId) -> bool {
        let is_elsewhere = self.status.as_ref().is_ok_and(|status| !is_of(status, store));
        is_elsewhere && self.volume(id).is_some()
    }

    /// URL of its store, if it answers.
    fn store(&self) -> Option<&str> {
        self.status.as_ref().ok().map(|status| status.store.as_str())
    }

    /// The error that says that it serves the volume, and where.
    fn serves(&self, name: &VolumeName, id: VolumeId) -> NodeError {
        let place = self.volume(id).map_or(String::new(), |volume| format!(" at {}", volume.uri));
        NodeError::Served { name: name.to_string(), process: self.id, place }
    }

    pub(crate) fn number(&self) -> Option<u32> {
        self.id.0.and_then(|id| u32::try_from(id).ok())
    }
}

/// Whether a process serves that store. The status of an older program does not give the location of its store; then
/// the URLs are compared.
fn is_of(status: &NodeStatus, store: &Store) -> bool {
    match &status.store_location {
        Some(location) => *location == store.location(),
        None => status.store == store.url(),
    }
}

/// The letter that the kernel gives the state of a process, as `Z` where it was killed; nothing where there is none.
pub(crate) fn state_of(process: i32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before it may have spaces and brackets.
    text.rsplit_once(") ")?.1.chars().next()
}

/// As [`Home::holder`], of these processes.
pub(crate) fn holder_among(
    processes: Vec<Process>,
    store: &Store,
    id: VolumeId,
) -> Option<Process> {
    let mut holder = processes.into_iter().find(|process| process.holds(store, id))?;
    holder.client.mean(store, id);
    Some(holder)
}

impl Home {
    /// The processes that serve volumes from this data directory.
    pub(crate) async fn processes(&self) -> Result<Vec<Process>, NodeError> {
        self.processes_that(|_| true).await
    }

    /// The same without this one, which answers itself only once its start is over.
    pub(crate) async fn other_processes(&self) -> Result<Vec<Process>, NodeError> {
        self.processes_that(|process| process != ProcessId::own()).await
    }

    /// Those of them that are wanted by their numbers.
    async fn processes_that(
        &self,
        is_wanted: impl Fn(ProcessId) -> bool,
    ) -> Result<Vec<Process>, NodeError> {
        let is_wanted = &is_wanted;
        let mut asked = Vec::new();
        for (path, volume) in self.data.api_sockets()? {
            asked.push(async move {
                let Some(mut client) = Client::connect(&path).await? else { return Ok(None) };
                if !is_wanted(client.process()) {
                    return Ok(None);
                }
                let status = client.status().await;
                Ok::<_, NodeError>(Some(Process { id: client.process(), status, volume, client }))
            });
        }
        let answers = futures_util::future::join_all(asked).await;
        answers.into_iter().filter_map(Result::transpose).collect()
    }

    /// The process that serves volume `id` of `store` from this data directory, if one does. Requests to it name the
    /// volume and the store that they are meant for.
    pub(crate) async fn holder(
        &self,
        store: &Store,
        id: VolumeId,
    ) -> Result<Option<Process>, NodeError> {
        Ok(holder_among(self.processes().await?, store, id))
    }

    /// The process that serves a volume of that name which is in no store: a remote one, a file, memory.
    pub(crate) async fn holder_without_store(
        &self,
        name: &VolumeName,
    ) -> Result<Option<Process>, NodeError> {
        let processes = self.processes().await?;
        Ok(processes.into_iter().find(|process| process.without_store(name).is_some()))
    }

    /// The process that serves a volume of that name out of the store, as it says itself: for where the store does not
    /// say which volume has the name. None where another one is served under the name that is in no store.
    pub(crate) async fn holder_by_name(
        &self,
        name: &VolumeName,
    ) -> Result<Option<Process>, NodeError> {
        let processes = self.processes().await?;
        if processes.iter().any(|process| process.without_store(name).is_some()) {
            return Ok(None);
        }
        let store = known_stores::to_compare(self)?;
        let is_same = |status: &NodeStatus| match &store {
            Some(store) => is_of(status, store),
            None => status.store == self.store_url,
        };
        let named = |process: &Process| {
            let status = process.status.as_ref().ok().filter(|status| is_same(status))?;
            let volume = status.volumes.iter().find(|volume| volume.name == name.as_str())?;
            Some((status.store_location.clone()?, VolumeId::parse(&volume.id)?))
        };
        Ok(processes.into_iter().find_map(|mut process| {
            let (location, id) = named(&process)?;
            process.client.mean_at(location, id);
            Some(process)
        }))
    }

    /// Whether a process has a volume of that identity open out of another store, and so its local files.
    pub(crate) async fn is_open_elsewhere(
        &self,
        store: &Store,
        id: VolumeId,
    ) -> Result<bool, NodeError> {
        let processes = self.processes().await?;
        Ok(processes.iter().any(|process| process.holds_elsewhere(store, id)))
    }

    /// Fails if a process serves the volume, with its id and where it serves.
    pub(crate) async fn refuse_if_served(
        &self,
        store: &Store,
        name: &VolumeName,
        id: VolumeId,
    ) -> Result<(), NodeError> {
        match self.holder(store, id).await? {
            Some(process) => Err(process.serves(name, id)),
            None => Ok(()),
        }
    }

    /// What is known of the process that has the lock of a volume's local files.
    pub(crate) async fn who_has_locked(
        &self,
        store: &Store,
        name: &VolumeName,
        id: VolumeId,
        error: NodeError,
    ) -> NodeError {
        // Whoever locks it says which process that is. One that does not serve yet is not to wait for its own answer.
        let holder = match &error {
            NodeError::Held { process, .. } => *process,
            _ => ProcessId(None),
        };
        let may_be = |process: ProcessId| {
            process.0.zip(holder.0).is_none_or(|(process, holder)| process == holder)
        };
        let processes = match self.processes_that(may_be).await {
            Ok(processes) => processes,
            Err(unknown) => {
                tracing::debug!(%unknown, "the processes of this data directory cannot be asked");
                return error;
            }
        };
        let other = |process: &&Process| process.holds_elsewhere(store, id);
        if let Some(process) = processes.iter().find(|process| process.holds(store, id)) {
            return process.serves(name, id);
        }
        match processes.iter().find(other) {
            Some(process) => {
                let served = process.store().unwrap_or_default().to_owned();
                NodeError::OtherStore { name: name.to_string(), process: process.id, served }
            }
            // One that gives no answer may serve it, and why it gives none is what helps.
            None => {
                let NodeError::Held { process: holder, .. } = &error else { return error };
                // A program that was replaced leaves its number, which is this one's too, to whoever locks next, and
                // that may not have written its own yet.
                if *holder == ProcessId::own() {
                    return error;
                }
                let silent = processes.into_iter().find(|process| process.id == *holder);
                silent.and_then(|process| process.status.err()).unwrap_or(error)
            }
        }
    }
}

/// Turns the error of a lock that another process holds into one that says that this process has the volume open.
/// Whether it serves the volume has to be asked.
pub(crate) fn locked(error: NodeError, name: &VolumeName) -> NodeError {
    let held = match &error {
        NodeError::Disk(held @ DiskError::Locked { .. })
        | NodeError::Log(LogError::Disk(held @ DiskError::Locked { .. })) => held,
        _ => return error,
    };
    let process = match held {
        DiskError::Locked { holder_pid, .. } => holder_pid.and_then(|id| i32::try_from(id).ok()),
        _ => None,
    };
    NodeError::Held { name: name.to_string(), process: ProcessId(process) }
}

impl Node {
    /// The processes that serve volumes from this data directory.
    ///
    /// # Errors
    /// When the data directory cannot be listed, or a socket in it may not be connected to.
    #[inline(never)]
    pub fn processes<'a>(
        &'a self,
        home: Home,
    ) -> LocalBoxFuture<'a, Result<Vec<Process>, NodeError>> {
        Box::pin(async move { self.run(0, move |_| async move { home.processes().await }).await? })
    }

    /// Changes the limits on uploads of every process that serves volumes from this data directory, at once and until
    /// that process ends; what they are then.
    ///
    /// # Errors
    /// [`NodeError::NothingServed`], [`NodeError::ZeroLimit`], or that a process does not answer.
    #[inline(never)]
    pub fn change_limits<'a>(
        &'a self,
        home: Home,
        change: impl Fn(Limits) -> Limits + Send + 'static,
    ) -> LocalBoxFuture<'a, Result<Vec<(ProcessId, Limits)>, NodeError>> {
        Box::pin(async move {
            self.run(0, move |_| async move {
                let mut changed = Vec::new();
                for Process { id, status, mut client, .. } in home.processes().await? {
                    changed.push((id, client.set_limits(&change(status?.limits)).await?));
                }
                if changed.is_empty() {
                    let data_dir = home.data.path().display().to_string();
                    return Err(NodeError::NothingServed { data_dir });
                }
                Ok(changed)
            })
            .await?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_killed_is_told_from_one_that_runs() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(state_of(own), Some('R' | 'S' | 'D')));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = i32::try_from(child.id()).unwrap();
        child.kill().unwrap();
        // Nobody has waited for it.
        while state_of(id) != Some('Z') {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(state_of(id), None);
    }
}
