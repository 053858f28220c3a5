//! A note beside the journal of a volume, with the name of the volume, its store and the URL of that: it is there while
//! the volume is open, and until it was closed with everything in the store. The journal itself does not say so, and
//! the store may be unreachable when somebody asks (`weir status`). A close without everything in the store adds how
//! much that lacks, and since when.
//!
//! A copy of a store has the same volumes, with the same identities and histories. A deletion there leaves the journal
//! alone that the note says is of another store. Nothing else that concerns data depends on the note, so an error of
//! the disk here fails no opening and no close.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use weir_device::VolumeId;
use weir_log::Closed;
use weir_log::catalog::VolumeName;
use weir_store::Store;

use crate::api::types::AtRisk;
use crate::data_directory::{DataDirectory, store_directory};
use crate::error::NodeError;
use crate::home::Home;

/// What the note calls the store in the data directory.
const EMBEDDED: &str = "embedded";

/// Lines of the note before the one of a close that left something in the journal alone.
const LINES: usize = 3;

/// Notes that the volume of `store` is open for writing.
pub(crate) fn note(home: &Home, store: &Store, id: VolumeId, name: &VolumeName) {
    let path = home.data.opened_as(id);
    let text = format!("{name}\n{}\n{}\n", place_of(home, store), home.store_url);
    if std::fs::read_to_string(&path).is_ok_and(|noted| noted == text) {
        return;
    }
    if let Err(error) = replace_file(&path, &text) {
        tracing::warn!(volume = %name, path = %path.display(), %error, "the name was not noted");
    }
}

/// A store as the note calls it, in one line: the same after a restart of the host, and after the data directory was
/// moved with the store in it.
fn place_of(home: &Home, store: &Store) -> String {
    let directory =
        |url: &str| store_directory(url).map(|path| path.canonicalize().unwrap_or(path));
    match directory(&home.store_url) {
        Some(path) if Some(&path) == directory(&home.data.store_url()).as_ref() => {
            EMBEDDED.to_owned()
        }
        Some(path) => format!("{path:?}"),
        None => store.location(),
    }
}

/// Gives a file this content, durably but for its name.
pub(crate) fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    // Written to a new file and renamed, so that nobody reads half a name.
    let new = path.with_extension("new");
    let mut options = std::fs::File::options();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    weir_disk::adopt_file(&file, &new)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

/// Whether the volume was opened out of another store than this, and not closed there. Not where the note does not say
/// which, as those of older builds.
pub(crate) fn is_of_another_store(home: &Home, store: &Store, id: VolumeId) -> bool {
    let noted = std::fs::read_to_string(home.data.opened_as(id)).unwrap_or_default();
    let place = noted.lines().nth(1).filter(|place| !place.is_empty());
    place.is_some_and(|place| place != place_of(home, store))
}

/// The volumes that notes say are of this name and store: each is open, or was not closed there. There are several
/// where one was deleted elsewhere, or lost by the store, and another came under its name.
pub(crate) fn noted_as(
    home: &Home,
    store: &Store,
    name: &VolumeName,
) -> Result<Vec<VolumeId>, NodeError> {
    let place = place_of(home, store);
    let is_of = |id: &VolumeId| {
        let noted = std::fs::read_to_string(home.data.opened_as(*id)).unwrap_or_default();
        let mut lines = noted.lines();
        lines.next() == Some(name.as_str()) && lines.next() == Some(&place)
    };
    Ok(home.data.volumes()?.into_iter().filter(is_of).collect())
}

/// Removes the note, if the volume was closed with everything in the store; otherwise adds what the store lacks.
pub(crate) fn note_closed(data: &DataDirectory, id: VolumeId, closed: Closed, unsent: AtRisk) {
    let path = data.opened_as(id);
    let removed = match closed {
        Closed::Clean => std::fs::remove_file(&path),
        // Its journal still holds what the store lacks.
        Closed::LocalOnly => note_unsent(&path, unsent),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the note of an open volume stays");
        }
        _ => {}
    }
}

