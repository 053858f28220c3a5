//! Filling a volume from an image or from another volume.
//!
//! A volume that is being filled says so in its manifest until all of it is there: nothing but a copy opens it, so that
//! a copy that was interrupted never looks like a disk. How far it has come stands in a record beside its journal; the
//! next run goes on from there if it is about the same source.

use serde_json::Value;
use weir_node::api::types::{Shown, VolumeState};
use weir_node::size::{counted, human};
use weir_node::verbs::flush::FlushVolume;
use weir_node::{CopyRecord, Mark, Node};

use super::copier::{self, Job};
use super::image::Image;
use super::place::{Place, Use, VolumeAt, is_incomplete, volume_id};
use super::qemu::{self, SECTOR_BYTES};
use super::stream;
use crate::process::signals::Signals;
use crate::settings::Transfer;
use crate::terminal::failure::Failure;
use crate::terminal::output::say_of_work;

/// Everything that was acknowledged goes to the store.
const TO_STORE: FlushVolume = FlushVolume { remote: true, wait: true, publish: false };

/// Where the bytes come from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Image(&'a Image),
    Volume(&'a Place),
    /// Standard input, which has so many bytes.
    Input(u64),
}

impl Source<'_> {
    fn size(&self) -> u64 {
        match self {
            Self::Image(image) => image.size,
            Self::Volume(place) => place.size,
            Self::Input(size) => *size,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Image(image) => image.path.display().to_string(),
            Self::Volume(place) => place.at.to_string(),
            Self::Input(_) => "standard input".to_owned(),
        }
    }

    /// As `qemu-img` names it; nothing for what it cannot read.
    fn node(&self) -> Result<Option<Value>, Failure> {
        match self {
            Self::Image(image) => qemu::file_node(&image.path, &image.format).map(Some),
            Self::Volume(place) => qemu::nbd_node(&place.uri).map(Some),
            Self::Input(_) => Ok(None),
        }
    }

    /// A record of a copy from here that begins now, into a volume whose newest opening has this number.
    fn record(&self, blank: bool, target_opening: Option<u64>) -> CopyRecord {
        let (identity, opening) = match self {
            Self::Image(image) => (image.identity.clone(), None),
            Self::Volume(place) => (place.identity(), place.opening),
            // A stream comes once: nothing goes on with it.
            Self::Input(_) => ("a stream".to_owned(), None),
        };
        let mut record = CopyRecord::new(self.name(), identity, opening, blank);
        record.target_opening = target_opening;
        record
    }

    /// Whether what `record` says was copied is still what is here.
    fn goes_on_from(&self, record: &CopyRecord) -> bool {
        match self {
            Self::Image(image) => image.is_known() && record.identity == image.identity,
            Self::Volume(place) => {
                record.identity == place.identity() && follows(place.opening, record.opening)
            }
            Self::Input(_) => false,
        }
    }
}

/// Whether nobody had the volume open between the opening that a record names and this one.
pub(super) fn follows(opening: Option<u64>, of_record: Option<u64>) -> bool {
    of_record.is_some_and(|before| Some(before + 1) == opening)
}

/// What the command line says of a filling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    pub(super) overwrite: bool,
    /// Bytes that the volume is to have.
    pub(super) size: Option<u64>,
}

/// What is to be done to the volume of the wanted name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Create { size: u64 },
    GoOn(Done),
    Anew,
}

impl Plan {
    /// What is there already.
    fn done(self) -> Done {
        match self {
            Self::Create { .. } => Done { bytes: 0, blank: true },
            Self::GoOn(done) => done,
            Self::Anew => Done { bytes: 0, blank: false },
        }
    }
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    bytes: u64,
    /// What it did not write reads as zeroes.
    blank: bool,
}

/// What the volume of the wanted name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    size: u64,
    state: VolumeState,
    /// What is there of this very copy.
    done: Option<Done>,
}

