//! Flags, variables, the file and defaults, put together in this order.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_log::VolumeOptions;
use weir_log::catalog::VolumeName;
use weir_net::tls::Tls;
use weir_node::api::types::Limits;
use weir_node::api::{TcpAccess, TcpApi};
use weir_node::config::{
    self, Config, FileConfig, Memory, RemoteConfig, VolumeConfig, VolumeSettings,
};
use weir_node::size::Size;
use weir_node::{
    Allowed, ApiPlace, Consent, DataDirectory, EndpointKind, Home, Inherited, KeyPlace,
    LeaseSettings, NbdAccess, NbdAddress, NodeConfig, NodeError, ServiceOptions, Stages, VolumeSet,
    VolumeSpec,
};
use weir_store::StoreOptions;

use crate::cli::global::{Global, LogFormat};
use crate::cli::serve::{Serve, SocketAccess, TlsAccess, mode};
use crate::cli::tuning::Tuning;
use crate::cli::up::{self, Up};
use crate::terminal::failure::Failure;

/// Variable that holds keys itself.
const KEY_VARIABLE: &str = "WEIR_KEY";

/// The file that `--config` names, or none.
pub(crate) fn file(global: &Global) -> Result<Config, Failure> {
    match &global.config {
        Some(path) => Config::read(path).map_err(|error| Failure::from(error).with_code(2)),
        None => Ok(Config::default()),
    }
}

/// Form of log lines.
pub(crate) fn log_format(global: &Global, file: &Config) -> LogFormat {
    let from_file = file.log_format.map(|format| match format {
        config::LogFormat::Text => LogFormat::Text,
        config::LogFormat::Json => LogFormat::Json,
    });
    global.log_format.or(from_file).unwrap_or(LogFormat::Text)
}

/// Where the data directory and the store are.
pub(crate) fn home(global: &Global, file: &Config) -> Result<Home, Failure> {
    let data = data_directory(global, file)?;
    let store_url = global.store.clone().or_else(|| file.store.clone());
    let store_url = store_url.unwrap_or_else(|| data.store_url());
    let keys = KeyPlace::keys_of(key_place(global, file)?);
    let encrypt = global.encrypt || file.encrypt == Some(true);
    Ok(Home { data, store_url, store_options: store_options(global, file)?, keys, encrypt })
}

/// Where the keys of encrypted volumes are: as a flag or its variable says, in a variable, as the file says.
pub(crate) fn key_place(global: &Global, file: &Config) -> Result<Option<KeyPlace>, Failure> {
    let place = |file: &Option<PathBuf>, command: &Option<String>| {
        let command = command.clone().map(KeyPlace::Command);
        file.clone().map(KeyPlace::File).or(command)
    };
    if let Some(place) = place(&global.key_file, &global.key_command) {
        return Ok(Some(place));
    }
    match std::env::var(KEY_VARIABLE) {
        Ok(text) => Ok(Some(KeyPlace::Variable { name: KEY_VARIABLE, text })),
        Err(std::env::VarError::NotPresent) => Ok(place(&file.key_file, &file.key_command)),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("{KEY_VARIABLE} is no text")))
        }
    }
}

/// How a store is reached, from flags, environment and file.
pub(crate) fn store_options(global: &Global, file: &Config) -> Result<StoreOptions, Failure> {
    let mut options = StoreOptions::from_environment()?;
    options.single_writer |= global.single_writer || file.single_writer == Some(true);
    Ok(options)
}

fn data_directory(global: &Global, file: &Config) -> Result<DataDirectory, Failure> {
    let path = match global.data_dir.as_ref().or(file.data_dir.as_ref()) {
        Some(path) => path.clone(),
        None => {
            let variable = |name| std::env::var_os(name).map(PathBuf::from);
            let root = rustix::process::geteuid().is_root();
            default_path(root, variable("XDG_DATA_HOME"), variable("HOME")).ok_or_else(|| {
                Failure::usage("there is no data directory: HOME and XDG_DATA_HOME are not set")
                    .with_help("name one with --data-dir")
            })?
        }
    };
    Ok(DataDirectory::at(&path)?)
}

