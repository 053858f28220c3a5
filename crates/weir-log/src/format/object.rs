//! Log objects: a header with the extents it carries, then frames. Page: `docs/formats/object.md`.

mod tables;

use bytes::Bytes;
use weir_device::VolumeId;
use weir_journal::{Epoch, WriteNumber};
use weir_seal::{DataKey, KeyId, Purpose, SealKey, TAG_BYTES, counter_nonce};

use self::tables::{EXTENT_ENTRY_BYTES, FRAME_ENTRY_BYTES, STREAM_ENTRY_BYTES};
use crate::format::frame::{self, BlockTables, Compression, Frame, Making};
use crate::format::manifest::HexId;
use crate::format::placement::{Placement, placed};
pub use crate::format::version::ObjectVersion;
use crate::format::{DecodeError, Reader, crc32c};
use crate::ids::{ObjectId, ObjectSeq, WriteMark};
use crate::limits::{
    BLOCK_BYTES, EXTENTS_PER_OBJECT_MAX, FRAME_BYTES, HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX,
};

const WHAT: &str = "object header";
const MAGIC: [u8; 4] = *b"WOBJ";

/// Bytes of the header before its tables.
pub const FIXED_BYTES: usize = 208;
/// Where the header checksum begins to cover: after magic, version, kind and the checksum itself.
const CRC_FROM: usize = 12;
/// Where the digest stands in the fixed part.
const DIGEST_AT: usize = 128;
/// Where the name of the volume's key stands.
const KEY_AT: usize = DIGEST_AT + 32;
/// Where the tag of the header stands.
const TAG_AT: usize = KEY_AT + 16;
const TAG_END: usize = TAG_AT + TAG_BYTES;
/// Where the opening stands, from version 2 on; reserved before.
const OPENING_AT: usize = TAG_END;
const _: () = assert!(OPENING_AT + 16 == FIXED_BYTES);
/// AES-256-GCM, each frame under the key of the object.
const ENCRYPTION_AES_256_GCM: u32 = 1;

/// How an object is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// What is tried on its frames.
    pub compression: Compression,
    /// Its version, if it is of kind data or gc and has an opening: older programs read no newer one.
    pub version: ObjectVersion,
}

impl Encoding {
    fn version_of(self, spec: &ObjectSpec) -> ObjectVersion {
        match (spec.opening, spec.kind) {
            (None, _) => ObjectVersion::V1,
            (Some(_), ObjectKind::Checkpoint) => ObjectVersion::V2,
            (_, ObjectKind::Gc) if weir_device::mutant("copies_of_newest_version") => {
                ObjectVersion::V4
            }
            (Some(_), ObjectKind::Data | ObjectKind::Gc) => self.version.max(ObjectVersion::V2),
        }
    }
}

/// What an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A batch of writes.
    Data,
    /// Live data copied by the collector.
    Gc,
    /// Pieces of a checkpoint.
    Checkpoint,
}

impl ObjectKind {
    fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Gc => 2,
            Self::Checkpoint => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Data),
            2 => Some(Self::Gc),
            3 => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

/// What an extent of an object does to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Its bytes are the next ones of the payload.
    Data,
    /// Zeroes, provisioned.
    Zero,
    /// Given up: reads as zeroes.
    Discard,
    /// Lost to damage: reads fail until overwritten.
    Poison,
}

impl ExtentKind {
    fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Zero => 1,
            Self::Discard => 2,
            Self::Poison => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Data),
            1 => Some(Self::Zero),
            2 => Some(Self::Discard),
            3 => Some(Self::Poison),
            _ => None,
        }
    }
}

/// A range of the volume that an object sets. Extents are sorted by offset and do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectExtent {
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What it does.
    pub kind: ExtentKind,
}

/// Where an extent of a gc object was copied from. It applies only where the map still points there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcSource {
    /// Index into the header's stream table.
    pub stream: u32,
    /// Payload offset in the source object.
    pub payload_offset: u32,
    /// Sequence of the source object.
    pub seq: ObjectSeq,
    /// Epoch of the source object.
    pub epoch: Epoch,
}

