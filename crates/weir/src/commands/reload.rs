//! Loading the configuration anew while the process serves and hears signals.
//!
//! A reload has two parts. The first reads the settings and the certificates, and has whom they let in count. It takes
//! as long as [`READ_MAX`] allows. The second opens and closes volumes, which may wait for disks and servers. The first
//! part of a later reload does not wait for the second part of one before: whoever is taken off a list or revoked must
//! not stay let in because a disk does not answer. Parts of one kind come one after the other, and what is asked for
//! meanwhile is done once, with the settings that lie there then.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use weir_device::mutant;
use weir_net::tls::{MinVersion, Tls};
use weir_node::config::Config;
use weir_node::size::{counted, human};
use weir_node::{
    Home, Inherited, Next, NodeError, Reloaded, Service, ServiceOptions, VolumeSet, VolumeSpec,
};

use crate::cli::global::Global;
use crate::cli::serve::Serve;
use crate::process::reading::Reading;
use crate::process::systemd;
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::output::say;

/// What counts of a configuration that is loaded anew.
pub(crate) struct Anew {
    volumes: VolumeSet,
    /// How volumes are served that it does not name.
    template: Box<VolumeSpec>,
    /// Where volumes live that a process finds which begins with it.
    home: Home,
    /// The certificates, where it names any.
    pub(crate) tls: Option<Tls>,
    /// What differs from the settings that the process began with and counts from the next start on.
    left: Vec<&'static str>,
}

impl Anew {
    /// What a process begins with.
    pub(crate) fn next(&self) -> Next {
        Next { home: self.home.clone(), needs_store: self.volumes.needs_store() }
    }
}

/// The settings and certificates, to be read anew.
pub(crate) struct Files {
    /// What the process began with.
    pub(crate) given: Arc<(Global, Config, Serve)>,
    settings: Reading,
    certificates: Reading,
    pub(crate) successor: Reading,
}

impl Files {
    pub(crate) fn given(global: Global, file: Config, serve: Serve) -> Self {
        Self {
            given: Arc::new((global, file, serve)),
            settings: Reading::of("the settings"),
            certificates: Reading::of("the certificates"),
            successor: Reading::of("the settings of the next program"),
        }
    }

    /// What keeps the program from being replaced, where no reading is waited for.
    pub(crate) fn hang(&self) -> Option<String> {
        [&self.settings, &self.certificates, &self.successor].into_iter().find_map(Reading::hangs)
    }

    /// What the settings say now.
    async fn anew(&self) -> Result<Anew, Failure> {
        let given = Arc::clone(&self.given);
        self.settings.within(READ_MAX, move || read_anew(&given)).await
    }
}

/// Reads the settings; blocks.
pub(crate) fn read_anew(
    (global, before, serve): &(Global, Config, Serve),
) -> Result<Anew, Failure> {
    let file = settings::file(global)?;
    let options = settings::serve(global, &file, serve, Inherited::default())?.1;
    let left = before.left_to_the_next_start(&file);
    let ServiceOptions { home, volumes, template, tls, .. } = options;
    Ok(Anew { volumes, template, home, tls, left })
}

/// Time for the files of settings and certificates to be read.
const READ_MAX: Duration = Duration::from_secs(10);

/// What was wrong, if something was.
type Trouble = Option<String>;

type Part<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The reloads of a process.
pub(crate) struct Reloads<'a> {
    service: &'a Service,
    files: &'a Files,
    /// The first part of one that goes on.
    reading: Option<Part<'a, Trouble>>,
    /// The second part of one that goes on.
    following: Option<Part<'a, Trouble>>,
    /// Another one was asked for since the first part began.
    read_again: bool,
    /// Settings were read since the second part began.
    follow_again: bool,
}

impl<'a> Reloads<'a> {
    pub(crate) fn new(service: &'a Service, files: &'a Files) -> Self {
        let (reading, following) = (None, None);
        let (read_again, follow_again) = (false, false);
        Self { service, files, reading, following, read_again, follow_again }
    }

    /// Begins one, or has one begun once the first part of the one before has ended.
    pub(crate) fn begin(&mut self) {
        if !self.go_on() {
            systemd::notify("RELOADING=1\n");
        }
        self.read_again = true;
        self.begin_parts();
    }

    /// Whether one goes on.
    pub(crate) fn go_on(&self) -> bool {
        self.reading.is_some() || self.following.is_some()
    }

    fn begin_parts(&mut self) {
        let waits = self.following.is_some() && mutant("reload_waits_for_volumes");
        if self.reading.is_none() && self.read_again && !waits {
            self.read_again = false;
            self.reading = Some(Box::pin(read(self.service, self.files)));
        }
        if self.following.is_none() && self.follow_again {
            self.follow_again = false;
            self.following = Some(Box::pin(follow(self.service)));
        }
    }

