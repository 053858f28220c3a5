//! One volume being served: opened, offered over NBD and to verbs, and closed in order.

use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::oneshot;
use weir_device::{Device, IoHeader, MemoryDevice, Operation, SourceId, VolumeId};
use weir_frontend::nbd::{
    ConnectionOptions, Export, Exports, ListenerOptions, NbdError, Server, serve_tcp, serve_unix,
};
use weir_log::catalog::{self, VolumeName};
use weir_log::{Closed, LogError, OpenReport, VolumeOptions};
use weir_store::{Access, Store};

use crate::control::{self, FlushScope, Status};
use crate::endpoint::Endpoint;
use crate::error::NodeError;
use crate::node::Node;
use crate::shard::ShardContext;
use crate::sockets;
use crate::volumes::{self, Consent, Home};

/// Only the owner talks to a serving process.
const CONTROL_MODE: u32 = 0o600;

/// Where a volume is offered over NBD.
#[derive(Clone, Debug)]
pub enum NbdAddress {
    /// The unix socket of that name in the data directory.
    Default,
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp {
        /// `host:port`.
        address: String,
        /// Take an address that other machines reach.
        insecure: bool,
    },
}

/// What keeps the bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// A log volume.
    Log,
    /// Memory of this process.
    Memory,
}

/// What is to be served, and how.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where volumes live.
    pub home: Home,
    /// Name of the volume.
    pub name: VolumeName,
    /// Its size in bytes: creates it where it is missing.
    pub size: Option<u64>,
    /// Where it is offered.
    pub nbd: NbdAddress,
    /// Refuse writes of clients.
    pub read_only: bool,
    /// What the opening may give up.
    pub consent: Consent,
    /// Settings of the log volume.
    pub options: VolumeOptions,
    /// What keeps the bytes.
    pub endpoint: EndpointKind,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct ServedInfo {
    /// Name of the volume.
    pub name: VolumeName,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it was created just now.
    pub created: bool,
    /// Where its bytes go, for people.
    pub place: String,
    /// Where clients find it.
    pub uri: String,
    /// What recovery did.
    pub report: OpenReport,
}

/// How a volume that was served ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything is in the store.
    Clean,
    /// The store did not take everything in time; the journal keeps the rest for the next start here.
    LocalOnly,
}

/// A volume that is being served. Dropping it stops it, unattended.
#[derive(Debug)]
pub struct Served {
    info: ServedInfo,
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<Result<Stopped, NodeError>>,
}

impl Served {
    /// What is served where.
    #[must_use]
    pub fn info(&self) -> &ServedInfo {
        &self.info
    }

    /// Finishes what clients have in flight, flushes, and closes the volume.
    ///
    /// # Errors
    /// When the volume could not be flushed or closed.
    pub async fn stop(self) -> Result<Stopped, NodeError> {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.ended.await.map_err(|_| NodeError::ShuttingDown)?
    }
}

