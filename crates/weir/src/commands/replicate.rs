//! `weir replicate`: a volume to another store, once or for as long as it runs.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;
use tokio::sync::watch;
use weir_device::{ErrorKind, with_causes};
use weir_log::catalog::VolumeName;
use weir_log::replica::ReplicaStatus;
use weir_node::api::types::Limits;
use weir_node::config::Config;
use weir_node::size::{Size, counted, human};
use weir_node::verbs::flush::FlushVolume;
use weir_node::{Home, Node, NodeError, Replication, ReplicationProgress, TARGET_VARIABLES};
use weir_store::StoreOptions;

use crate::cli::global::Global;
use crate::cli::replicate::Replicate;
use crate::process::signals::{SIGNAL_BASE, Signals, quit};
use crate::process::threads;
use crate::settings;
use crate::terminal::failure::{DAMAGED, Failure};
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say};

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(200);

/// A line of the output for programs.
#[derive(Debug, Serialize)]
struct Line<'a> {
    volume: &'a str,
    store: &'a str,
    #[serde(flatten)]
    status: &'a ReplicaStatus,
    trouble: Option<&'a str>,
}

/// Runs the verb.
pub(crate) fn run(global: &Global, file: &Config, verb: Replicate) -> Result<ExitCode, Failure> {
    let home = settings::home(global, file)?;
    let form = verb.output.output;
    let replication = Replication {
        name: verb.name,
        target_url: verb.target,
        target_options: target_options(global, file)?,
        limits: Limits {
            upload_bytes_per_second: verb.upload_bandwidth.map(|Size(bytes)| bytes),
            upload_requests_per_second: verb.upload_requests,
            drain: false,
        },
        follow: verb.follow && !verb.once,
        age: Duration::from_secs_f64(verb.age),
    };
    threads::on_node(settings::verb_node(global, file), async |node| {
        let mut signals = Signals::listen()?;
        let (progress, mut seen) = watch::channel(ReplicationProgress::default());
        let (stop, stopped) = watch::channel(false);
        let mut reporter = Reporter::new(&replication, form);
        let mut replicating = Box::pin(async {
            if !replication.follow {
                have_it_published(node, &home, &replication.name, stopped.clone()).await?;
            }
            node.replicate(home, replication.clone(), progress, stopped).await
        });
        let mut signal = None;
        let ended = loop {
            tokio::select! {
                biased;
                // A second signal ends the process at once, as with every command.
                number = signals.next() => {
                    if stop.send_replace(true) {
                        quit(number);
                    }
                    signal = Some(number);
                }
                ended = &mut replicating => break ended,
                Ok(()) = seen.changed() => reporter.show(&seen.borrow_and_update())?,
            }
        };
        reporter.end();
        let status = ended?;
        if let Some(number) = signal.filter(|_| !replication.follow) {
            return Err(interrupted(&replication, &status, number));
        }
        reporter.finish(&status)?;
        if replication.follow { Ok(()) } else { outcome(&replication, &status) }
    })
    .map(|()| ExitCode::SUCCESS)
}