/// Decides, or says what is in the way and what the way out is.
fn plan(found: Option<Found>, bytes: u64, wishes: Wishes) -> Result<Plan, (String, String)> {
    let refuse = |why: String, way_out: &str| Err((why, way_out.to_owned()));
    if let Some(size) = wishes.size.filter(|size| *size < bytes) {
        let why = format!("{} are too little for the {bytes} bytes of the source", human(size));
        return refuse(why, "leave --size away for a volume of its size");
    }
    let Some(Found { size, state, done }) = found else {
        return Ok(Plan::Create { size: wishes.size.unwrap_or(bytes) });
    };
    match (state, done) {
        (VolumeState::Deleted, _) => {
            return refuse("it is being deleted".to_owned(), "run the deletion again first");
        }
        (VolumeState::Replica, _) => {
            return refuse("it is a replica".to_owned(), "choose another name");
        }
        (VolumeState::Active, _) if !wishes.overwrite => {
            let way_out = "choose another name, or pass --overwrite to lose everything in it";
            return refuse("it exists already".to_owned(), way_out);
        }
        (VolumeState::Incomplete, None) if !wishes.overwrite => {
            return refuse(
                "it is partly filled, and not from this".to_owned(),
                "delete it, or pass --overwrite to fill it anew",
            );
        }
        _ => {}
    }
    if size < bytes || wishes.size.is_some_and(|wanted| wanted != size) {
        let wanted = wishes.size.unwrap_or(bytes);
        let way_out = "grow it with `weir volume resize`, or delete it first";
        return refuse(format!("it has {size} bytes, not {wanted}"), way_out);
    }
    Ok(match (state, done) {
        (VolumeState::Incomplete, Some(done)) => Plan::GoOn(done),
        _ => Plan::Anew,
    })
}

/// A volume that somebody uses is not written over behind their back.
fn refuse_if_used(at: &VolumeAt, shown: &Shown) -> Result<(), Failure> {
    let name = &at.name;
    let process =
        shown.process.map_or_else(String::new, |process| format!(" by process {process}"));
    match &shown.serving {
        Some(_) if is_incomplete(shown) => {
            Err(Failure::new(format!("volume {name} is being filled{process}"))
                .with_help("wait for it; if it is killed, the next run goes on where it stopped"))
        }
        Some(serving) if serving.read_only => {
            Err(Failure::new(format!("volume {name} is served read-only{process}"))
                .with_help("end that process first, or serve the volume without --read-only"))
        }
        Some(serving) if serving.clients > 0 => Err(Failure::new(format!(
            "volume {name} is served{process} to {}, which would read other bytes than they wrote",
            counted(serving.clients, "client")
        ))
        .with_help("disconnect them first")),
        _ => Ok(()),
    }
}

/// Fills a volume; what it is then.
pub(super) async fn run(
    node: &Node,
    setup: &Transfer,
    (source, target): (&Source<'_>, &VolumeAt),
    wishes: Wishes,
    signals: &mut Signals,
) -> Result<Shown, Failure> {
    let bytes = source.size();
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(Failure::new(format!(
            "{} has {bytes} bytes, no multiple of 512",
            source.name()
        ))
        .with_help("grow it to one with `weir volume resize` first"));
    }
    let found = target.look(node).await?;
    let seen = match &found {
        Some(shown) => {
            refuse_if_used(target, shown)?;
            let (size, state) = (shown.size_bytes, shown.state);
            Some(Found { size, state, done: done(source, target, shown)? })
        }
        None => None,
    };
    let plan = plan(seen, bytes, wishes).map_err(|(why, way_out)| {
        Failure::new(format!("volume {target}: {why}")).with_help(way_out)
    })?;
    let shown = begin(node, (source, target), (plan, found)).await?;
    let place = Place::reach(node, setup, (target, &shown), Use::Fill, signals).await?;
    let served_elsewhere = place.is_served_elsewhere();
    let filled = match plan_now(node, (target, plan), (&place, &shown)).await {
        Ok(plan) => fill(node, (source, &place), plan, signals).await,
        Err(failure) => Err(failure),
    };
    let ended = place.end(signals).await;
    filled.map_err(|failure| match source {
        Source::Volume(from) => from
            .with_way_to_read(failure.clone())
            .unwrap_or_else(|| with_way_on(failure, target, served_elsewhere)),
        Source::Input(_) => with_way_back(failure, target),
        Source::Image(image) if !image.is_known() => with_way_back(failure, target),
        _ => with_way_on(failure, target, served_elsewhere),
    })?;
    ended?;
    if let Source::Image(image) = source {
        image.check_unchanged()?;
    }
    finish(node, target, served_elsewhere).await
}

