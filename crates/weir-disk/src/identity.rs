//! What names a file on its file system, so that a file can say whether it is the one it says it is.
//!
//! A copy of a file is another file, also where its bytes are the same. The kernel's file handle (inode and generation)
//! tells them apart and survives renames, moves within the file system, mounts and reboots. Device numbers and ids of
//! file systems change at a reboot and are not part of it. Where nothing is known that lasts, nothing is claimed.

/// How a [`FileIdentity`] was found. Two of different kinds cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The kernel's file handle.
    Handle,
    /// Inode number and time of birth.
    Birth,
}

/// What names a file on its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    kind: Kind,
    digest: [u8; 16],
}

impl FileIdentity {
    /// Of a file handle.
    pub(crate) fn of_handle(handle_type: i32, handle: &[u8]) -> Self {
        Self { kind: Kind::Handle, digest: digest(&[&handle_type.to_le_bytes(), handle]) }
    }

    /// Of an inode number and a time of birth.
    pub(crate) fn of_birth(inode: u64, seconds: i64, nanoseconds: u32) -> Self {
        let parts: [&[u8]; 3] =
            [&inode.to_le_bytes(), &seconds.to_le_bytes(), &nanoseconds.to_le_bytes()];
        Self { kind: Kind::Birth, digest: digest(&parts) }
    }

    /// For formats: a number that is not 0, and a digest.
    #[must_use]
    pub fn to_parts(self) -> (u32, [u8; 16]) {
        let kind = match self.kind {
            Kind::Handle => 1,
            Kind::Birth => 2,
        };
        (kind, self.digest)
    }

    /// What [`FileIdentity::to_parts`] gave; `None` for a kind that this program does not know.
    #[must_use]
    pub fn from_parts(kind: u32, digest: [u8; 16]) -> Option<Self> {
        let kind = match kind {
            1 => Kind::Handle,
            2 => Kind::Birth,
            _ => return None,
        };
        Some(Self { kind, digest })
    }

    /// Whether both name the same file; `None` if they cannot be compared.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> Option<bool> {
        (self.kind == other.kind).then_some(self.digest == other.digest)
    }
}

/// The first half of the BLAKE3 digest of all parts.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes().first_chunk().expect("a digest has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_different_kinds_are_not_compared() {
        let handle = FileIdentity::of_handle(1, b"12345678");
        let birth = FileIdentity::of_birth(12, 1_700_000_000, 5);
        assert_eq!(handle.is_same(&handle), Some(true));
        assert_eq!(handle.is_same(&FileIdentity::of_handle(1, b"12345679")), Some(false));
        assert_eq!(handle.is_same(&FileIdentity::of_handle(2, b"12345678")), Some(false));
        assert_eq!(birth.is_same(&FileIdentity::of_birth(12, 1_700_000_000, 6)), Some(false));
        assert_eq!(handle.is_same(&birth), None);
    }

    #[test]
    fn identities_come_back_from_their_parts() {
        for identity in [FileIdentity::of_handle(1, b"12"), FileIdentity::of_birth(1, 2, 3)] {
            let (kind, digest) = identity.to_parts();
            assert_eq!(FileIdentity::from_parts(kind, digest), Some(identity));
        }
        assert_eq!(FileIdentity::from_parts(0, [0; 16]), None);
        assert_eq!(FileIdentity::from_parts(3, [0; 16]), None);
    }
}