/// How an object is encrypted. Its key is derived from the volume's and from what names the object, its salt included;
/// the header is not secret, but covered by a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Name of the volume's key.
    pub key: KeyId,
    /// Tag of the header.
    pub tag: [u8; TAG_BYTES],
}

/// Covers the version from version 3 on: before, what tells one from another does.
fn header_crc(version: ObjectVersion, header: &[u8]) -> u32 {
    if version < ObjectVersion::V3 || weir_device::mutant("object_version_not_covered") {
        return crc32c(&[&header[CRC_FROM..], &[header[6]]]);
    }
    crc_with_version(version.code(), header)
}

fn crc_with_version(version: u16, header: &[u8]) -> u32 {
    crc32c(&[&header[CRC_FROM..], &[header[6]], &version.to_le_bytes()])
}

/// The key of an object: nobody else's, because its salt is random.
fn object_key(volume: &DataKey, id: &ObjectId, salt: &[u8; 16]) -> SealKey {
    let (seq, epoch) = (id.seq.0.to_le_bytes(), id.epoch.0.to_le_bytes());
    volume.derive(Purpose::Object, &[&id.stream.0, &seq, &epoch, salt])
}

/// The tag of a header whose bytes these are, checksum and tag apart. Its nonce is none of a frame's.
fn header_tag(key: &SealKey, header: &[u8]) -> [u8; TAG_BYTES] {
    key.seal(counter_nonce(u64::MAX, u32::MAX), &without_tag(header), &mut [])
}

fn without_tag(header: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes[CRC_FROM - 4..CRC_FROM].fill(0);
    bytes[TAG_AT..TAG_END].fill(0);
    bytes
}

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// What its bytes are laid out as.
    pub version: ObjectVersion,
    /// What names the object.
    pub id: ObjectId,
    /// The opening that wrote it. None where its program knew no openings, which is version 1.
    pub opening: Option<HexId>,
    /// What it is for.
    pub kind: ObjectKind,
    /// First write in it (data objects).
    pub first_write: WriteMark,
    /// Last write in it (data objects).
    pub last_write: WriteMark,
    /// Size of the volume in bytes as of this object.
    pub volume_size: u64,
    /// Random; makes two objects sealed from the same bytes differ, and seeds the key of an encrypted object.
    pub salt: [u8; 16],
    /// BLAKE3 of salt, frame table and extent tables; tells our own earlier PUT from another writer's.
    pub digest: [u8; 32],
    /// What its frames are sealed with, unless they are plain.
    pub sealed: Option<Sealed>,
    /// Payload offset and length of a checkpoint's root, if this object holds one.
    pub root: Option<(u32, u32)>,
    /// The frames, in order.
    pub frames: Vec<Frame>,
    /// The extents, by offset.
    pub extents: Vec<ObjectExtent>,
    /// Streams that gc sources name.
    pub streams: Vec<VolumeId>,
    /// One source per extent of a gc object.
    pub sources: Vec<GcSource>,
    /// Checksums of the blocks of frames, frame by frame. From version 3 on, unless the object is encrypted.
    pub sums: Vec<u32>,
    /// Bytes that the blocks of frames take which are compressed one by one, frame by frame. From version 4 on.
    pub lens: Vec<u16>,
}

/// Everything of a header but what the encoder computes.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    /// What will name the object.
    pub id: ObjectId,
    /// The opening that writes it. Without one it is of version 1.
    pub opening: Option<HexId>,
    /// What it is for.
    pub kind: ObjectKind,
    /// First write in it.
    pub first_write: WriteMark,
    /// Last write in it.
    pub last_write: WriteMark,
    /// Size of the volume in bytes as of this object.
    pub volume_size: u64,
    /// Random salt.
    pub salt: [u8; 16],
    /// Payload offset and length of a checkpoint's root.
    pub root: Option<(u32, u32)>,
    /// The extents, by offset.
    pub extents: Vec<ObjectExtent>,
    /// Streams that gc sources name.
    pub streams: Vec<VolumeId>,
    /// One source per extent of a gc object.
    pub sources: Vec<GcSource>,
}

