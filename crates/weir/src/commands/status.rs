//! `weir status`: what is served here, what is wrong, and what would be lost if the host died now.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use weir_node::api::types::{
    Background, CacheReport, CertificateStatus, Health, Layer, Lease, Limits, LogStatus,
    NodeStatus, Operations, ServedVolume,
};
use weir_node::config::Config;
use weir_node::size::{counted, human};
use weir_node::{Home, Node, NodeError, Process, Unserved};

use crate::cli::global::Global;
use crate::process::signals::Signals;
use crate::process::threads;
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say};

/// A frame is not written to the cache where less than this may be written.
const WORN_BYTES: u64 = 68 << 10;

/// Exit code when something is wrong with what is served.
const NOT_WELL: u8 = 3;

/// Runs the verb.
pub(crate) fn run(
    global: &Global,
    file: &Config,
    watch: Option<f64>,
    form: OutputForm,
) -> Result<ExitCode, Failure> {
    let home = settings::home(global, file)?;
    threads::on_node(settings::verb_node(global, file), async |node| {
        let Some(seconds) = watch else { return once(node, &home, form).await };
        let mut signals = Signals::listen()?;
        let redraws = form == OutputForm::Table && std::io::stdout().is_terminal();
        let mut before = Rates::default();
        loop {
            if redraws {
                // Moves the cursor to the top left and clears the screen.
                output::print("\x1b[H\x1b[J")?;
            }
            let code = watch_once(node, &home, form, &mut before).await?;
            tokio::select! {
                biased;
                _ = signals.next() => return Ok(code),
                () = tokio::time::sleep(Duration::from_secs_f64(seconds)) => {}
            }
        }
    })
}

async fn once(node: &Node, home: &Home, form: OutputForm) -> Result<ExitCode, Failure> {
    let processes = node.processes(home.clone()).await?;
    show(node, home, form, &processes).await
}

/// The same, with the operations of clients since the last time.
async fn watch_once(
    node: &Node,
    home: &Home,
    form: OutputForm,
    before: &mut Rates,
) -> Result<ExitCode, Failure> {
    let processes = node.processes(home.clone()).await?;
    let code = show(node, home, form, &processes).await?;
    let served = processes.iter().filter_map(|process| process.status.as_ref().ok());
    let rows = before.next(served.flat_map(|status| &status.volumes), Instant::now());
    if form == OutputForm::Table && !rows.is_empty() {
        output::print("\n")?;
        let headings =
            ["VOLUME", "READS/S", "READ", "WRITES/S", "WRITTEN", "READ TIME", "WRITE TIME"];
        output::print_table(&headings, rows)?;
    }
    Ok(code)
}

async fn show(
    node: &Node,
    home: &Home,
    form: OutputForm,
    processes: &[Process],
) -> Result<ExitCode, Failure> {
    let is_well =
        |process: &Process| process.status.as_ref().is_ok_and(|status| status.health == Health::Ok);
    let unserved = node.unserved(home.clone(), processes).await?;
    // Whoever looks in a wrong place must not be told that all is well.
    let is_there = !processes.is_empty() || home.data.path().exists();
    let well = processes.iter().all(is_well) && unserved.is_empty() && is_there;
    let code = if well { 0 } else { NOT_WELL };
    match form {
        OutputForm::Json => {
            for process in processes {
                if let Err(error) = &process.status {
                    say!("warning: {error}");
                }
            }
            output::print_json(&document(processes, &unserved)?)?;
        }
        OutputForm::Table => print(processes, home)?,
    }
    for one in &unserved {
        say!("warning: {}", not_served(one));
    }
    if !is_there {
        let directory = home.data.path().display();
        say!(
            "warning: there is no data directory {directory}: name the one that is meant with --data-dir or \
             WEIR_DATA_DIR"
        );
    }
    Ok(ExitCode::from(code))
}

