//! The volume as the front end serves it: every error that it gives is kept, so that the client's side can tell which
//! one it was told of.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_device::{
    Address, Device, DeviceError, DeviceExt, DeviceInfo, ErrorKind, Event, IoHeader, Lease, Leases,
    Network, Operation, OperationKind, Reply, SourceId, VolumeId,
};
use weir_frontend::nbd::{
    ConnectionOptions, Export, ExportDirectory, ExportInfo, Exports, HandOff, Identity,
    ListenerOptions, NbdError, NotOffered, Server, error_code, hand_off_clients,
    serve as serve_nbd, serve_handed_off,
};
use weir_nbd::{Command, ErrorCode, Failure};
use weir_stack::Stack;

/// Name of the export.
pub(super) const EXPORT: &str = "simulated";

/// Errors that are kept.
const ERRORS_MAX: usize = 512;

/// An error, and what was asked for.
struct Given {
    kind: OperationKind,
    offset: u64,
    error: DeviceError,
}

/// The errors that a device gave, oldest first.
#[derive(Default)]
struct Errors(RefCell<VecDeque<Given>>);

impl Errors {
    fn add(&self, kind: OperationKind, offset: u64, error: DeviceError) {
        let mut given = self.0.borrow_mut();
        if given.len() == ERRORS_MAX {
            given.pop_front();
        }
        given.push_back(Given { kind, offset, error });
    }
}

/// The stack of the volume.
pub(super) struct Served {
    stack: Rc<Stack>,
    errors: Rc<Errors>,
    has_failed_change: Cell<bool>,
}

impl Served {
    pub(super) fn new(stack: Rc<Stack>) -> Rc<Self> {
        Rc::new(Self { stack, errors: Rc::default(), has_failed_change: Cell::new(false) })
    }

    /// Whether a change failed in this life, though no client may have heard of it: the journal may hold it, so that a
    /// recovery may still show it.
    pub(super) fn has_failed_change(&self) -> bool {
        self.has_failed_change.get()
    }

    /// The error that a client was told of.
    pub(super) fn error_behind(&self, command: &Command, failure: &Failure) -> Option<DeviceError> {
        let (kind, offset) = asked(command);
        let given = self.errors.0.borrow();
        let is_it = |given: &&Given| {
            // What ranges hold is asked for in blocks.
            let is_there = given.offset == offset || kind == OperationKind::Extents;
            let is_asked = given.kind == kind && is_there;
            let text = given.error.to_string();
            is_asked
                && error_code(given.error.kind(), command) == failure.code
                && (failure.message.is_empty() || text.starts_with(&failure.message))
        };
        given.iter().rev().find(is_it).map(|given| given.error.clone())
    }
}

/// The operation behind a command, and where.
fn asked(command: &Command) -> (OperationKind, u64) {
    match *command {
        Command::Read { offset, .. } | Command::Cache { offset, .. } => {
            (OperationKind::Read, offset)
        }
        Command::Write { offset, .. } => (OperationKind::Write, offset),
        Command::WriteZeroes { offset, .. } => (OperationKind::WriteZeroes, offset),
        Command::Trim { offset, .. } => (OperationKind::Discard, offset),
        Command::Flush => (OperationKind::Flush, 0),
        Command::BlockStatus { offset, .. } => (OperationKind::Extents, offset),
    }
}

/// Whether a request was refused because it goes past the end.
pub(super) fn is_beyond(command: &Command, size: u64, failure: &Failure) -> bool {
    let (offset, length, code) = match *command {
        Command::Write { offset, length, .. } => (offset, u64::from(length), ErrorCode::NoSpace),
        Command::WriteZeroes { offset, length, .. } => (offset, length, ErrorCode::NoSpace),
        Command::Read { offset, length, .. } => (offset, u64::from(length), ErrorCode::Invalid),
        _ => return false,
    };
    failure.code == code && offset + length > size
}