/// Adds the line that says what the store lacks: bytes, blocks, and since when, in seconds of Unix.
fn note_unsent(path: &Path, unsent: AtRisk) -> io::Result<()> {
    let text = std::fs::read_to_string(path)?;
    let mut lines: Vec<&str> = text.lines().take(LINES).collect();
    // A note of an older build has fewer of them.
    lines.resize(LINES, "");
    let AtRisk { bytes, blocks, oldest_age_ms, age_is_least, bytes_are_least: _ } = unsent;
    let age = Duration::from_millis(oldest_age_ms.unwrap_or(0));
    let since = unix_time().saturating_sub(age).as_secs();
    let before = if age_is_least { " or-before" } else { "" };
    let lines = lines.join("\n");
    replace_file(path, &format!("{lines}\nunsent {bytes} {blocks} {since}{before}\n"))
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// What the store lacks of a volume that was closed without having everything in it; `None` where that is not known:
/// after the end of a process that did not close it.
pub(crate) fn noted_unsent(data: &DataDirectory, id: VolumeId) -> Option<AtRisk> {
    let text = std::fs::read_to_string(data.opened_as(id)).ok()?;
    let mut words = text.lines().nth(LINES)?.strip_prefix("unsent ")?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (bytes, blocks, since) = (number()?, number()?, number()?);
    let age = unix_time().saturating_sub(Duration::from_secs(since)).as_millis();
    let oldest_age_ms = Some(u64::try_from(age).unwrap_or(u64::MAX));
    let age_is_least = words.next() == Some("or-before");
    Some(AtRisk { bytes, blocks, oldest_age_ms, age_is_least, bytes_are_least: false })
}

/// URL of the store that such a volume was opened out of; `None` where the note does not say, as those of older builds.
pub(crate) fn noted_store(data: &DataDirectory, id: VolumeId) -> Option<String> {
    let text = std::fs::read_to_string(data.opened_as(id)).ok()?;
    let mut lines = text.lines().skip(1);
    match lines.next()? {
        // Both may have been moved since.
        EMBEDDED => Some(data.store_url()),
        _ => lines.next().filter(|url| !url.is_empty()).map(str::to_owned),
    }
}

/// The name of a volume that is open, or was not closed with everything in the store.
pub(crate) fn noted(data: &DataDirectory, id: VolumeId) -> Option<VolumeName> {
    let text = std::fs::read_to_string(data.opened_as(id)).ok()?;
    VolumeName::new(text.lines().next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(directory: &Path, store: &Path) -> (Home, Store) {
        std::fs::create_dir_all(store).unwrap();
        let store_url = format!("file://{}", store.display());
        let home = Home::embedded(DataDirectory::at(directory).unwrap());
        let opened = Store::open(&store_url).unwrap();
        (Home { store_url, ..home }, opened)
    }

    #[test]
    fn a_name_is_noted_until_the_store_has_everything() {
        let directory = tempfile::tempdir().unwrap();
        let (home, store) = home(directory.path(), &directory.path().join("store"));
        let (data, id) = (&home.data, VolumeId([7; 16]));
        std::fs::create_dir_all(data.volume(id)).unwrap();
        assert_eq!(noted(data, id), None);
        for name in ["demo", "renamed"] {
            let name = VolumeName::new(name).unwrap();
            note(&home, &store, id, &name);
            assert_eq!(noted(data, id), Some(name));
        }
        assert_eq!(noted_unsent(data, id), None, "it is open");
        let oldest_age_ms = Some(100_000);
        let unsent = AtRisk {
            bytes: 8192,
            blocks: 2,
            oldest_age_ms,
            age_is_least: true,
            ..AtRisk::default()
        };
        // A second time, too: what was left then counts.
        for unsent in [AtRisk { bytes: 1, ..unsent }, unsent] {
            note_closed(data, id, Closed::LocalOnly, unsent);
        }
        assert!(noted(data, id).is_some());
        assert_eq!(noted_store(data, id).as_deref(), Some(data.store_url().as_str()));
        let found = noted_unsent(data, id).unwrap();
        assert_eq!((found.bytes, found.blocks, found.age_is_least), (8192, 2, true));
        assert!(found.oldest_age_ms >= unsent.oldest_age_ms, "{found:?}");
        note(&home, &store, id, &VolumeName::new("renamed").unwrap());
        assert_eq!(noted_unsent(data, id), None, "it is open again");
        note_closed(data, id, Closed::Clean, AtRisk::default());
        assert_eq!(noted(data, id), None);
        note_closed(data, id, Closed::Clean, AtRisk::default());
        std::fs::write(data.opened_as(id), "no/name").unwrap();
        assert_eq!(noted(data, id), None);
    }

    #[test]
    fn notes_of_one_name_in_two_stores_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let name = VolumeName::new("demo").unwrap();
        let places = [7_u8, 8].map(|byte| {
            let id = VolumeId([byte; 16]);
            let store = directory.path().join(format!("store{byte}"));
            let (home, store) = home(directory.path(), &store);
            std::fs::create_dir_all(home.data.volume(id)).unwrap();
            note(&home, &store, id, &name);
            (home, store, id)
        });
        for (home, store, id) in &places {
            assert_eq!(noted_as(home, store, &name).unwrap(), [*id]);
        }
        let other = VolumeName::new("other").unwrap();
        assert_eq!(noted_as(&places[0].0, &places[0].1, &other).unwrap(), []);
    }

    #[test]
    fn a_note_tells_its_store_from_a_copy_of_it_wherever_the_two_are_moved() {
        let directory = tempfile::tempdir().unwrap();
        let (id, name) = (VolumeId([7; 16]), VolumeName::new("demo").unwrap());
        let at = |data: &str, store: &str| {
            home(&directory.path().join(data), &directory.path().join(store))
        };
        let (here, store) = at("data", "data/store");
        std::fs::create_dir_all(here.data.volume(id)).unwrap();
        assert!(!is_of_another_store(&here, &store, id), "there is no note");
        note(&here, &store, id, &name);
        let (copied, copy) = at("data", "copy");
        assert!(!is_of_another_store(&here, &store, id));
        assert!(is_of_another_store(&copied, &copy, id));
        // With the store in it.
        std::fs::rename(directory.path().join("data"), directory.path().join("moved")).unwrap();
        let (moved, store) = at("moved", "moved/store");
        assert!(!is_of_another_store(&moved, &store, id));
        assert_eq!(noted_store(&moved.data, id), Some(moved.data.store_url()));
        let (elsewhere, other) = at("moved", "other");
        note(&elsewhere, &other, id, &name);
        assert_eq!(noted_store(&moved.data, id), Some(elsewhere.store_url));
        // What an older build noted.
        std::fs::write(moved.data.opened_as(id), "demo\n").unwrap();
        assert!(!is_of_another_store(&moved, &store, id));
        assert_eq!(noted(&moved.data, id), Some(name));
        assert_eq!(noted_store(&moved.data, id), None);
    }
}
