//! `weir cache`: the cache on the local disk, of the process that has it and of none.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use weir_node::api::types::{CacheFileReport, CacheOfVolume, CacheReport, CacheShown};
use weir_node::config::Config;
use weir_node::size::{counted, human};
use weir_node::verbs::command::Question;
use weir_node::{CacheSetting, Home, KnownCache, Node, NodeError, ProcessId};

use crate::cli::cache::CacheCommand;
use crate::cli::global::Global;
use crate::process::threads;
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say};
use crate::terminal::{confirm, form};

/// Runs the verb.
pub(crate) fn run(global: &Global, file: &Config, verb: CacheCommand) -> Result<ExitCode, Failure> {
    let home = settings::home(global, file)?;
    threads::on_node(settings::verb_node(global, file), async |node| {
        match verb {
            CacheCommand::Show { output } => show(node, home, output.output).await?,
            CacheCommand::Resize { size, output } => {
                let (process, resized) = node.resize_cache(home, size).await?;
                if output.output == OutputForm::Json {
                    output::print_json(&resized)?;
                } else {
                    say!("process {process}: {}", what_it_has(&resized.cache));
                    say!("{}", resized.next_start);
                }
            }
            CacheCommand::Create { size, output } => {
                let made = node.create_cache(home, size).await?;
                let size = CacheSetting::Bytes(size);
                match output.output {
                    OutputForm::Json => output::print_json(&made)?,
                    OutputForm::Table => say!(
                        "made {} for --cache {size}: it takes {} and has room for {}; a start uses it that is given \
                         {size}, or \"auto\" where the store is on another disk",
                        made.path,
                        human(made.bytes),
                        human(made.capacity_bytes)
                    ),
                }
            }
            CacheCommand::Destroy { yes, output } => destroy(node, home, yes, output).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn destroy(node: &Node, home: Home, yes: bool, output: form::Output) -> Result<(), Failure> {
    let path = home.data.cache().join("blocks").display().to_string();
    if !yes {
        confirm::by_name(&Question {
            name: "cache".to_owned(),
            asked: format!("Remove the cache {path}? Type cache"),
            doing: "removing the cache".to_owned(),
            without_asking: "pass --yes to remove it without being asked".to_owned(),
            otherwise: "the cache was not removed".to_owned(),
        })?;
    }
    node.destroy_cache(home).await?;
    match output.output {
        OutputForm::Json => output::print_json(&json!({ "path": path })),
        OutputForm::Table => {
            say!("removed {path}");
            Ok(())
        }
    }
}

async fn show(node: &Node, home: Home, form: OutputForm) -> Result<(), Failure> {
    let KnownCache { file, processes } = node.known_cache(home).await?;
    let unsaid = processes.iter().filter_map(|(_, shown)| shown.as_ref().err());
    unsaid.for_each(|error| say!("warning: {error}"));
    let said = |(id, shown): (ProcessId, Result<CacheShown, NodeError>)| Some((id, shown.ok()?));
    let processes: Vec<_> = processes.into_iter().filter_map(said).collect();
    if form == OutputForm::Json {
        let processes: Vec<_> = processes.iter().map(|(_, shown)| shown).collect();
        return output::print_json(&json!({ "file": file, "processes": processes }));
    }
    let used = processes.iter().find(|(_, shown)| shown.cache.capacity_bytes > 0);
    match (&file, used) {
        (Some(file), used) => output::print_table(&[], rows_of_file(file, used.is_some()))?,
        (None, Some((id, shown))) => output::print_table(&[], rows_of_gone(*id, &shown.path))?,
        (None, None) => output::print("there is no file\n")?,
    }
    for (id, shown) in &processes {
        output::print(&format!("\nprocess {id}\n"))?;
        output::print_table(&[], rows_of(shown))?;
        if shown.cache.capacity_bytes > 0 && !shown.volumes.is_empty() {
            output::print("\n")?;
            let headings = ["VOLUME", "HOLDS", "AT MOST", "HITS", "MISSES", "HIT RATIO"];
            output::print_table(&headings, shown.volumes.iter().map(row).collect())?;
        }
    }
    Ok(())
}

fn rows(rows: Vec<(&str, String)>) -> Vec<Vec<String>> {
    rows.into_iter().map(|(key, value)| vec![key.to_owned(), value]).collect()
}

/// A file that was removed while a process uses it.
fn rows_of_gone(id: ProcessId, path: &str) -> Vec<Vec<String>> {
    let state =
        format!("gone: it was removed, and what it holds goes with the end of process {id}");
    rows(vec![("file", path.to_owned()), ("state", state)])
}

fn rows_of_file(file: &CacheFileReport, is_used: bool) -> Vec<Vec<String>> {
    if let Some(why) = &file.unread {
        let state = format!("unknown: {why}");
        return rows(vec![("file", file.path.clone()), ("state", state)]);
    }
    let mut shown = vec![("file", file.path.clone()), ("size", human(file.bytes))];
    if let Some(trouble) = &file.trouble {
        shown.push(("state", format!("of no use, the next start begins anew: {trouble}")));
        return rows(shown);
    }
    shown.push(("room", human(file.capacity_bytes)));
    shown.push(("format", format!("version {}", file.version)));
    let state = match (is_used, file.closed) {
        (true, _) => "in use",
        (false, true) => "closed in order: what is in it is there at the next start",
        (false, false) => "not closed in order: it is read at the next start",
    };
    shown.push(("state", state.to_owned()));
    shown.push(("opened", counted(file.openings, "time")));
    rows(shown)
}

/// What a process has, in a few words.
fn what_it_has(cache: &CacheReport) -> String {
    match &cache.none_because {
        Some(why) if cache.failed => format!("the cache is left out until the next start: {why}"),
        Some(why) => format!("no cache: {why}"),
        None => {
            format!(
                "a cache that takes {} of the disk, has room for {} and holds {}",
                human(cache.file_bytes),
                human(cache.capacity_bytes),
                human(cache.bytes)
            )
        }
    }
}

/// Reads and writes of it that went wrong, in a few words; nothing where none did.
pub(crate) fn bad(cache: &CacheReport) -> Option<String> {
    let counts = [
        (cache.damaged, "damaged block"),
        (cache.failed_reads, "failed read"),
        (cache.failed_fills, "failed write"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let told: Vec<_> = counts.map(|(count, what)| counted(count, what)).collect();
    let since = cache.bad_ms.map_or_else(String::new, |ago| {
        format!(", the last {} ago", age(Duration::from_millis(ago)))
    });
    (!told.is_empty()).then(|| format!("{}{since}", told.join(", ")))
}

/// A time in whole seconds, minutes, hours or days.
fn age(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn rows_of(shown: &CacheShown) -> Vec<Vec<String>> {
    let cache = &shown.cache;
    let doing = cache.changing.as_ref().map(|doing| ("now", format!("it {doing}")));
    if let Some(why) = &cache.none_because {
        let what = if cache.failed { "left out" } else { "none" };
        return rows([(what, why.clone())].into_iter().chain(doing).collect());
    }
    let bands = format!("{} of {} bands", cache.bands, cache.band_places);
    let written = format!("{}, {}", human(cache.filled_bytes), counted(cache.fills, "fill"));
    let written = match shown.filled_bytes_per_day {
        None => written,
        Some(bytes) => format!("{written}; {} a day", human(bytes)),
    };
    let mut said = vec![
        ("holds", format!("{} of {}, {bands}", human(cache.bytes), human(cache.capacity_bytes))),
        ("hit ratio", ratio(cache.hits, cache.misses)),
        ("written", written),
        ("collector", format!("{} read here", counted(cache.copied, "frame"))),
        ("evictions", counted(cache.evictions, "band")),
        ("left out", counted(cache.dropped, "fill")),
        ("memory", human(cache.memory_bytes)),
    ];
    if let (Some(left), Some(per_day)) = (cache.wear_bytes_left, cache.wear_bytes_per_day) {
        let worn = counted(cache.worn, "fill");
        let limit = format!("{} a day, {} now; {worn} left out", human(per_day), human(left));
        said.push(("may write", limit));
    }
    if cache.over_share > 0 {
        said.push(("over a share", format!("{} left out", counted(cache.over_share, "band"))));
    }
    if let Some(permille) = cache.recovered_permille {
        said.push(("known", format!("{} % of it, after a crash", permille / 10)));
    }
    said.extend(bad(cache).map(|bad| ("went wrong", bad)));
    said.extend(doing);
    if shown.other_bands > 0 {
        said.push(("of others", counted(shown.other_bands, "band")));
    }
    rows(said)
}

fn row(volume: &CacheOfVolume) -> Vec<String> {
    vec![
        volume.name.clone(),
        counted(volume.bands, "band"),
        volume.share_percent.map_or_else(String::new, |percent| format!("{percent} %")),
        volume.hits.to_string(),
        volume.misses.to_string(),
        ratio(volume.hits, volume.misses),
    ]
}

fn ratio(hits: u64, misses: u64) -> String {
    let share = (hits * 1000).checked_div(hits + misses);
    share.map_or("no reads yet".to_owned(), |share| format!("{}.{} %", share / 10, share % 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rows: &[Vec<String>]) -> String {
        rows.iter().map(|row| row.join(": ")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_there_is_of_a_file_is_said() {
        let file = CacheFileReport { version: 1, openings: 1, ..CacheFileReport::default() };
        let state = |file: &CacheFileReport, is_used| text(&rows_of_file(file, is_used));
        assert!(state(&file, true).contains("state: in use"));
        assert!(state(&file, false).contains("state: not closed in order"));
        let closed = CacheFileReport { closed: true, ..file.clone() };
        assert!(state(&closed, false).contains("state: closed in order"));
        let broken = CacheFileReport { trouble: Some("it is too short".to_owned()), ..file };
        let said = state(&broken, false);
        assert!(
            said.contains("begins anew: it is too short") && !said.contains("version"),
            "{said}"
        );
    }

    #[test]
    fn a_process_says_what_its_cache_is_or_why_it_has_none() {
        let cache = CacheReport {
            capacity_bytes: 1 << 30,
            bytes: 1 << 20,
            bands: 4,
            band_places: 4096,
            hits: 2,
            misses: 1,
            fills: 1,
            ..CacheReport::default()
        };
        let mut shown = CacheShown { cache, ..CacheShown::default() };
        let said = text(&rows_of(&shown));
        for line in ["holds: 1.0 MiB of 1.0 GiB, 4 of 4096 bands", "hit ratio: 66.6 %", "1 fill"] {
            assert!(said.contains(line), "{said}");
        }
        assert!(!said.contains("a day") && !said.contains("known"), "{said}");
        shown.filled_bytes_per_day = Some(5 << 30);
        shown.cache.recovered_permille = Some(425);
        let said = text(&rows_of(&shown));
        assert!(said.contains("5.0 GiB a day") && said.contains("known: 42 %"), "{said}");
        shown.cache.none_because = Some("it is turned off".to_owned());
        assert_eq!(text(&rows_of(&shown)), "none: it is turned off");
        shown.cache.failed = true;
        assert_eq!(text(&rows_of(&shown)), "left out: it is turned off");
        shown.cache.changing = Some("is being opened, for 5 s".to_owned());
        assert!(text(&rows_of(&shown)).ends_with("\nnow: it is being opened, for 5 s"));
    }

    #[test]
    fn what_went_wrong_is_said_and_when() {
        let mut cache = CacheReport::default();
        assert_eq!(bad(&cache), None);
        (cache.damaged, cache.failed_fills, cache.bad_ms) = (2, 1, Some(90_000));
        let told = "2 damaged blocks, 1 failed write, the last 90 s ago";
        assert_eq!(bad(&cache).as_deref(), Some(told));
        let ages = [119, 120, 7200, 172_800].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["119 s", "2 min", "2 h", "2 days"]);
    }

    #[test]
    fn a_file_that_is_gone_or_cannot_be_looked_at_is_said() {
        let gone = text(&rows_of_gone(ProcessId(Some(7)), "/data/cache/blocks"));
        assert!(gone.starts_with("file: /data/cache/blocks\nstate: gone"), "{gone}");
        let unread = Some("permission denied".to_owned());
        let file = CacheFileReport { unread, ..CacheFileReport::default() };
        assert!(text(&rows_of_file(&file, true)).ends_with("state: unknown: permission denied"));
    }
}