/// The output for programs: a row for each process, which is its status. A process that does not answer and the volumes
/// that no process serves have rows of their own with the fields that are known of them, so that the `health` of all
/// rows together says what the exit code says.
fn document(processes: &[Process], unserved: &[Unserved]) -> Result<Vec<Value>, Failure> {
    let mut rows = Vec::new();
    for process in processes {
        rows.push(match &process.status {
            Ok(status) => serde_json::to_value(status)
                .map_err(|error| Failure::new(format!("writing JSON: {error}")))?,
            Err(error) => json!({
                "process": process.id.0, "health": Health::Failed, "reasons": [error.to_string()], "nbd": [],
                "volumes": [], "not_served": [],
            }),
        });
    }
    if !unserved.is_empty() {
        let reasons: Vec<String> = unserved.iter().map(not_served).collect();
        let volumes: Vec<Value> = unserved.iter().zip(&reasons).map(of_volume).collect();
        rows.push(json!({
            "process": null, "health": Health::Failed, "reasons": reasons, "nbd": [], "volumes": [],
            "not_served": volumes,
        }));
    }
    Ok(rows)
}

fn of_volume((one, reason): (&Unserved, &String)) -> Value {
    json!({
        "name": one.name, "id": one.volume.to_string(), "store": one.store, "journal": one.journal,
        "at_risk": one.unsent, "holder": one.holder, "trouble": one.trouble, "reason": reason,
    })
}

fn not_served(one: &Unserved) -> String {
    let journal = one.journal.display();
    let volume = match &one.name {
        Some(name) => format!("{name} ({})", one.volume),
        None => one.volume.to_string(),
    };
    if let Some(process) = one.holder {
        return format!(
            "volume {volume} is not served: process {process} has it open, and does not say that it serves it; it may \
             be opening or closing it, or a verb works on it, and its log says what it waits for; until that has ended \
             the journal {journal} may hold the only copy of acknowledged writes"
        );
    }
    match &one.trouble {
        None if let (Some(left), Some(_)) = (one.left(), one.beside) => {
            format!("volume {volume} is not served: {left}; the journal is {journal}")
        }
        None if let Some(left) = one.left() => format!(
            "volume {volume} is not served: {left}; the next weir serve of that store takes them there as well; the \
             journal is {journal}"
        ),
        None => {
            let [name, with_store] = names(one);
            let store = one.store.as_ref().map_or_else(String::new, |store| format!(" {store}"));
            format!(
                "volume {volume} is not served, and its journal {journal} was not closed with everything in the \
                 store{store}: it may hold the only copy of acknowledged writes; the next weir serve of that store, or \
                 `weir up {name}{with_store}`, recovers them, or says what can be done where another host went on with \
                 the volume; where the volume was deleted since, nothing can be made of them, and `weir volume delete \
                 {name} --discard-journal{with_store}` removes them"
            )
        }
        Some(trouble) => {
            format!("volume {volume} is not served, and its journal cannot be read: {trouble}")
        }
    }
}

/// What a command about it takes: its name, and the flag of its store. A data directory can have volumes of several
/// stores, and another one may have a volume of this name.
fn names(one: &Unserved) -> [String; 2] {
    let name = one.name.as_ref().map_or_else(|| "NAME".to_owned(), ToString::to_string);
    let store = one.store.as_deref().unwrap_or("STORE");
    [name, format!(" --store {store}")]
}

/// The counts of a moment, from which the counts since then are computed.
#[derive(Debug, Default)]
struct Rates {
    at: Option<Instant>,
    volumes: BTreeMap<String, Vec<Operations>>,
}

impl Rates {
    /// A row for each volume that was there the time before as well.
    fn next<'a>(
        &mut self,
        volumes: impl Iterator<Item = &'a ServedVolume>,
        now: Instant,
    ) -> Vec<Vec<String>> {
        let seconds = self.at.map(|at| (now - at).as_secs_f64());
        let volumes: BTreeMap<String, Vec<Operations>> =
            volumes.map(|volume| (volume.name.clone(), volume.operations.clone())).collect();
        let row = |(name, after): (&String, &Vec<Operations>)| {
            Some(rates(name, self.volumes.get(name)?, after, seconds?))
        };
        let rows = volumes.iter().filter_map(row).collect();
        (self.at, self.volumes) = (Some(now), volumes);
        rows
    }
}