/// The plan once the volume is open. Where other openings came between, all of it is written: they may be those of
/// somebody else, who wrote something.
async fn plan_now(
    node: &Node,
    (target, plan): (&VolumeAt, Plan),
    (place, shown): (&Place, &Shown),
) -> Result<Plan, Failure> {
    let is_next = place.opening.is_none_or(|opening| follows(Some(opening), Some(shown.epoch)));
    if is_next || plan == Plan::Anew {
        return Ok(plan);
    }
    match target.look(node).await? {
        Some(now) if is_incomplete(&now) => Ok(Plan::Anew),
        _ => Err(Failure::new(format!("somebody else filled volume {target} just now"))),
    }
}

/// What is there of a copy, if nobody else opened the target since; it had so many openings.
fn still_there(record: &CopyRecord, openings: u64, is_closed: bool) -> Option<Done> {
    let (bytes, blank) = (record.done_bytes, record.blank);
    match record.target_opening? {
        last if last == openings => Some(Done { bytes, blank }),
        // An opening that was not closed: that of a run here which was killed before it noted it. If it is somebody
        // else's, the volume cannot be opened here.
        last if last + 1 == openings && !is_closed && bytes > 0 => Some(Done { bytes, blank }),
        // Of several of those one may have been somebody else's, so that all is written again.
        last if last < openings && !is_closed => Some(Plan::Anew.done()),
        _ => None,
    }
}

/// What is there of a copy of `source`.
fn done(source: &Source<'_>, at: &VolumeAt, shown: &Shown) -> Result<Option<Done>, Failure> {
    let path = at.home.data.copy_record(volume_id(shown)?);
    let record = CopyRecord::read(&path)
        .map_err(|error| Failure::new(format!("reading {}: {error}", path.display())))?;
    Ok(match record {
        Some(record) if source.goes_on_from(&record) => {
            still_there(&record, shown.epoch, shown.holder.is_none())
        }
        // It was created to be filled, and never opened.
        None if shown.epoch == 0 && !matches!(source, Source::Input(_)) => {
            Some(Done { bytes: 0, blank: true })
        }
        _ => None,
    })
}

