//! The stores that volumes of this data directory were opened in: one URL a line, in the file `stores`.
//!
//! A directory whose file system is not mounted, and a bucket or prefix that is not the one that was meant, look like a
//! store that nobody has used yet. Where volumes were in it before, nothing is created there, and nobody is served an
//! empty volume under the name of another.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use weir_device::mutant;
use weir_log::JOURNAL_FILE;
use weir_log::catalog::{self, VolumeName};
use weir_store::Store;

use crate::data_directory::{DataDirectory, store_directory};
use crate::error::NodeError;
use crate::home::probe::{Answer, Probes};
use crate::home::{Home, opened};
use crate::node::shard::ShardContext;

/// The URLs, in the order in which they were used first.
fn known(data: &DataDirectory) -> Result<Vec<String>, NodeError> {
    let path = data.stores();
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(NodeError::io("reading", path.display().to_string(), source)),
    }
}

fn is_known(data: &DataDirectory, url: &str) -> Result<bool, NodeError> {
    Ok(known(data)?.iter().any(|line| line == url))
}

/// Notes that a volume was opened in the store. The note is durable when this returns.
pub(crate) fn note(home: &Home) -> Result<(), NodeError> {
    let (data, url) = (&home.data, &home.store_url);
    if url.starts_with("memory:") || is_known(data, url)? {
        return Ok(());
    }
    let path = data.stores();
    let write = || {
        let mut file =
            std::fs::File::options().create(true).append(true).mode(0o600).open(&path)?;
        weir_disk::adopt_file(&file, &path)?;
        // One call, so that the lines of two processes do not mix.
        file.write_all(format!("{url}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(data.path())?.sync_all()
    };
    write().map_err(|source| NodeError::io("writing", path.display().to_string(), source))
}

/// Checks that the store is there, before it is opened for volumes that exist. Opening creates a missing directory, so
/// that a mistyped URL would look like a store without volumes.
pub(crate) fn check_there(home: &Home) -> Result<(), NodeError> {
    if !is_missing(home) {
        return Ok(());
    }
    check_not_gone(home)?;
    let (store, known) = (home.store_url.clone(), known(&home.data)?);
    Err(NodeError::NoStore { store, known })
}

/// Checks that a missing store was never used from here, before it is opened in a way that may create it.
pub(crate) fn check_not_gone(home: &Home) -> Result<(), NodeError> {
    if is_missing(home) { check_unknown(home, "is not there") } else { Ok(()) }
}

/// Whether the store is a directory that is not there.
fn is_missing(home: &Home) -> bool {
    store_directory(&home.store_url).is_some_and(|directory| !directory.exists())
}

/// The store, to be told from others by its location: the URL does not name the server. None where it is a directory
/// that is not there, which has no identity but its URL, and which opening the store would create.
pub(crate) fn to_compare(home: &Home) -> Result<Option<Store>, NodeError> {
    let open = || Store::open_with(&home.store_url, &home.store_options);
    Ok((!is_missing(home)).then(open).transpose()?)
}

/// Whether it is the store in the data directory, and nothing was created there yet: then it has no volumes.
pub(crate) fn is_to_come(home: &Home) -> Result<bool, NodeError> {
    let is_embedded = home.store_url == home.data.store_url();
    Ok(is_embedded && is_missing(home) && !is_known(&home.data, &home.store_url)?)
}

/// Checks before a volume is created that a store which never had any volume was never used from here.
pub(crate) async fn check_not_emptied(
    context: &ShardContext,
    home: &Home,
    store: &Store,
) -> Result<(), NodeError> {
    if is_known(&home.data, &home.store_url)? && catalog::is_blank(store, &context.env).await? {
        return check_unknown(home, "has no volumes, and never had any");
    }
    Ok(())
}

/// Checks before a volume is created that no journal here is of one of that name which the store has lost: under the
/// name its clients would find an empty volume.
pub(crate) async fn check_not_lost(
    context: &ShardContext,
    home: &Home,
    store: &Store,
    name: &VolumeName,
) -> Result<(), NodeError> {
    for id in opened::noted_as(home, store, name)? {
        let is_lost = catalog::is_lost(store, &context.env, id, name).await?;
        if is_lost && !mutant("lost_names_made_anew") {
            let journal = home.data.volume(id).join(JOURNAL_FILE).display().to_string();
            let store = store.url().to_owned();
            return Err(NodeError::NameLost { name: name.to_string(), store, journal });
        }
    }
    Ok(())
}

/// Whether the file system of a store that is a directory answers within `limit`: while it hangs, threads wait for it
/// in the kernel, and a program that is to be replaced does not end before they do.
pub(crate) async fn answers(home: &Home, probes: &Probes, limit: Duration) -> bool {
    let Some(directory) = store_directory(&home.store_url) else { return true };
    probes.ask(directory, limit).await != Answer::Hangs
}

fn check_unknown(home: &Home, state: &'static str) -> Result<(), NodeError> {
    if !is_known(&home.data, &home.store_url)? {
        return Ok(());
    }
    let (store, record) = (home.store_url.clone(), home.data.stores().display().to_string());
    Err(NodeError::StoreGone { store, state, record })
}
