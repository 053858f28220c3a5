//! A volume as a copy reaches it: at the export of the process that serves it, or at one of this process's own.

use url::Url;
use weir_device::VolumeId;
use weir_log::catalog::VolumeName;
use weir_node::api::types::{Shown, Snapshot, VolumeState};
use weir_node::size::counted;
use weir_node::verbs::list_snapshots::ListSnapshots;
use weir_node::{
    Allowed, ApiPlace, CacheSetting, Closing, Consent, EndpointKind, Home, Inherited, NbdAccess,
    NbdAddress, Node, NodeError, Service, ServiceOptions, Stages, Stopped, VolumeSet, VolumeSpec,
};

use super::qemu::READING_FAILED;
use crate::process::signals::{Signals, quit};
use crate::settings::Transfer;
use crate::terminal::failure::Failure;
use crate::terminal::output::say;

/// A volume and the store that it is in.
#[derive(Clone, Debug)]
pub(super) struct VolumeAt {
    pub(super) home: Home,
    pub(super) name: VolumeName,
    /// The snapshot that is meant, if it is one.
    pub(super) snapshot: Option<VolumeName>,
}

impl std::fmt::Display for VolumeAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot} in {}", self.name, self.home.store_url),
            None => write!(f, "{} in {}", self.name, self.home.store_url),
        }
    }
}

