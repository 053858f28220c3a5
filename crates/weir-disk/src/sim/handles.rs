//! Files, directories and locks of a simulated disk, as the process under test holds them.
//!
//! A handle belongs to the process that opened it. After a crash its operations never end, as if
//! the process that waits for them were gone; it should be dropped.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};
use weir_device::{AlignedBuf, SharedBuf};

use super::content::Content;
use super::state::{Action, FileId, OpenId, OperationId, State};
use crate::error::{DiskError, DiskOperation};
use crate::identity::FileIdentity;
use crate::modes::OpenMode;

/// The disk as one process sees it.
#[derive(Clone, Debug)]
pub(super) struct Mounted {
    pub(super) state: Rc<RefCell<State>>,
    pub(super) process: u64,
}

/// Marks an operation abandoned when its future goes away.
struct Waiting<'a> {
    mounted: &'a Mounted,
    id: OperationId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.mounted.state.borrow_mut().abandon(self.id);
    }
}

impl Mounted {
    fn is_alive(&self) -> bool {
        self.state.borrow().process == self.process
    }

    /// Runs an operation to its due time. Never returns after a crash.
    async fn operate(&self, action: impl FnOnce(&mut State) -> Action) -> Result<(), Errno> {
        if !self.is_alive() {
            return pending().await;
        }
        let (id, due) = {
            let mut state = self.state.borrow_mut();
            let action = action(&mut state);
            state.start(action)
        };
        let waiting = Waiting { mounted: self, id };
        // Without latency nothing is left to wait for, and no timer is needed.
        if due > Instant::now() {
            sleep_until(due).await;
        }
        if !self.is_alive() {
            return pending().await;
        }
        let result = self.state.borrow_mut().finish(id);
        drop(waiting);
        result
    }
}

/// One opening of a file; closes it when the last handle is gone.
#[derive(Debug)]
struct Opened {
    state: Rc<RefCell<State>>,
    id: OpenId,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.state.borrow_mut().close(self.id);
    }
}

/// A file of a simulated disk.
#[derive(Clone, Debug)]
pub(crate) struct SimFile {
    mounted: Mounted,
    file: FileId,
    opened: Rc<Opened>,
    path: Arc<str>,
    alignment: usize,
}

impl SimFile {
    pub(crate) fn alignment(&self) -> usize {
        self.alignment
    }

    pub(crate) fn display(&self) -> String {
        self.path.to_string()
    }

    fn error(&self, operation: DiskOperation, offset: Option<u64>, source: Errno) -> DiskError {
        DiskError::Io { operation, path: Arc::clone(&self.path), offset, source }
    }

    pub(crate) async fn read_at(
        &self,
        buf: AlignedBuf,
        offset: u64,
    ) -> (AlignedBuf, Result<(), DiskError>) {
        let (mut pieces, result) = self.read_pieces_at(vec![buf], offset).await;
        (pieces.remove(0), result)
    }

    pub(crate) async fn read_pieces_at(
        &self,
        mut pieces: Vec<AlignedBuf>,
        offset: u64,
    ) -> (Vec<AlignedBuf>, Result<(), DiskError>) {
        let waited = self.mounted.operate(|_| Action::Wait).await;
        let mut state = self.mounted.state.borrow_mut();
        let result = waited.and_then(|()| {
            let len = state.len(self.file)?;
            let wanted_bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            if offset + wanted_bytes > len {
                let moved_bytes = len.saturating_sub(offset);
                return Ok(Some((wanted_bytes, moved_bytes)));
            }
            let mut at = offset;
            for piece in &mut pieces {
                state.read(self.file, at, piece)?;
                at += piece.len() as u64;
            }
            Ok(None)
        });
        let result = match result {
            Ok(None) => Ok(()),
            Ok(Some((wanted_bytes, moved_bytes))) => Err(DiskError::Short {
                operation: DiskOperation::Read,
                path: Arc::clone(&self.path),
                offset,
                wanted_bytes,
                moved_bytes,
            }),
            Err(errno) => Err(self.error(DiskOperation::Read, Some(offset), errno)),
        };
        (pieces, result)
    }

    pub(crate) async fn write_at(
        &self,
        pieces: Vec<SharedBuf>,
        offset: u64,
    ) -> (Vec<SharedBuf>, Result<(), DiskError>) {
        let content = Content::of_pieces(pieces.clone());
        let result = self.write(content, offset).await;
        (pieces, result)
    }

    async fn write(&self, content: Content, offset: u64) -> Result<(), DiskError> {
        let (file, open) = (self.file, self.opened.id);
        let action = Action::Write { file, open, offset, content };
        let result = self.mounted.operate(|_| action).await;
        result.map_err(|errno| self.error(DiskOperation::Write, Some(offset), errno))
    }

    pub(crate) async fn sync(&self) -> Result<(), DiskError> {
        let file = self.file;
        let result = self.mounted.operate(|state| state.start_sync(file)).await;
        result.map_err(|errno| self.error(DiskOperation::Sync, None, errno))
    }

