//! `weir serve`: many volumes, as a service.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_device::mutant;
use weir_net::tls::Tls;
use weir_node::config::Config;
use weir_node::size::counted;
use weir_node::{
    EndpointKind, HANDED_OVER_MAX, HandedOver, Inherited, Next, Node, NodeError, Parting, Passed,
    Service, ServiceOptions, Stopped, VolumeSet,
};

use crate::cli::global::Global;
use crate::cli::serve::Serve;
use crate::commands::reload::{Anew, Files, Reloads, ended, read_anew};
use crate::commands::up;
use crate::process::relay::{self, Side};
use crate::process::signals::{self, Signals, quit, received};
use crate::process::upgrade::Successor;
use crate::process::{descriptors, systemd, threads, upgrade};
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::output::say;

/// Runs the verb to its end.
pub(crate) fn run(global: Global, file: Config, serve: Serve) -> Result<ExitCode, Failure> {
    descriptors::raise();
    // Before any thread runs and any file is opened: it removes variables from the environment, and reserves the
    // descriptors that are handed over.
    let inherited = Inherited::from_environment()?;
    let runtime = threads::runtime()?;
    // Next, before all else: a signal that nobody listens to would end the process or be lost. Signals may be pending
    // that the program before this one received.
    let mut told = {
        let _context = runtime.enter();
        Told::listen()?
    };
    signals::deliver()?;
    let (config, mut options) = settings::serve(&global, &file, &serve, inherited)?;
    options.left = upgrade::handed_over();
    if serve.check {
        return check(&global, &file, &runtime, &options);
    }
    let node = Node::start(config)?;
    let files = Files::given(global, file, serve);
    let serving = async |node: &Node| serve_until_told(node, options, &mut told, &files).await;
    let (end, have_ended) = threads::ended_after(&runtime, node, serving);
    match end? {
        End::Stopped => Ok(ExitCode::SUCCESS),
        // The kernel would wait for the threads, and nobody would be served. The volumes are closed.
        End::Replaced { .. } if !have_ended => {
            let message = "the program is not replaced: a disk stopped answering meanwhile";
            Err(Failure::new(message).with_help("all volumes are closed: start it again"))
        }
        End::Replaced { program, parting, volumes } => {
            signals::hold_back()?;
            // A signal that came earlier would be lost with this program. The journals have what was acknowledged.
            if let Some(number) = runtime.block_on(told.end.came()) {
                quit(number);
            }
            drop(told);
            runtime.shutdown_timeout(RUNTIME_TIME);
            replace(program, parting, &volumes)
        }
    }
}

/// Time for what the main thread has begun in the background.
const RUNTIME_TIME: Duration = Duration::from_secs(1);

/// Executes the new program, which goes on with the sessions of clients. Those under TLS get a process that passes them
/// on; there this returns, once the last of them has left.
fn replace(
    program: PathBuf,
    parting: Parting,
    volumes: &[HandedOver],
) -> Result<ExitCode, Failure> {
    let Parting { mut sockets, sessions, .. } = parting;
    if sessions.is_empty() {
        return Err(upgrade::replace(program, sockets, volumes));
    }
    if sockets.len() >= HANDED_OVER_MAX {
        let count = counted(sessions.len(), "session");
        say!(
            "warning: {count} of clients end: {HANDED_OVER_MAX} sockets are all that can be handed over"
        );
        return Err(upgrade::replace(program, sockets, volumes));
    }
    match Passed::of(sessions) {
        Ok(Passed { channel, count, relayed }) => {
            match pass_on(count, relayed.len(), relay::begin, |told| say!("{told}")) {
                Side::Relay => {
                    drop((sockets, channel));
                    return relay::run(relayed);
                }
                Side::Between { code } => return Ok(code),
                Side::Successor => {}
            }
            // Where nothing passes them on, their clients see an end.
            drop(relayed);
            sockets.push(channel);
        }
        Err(error) => say!("warning: the sessions of clients end: {error}"),
    }
    Err(upgrade::replace(program, sockets, volumes))
}

