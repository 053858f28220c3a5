//! Which file a descriptor is open on, whether its file system keeps what a journal needs, and the lock that requests
//! in flight hold.
#![allow(
    unsafe_code,
    reason = "one call of the kernel that no library wraps; the block states its rules"
)]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, StatxFlags};
use rustix::io::Errno;

use crate::engine::metadata::{MetadataJob, failed};
use crate::engine::open_file::{Descriptor, OpenFile};
use crate::error::{DiskError, DiskOperation};
use crate::identity::FileIdentity;

/// Longest file handle of the kernel, in bytes (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;

/// File systems by the number that `statfs` answers, from `linux/magic.h` and the file systems' own headers.
mod magic {
    pub(super) const EXT: u64 = 0xef53;
    pub(super) const XFS: u64 = 0x5846_5342;
    pub(super) const BTRFS: u64 = 0x9123_683e;
    pub(super) const F2FS: u64 = 0xf2f5_2010;
    pub(super) const BCACHEFS: u64 = 0xca45_1a4e;
    pub(super) const ZFS: u64 = 0x2fc1_2fc1;
    pub(super) const TMPFS: u64 = 0x0102_1994;
    pub(super) const JFS: u64 = 0x3153_464a;
    pub(super) const OVERLAY: u64 = 0x794c_7630;
    pub(super) const FUSE: u64 = 0x6573_5546;
}

/// File systems whose storage is on another machine: what a killed process or a lost machine had sent can reach the
/// file after its lock was given to the next opener.
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0x013f_ad00, "Coherent"),
    (0xaad7_aaea, "PanFS"),
    (0x564c, "NCP"),
    (0x786f_4256, "VirtualBox shared folders"),
    (0xbacb_acbc, "VMware shared folders"),
];

/// Programs behind FUSE mounts whose storage is on another machine, by what follows `fuse.` in the list of mounts.
const NETWORK_FUSE: &[&str] = &[
    "sshfs",
    "s3fs",
    "s3ql",
    "rclone",
    "goofys",
    "geesefs",
    "gcsfuse",
    "mountpoint-s3",
    "mount-s3",
    "blobfuse",
    "blobfuse2",
    "juicefs",
    "seaweedfs",
    "glusterfs",
    "ceph",
    "ceph-fuse",
    "mfs",
    "moosefs",
    "lizardfs",
    "saunafs",
    "davfs",
    "davfs2",
    "curlftpfs",
    "smbnetfs",
    "vmhgfs-fuse",
    "grpcfuse",
    "osxfs",
    "quobyte",
];

/// What is known of a file system that journals care about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Local,
    /// Storage on another machine, by this name.
    Network(String),
    /// A program keeps the files, and it is unknown where.
    Unknown(String),
}

/// Asks which file this is.
pub(crate) fn identity_job(
    file: Arc<OpenFile>,
) -> MetadataJob<impl FnOnce() -> Result<Option<FileIdentity>, DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    MetadataJob { operation: DiskOperation::Identify, path, job: move || identity(&file) }
}

/// Tries to lock the descriptor itself; says whether it has the lock now.
pub(crate) fn lock_job(
    file: Arc<OpenFile>,
) -> MetadataJob<impl FnOnce() -> Result<bool, DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    let job = move || {
        let flock = rustix::fs::flock(&file.fd, FlockOperation::NonBlockingLockExclusive);
        match flock {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(failed(DiskOperation::Lock, &file.path)(errno)),
        }
    };
    MetadataJob { operation: DiskOperation::Lock, path, job }
}

/// Refuses a file system that keeps its files on another machine.
pub(crate) fn local_job(
    file: Arc<OpenFile>,
) -> MetadataJob<impl FnOnce() -> Result<(), DiskError> + Send + 'static> {
    let path = Arc::clone(&file.path);
    MetadataJob { operation: DiskOperation::Identify, path, job: move || require_local(&file) }
}

fn require_local(file: &OpenFile) -> Result<(), DiskError> {
    let file_system = file_system(file)?;
    let fuse = || fuse_program(file).unwrap_or_else(|| "unknown".to_owned());
    match kind_of(file_system, fuse) {
        Kind::Local => Ok(()),
        Kind::Network(name) => {
            Err(DiskError::NetworkFileSystem { path: Arc::clone(&file.path), name })
        }
        Kind::Unknown(program) => {
            tracing::warn!(
                path = %file.path,
                program,
                "a FUSE program keeps this file; if it keeps it on another machine, a write of a killed process can \
                 land after the next opening and destroy a newer one"
            );
            Ok(())
        }
    }
}

fn kind_of(file_system: u64, fuse_program: impl FnOnce() -> String) -> Kind {
    if let Some((_, name)) = NETWORK.iter().find(|(number, _)| *number == file_system) {
        return Kind::Network((*name).to_owned());
    }
    if file_system != magic::FUSE {
        return Kind::Local;
    }
    match fuse_program().as_str() {
        // Those are on a block device of this machine.
        "fuseblk" => Kind::Local,
        "virtiofs" => Kind::Network("virtiofs".to_owned()),
        name => {
            let program = name.strip_prefix("fuse.").unwrap_or(name);
            if NETWORK_FUSE.contains(&program) {
                Kind::Network(program.to_owned())
            } else {
                Kind::Unknown(program.to_owned())
            }
        }
    }
}