/// An object ready to be sent.
#[derive(Clone, Debug)]
pub struct EncodedObject {
    /// Its header.
    pub header: ObjectHeader,
    /// Header bytes, then the frames.
    pub parts: Vec<Bytes>,
    /// The frames as they are read back, piece by piece.
    pub frames: Vec<Vec<Bytes>>,
}

impl EncodedObject {
    /// Bytes of the whole object.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.len() as u64).sum()
    }
}

/// Cuts `payload` (read as one run of bytes) into frames of [`FRAME_BYTES`], each in as many parts as it lies in.
fn cut_frames(payload: &[Bytes]) -> Vec<Vec<Bytes>> {
    let frame_bytes = usize::try_from(FRAME_BYTES).expect("64 KiB");
    let mut frames: Vec<Vec<Bytes>> = Vec::new();
    let mut room = 0;
    for part in payload {
        let mut part = part.clone();
        while !part.is_empty() {
            if room == 0 {
                frames.push(Vec::new());
                room = frame_bytes;
            }
            let cut = part.split_to(part.len().min(room));
            room -= cut.len();
            frames.last_mut().expect("pushed above").push(cut);
        }
    }
    frames
}

fn put_mark(out: &mut Vec<u8>, mark: WriteMark) {
    out.extend_from_slice(&mark.epoch.0.to_le_bytes());
    out.extend_from_slice(&mark.write.0.to_le_bytes());
}

fn usize_of(len: u64) -> usize {
    usize::try_from(len).expect("bounded by the limits of a header")
}

fn u32_of(len: usize) -> u32 {
    u32::try_from(len).expect("bounded by the limits of an object")
}

/// Encodes an object whose payload is the bytes of its data extents, one behind the other in `payload`, sealed under
/// `key` if the volume has one. Burns CPU: run it on a worker.
///
/// # Errors
/// Where [`ObjectHeader::decode`] would refuse the header, by the same rules: an object that nobody can read must not
/// be sent, because what it holds is given up elsewhere once it is stored.
///
/// # Panics
/// If the spec exceeds the limits of an object: the batcher keeps them.
pub fn encode(
    spec: ObjectSpec,
    payload: &[Bytes],
    encoding: Encoding,
    key: Option<&DataKey>,
) -> Result<EncodedObject, DecodeError> {
    let payload_len = frame::len_of(payload);
    assert!(payload_len <= PAYLOAD_BYTES_MAX as usize, "an object's payload fits 26 bits");
    assert!(spec.extents.len() <= EXTENTS_PER_OBJECT_MAX, "a batch is sealed before this");
    assert!(
        spec.sources.len() == if spec.kind == ObjectKind::Gc { spec.extents.len() } else { 0 },
        "one source per extent of a gc object"
    );
    let version = encoding.version_of(&spec);
    let raw_frames = match version {
        ObjectVersion::V3 | ObjectVersion::V4 => cut_frames(&placed(&spec.extents, payload)),
        ObjectVersion::V1 | ObjectVersion::V2 => cut_frames(payload),
    };
    let object_key = key.map(|key| object_key(key, &spec.id, &spec.salt));
    let (frames, BlockTables { sums, lens }, mut parts) =
        encode_frames(&spec.id, &raw_frames, encoding.compression, version, object_key.as_ref());
    let mut header = ObjectHeader {
        version,
        id: spec.id,
        opening: spec.opening,
        kind: spec.kind,
        first_write: spec.first_write,
        last_write: spec.last_write,
        volume_size: spec.volume_size,
        salt: spec.salt,
        digest: [0; 32],
        sealed: key.map(|key| Sealed { key: key.id(), tag: [0; TAG_BYTES] }),
        root: spec.root,
        frames,
        extents: spec.extents,
        streams: spec.streams,
        sources: spec.sources,
        sums,
        lens,
    };
    header.check(&Reader::new(WHAT, &[]))?;
    parts[0] = Bytes::from(header.encode(object_key.as_ref()));
    Ok(EncodedObject { header, parts, frames: raw_frames })
}

