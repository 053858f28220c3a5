//! The data directory of a node: what lies where in it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use url::Url;
use weir_device::VolumeId;

use crate::error::NodeError;

/// Only the owner may look into a data directory.
const MODE: u32 = 0o700;

/// A data directory. Its layout is in docs/operations/files.md.
#[derive(Clone, Debug)]
pub struct DataDirectory {
    path: PathBuf,
}

impl DataDirectory {
    /// Names the directory; relative paths become absolute. Nothing is created.
    ///
    /// # Errors
    /// An empty path, or no current directory.
    pub fn at(path: &Path) -> Result<Self, NodeError> {
        let shown = path.display().to_string();
        let path = std::path::absolute(path)
            .map_err(|source| NodeError::io("using data directory", shown, source))?;
        Ok(Self { path })
    }

    /// Makes the directory and what a serving process needs in it, and tries that it can be written to.
    ///
    /// # Errors
    /// When it cannot be created or written.
    pub fn prepare(&self) -> Result<(), NodeError> {
        for directory in [self.path.clone(), self.path.join("nbd"), self.path.join("control")] {
            std::fs::DirBuilder::new().recursive(true).mode(MODE).create(&directory).map_err(
                |source| NodeError::io("creating", directory.display().to_string(), source),
            )?;
            weir_disk::adopt_directory(&directory).map_err(|source| {
                NodeError::io("giving to its owner", directory.display().to_string(), source)
            })?;
        }
        self.try_writing()
    }

    /// A full or read-only file system is reported here, by its name, rather than by whoever writes first.
    fn try_writing(&self) -> Result<(), NodeError> {
        let path = self.path.join(format!(".probe-{}", std::process::id()));
        take_file(&path).map_err(|source| {
            NodeError::io("writing to data directory", self.path.display().to_string(), source)
        })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the journal and the lock of a volume are.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> PathBuf {
        self.path.join("volumes").join(id.to_string())
    }

    /// Where the cache of all volumes is.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.path.join("cache")
    }

    /// The volumes that have files here, in no order.
    ///
    /// # Errors
    /// When the directory is there and cannot be read.
    pub fn volumes(&self) -> Result<Vec<VolumeId>, NodeError> {
        let path = self.path.join("volumes");
        let failed = |e| NodeError::io("reading", path.display().to_string(), e);
        let entries = match std::fs::read_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut volumes = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            // What is called otherwise is not a volume's.
            volumes.extend(name.to_str().and_then(VolumeId::parse));
        }
        Ok(volumes)
    }

    /// Where the name of a volume that is open is noted.
    #[must_use]
    pub(crate) fn opened_as(&self, id: VolumeId) -> PathBuf {
        self.volume(id).join("opened-as")
    }

    /// Where the tag is that was given with exclusive access to a volume.
    #[must_use]
    pub(crate) fn given(&self, id: VolumeId) -> PathBuf {
        self.volume(id).join("given.json")
    }

    /// Where a copy into or out of a volume keeps how far it has come.
    #[must_use]
    pub fn copy_record(&self, id: VolumeId) -> PathBuf {
        self.volume(id).join("copy.json")
    }

    /// Where a volume is served over NBD to a copy of this process alone.
    #[must_use]
    pub fn copy_socket(&self, id: VolumeId) -> PathBuf {
        self.volume(id).join("copy.sock")
    }

    /// Where the identities of nodes are.
    #[must_use]
    pub fn nodes(&self) -> PathBuf {
        self.path.join("nodes")
    }

    /// Which stores volumes of this directory were opened in.
    #[must_use]
    pub fn stores(&self) -> PathBuf {
        self.path.join("stores")
    }

    /// URL of the embedded store.
    #[must_use]
    pub fn store_url(&self) -> String {
        let url = Url::from_file_path(self.path.join("store"));
        url.expect("the path is absolute, and an absolute path has a URL").to_string()
    }

    /// Whether a store is on the file system of this directory: the loss of that disk takes journals and objects.
    #[must_use]
    pub fn shares_disk_with(&self, store_url: &str) -> bool {
        let Some(store) = store_directory(store_url) else { return false };
        // What is below this directory is taken for one with it also where it is a file system of its own: a subvolume.
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        store.starts_with(&self.path)
            || matches!((device(&store), device(&self.path)), (Some(one), Some(two)) if one == two)
    }

    /// Where a volume is served over NBD, unless another place is asked for.
    #[must_use]
    pub fn nbd_socket(&self, volume: &str) -> PathBuf {
        self.path.join("nbd").join(format!("{volume}.sock"))
    }

    /// Where a process that serves many volumes is served over NBD, unless another place is asked for.
    #[must_use]
    pub fn node_nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// Where a process that serves many volumes answers verbs.
    #[must_use]
    pub fn api_socket(&self) -> PathBuf {
        self.path.join("api.sock")
    }

    /// Every socket at which a process may answer verbs, with the one volume that it serves if its name says so.
    ///
    /// # Errors
    /// When the directory cannot be read; one that does not exist has no sockets.
    pub fn api_sockets(&self) -> Result<Vec<(PathBuf, Option<VolumeId>)>, NodeError> {
        let mut sockets = vec![(self.api_socket(), None)];
        let directory = self.path.join("control");
        let failed = |source| NodeError::io("reading", directory.display().to_string(), source);
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(sockets);
            }
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let id = name.and_then(|name| name.strip_suffix(".sock")).and_then(VolumeId::parse);
            sockets.extend(id.map(|id| (path.clone(), Some(id))));
        }
        Ok(sockets)
    }

    /// Where the process that serves one volume answers verbs.
    #[must_use]
    pub fn control_socket(&self, id: VolumeId) -> PathBuf {
        self.path.join("control").join(format!("{id}.sock"))
    }
}

