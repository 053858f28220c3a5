//! What a verb works with: a store, a data directory, and the serving process, if it runs in one.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use weir_device::VolumeId;
use weir_log::LogError;
use weir_log::catalog::{self, VolumeName};
use weir_stack::Stack;
use weir_store::{Access, Store};

use crate::api::client::Client;
use crate::api::types::Shown;
use crate::error::{NodeError, ProcessId};
use crate::home::known_stores;
use crate::home::names::AMBIGUOUS;
use crate::home::processes::Process;
use crate::home::{Home, open, opened};
use crate::node::hosted::Hosted;
use crate::node::shard::ShardContext;
use crate::serve::core::Core;
use crate::serve::events::EventKind;
use crate::volumes::{deletion, list};

/// How long a verb that needs no store waits for what the store says of the name of a volume.
const STORE_ANSWER_MAX: Duration = Duration::from_secs(3);

/// The process that serves volumes and in which the verb runs.
#[derive(Clone, Debug)]
pub struct Serving(pub(crate) Arc<Core>);

impl Serving {
    /// A process of `weir up` serves one volume, and nothing else.
    pub(crate) fn refuse_if_single(&self) -> Result<(), NodeError> {
        if self.0.is_single {
            return Err(NodeError::SingleVolume { process: ProcessId::own() });
        }
        Ok(())
    }

    /// The error that says that it serves a volume, and where.
    pub(crate) fn serves(&self, name: &VolumeName) -> NodeError {
        let place = format!(" at {}", self.0.uri(name.as_str()));
        NodeError::Served { name: name.to_string(), process: ProcessId::own(), place }
    }
}

/// What a verb works with.
#[derive(Debug)]
pub struct Place {
    pub(crate) context: Rc<ShardContext>,
    pub(crate) home: Home,
    /// The serving process, if the verb runs in one.
    pub(crate) serving: Option<Serving>,
    /// The volume that it is about.
    pub(super) name: Option<VolumeName>,
    /// That volume in its store, if it was looked up already.
    pub(super) found: Rc<OnceCell<(Access, Store, VolumeId)>>,
    /// Where it is told how far it is, if it runs in a serving process: closed once its caller has gone.
    pub(super) reporter: Option<Rc<watch::Sender<(u64, u64)>>>,
}