/// Has the process of this data directory that serves the volume, if there is one, publish what it acknowledged: what
/// is not published is not replicated. Where the process cannot, the replica is as of an older moment, and the end of
/// the command says by how much.
async fn have_it_published(
    node: &Node,
    home: &Home,
    name: &VolumeName,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), NodeError> {
    let publish = FlushVolume { remote: true, wait: true, publish: true };
    let asked = node.call_holder(home.clone(), name.clone(), publish);
    let published = tokio::select! {
        biased;
        _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
        published = asked => published,
    };
    match published {
        // There is no volume to be replicated.
        Err(error) if error.kind() == ErrorKind::NotFound => Err(error),
        Err(error) => {
            let help = error.help().map_or_else(String::new, |help| format!("; {help}"));
            let why = with_causes(&error) + &help;
            say!("warning: {name} is replicated as it was published last: {why}");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// What a volume has to do for a replicator to find it.
const PUBLISHES: &str = "a volume publishes a checkpoint with every snapshot, every 64 objects or more, and when it is \
     closed";

/// What is said where a signal ended it before the newest state was there.
fn interrupted(replication: &Replication, status: &ReplicaStatus, signal: i32) -> Failure {
    let Replication { name, target_url, .. } = replication;
    let shows = match status.as_of {
        Some(as_of) => format!("{target_url} shows {name} as of object {as_of}"),
        // It may not be known what an earlier run made complete.
        None if status.sent_objects == 0 => "nothing was sent".to_owned(),
        None => format!("nothing is complete at {target_url} yet"),
    };
    let code = u8::try_from(SIGNAL_BASE + signal).unwrap_or(u8::MAX);
    Failure::new(format!("interrupted: {shows}")).with_code(code).with_help("run it again to go on")
}

/// Says what the replica lacks. It is an error if nothing is complete in it.
fn outcome(replication: &Replication, status: &ReplicaStatus) -> Result<(), Failure> {
    let Replication { name, target_url, .. } = replication;
    let newer = human(status.lag_bytes);
    match status.as_of {
        None => {
            let lacks = match status.lag_bytes {
                0 => String::new(),
                _ => format!(", {newer} of objects that no checkpoint names yet"),
            };
            let message = format!(
                "nothing is complete at {target_url}: {name} has not published a checkpoint yet{lacks}"
            );
            let help = format!(
                "{PUBLISHES}: run weir snapshot create {name}@NAME where it is served, then replicate it again"
            );
            Err(Failure::new(message).with_code(DAMAGED).with_help(help))
        }
        Some(_) if status.lag_bytes > 0 => {
            say!(
                "warning: {newer} of objects that {name} put into its store later are not at {target_url}: \
                 {PUBLISHES}, and the next run sends that"
            );
            Ok(())
        }
        Some(_) => Ok(()),
    }
}

/// How the replica's store is reached: it may be of another service than the volume's.
fn target_options(global: &Global, file: &Config) -> Result<StoreOptions, Failure> {
    let single_writer = settings::store_options(global, file)?.single_writer;
    let options = StoreOptions::from_environment_for(TARGET_VARIABLES)?;
    Ok(StoreOptions { single_writer: options.single_writer || single_writer, ..options })
}

/// Shows the progress.
struct Reporter<'a> {
    replication: &'a Replication,
    form: OutputForm,
    bar: ProgressBar,
    roots: u64,
    trouble: Option<String>,
    printed: bool,
}

impl<'a> Reporter<'a> {
    fn new(replication: &'a Replication, form: OutputForm) -> Self {
        let bar =
            ProgressBar::no_length().with_message(format!("replicating {}", replication.name));
        bar.set_style(output::style("{spinner} {msg}: {bytes} of {total_bytes}{prefix}"));
        bar.enable_steady_tick(TICK);
        Self { replication, form, bar, roots: 0, trouble: None, printed: false }
    }

    fn show(&mut self, progress: &ReplicationProgress) -> Result<(), Failure> {
        let status = &progress.status;
        self.bar.set_length(status.bytes_to_copy);
        self.bar.set_position(status.bytes_copied);
        let behind = (status.lag_bytes > 0)
            .then(|| format!(", {} and {} s behind", human(status.lag_bytes), status.lag_seconds));
        self.bar.set_prefix(behind.unwrap_or_default());
        if progress.trouble != self.trouble {
            if let Some(trouble) = &progress.trouble {
                self.bar.suspend(|| say!("warning: waiting: {trouble}"));
            }
            self.trouble.clone_from(&progress.trouble);
            self.print_line(status)?;
        } else if status.roots_moved != self.roots {
            self.roots = status.roots_moved;
            self.print_line(status)?;
        }
        Ok(())
    }

    fn print_line(&mut self, status: &ReplicaStatus) -> Result<(), Failure> {
        if self.form != OutputForm::Json {
            return Ok(());
        }
        self.printed = true;
        let line = Line {
            volume: self.replication.name.as_str(),
            store: &self.replication.target_url,
            status,
            trouble: self.trouble.as_deref(),
        };
        let text = serde_json::to_string(&line)
            .map_err(|error| Failure::new(format!("writing JSON: {error}")))?;
        output::print(&format!("{text}\n"))
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows the result.
    fn finish(&mut self, status: &ReplicaStatus) -> Result<(), Failure> {
        if self.form == OutputForm::Json {
            // The newest state may not have been printed yet.
            let known = self.printed && self.roots == status.roots_moved;
            return if known { Ok(()) } else { self.print_line(status) };
        }
        let Replication { name, target_url, .. } = self.replication;
        let Some(as_of) = status.as_of else {
            return output::print(&format!(
                "{name}: no checkpoint is published yet, nothing sent\n"
            ));
        };
        let (objects, bytes) = (counted(status.sent_objects, "object"), human(status.sent_bytes));
        output::print(&format!(
            "{name}: {target_url} shows it as of object {as_of}; {objects}, {bytes} sent\n"
        ))
    }
}
