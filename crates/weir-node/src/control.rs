//! The control socket of a volume that is being served: one JSON object per line, a request up, replies down.
//!
//! It is how `weir volume` reaches the process that holds a volume. Only the owner of the data directory can connect
//! (mode 0600 in a directory of mode 0700). What a client sends is bounded in length and in time, so that a mistaken
//! one costs a connection and nothing else.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use weir_device::ErrorKind;

use crate::error::NodeError;

/// Longest request or reply in bytes; the longest real one is a status with two paths in it.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Connections served at once: a person, a few scripts, and room.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may stay silent; while it works it sends progress far more often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often work in progress is reported.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// What can be asked of the process that serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Who serves what where.
    Status,
    /// Make writes survive: power loss, or with `remote` the loss of the local disk.
    Flush {
        /// To the store, not only to the local disk.
        remote: bool,
        /// Answer when it is done, not when it is begun.
        wait: bool,
    },
}

/// What acknowledged writes are to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// Power loss.
    LocalDisk,
    /// The loss of the local disk.
    Store,
}

impl FlushScope {
    fn of(remote: bool) -> Self {
        if remote { Self::Store } else { Self::LocalDisk }
    }
}

/// What a process says of the volume it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the volume.
    pub name: String,
    /// Its identity, as 32 hex digits.
    pub id: String,
    /// Where it is served.
    pub uri: String,
    /// Bytes acknowledged that are not in the store yet.
    pub pending_bytes: u64,
    /// Whether writes are refused because it was started so.
    pub read_only: bool,
    /// What the volume says of itself; its fields are for people, and may change.
    pub volume: Option<serde_json::Value>,
}

/// A line from the serving process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The answer to [`Request::Status`].
    Status(Status),
    /// Still at work.
    Progress {
        /// Bytes acknowledged that are not in the store yet.
        pending_bytes: u64,
    },
    /// Done.
    Done,
    /// Not done.
    Error {
        /// An [`ErrorKind`] by name.
        kind: String,
        /// What happened.
        message: String,
    },
}

/// What the serving process does with requests.
pub(crate) trait Handler: 'static {
    /// Answers [`Request::Status`].
    fn status(&self) -> Status;
    /// Answers [`Request::Flush`].
    fn flush(&self, scope: FlushScope) -> impl Future<Output = Result<(), NodeError>>;
}

/// Serves connections until it is dropped.
pub(crate) async fn serve(listener: UnixListener, handler: Rc<impl Handler>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let place = place.expect("nobody closes this semaphore");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a control connection");
                tokio::time::sleep(PROGRESS_INTERVAL).await;
                continue;
            }
        };
        let handler = Rc::clone(&handler);
        tokio::task::spawn_local(async move {
            let _place = place;
            if let Err(error) = answer(stream, handler).await {
                tracing::debug!(%error, "a control connection ended early");
            }
        });
    }
}

async fn answer(stream: UnixStream, handler: Rc<impl Handler>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(LINE_BYTES_MAX));
    tokio::time::timeout(REQUEST_TIMEOUT, reader.read_line(&mut line)).await??;
    let request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("the request is not understood: {error}");
            return send(&mut writer, &error_reply(ErrorKind::Invalid, message)).await;
        }
    };
    match request {
        Request::Status => send(&mut writer, &Reply::Status(handler.status())).await,
        Request::Flush { remote, wait: false } => {
            let scope = FlushScope::of(remote);
            tokio::task::spawn_local(async move {
                if let Err(error) = handler.flush(scope).await {
                    tracing::error!(%error, ?scope, "a flush that nobody waits for failed");
                }
            });
            send(&mut writer, &Reply::Done).await
        }
        Request::Flush { remote, wait: true } => {
            let scope = FlushScope::of(remote);
            let mut flush = std::pin::pin!(handler.flush(scope));
            let result = loop {
                tokio::select! {
                    biased;
                    result = &mut flush => break result,
                    () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                        let pending_bytes = handler.status().pending_bytes;
                        send(&mut writer, &Reply::Progress { pending_bytes }).await?;
                    }
                }
            };
            let reply = match result {
                Ok(()) => Reply::Done,
                Err(error) => error_reply(error.kind(), error.to_string()),
            };
            send(&mut writer, &reply).await
        }
    }
}

fn error_reply(kind: ErrorKind, message: String) -> Reply {
    Reply::Error { kind: format!("{kind:?}"), message }
}