fn default_path(root: bool, data_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/lib/weir"));
    }
    // A relative XDG_DATA_HOME is to be ignored, as its specification says.
    let data_home = data_home.filter(|path| path.is_absolute());
    let below_home = || home.filter(|path| path != Path::new("")).map(|p| p.join(".local/share"));
    data_home.or_else(below_home).map(|path| path.join("weir"))
}

/// How this node's leases are kept.
fn lease(global: &Global, file: &Config) -> LeaseSettings {
    let seconds = global.lease.or(file.lease).map(Duration::from_secs_f64);
    seconds.map_or_else(LeaseSettings::default, LeaseSettings::of_length)
}

/// The threads of a verb that works on one volume.
pub(crate) fn verb_node(global: &Global, file: &Config) -> NodeConfig {
    NodeConfig {
        shards: Some(1),
        engine: global.disk_engine.into(),
        cache_bytes: None,
        buffer_bytes: None,
        lease: lease(global, file),
    }
}

/// What verbs need that open a volume for a piece of work of their own.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) home: Home,
    pub(crate) limits: Limits,
    memory: Memory,
    file: Config,
}

impl Transfer {
    /// Settings of the log volume of that name.
    pub(crate) fn volume_options(&self, name: &VolumeName) -> VolumeOptions {
        let listed = self.file.volumes.iter().find(|volume| volume.name == name.as_str());
        let listed = listed.map(VolumeConfig::settings).unwrap_or_default();
        listed.or(self.file.defaults).options(self.memory, 1)
    }
}

/// The threads of a verb that may open a volume, and with what it opens it.
pub(crate) fn transfer(global: &Global, file: &Config) -> Result<(NodeConfig, Transfer), Failure> {
    let (tuning, home) = (Tuning::default(), home(global, file)?);
    let memory = memory(&tuning, file)?;
    let node = NodeConfig {
        cache_bytes: Some(memory.frames_bytes()),
        buffer_bytes: Some(memory.buffers_bytes()),
        ..verb_node(global, file)
    };
    let limits = limits(&tuning, file);
    Ok((node, Transfer { home, limits, memory, file: file.clone() }))
}

fn memory(tuning: &Tuning, file: &Config) -> Result<Memory, Failure> {
    match tuning.memory.or(file.memory) {
        Some(Size(bytes)) => Memory::new(bytes).map_err(Failure::usage),
        None => Ok(Memory::default()),
    }
}

fn limits(tuning: &Tuning, file: &Config) -> Limits {
    let bandwidth = tuning.upload_bandwidth.or(file.limits.upload_bandwidth);
    Limits {
        upload_bytes_per_second: bandwidth.map(|Size(bytes)| bytes),
        upload_requests_per_second: tuning.upload_requests.or(file.limits.upload_requests),
        drain: false,
    }
}

/// Settings that go together.
fn checked(settings: VolumeSettings) -> Result<VolumeSettings, Failure> {
    let refused = |(message, help): (String, String)| Failure::usage(message).with_help(help);
    settings.check().map(|()| settings).map_err(refused)
}

/// Logs what becomes of a setting that another one took the place of.
fn note_replaced(volume: Option<&VolumeName>, settings: VolumeSettings) {
    if let Some(note) = settings.batch_age_note() {
        let volume = volume.map(VolumeName::as_str);
        tracing::warn!(volume, "{note}");
    }
}

/// What clients of a volume with these settings may ask for, and what it may have of the cache.
fn stages(settings: VolumeSettings, trace: Option<PathBuf>) -> Result<Stages, Failure> {
    let limit = settings.limit().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Stages { limit, trace, cache_share: settings.cache_share })
}

/// Who may connect to a unix socket for NBD.
fn nbd_access(access: &SocketAccess, file: &Config) -> Result<NbdAccess, Failure> {
    let mode = match (access.nbd_socket_mode, &file.nbd.mode) {
        (Some(mode), _) => Some(mode),
        (None, Some(text)) => Some(mode(text).map_err(Failure::usage)?),
        (None, None) => None,
    };
    let name = access.nbd_socket_group.as_ref().or(file.nbd.group.as_ref());
    let unknown = |name: &String| Failure::usage(format!("there is no group {name:?}"));
    let group = name.map(|name| {
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let found = nix::unistd::Group::from_name(name).ok().flatten();
        found.map(|group| group.gid.as_raw()).ok_or_else(|| unknown(name))
    });
    Ok(NbdAccess { mode, group: group.transpose()? })
}

