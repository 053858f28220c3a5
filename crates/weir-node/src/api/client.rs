//! The API as the command line uses it: over the unix socket of a process in the same data directory.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::net::UnixStream;
use tokio::time::Instant;
use weir_device::{ErrorKind, VolumeId};
use weir_store::Store;

use crate::api::types::{ErrorBody, Limits, NodeStatus, Problem, Progress};
use crate::error::{NodeError, ProcessId, SILENT};

/// Header with the location of the store that is meant ([`weir_store::Store::location`]).
pub(crate) const STORE_HEADER: &str = "weir-store";

/// Header with the identity of the volume that is meant, 32 hex digits.
pub(crate) const VOLUME_HEADER: &str = "weir-volume";

/// Longest answer in bytes; a status has about 1 KiB per volume.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long a process may stay silent; while it works it sends progress far more often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process may take to say how it is, before it counts as stopped or hung.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long work goes on before the process is asked what is wrong, and how often from then on.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(5);

/// A connection to a process that serves volumes.
#[derive(Debug)]
pub struct Client {
    place: String,
    process: ProcessId,
    sender: SendRequest<Full<Bytes>>,
    /// Location of the store and identity of the volume that requests are about, once that is known.
    meant: Option<(String, Option<VolumeId>)>,
}

impl Client {
    /// Connects to the process that listens at `path`; `None` if none does.
    ///
    /// # Errors
    /// When it is not known whether a process listens there, as without the permission to connect.
    pub async fn connect(path: &Path) -> Result<Option<Self>, NodeError> {
        let place = path.display().to_string();
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
            Err(source) => return Err(NodeError::io("connecting to", place, source)),
        };
        let process = ProcessId(stream.peer_cred().ok().and_then(|peer| peer.pid()));
        let failed = |reason: &dyn std::fmt::Display| NodeError::NoAnswer {
            place: place.clone(),
            process,
            reason: reason.to_string(),
        };
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(|error| failed(&error))?;
        // The task ends with the sender. Whoever waits for an answer gets its error.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Some(Self { place, process, sender, meant: None }))
    }

    /// Id of the process at the other end.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// From here on every request says that it is about this volume of this store, and is refused by a process that
    /// has another one of its name.
    pub(crate) fn mean(&mut self, store: &Store, volume: VolumeId) {
        self.mean_at(store.location(), volume);
    }

    /// The same by the location that the process gave for its store.
    pub(crate) fn mean_at(&mut self, location: String, volume: VolumeId) {
        self.meant = Some((location, Some(volume)));
    }

    /// From here on every request says that it is about this store.
    pub(crate) fn mean_store(&mut self, store: &Store) {
        self.meant = Some((store.location(), None));
    }

    pub(crate) fn no_answer(&self, reason: &dyn std::fmt::Display) -> NodeError {
        let (place, process) = (self.place.clone(), self.process);
        NodeError::NoAnswer { place, process, reason: reason.to_string() }
    }

    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, NodeError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "weir")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some((store, volume)) = &self.meant {
            request = request.header(STORE_HEADER, store);
            if let Some(volume) = volume {
                request = request.header(VOLUME_HEADER, volume.to_string());
            }
        }
        let request = request.body(Full::new(body)).map_err(|error| self.no_answer(&error))?;
        let sent = self.sender.send_request(request);
        let response = match tokio::time::timeout(SILENCE_TIMEOUT, sent).await {
            Err(_) => return Err(self.no_answer(&SILENT)),
            Ok(Err(error)) => return Err(self.no_answer(&error)),
            Ok(Ok(response)) => response,
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = self.read(response).await?;
        let problem = serde_json::from_slice::<ErrorBody>(&bytes).map(|body| body.error);
        let unknown = |_| Problem {
            kind: format!("{:?}", ErrorKind::Unavailable),
            message: format!("it answered {status}"),
            help: None,
        };
        Err(remote(problem.unwrap_or_else(unknown)))
    }

    pub(crate) async fn read(&self, response: Response<Incoming>) -> Result<Bytes, NodeError> {
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        match tokio::time::timeout(SILENCE_TIMEOUT, body).await {
            Err(_) => Err(self.no_answer(&SILENT)),
            Ok(Err(error)) => Err(self.no_answer(&error)),
            Ok(Ok(body)) => Ok(body.to_bytes()),
        }
    }

    /// Gets the value at `path`.
    ///
    /// # Errors
    /// The error of the process, or that it did not answer.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, NodeError> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        let bytes = self.read(response).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.no_answer(&error))
    }

    /// Puts `value` at `path`; returns the value that the process has then.
    ///
    /// # Errors
    /// The error of the process, or that it did not answer.
    pub async fn put<T: Serialize + DeserializeOwned>(
        &mut self,
        path: &str,
        value: &T,
    ) -> Result<T, NodeError> {
        let body = serde_json::to_vec(value).map_err(|error| self.no_answer(&error))?;
        let response = self.send(Method::PUT, path, body.into()).await?;
        let bytes = self.read(response).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.no_answer(&error))
    }

    /// Gives the process these limits; returns those that it has then.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn set_limits(&mut self, limits: &Limits) -> Result<Limits, NodeError> {
        let mut body = serde_json::to_value(limits).map_err(|error| self.no_answer(&error))?;
        if let (false, Some(fields)) = (limits.drain, body.as_object_mut()) {
            // A process of an older program does not know it, and refuses what it does not know.
            fields.remove("drain");
        }
        let set = self.put("/v1/limits", &body).await?;
        serde_json::from_value(set).map_err(|error| self.no_answer(&error))
    }

    /// The status of the process.
    ///
    /// # Errors
    /// That it does not answer.
    pub async fn status(&mut self) -> Result<NodeStatus, NodeError> {
        match tokio::time::timeout(STATUS_TIMEOUT, self.get("/v1/node")).await {
            Ok(answer) => answer,
            Err(_) => Err(self.no_answer(&SILENT)),
        }
    }

    /// What is wrong with the volume that requests are about, as the process says on a connection of its own.
    async fn trouble(&self) -> Option<String> {
        let (_, volume) = self.meant.as_ref()?;
        let mut other = Self::connect(Path::new(&self.place)).await.ok()??;
        let status = other.status().await.ok()?;
        let volume = volume.as_ref()?.to_string();
        let of_it = status.volumes.into_iter().find(|served| served.id == volume)?;
        (!of_it.reasons.is_empty()).then(|| of_it.reasons.join("; "))
    }

    /// Reads the lines of work that takes its time, to its report. Work that waits has no end of its own, so what is
    /// wrong with the volume meanwhile is logged, once.
    pub(crate) async fn follow<R: DeserializeOwned>(
        &self,
        response: Response<Incoming>,
        on_progress: &dyn Fn(u64, u64),
    ) -> Result<R, NodeError> {
        let mut body = response.into_body();
        let mut received = BytesMut::new();
        let mut look = Instant::now() + TROUBLE_INTERVAL;
        let mut is_said = false;
        loop {
            while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                let line = received.split_to(end + 1);
                match serde_json::from_slice::<Progress<Option<Value>>>(&line) {
                    Ok(Progress::Running { done, total }) => {
                        on_progress(done, total);
                        if !is_said && Instant::now() >= look {
                            if let Some(trouble) = self.trouble().await {
                                tracing::warn!(process = %self.process, "this may wait: {trouble}");
                                is_said = true;
                            }
                            look = Instant::now() + TROUBLE_INTERVAL;
                        }
                    }
                    Ok(Progress::Done { report }) => {
                        // A process of an older program says nothing of some verbs.
                        let report = report.unwrap_or_else(|| Value::Object(Map::new()));
                        let report = serde_json::from_value(report);
                        return report.map_err(|error| self.no_answer(&error));
                    }
                    Ok(Progress::Failed(problem)) => return Err(remote(problem)),
                    Err(error) => return Err(self.no_answer(&error)),
                }
            }
            if received.len() > ANSWER_BYTES_MAX {
                return Err(self.no_answer(&"its answer has no end"));
            }
            match tokio::time::timeout(SILENCE_TIMEOUT, body.frame()).await {
                Err(_) => return Err(self.no_answer(&SILENT)),
                Ok(None) => return Err(self.no_answer(&"it closed the connection")),
                Ok(Some(Err(error))) => return Err(self.no_answer(&error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        received.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn remote(problem: Problem) -> NodeError {
    let Problem { kind, message, help } = problem;
    NodeError::Remote { kind: parse_kind(&kind), message, help }
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