impl VolumeAt {
    /// What is known of it; `None` where there is none of that name.
    pub(super) async fn look(&self, node: &Node) -> Result<Option<Shown>, Failure> {
        match node.show_volume(self.home.clone(), self.name.clone()).await {
            Ok(shown) => Ok(Some(shown)),
            Err(
                NodeError::Log(weir_log::LogError::NoSuchVolume { .. }) | NodeError::NoStore { .. },
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a copy does to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Fill,
}

/// A volume that can be reached.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) at: VolumeAt,
    pub(super) id: VolumeId,
    pub(super) uri: String,
    pub(super) size: u64,
    /// Number of its opening, where it was opened for this copy: as long as that lasts nobody else writes.
    pub(super) opening: Option<u64>,
    /// Of a snapshot: the sequence of its last object.
    as_of: Option<u64>,
    service: Option<Service>,
}

impl Place {
    /// Finds the process that serves a volume, or serves it to this process alone.
    pub(super) async fn reach(
        node: &Node,
        setup: &Transfer,
        (at, shown): (&VolumeAt, &Shown),
        how: Use,
        signals: &mut Signals,
    ) -> Result<Self, Failure> {
        let id = volume_id(shown)?;
        match (&shown.serving, shown.process) {
            (Some(serving), _) => {
                let (uri, size) = (serving.uri.clone(), serving.size_bytes);
                let (at, opening, as_of) = (at.clone(), None, None);
                Ok(Self { at, id, uri, size, opening, as_of, service: None })
            }
            (None, Some(process)) => {
                let name = &at.name;
                Err(Failure::new(format!("process {process} serves {name} and does not answer"))
                    .with_help(format!("look at it; `kill {process}` ends it in order")))
            }
            (None, None) => {
                let options = options(setup, at, id, how);
                let service = tokio::select! {
                    biased;
                    number = signals.next() => quit(number),
                    service = node.serve(options) => service?,
                };
                let gone = || Failure::new(format!("volume {} was closed at once", at.name));
                let info = service.served().into_iter().next().ok_or_else(gone)?;
                let (uri, size, opening) = (info.uri, info.size, Some(info.report.epoch));
                let (at, as_of, service) = (at.clone(), None, Some(service));
                Ok(Self { at, id, uri, size, opening, as_of, service })
            }
        }
    }

    /// The same at the export of the snapshot that is meant, if one is.
    pub(super) async fn at_snapshot(mut self, node: &Node) -> Result<Self, Failure> {
        let Some(snapshot) = self.at.snapshot.clone() else { return Ok(self) };
        let (home, name) = (self.at.home.clone(), self.at.name.clone());
        let listed = node.call(home, Some(name.clone()), ListSnapshots {}, |_, _| {}).await?;
        let is_meant = |one: &&Snapshot| one.name == snapshot.as_str() && !one.deleting;
        let Some(found) = listed.0.iter().find(is_meant) else {
            return Err(Failure::new(format!("volume {name} has no snapshot {snapshot}"))
                .with_help(format!("weir snapshot list {name} names them")));
        };
        let wrong = |error| Failure::new(format!("{}: {error}", self.uri));
        let mut uri = Url::parse(&self.uri).map_err(wrong)?;
        uri.set_path(&format!("/{name}@{snapshot}"));
        (self.uri, self.size) = (uri.to_string(), found.size_bytes);
        self.as_of = Some(found.as_of);
        Ok(self)
    }

    /// What tells the bytes that are read here from those of other volumes, and of other snapshots of this one.
    pub(super) fn identity(&self) -> String {
        identity(self.id, (self.at.snapshot.as_ref(), self.as_of), self.size)
    }

    /// What to do where its bytes could not be read. Running the same command again is of no use: what is damaged stays
    /// so until it is given up.
    pub(super) fn with_way_to_read(&self, failure: Failure) -> Option<Failure> {
        let reading_failed = failure.message().contains(READING_FAILED);
        reading_failed.then(|| failure.with_help(unreadable_help(&self.at)))
    }

    /// Whether another process serves it.
    pub(super) fn is_served_elsewhere(&self) -> bool {
        self.service.is_none()
    }

    /// Lets go of it. What was opened for the copy is closed, with everything in the store.
    pub(super) async fn end(self, signals: &mut Signals) -> Result<(), Failure> {
        let Some(service) = self.service else { return Ok(()) };
        let stopped = tokio::select! {
            biased;
            number = signals.next() => quit(number),
            stopped = service.stop(Closing::ToStore) => stopped?,
        };
        match stopped {
            Stopped::Clean => Ok(()),
            Stopped::LocalOnly => Err(Failure::new(format!(
                "the store did not take all of {} in time; the journal keeps the rest",
                self.at.name
            ))
            .with_help("run the same command again, which goes on where this one stopped")),
        }
    }
}

fn unreadable_help(at: &VolumeAt) -> String {
    let (name, store) = (&at.name, &at.home.store_url);
    let way_on = match &at.snapshot {
        None => format!(
            "weir volume repair {name} --zero --store {store} saves what its journal has of that and makes zeroes of \
             the rest, and the same command works then"
        ),
        Some(_) => "what a snapshot needs of that cannot be repaired, so export or copy another one, or the volume"
            .to_owned(),
    };
    format!(
        "weir volume check {name} --store {store} says whether something is damaged or missing; {way_on}"
    )
}

fn identity(
    id: VolumeId,
    (snapshot, as_of): (Option<&VolumeName>, Option<u64>),
    size: u64,
) -> String {
    match (snapshot, as_of) {
        (Some(snapshot), Some(as_of)) => format!("{id}@{snapshot} {as_of} {size}"),
        _ => format!("{id} {size}"),
    }
}

/// The identity in what is shown.
pub(super) fn volume_id(shown: &Shown) -> Result<VolumeId, Failure> {
    VolumeId::parse(&shown.id).ok_or_else(|| {
        Failure::new(format!(
            "volume {} has the identity {:?}, which is none",
            shown.name, shown.id
        ))
    })
}

/// Whether it is only partly filled.
pub(super) fn is_incomplete(shown: &Shown) -> bool {
    shown.state == VolumeState::Incomplete
}

fn options(setup: &Transfer, at: &VolumeAt, id: VolumeId, how: Use) -> ServiceOptions {
    let spec = VolumeSpec {
        name: at.name.clone(),
        size: None,
        size_must_match: false,
        read_only: how == Use::Read,
        consent: Consent { incomplete: how == Use::Fill, ..Consent::default() },
        options: setup.volume_options(&at.name),
        endpoint: EndpointKind::Log,
        stages: Stages::default(),
        replica: None,
        allowed: Allowed::All,
    };
    ServiceOptions {
        home: at.home.clone(),
        template: Box::new(spec.clone()),
        volumes: VolumeSet::Listed(vec![spec]),
        nbd: vec![NbdAddress::Unix(at.home.data.copy_socket(id))],
        nbd_access: NbdAccess::default(),
        api: ApiPlace::Volume,
        api_tcp: None,
        tls: None,
        limits: setup.limits,
        cache: CacheSetting::Off,
        cache_wear: None,
        inherited: Inherited::default(),
        left: Vec::new(),
    }
}

/// A volume whose bytes are to be read, or its snapshot.
pub(super) async fn reach_to_read(
    node: &Node,
    setup: &Transfer,
    at: &VolumeAt,
    signals: &mut Signals,
) -> Result<Place, Failure> {
    let Some(shown) = at.look(node).await? else {
        return Err(Failure::new(format!("there is no volume {at}")));
    };
    if is_incomplete(&shown) {
        return Err(Failure::new(format!("volume {at} is incomplete")).with_help(
            "run the import or copy that fills it again; it goes on where it stopped, unless it reads a stream",
        ));
    }
    let clients = shown.serving.as_ref().map_or(0, |serving| serving.clients);
    if clients > 0 && at.snapshot.is_none() {
        let are = if clients == 1 { "is" } else { "are" };
        say!(
            "warning: {} {are} connected to {at}: what is written meanwhile may be there in part",
            counted(clients, "client")
        );
    }
    Place::reach(node, setup, (at, &shown), Use::Read, signals).await?.at_snapshot(node).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_another_source_than_the_next_one_and_than_its_volume() {
        let [monday, tuesday] = ["monday", "tuesday"].map(|name| VolumeName::new(name).unwrap());
        let id = VolumeId([1; 16]);
        let identities = [
            identity(id, (None, None), 512),
            identity(id, (None, None), 1024),
            identity(id, (Some(&monday), Some(3)), 512),
            identity(id, (Some(&monday), Some(4)), 512),
            identity(id, (Some(&tuesday), Some(3)), 512),
            identity(id, (Some(&tuesday), Some(3)), 1024),
            identity(VolumeId([2; 16]), (None, None), 512),
        ];
        for (index, one) in identities.iter().enumerate() {
            assert!(!identities[..index].contains(one), "{one}");
        }
    }
}