/// Makes what passes on the clients under TLS, where there are any, and tells how many sessions go on once it is known.
fn pass_on(
    count: usize,
    under_tls: usize,
    begin: impl FnOnce() -> Result<Side, Failure>,
    tell: impl FnOnce(String),
) -> Side {
    let (side, ended) = match under_tls {
        0 => (Side::Successor, 0),
        _ => match begin() {
            Ok(side) => (side, 0),
            Err(failure) => {
                failure.print();
                (Side::Successor, under_tls)
            }
        },
    };
    // The copies say nothing of it, so that it is said once.
    if side == Side::Successor {
        let sessions = counted(count - ended, "session");
        tell(format!("{sessions} of clients go on, {} of them under TLS", under_tls - ended));
    }
    side
}

/// The signals that this command handles.
struct Told {
    end: Signals,
    replace: Signal,
    /// A hang-up loads the configuration anew, unless it is that of a terminal.
    reload: Option<Signal>,
}

impl Told {
    fn listen() -> Result<Self, Failure> {
        let failed = |error| Failure::new(format!("listening for signals: {error}"));
        let on_terminal = std::io::stdin().is_terminal();
        let reload = (!on_terminal).then(|| signal(SignalKind::hangup()).map_err(failed));
        Ok(Self {
            end: Signals::listen_also(on_terminal)?,
            replace: signal(SignalKind::user_defined2()).map_err(failed)?,
            reload: reload.transpose()?,
        })
    }
}

/// Time for the program that is installed to check its settings.
const PROGRAM_CHECK_MAX: Duration = Duration::from_secs(25);

/// The same with what this program then reads itself. Longer, so that a program that does not end is what is named.
const CHECK_MAX: Duration = Duration::from_secs(30);

/// How serving ended.
enum End {
    Stopped,
    /// The new program is to be executed in this process.
    Replaced {
        program: PathBuf,
        parting: Parting,
        volumes: Vec<HandedOver>,
    },
}

/// Checks the settings without opening a volume or asking a store.
fn check(
    global: &Global,
    file: &Config,
    runtime: &Runtime,
    options: &ServiceOptions,
) -> Result<ExitCode, Failure> {
    options.check()?;
    match settings::key_place(global, file)? {
        Some(place) => runtime.block_on(place.check())?,
        None if options.home.encrypt => {
            return Err(Failure::usage(
                "new volumes are to be encrypted, and no key is configured",
            )
            .with_help("name one with --key-file, --key-command or WEIR_KEY"));
        }
        None => {}
    }
    for warning in options.warnings() {
        say!("warning: {warning}");
    }
    say!("the settings are right: {}", what_is_served(options));
    upgrade::answer_about_sessions()?;
    Ok(ExitCode::SUCCESS)
}

