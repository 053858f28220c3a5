//! The cache of a data directory, from outside of the process that has it: who that is, and what is in its file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::Duration;

use weir_cache::engine::{BLOCKS_FILE, CacheError, CacheSize, LOCK_FILE, ThreadCache, inspect};
use weir_device::LocalBoxFuture;
use weir_disk::DiskError;

use crate::api::types::{CacheFileReport, CacheResized, CacheShown};
use crate::cache_error::CacheCommandError;
use crate::error::{NodeError, ProcessId};
use crate::home::Home;
use crate::home::processes::Process;
use crate::node::Node;
use crate::node::shard::ShardContext;
use crate::serve::cache::hangs;
use crate::serve::cache_setting::CacheSetting;
use crate::serve::cache_size::{self, bytes_now};
use crate::verbs::cache::{ResizeCache, ShowCache};

/// How long it is waited for what is in the file.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// What is known of the cache of a data directory.
#[derive(Debug)]
pub struct KnownCache {
    /// Its file, if there is one.
    pub file: Option<CacheFileReport>,
    /// What each process that serves from there says of it, or why it does not.
    pub processes: Vec<(ProcessId, Result<CacheShown, NodeError>)>,
}

/// The file, if it is there. One that cannot be looked at, or whose disk does not answer, is there as far as is known.
async fn file(context: &ShardContext, home: &Home) -> Option<CacheFileReport> {
    let path = home.data.cache().join(BLOCKS_FILE).display().to_string();
    let report = CacheFileReport { path, ..CacheFileReport::default() };
    match tokio::time::timeout(LOOK_TIME_MAX, looked_at(context, home, report.clone())).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Some(CacheFileReport { unread: Some(error.to_string()), ..report }),
        Err(_) => {
            let unread = Some("its disk does not answer".to_owned());
            Some(CacheFileReport { unread, ..report })
        }
    }
}

/// What the kernel says of the file; a worker asks it, which a verb can do without.
async fn found(context: &ShardContext, home: &Home) -> Result<Option<Metadata>, NodeError> {
    let home = home.clone();
    let found = context.env.background(async move { cache_size::file(&home) }).await;
    found.unwrap_or(Err(NodeError::ShuttingDown))
}

async fn looked_at(
    context: &ShardContext,
    home: &Home,
    mut report: CacheFileReport,
) -> Result<Option<CacheFileReport>, NodeError> {
    // Looked for first: to open the directory makes it.
    let Some(found) = found(context, home).await? else { return Ok(None) };
    report.bytes = found.size();
    match inspect(&context.disks.directory_apart(home.data.cache()).await?).await? {
        None => return Ok(None),
        Some(Err(why)) => report.trouble = Some(why),
        Some(Ok(known)) => {
            report.version = known.version;
            report.capacity_bytes = known.capacity_bytes;
            report.closed = known.is_closed;
            report.openings = known.openings;
        }
    }
    Ok(Some(report))
}

async fn known(context: &ShardContext, home: &Home) -> Result<KnownCache, NodeError> {
    let mut processes = Vec::new();
    for Process { id, status, mut client, .. } in home.processes().await? {
        let shown = match status {
            Ok(_) => client.call(None, &ShowCache {}, &|_, _| {}).await,
            Err(error) => Err(error),
        };
        processes.push((id, shown));
    }
    let file = file(context, home).await;
    if file.is_none() && processes.is_empty() {
        return Err(none_in(home));
    }
    Ok(KnownCache { file, processes })
}

fn none_in(home: &Home) -> NodeError {
    CacheCommandError::NoFile { directory: home.data.cache().display().to_string() }.into()
}

/// The process whose cache is meant: the one that has it, otherwise one that could.
fn meant(processes: Vec<Process>) -> Option<Process> {
    let rank = |process: &Process| match &process.status {
        Ok(status) if status.cache.capacity_bytes > 0 => 0,
        // Without a store there are no objects.
        Ok(status) if status.store_location.is_none() => 3,
        Ok(_) if !process.is_single() => 1,
        Ok(_) => 2,
        Err(_) => 4,
    };
    processes.into_iter().min_by_key(rank)
}

async fn resize(home: &Home, size: CacheSetting) -> Result<(ProcessId, CacheResized), NodeError> {
    let data_dir = || home.data.path().display().to_string();
    let process = meant(home.processes().await?);
    let process = process.ok_or_else(|| CacheCommandError::NoProcess { data_dir: data_dir() })?;
    let (id, mut client) = (process.id, process.client);
    process.status?;
    let verb = ResizeCache { size: size.to_string() };
    Ok((id, client.call(None, &verb, &|_, _| {}).await?))
}