/// Counts of one kind since the time before: how many, their bytes, and the time they took.
fn since(kind: &str, before: &[Operations], after: &[Operations]) -> [u64; 3] {
    let of = |all: &[Operations]| {
        let found = all.iter().find(|one| one.kind == kind);
        found.map_or([0; 3], |one| [one.count, one.bytes, one.time_us])
    };
    let (before, after) = (of(before), of(after));
    std::array::from_fn(|index| after[index].saturating_sub(before[index]))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates, for people"
)]
fn rates(name: &str, before: &[Operations], after: &[Operations], seconds: f64) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    let kinds = ["read", "write"].map(|kind| since(kind, before, after));
    for [count, bytes, _] in kinds {
        row.push(format!("{:.0}", count as f64 / seconds));
        row.push(format!("{}/s", human((bytes as f64 / seconds) as u64)));
    }
    row.extend(kinds.map(|[count, _, time_us]| match count {
        0 => String::new(),
        count => format!("{:.2} ms", time_us as f64 / count as f64 / 1000.0),
    }));
    row
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Ok => "ok",
        Health::Degraded => "degraded",
        Health::Failed => "failed",
    }
}

fn print(processes: &[Process], home: &Home) -> Result<(), Failure> {
    if processes.is_empty() {
        let directory = home.data.path();
        return output::print(&format!("nothing is served from {}\n", directory.display()));
    }
    let mut text = String::new();
    let mut rows = Vec::new();
    for process in processes {
        match &process.status {
            Err(error) => text.push_str(&unanswered(process, error)),
            Ok(status) => {
                text.push_str(&summary(status));
                rows.extend(status.volumes.iter().map(row));
            }
        }
    }
    output::print(&text)?;
    if rows.is_empty() {
        return Ok(());
    }
    output::print("\n")?;
    let headings = [
        "VOLUME",
        "STATE",
        "SIZE",
        "CLIENTS",
        "JOURNAL",
        "OBJECTS",
        "LIVE",
        "WRITTEN",
        "LOST IF THE HOST DIED NOW",
    ];
    output::print_table(&headings, rows)
}

/// A process that does not say how it is, and what to do then.
fn unanswered(process: &Process, error: &NodeError) -> String {
    let by = match error {
        // It names the process.
        NodeError::NoAnswer { .. } => String::new(),
        _ => format!("process {}: ", process.id),
    };
    let help = error.help().map_or_else(String::new, |help| format!("  {help}\n"));
    format!("{by}{error}\n{help}")
}

fn summary(status: &NodeStatus) -> String {
    let mut text = format!(
        "process {}: {}, {}, store {}\n",
        status.process,
        health(status.health),
        counted(status.volumes.len(), "volume"),
        status.store
    );
    for uri in &status.nbd {
        text.push_str(&format!("  serving {uri}\n"));
    }
    if status.store_shares_disk {
        text.push_str(
            "  the store is on the disk of the journals: what would be lost with that disk is everything\n",
        );
    }
    text.extend(limits(&status.limits));
    if status.volumes.iter().any(|volume| volume.log.is_some()) {
        text.extend(background(&status.background, &status.limits));
        text.extend(cache(&status.cache));
    }
    text.extend(status.lease.as_ref().map(lease));
    text.extend(status.certificates.iter().filter(|one| one.role != "authority").map(certificate));
    text.extend(status.tls_min_version.as_deref().map(versions));
    for reason in &status.reasons {
        text.push_str(&format!("  {reason}\n"));
    }
    text
}

fn limits(limits: &Limits) -> Option<String> {
    let bandwidth = limits.upload_bytes_per_second.map(|bytes| format!("{}/s", human(bytes)));
    let requests = limits.upload_requests_per_second.map(|count| format!("{count} requests/s"));
    let limits: Vec<String> = bandwidth.into_iter().chain(requests).collect();
    (!limits.is_empty()).then(|| format!("  uploads at most {}\n", limits.join(", ")))
}