impl Node {
    /// Opens a volume and serves it; returns once clients can connect.
    ///
    /// # Errors
    /// When the volume cannot be found, created or opened, or the address cannot be listened on.
    pub async fn serve(&self, options: ServeOptions) -> Result<Served, NodeError> {
        let (ready, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let ended = self.submit(0, |context| serve(context, options, ready, stopped))?;
        match started.await {
            Ok(info) => Ok(Served { info, stop, ended }),
            // It ended before it was ready, and says why.
            Err(_) => match ended.await {
                Ok(Err(error)) => Err(error),
                Ok(Ok(_)) | Err(_) => Err(NodeError::ShuttingDown),
            },
        }
    }
}

/// An opened volume.
struct Opened {
    endpoint: Endpoint,
    id: VolumeId,
    created: bool,
    place: String,
    report: OpenReport,
}

async fn serve(
    context: Rc<ShardContext>,
    options: ServeOptions,
    ready: oneshot::Sender<ServedInfo>,
    stopped: oneshot::Receiver<()>,
) -> Result<Stopped, NodeError> {
    options.home.data.prepare()?;
    let opened = match options.endpoint {
        EndpointKind::Log => open_log(&context, &options).await?,
        EndpointKind::Memory => open_memory(&context, &options)?,
    };
    let offered = offer(&opened, &options, ready, stopped).await;
    let closed = close(&opened.endpoint).await;
    offered.and(closed)
}

async fn open_log(context: &ShardContext, options: &ServeOptions) -> Result<Opened, NodeError> {
    let ServeOptions { home, name, .. } = options;
    let store = home.open_store(context, Access::Write).await?;
    let (id, created) = find_or_create(context, options, &store).await?;
    home.refuse_if_served(name.as_str(), id).await?;
    let settings = options.options.clone();
    let (volume, report) =
        home.open_volume(context, store, id, name, settings, options.consent).await?;
    let opened = Opened {
        endpoint: Endpoint::Log(Rc::clone(&volume)),
        id,
        created,
        place: format!("in {}", home.store_url),
        report,
    };
    match options.size {
        // Its real size is known only now: a volume may have been resized after its manifest was written.
        Some(wanted) if wanted != volume.size() => {
            let found = volume.size();
            close(&opened.endpoint).await?;
            Err(NodeError::OtherSize { name: name.to_string(), found, wanted })
        }
        _ => Ok(opened),
    }
}

/// The volume of that name, and whether it was created just now.
async fn find_or_create(
    context: &ShardContext,
    options: &ServeOptions,
    store: &Store,
) -> Result<(VolumeId, bool), NodeError> {
    match (catalog::find(store, &context.env, &options.name).await, options.size) {
        (Ok(id), _) => Ok((id, false)),
        (Err(LogError::NoSuchVolume { .. }), Some(size)) => {
            Ok((catalog::create(store, &context.env, &options.name, size).await?, true))
        }
        (Err(LogError::NoSuchVolume { name, store }), None) => {
            Err(NodeError::SizeNeeded { name, store })
        }
        (Err(error), _) => Err(error.into()),
    }
}

fn open_memory(context: &ShardContext, options: &ServeOptions) -> Result<Opened, NodeError> {
    let size = options.size.ok_or_else(|| NodeError::SizeNeeded {
        name: options.name.to_string(),
        store: "memory".to_owned(),
    })?;
    let mut id = [0; 16];
    context.env.random.fill(&mut id);
    Ok(Opened {
        endpoint: Endpoint::Memory(Rc::new(MemoryDevice::new(size))),
        id: VolumeId(id),
        created: true,
        place: "in memory, nothing survives".to_owned(),
        report: OpenReport::default(),
    })
}

/// Serves until it is told to stop, then finishes what is in flight.
async fn offer(
    opened: &Opened,
    options: &ServeOptions,
    ready: oneshot::Sender<ServedInfo>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), NodeError> {
    let exports = Rc::new(OneVolume {
        name: options.name.to_string(),
        id: opened.id,
        endpoint: Rc::new(opened.endpoint.clone()),
        read_only: options.read_only,
    });
    let (server, uri) = listen(options, exports).await?;
    let info = ServedInfo {
        name: options.name.clone(),
        id: opened.id,
        size: opened.endpoint.size(),
        created: opened.created,
        place: opened.place.clone(),
        uri,
        report: opened.report.clone(),
    };
    let verbs = Rc::new(Verbs {
        endpoint: opened.endpoint.clone(),
        info: info.clone(),
        read_only: options.read_only,
    });
    let control_path = options.home.data.control_socket(opened.id);
    let control = sockets::bind_unix(&control_path, CONTROL_MODE);
    let result = match control {
        Ok((listener, _bound)) => {
            let answering = tokio::task::spawn_local(control::serve(listener, verbs));
            // Nobody waits only if the process is going away; then it stops at once.
            if ready.send(info).is_ok() {
                // A dropped handle is a wish to stop as well.
                let _ = stopped.await;
            }
            answering.abort();
            Ok(())
        }
        Err(error) => Err(error),
    };
    server.stop().await;
    result
}

async fn listen(
    options: &ServeOptions,
    exports: Rc<OneVolume>,
) -> Result<(Server, String), NodeError> {
    let connection = ConnectionOptions::new(SourceId(1), "nbd");
    let listener = ListenerOptions::new(connection);
    let path = match &options.nbd {
        NbdAddress::Default => options.home.data.nbd_socket(options.name.as_str()),
        NbdAddress::Unix(path) => std::path::absolute(path)
            .map_err(|source| NodeError::io("listening on", path.display().to_string(), source))?,
        NbdAddress::Tcp { address, insecure } => {
            sockets::check_tcp(address, *insecure).await?;
            let server = serve_tcp(address, exports, listener).await.map_err(listen_error)?;
            let local = server.address().map_or_else(|| address.clone(), |a| a.to_string());
            let uri = format!("nbd://{local}/{}", options.name);
            return Ok((server, uri));
        }
    };
    sockets::clear_place(&path)?;
    let server = serve_unix(&path, exports, listener).await.map_err(listen_error)?;
    let uri = format!("nbd+unix:///{}?socket={}", options.name, uri_path(&path));
    Ok((server, uri))
}

fn listen_error(error: NbdError) -> NodeError {
    match error {
        NbdError::ListenUnix { path, source } => {
            NodeError::io("listening on", path.display().to_string(), source)
        }
        NbdError::ListenTcp { address, source } => NodeError::io("listening on", address, source),
        other => NodeError::Frontend(other),
    }
}

/// A path as the query of a URI takes it.
fn uri_path(path: &std::path::Path) -> String {
    let mut text = String::new();
    for &byte in std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()) {
        if byte.is_ascii_alphanumeric() || b"/._~-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

async fn close(endpoint: &Endpoint) -> Result<Stopped, NodeError> {
    match endpoint {
        Endpoint::Memory(_) => Ok(Stopped::Clean),
        Endpoint::Log(volume) => match volume.close().await? {
            Closed::Clean => Ok(Stopped::Clean),
            Closed::LocalOnly => Ok(Stopped::LocalOnly),
        },
    }
}

/// The exports of a process that serves one volume: it is the default as well.
#[derive(Debug)]
struct OneVolume {
    name: String,
    id: VolumeId,
    endpoint: Rc<Endpoint>,
    read_only: bool,
}

impl Exports for OneVolume {
    type Device = Endpoint;

    fn find(&self, name: &str) -> Option<Export<Endpoint>> {
        (name.is_empty() || name == self.name).then(|| Export {
            name: self.name.clone(),
            description: format!("Weir volume {}", self.id),
            device: Rc::clone(&self.endpoint),
            volume: self.id,
            read_only: self.read_only,
        })
    }

    fn list(&self) -> Vec<String> {
        vec![self.name.clone()]
    }
}

/// What verbs reach of a volume that is being served.
#[derive(Debug)]
struct Verbs {
    endpoint: Endpoint,
    info: ServedInfo,
    read_only: bool,
}

impl control::Handler for Verbs {
    fn status(&self) -> Status {
        let status = match &self.endpoint {
            Endpoint::Memory(_) => None,
            Endpoint::Log(volume) => Some(volume.status()),
        };
        Status {
            name: self.info.name.to_string(),
            id: self.info.id.to_string(),
            uri: self.info.uri.clone(),
            pending_bytes: status.as_ref().map_or(0, |status| status.batched_bytes),
            read_only: self.read_only,
            volume: status.and_then(|status| serde_json::to_value(status).ok()),
        }
    }

    async fn flush(&self, scope: FlushScope) -> Result<(), NodeError> {
        match &self.endpoint {
            Endpoint::Memory(device) => {
                device.flush(IoHeader::internal(Operation::Flush, 0, 0)).await?;
                Ok(())
            }
            Endpoint::Log(volume) => volumes::flush(volume, scope).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_in_uris() {
        let quoted = |path: &str| uri_path(std::path::Path::new(path));
        assert_eq!(quoted("/a-b/c_d~e.sock"), "/a-b/c_d~e.sock");
        assert_eq!(quoted("/a b?c=d&e%"), "/a%20b%3Fc%3Dd%26e%25");
    }
}
