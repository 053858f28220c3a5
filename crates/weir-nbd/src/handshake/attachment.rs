//! The one option of Weir's own: a client says which of its connections belong together, and a server which opening of
//! the export answers. `docs/formats/nbd.md` has the bytes.

use crate::bytes::{Reader, put_u16, put_u64};

/// Version of the option's data and of its reply.
const VERSION: u16 = 1;

/// What a connection belongs to: all connections of a session are one client's use of one export. A connection of a
/// newer generation takes the place of all those of older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment {
    /// Random, chosen by the client once for as long as it uses the export.
    pub session: [u8; 16],
    /// Higher each time that the client connects anew.
    pub generation: u64,
}

/// Names one opening of an export. What was acknowledged under it and not flushed is there as long as it is the same.
pub type Instance = [u8; 16];

pub(super) fn put_attachment(out: &mut Vec<u8>, attachment: &Attachment) {
    put_u16(out, VERSION);
    out.extend_from_slice(&attachment.session);
    put_u64(out, attachment.generation);
}

/// The attachment at the begin of the data; nothing if it is of another version or cut off.
pub(super) fn read_attachment(reader: &mut Reader<'_>) -> Option<Attachment> {
    if reader.u16()? != VERSION {
        return None;
    }
    let session = reader.array()?;
    Some(Attachment { session, generation: reader.u64()? })
}

pub(super) fn put_instance(out: &mut Vec<u8>, instance: &Instance) {
    put_u16(out, VERSION);
    out.extend_from_slice(instance);
}

pub(super) fn read_instance(mut reader: Reader<'_>) -> Option<Instance> {
    let version = reader.u16()?;
    let instance = reader.array()?;
    (version == VERSION && reader.is_empty()).then_some(instance)
}