/// The certificates for TLS, if there are any.
fn tls(access: &TlsAccess, file: &Config) -> Result<Option<Tls>, Failure> {
    let directory = access.tls_certificates.as_ref().or(file.tls.certificates.as_ref());
    let Some(directory) = directory else {
        // Whoever asks for a version believes that TLS is spoken, and nothing would be under it.
        let asked = match (access.tls_min_version, file.tls.min_version) {
            (Some(_), _) => "--tls-min-version",
            (None, Some(_)) => "tls.min_version",
            (None, None) => return Ok(None),
        };
        let message = format!("{asked} is given, and there are no certificates to speak TLS with");
        let help =
            "name their directory with --tls-certificates, or as tls.certificates in the file";
        return Err(Failure::usage(message).with_help(help));
    };
    let min_version = access.tls_min_version.or(file.tls.min_version).unwrap_or_default();
    let loaded = Tls::load_with(directory, min_version);
    loaded.map(Some).map_err(|error| NodeError::from(error).into())
}

/// Who may use a volume that has this list of its own.
fn allowed(access: &TlsAccess, file: &Config, own: Option<&Vec<String>>) -> Allowed {
    let given = (!access.allow.is_empty()).then_some(&access.allow);
    Allowed::listed(given.or(own).or(file.tls.allow.as_ref()))
}

/// What keeps the bytes of a volume with these settings.
fn endpoint(
    name: &VolumeName,
    (remote, file): (Option<&RemoteConfig>, Option<&FileConfig>),
    has_replica: bool,
) -> Result<EndpointKind, Failure> {
    let refused = |(message, help): (String, String)| {
        Failure::usage(format!("volume {name}: {message}")).with_help(help)
    };
    let checked = match (remote, file) {
        (None, None) => return Ok(EndpointKind::Log),
        _ if has_replica => Err((
            "only a volume of the store has a replica".to_owned(),
            "take replicate_to away; the server of a remote volume can keep a replica of it"
                .to_owned(),
        )),
        (Some(remote), _) => remote.checked().map(EndpointKind::Remote),
        (None, Some(file)) => file.checked().map(EndpointKind::File),
    };
    checked.map_err(refused)
}

/// Refuses to encrypt what is in no store.
fn check_encrypts(
    global: &Global,
    name: &VolumeName,
    endpoint: &EndpointKind,
) -> Result<(), Failure> {
    if !global.encrypt || matches!(endpoint, EndpointKind::Log) {
        return Ok(());
    }
    let help = "leave --encrypt away: a file is encrypted below it, with LUKS, and an export by its server";
    let message = format!("volume {name}: Weir encrypts volumes of a store only");
    Err(Failure::usage(message).with_help(help.to_owned()))
}

