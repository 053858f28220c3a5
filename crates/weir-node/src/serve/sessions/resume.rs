//! Going on with the sessions of the process before this one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use weir_device::{DetachedStream, Peer};
use weir_frontend::nbd::{ExportDirectory, Kept, go_on};
use weir_log::OpenReport;
use weir_log::catalog::VolumeName;

use super::kept::{KeptSession, SessionRecord};
use crate::home::Consent;
use crate::serve::core::Core;
use crate::serve::exports::Exported;

/// Time to find the export of a session.
const FIND_MAX: Duration = Duration::from_secs(5);

/// Goes on with the sessions of the process before this one, where that can be done. `needs_tls`: whether whoever
/// connects over TCP now is served under TLS only.
pub(crate) async fn resume(core: &Arc<Core>, sessions: Vec<KeptSession>, needs_tls: bool) {
    if sessions.is_empty() {
        return;
    }
    let (mut count, of) = (0_usize, sessions.len());
    for KeptSession { stream, record } in sessions {
        let (client, export) = (record.state.client.clone(), record.state.export.clone());
        let is_clear = record.state.certificate.is_none();
        let resumed = match &record.state.peer {
            Peer::Host(_) if needs_tls && is_clear => Err("clients over TCP must use TLS now"),
            _ => resume_one(core, stream, record).await,
        };
        match resumed {
            Ok(()) => count += 1,
            Err(reason) => {
                tracing::warn!(
                    client,
                    export,
                    reason,
                    "the session of a client is not gone on with"
                );
            }
        }
    }
    tracing::info!(count, of, "sessions of clients go on after the program was replaced");
}

async fn resume_one(
    core: &Arc<Core>,
    stream: Box<dyn DetachedStream>,
    SessionRecord { volume, epoch, state }: SessionRecord,
) -> Result<(), &'static str> {
    if VolumeName::new(&state.export).is_err() {
        return Err("it is no volume's");
    }
    let entry = core.entry(&state.export).ok_or("the volume is not served")?;
    if entry.id != volume || !follows(&entry.report, entry.spec.consent, epoch) {
        return Err("the volume was opened elsewhere in between, or lost something");
    }
    let (exported, client) = (Exported(Arc::clone(core)), state.identity());
    let found = match timeout(FIND_MAX, exported.find(&state.export, &client)).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => return Err("the export is not for the client"),
        Err(_) => return Err("the export was not found in time"),
    };
    let (places, sources) = (&core.node.clients.places, &core.sources);
    go_on(Kept { stream, state }, found, (places, sources), core.tls.as_ref())
}

/// S2: whether this opening is the next one after that of `epoch`, with everything in place.
fn follows(report: &OpenReport, consent: Consent, epoch: u64) -> bool {
    let is_whole = !report.new_journal && report.poisoned_ranges == 0;
    is_whole && consent == Consent::default() && epoch.checked_add(1) == Some(report.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_goes_on_at_the_very_next_opening_with_the_journal_in_place() {
        let next = OpenReport { epoch: 5, ..OpenReport::default() };
        let none = Consent::default();
        assert!(follows(&next, none, 4));
        for epoch in [0, 3, 5, 6, u64::MAX] {
            assert!(!follows(&next, none, epoch), "{epoch}");
        }
        assert!(!follows(&OpenReport { new_journal: true, ..next.clone() }, none, 4));
        assert!(!follows(&OpenReport { poisoned_ranges: 1, ..next.clone() }, none, 4));
        assert!(!follows(&next, Consent { accept_loss: true, ..none }, 4));
    }
}