/// Creates the volume, or marks the one that is there, so that nobody takes it for whole.
///
/// What is being filled, and from where, is written down before anybody can find the volume incomplete and opened: a
/// process that is killed in between would leave one that nobody can go on with, or an older record to go on from.
async fn begin(
    node: &Node,
    (source, target): (&Source<'_>, &VolumeAt),
    (plan, found): (Plan, Option<Shown>),
) -> Result<Shown, Failure> {
    let (home, name) = (target.home.clone(), target.name.clone());
    match (plan, found) {
        (Plan::Create { size }, _) => {
            let takeover = weir_log::Takeover::default();
            let shown = node.mark_volume(home, name, Mark::New { size, takeover }).await?;
            note_begun(source, target, (plan, &shown))?;
            Ok(shown)
        }
        (_, Some(shown)) if shown.serving.is_some() => Ok(shown),
        (_, Some(shown)) if is_incomplete(&shown) => {
            note_begun(source, target, (plan, &shown))?;
            Ok(shown)
        }
        (_, found) => {
            if let Some(shown) = &found {
                note_begun(source, target, (plan, shown))?;
            }
            // One that was not closed is opened and closed first: only then can it be marked.
            node.call(home.clone(), Some(name.clone()), TO_STORE, |_, _| {}).await?;
            let shown = node.mark_volume(home, name, Mark::Incomplete).await?;
            // That was one opening more.
            note_begun(source, target, (plan, &shown))?;
            Ok(shown)
        }
    }
}

/// Writes down what the volume is about to be filled from, unless that stands there already.
fn note_begun(
    source: &Source<'_>,
    target: &VolumeAt,
    (plan, shown): (Plan, &Shown),
) -> Result<(), Failure> {
    let done = plan.done();
    if done.bytes > 0 {
        return Ok(());
    }
    let path = target.home.data.copy_record(volume_id(shown)?);
    let failed = |error| Failure::new(format!("writing {}: {error}", path.display()));
    source.record(done.blank, Some(shown.epoch)).write(&path).map_err(failed)
}

async fn fill(
    node: &Node,
    (source, place): (&Source<'_>, &Place),
    plan: Plan,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let done = plan.done();
    if done.bytes > 0 {
        say_of_work!("going on after {} of {}", human(done.bytes), human(source.size()));
    }
    let Some(from) = source.node()? else {
        return tokio::select! {
            biased;
            number = signals.next() => Err(copier::interrupted(number)),
            read = stream::read_in(&place.uri, source.size(), done.blank) => read,
        };
    };
    let job = Job {
        source: from,
        source_bytes: source.size(),
        target: qemu::nbd_node(&place.uri)?,
        target_bytes: place.size,
        target_is_zero: done.blank,
        done_bytes: done.bytes,
        label: format!("copying {} to {}", source.name(), place.at.name),
    };
    let path = place.at.home.data.copy_record(place.id);
    let mut record = source.record(done.blank, place.opening);
    let mut keep = async |done_bytes| {
        let (home, name) = (place.at.home.clone(), place.at.name.clone());
        let locally = FlushVolume { remote: false, wait: true, publish: false };
        node.call(home, Some(name), locally, |_, _| {}).await?;
        record.done_bytes = done_bytes;
        // What another process serves may change between two runs: there is no going on.
        if place.is_served_elsewhere() {
            return Ok(());
        }
        record
            .write(&path)
            .map_err(|error| Failure::new(format!("writing {}: {error}", path.display())))
    };
    // Now already: these openings of source and target are the ones to go on from.
    keep(done.bytes).await?;
    copier::run(&job, signals, keep).await
}

fn with_way_on(failure: Failure, target: &VolumeAt, served_elsewhere: bool) -> Failure {
    let name = &target.name;
    failure.with_help(if served_elsewhere {
        format!("{name} holds a part of it now; run the same command again to write all of it")
    } else {
        format!(
            "run the same command again to go on where it stopped; `weir volume delete {name}` gives it up"
        )
    })
}

/// A stream does not come again by itself.
fn with_way_back(failure: Failure, target: &VolumeAt) -> Failure {
    let name = &target.name;
    failure.with_help(format!(
        "{name} holds a part of it: import it again with --overwrite, or `weir volume delete {name}`"
    ))
}

/// Everything is there: says so.
async fn finish(node: &Node, target: &VolumeAt, served_elsewhere: bool) -> Result<Shown, Failure> {
    let (home, name) = (target.home.clone(), target.name.clone());
    if served_elsewhere {
        node.call(home, Some(name), TO_STORE, |_, _| {}).await?;
    } else {
        let shown = node.mark_volume(home, name, Mark::Complete).await?;
        // It says nothing any more; one that stays is not looked at.
        let _ = std::fs::remove_file(target.home.data.copy_record(volume_id(&shown)?));
    }
    let gone = || Failure::new(format!("volume {target} is gone"));
    target.look(node).await?.ok_or_else(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Wishes = Wishes { overwrite: false, size: None };
    const OVERWRITE: Wishes = Wishes { overwrite: true, size: None };

    const HALF: Done = Done { bytes: 500, blank: false };

    fn found(state: VolumeState, done: Option<Done>) -> Option<Found> {
        Some(Found { size: 1000, state, done })
    }

    #[test]
    fn a_copy_goes_on_only_where_nobody_had_the_source_open_in_between() {
        let cases = [(Some(8), true), (Some(9), false), (Some(7), false), (None, false)];
        for (opening, goes_on) in cases {
            assert_eq!(follows(opening, Some(7)), goes_on, "{opening:?}");
            assert!(!follows(opening, None));
        }
    }

    #[test]
    fn a_copy_goes_on_only_where_nobody_else_had_the_target_open_since() {
        let new = CopyRecord::new("x".to_owned(), "y".to_owned(), None, true);
        let of = |target_opening, done_bytes| {
            let mut record = new.clone();
            (record.target_opening, record.done_bytes) = (target_opening, done_bytes);
            record
        };
        let done = |bytes, blank| Some(Done { bytes, blank });
        assert_eq!(still_there(&of(Some(7), 500), 7, true), done(500, true));
        assert_eq!(still_there(&of(Some(7), 500), 7, false), done(500, true));
        // Somebody opened and closed it since.
        assert_eq!(still_there(&of(Some(7), 500), 8, true), None);
        assert_eq!(still_there(&of(Some(7), 500), 9, true), None);
        // A run that was killed as soon as it had opened it.
        assert_eq!(still_there(&of(Some(7), 500), 8, false), done(500, true));
        assert_eq!(still_there(&of(Some(7), 0), 9, false), done(0, false));
        // Two of them.
        assert_eq!(still_there(&of(Some(7), 500), 9, false), done(0, false));
        assert_eq!(still_there(&of(Some(7), 0), 9, true), None);
        assert_eq!(still_there(&of(None, 500), 7, true), None, "an older format");
    }

    fn why(plan: Result<Plan, (String, String)>) -> String {
        plan.unwrap_err().0
    }

    #[test]
    fn a_new_volume_gets_the_size_of_the_source_or_the_one_asked_for() {
        assert_eq!(plan(None, 1000, NONE), Ok(Plan::Create { size: 1000 }));
        let larger = Wishes { size: Some(2000), ..NONE };
        assert_eq!(plan(None, 1000, larger), Ok(Plan::Create { size: 2000 }));
        assert!(why(plan(None, 3000, larger)).contains("too little"));
    }

    #[test]
    fn what_is_there_is_written_over_only_when_asked_for() {
        assert!(why(plan(found(VolumeState::Active, None), 1000, NONE)).contains("exists"));
        assert_eq!(plan(found(VolumeState::Active, None), 900, OVERWRITE), Ok(Plan::Anew));
        let stale = found(VolumeState::Active, Some(HALF));
        assert!(why(plan(stale, 1000, NONE)).contains("exists"), "its record says nothing");
        assert_eq!(plan(stale, 1000, OVERWRITE), Ok(Plan::Anew), "others wrote since");
        assert!(
            why(plan(found(VolumeState::Active, None), 1001, OVERWRITE)).contains("1000 bytes")
        );
        assert!(why(plan(found(VolumeState::Deleted, None), 1, OVERWRITE)).contains("deleted"));
    }

    #[test]
    fn an_interrupted_copy_goes_on_and_another_one_does_not() {
        let ours = found(VolumeState::Incomplete, Some(HALF));
        assert_eq!(plan(ours, 1000, NONE), Ok(Plan::GoOn(HALF)));
        let other = found(VolumeState::Incomplete, None);
        assert!(why(plan(other, 1000, NONE)).contains("not from this"));
        assert_eq!(plan(other, 1000, OVERWRITE), Ok(Plan::Anew));
        let larger = Wishes { size: Some(2000), ..NONE };
        assert!(why(plan(ours, 1000, larger)).contains("not 2000"));
    }
}