/// The threads of `weir up`, and what it serves.
pub(crate) fn up(
    global: &Global,
    file: &Config,
    up: Up,
) -> Result<(NodeConfig, ServiceOptions), Failure> {
    let home = home(global, file)?;
    let memory = memory(&up.tuning, file)?;
    let nbd = match (up.nbd_socket, up.nbd_listen) {
        (Some(path), _) => vec![NbdAddress::Unix(path)],
        (None, Some(address)) => vec![NbdAddress::Tcp { address, insecure: up.insecure }],
        (None, None) => Vec::new(),
    };
    let listed = file.volumes.iter().find(|volume| volume.name == up.name.as_str());
    let replica = listed.and_then(VolumeConfig::replica);
    // A flag takes the place of what the file says.
    let remote = listed.filter(|_| !up.file.is_given()).and_then(|volume| volume.remote.clone());
    let image = listed.filter(|_| !up.remote.is_given()).and_then(|volume| volume.file.clone());
    let (remote, image) = (up.remote.or(remote)?, up.file.or(image)?);
    let endpoint = match up.endpoint {
        up::EndpointKind::Log => {
            endpoint(&up.name, (remote.as_ref(), image.as_ref()), replica.is_some())?
        }
        up::EndpointKind::Memory => EndpointKind::Memory,
    };
    check_encrypts(global, &up.name, &endpoint)?;
    let trace = up.trace.or_else(|| listed.and_then(|volume| volume.trace.clone()));
    let read_only = is_read_only(up.read_only, file.read_only);
    let read_only = is_read_only(read_only, listed.and_then(|volume| volume.read_only));
    let listed_allow = listed.and_then(|volume| volume.allow.as_ref());
    let listed = listed.map(VolumeConfig::settings).unwrap_or_default();
    let settings = checked(up.tuning.settings().or(listed).or(file.defaults))?;
    note_replaced(Some(&up.name), settings);
    let spec = VolumeSpec {
        name: up.name,
        size: up.size.map(|Size(bytes)| bytes),
        size_must_match: true,
        read_only,
        consent: Consent {
            accept_loss: up.accept_loss,
            take_over: up.take_over,
            discard_journal: up.discard_journal,
            adopt_journal: up.adopt_journal,
            incomplete: false,
        },
        options: settings.options(memory, 1),
        endpoint,
        stages: stages(settings, trace)?,
        replica,
        allowed: allowed(&up.tls, file, listed_allow),
    };
    let cache_bytes = Some(memory.frames_bytes());
    let buffer_bytes = Some(memory.buffers_bytes());
    let node = NodeConfig { cache_bytes, buffer_bytes, ..verb_node(global, file) };
    let service = ServiceOptions {
        home,
        template: Box::new(spec.clone()),
        volumes: VolumeSet::Listed(vec![spec]),
        nbd,
        nbd_access: nbd_access(&up.access, file)?,
        api: ApiPlace::Volume,
        api_tcp: None,
        tls: tls(&up.tls, file)?,
        limits: limits(&up.tuning, file),
        cache: up.tuning.cache.or(file.cache).unwrap_or_default(),
        cache_wear: cache_wear(&up.tuning, file),
        inherited: Inherited::default(),
        left: Vec::new(),
    };
    Ok((node, service))
}

/// The threads of `weir serve`, and what it serves.
pub(crate) fn serve(
    global: &Global,
    file: &Config,
    serve: &Serve,
    inherited: Inherited,
) -> Result<(NodeConfig, ServiceOptions), Failure> {
    let home = home(global, file)?;
    let memory = memory(&serve.tuning, file)?;
    let insecure = |in_file: Option<bool>| serve.insecure || in_file == Some(true);
    let mut nbd = Vec::new();
    let socket = serve.nbd_socket.clone().or_else(|| file.nbd.socket.clone());
    nbd.extend(socket.map(NbdAddress::Unix));
    let listen = serve.nbd_listen.clone().or_else(|| file.nbd.listen.clone());
    nbd.extend(
        listen.map(|address| NbdAddress::Tcp { address, insecure: insecure(file.nbd.insecure) }),
    );
    let limits = limits(&serve.tuning, file);
    let node = NodeConfig {
        shards: serve.shards.or(file.shards),
        engine: global.disk_engine.into(),
        cache_bytes: Some(memory.frames_bytes()),
        buffer_bytes: Some(memory.buffers_bytes()),
        lease: lease(global, file),
    };
    let (volumes, template) = volume_set(file, serve, memory)?;
    // The same for clients and for callers of the API, so that both see what is read anew.
    let tls = tls(&serve.tls, file)?;
    let service = ServiceOptions {
        home,
        volumes,
        template: Box::new(template),
        nbd,
        nbd_access: nbd_access(&serve.access, file)?,
        api: ApiPlace::Node,
        api_tcp: api_tcp(file, serve, &tls, insecure(file.api.insecure))?,
        tls,
        limits,
        cache: serve.tuning.cache.or(file.cache).unwrap_or_default(),
        cache_wear: cache_wear(&serve.tuning, file),
        inherited,
        left: Vec::new(),
    };
    Ok((node, service))
}

/// What may be written to the cache in a day.
fn cache_wear(tuning: &Tuning, file: &Config) -> Option<u64> {
    tuning.cache_wear.or(file.cache_wear.map(|Size(bytes)| bytes))
}