/// What the settings name, for people.
fn what_is_served(options: &ServiceOptions) -> String {
    let store = &options.home.store_url;
    let VolumeSet::Listed(specs) = &options.volumes else {
        return format!("all volumes of {store}");
    };
    let count =
        |what: fn(&EndpointKind) -> bool| specs.iter().filter(|spec| what(&spec.endpoint)).count();
    let parts = [
        (count(|one| matches!(one, EndpointKind::Log)), format!("of {store}")),
        (count(|one| matches!(one, EndpointKind::File(_))), "in files".to_owned()),
        (count(|one| matches!(one, EndpointKind::Remote(_))), "of other servers".to_owned()),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let told = parts.map(|(count, place)| format!("{} {place}", counted(count, "volume")));
    told.collect::<Vec<_>>().join(", ")
}

/// How long the store may take to show that it takes an object.
const STORE_ANSWER_MAX: Duration = Duration::from_secs(5);

/// How long volumes in files may take to show that they answer, by a flush of each, closes of volumes in no store to
/// end, and the data directory to take a file.
const FILES_ANSWER_MAX: Duration = Duration::from_secs(10);

/// Fails because of what keeps the program from being replaced, if there is something.
fn nothing_keeps_it(why: Option<String>) -> Result<(), Failure> {
    why.map_or(Ok(()), |why| Err(not_replaced(why)))
}

/// The error of a replacement that does not take place because of this.
fn not_replaced(why: impl std::fmt::Display) -> Failure {
    let help = "the volumes are served on; send SIGUSR2 again once that is over";
    Failure::new(format!("the program is not replaced: {why}")).with_help(help)
}

/// The new program, if this one can be ended and the new one can be run.
async fn may_be_replaced(service: &Service, files: &Files) -> Result<Successor, Failure> {
    has_what_it_needs(service, None).await?;
    // Before a program is started: until that is executed, it has copies of all that is open here, and would keep
    // those, with their locks, as long as the first one that hangs when it is closed.
    nothing_keeps_it(service.unanswered(FILES_ANSWER_MAX).await)?;
    let looked = Instant::now();
    let (successor, next) = next_program(service, files).await?;
    // Once more, as what hangs from then on is waited for by the kernel.
    nothing_keeps_it(files.hang())?;
    nothing_keeps_it(service.unanswered(FILES_ANSWER_MAX).await)?;
    has_what_it_needs(service, next.as_ref()).await?;
    // Slow files may have taken long, and somebody may write the settings meanwhile.
    match looked.elapsed() < CHECK_COUNTS {
        true => Ok(successor),
        false => next_program(service, files).await.map(|(successor, _)| successor),
    }
}

/// How long the check of the settings counts.
const CHECK_COUNTS: Duration = Duration::from_secs(1);

/// Fails where the next program would serve nobody, as the store or a disk that it needs takes nothing. `next` is what
/// the settings say, once it is known.
async fn has_what_it_needs(service: &Service, next: Option<&Next>) -> Result<(), Failure> {
    nothing_keeps_it(service.data_fails(next, FILES_ANSWER_MAX).await)?;
    if !service.cache_answers().await {
        return Err(not_replaced("the disk of the cache does not answer"));
    }
    nothing_keeps_it(service.store_fails(next, STORE_ANSWER_MAX).await)
}

/// The program that is installed, if it would serve with the settings that lie there, and what it begins with, where
/// this one can read them.
async fn next_program(
    service: &Service,
    files: &Files,
) -> Result<(Successor, Option<Next>), Failure> {
    let (given, in_use) = (Arc::clone(&files.given), service.certificates());
    let look = move || {
        let successor = upgrade::check(PROGRAM_CHECK_MAX)?;
        // The next program knows nothing of the lists that are in use.
        let anew = read_anew(&given);
        let begins_with = anew.as_ref().ok().map(Anew::next);
        let next = match (anew, in_use) {
            (Ok(Anew { tls, .. }), _) => Ok(tls),
            // Only the next program can read the settings: those count that lie now where these are from.
            (Err(_), Some(in_use)) => Tls::load(in_use.directory()).map(Some),
            (Err(_), None) => Ok(None),
        };
        Ok((successor, begins_with, next.map_err(NodeError::from)))
    };
    let (successor, begins_with, next) = files.successor.within(CHECK_MAX, look).await?;
    let checked = next.and_then(|next| match next {
        Some(next) => service.check_next_certificates(&next),
        // Nobody comes under TLS any more.
        None => Ok(()),
    });
    match checked {
        Ok(()) => Ok((successor, begins_with)),
        Err(error) => {
            let failure = Failure::from(error);
            Err(Failure::new(format!("the program is not replaced: {}", failure.message())))
        }
    }
}

async fn serve_until_told(
    node: &Node,
    options: ServiceOptions,
    told: &mut Told,
    files: &Files,
) -> Result<End, Failure> {
    let Told { end: signals, replace, reload } = told;
    signals::disregard(&[SignalKind::user_defined1()])?;
    let service = tokio::select! {
        biased;
        // Nothing was acknowledged yet, and opening can be ended anywhere.
        number = signals.next() => quit(number),
        service = node.serve(options) => service?,
    };
    announce(&service);
    systemd::notify("READY=1\n");
    let heard = {
        let mut reloads = Reloads::new(&service, files);
        hear(&service, files, &mut reloads, (signals, replace, reload)).await
    };
    if let Some(Successor { program, takes_sessions }) = heard {
        say!("replacing the program by {}", program.display());
        let mut volumes = service.handed_over();
        let mut parting = tokio::select! {
            biased;
            number = signals.next() => quit(number),
            parting = service.hand_over(takes_sessions) => parting,
        };
        volumes.append(&mut parting.failed);
        return Ok(End::Replaced { program, parting, volumes });
    }
    systemd::notify("STOPPING=1\n");
    say!("stopping: flushing all volumes");
    if signals::stop(service, signals).await? == Stopped::LocalOnly {
        say!(
            "the store did not take everything in time; the journals keep the rest for the next start"
        );
    }
    Ok(End::Stopped)
}

/// How long a replacement waits for a reload that goes on.
const RELOAD_WAIT_MAX: Duration = Duration::from_secs(10);

/// Hears the signals of a process that serves until one of them ends it: the program that takes its place, or nothing
/// where it is to stop. Reloads go on meanwhile.
async fn hear(
    service: &Service,
    files: &Files,
    reloads: &mut Reloads<'_>,
    (signals, replace, reload): (&mut Signals, &mut Signal, &mut Option<Signal>),
) -> Option<Successor> {
    loop {
        tokio::select! {
            biased;
            _ = signals.next() => return None,
            Some(()) = received(reload.as_mut()) => reloads.begin(),
            _ = replace.recv() => {
                match tokio::select! {
                    biased;
                    _ = signals.next() => return None,
                    found = successor(service, files, reloads, reload) => found,
                } {
                    Ok(successor) => return Some(successor),
                    Err(failure) => {
                        failure.print();
                        service.note_not_replaced(failure.message());
                        say!("the program that runs serves on, with every connection");
                    }
                }
            },
            () = reloads.end(), if reloads.go_on() => {}
        }
    }
}

/// The new program, if this one can be replaced. Settings are loaded anew meanwhile if that is asked for: whoever is
/// taken off a list must not stay let in because a disk does not answer.
async fn successor(
    service: &Service,
    files: &Files,
    reloads: &mut Reloads<'_>,
    reload: &mut Option<Signal>,
) -> Result<Successor, Failure> {
    let reloading = || {
        not_replaced(
            "the settings are being loaded anew, which waits for volumes to be opened or closed",
        )
    };
    let until = tokio::time::Instant::now() + RELOAD_WAIT_MAX;
    let mut looking = None;
    loop {
        if looking.is_none() && !reloads.go_on() {
            looking = Some(Box::pin(may_be_replaced(service, files)));
        }
        tokio::select! {
            biased;
            Some(()) = received(reload.as_mut()), if !mutant("reload_waits_for_replacement") => reloads.begin(),
            () = reloads.end(), if reloads.go_on() => {}
            () = tokio::time::sleep_until(until), if looking.is_none() => return Err(reloading()),
            found = ended(&mut looking) => {
                return if reloads.go_on() { found.and(Err(reloading())) } else { found };
            }
        }
    }
}

fn announce(service: &Service) {
    for info in service.served() {
        up::describe(&info);
    }
    up::warn_of_shared_disk(service);
    for (name, reason) in service.not_served() {
        say!("warning: volume {name} is not served: {reason}");
    }
    for uri in service.nbd_uris() {
        say!("listening at {uri}");
    }
    for url in service.api_urls() {
        say!("API at {url}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_go_on_whom_something_passes_on_and_only_then_that_is_said() {
        let told = |under_tls, begin: &dyn Fn() -> Result<Side, Failure>| {
            let mut told = Vec::new();
            let side = pass_on(3, under_tls, begin, |text| told.push(text));
            (side, told.pop())
        };
        let all = "3 sessions of clients go on, 2 of them under TLS".to_owned();
        assert_eq!(told(2, &|| Ok(Side::Successor)), (Side::Successor, Some(all)));
        let one = "1 session of clients go on, 0 of them under TLS".to_owned();
        let fails = || Err(Failure::new("nothing passes them on"));
        assert_eq!(told(2, &fails), (Side::Successor, Some(one)));
        assert_eq!(
            told(2, &|| Ok(Side::Relay)),
            (Side::Relay, None),
            "the copy says nothing of it"
        );
        let clear = "3 sessions of clients go on, 0 of them under TLS".to_owned();
        let asked = || panic!("there is nobody to pass on");
        assert_eq!(told(0, &asked), (Side::Successor, Some(clear)));
    }
}
