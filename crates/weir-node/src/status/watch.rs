//! Looks at the health of every volume at intervals, and reports each change as an event and a line in the log. A
//! certificate that runs out has a line in the log as well.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::api::types::Health;
use crate::serve::core::Core;
use crate::serve::events::EventKind;
use crate::status;
use crate::status::certificates::RunningOut;

/// Time between two looks: cheap enough, and soon enough for a person.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks until the process stops.
pub(crate) async fn run(core: Arc<Core>) {
    let mut seen: BTreeMap<String, Health> = BTreeMap::new();
    let mut refused_before = 0;
    let mut running_out = RunningOut::default();
    let look = |running_out: &mut RunningOut| {
        for told in core.tls.iter().flat_map(|tls| running_out.look(tls)) {
            tracing::warn!("{told}");
        }
    };
    look(&mut running_out);
    while !core.is_stopping.load(Ordering::Relaxed) {
        tokio::time::sleep(INTERVAL).await;
        look(&mut running_out);
        let refused = core.node.clients.places.refused();
        if refused > refused_before {
            // The log has named each of them.
            let text = format!("{} clients found no place", refused - refused_before);
            core.events.note(EventKind::ClientsRefused, None, text);
            refused_before = refused;
        }
        let entries = core.entries();
        // A volume that was deleted or detached is forgotten, so that a later one of its name begins anew.
        seen.retain(|name, _| entries.iter().any(|entry| entry.name.as_str() == name));
        for entry in entries {
            let Ok(volume) = status::of_volume(&core, &entry).await else { continue };
            let before = seen.insert(volume.name.clone(), volume.health).unwrap_or(Health::Ok);
            if before == volume.health {
                continue;
            }
            let reasons = volume.reasons.join("; ");
            match volume.health {
                Health::Ok => {
                    tracing::warn!(volume = volume.name, "the volume is well again");
                    core.events.note(
                        EventKind::VolumeRecovered,
                        Some(&volume.name),
                        "all is well again",
                    );
                }
                Health::Degraded => {
                    tracing::warn!(volume = volume.name, reasons, "the volume is degraded");
                    core.events.note(EventKind::VolumeDegraded, Some(&volume.name), reasons);
                }
                Health::Failed => {
                    tracing::error!(volume = volume.name, reasons, "the volume takes no writes");
                    core.events.note(EventKind::VolumeFailed, Some(&volume.name), reasons);
                }
            }
        }
    }
}