/// What a reply depends on; where that does not hold, it is kept as an error.
struct Checked {
    leases: Leases,
    kind: OperationKind,
    offset: u64,
    errors: Rc<Errors>,
}

impl Lease for Checked {
    fn check(&self) -> Result<(), DeviceError> {
        self.leases.check().inspect_err(|error| {
            self.errors.add(self.kind, self.offset, error.clone());
        })
    }
}

impl Device for Served {
    fn info(&self) -> DeviceInfo {
        self.stack.info()
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let kind = operation.kind();
        let is_change =
            !matches!(kind, OperationKind::Read | OperationKind::Flush | OperationKind::Extents);
        let offset = if kind == OperationKind::Flush { 0 } else { operation.span().0 };
        match self.stack.call(io, operation).await {
            Ok(reply) => {
                let errors = Rc::clone(&self.errors);
                let leases = Checked { leases: reply.leases, kind, offset, errors };
                Ok(Reply { leases: Leases::of(Rc::new(leases)), ..reply })
            }
            Err(error) => {
                if is_change && error.kind() != ErrorKind::Invalid {
                    self.has_failed_change.set(true);
                }
                self.errors.add(kind, offset, error.clone());
                Err(error)
            }
        }
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.stack.poll_event(cx)
    }
}

/// The volume as the only export.
struct OneExport(Rc<Served>);

impl Exports for OneExport {
    type Device = Served;

    fn find(&self, name: &str) -> Option<Export<Served>> {
        (name == EXPORT).then(|| Export {
            name: EXPORT.to_owned(),
            description: String::new(),
            device: Rc::clone(&self.0),
            volume: VolumeId([1; 16]),
            read_only: false,
            history: None,
        })
    }

    fn list(&self) -> Vec<String> {
        vec![EXPORT.to_owned()]
    }
}

fn options() -> ListenerOptions {
    ListenerOptions::new(ConnectionOptions::new(SourceId(1), "simulated"))
}

/// Serves it: whoever connects is served at once.
pub(super) async fn serve(
    network: &dyn Network,
    at: &Address,
    served: Rc<Served>,
) -> Result<Server, NbdError> {
    serve_nbd(network, at, Rc::new(OneExport(served)), options()).await
}

/// Serves those who are handed off to it.
pub(super) fn serve_others(served: Rc<Served>) -> (HandOff, Server) {
    serve_handed_off(Rc::new(OneExport(served)), options())
}

/// The volumes of a process as its listener sees them: one, which comes and goes.
#[derive(Default)]
pub(super) struct Directory(RefCell<Option<(Rc<Served>, HandOff)>>);

impl Directory {
    pub(super) fn add(&self, served: Rc<Served>, hand_off: HandOff) {
        self.0.replace(Some((served, hand_off)));
    }

    pub(super) fn remove(&self) {
        self.0.replace(None);
    }
}

impl ExportDirectory for Directory {
    async fn find(&self, name: &str, _: &Identity) -> Result<(ExportInfo, HandOff), NotOffered> {
        let known = self.0.borrow();
        let known = known.as_ref().filter(|_| name == EXPORT);
        let (served, hand_off) = known.ok_or(NotOffered::Unknown)?;
        let info = ExportInfo {
            name: EXPORT.to_owned(),
            description: String::new(),
            size: served.stack.size(),
            read_only: false,
            instance: None,
            volume: None,
            earlier: [].into(),
        };
        Ok((info, hand_off.clone()))
    }

    async fn list(&self, _: &Identity) -> Vec<String> {
        self.0.borrow().iter().map(|_| EXPORT.to_owned()).collect()
    }
}

/// Shakes hands with whoever connects, and hands them off.
pub(super) async fn listen(
    network: &dyn Network,
    at: &Address,
    directory: Rc<Directory>,
) -> std::io::Result<Server> {
    Ok(hand_off_clients(network.listen(at).await?, directory, options()))
}
