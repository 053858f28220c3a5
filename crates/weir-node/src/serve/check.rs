//! What can be said of settings before anything is opened.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weir_device::with_causes;
use weir_net::tls::Tls;
use weir_store::{Store, StoreOptions};

use crate::api::server::TcpApi;
use crate::error::NodeError;
use crate::home::known_stores;
use crate::serve::nbd_place::NbdAddress;
use crate::serve::service::ServiceOptions;
use crate::serve::sockets;
use crate::serve::spec::{Allowed, EndpointKind, VolumeSet, VolumeSpec};
use crate::status::certificates;
use crate::volumes::replicate::TARGET_VARIABLES;

impl ServiceOptions {
    /// Checks all that can be checked without opening or creating anything.
    ///
    /// # Errors
    /// The error that serving would end with.
    pub fn check(&self) -> Result<(), NodeError> {
        Store::check(&self.home.store_url, &self.home.store_options)?;
        known_stores::check_not_gone(&self.home)?;
        crate::home::limits::rates(&self.limits)?;
        sockets::check_count(self.nbd.len())?;
        for address in &self.nbd {
            match address {
                NbdAddress::Unix(path) => sockets::check_length(path)?,
                NbdAddress::Tcp { address, insecure } => {
                    let resolved = sockets::resolve_now(address)?;
                    sockets::check_loopback(address, &resolved, self.may_be_reached(*insecure))?;
                }
            }
        }
        self.check_certificates()?;
        self.check_elsewhere()?;
        sockets::check_length(&self.home.data.api_socket())?;
        self.api_tcp.as_ref().map_or(Ok(()), TcpApi::check)
    }

    /// A certificate for a client will do where this process is only that, of remote volumes.
    pub(super) fn check_certificates(&self) -> Result<(), NodeError> {
        if self.listens_on_tcp() || self.api_tcp.is_some() || !self.has_remote() {
            self.tls.as_ref().map_or(Ok(()), Tls::check_serves)?;
        }
        Ok(())
    }

    fn has_remote(&self) -> bool {
        self.specs().any(|spec| matches!(spec.endpoint, EndpointKind::Remote(_)))
    }

    /// Whether NBD clients come over TCP.
    fn listens_on_tcp(&self) -> bool {
        self.nbd.iter().any(|address| matches!(address, NbdAddress::Tcp { .. }))
    }

    /// Whether other machines may reach an address: nobody gets anything there without TLS, or it is one for those who
    /// do not speak it.
    fn may_be_reached(&self, insecure: bool) -> bool {
        self.tls.is_some() || insecure
    }

    /// What is no error, and that whoever serves with these settings has to know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.tls.as_ref().map(certificates::warnings).unwrap_or_default();
        let listed = || self.specs().filter(|spec| matches!(spec.allowed, Allowed::Named(_)));
        if self.tls.is_none() && self.listens_on_tcp() && listed().next().is_some() {
            let names: Vec<_> = listed().map(|spec| spec.name.as_str()).collect();
            let what = match &self.volumes {
                VolumeSet::Listed(_) => {
                    format!("volumes with a list of names ({})", names.join(", "))
                }
                VolumeSet::All(_) => "the volumes".to_owned(),
            };
            warnings.push(format!(
                "nobody gets to {what} over TCP: `allow` names those of certificates, and without \
                 tls.certificates nobody shows one"
            ));
        }
        warnings.extend(self.specs().filter_map(|spec| self.replica_warning(spec)));
        warnings
    }

    /// Why no replica can be kept of a volume that is to have one. The volume is served all the same.
    fn replica_warning(&self, spec: &VolumeSpec) -> Option<String> {
        let url = &spec.replica.as_ref()?.store_url;
        let why = if *url == self.home.store_url {
            "it is the store of the volume itself".to_owned()
        } else {
            let options = StoreOptions::from_environment_for(TARGET_VARIABLES);
            with_causes(&options.and_then(|options| Store::check(url, &options)).err()?)
        };
        let name = &spec.name;
        Some(format!(
            "no replica is kept of volume {name}, as replicate_to = \"{url}\" will not do: {why}"
        ))
    }

    fn specs(&self) -> impl Iterator<Item = &VolumeSpec> {
        match &self.volumes {
            VolumeSet::Listed(specs) => specs.as_slice(),
            VolumeSet::All(template) => std::slice::from_ref(&**template),
        }
        .iter()
    }

    /// Checks volumes that are in no store, without opening them.
    fn check_elsewhere(&self) -> Result<(), NodeError> {
        let wrong = |place: String, message: String, help: &str| NodeError::Config {
            place,
            message,
            help: Some(help.to_owned()),
        };
        let mut files: BTreeMap<PathBuf, &VolumeSpec> = BTreeMap::new();
        for spec in self.specs() {
            match &spec.endpoint {
                EndpointKind::Remote(remote) => {
                    let secure = remote.url.security.with(self.tls.as_ref());
                    let place = || format!("volume {}", spec.name);
                    let help =
                        "name a directory with a client's certificate: weir pki issue makes one";
                    let refused = |why: &dyn std::fmt::Display| {
                        let message = format!("{}: {why}", remote.url);
                        wrong(place(), message, help)
                    };
                    if let Some((_, tls)) = secure.map_err(|error| refused(&error))? {
                        tls.check_connects().map_err(|error| refused(&error))?;
                    }
                }
                EndpointKind::File(file) => {
                    let path = file.path.canonicalize().unwrap_or_else(|_| file.path.clone());
                    let other = files.insert(path, spec);
                    if let Some(other) = other.filter(|other| !(other.read_only && spec.read_only))
                    {
                        let place = format!("volumes {} and {}", other.name, spec.name);
                        let message = format!("both are {}", file.path.display());
                        let help =
                            "two disks that write one file destroy what is in it: take one away";
                        return Err(wrong(place, message, help));
                    }
                }
                EndpointKind::Log | EndpointKind::Memory => {}
            }
        }
        Ok(())
    }
}