impl Place {
    /// Whether its caller still waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.reporter.as_ref().is_none_or(|reporter| !reporter.is_closed())
    }

    /// The volume that the verb is about.
    ///
    /// # Errors
    /// [`NodeError::NoName`] if it is about none.
    pub(crate) fn name(&self) -> Result<VolumeName, NodeError> {
        self.name.clone().ok_or(NodeError::NoName)
    }

    /// The volume in its store.
    ///
    /// # Errors
    /// When there is none of that name, or the store fails.
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
        // If another call has set it meanwhile, that is the same volume, unless it was deleted in between.
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

    /// What `weir volume show` shows of the volume.
    pub(crate) async fn show(&self) -> Result<Shown, NodeError> {
        list::show(&self.context, &self.home, &self.name()?).await
    }

    /// Notes an event of the volume, if the verb runs in a serving process.
    pub(crate) fn note(&self, kind: EventKind, message: impl Into<String>) {
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
            reporter: self.reporter.clone(),
        }
    }

    /// The other process of this data directory that serves the volume, if there is one.
    /// `is_of_store` says that the one in the store is meant, whatever else is served under its name.
    pub(super) async fn holder(
        &self,
        access: Access,
        is_of_store: bool,
    ) -> Result<Option<Process>, NodeError> {
        match self.find(access).await {
            Ok((store, id)) if is_of_store => self.home.holder(&store, id).await,
            Ok((store, id)) => self.home.holder_of_one(&store, id, &self.name()?).await,
            Err(
                error @ (NodeError::NoStore { .. } | NodeError::Log(LogError::NoSuchVolume { .. })),
            ) => match self.home.holder_without_store(&self.name()?).await? {
                Some(process) => Ok(Some(process)),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// What to say of a volume that the store does not have: where there is a journal of it here that was not closed,
    /// that the volume was deleted elsewhere, or that the store lost it.
    pub(super) async fn without_volume(&self, error: NodeError) -> NodeError {
        let NodeError::Log(LogError::NoSuchVolume { .. }) = &error else { return error };
        let look = async {
            let (context, home, name) = (&self.context, &self.home, self.name()?);
            let store = home.open_store(context, Access::Read).await?;
            known_stores::check_not_lost(context, home, &store, &name).await?;
            for id in opened::noted_as(home, &store, &name)? {
                deletion::refuse_left(context, home, &store, id).await?;
            }
            Ok(())
        };
        match look.await {
            Err(known @ (NodeError::NameLost { .. } | NodeError::DeletedElsewhere { .. })) => known,
            _ => error,
        }
    }

    /// The process that `holder` finds. Where the store fails, or says nothing for [`STORE_ANSWER_MAX`], the one that
    /// serves a volume of that name out of it.
    pub(super) async fn or_by_name(
        &self,
        holder: impl Future<Output = Result<Option<Process>, NodeError>>,
    ) -> Result<Option<Process>, NodeError> {
        let mut holder = std::pin::pin!(holder);
        let failed = match tokio::time::timeout(STORE_ANSWER_MAX, &mut holder).await {
            Ok(Err(error)) if !error.is_of_no_volume() => Some(error),
            Ok(found) => return found,
            Err(_) => None,
        };
        match (self.home.holder_by_name(&self.name()?).await?, failed) {
            (Some(process), _) => Ok(Some(process)),
            (None, Some(error)) => Err(error),
            (None, None) => holder.await,
        }
    }

    /// As [`Home::refuse_ambiguous`].
    pub(super) async fn refuse_if_ambiguous(&self, reason: &'static str) -> Result<(), NodeError> {
        self.home.refuse_ambiguous(&self.name()?, reason).await
    }

    /// Refuses a volume of the store where another one is served under its name.
    pub(super) async fn refuse_if_two(&self) -> Result<(), NodeError> {
        let Some(name) = &self.name else { return Ok(()) };
        let refused = self.home.refuse_ambiguous(name, AMBIGUOUS).await;
        // What is in no store is meant where the store has none of that name, or cannot be asked.
        match refused.is_err() && self.find(Access::Read).await.is_ok() {
            true => refused,
            false => Ok(()),
        }
    }

    /// Refuses the name for a volume that the verb makes or renames ([`Home::refuse_taken`]).
    pub(super) async fn refuse_if_taken(&self) -> Result<(), NodeError> {
        let core = self.serving.as_ref().map(|Serving(core)| &**core);
        self.home.refuse_taken(core, &self.name()?).await
    }

    /// Turns errors that name the volume by its identity into errors that give its name.
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
    /// The stack over its log volume. For a volume in memory it is an error, of which `reason` is a part.
    pub(crate) fn log(&self, reason: &'static str) -> Result<Rc<Stack>, NodeError> {
        let (stack, name) = (&self.hosted.stack, self.hosted.name.to_string());
        match (stack.is_log(), stack.view()) {
            (true, _) => Ok(Rc::clone(stack)),
            (false, Some(_)) => Err(LogError::Replica { name }.into()),
            (false, None) => Err(NodeError::InMemory { name, reason }),
        }
    }
}

impl NodeError {
    /// Whether it says that there is no such volume, or no store that could have it.
    pub(super) fn is_of_no_volume(&self) -> bool {
        matches!(self, Self::NoStore { .. } | Self::Log(LogError::NoSuchVolume { .. }))
    }

    /// What is said instead, where a volume of that name is served and is in no store.
    pub(super) fn not_in_store(name: &VolumeName) -> Self {
        let reason = "this is done with volumes of a store only";
        Self::InMemory { name: name.to_string(), reason }
    }
}

impl Home {
    /// A connection to the process that serves many volumes from this data directory.
    pub(crate) async fn serving_client(&self) -> Result<Client, NodeError> {
        let data_dir = self.data.path().display().to_string();
        let client = Client::connect(&self.data.api_socket()).await?;
        let mut client = client.ok_or(NodeError::NothingServed { data_dir })?;
        // One that was stopped is found out before anything is asked of it: work may be silent for longer.
        let status = client.status().await?;
        // A process without a store cannot have another one.
        let is_same = status.store == self.store_url || status.store_location.is_none();
        match known_stores::to_compare(self)? {
            Some(store) => client.mean_store(&store),
            None if is_same => {}
            None => known_stores::check_there(self)?,
        }
        Ok(client)
    }
}
