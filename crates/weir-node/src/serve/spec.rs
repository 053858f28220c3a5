//! What is to be served and how, and how a volume that was served is closed.

use std::sync::Arc;

use weir_device::mutant;
use weir_frontend::nbd::Identity;
use weir_log::VolumeOptions;
use weir_log::catalog::VolumeName;

use crate::config::{FileConfig, Remote, ReplicateTo};
use crate::home::Consent;
use crate::serve::stages::Stages;

/// What keeps the bytes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// A log volume.
    Log,
    /// Memory of this process.
    Memory,
    /// An export of another server.
    Remote(Remote),
    /// A file or a block device of this host.
    File(FileConfig),
}

/// A volume that is to be served, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Name of the volume.
    pub name: VolumeName,
    /// Its size in bytes, with which it is created if it is missing.
    pub size: Option<u64>,
    /// Whether another size is an error. Otherwise a volume that was resized since is served all the same.
    pub size_must_match: bool,
    /// Refuse writes of clients.
    pub read_only: bool,
    /// What the opening may give up.
    pub consent: Consent,
    /// Settings of the log volume.
    pub options: VolumeOptions,
    /// What keeps the bytes.
    pub endpoint: EndpointKind,
    /// The stages between its clients and that.
    pub stages: Stages,
    /// The replica that is kept of it while it is served.
    pub replica: Option<ReplicateTo>,
    /// Who may use it.
    pub allowed: Allowed,
}

/// Who may use a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Everybody who reaches it.
    #[default]
    All,
    /// Those with a certificate of one of these names, and users of this host who may open the socket's file.
    Named(Arc<[String]>),
}

impl Allowed {
    /// As a list says, where there is one.
    #[must_use]
    pub fn listed(names: Option<&Vec<String>>) -> Self {
        names.map_or(Self::All, |names| Self::Named(names.clone().into()))
    }

    /// Whether this client may.
    #[must_use]
    pub fn allows(&self, client: &Identity) -> bool {
        match (self, client) {
            // The permissions of the socket's file have decided.
            (Self::All, _) | (_, Identity::User(_)) => true,
            (Self::Named(names), Identity::Certificate(name)) => names.contains(name),
            (Self::Named(_), Identity::Anonymous) => false,
        }
    }
}

/// How a volume that was served ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything is in the store.
    Clean,
    /// The store did not take everything in time; the journal keeps the rest for the next start here.
    LocalOnly,
}

/// How a volume is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Everything goes to the store first, so that any node can open the volume.
    ToStore,
    /// What is not in the store stays in the journal: quick, for a process that comes back at once.
    Quick,
}

impl VolumeSpec {
    /// Whether the settings say the same of a volume in this line as in the other, whatever the settings of all volumes
    /// and the number of volumes make of it.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        self.size == other.size
            && self.read_only == other.read_only
            && self.endpoint == other.endpoint
            && self.replica == other.replica
    }

    /// Whether a volume that is served as `other` says is served as this one says, too.
    pub(crate) fn serves_like(&self, other: &Self) -> bool {
        self.read_only == other.read_only
            && self.endpoint == other.endpoint
            && self.replica == other.replica
            && self.stages == other.stages
            && self.is_opened_like(other)
    }

    /// The memory of a journal is no setting of its volume: it is a share, by how many there were when it was opened.
    fn is_opened_like(&self, other: &Self) -> bool {
        let mut options = other.options.clone();
        if !mutant("share_of_memory_is_a_setting") {
            options.journal.resident_bytes_max = self.options.journal.resident_bytes_max;
        }
        self.options == options
    }
}

/// Which volumes are served.
#[derive(Clone, Debug)]
pub enum VolumeSet {
    /// These, each as it says.
    Listed(Vec<VolumeSpec>),
    /// Every volume of the store, each served as this one says; the name in it is not used.
    All(Box<VolumeSpec>),
}

impl VolumeSet {
    /// Whether volumes of the store are among them.
    #[must_use]
    pub fn needs_store(&self) -> bool {
        match self {
            Self::All(_) => true,
            Self::Listed(specs) => specs.iter().any(|spec| spec.endpoint == EndpointKind::Log),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_lets_in_whom_it_names_and_users_of_this_host() {
        let alice = Identity::Certificate("alice".to_owned());
        let mallory = Identity::Certificate("mallory".to_owned());
        let clients = [alice, mallory, Identity::User(1000), Identity::Anonymous];
        let allowed = |allowed: &Allowed| clients.each_ref().map(|client| allowed.allows(client));
        assert_eq!(allowed(&Allowed::All), [true; 4]);
        let named = Allowed::listed(Some(&vec!["alice".to_owned()]));
        assert_eq!(allowed(&named), [true, false, true, false]);
        let nobody = Allowed::listed(Some(&Vec::new()));
        assert_eq!(allowed(&nobody), [false, false, true, false]);
    }

    #[test]
    fn a_share_of_memory_is_no_setting_of_a_volume() {
        let one = VolumeSpec {
            name: VolumeName::new("one").expect("a name"),
            size: None,
            size_must_match: false,
            read_only: false,
            consent: Consent::default(),
            options: VolumeOptions::default(),
            endpoint: EndpointKind::Log,
            stages: Stages::default(),
            replica: None,
            allowed: Allowed::All,
        };
        let mut other = one.clone();
        other.options.journal.resident_bytes_max /= 2;
        assert!(one.serves_like(&other), "there are more volumes by now");
        other.options.journal.segments_max += 1;
        assert!(!one.serves_like(&other));
    }
}
