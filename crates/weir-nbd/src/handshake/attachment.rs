//! The one option of Weir's own: a client says which of its connections belong together and whether it alone is to
//! write, and a server which opening of the export answers and whether others have written. `docs/formats/nbd.md` has
//! the bytes.

use crate::bytes::{Reader, put_u16, put_u64};

/// Version of the option's data and of its reply.
const VERSION: u16 = 2;

/// Flag of the option and of its reply: exclusive access is asked for, or given.
const EXCLUSIVE: u16 = 1;

/// Flag of the reply: nobody else has written since the client was given the tag that it knows.
const UNCHANGED: u16 = 2;

/// What a connection belongs to: all connections of a session are one client's use of one export. A connection of a
/// newer generation takes the place of all those of older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment {
    /// Random, chosen by the client once for as long as it uses the export.
    pub session: [u8; 16],
    /// Higher each time that the client connects anew.
    pub generation: u64,
    /// Whether nobody else is to write as long as the connection is there.
    pub exclusive: bool,
    /// The tag that the client was given last, by this session or an earlier one.
    pub known: Option<Tag>,
}

/// Names one opening of an export. What was acknowledged under it and not flushed is there as long as it is the same.
pub type Instance = [u8; 16];

/// Given with exclusive access. A client that shows it when it comes again learns whether anybody else has written
/// since, over restarts of the server and of the client. Never all zeroes.
pub type Tag = [u8; 16];

/// What comes with exclusive access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exclusive {
    /// To be shown the next time.
    pub tag: Tag,
    /// Whether nobody else has written since the client was given the tag that it has shown.
    pub is_unchanged: bool,
}

/// What a server answers to an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Which opening of the export answers.
    pub instance: Instance,
    /// Names the volume, where it lasts: another one under the same name has other bytes.
    pub volume: Option<[u8; 16]>,
    /// Where exclusive access was asked for.
    pub exclusive: Option<Exclusive>,
}

/// Why a client may not attach; a sentence for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAttached {
    /// Another client has the export, or it is not what this one knows of it: what it has not flushed is void.
    Taken(&'static str),
    /// It may not now, or never, for another reason.
    Refused(&'static str),
}

pub(super) fn put_attachment(out: &mut Vec<u8>, attachment: &Attachment) {
    put_u16(out, VERSION);
    out.extend_from_slice(&attachment.session);
    put_u64(out, attachment.generation);
    put_u16(out, if attachment.exclusive { EXCLUSIVE } else { 0 });
    out.extend_from_slice(&attachment.known.unwrap_or_default());
}

/// The attachment at the begin of the data; nothing if it is of another version or cut off. Flags that are not known
/// mean nothing.
pub(super) fn read_attachment(reader: &mut Reader<'_>) -> Option<Attachment> {
    if reader.u16()? != VERSION {
        return None;
    }
    let (session, generation, flags) = (reader.array()?, reader.u64()?, reader.u16()?);
    let known = Some(reader.array()?).filter(|tag| *tag != Tag::default());
    Some(Attachment { session, generation, exclusive: flags & EXCLUSIVE != 0, known })
}

pub(super) fn put_attached(out: &mut Vec<u8>, attached: &Attached) {
    put_u16(out, VERSION);
    out.extend_from_slice(&attached.instance);
    let flags = match attached.exclusive {
        Some(Exclusive { is_unchanged: true, .. }) => EXCLUSIVE | UNCHANGED,
        Some(_) => EXCLUSIVE,
        None => 0,
    };
    put_u16(out, flags);
    out.extend_from_slice(&attached.exclusive.map(|given| given.tag).unwrap_or_default());
    out.extend_from_slice(&attached.volume.unwrap_or_default());
}

pub(super) fn read_attached(mut reader: Reader<'_>) -> Option<Attached> {
    let version = reader.u16()?;
    let (instance, flags, tag) = (reader.array()?, reader.u16()?, reader.array()?);
    let given = Exclusive { tag, is_unchanged: flags & UNCHANGED != 0 };
    let exclusive = (flags & EXCLUSIVE != 0).then_some(given);
    let volume = Some(reader.array()?).filter(|volume| *volume != [0; 16]);
    (version == VERSION && reader.is_empty()).then_some(Attached { instance, volume, exclusive })
}
