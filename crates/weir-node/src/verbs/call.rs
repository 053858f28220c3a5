//! A verb of the command line: through the process that serves the volume, otherwise on the store.

use std::rc::Rc;

use weir_device::ErrorKind;
use weir_log::catalog::VolumeName;
use weir_store::Access;

use super::command::{Command, Question};
use super::place::Place;
use super::verb::{By, OnProgress, Verb};
use crate::api::client::Client;
use crate::error::NodeError;
use crate::home::Home;
use crate::home::processes::Process;
use crate::node::Node;
use crate::node::shard::ShardContext;

fn place(context: Rc<ShardContext>, home: Home, name: Option<VolumeName>) -> Place {
    Place { context, home, serving: None, name, found: Rc::default(), reporter: None }
}

/// Decides which process does the verb, and has it done. Nothing else decides that.
async fn do_it<V: Verb>(
    verb: V,
    place: Place,
    on_progress: OnProgress<'_>,
) -> Result<V::Report, NodeError> {
    match V::BY {
        By::Anyone | By::Aside => {
            place.refuse_if_two().await?;
            verb.on_store(place, on_progress).await
        }
        By::Server => match by_server(&verb, &place, on_progress).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(said_of_one(&place, error).await)
            }
            called => called,
        },
        By::Holder => {
            let holder = place.holder(Access::Write, V::IS_OF_STORE);
            let holder = match verb.is_local() {
                true => place.or_by_name(holder).await,
                false => holder.await,
            };
            let holder = match holder {
                Ok(holder) => holder,
                Err(error) => return Err(place.without_volume(error).await),
            };
            match holder {
                Some(process) => {
                    answering(process)?.call_parts(place.name, verb, on_progress).await
                }
                None => verb.on_store(place, on_progress).await,
            }
        }
    }
}

/// The connection to a process that said how it is. One that did not answer has none any more, and why it did not says
/// more than a request that cannot be sent.
fn answering(process: Process) -> Result<Client, NodeError> {
    match process.status {
        Err(error @ NodeError::NoAnswer { .. }) => Err(error),
        _ => Ok(process.client),
    }
}

async fn by_server<V: Verb>(
    verb: &V,
    place: &Place,
    on_progress: OnProgress<'_>,
) -> Result<V::Report, NodeError> {
    let mut client = place.home.serving_client().await?;
    client.call(place.name.as_ref(), verb, on_progress).await
}

/// What is said where no process that serves many volumes serves this one: a process of `weir up` may.
async fn said_of_one(place: &Place, error: NodeError) -> NodeError {
    match place.holder(Access::Write, true).await {
        Ok(Some(process)) if process.is_single() => NodeError::SingleVolume { process: process.id },
        _ => error,
    }
}

impl Node {
    /// Does what a verb asks for: through the process that serves the volume from this data directory, otherwise on the
    /// store. `on_progress` is called with how much is done and how much there is in all.
    ///
    /// # Errors
    /// The reason that it was not done.
    pub async fn call<V: Verb>(
        &self,
        home: Home,
        name: Option<VolumeName>,
        verb: V,
        on_progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<V::Report, NodeError> {
        self.run(0, move |context| async move {
            let place = place(context, home.clone(), name.clone());
            let by_name = place.by_name();
            let done = do_it(verb, place, &on_progress).await.map_err(by_name);
            match (done, name) {
                (Err(error), Some(name)) if error.is_of_no_volume() => {
                    // Where the processes cannot be asked, the error of the store says enough.
                    let served =
                        home.holder_without_store(&name).await.is_ok_and(|one| one.is_some());
                    Err(if served { NodeError::not_in_store(&name) } else { error })
                }
                (done, _) => done,
            }
        })
        .await?
    }

    /// What a person is asked before a command does what cannot be undone.
    pub(super) async fn question<C: Command>(
        &self,
        home: Home,
        name: Option<VolumeName>,
        verb: C::Verb,
    ) -> Result<Option<Question>, NodeError> {
        self.run(
            0,
            move |context| async move { C::question(&verb, place(context, home, name)).await },
        )
        .await?
    }

    /// Sends a verb to the process that serves a volume from this data directory. `None` if there is no such process;
    /// then nothing is done.
    ///
    /// # Errors
    /// When there is no such volume, or the error of the process.
    pub async fn call_holder<V: Verb>(
        &self,
        home: Home,
        name: VolumeName,
        verb: V,
    ) -> Result<Option<V::Report>, NodeError> {
        self.run(0, move |context| async move {
            let place = place(context, home, Some(name.clone()));
            let Some(process) = place.holder(Access::Read, false).await? else { return Ok(None) };
            answering(process)?.call(Some(&name), &verb, &|_, _| {}).await.map(Some)
        })
        .await?
    }
}
