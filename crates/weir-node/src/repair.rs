//! Repair of a volume: by the process that serves it, or by opening it.

use weir_device::{DeviceError, ErrorKind};
use weir_log::catalog::{self, VolumeName};
use weir_log::{GivenUp, LogVolume, ObjectId};
use weir_store::Access;

use crate::api::types::{RepairReport, RepairVolume, Report};
use crate::error::NodeError;
use crate::host::Hosted;
use crate::node::Node;
use crate::volumes::{Home, with_open};

/// Keys in one request: its body has at most 64 KiB.
const KEYS_AT_A_TIME: usize = 500;

impl Node {
    /// Has the process that serves a volume, if there is one on this host, publish what it knows of its objects: a
    /// check of the store then sees what the volume sees.
    ///
    /// # Errors
    /// When there is no such volume, or what the process says.
    pub async fn publish_map(&self, home: Home, name: VolumeName) -> Result<(), NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Read).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            let Some(mut process) = home.holder(&store, id).await? else { return Ok(()) };
            let path = format!("/v1/volumes/{name}/repair");
            // A repair of nothing.
            let asked = RepairVolume { objects: Vec::new(), zero: false };
            process.client.work(&path, &asked, |_, _| {}).await.map(drop)
        })
        .await?
    }

    /// Gives up what cannot be read of objects that a check named, and deletes those of them that nobody needs: through
    /// the process that serves the volume, otherwise by opening it and closing it again. `on_progress` hears of objects
    /// looked at and objects in all.
    ///
    /// # Errors
    /// When there is no such volume or the store does not answer, with nothing changed; or why it could not be opened.
    pub async fn repair_volume(
        &self,
        home: Home,
        name: VolumeName,
        asked: RepairVolume,
        mut on_progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<RepairReport, NodeError> {
        self.run(0, move |context| async move {
            let store = home.open_store(&context, Access::Write).await?;
            let id = catalog::find(&store, &context.env, &name).await?;
            let mut report = RepairReport::default();
            if let Some(mut process) = home.holder(&store, id).await? {
                let path = format!("/v1/volumes/{name}/repair");
                let (mut before, total) = (0, asked.objects.len() as u64);
                // What was given up before is found without a name.
                let nothing: &[String] = &[];
                let unnamed = (asked.objects.is_empty() && asked.zero).then_some(nothing);
                for objects in asked.objects.chunks(KEYS_AT_A_TIME).chain(unnamed) {
                    let body = RepairVolume { objects: objects.to_vec(), ..asked };
                    let report_on = |done, _| on_progress(before + done, total);
                    if let Some(Report::Repair(done)) =
                        process.client.work(&path, &body, report_on).await?
                    {
                        report.add(&done);
                    }
                    before += objects.len() as u64;
                }
            } else {
                with_open(&context, &home, store, id, &name, async |volume| {
                    report = of_volume(&volume, &asked, &mut on_progress).await?;
                    Ok(())
                })
                .await?;
            }
            Ok(report)
        })
        .await?
    }
}

/// Repairs a served volume.
pub(crate) async fn of_hosted(
    hosted: &Hosted,
    asked: &RepairVolume,
    on_progress: impl FnMut(u64, u64),
) -> Result<RepairReport, NodeError> {
    match hosted.log() {
        Some(volume) => of_volume(volume, asked, on_progress).await,
        None => {
            Err(NodeError::InMemory { name: hosted.name.to_string(), reason: "has no objects" })
        }
    }
}

async fn of_volume(
    volume: &LogVolume,
    asked: &RepairVolume,
    mut on_progress: impl FnMut(u64, u64),
) -> Result<RepairReport, NodeError> {
    let parse = |key: &String| {
        ObjectId::parse_key(key).ok_or_else(|| {
            let way_out = "weir volume check names those that are damaged";
            let message = format!("{key:?} is not the key of an object; {way_out}");
            DeviceError::new(ErrorKind::Invalid, message)
        })
    };
    let objects =
        asked.objects.iter().map(parse).collect::<Result<Vec<ObjectId>, DeviceError>>()?;
    let given_up = if asked.zero { GivenUp::Zero } else { GivenUp::Error };
    let total = objects.len() as u64;
    let mut done = 0;
    let repaired = volume.repair(&objects, given_up, |looked_at| {
        done += looked_at;
        on_progress(done, total);
    });
    Ok(repaired.await?.into())
}