    pub(crate) async fn len(&self) -> Result<u64, DiskError> {
        let result = self.mounted.operate(|_| Action::Wait).await;
        let len = result.and_then(|()| self.mounted.state.borrow().len(self.file));
        len.map_err(|errno| self.error(DiskOperation::Length, None, errno))
    }

    pub(crate) async fn free_bytes(&self) -> Result<u64, DiskError> {
        if !self.mounted.is_alive() {
            return pending().await;
        }
        Ok(self.mounted.state.borrow().free_bytes())
    }

    pub(crate) async fn identity(&self) -> Result<Option<FileIdentity>, DiskError> {
        if !self.mounted.is_alive() {
            return pending().await;
        }
        let inode = self.mounted.state.borrow().inode(self.file);
        let inode = inode.map_err(|errno| self.error(DiskOperation::Identify, None, errno))?;
        Ok(Some(FileIdentity::of_handle(0, &inode.to_le_bytes())))
    }

    /// Whether this opening has the lock of the file now.
    pub(crate) async fn try_lock(&self) -> Result<bool, DiskError> {
        if !self.mounted.is_alive() {
            return pending().await;
        }
        Ok(self.mounted.state.borrow_mut().lock_file(self.file, self.opened.id))
    }

    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.write(Content::Zeroes(len), offset).await
    }

    pub(crate) async fn extend_zeroed(&self, from: u64, to: u64) -> Result<(), DiskError> {
        self.write(Content::Zeroes(to - from), from).await?;
        self.sync().await
    }
}

/// A directory of a simulated disk.
#[derive(Clone, Debug)]
pub(crate) struct SimDirectory {
    mounted: Mounted,
    /// Empty, or ends in a slash.
    prefix: Rc<str>,
}

impl SimDirectory {
    pub(super) fn root(mounted: Mounted) -> Self {
        Self { mounted, prefix: Rc::from("") }
    }

    pub(crate) fn display(&self) -> String {
        format!("sim:/{}", self.prefix.trim_end_matches('/'))
    }

    fn child(&self, name: &str) -> Rc<str> {
        Rc::from(format!("{}{name}", self.prefix))
    }

    fn error(operation: DiskOperation, path: &str, source: Errno) -> DiskError {
        let path = Arc::from(format!("sim:/{path}"));
        DiskError::Io { operation, path, offset: None, source }
    }

    pub(crate) async fn open(&self, name: &str, mode: OpenMode) -> Result<SimFile, DiskError> {
        let path = self.child(name);
        let (operation, action) = match mode {
            OpenMode::Existing => (DiskOperation::Open, Action::Wait),
            OpenMode::CreateNew => {
                (DiskOperation::Create, Action::CreateFile { path: Rc::clone(&path) })
            }
        };
        let result = self.mounted.operate(|_| action).await;
        let mut state = self.mounted.state.borrow_mut();
        let file = result.and_then(|()| state.lookup(&path));
        let file = file.map_err(|errno| Self::error(operation, &path, errno))?;
        let id = state.open();
        Ok(SimFile {
            mounted: self.mounted.clone(),
            file,
            opened: Rc::new(Opened { state: Rc::clone(&self.mounted.state), id }),
            path: Arc::from(format!("sim:/{path}")),
            alignment: state.options.alignment,
        })
    }

    pub(crate) async fn subdirectory(&self, name: &str) -> Result<SimDirectory, DiskError> {
        let path = self.child(name);
        let action = Action::CreateDirectory { path: Rc::clone(&path) };
        let result = self.mounted.operate(|_| action).await;
        result.map_err(|errno| Self::error(DiskOperation::Create, &path, errno))?;
        Ok(Self { mounted: self.mounted.clone(), prefix: Rc::from(format!("{path}/")) })
    }

    pub(crate) async fn list(&self) -> Result<Vec<String>, DiskError> {
        let result = self.mounted.operate(|_| Action::Wait).await;
        result.map_err(|errno| Self::error(DiskOperation::List, &self.prefix, errno))?;
        Ok(self.mounted.state.borrow().list(&self.prefix))
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.child(name);
        let action = Action::Remove { path: Rc::clone(&path) };
        let result = self.mounted.operate(|_| action).await;
        result.map_err(|errno| Self::error(DiskOperation::Remove, &path, errno))
    }

    pub(crate) async fn lock(&self, name: &str) -> Result<SimLock, DiskError> {
        let path = self.child(name);
        let error = |errno| Self::error(DiskOperation::Lock, &path, errno);
        let action = Action::CreateFile { path: Rc::clone(&path) };
        match self.mounted.operate(|_| action).await {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(error(errno)),
        }
        let locked = self.mounted.state.borrow_mut().lock(&path);
        match locked {
            Ok(id) => Ok(SimLock { state: Rc::clone(&self.mounted.state), path, id }),
            Err(_) => {
                let holder_pid = u32::try_from(self.mounted.process).ok();
                Err(DiskError::Locked { path: Arc::from(format!("sim:/{path}")), holder_pid })
            }
        }
    }
}

/// A lock on a simulated disk.
#[derive(Debug)]
pub(crate) struct SimLock {
    state: Rc<RefCell<State>>,
    path: Rc<str>,
    id: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.state.borrow_mut().unlock(&self.path, self.id);
    }
}