/// What the cache on the local disk holds; nothing where there is none.
fn cache(cache: &CacheReport) -> Option<String> {
    if let Some(doing) = &cache.changing {
        return Some(format!("  cache: it {doing}; reads go to the store meanwhile\n"));
    }
    if let (Some(why), true) = (&cache.none_because, cache.failed) {
        return Some(format!("  cache: left out until the next start: {why}\n"));
    }
    if let (Some(why), true) = (&cache.none_because, cache.missing) {
        return Some(format!("  cache: none: {why}\n"));
    }
    if cache.capacity_bytes == 0 {
        return None;
    }
    let (held, all) = (human(cache.bytes), human(cache.capacity_bytes));
    let share = (cache.hits * 100).checked_div(cache.hits + cache.misses);
    let hits =
        share.map_or(String::new(), |share| format!(", {share} % of the reads beyond memory"));
    let reading = cache.recovered_permille.map_or(String::new(), |permille| {
        format!(", {} % of it known after a crash", permille / 10)
    });
    let worn = match (cache.wear_bytes_left, cache.wear_bytes_per_day) {
        (Some(left), Some(per_day)) if left < WORN_BYTES => {
            format!(
                ", nothing more is cached for now: the limit of {} a day is used up",
                human(per_day)
            )
        }
        _ => String::new(),
    };
    let bad = super::cache::bad(cache).map_or(String::new(), |bad| format!("; {bad}"));
    Some(format!("  cache: {held} of {all} on the local disk{hits}{reading}{worn}{bad}\n"))
}

/// What bounds work in the background; nothing where the process does not say.
fn background(background: &Background, limits: &Limits) -> Option<String> {
    if background.classes.is_empty() {
        return None;
    }
    let pace = match background.bytes_per_second {
        _ if limits.drain => {
            "at full speed, whatever clients feel, until weir limits set --drain off".to_owned()
        }
        None => "at full speed: no client asks for anything".to_owned(),
        Some(rate) => format!(
            "at up to {}/s, held back for clients, but for what clients or commands wait for",
            human(rate)
        ),
    };
    let is_limited = limits.upload_bytes_per_second.or(limits.upload_requests_per_second).is_some();
    let within = if is_limited { ", within the limits on uploads" } else { "" };
    Some(format!("  background: uploads and copies {pace}{within}\n"))
}

fn certificate(certificate: &CertificateStatus) -> String {
    let CertificateStatus { role, name, expires, .. } = certificate;
    let expires = UNIX_EPOCH + Duration::from_secs(*expires);
    let expires = humantime::format_rfc3339_seconds(expires);
    format!("  certificate of the {role}, {name}, expires at {expires}\n")
}

/// Which versions of TLS are spoken.
fn versions(oldest: &str) -> String {
    match oldest {
        "1.3" => "  TLS 1.3 alone is spoken\n".to_owned(),
        _ => format!("  TLS is spoken from version {oldest} on\n"),
    }
}

fn lease(lease: &Lease) -> String {
    let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
    let (left, length) = (seconds(lease.left_ms), seconds(lease.length_ms));
    let missed = match lease.missed {
        0 => String::new(),
        1 => ", 1 deadline missed".to_owned(),
        count => format!(", {count} deadlines missed"),
    };
    format!("  lease {}: {left} of {length} left{missed}\n", lease.node)
}

/// What would be lost with this host. Of a volume that is in no store, what its endpoint says.
fn at_risk(volume: &ServedVolume) -> String {
    let endpoint = volume.layers.last().filter(|_| volume.log.is_none());
    match endpoint {
        Some(Layer { remote: Some(remote), .. }) if remote.unflushed_bytes > 0 => {
            format!("{}, not flushed", human(remote.unflushed_bytes))
        }
        Some(Layer { file: Some(_), .. }) => "everything, unless its disk survives".to_owned(),
        _ => volume.at_risk.to_string(),
    }
}