    /// Takes those that were begun further; returns when all have ended. It can be dropped and called again.
    pub(crate) async fn end(&mut self) {
        while self.go_on() {
            tokio::select! {
                biased;
                unread = ended(&mut self.reading) => {
                    self.reading = None;
                    self.follow_again |= unread.is_none();
                    self.service.note_reload(unread);
                }
                trouble = ended(&mut self.following) => {
                    self.following = None;
                    self.service.note_volumes(trouble);
                }
            }
            self.begin_parts();
            if !self.go_on() {
                systemd::notify("READY=1\n");
            }
        }
    }
}

/// Returns when what goes on has ended; never where there is nothing.
pub(super) async fn ended<F: Future + Unpin>(part: &mut Option<F>) -> F::Output {
    match part {
        Some(part) => part.await,
        None => std::future::pending().await,
    }
}

/// The first part: reads what there is, and has whom it lets in count. If there is an error in the settings, nothing
/// changes by them.
async fn read(service: &Service, files: &Files) -> Trouble {
    let anew = files.anew().await;
    // Before anything that waits: those on the lists do not depend on the certificates, nor these on them.
    let (tls, failure) = match anew {
        Ok(Anew { volumes, template, tls, left, .. }) => {
            if !left.is_empty() {
                let left = left.join(", ");
                say!("warning: what has changed of these counts from the next start on: {left}");
            }
            service.take_settings(volumes, template);
            (tls, None)
        }
        Err(failure) => (None, Some(failure)),
    };
    load_certificates(service, &files.certificates, tls.as_ref().map(Tls::min_version)).await;
    let failure = failure?;
    say!("the configuration was not loaded; what is served stays as it is");
    failure.print();
    Some(failure.message().to_owned())
}

/// The second part: serves what the settings name.
async fn follow(service: &Service) -> Trouble {
    match service.follow_settings().await.map_err(Failure::from) {
        Ok(reloaded) => {
            tell(service, &reloaded);
            None
        }
        Err(failure) => {
            say!(
                "the configuration was loaded, and whom it lets in counts; which volumes it names is not known, so \
                 those that are served stay"
            );
            failure.print();
            Some(failure.message().to_owned())
        }
    }
}

/// Loads the certificates anew, also where the configuration is wrong: whom they revoke is not to wait for that.
async fn load_certificates(service: &Service, reading: &Reading, min_version: Option<MinVersion>) {
    let Some(tls) = service.certificates() else { return };
    let read = move || {
        let read = tls.read_anew(min_version.unwrap_or_else(|| tls.min_version()));
        read.map_err(|error| NodeError::from(error).into())
    };
    let loaded = reading.within(READ_MAX, read).await;
    let loaded = loaded.and_then(|read| Ok(service.take_certificates(read)?));
    let trouble = loaded.as_ref().err().map(|failure| failure.message().to_owned());
    service.note_certificates(trouble);
    match loaded {
        Ok(status) => {
            let of_client = status.client.filter(|client| Some(client) != status.server.as_ref());
            for holder in status.server.iter().chain(&of_client) {
                let until = humantime::format_rfc3339_seconds(UNIX_EPOCH + holder.expires);
                say!("the certificate of {} is loaded: it expires at {until}", holder.name);
            }
        }
        Err(failure) => {
            say!("the certificates were not loaded; those in use stay in use");
            failure.print();
        }
    }
}

/// Says what a reload has changed.
fn tell(service: &Service, reloaded: &Reloaded) {
    for name in &reloaded.attached {
        match reloaded.created.iter().find(|(created, _)| created == name) {
            Some((_, size)) => say!(
                "volume {name} is served now: a new volume of {}, with nothing in it",
                human(*size)
            ),
            None => say!("volume {name} is served now"),
        }
    }
    for (name, what) in &reloaded.left_out {
        say!("volume {name} is left out: {what}");
    }
    for name in &reloaded.detached {
        say!("volume {name} is not served any more");
    }
    for name in &reloaded.kept_as_they_are {
        say!(
            "volume {name} keeps its settings until it is detached and attached, or weir is restarted"
        );
    }
    for (name, whom) in &reloaded.waiting {
        say!("volume {name} is served later: it waits for {whom}");
    }
    for (name, reason) in &reloaded.failed {
        say!("warning: volume {name}: {reason}");
    }
    let count = service.served().len();
    let are = if count == 1 { "is" } else { "are" };
    say!("the configuration is loaded: {} {are} served", counted(count, "volume"));
}
