//! Journals in the data directory that nobody serves and that were not closed in order: they may hold the only copy of
//! what was acknowledged.

use std::path::PathBuf;
use std::rc::Rc;

use weir_device::VolumeId;
use weir_journal::Journal;
use weir_log::JOURNAL_FILE;

use crate::error::NodeError;
use crate::node::Node;
use crate::processes::Process;
use crate::shard::ShardContext;
use crate::volumes::Home;

/// Such a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The volume's identity, as the name of its directory.
    pub volume: VolumeId,
    /// The journal.
    pub journal: PathBuf,
    /// What is wrong with it, where it cannot be read.
    pub trouble: Option<String>,
}

impl Node {
    /// The journals of this data directory that none of `processes` serves and that were not closed in order. Those of
    /// a process that does not answer are left out.
    ///
    /// # Errors
    /// When the data directory cannot be listed.
    pub async fn unserved(
        &self,
        home: Home,
        processes: &[Process],
    ) -> Result<Vec<Unserved>, NodeError> {
        let served: Vec<VolumeId> = processes.iter().flat_map(Process::volumes).collect();
        let silent = processes.iter().any(|process| process.status.is_err());
        let found =
            self.run(0, move |context| async move { not_closed(&context, &home).await }).await??;
        Ok(found.into_iter().filter(|one| !silent && !served.contains(&one.volume)).collect())
    }
}

async fn not_closed(context: &Rc<ShardContext>, home: &Home) -> Result<Vec<Unserved>, NodeError> {
    let mut unserved = Vec::new();
    for volume in home.data.volumes()? {
        let path = home.data.volume(volume);
        let journal = path.join(JOURNAL_FILE);
        if !journal.is_file() {
            continue;
        }
        let directory = context.disks.directory(path)?;
        match Journal::identify(&directory, JOURNAL_FILE).await {
            Ok(found) if found.is_closed => {}
            Ok(_) => unserved.push(Unserved { volume, journal, trouble: None }),
            Err(error) => {
                unserved.push(Unserved { volume, journal, trouble: Some(error.to_string()) });
            }
        }
    }
    Ok(unserved)
}
