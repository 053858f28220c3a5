//! Clones of volumes: made from the store alone, whoever has the parent open, and flattened by the process that serves
//! them, or by opening them.

use weir_log::Takeover;
use weir_log::catalog::{self, VolumeName};
use weir_store::Access;

use crate::api::types::{FlattenReport, Report, Shown};
use crate::error::NodeError;
use crate::node::Node;
use crate::shard::ShardContext;
use crate::volumes::{Home, with_open};

/// Creates a clone of a snapshot.
pub(crate) async fn create(
    context: &ShardContext,
    home: &Home,
    (volume, snapshot): (&VolumeName, &VolumeName),
    name: &VolumeName,
    takeover: Takeover,
) -> Result<Shown, NodeError> {
    home.data.prepare()?;
    let store = home.open_store(context, Access::Write).await?;
    catalog::create_clone(&store, &context.env, (volume, snapshot), name, takeover).await?;
    Ok(Shown::new(catalog::show(&store, &context.env, name).await?, None))
}

impl Node {
    /// Creates the volume `name` as a clone of a snapshot. Copies nothing.
    ///
    /// # Errors
    /// When there is no such volume or snapshot, the name is taken, or what the store says.
    pub async fn clone_volume(
        &self,
        home: Home,
        (volume, snapshot): (VolumeName, VolumeName),
        name: VolumeName,
        takeover: Takeover,
    ) -> Result<Shown, NodeError> {
        self.run(0, move |context| async move {
            create(&context, &home, (&volume, &snapshot), &name, takeover).await
        })
        .await?
    }

    /// Copies what a clone shares with the volumes it descends from: through the process that serves it, otherwise by
    /// opening it and closing it again. `on_progress` hears of bytes copied and bytes to copy.
    ///
    /// # Errors
    /// When there is none of that name, or why it could not be opened. What it still depends on is in the report.
    pub async fn flatten_volume(
        &self,
        home: Home,
        name: VolumeName,
        mut on_progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<FlattenReport, NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            let mut report = None;
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{name}/flatten");
                let nothing = serde_json::json!({});
                if let Some(Report::Flatten(flattened)) =
                    process.client.work(&path, &nothing, on_progress).await?
                {
                    report = Some(flattened);
                }
            } else {
                with_open(&context, &home, store, id, &name, async |volume| {
                    report = Some(volume.flatten(&mut on_progress).await?.into());
                    Ok(())
                })
                .await?;
            }
            Ok(report.unwrap_or_default())
        })
        .await?
    }
}