fn row(volume: &ServedVolume) -> Vec<String> {
    let of_log = |say: fn(&LogStatus) -> String| volume.log.as_ref().map_or(String::new(), say);
    let journal = of_log(|log| {
        let percent =
            log.journal_used_bytes.saturating_mul(100) / log.journal_capacity_bytes.max(1);
        format!("{percent} %")
    });
    let state = health(volume.health).to_owned();
    vec![
        volume.name.clone(),
        if volume.read_only { format!("{state}, read-only") } else { state },
        human(volume.size_bytes),
        match volume.exclusive {
            Some(_) => format!("{}, exclusively", volume.clients),
            None => volume.clients.to_string(),
        },
        journal,
        of_log(|log| human(log.object_bytes)),
        of_log(LogStatus::live_share),
        of_log(LogStatus::amplification),
        at_risk(volume),
    ]
}

#[cfg(test)]
mod tests {
    use weir_node::Beside;
    use weir_node::api::types::{AtRisk, BackgroundClass};

    use super::*;

    #[test]
    fn a_lease_says_what_is_left_and_what_was_missed() {
        let mut status = Lease {
            node: "ab".to_owned(),
            incarnation: String::new(),
            length_ms: 60_000,
            left_ms: 41_234,
            renewals: 3,
            missed: 0,
            note: None,
        };
        assert_eq!(lease(&status), "  lease ab: 41.2 s of 60.0 s left\n");
        status.missed = 2;
        assert_eq!(lease(&status), "  lease ab: 41.2 s of 60.0 s left, 2 deadlines missed\n");
    }

    #[test]
    fn rates_are_those_since_the_time_before() {
        let operations = |count: u64| {
            let kinds = [("read", count), ("write", 2 * count)];
            let of = |(kind, count): (&str, u64)| Operations {
                kind: kind.to_owned(),
                count,
                errors: 0,
                bytes: 4096 * count,
                time_us: 500 * count,
            };
            kinds.map(of)
        };
        let row = rates("demo", &operations(100), &operations(300), 2.0);
        let expected = ["demo", "100", "400.0 KiB/s", "200", "800.0 KiB/s", "0.50 ms", "0.50 ms"];
        assert_eq!(row, expected);
        let idle = rates("demo", &operations(5), &operations(5), 2.0);
        assert_eq!(idle, ["demo", "0", "0 B/s", "0", "0 B/s", "", ""]);
    }

    #[test]
    fn a_program_learns_what_nobody_serves() {
        let one = |holder| Unserved {
            volume: weir_device::VolumeId([7; 16]),
            name: weir_log::catalog::VolumeName::new("demo").ok(),
            store: Some("file:///s1".to_owned()),
            journal: "/d/volumes/07/journal".into(),
            unsent: None,
            trouble: None,
            beside: None,
            holder,
        };
        let unsent =
            AtRisk { bytes: 3 << 20, blocks: 768, oldest_age_ms: Some(7000), ..AtRisk::default() };
        let closed = Unserved { unsent: Some(unsent), ..one(None) };
        let [row] = &document(&[], &[closed]).unwrap()[..] else { panic!("one row") };
        let reason = row["reasons"][0].as_str().unwrap();
        assert!(
            reason.contains("3.0 MiB of acknowledged writes are in its journal alone"),
            "{reason}"
        );
        assert!(reason.contains("`weir volume flush demo --store file:///s1`"), "{reason}");
        assert!(!reason.contains("volume delete"), "{reason}");
        assert_eq!(row["not_served"][0]["at_risk"]["bytes"], 3 << 20);
        for (beside, way_out) in
            [(Beside::InStore, "the new name"), (Beside::Elsewhere, "detached")]
        {
            let reason = not_served(&Unserved { beside: Some(beside), ..one(None) });
            assert!(reason.contains("another volume is served under its name"), "{reason}");
            assert!(reason.contains(way_out) && reason.contains("--store file:///s1"), "{reason}");
            assert!(!reason.contains("weir up demo"), "{reason}");
        }
        assert_eq!(document(&[], &[]).unwrap(), Vec::<Value>::new());
        let rows = document(&[], &[one(None), one(Some(12))]).unwrap();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((&row["process"], &row["health"]), (&Value::Null, &json!("failed")));
        assert_eq!(row["volumes"], json!([]));
        let [left, held] = &row["not_served"].as_array().unwrap()[..] else { panic!("{row:?}") };
        assert_eq!((&left["id"], &left["name"]), (&json!("07".repeat(16)), &json!("demo")));
        assert_eq!(left["journal"], "/d/volumes/07/journal");
        assert_eq!((&left["holder"], &held["holder"]), (&Value::Null, &json!(12)));
        let reason = left["reason"].as_str().unwrap();
        assert!(reason.contains("demo (0707"), "{reason}");
        let removes = "`weir volume delete demo --discard-journal --store file:///s1` removes them";
        assert!(reason.contains(removes), "another store may have a volume of that name: {reason}");
        assert_eq!(left["store"], "file:///s1");
        assert_eq!(row["reasons"], json!([left["reason"], held["reason"]]));
    }

