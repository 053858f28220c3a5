//! What people do with the files of a simulated disk: copies, backups that are put back, directories that move.

use super::SimDisk;
use super::medium::CopiedFile;

/// The files of a directory as they were once.
#[derive(Debug)]
pub struct SimCopy {
    files: Vec<CopiedFile>,
}

/// Which files a copy becomes where it is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyAs {
    /// New files with the old bytes, as `cp` and `rsync` make them.
    NewFiles,
    /// The files themselves as they were then, as a snapshot of the block device or of a machine restores them.
    SameFiles,
}

impl SimDisk {
    /// Copies the files below `directory` (all of the disk if that is empty) as a reader finds them now.
    #[must_use]
    pub fn copy_directory(&self, directory: &str) -> SimCopy {
        SimCopy { files: self.state.borrow_mut().copy_files(&prefix_of(directory)) }
    }

    /// Puts a copy, of this disk or of another one, in the place of everything below `directory`, durably. Processes
    /// that have files open which were there keep those until they end.
    pub fn put_copy(&self, directory: &str, copy: &SimCopy, copy_as: CopyAs) {
        let keep_inodes = copy_as == CopyAs::SameFiles;
        self.state.borrow_mut().put_files(&prefix_of(directory), &copy.files, keep_inodes);
    }

    /// Moves everything below `from` below `to`, in the place of what is there, durably. The files stay the same files.
    pub fn rename_directory(&self, from: &str, to: &str) {
        self.state.borrow_mut().rename(&prefix_of(from), &prefix_of(to));
    }
}

fn prefix_of(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}
