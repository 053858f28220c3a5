//! `weir volume check` and `weir volume repair`.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::ProgressBar;
use weir_device::ErrorKind;
use weir_log::catalog::VolumeName;
use weir_log::{CheckOptions, GIVEN_UP, ObjectId};
use weir_node::api::types::{CheckReport, Damage, RepairReport};
use weir_node::size::{counted, human};
use weir_node::verbs::check::{CheckVolume, OnWhole};
use weir_node::verbs::command::Question;
use weir_node::verbs::flush::FlushVolume;
use weir_node::verbs::repair::RepairVolume;
use weir_node::{Home, Node, NodeError};

use crate::cli::volume::CheckLimits;
use crate::terminal::failure::{DAMAGED, Failure};
use crate::terminal::form::OutputForm;
use crate::terminal::output::say_of_work;
use crate::terminal::{confirm, output};

/// What is to be repaired, and how.
pub(crate) struct Repair {
    pub(crate) name: VolumeName,
    pub(crate) zero: bool,
    pub(crate) yes: bool,
    pub(crate) form: OutputForm,
}

/// Checks a volume, and prints what was found.
pub(crate) async fn run(
    node: &Node,
    home: Home,
    name: VolumeName,
    limits: &CheckLimits,
    form: OutputForm,
) -> Result<ExitCode, Failure> {
    let report = look(node, home, &name, limits).await?;
    match form {
        OutputForm::Json => output::print_json(&report)?,
        OutputForm::Table => output::print(&describe(&name, &report))?,
    }
    Ok(if is_whole(&report) { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

fn is_whole(report: &CheckReport) -> bool {
    report.damage.is_empty() && report.incomplete.is_none()
}

/// Has the process that serves the volume, if there is one, publish what the store lacks: the check looks at the store.
async fn publish(node: &Node, home: &Home, name: &VolumeName) -> Result<(), Failure> {
    let publish = FlushVolume { remote: true, wait: true, publish: true };
    match node.call_holder(home.clone(), name.clone(), publish).await {
        // A process of an older program does not know the word, and publishes before it gives up nothing.
        Err(NodeError::Remote { kind: ErrorKind::Invalid, .. }) => {
            write_anew(node, home, name).await?;
        }
        published => drop(published?),
    }
    Ok(())
}

/// Has the process that serves the volume publish manifest and checkpoint anew out of its memory; whether there is one.
async fn write_anew(node: &Node, home: &Home, name: &VolumeName) -> Result<bool, Failure> {
    let nothing = RepairVolume { objects: Vec::new(), zero: false };
    Ok(node.call_holder(home.clone(), name.clone(), nothing).await?.is_some())
}

/// What a repair is to mend, and whether a process that serves the volume has written manifest and checkpoint anew by
/// then, as something beside the objects was damaged.
async fn find_damage(
    node: &Node,
    home: &Home,
    name: &VolumeName,
    limits: &CheckLimits,
) -> Result<(CheckReport, bool), Failure> {
    publish(node, home, name).await?;
    let mut found = look(node, home.clone(), name, limits).await?;
    if let Some(reason) = &found.without_key {
        let message = format!("{name} cannot be repaired without its key: {reason}");
        return Err(Failure::new(message)
            .with_help("give the key with --key-file, --key-command or WEIR_KEY"));
    }
    let is_beside_objects = |damage: &Damage| {
        damage.problem != GIVEN_UP && ObjectId::parse_key(&damage.place).is_none()
    };
    let is_anew =
        found.damage.iter().any(is_beside_objects) && write_anew(node, home, name).await?;
    if is_anew {
        found = look(node, home.clone(), name, limits).await?;
    }
    Ok((found, is_anew))
}

/// Checks a volume, says what would be lost for good, and gives that up if a person agrees.
pub(crate) async fn repair(
    node: &Node,
    home: Home,
    limits: &CheckLimits,
    repair: Repair,
) -> Result<ExitCode, Failure> {
    let Repair { name, zero, yes, form } = repair;
    let (found, is_anew) = find_damage(node, &home, &name, limits).await?;
    let damaged = found.damage.iter().map(|damage| &damage.place);
    let is_object = |key: &&String| ObjectId::parse_key(key).is_some();
    let objects: Vec<String> =
        damaged.chain(&found.orphan_keys).filter(is_object).cloned().collect();
    if form == OutputForm::Table {
        output::print(&describe(&name, &found))?;
    }
    let is_given_up = |damage: &&Damage| damage.problem == GIVEN_UP;
    let beyond_repair =
        found.damage.iter().filter(|damage| !is_given_up(damage) && !is_object(&&damage.place));
    let beyond_repair = beyond_repair.count() as u64;
    let given_up = found.damage.iter().filter(is_given_up);
    let given_up: u64 = given_up.map(|damage| damage.lost_bytes).sum();
    let in_objects = found.damage.iter().filter(|damage| is_object(&&damage.place));
    let in_objects: u64 = in_objects.map(|damage| damage.lost_bytes).sum();
    let lost_bytes = in_objects + if zero { given_up } else { 0 };
    if lost_bytes > 0 && !yes {
        ask(&name, lost_bytes, zero)?;
    }
    let done = if objects.is_empty() && !(zero && given_up > 0) {
        // A process that serves it looks once more at what its clients could not read, if it has not just done so.
        if !is_anew {
            write_anew(node, &home, &name).await?;
        }
        RepairReport::default()
    } else {
        let bar = ProgressBar::no_length().with_message(format!("repairing {name}"));
        bar.set_style(output::style("{spinner} {msg}: {pos} of {len} objects"));
        let progress = bar.clone();
        let asked = RepairVolume { objects, zero };
        let repaired = node.call(home, Some(name.clone()), asked, move |done, total| {
            progress.set_length(total);
            progress.set_position(done);
        });
        let done = output::with_lines(&bar, "{pos} of {len} objects", repaired).await;
        bar.finish_and_clear();
        done?
    };
    match form {
        OutputForm::Json => {
            let document = serde_json::json!({
                "found": found, "repaired": done, "manifest_written_anew": is_anew,
            });
            output::print_json(&document)?;
        }
        OutputForm::Table => {
            let left = Left { beyond_repair, given_up: if zero { 0 } else { given_up } };
            output::print(&ending(&name, &done, is_anew, zero, &left))?;
        }
    }
    let is_left = done.snapshot_objects + done.origin_objects > 0;
    let is_done = !is_left && beyond_repair == 0 && found.incomplete.is_none();
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// Giving up cannot be undone, so a person types the name.
fn ask(name: &VolumeName, lost_bytes: u64, zero: bool) -> Result<(), Failure> {
    let lost = human(lost_bytes);
    let then = if zero { "reads as zeroes" } else { "cannot be read until it is written again" };
    confirm::by_name(&Question {
        name: name.to_string(),
        asked: format!(
            "Give up what of these {lost} no journal has, so that it {then}? Type the volume's name"
        ),
        doing: format!("giving up {lost} of {name}"),
        without_asking: "pass --yes to give them up without being asked".to_owned(),
        otherwise: format!("{name} stays as it is"),
    })
}

/// What a repair leaves.
struct Left {
    /// Damaged things beside objects.
    beyond_repair: u64,
    /// Bytes that were given up before.
    given_up: u64,
}

/// What came of a repair, for people.
fn ending(
    name: &VolumeName,
    done: &RepairReport,
    is_anew: bool,
    zero: bool,
    left: &Left,
) -> String {
    let mut text = match is_anew {
        true => format!(
            "{name}: the process that serves it wrote its manifest and its checkpoint anew\n"
        ),
        false => String::new(),
    };
    if !is_anew || *done != RepairReport::default() {
        text.push_str(&outcome(name, done, zero, left.beyond_repair > 0));
    }
    if left.beyond_repair > 0 {
        text.push_str(&format!(
            "{name}: {} beside its objects cannot be repaired; put what the store has of {name} back from a backup, or \
             go on with a replica\n",
            counted(left.beyond_repair, "damaged thing")
        ));
    }
    if left.given_up > 0 {
        text.push_str(&format!(
            "{name}: {} were given up before and cannot be read; write them anew, or pass --zero to make zeroes of \
             them\n",
            human(left.given_up)
        ));
    }
    text
}

/// What a repair did, for people.
fn outcome(name: &VolumeName, done: &RepairReport, zero: bool, has_rest: bool) -> String {
    let mut parts = Vec::new();
    if done.saved_bytes > 0 {
        parts.push(format!("{} were saved from the journal", human(done.saved_bytes)));
    }
    if done.lost_bytes > 0 {
        let then = if zero { "are zeroes now" } else { "were given up" };
        let (bytes, ranges) = (human(done.lost_bytes), counted(done.lost_ranges, "range"));
        parts.push(format!("{bytes} in {ranges} {then}"));
    }
    let objects = [
        (done.rewritten_objects, "of the map written anew"),
        (done.removed_objects, "that nobody needs removed"),
        (done.whole_objects, "can be read after all"),
        (done.snapshot_objects, "left damaged until the snapshots that need them are deleted"),
        (done.origin_objects, "of the volume that it was cloned from left damaged"),
        (
            done.pending_deletions,
            "that nobody needs any more left for later: the volume deletes them by itself",
        ),
    ];
    for (count, what) in objects.into_iter().filter(|(count, _)| *count > 0) {
        parts.push(format!("{} {what}", counted(count, "object")));
    }
    if parts.is_empty() {
        return match has_rest {
            false => format!("{name}: nothing to repair\n"),
            true => format!("{name}: nothing was repaired\n"),
        };
    }
    let again = match (done.origin_objects, done.rewritten_objects) {
        (0, 0) => String::new(),
        // Without its map a check cannot say which objects are missed, or what is lost with them.
        (0, _) => format!("repair {name} once more: what its damaged map hid shows now\n"),
        _ => format!(
            "{name} cannot be opened again without them: put them back, or write something to {name} while it is \
             served, which gives it a checkpoint of its own, and repair it once more\n"
        ),
    };
    format!("{name}: {}\n{again}", parts.join("; "))
}

/// Checks a volume with a progress bar, and notes the objects that are whole for another run, if that is wanted.
async fn look(
    node: &Node,
    home: Home,
    name: &VolumeName,
    limits: &CheckLimits,
) -> Result<CheckReport, Failure> {
    let record = limits.resume.as_deref().map(Record::open).transpose()?;
    let known_whole = record.as_ref().map(|record| record.known.clone()).unwrap_or_default();
    let options = CheckOptions { bytes_per_second: limits.bytes_per_second(), known_whole };
    let bar = ProgressBar::no_length().with_message(format!("checking {name}"));
    bar.set_style(output::style("{spinner} {msg}: {pos} of {len} objects"));
    let progress = bar.clone();
    let file = record.as_ref().map(|record| record.file.try_clone());
    let on_whole = OnWhole(file.and_then(Result::ok).map(|file| {
        Arc::new(move |whole: ObjectId| {
            // An object that could not be noted is only read again.
            let _ = writeln!(&file, "{}", whole.key());
        }) as _
    }));
    if let Some(rate) = limits.bytes_per_second() {
        let shown = node.show_volume(home.clone(), name.clone()).await?;
        if let Some(takes) = takes(shown.object_bytes, rate) {
            say_of_work!("checking {name}: {takes}");
        }
    }
    let check = CheckVolume { options, on_whole };
    let checked = node.call(home, Some(name.clone()), check, move |done, total| {
        progress.set_length(total);
        progress.set_position(done);
    });
    let report = output::with_lines(&bar, "{pos} of {len} objects", checked).await;
    bar.finish_and_clear();
    let report = report?;
    if let Some(record) = record {
        record.remove()?;
    }
    Ok(report)
}

/// Longest check that begins without a word.
const SHORT: u64 = 60;

/// What a check takes that is held to a rate; `None` where that is not long.
fn takes(bytes: u64, rate: NonZeroU64) -> Option<String> {
    let seconds = bytes / rate;
    if seconds <= SHORT {
        return None;
    }
    let time = match seconds {
        ..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    };
    let (bytes, rate) = (human(bytes), human(rate.get()));
    Some(format!("its {bytes} of objects take about {time} at {rate}/s (--limit)"))
}

/// The objects that an interrupted check found whole, one key a line. A line that a crash cut short is no key, and is
/// ignored.
struct Record {
    path: PathBuf,
    file: File,
    known: BTreeSet<ObjectId>,
}

impl Record {
    fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(format!("{}: {error}", path.display()));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let known: BTreeSet<ObjectId> = text.lines().filter_map(ObjectId::parse_key).collect();
        if known.is_empty() && !text.is_empty() {
            let message = format!("{} is no record of a check", path.display());
            return Err(Failure::usage(message).with_help("give a file that does not exist yet"));
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        if !text.is_empty() && !text.ends_with('\n') {
            writeln!(file).map_err(failed)?;
        }
        Ok(Self { path: path.to_owned(), file, known })
    }

    /// The check came to its end: the next one begins anew.
    fn remove(self) -> Result<(), Failure> {
        let failed = |error| Failure::new(format!("removing {}: {error}", self.path.display()));
        std::fs::remove_file(&self.path).map_err(failed)
    }
}

/// A report for people.
fn describe(name: &VolumeName, report: &CheckReport) -> String {
    let (objects, bytes) = (report.objects, human(report.bytes));
    let mut text = String::new();
    for damage in &report.damage {
        text.push_str(&format!("{}: {}\n", damage.place, damage.problem));
        for range in &damage.ranges {
            let end = range.offset + range.len;
            text.push_str(&format!("  bytes {} to {end} of the volume are lost\n", range.offset));
        }
        if damage.more_ranges > 0 {
            let (more, lost) = (damage.more_ranges, human(damage.lost_bytes));
            text.push_str(&format!("  and {more} ranges more; {lost} in all\n"));
        }
    }
    if let Some(reason) = &report.without_key {
        text.push_str(&format!(
            "only checksums were checked, without the key, and what is missing was not seen: {reason}\n"
        ));
    }
    let verdict = match (report.damage.len(), &report.incomplete) {
        (0, Some(reason)) => format!("nothing is damaged, but it is not whole: {reason}"),
        (0, None) if report.without_key.is_some() => "every checksum is right".to_owned(),
        (0, None) if report.awaited.is_some() => "what is there of it is whole".to_owned(),
        (0, None) => "it is whole".to_owned(),
        (1, _) => "one thing is damaged".to_owned(),
        (count, _) => format!("{count} things are damaged"),
    };
    let mut counts = format!("{}, {bytes} read", counted(objects, "object"));
    let others = [
        (report.known_objects, "known to be whole"),
        (report.pending_objects, "waiting to be deleted"),
        (report.void_objects, "void"),
        (report.orphans, "orphaned"),
    ];
    for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
        counts.push_str(&format!(", {count} {what}"));
    }
    if let Some(awaited) = &report.awaited {
        text.push_str(&format!("{awaited}: on its way, or missing; objects after it are there\n"));
    }
    text.push_str(&format!("{name}: {counts}; {verdict}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_may_lack_an_object_is_not_called_whole() {
        let name = VolumeName::new("demo").expect("a name");
        let awaited = CheckReport { awaited: Some("log/2-1".to_owned()), ..CheckReport::default() };
        let said = describe(&name, &awaited);
        assert!(said.contains("log/2-1: on its way, or missing"), "{said}");
        assert!(said.contains("; what is there of it is whole"), "{said}");
        assert!(describe(&name, &CheckReport::default()).contains("; it is whole"));
    }

    #[test]
    fn a_check_that_takes_long_says_so_before_it_begins() {
        let takes = |bytes, rate| takes(bytes, NonZeroU64::new(rate).unwrap());
        assert_eq!(takes(60 << 20, 1 << 20), None);
        let said = |bytes, rate| takes(bytes, rate).unwrap();
        assert!(said(10 << 30, 10 << 20).contains("about 17 minutes at 10.0 MiB/s"));
        assert!(said(300 << 30, 10 << 20).contains("about 8 hours"));
        assert!(
            said(129 << 20, 5).contains("its 129.0 MiB of objects take about 313 days at 5 B/s")
        );
    }
}