/// Frames, what the header has of their blocks, and what is stored of them, behind an empty part for the header.
fn encode_frames(
    id: &ObjectId,
    raw_frames: &[Vec<Bytes>],
    compression: Compression,
    version: ObjectVersion,
    key: Option<&SealKey>,
) -> (Vec<Frame>, BlockTables, Vec<Bytes>) {
    let in_blocks = version >= ObjectVersion::V3;
    let packs = version >= ObjectVersion::V4 && key.is_none();
    let mut making = Making { compression, key, in_blocks, packs };
    if !frame::sample_shrinks(raw_frames, making) {
        making.compression = Compression::None;
    }
    let (mut tables, mut parts) = (BlockTables::default(), vec![Bytes::new()]);
    let frames = (0..).zip(raw_frames);
    let frames =
        frames.map(|(index, raw)| frame::encode(id, index, raw, making, &mut parts, &mut tables));
    let frames = frames.collect();
    (frames, tables, parts)
}

impl ObjectHeader {
    /// Bytes of payload.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.frames.iter().map(|f| u64::from(f.raw_len)).sum()
    }

    /// Bytes of the encoded header, where the frames begin.
    #[must_use]
    pub fn header_len(&self) -> u64 {
        let tables = (FIXED_BYTES + self.tables_len()) as u64;
        // Raw blocks in pages of their own, where there are enough: a cold one is one page to read, not two. (Packed
        // ones count too, to no use; version 4 has it so.)
        let in_pages = self.sums.len() * BLOCK_BYTES as usize >= FRAME_BYTES as usize;
        if in_pages { tables.next_multiple_of(BLOCK_BYTES.into()) } else { tables }
    }

    /// Where the data of its extents is in its payload.
    #[must_use]
    pub fn placement(&self) -> Placement {
        Placement::of(self.version, &self.extents)
    }

    fn encode(&mut self, key: Option<&SealKey>) -> Vec<u8> {
        let header_len = u32::try_from(self.header_len()).expect("bounded by the limits");
        let mut out = Vec::with_capacity(header_len as usize);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.code().to_le_bytes());
        out.extend_from_slice(&[self.kind.code(), 0]);
        out.extend_from_slice(&[0; 4]); // checksum, below
        out.extend_from_slice(&header_len.to_le_bytes());
        out.extend_from_slice(&self.id.stream.0);
        out.extend_from_slice(&self.id.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.id.seq.0.to_le_bytes());
        put_mark(&mut out, self.first_write);
        put_mark(&mut out, self.last_write);
        out.extend_from_slice(&self.volume_size.to_le_bytes());
        let (root_offset, root_len) = self.root.unwrap_or((0, 0));
        out.extend_from_slice(&root_offset.to_le_bytes());
        out.extend_from_slice(&root_len.to_le_bytes());
        for count in [&self.frames.len(), &self.extents.len(), &self.streams.len()] {
            out.extend_from_slice(&u32_of(*count).to_le_bytes());
        }
        let encryption = self.sealed.map_or(0, |_| ENCRYPTION_AES_256_GCM);
        out.extend_from_slice(&encryption.to_le_bytes());
        assert_eq!(out.len(), DIGEST_AT - 16, "the fixed part is laid out as documented");
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&[0; 32]); // digest, below
        out.extend_from_slice(&self.sealed.map_or([0; 16], |sealed| sealed.key.0));
        out.resize(OPENING_AT, 0); // tag, below
        out.extend_from_slice(&self.opening.map_or([0; 16], |opening| opening.0));
        self.encode_tables(&mut out);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.salt).update(&out[FIXED_BYTES..]);
        self.digest = *hasher.finalize().as_bytes();
        out[DIGEST_AT..DIGEST_AT + 32].copy_from_slice(&self.digest);
        if let (Some(sealed), Some(key)) = (&mut self.sealed, key) {
            sealed.tag = header_tag(key, &out);
            out[TAG_AT..TAG_END].copy_from_slice(&sealed.tag);
        }
        let crc = header_crc(self.version, &out);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(out.len(), header_len as usize, "the header is as long as it says");
        out
    }

    /// Length of the whole header, from its first [`FIXED_BYTES`].
    ///
    /// # Errors
    /// Where the bytes are not the beginning of a header of a known version.
    pub fn peek_len(bytes: &[u8]) -> Result<u32, DecodeError> {
        let mut reader = Reader::new(WHAT, bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(DecodeError::Magic { what: WHAT });
        }
        ObjectVersion::from_code(reader.u16()?)?;
        reader.take(6)?;
        let header_len = reader.u32()?;
        if header_len > HEADER_BYTES_MAX || (header_len as usize) < FIXED_BYTES {
            return Err(reader.field("header_len", header_len.into()));
        }
        Ok(header_len)
    }

    /// Whether the object is one of a version that this code does not know: its checksum says that the version is the
    /// one that was written. Every version from 3 on has these fields where they are.
    #[must_use]
    pub fn is_of_newer_version(bytes: &[u8]) -> bool {
        let field = |at: usize| bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
        let (Some(magic), Some(stored), Some(len)) = (field(0), field(8), field(12)) else {
            return false;
        };
        let len = u32::from_le_bytes(len) as usize;
        let Some(header) = bytes.get(..len).filter(|_| len >= FIXED_BYTES) else { return false };
        let version = u16::from_le_bytes([header[4], header[5]]);
        magic == MAGIC
            && ObjectVersion::from_code(version).is_err()
            && crc_with_version(version, header) == u32::from_le_bytes(stored)
    }

    /// Decodes a header; `bytes` may go on behind it.
    ///
    /// # Errors
    /// Where it is cut short, of an unknown version, damaged or beyond its bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header_len = Self::peek_len(bytes)? as usize;
        let Some(bytes) = bytes.get(..header_len) else {
            let (have, need) = (bytes.len() as u64, header_len as u64);
            return Err(DecodeError::Short { what: WHAT, have, need });
        };
        let version = ObjectVersion::from_code(u16::from_le_bytes([bytes[4], bytes[5]]))?;
        let kind_code = bytes[6];
        let stored = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        let computed = header_crc(version, bytes);
        // The fuzzer must get behind the checksum.
        if stored != computed && !cfg!(fuzzing) {
            return Err(DecodeError::Checksum { what: WHAT, stored, computed });
        }
        let mut reader = Reader::new(WHAT, bytes);
        reader.take(16)?;
        let kind = ObjectKind::from_code(kind_code)
            .ok_or_else(|| reader.field("kind", kind_code.into()))?;
        let stream = VolumeId(reader.array()?);
        let (epoch, seq) = (Epoch(reader.u64()?), ObjectSeq(reader.u64()?));
        let mut mark = || -> Result<WriteMark, DecodeError> {
            Ok(WriteMark { epoch: Epoch(reader.u64()?), write: WriteNumber(reader.u64()?) })
        };
        let (first_write, last_write) = (mark()?, mark()?);
        let volume_size = reader.u64()?;
        let (root_offset, root_len) = (reader.u32()?, reader.u32()?);
        let frame_count = reader.count("frame_count", FRAME_ENTRY_BYTES)?;
        let extent_count = reader.count("extent_count", EXTENT_ENTRY_BYTES)?;
        let stream_count = reader.count("stream_count", STREAM_ENTRY_BYTES)?;
        let encryption = reader.u32()?;
        let (salt, digest) = (reader.array()?, reader.array()?);
        let (key, tag) = (reader.array()?, reader.array()?);
        let sealed = match encryption {
            0 if key == [0; 16] && tag == [0; TAG_BYTES] => None,
            ENCRYPTION_AES_256_GCM => Some(Sealed { key: KeyId(key), tag }),
            _ => return Err(reader.field("encryption", encryption.into())),
        };
        let opening: [u8; 16] = reader.array()?;
        let named = opening != [0; 16];
        if bytes[7] != 0 || (version == ObjectVersion::V1 && named) {
            return Err(reader.field("reserved", 1));
        }
        if version > ObjectVersion::V1 && !named {
            return Err(reader.field("opening", 0));
        }
        let mut header = Self {
            version,
            id: ObjectId { stream, seq, epoch },
            opening: named.then_some(HexId(opening)),
            kind,
            first_write,
            last_write,
            volume_size,
            salt,
            digest,
            sealed,
            root: (root_len != 0).then_some((root_offset, root_len)),
            frames: Vec::new(),
            extents: Vec::new(),
            streams: Vec::new(),
            sources: Vec::new(),
            sums: Vec::new(),
            lens: Vec::new(),
        };
        header.decode_tables(&mut reader, frame_count, extent_count, stream_count)?;
        header.check(&reader)?;
        Ok(header)
    }

    /// The key of this object in the volume of that key.
    #[must_use]
    pub fn key(&self, volume: &DataKey) -> SealKey {
        object_key(volume, &self.id, &self.salt)
    }

    /// [`ObjectHeader::decode`] with the key of the volume, if it has one; and the key of the object. An object that is
    /// not encrypted has no place in an encrypted volume: anybody could have put it there.
    ///
    /// # Errors
    /// As there; [`DecodeError::NoKey`], [`DecodeError::OtherKey`], [`DecodeError::Forged`].
    pub fn open(
        bytes: &[u8],
        volume: Option<&DataKey>,
    ) -> Result<(Self, Option<SealKey>), DecodeError> {
        let header = Self::decode(bytes)?;
        let (sealed, volume) = match (header.sealed, volume) {
            (None, None) => return Ok((header, None)),
            (Some(sealed), None) => {
                return Err(DecodeError::NoKey { what: WHAT, key: sealed.key });
            }
            (sealed, Some(volume)) => match sealed {
                Some(sealed) if sealed.key == volume.id() => (sealed, volume),
                other => {
                    let found = other.map_or("no key".to_owned(), |s| format!("key {}", s.key));
                    return Err(DecodeError::OtherKey { what: WHAT, found, wanted: volume.id() });
                }
            },
        };
        let key = header.key(volume);
        let covered = without_tag(&bytes[..usize_of(header.header_len())]);
        let nonce = counter_nonce(u64::MAX, u32::MAX);
        key.open(nonce, &covered, &mut [], &sealed.tag)
            .map_err(|_| DecodeError::Forged { what: WHAT })?;
        Ok((header, Some(key)))
    }

    /// What one table says must agree with the others before anything is built on it.
    fn check(&self, reader: &Reader<'_>) -> Result<(), DecodeError> {
        let full = self.frames.len().saturating_sub(1);
        if self.frames.iter().take(full).any(|f| f.raw_len != FRAME_BYTES) {
            return Err(reader.field("frame length", full as u64));
        }
        let payload = self.payload_len();
        if payload > PAYLOAD_BYTES_MAX.into() {
            return Err(reader.field("payload length", payload));
        }
        self.check_blocks(reader)?;
        let mut end = 0_u64;
        let mut data = 0_u64;
        for extent in &self.extents {
            let next = extent.offset.checked_add(extent.len);
            match next {
                Some(next) if extent.offset >= end && extent.len > 0 && next <= i64::MAX as u64 => {
                    end = next;
                }
                _ => return Err(reader.field("extent", extent.offset)),
            }
            if extent.kind == ExtentKind::Data {
                data += extent.len;
            } else if self.kind == ObjectKind::Gc && extent.kind == ExtentKind::Discard {
                return Err(reader.field("extent of a gc object", extent.offset));
            }
        }
        if self.kind != ObjectKind::Checkpoint && data != payload {
            return Err(reader.field("data of the extents", data));
        }
        let streams = self.streams.len();
        if let Some(source) = self.sources.iter().find(|s| s.stream as usize >= streams) {
            return Err(reader.field("source stream", source.stream.into()));
        }
        if let Some((offset, len)) = self.root
            && u64::from(offset) + u64::from(len) > payload
        {
            return Err(reader.field("root", offset.into()));
        }
        Ok(())
    }

    /// Where frame `index` stands in the object, as offset and length.
    #[must_use]
    pub fn frame_place(&self, index: usize) -> (u64, u64) {
        let before: u64 = self.frames[..index].iter().map(|f| u64::from(f.stored_len)).sum();
        (self.header_len() + before, self.frames[index].stored_len.into())
    }
}