    #[test]
    fn limits_are_said_where_there_are_any() {
        let both = Limits {
            upload_bytes_per_second: Some(5 << 20),
            upload_requests_per_second: Some(7),
            drain: true,
        };
        let expected = Some("  uploads at most 5.0 MiB/s, 7 requests/s\n".to_owned());
        assert_eq!(limits(&both), expected);
        assert_eq!(limits(&Limits::default()), None);
    }

    #[test]
    fn the_cache_is_said_where_there_is_one() {
        assert_eq!(cache(&CacheReport::default()), None);
        let mut report =
            CacheReport { capacity_bytes: 8 << 30, bytes: 2 << 30, ..CacheReport::default() };
        let text = |report: &CacheReport| cache(report).expect("there is one");
        assert_eq!(text(&report), "  cache: 2.0 GiB of 8.0 GiB on the local disk\n");
        (report.hits, report.misses, report.recovered_permille) = (3, 1, Some(505));
        assert!(
            text(&report)
                .ends_with("75 % of the reads beyond memory, 50 % of it known after a crash\n")
        );
        (report.damaged, report.bad_ms) = (1, Some(3000));
        assert!(text(&report).ends_with("; 1 damaged block, the last 3 s ago\n"));
        (report.failed, report.none_because) = (true, Some("EIO".to_owned()));
        assert_eq!(text(&report), "  cache: left out until the next start: EIO\n");
        let why = Some("there is no room".to_owned());
        let mut report = CacheReport { none_because: why, missing: true, ..CacheReport::default() };
        assert_eq!(text(&report), "  cache: none: there is no room\n");
        report.changing = Some("is being opened, for 5 s".to_owned());
        assert!(text(&report).starts_with("  cache: it is being opened, for 5 s;"));
    }

    #[test]
    fn what_bounds_the_background_is_said() {
        let said = |bytes_per_second, drain, classes| {
            let status = Background { bytes_per_second, classes, ..Background::default() };
            background(&status, &Limits { drain, ..Limits::default() })
        };
        let classes = || vec![BackgroundClass::default()];
        assert_eq!(said(None, false, Vec::new()), None, "an older process");
        let start = "  background: uploads and copies at";
        let free = format!("{start} full speed: no client asks for anything\n");
        assert_eq!(said(None, false, classes()), Some(free));
        let held =
            "up to 120.0 MiB/s, held back for clients, but for what clients or commands wait for";
        assert_eq!(said(Some(120 << 20), false, classes()), Some(format!("{start} {held}\n")));
        let drained = said(None, true, classes()).unwrap();
        assert!(drained.contains("until weir limits set --drain off"), "{drained}");
        let limits = Limits { upload_requests_per_second: Some(1), ..Limits::default() };
        let status = Background { classes: classes(), ..Background::default() };
        let limited = background(&status, &limits).unwrap();
        assert!(limited.ends_with(", within the limits on uploads\n"), "{limited}");
    }
}
