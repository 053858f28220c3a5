//! `weir volume rekey`.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_log::catalog::{self, RekeyKeys, VolumeName};
use weir_store::Access;

use super::command::{Command, Subject, Told};
use super::place::Place;
use super::show;
use super::verb::{By, OnProgress, Route, Verb};
use crate::api::types::Shown;
use crate::error::NodeError;
use crate::home::keys::KeyPlace;

/// Wrap the key of an encrypted volume with another one: the first of --key-file or --key-command, unless told
/// otherwise. Nothing that is stored is rewritten. The volume must be closed
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RekeyVolume {
    /// File with the new key, if it is not where the old one is
    #[arg(long, value_name = "FILE", env = "WEIR_NEW_KEY_FILE", hide_env_values = true)]
    #[schema(value_type = Option<String>)]
    pub new_key_file: Option<PathBuf>,
    /// Command that prints the new key
    #[arg(long, value_name = "COMMAND", env = "WEIR_NEW_KEY_COMMAND", hide_env_values = true)]
    #[arg(conflicts_with = "new_key_file")]
    pub new_key_command: Option<String>,
}

impl Verb for RekeyVolume {
    type Report = Shown;
    // Its keys are beside whoever calls.
    const ROUTE: Option<Route> = None;
    const BY: By = By::Anyone;

    async fn on_store(self, place: Place, _: OnProgress<'_>) -> Result<Shown, NodeError> {
        let new = self.new_key_file.map(KeyPlace::File);
        let new = new.or(self.new_key_command.map(KeyPlace::Command));
        let old = &place.home.keys;
        let new = new.map_or_else(|| old.clone(), |place| KeyPlace::keys_of(Some(place)));
        let (name, env) = (place.name()?, &place.context.env);
        let (store, id) = place.find(Access::Write).await?;
        place.home.refuse_if_served(&store, &name, id).await?;
        catalog::rekey(&store, env, &name, RekeyKeys { old, new: &new }).await?;
        Ok(Shown::new(catalog::show(&store, env, &name).await?, None))
    }
}

impl Command for RekeyVolume {
    type Verb = Self;
    const WORDS: [&'static str; 2] = ["volume", "rekey"];
    const SUBJECT: Subject = Subject::Volume;

    fn verb(self, _snapshot: Option<VolumeName>) -> Self {
        self
    }

    fn tell(_name: &str, _verb: &Self, shown: &Shown) -> Told {
        show::tell_shown(shown)
    }
}