async fn send(writer: &mut OwnedWriteHalf, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    tokio::time::timeout(REQUEST_TIMEOUT, writer.write_all(&line)).await?
}

/// A process of this machine, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ProcessId(pub Option<i32>);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "{id}"),
            None => f.write_str("(unknown)"),
        }
    }
}

/// A connection to the process that serves a volume.
#[derive(Debug)]
pub struct Client {
    name: String,
    process: ProcessId,
    reader: BufReader<tokio::io::Take<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl Client {
    /// Connects to whoever serves volume `name` at `path`; `None` if nobody does.
    ///
    /// # Errors
    /// When it cannot be told, for want of permission for example.
    pub async fn connect(path: &Path, name: &str) -> Result<Option<Self>, NodeError> {
        let stream = match UnixStream::connect(path).await {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::NotADirectory
                        // Too long for a socket: nobody can listen there.
                        | io::ErrorKind::InvalidInput
                ) =>
            {
                return Ok(None);
            }
            Err(source) => {
                return Err(NodeError::io("connecting to", path.display().to_string(), source));
            }
        };
        let process = ProcessId(stream.peer_cred().ok().and_then(|peer| peer.pid()));
        let (reader, writer) = stream.into_split();
        let reader = BufReader::new(reader.take(LINE_BYTES_MAX));
        Ok(Some(Self { name: name.to_owned(), process, reader, writer }))
    }

    /// Id of the process at the other end.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Asks who serves what where.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn status(self) -> Result<Status, NodeError> {
        let name = self.name.clone();
        let process = self.process();
        match self.ask(Request::Status, |_| {}).await? {
            Reply::Status(status) => Ok(status),
            other => {
                Err(NodeError::NoAnswer { name, process, reason: format!("it said {other:?}") })
            }
        }
    }

    /// Asks for a flush, and with `wait` waits for its end; `on_progress` hears of the bytes still to go.
    ///
    /// # Errors
    /// What the process answered, or that it did not.
    pub async fn flush(
        self,
        scope: FlushScope,
        wait: bool,
        on_progress: impl FnMut(u64),
    ) -> Result<(), NodeError> {
        let remote = scope == FlushScope::Store;
        self.ask(Request::Flush { remote, wait }, on_progress).await.map(|_| ())
    }

    async fn ask(
        mut self,
        request: Request,
        mut on_progress: impl FnMut(u64),
    ) -> Result<Reply, NodeError> {
        send(&mut self.writer, &request).await.map_err(|error| self.no_answer(&error))?;
        loop {
            let mut line = String::new();
            self.reader.get_mut().set_limit(LINE_BYTES_MAX);
            let read =
                tokio::time::timeout(SILENCE_TIMEOUT, self.reader.read_line(&mut line)).await;
            match read {
                Err(_) => return Err(self.no_answer(&"it is silent")),
                Ok(Err(error)) => return Err(self.no_answer(&error)),
                Ok(Ok(0)) => return Err(self.no_answer(&"it closed the connection")),
                Ok(Ok(_)) => {}
            }
            match serde_json::from_str(&line) {
                Ok(Reply::Progress { pending_bytes }) => on_progress(pending_bytes),
                Ok(Reply::Error { kind, message }) => {
                    return Err(NodeError::Remote { kind: parse_kind(&kind), message });
                }
                Ok(reply) => return Ok(reply),
                Err(error) => return Err(self.no_answer(&error)),
            }
        }
    }

    fn no_answer(&self, reason: &impl fmt::Display) -> NodeError {
        let (name, process) = (self.name.clone(), self.process());
        NodeError::NoAnswer { name, process, reason: reason.to_string() }
    }
}

/// An [`ErrorKind`] by its name; an unknown one comes from a newer Weir, and is no defect of this one.
fn parse_kind(name: &str) -> ErrorKind {
    const KINDS: [ErrorKind; 13] = [
        ErrorKind::Retry,
        ErrorKind::Busy,
        ErrorKind::Invalid,
        ErrorKind::Fenced,
        ErrorKind::Corrupt,
        ErrorKind::Poisoned,
        ErrorKind::NoSpace,
        ErrorKind::ReadOnly,
        ErrorKind::NotFound,
        ErrorKind::Exists,
        ErrorKind::Unavailable,
        ErrorKind::Unsupported,
        ErrorKind::Bug,
    ];
    let named = KINDS.into_iter().find(|kind| format!("{kind:?}") == name);
    named.unwrap_or(ErrorKind::Unavailable)
}

#[cfg(test)]
mod tests;