/// A file that was opened just now, with one question to its file system. One that is open for a single read is not
/// worth that.
pub(crate) fn opened(fd: Descriptor, path: Arc<str>, alignment: usize) -> OpenFile {
    let mut file = OpenFile::new(fd, path, alignment);
    file.blocks_callers = is_of_a_server(&file);
    file
}

/// Whether a program or another machine answers for its file system.
fn is_of_a_server(file: &OpenFile) -> bool {
    file_system(file).is_ok_and(is_server)
}

fn is_server(file_system: u64) -> bool {
    file_system == magic::FUSE || NETWORK.iter().any(|(number, _)| *number == file_system)
}

fn file_system(file: &OpenFile) -> Result<u64, DiskError> {
    let stat =
        rustix::fs::fstatfs(&file.fd).map_err(failed(DiskOperation::Identify, &file.path))?;
    // Some platforms give it as a signed number of 32 bits.
    let number = stat.f_type.cast_unsigned();
    Ok(number & u64::from(u32::MAX))
}

/// The type of the mount that a FUSE file is on, from the list of mounts.
fn fuse_program(file: &OpenFile) -> Option<String> {
    let stat = rustix::fs::statx(&file.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_type(&mounts, stat.stx_mnt_id).map(str::to_owned)
}

/// The file system type of mount `id` in the text of `mountinfo`.
fn mount_type(mounts: &str, id: u64) -> Option<&str> {
    let id = id.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(id.as_str()))?;
    let (_, behind) = line.split_once(" - ")?;
    behind.split(' ').next()
}

/// Which file this is. `None` where the file system has no names that last.
fn identity(file: &OpenFile) -> Result<Option<FileIdentity>, DiskError> {
    let handle_lasts = match file_system(file)? {
        magic::EXT
        | magic::XFS
        | magic::BTRFS
        | magic::F2FS
        | magic::BCACHEFS
        | magic::ZFS
        | magic::TMPFS
        | magic::JFS => true,
        // Its handles name the file system as well.
        magic::OVERLAY => false,
        // FAT and FUSE among others make up inode numbers and generations at each mount.
        _ => return Ok(None),
    };
    if handle_lasts && let Some(identity) = handle(&file.fd) {
        return Ok(Some(identity));
    }
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(&file.fd, c"", AtFlags::EMPTY_PATH, wanted)
        .map_err(failed(DiskOperation::Identify, &file.path))?;
    if stat.stx_mask & wanted.bits() != wanted.bits() {
        return Ok(None);
    }
    let (inode, birth) = (stat.stx_ino, stat.stx_btime);
    Ok(Some(FileIdentity::of_birth(inode, birth.tv_sec, birth.tv_nsec)))
}

/// `struct file_handle` with room for the longest.
#[repr(C)]
struct KernelHandle {
    handle_bytes: u32,
    handle_type: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// The kernel's handle of a file; `None` where it has none, or a sandbox forbids to ask.
fn handle(fd: &impl AsFd) -> Option<FileIdentity> {
    let handle_bytes = u32::try_from(HANDLE_BYTES_MAX).expect("a small number");
    let mut handle = KernelHandle { handle_bytes, handle_type: 0, handle: [0; HANDLE_BYTES_MAX] };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: the descriptor is open while `fd` is borrowed; the path is a constant that ends in a zero; the handle has
    // the layout of the kernel's and room for as many bytes as it says; both targets outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if result != 0 {
        return None;
    }
    let len = usize::try_from(handle.handle_bytes).ok()?;
    Some(FileIdentity::of_handle(handle.handle_type, handle.handle.get(..len)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(file_system: u64, program: &str) -> Kind {
        kind_of(file_system, || program.to_owned())
    }

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        assert_eq!(kind(magic::EXT, ""), Kind::Local);
        assert_eq!(kind(magic::XFS, ""), Kind::Local);
        assert_eq!(kind(magic::OVERLAY, ""), Kind::Local);
        assert_eq!(kind(0x6969, ""), Kind::Network("NFS".to_owned()));
        assert_eq!(kind(0xff53_4d42, ""), Kind::Network("CIFS".to_owned()));
        assert_eq!(kind(magic::FUSE, "fuseblk"), Kind::Local);
        assert_eq!(kind(magic::FUSE, "fuse.sshfs"), Kind::Network("sshfs".to_owned()));
        assert_eq!(kind(magic::FUSE, "virtiofs"), Kind::Network("virtiofs".to_owned()));
        assert_eq!(kind(magic::FUSE, "fuse.mergerfs"), Kind::Unknown("mergerfs".to_owned()));
    }

    #[test]
    fn a_ring_has_a_thread_ask_what_a_server_keeps() {
        assert!([magic::FUSE, 0x6969, 0xff53_4d42].into_iter().all(is_server));
        assert!(![magic::EXT, magic::XFS, magic::OVERLAY].into_iter().any(is_server));
    }

    #[test]
    fn the_mount_of_a_file_is_found_by_its_number() {
        let mounts = "\
            21 1 0:19 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            121 21 0:52 / /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.sshfs host:/ rw,user_id=0\n\
            12 21 0:20 / /proc rw - proc proc rw\n";
        assert_eq!(mount_type(mounts, 21), Some("ext4"));
        assert_eq!(mount_type(mounts, 121), Some("fuse.sshfs"));
        assert_eq!(mount_type(mounts, 1), None);
    }
}
