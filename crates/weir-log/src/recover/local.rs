//! The local journal of an opening: what is there of it, and what becomes of it.

use weir_device::{Env, VolumeId};
use weir_disk::Directory;
use weir_journal::{
    AcceptLoss, Identity, Journal, JournalConfig, JournalError, JournalId, Recovered,
};
use weir_seal::DataKey;

use crate::error::LogError;
use crate::format::manifest::HexId;
use crate::ids::WriteMark;
use crate::recover::args::{JOURNAL_FILE, OpenArgs};
use crate::recover::evidence::{Decision, HeldWrite, JournalView};

/// What is there of a journal.
pub(crate) enum Local {
    None,
    /// A crash while it was made: nothing was ever acknowledged out of it. A journal that was in use has a holder in
    /// the manifest, so zeroes in its place need a claim on the volume.
    NeverFinished,
    Recovered(Box<Recovered>),
}

/// The local journal as an opening uses it.
pub(crate) struct LocalJournal {
    pub(crate) recovered: Recovered,
    /// Nothing of what the volume acknowledged was ever in it.
    pub(crate) is_new: bool,
}

impl Local {
    /// Reads what is there.
    ///
    /// # Errors
    /// What the journal says.
    pub(crate) async fn read(args: &OpenArgs, key: Option<&DataKey>) -> Result<Self, LogError> {
        let (volume, config) = ((args.id, key), args.options.journal);
        Self::recover(&args.directory, volume, config, args.accept_loss, &args.env).await
    }

    /// The same for who does not open the volume.
    ///
    /// # Errors
    /// What the journal says.
    pub(crate) async fn recover(
        directory: &Directory,
        (id, key): (VolumeId, Option<&DataKey>),
        config: JournalConfig,
        accept_loss: bool,
        env: &Env,
    ) -> Result<Self, LogError> {
        let files = directory.list().await?;
        if !files.iter().any(|name| name == JOURNAL_FILE) {
            return Ok(Self::None);
        }
        let accept = if accept_loss { AcceptLoss::Yes } else { AcceptLoss::No };
        let recovered =
            Journal::recover(directory, JOURNAL_FILE, id, key, config, accept, env).await;
        match recovered {
            Err(JournalError::NeverFinished { .. }) => Ok(Self::NeverFinished),
            other => Ok(Self::Recovered(Box::new(other?))),
        }
    }

    /// What to decide by, if there is a journal.
    pub(crate) fn view(&self) -> Option<JournalView> {
        let Self::Recovered(recovered) = self else { return None };
        let held = recovered.pieces.iter().map(|found| HeldWrite {
            mark: WriteMark { epoch: found.piece.epoch, write: found.piece.write },
            bytes: found.piece.len,
        });
        Some(JournalView {
            journal: recovered.identity.journal.into(),
            epoch: recovered.epoch.0,
            opening: recovered.opening.map(HexId::from),
            announced: recovered.announced.iter().map(|known| known.opening.into()).collect(),
            manifest: recovered.manifest,
            file: recovered.file,
            last_write: recovered.last_flushed,
            held: held.collect(),
        })
    }

    /// The journal to go on with, as decided: the one that is there, or a new one.
    ///
    /// # Errors
    /// What the disk says.
    pub(crate) async fn settle(
        self,
        args: &OpenArgs,
        key: Option<&DataKey>,
        decision: &Decision,
    ) -> Result<LocalJournal, LogError> {
        match (self, decision) {
            (Self::None, _) => return create(args, key).await,
            (Self::Recovered(recovered), Decision::Replay(_)) => {
                return Ok(LocalJournal { recovered: *recovered, is_new: false });
            }
            (Self::Recovered(recovered), Decision::ReuseEmpty(_)) => {
                return Ok(LocalJournal { recovered: *recovered, is_new: true });
            }
            (Self::Recovered(recovered), _) => {
                let journal = recovered.identity.journal;
                let why = if args.discard_journal {
                    "the local journal is given up with what it holds, as was asked"
                } else {
                    "the local journal holds nothing that the volume lacks: a new one takes its place"
                };
                tracing::warn!(volume = %args.id, %journal, "{why}");
            }
            (Self::NeverFinished, _) => {}
        }
        args.directory.remove(JOURNAL_FILE).await?;
        create(args, key).await
    }
}

async fn create(args: &OpenArgs, key: Option<&DataKey>) -> Result<LocalJournal, LogError> {
    let mut id = [0; 16];
    args.env.random.fill(&mut id);
    let identity = Identity { volume: args.id, journal: JournalId(id) };
    let config = args.options.journal;
    let recovered =
        Journal::create(&args.directory, JOURNAL_FILE, identity, key, config, &args.env).await?;
    Ok(LocalJournal { recovered, is_new: true })
}