/// The volumes to serve, and how one is served that is attached later.
fn volume_set(
    file: &Config,
    serve: &Serve,
    memory: Memory,
) -> Result<(VolumeSet, VolumeSpec), Failure> {
    let read_only = is_read_only(serve.read_only, file.read_only);
    let consent = Consent {
        accept_loss: serve.accept_loss,
        take_over: serve.take_over,
        discard_journal: serve.discard_journal,
        adopt_journal: serve.adopt_journal,
        incomplete: false,
    };
    let spec = |name: VolumeName, size: Option<Size>, settings: VolumeSettings, count| {
        let settings = checked(serve.tuning.settings().or(settings).or(file.defaults))?;
        Ok::<_, Failure>(VolumeSpec {
            name,
            size: size.map(|Size(bytes)| bytes),
            size_must_match: false,
            read_only,
            consent,
            options: settings.options(memory, count),
            endpoint: EndpointKind::Log,
            stages: stages(settings, None)?,
            replica: None,
            allowed: allowed(&serve.tls, file, None),
        })
    };
    let named = |(name, size): &(VolumeName, Option<Size>)| {
        let listed = file.volumes.iter().find(|volume| volume.name == name.as_str());
        let named = VolumeConfig::named(name.to_string(), *size);
        VolumeConfig {
            size: size.or(listed.and_then(|l| l.size)),
            ..listed.cloned().unwrap_or(named)
        }
    };
    let volumes: Vec<VolumeConfig> = match serve.volume.is_empty() {
        true => file.volumes.clone(),
        false => serve.volume.iter().map(named).collect(),
    };
    // How many there are is known only when they are listed or attached; a dozen is a guess that wastes little.
    const VOLUMES_GUESS: usize = 12;
    let any = VolumeName::new("any").map_err(|error| Failure::new(error.to_string()))?;
    let template = spec(any, None, VolumeSettings::default(), VOLUMES_GUESS.max(volumes.len()))?;
    let note = |volume: Option<&VolumeName>, settings: VolumeSettings| {
        note_replaced(volume, serve.tuning.settings().or(settings).or(file.defaults));
    };
    if volumes.is_empty() {
        note(None, VolumeSettings::default());
        return Ok((VolumeSet::All(Box::new(template.clone())), template));
    }
    let mut specs: Vec<VolumeSpec> = Vec::new();
    for volume in &volumes {
        let name = VolumeName::new(&volume.name).map_err(|e| Failure::usage(e.to_string()))?;
        if specs.iter().any(|other| other.name == name) {
            return Err(Failure::usage(format!("volume {name} is given twice")));
        }
        note(Some(&name), volume.settings());
        let mut spec = spec(name, volume.size, volume.settings(), volumes.len())?;
        spec.read_only = is_read_only(spec.read_only, volume.read_only);
        spec.replica = volume.replica();
        let elsewhere = (volume.remote.as_ref(), volume.file.as_ref());
        spec.endpoint = endpoint(&spec.name, elsewhere, spec.replica.is_some())?;
        spec.stages.trace.clone_from(&volume.trace);
        spec.allowed = allowed(&serve.tls, file, volume.allow.as_ref());
        specs.push(spec);
    }
    Ok((VolumeSet::Listed(specs), template))
}

fn api_tcp(
    file: &Config,
    serve: &Serve,
    tls: &Option<Tls>,
    insecure: bool,
) -> Result<Option<TcpApi>, Failure> {
    let Some(address) = serve.api_listen.clone().or_else(|| file.api.listen.clone()) else {
        return Ok(None);
    };
    let path = serve.api_token_file.as_ref().or(file.api.token_file.as_ref());
    let token = path.map(|path| {
        std::fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("reading the token in {}: {error}", path.display()))
        })
    });
    let token = token.transpose()?;
    let in_file = || file.api.allow.clone().unwrap_or_default();
    let allow = if serve.api_allow.is_empty() { in_file() } else { serve.api_allow.clone() };
    let access = TcpAccess { tls: tls.clone(), allow, insecure };
    Ok(Some(TcpApi::new(address, token.as_deref(), access)?))
}

/// Whoever asks for it gets it: what is said of one volume takes nothing back that was said of all.
fn is_read_only(said_of_all: bool, said_here: Option<bool>) -> bool {
    said_of_all || said_here == Some(true)
}

#[cfg(test)]
mod tests {
    use weir_net::pki::{Authority, Request, Usage};

    use super::*;

    #[test]
    fn nothing_makes_writable_what_was_to_be_read_only() {
        for said_here in [None, Some(false), Some(true)] {
            assert!(is_read_only(true, said_here), "{said_here:?}");
            assert_eq!(is_read_only(false, said_here), said_here == Some(true));
        }
    }

