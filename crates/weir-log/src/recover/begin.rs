//! An opening begins: its name is announced in the journal, published in the manifest, given sequences, and put into
//! force. Each step is durable before the next (see `volume::verb::open`).

use weir_journal::limits::ANNOUNCED_MAX;
use weir_journal::{Epoch, OpeningId};
use weir_store::RetryPolicy;

use crate::error::LogError;
use crate::format::manifest::{EpochEntry, HexId, Holder, Manifest, SalvageRecord};
use crate::ids::WriteMark;
use crate::map::load::Loaded;
use crate::own::lease::{LeaseHold, Run};
use crate::own::manifests::ManifestWriter;
use crate::recover::args::OpenArgs;
use crate::recover::evidence::JournalView;
use crate::recover::forget::forget_openings;
use crate::recover::local::LocalJournal;
use crate::recover::salvage;
use crate::recover::survey::Survey;

/// What names an opening.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) epoch: Epoch,
    pub(crate) opening: OpeningId,
    /// Snapshots that were kept for the local journal, which is settled now.
    pub(crate) unneeded: Vec<HexId>,
}

/// Announces the opening in the journal and publishes the manifest version that makes us the holder.
pub(crate) async fn announce_and_publish(
    args: &OpenArgs,
    writer: &mut ManifestWriter,
    (journal, view): (&LocalJournal, Option<&JournalView>),
    survey: &Survey,
    (hold, run): (&LeaseHold, Run),
) -> Result<Begun, LogError> {
    let epoch = next_epoch(writer.current(), journal, survey);
    let opening = announce(args, journal, epoch).await?;
    let id = journal.recovered.identity.journal;
    let entry = EpochEntry {
        epoch: epoch.0,
        first_sequence: None,
        after_write: None,
        journal: id.into(),
        opening: Some(opening.into()),
        previous: writer.current().newest_owner().and_then(|entry| entry.opening),
    };
    let holder = Holder {
        name: hold.name().to_owned(),
        node: run.identity.node,
        incarnation: run.identity.incarnation,
        journal: id.into(),
    };
    let mut unneeded = Vec::new();
    let is_encrypted = writer.current().encryption.is_some();
    let encoding = args.options.encoding(&args.store, is_encrypted);
    let mut object_version = encoding.version.if_older_programs_refuse();
    if weir_device::mutant("manifest_hides_version_4") {
        object_version = object_version.min(Some(3));
    }
    let change = |m: &mut Manifest| {
        m.object_version = m.object_version.max(object_version);
        forget_openings(m);
        m.epochs.push(entry);
        m.holder = Some(holder);
        unneeded = salvage::settle(m, view);
    };
    writer.publish(&args.env, &RetryPolicy::reads(), change).await?;
    Ok(Begun { epoch, opening, unneeded })
}

/// Above every epoch that anything of this volume has, of whichever history.
fn next_epoch(manifest: &Manifest, journal: &LocalJournal, survey: &Survey) -> Epoch {
    let recovered = &journal.recovered;
    let announced = recovered.announced.iter().map(|known| known.epoch).max();
    let newest = manifest.newest_epoch().max(recovered.epoch);
    if weir_device::mutant("epoch_used_again") && newest.0 > 0 {
        return newest;
    }
    newest.max(survey.newest_epoch()).max(announced.unwrap_or(Epoch(0))).next()
}

/// A new name in the journal's superblock, before anybody else can know it. Where so many were announced that there is
/// no room, the newest of them is used again: nothing was acknowledged under it.
async fn announce(
    args: &OpenArgs,
    journal: &LocalJournal,
    epoch: Epoch,
) -> Result<OpeningId, LogError> {
    let known = journal.recovered.journal.announced();
    let opening = match known.last() {
        Some(newest) if known.len() >= ANNOUNCED_MAX => newest.opening,
        _ => {
            let mut id = [0; 16];
            args.env.random.fill(&mut id);
            OpeningId(id)
        }
    };
    if !weir_device::mutant("opening_not_announced") {
        journal.recovered.journal.announce(opening, epoch).await?;
    }
    Ok(opening)
}

/// Publishes the first sequence that our epoch owns: from here on older epochs can add nothing. What is given up by it
/// is recorded, with the last write `through` which we have everything.
pub(crate) async fn own_sequences(
    args: &OpenArgs,
    writer: &mut ManifestWriter,
    epoch: Epoch,
    loaded: &Loaded,
    (given_up, through): (Option<SalvageRecord>, WriteMark),
) -> Result<(), LogError> {
    let given_up = given_up.map(|record| SalvageRecord {
        after_write: through.into(),
        taken_at: epoch.0,
        ..record
    });
    let first = loaded.committed_seq.next().0;
    let committed = loaded.committed;
    let change = |m: &mut Manifest| {
        let entry = m.epochs.iter_mut().rfind(|e| e.epoch == epoch.0);
        let entry = entry.expect("published by announce_and_publish");
        entry.first_sequence = Some(first);
        entry.after_write = Some(committed.into());
        salvage::first_map_holds(&mut m.salvage, through);
        m.salvage.extend(given_up);
    };
    writer.publish(&args.env, &RetryPolicy::reads(), change).await
}

impl From<OpeningId> for HexId {
    fn from(id: OpeningId) -> Self {
        Self(id.0)
    }
}