/// The error of a lock that another process has, as one that says which, and what it does if it says that.
async fn in_use(home: &Home, error: DiskError) -> NodeError {
    let DiskError::Locked { holder_pid, .. } = error else { return error.into() };
    // The lock file names none where the disk hangs: whoever has the lock could not write its id.
    let (mut id, mut doing) = (ProcessId(holder_pid.and_then(|id| i32::try_from(id).ok())), None);
    for process in home.processes().await.unwrap_or_default() {
        let Ok(status) = &process.status else { continue };
        if status.cache.capacity_bytes > 0 || status.cache.changing.is_some() {
            (id, doing) = (process.id, status.cache.changing.clone());
        }
    }
    let data_dir = home.data.path().display().to_string();
    CacheCommandError::InUse { data_dir, process: id, doing }.into()
}

async fn create(context: &ShardContext, home: &Home, bytes: u64) -> Result<(), NodeError> {
    let looked = tokio::time::timeout(LOOK_TIME_MAX, found(context, home)).await;
    if looked.map_err(|_| hangs(home))??.is_some() {
        let path = home.data.cache().join(BLOCKS_FILE).display().to_string();
        return Err(CacheCommandError::Exists { path }.into());
    }
    home.data.prepare()?;
    bytes_now(CacheSetting::Bytes(bytes), home, false)?;
    let directory = context.disks.directory_apart(home.data.cache()).await?;
    let thread = ThreadCache::default();
    match thread.open(&directory, &context.env, CacheSize::Exactly(bytes)).await {
        Ok(_) => Ok(thread.close(&directory).await?),
        Err(CacheError::Disk(error)) => Err(in_use(home, error).await),
        Err(error) => Err(error.into()),
    }
}

async fn destroy(context: &ShardContext, home: &Home) -> Result<(), NodeError> {
    if found(context, home).await?.is_none() {
        return Err(none_in(home));
    }
    let directory = context.disks.directory_apart(home.data.cache()).await?;
    let lock = match directory.lock(LOCK_FILE).await {
        Ok(lock) => lock,
        Err(error) => return Err(in_use(home, error).await),
    };
    directory.remove(BLOCKS_FILE).await?;
    lock.release().await;
    Ok(())
}

impl Node {
    /// What is known of the cache of a data directory.
    ///
    /// # Errors
    /// [`CacheCommandError::NoFile`] if there is neither a file nor a process, or that the file cannot be read.
    #[inline(never)]
    pub fn known_cache<'a>(
        &'a self,
        home: Home,
    ) -> LocalBoxFuture<'a, Result<KnownCache, NodeError>> {
        Box::pin(async move {
            self.run(0, |context: Rc<ShardContext>| async move { known(&context, &home).await })
                .await?
        })
    }

    /// Gives the cache of the process that has it another size, at once.
    ///
    /// # Errors
    /// [`CacheCommandError::NoProcess`], or the error of the process.
    #[inline(never)]
    pub fn resize_cache<'a>(
        &'a self,
        home: Home,
        size: CacheSetting,
    ) -> LocalBoxFuture<'a, Result<(ProcessId, CacheResized), NodeError>> {
        Box::pin(
            async move { self.run(0, move |_| async move { resize(&home, size).await }).await? },
        )
    }

    /// Makes the file of a cache before the first start of a process.
    ///
    /// # Errors
    /// [`CacheCommandError::Exists`], [`CacheCommandError::NoRoom`], or the error of the disk.
    #[inline(never)]
    pub fn create_cache<'a>(
        &'a self,
        home: Home,
        bytes: u64,
    ) -> LocalBoxFuture<'a, Result<CacheFileReport, NodeError>> {
        Box::pin(async move {
            self.run(0, move |context: Rc<ShardContext>| async move {
                create(&context, &home, bytes).await?;
                file(&context, &home).await.ok_or_else(|| none_in(&home))
            })
            .await?
        })
    }

    /// Removes the file of the cache.
    ///
    /// # Errors
    /// [`CacheCommandError::NoFile`], [`CacheCommandError::InUse`], or the error of the disk.
    #[inline(never)]
    pub fn destroy_cache<'a>(&'a self, home: Home) -> LocalBoxFuture<'a, Result<(), NodeError>> {
        Box::pin(async move {
            self.run(0, |context: Rc<ShardContext>| async move {
                let destroyed = tokio::time::timeout(LOOK_TIME_MAX, destroy(&context, &home));
                destroyed.await.unwrap_or_else(|_| Err(hangs(&home)))
            })
            .await?
        })
    }
}