    #[test]
    fn the_oldest_version_of_tls_is_that_of_the_flag_then_of_the_file_then_1_3() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let pki = directory.path();
        let mut authority = Authority::create(pki, "test", 10).expect("an authority");
        let request = Request { name: "node", hosts: &[], usage: Usage::Both, days: 1 };
        let certificates = Some(authority.issue(&request).expect("issued"));
        let spoken = |flag: Option<&str>, in_file: &str| {
            let tls_min_version = flag.map(|text| text.parse().expect("a version"));
            let access = TlsAccess {
                tls_certificates: certificates.clone(),
                tls_min_version,
                ..TlsAccess::default()
            };
            let file = Config::parse(in_file, "here").expect("valid");
            let tls = tls(&access, &file).expect("loads").expect("there are certificates");
            tls.min_version().to_string()
        };
        let in_file = "[tls]\nmin_version = \"1.2\"\n";
        assert_eq!(spoken(None, ""), "1.3");
        assert_eq!(spoken(None, in_file), "1.2");
        assert_eq!(spoken(Some("1.3"), in_file), "1.3");
        assert_eq!(spoken(Some("1.2"), ""), "1.2");
        let refused = Config::parse("[tls]\nmin_version = \"1.1\"\n", "here").unwrap_err();
        let told = std::error::Error::source(&refused).map_or(String::new(), ToString::to_string);
        assert!(format!("{refused} {told}").contains("`1.2`"), "{refused} {told}");
    }

    #[test]
    fn a_version_of_tls_without_certificates_is_refused_in_the_flag_and_in_the_file() {
        let of = |flag: Option<&str>, in_file: &str| {
            let tls_min_version = flag.map(|text| text.parse().expect("a version"));
            let file = Config::parse(in_file, "here").expect("valid");
            tls(&TlsAccess { tls_min_version, ..TlsAccess::default() }, &file)
        };
        assert!(of(None, "").expect("nothing is asked for").is_none());
        let in_file = "[tls]\nmin_version = \"1.3\"\n";
        for (flag, in_file, named) in [
            (Some("1.2"), "", "--tls-min-version"),
            (Some("1.2"), in_file, "--tls-min-version"),
            (None, in_file, "tls.min_version"),
        ] {
            let failure = of(flag, in_file).expect_err("there are no certificates");
            let expected = format!("{named} is given, and there are no certificates");
            assert!(failure.message().starts_with(&expected), "{}", failure.message());
            assert_eq!(failure.code(), std::process::ExitCode::from(2));
        }
    }

    #[test]
    fn a_volume_that_the_file_calls_read_only_is_so_for_up_as_for_serve() {
        let text = "[[volumes]]\nname = \"a\"\nread_only = true\n";
        let file = Config::parse(text, "here").expect("valid");
        let parse = |words: &[&str]| {
            <crate::cli::Cli as clap::Parser>::try_parse_from(words).expect("good flags")
        };
        let in_up = |name: &str| {
            let cli = parse(&["weir", "up", name, "--data-dir", "/nowhere"]);
            let crate::cli::Command::Up(flags) = cli.command else { panic!("up") };
            up(&cli.global, &file, *flags).expect("good settings").1
        };
        let cli = parse(&["weir", "serve", "--data-dir", "/nowhere"]);
        let crate::cli::Command::Serve(flags) = &cli.command else { panic!("serve") };
        let served = serve(&cli.global, &file, flags, Inherited::default());
        let served = served.expect("good settings").1;
        for (options, expected) in [(in_up("a"), true), (in_up("b"), false), (served, true)] {
            let VolumeSet::Listed(volumes) = options.volumes else { panic!("they are listed") };
            assert_eq!(volumes[0].read_only, expected, "{}", volumes[0].name);
        }
    }

    #[test]
    fn the_data_directory_follows_the_user() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(default_path(true, path("/x"), path("/h")), path("/var/lib/weir"));
        assert_eq!(default_path(false, path("/x"), path("/h")), path("/x/weir"));
        assert_eq!(default_path(false, path("x"), path("/h")), path("/h/.local/share/weir"));
        assert_eq!(default_path(false, None, path("/h")), path("/h/.local/share/weir"));
        assert_eq!(default_path(false, None, path("")), None);
        assert_eq!(default_path(false, None, None), None);
    }
}