/// The directory of the store of that URL, if it is one.
pub(crate) fn store_directory(url: &str) -> Option<PathBuf> {
    Url::parse(url).ok()?.to_file_path().ok()
}

/// Has the file system take a file of one block, and sync it, as a full disk may refuse only then; and removes it.
/// Follows no link: whoever else may write there must not have another file emptied.
pub(crate) fn take_file(path: &Path) -> io::Result<()> {
    let write = || {
        let mut options = std::fs::File::options();
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        options.write(true).create(true).truncate(true).custom_flags(nofollow);
        let mut file = options.open(path)?;
        io::Write::write_all(&mut file, &[0; 4096])?;
        file.sync_data()
    };
    let written = write();
    let removed = std::fs::remove_file(path);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_as_documented() {
        let directory = DataDirectory::at(Path::new("/var/lib/a weir")).unwrap();
        assert_eq!(directory.store_url(), "file:///var/lib/a%20weir/store");
        assert_eq!(directory.nbd_socket("demo"), Path::new("/var/lib/a weir/nbd/demo.sock"));
        let id = VolumeId([1; 16]);
        let named = |path: &Path| path.strip_prefix("/var/lib/a weir").unwrap().to_owned();
        assert_eq!(named(&directory.volume(id)), Path::new("volumes").join("01".repeat(16)));
        assert_eq!(
            named(&directory.control_socket(id)),
            Path::new("control").join("01".repeat(16) + ".sock")
        );
        assert!(DataDirectory::at(Path::new("")).is_err());
    }

    #[test]
    fn a_store_on_the_same_disk_is_told_from_one_elsewhere() {
        let base = tempfile::tempdir().unwrap();
        let directory = DataDirectory::at(&base.path().join("data")).unwrap();
        assert!(directory.shares_disk_with(&directory.store_url()), "the embedded store");
        directory.prepare().unwrap();
        let url = |path: &Path| Url::from_file_path(path).unwrap().to_string();
        assert!(directory.shares_disk_with(&url(base.path())));
        assert!(!directory.shares_disk_with(&url(Path::new("/proc"))));
        assert!(!directory.shares_disk_with("s3://bucket/prefix"));
        assert!(!directory.shares_disk_with("memory://"));
    }

    #[test]
    fn preparing_creates_what_is_missing_and_leaves_no_probe() {
        let base = tempfile::tempdir().unwrap();
        let directory = DataDirectory::at(&base.path().join("a/b")).unwrap();
        directory.prepare().unwrap();
        directory.prepare().unwrap();
        let mut names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["control", "nbd"]);
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let error = DataDirectory::at(&path).unwrap().prepare().unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
    }
}
