//! Where a verb works: a store, a data directory, and perhaps a process that serves.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_device::VolumeId;
use weir_log::catalog::{self, VolumeName};
use weir_stack::Stack;
use weir_store::{Access, Store};

use super::{AttachVolume, DetachVolume};
use crate::api::client::Client;
use crate::api::types::Shown;
use crate::error::{NodeError, ProcessId};
use crate::home::processes::Process;
use crate::home::{Home, open};
use crate::node::hosted::Hosted;
use crate::node::shard::ShardContext;
use crate::serve::attach;
use crate::serve::core::Core;
use crate::volumes::list;

/// A process that serves volumes, as what runs in it sees it.
#[derive(Clone, Debug)]
pub struct Serving(pub(crate) Arc<Core>);

impl Serving {
    /// A process of `weir up` serves one volume, and nothing else.
    pub(crate) fn refuse_if_single(&self) -> Result<(), NodeError> {
        if self.0.is_single {
            return Err(NodeError::SingleVolume { process: own_id() });
        }
        Ok(())
    }

    /// That it serves a volume, and where.
    pub(crate) fn serves(&self, name: &VolumeName) -> NodeError {
        let place = format!(" at {}", self.0.uri(name.as_str()));
        NodeError::Served { name: name.to_string(), process: own_id(), place }
    }
}

fn own_id() -> ProcessId {
    ProcessId(i32::try_from(std::process::id()).ok())
}

/// Where a verb works.
#[derive(Debug)]
pub struct Place {
    pub(crate) context: Rc<ShardContext>,
    pub(crate) home: Home,
    /// The process, where the verb came to one.
    pub(crate) serving: Option<Serving>,
    /// The volume that it is about.
    pub(super) name: Option<VolumeName>,
    /// That volume, where it was looked for already.
    pub(super) found: Rc<OnceCell<(Access, Store, VolumeId)>>,
}

impl Place {
    /// The volume that the verb is about.
    ///
    /// # Errors
    /// [`NodeError::NoName`] where it is about none.
    pub(crate) fn name(&self) -> Result<VolumeName, NodeError> {
        self.name.clone().ok_or(NodeError::NoName)
    }

    /// The volume in its store.
    ///
    /// # Errors
    /// When there is none of that name, or what the store says.
    pub(crate) async fn find(&self, access: Access) -> Result<(Store, VolumeId), NodeError> {
        match self.found.get() {
            Some((Access::Write, store, id)) => return Ok((store.clone(), *id)),
            Some((Access::Read, store, id)) if access == Access::Read => {
                return Ok((store.clone(), *id));
            }
            _ => {}
        }
        let store = self.home.open_store(&self.context, access).await?;
        let id = catalog::find(&store, &self.context.env, &self.name()?).await?;
        // Another one of that name took its place only if it was deleted meanwhile.
        drop(self.found.set((access, store.clone(), id)));
        Ok((store, id))
    }

    /// Opens the volume for one piece of work, and closes it again.
    pub(crate) async fn with_open<T, Work>(
        &self,
        work: impl FnOnce(Rc<Stack>) -> Work,
    ) -> Result<T, NodeError>
    where
        Work: Future<Output = Result<T, NodeError>>,
    {
        let (store, id) = self.find(Access::Write).await?;
        open::with_open(&self.context, &self.home, store, id, &self.name()?, work).await
    }

    /// What is known of the volume.
    pub(crate) async fn show(&self) -> Result<Shown, NodeError> {
        list::show(&self.context, &self.home, &self.name()?).await
    }

    /// Notes what happened to a volume, where a process serves.
    pub(crate) fn note(&self, kind: &'static str, message: impl Into<String>) {
        if let (Some(Serving(core)), Some(name)) = (&self.serving, &self.name) {
            core.events.note(kind, Some(name.as_str()), message);
        }
    }

    /// The same work on another volume.
    pub(crate) fn of(&self, name: VolumeName) -> Self {
        let (context, home) = (Rc::clone(&self.context), self.home.clone());
        Self {
            context,
            home,
            serving: self.serving.clone(),
            name: Some(name),
            found: Rc::default(),
        }
    }

    /// Has the volume served, by this process or by the one that serves this data directory.
    pub(crate) async fn attach(&self, asked: AttachVolume) -> Result<(), NodeError> {
        let name = self.name()?;
        let Some(Serving(core)) = &self.serving else {
            let mut client = self.home.serving_client().await?;
            return client.call(Some(&name), &asked, &|_, _| {}).await.map(drop);
        };
        let mut spec = core.spec_of(&name);
        spec.read_only |= asked.read_only;
        spec.consent.take_over |= asked.take_over;
        if asked.size_bytes.is_some() {
            (spec.size, spec.size_must_match) = (asked.size_bytes, true);
        }
        attach::attach(core, spec).await
    }

    /// Has the volume served no more, if this process serves it, or one from this data directory that serves many.
    pub(crate) async fn detach_if_served(&self) -> Result<(), NodeError> {
        let name = self.name()?;
        if let Some(Serving(core)) = &self.serving {
            return match attach::detach(core, name, false).await {
                Ok(_) | Err(NodeError::NotServedHere { .. }) => Ok(()),
                Err(error) => Err(error),
            };
        }
        let Ok((store, id)) = self.find(Access::Write).await else { return Ok(()) };
        let Some(mut process) = self.home.holder(&store, id).await? else { return Ok(()) };
        if process.status.is_err() {
            // What comes next names it.
            return Ok(());
        }
        match process.client.call(Some(&name), &DetachVolume::default(), &|_, _| {}).await {
            // One that serves nothing else is named by what comes next.
            Err(NodeError::Remote { kind: weir_device::ErrorKind::Unsupported, .. }) => Ok(()),
            detached => detached.map(drop),
        }
    }

    /// The process of this data directory that serves the volume; none for one that serves it itself.
    pub(super) async fn holder(&self) -> Result<Option<Process>, NodeError> {
        let (store, id) = self.find(Access::Write).await?;
        self.home.holder(&store, id).await
    }

    /// What turns an error that calls the volume by its identity into one that calls it by its name.
    pub(super) fn by_name(&self) -> impl Fn(NodeError) -> NodeError + use<> {
        let (name, found) = (self.name.clone(), Rc::clone(&self.found));
        move |error| match (&name, found.get()) {
            (Some(name), Some((.., id))) => error.of_volume(name, *id),
            _ => error,
        }
    }
}

/// A volume that is served here.
#[derive(Debug)]
pub struct Served {
    pub(crate) place: Place,
    pub(crate) hosted: Rc<Hosted>,
}

impl Served {
    /// The stack over its log volume; one in memory lacks something, as `reason` says.
    pub(crate) fn log(&self, reason: &'static str) -> Result<Rc<Stack>, NodeError> {
        let stack = &self.hosted.stack;
        let in_memory = || NodeError::InMemory { name: self.hosted.name.to_string(), reason };
        stack.is_log().then(|| Rc::clone(stack)).ok_or_else(in_memory)
    }
}

impl Home {
    /// The way to the process that serves many volumes from this data directory.
    pub(crate) async fn serving_client(&self) -> Result<Client, NodeError> {
        let data_dir = self.data.path().display().to_string();
        let client = Client::connect(&self.data.api_socket()).await?;
        let mut client = client.ok_or(NodeError::NothingServed { data_dir })?;
        client.mean_store(&Store::open_with(&self.store_url, &self.store_options)?);
        Ok(client)
    }
}
