//! Frozen bytes: what version 1 looks like, for ever. A change here is a new version of the format.

use bytes::Bytes;
use weir_device::VolumeId;
use weir_journal::{Epoch, WriteNumber};
use weir_seal::{DataKey, KeyId, WrappedKey, WrappingKey};

use crate::format::DecodeError;
use crate::format::blocks::Blocks;
use crate::format::checkpoint::{
    CheckpointRoot, PieceRef, TableRecord, decode_table, encode_page, encode_table,
};
use crate::format::dependant::DependantRecord;
use crate::format::frame::{self, Codec, Compression, Frame};
use crate::format::lease::{LEASE_FORMAT, LeaseRecord};
use crate::format::manifest::{HexId, Manifest};
use crate::format::name::NameRecord;
use crate::format::object::{
    self, Encoding, ExtentKind, GcSource, ObjectExtent, ObjectHeader, ObjectKind, ObjectSpec,
    ObjectVersion,
};
use crate::format::replica::ReplicaNote;
use crate::ids::{ObjectId, ObjectSeq, WriteMark};

/// As a program of before wrote them: version 1 without an opening, 2 with one.
const ENCODING: Encoding = Encoding { compression: Compression::None, version: ObjectVersion::V2 };

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.replace(char::is_whitespace, "");
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn mark(epoch: u64, write: u64) -> WriteMark {
    WriteMark { epoch: Epoch(epoch), write: WriteNumber(write) }
}

fn spec(kind: ObjectKind) -> ObjectSpec {
    let stream = VolumeId(*b"0123456789abcdef");
    ObjectSpec {
        id: ObjectId { stream, seq: ObjectSeq(7), epoch: Epoch(2) },
        opening: None,
        kind,
        first_write: mark(1, 40),
        last_write: mark(2, 43),
        volume_size: 1 << 30,
        salt: [0x5a; 16],
        root: None,
        extents: vec![
            ObjectExtent { offset: 4096, len: 5, kind: ExtentKind::Data },
            ObjectExtent { offset: 8192, len: 1 << 20, kind: ExtentKind::Discard },
        ],
        streams: Vec::new(),
        sources: Vec::new(),
    }
}

fn object(kind: ObjectKind) -> Vec<u8> {
    object_of(kind, None)
}

fn object_of(kind: ObjectKind, opening: Option<HexId>) -> Vec<u8> {
    encoded(spec_of(kind, opening))
}

pub(crate) fn spec_of(kind: ObjectKind, opening: Option<HexId>) -> ObjectSpec {
    let mut spec = spec(kind);
    spec.opening = opening;
    if kind == ObjectKind::Gc {
        (spec.first_write, spec.last_write) = (WriteMark::default(), WriteMark::default());
        spec.extents.truncate(1);
        spec.streams = vec![spec.id.stream];
        let source = GcSource { stream: 0, payload_offset: 64, seq: ObjectSeq(3), epoch: Epoch(1) };
        spec.sources = vec![source];
    }
    spec
}

fn encoded(spec: ObjectSpec) -> Vec<u8> {
    let payload = [Bytes::from_static(b"water")];
    object::encode(spec, &payload, ENCODING, None).expect("readable").parts.concat()
}

#[test]
fn object_version_1_is_frozen() {
    let expected = include_str!("../../testdata/v1/object.hex").replace(char::is_whitespace, "");
    assert_eq!(hex(&object(ObjectKind::Data)), expected);
}

pub(crate) const OPENING: HexId = HexId(*b"opening of epoch");

#[test]
fn object_version_2_is_frozen_and_names_its_opening() {
    let bytes = object_of(ObjectKind::Data, Some(OPENING));
    let expected = include_str!("../../testdata/v2/object.hex").replace(char::is_whitespace, "");
    assert_eq!(hex(&bytes), expected, "testdata/v2/object.hex");
    assert_eq!(ObjectHeader::decode(&bytes).unwrap().opening, Some(OPENING));
    let first = ObjectHeader::decode(&object(ObjectKind::Data)).unwrap();
    assert_eq!(first.opening, None, "version 1 is still read");
    // The checksum does not cover the version: neither may be taken for the other.
    let mut bytes = [bytes, object(ObjectKind::Data)];
    (bytes[0][4], bytes[1][4]) = (1, 2);
    for bytes in bytes {
        assert!(matches!(ObjectHeader::decode(&bytes), Err(DecodeError::Field { .. })));
    }
}

const WITH_BLOCKS: Encoding =
    Encoding { compression: Compression::None, version: ObjectVersion::V3 };

fn with_blocks(spec: ObjectSpec, payload: &[Bytes], key: Option<&DataKey>) -> Vec<u8> {
    let spec = ObjectSpec { opening: Some(OPENING), ..spec };
    object::encode(spec, payload, WITH_BLOCKS, key).expect("readable").parts.concat()
}

#[test]
fn object_version_3_is_frozen() {
    let bytes = with_blocks(spec(ObjectKind::Data), &[Bytes::from_static(b"water")], None);
    let expected = include_str!("../../testdata/v3/object.hex").replace(char::is_whitespace, "");
    assert_eq!(hex(&bytes), expected, "testdata/v3/object.hex");
    let header = ObjectHeader::decode(&bytes).unwrap();
    assert_eq!((header.version, header.sums.len()), (ObjectVersion::V3, 1));
    // Neither is taken for the other, whichever way the version is changed.
    let before = object_of(ObjectKind::Data, Some(OPENING));
    for (mut bytes, version) in [(bytes.clone(), 2), (bytes, 1), (before, 3)] {
        bytes[4] = version;
        ObjectHeader::decode(&bytes).unwrap_err();
    }
}

/// Nothing but discards: without the version in the checksum, the three would be the same.
#[test]
fn an_object_without_payload_is_of_its_own_version_only() {
    let mut spec = spec(ObjectKind::Data);
    spec.extents.remove(0);
    let mut bytes = with_blocks(spec, &[], None);
    ObjectHeader::decode(&bytes).unwrap();
    bytes[4] = 2;
    ObjectHeader::decode(&bytes).unwrap_err();
}

/// Three frames, the last one short, with an odd write between aligned ones.
fn large() -> (ObjectSpec, Vec<Bytes>) {
    let mut spec = spec(ObjectKind::Data);
    let data = |offset, len| ObjectExtent { offset, len, kind: ExtentKind::Data };
    spec.extents = vec![data(0, 100_352 + 2048), data(200_704, 512), data(401_408, 40_960)];
    let bytes: Vec<u8> = (0..spec.extents.iter().map(|extent| extent.len).sum::<u64>())
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    (spec, bytes.chunks(10_007).map(Bytes::copy_from_slice).collect())
}

/// What `testdata/objects.py` makes of the same bytes, by the page alone.
#[test]
fn large_objects_of_version_3_are_frozen() {
    let expected = include_str!("../../testdata/v3/large.txt");
    for (name, key) in [("plain", None), ("sealed", Some(data_key()))] {
        let (spec, payload) = large();
        let bytes = with_blocks(spec, &payload, key.as_ref());
        let line = format!("{name} {} {}\n", bytes.len(), blake3::hash(&bytes));
        assert!(expected.contains(&line), "testdata/v3/large.txt: {line}");
        let header = ObjectHeader::decode(&bytes).unwrap();
        assert_eq!(header.header_len().is_multiple_of(4096), key.is_none(), "blocks in pages");
        let found = payload_of(&bytes, key.as_ref());
        let (payload, mut at) = (payload.concat(), 0);
        let mut placement = header.placement();
        for extent in &header.extents {
            let (place, len) = (placement.place(extent), usize::try_from(extent.len).unwrap());
            let place = usize::try_from(place).unwrap();
            assert_eq!(found[place..place + len], payload[at..at + len]);
            at += len;
        }
    }
}

/// The payload of an object, frame by frame.
fn payload_of(bytes: &[u8], key: Option<&DataKey>) -> Vec<u8> {
    let (header, key) = ObjectHeader::open(bytes, key).unwrap();
    let mut found = Vec::new();
    for (number, frame) in (0..).zip(&header.frames) {
        let index = usize::try_from(number).unwrap();
        let (at, len) = header.frame_place(index);
        let (at, len) = (usize::try_from(at).unwrap(), usize::try_from(len).unwrap());
        let stored = Bytes::copy_from_slice(&bytes[at..at + len]);
        let blocks = header.blocks(index);
        let raw = frame::decode(&header.id, number, frame, blocks, key.as_ref(), stored);
        found.extend_from_slice(&raw.unwrap());
    }
    found
}

/// Two blocks that shrink, and one, of an odd write, that does not. The bytes are those of `testdata/objects.py`, whose
/// LZ4 is another one: ours makes the same of these.
#[test]
fn object_version_4_is_frozen() {
    let mut spec = ObjectSpec { opening: Some(OPENING), ..spec(ObjectKind::Data) };
    let extent = |offset, len, kind| ObjectExtent { offset, len, kind };
    spec.extents = vec![
        extent(4096, 32, ExtentKind::Data),
        extent(8192, 8192, ExtentKind::Data),
        extent(65536, 1 << 20, ExtentKind::Discard),
    ];
    let block = |odd: &[u8]| [&b"water".repeat(816)[..], &odd[..16]].concat();
    let mut bytes = unhex(include_str!("../../testdata/v4/object.hex"));
    let payload = payload_of(&bytes, None);
    let (aligned, odd) = payload.split_at(8192);
    assert_eq!(aligned, [block(odd), block(odd)].concat());
    let header = ObjectHeader::decode(&bytes).unwrap();
    assert_eq!((header.version, &header.lens[..]), (ObjectVersion::V4, &[42, 42, 32][..]));
    assert_eq!(header.extents, spec.extents);
    let parts = [Bytes::copy_from_slice(odd), Bytes::copy_from_slice(aligned)];
    let made = object::encode(spec, &parts, PACKED, None).expect("readable");
    assert_eq!(hex(&made.parts.concat()), hex(&bytes), "testdata/v4/object.hex");
    // Neither is taken for the other, whichever way the version is changed.
    bytes[4] = 3;
    ObjectHeader::decode(&bytes).unwrap_err();
}

const PACKED: Encoding = Encoding { compression: Compression::Lz4, version: ObjectVersion::V4 };

/// The header, as somebody changes it who makes its checksum right.
fn tampered(bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Result<(), DecodeError> {
    ObjectHeader::decode(&changed(bytes, change)).map(drop)
}

fn changed(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let len = usize::try_from(ObjectHeader::decode(&bytes).unwrap().header_len()).unwrap();
    change(&mut bytes);
    let crc = crate::format::crc32c(&[&bytes[12..len], &[bytes[6], bytes[4], 0]]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn an_object_of_a_newer_version_is_told_from_a_damaged_one() {
    let ours = unhex(include_str!("../../testdata/v4/object.hex"));
    assert!(!ObjectHeader::is_of_newer_version(&ours));
    let newer = changed(ours.clone(), |bytes| bytes[4] = 200);
    assert!(ObjectHeader::is_of_newer_version(&newer));
    let len = usize::try_from(ObjectHeader::decode(&ours).unwrap().header_len()).unwrap();
    assert!((0..len).all(|len| !ObjectHeader::is_of_newer_version(&newer[..len])), "cut short");
    let mut damaged = ours;
    damaged[4] = 200;
    assert!(!ObjectHeader::is_of_newer_version(&damaged), "its checksum is another's");
}

/// Whatever an encoder makes is read, short objects too.
#[test]
fn short_objects_that_compress_a_little_are_read() {
    let mut random = crate::random::splitmix(3);
    let noise: Vec<u8> = (0..256).map(|_| random().to_le_bytes()[0]).collect();
    let mut packed = 0;
    for (len, zeroes) in (1..256).flat_map(|len| (0..=len.min(48)).map(move |n| (len, n))) {
        let payload = [&noise[..len - zeroes], &[0; 48][..zeroes]].concat();
        let mut spec = ObjectSpec { opening: Some(OPENING), ..spec(ObjectKind::Data) };
        spec.extents.truncate(1);
        spec.extents[0].len = len as u64;
        for key in [None, Some(data_key())] {
            let parts = [Bytes::from(payload.clone())];
            let made = object::encode(spec.clone(), &parts, PACKED, key.as_ref());
            let bytes = made.expect("readable").parts.concat();
            let header = ObjectHeader::decode(&bytes).expect("by whoever reads it");
            let Frame { codec, stored_len, .. } = header.frames[0];
            packed += usize::from(codec == Codec::Lz4Blocks);
            let tag = if key.is_some() { 16 } else { 0 };
            assert!(codec == Codec::Raw || u64::from(stored_len - tag) < len as u64, "it shrank");
            assert_eq!(payload_of(&bytes, key.as_ref()), payload);
        }
    }
    assert!(packed > 0);
}

#[test]
fn a_codec_of_version_4_is_refused_in_version_3_and_in_an_encrypted_object() {
    let bytes = unhex(include_str!("../../testdata/v4/object.hex"));
    tampered(bytes.clone(), |_| {}).unwrap();
    let refused = tampered(bytes, |bytes| bytes[4] = 3).unwrap_err();
    assert!(refused.to_string().contains("codec"), "{refused}");
    let spec = ObjectSpec { opening: Some(OPENING), ..spec(ObjectKind::Data) };
    let extent = ObjectExtent { offset: 0, len: 8192, kind: ExtentKind::Data };
    let spec = ObjectSpec { extents: vec![extent], ..spec };
    let payload = [Bytes::from(vec![7; 8192])];
    let key = data_key();
    let bytes = object::encode(spec, &payload, PACKED, Some(&key)).expect("readable");
    assert_eq!((bytes.header.frames[0].codec, bytes.header.lens.len()), (Codec::Lz4, 0));
    let bytes = bytes.parts.concat();
    let refused = tampered(bytes, |bytes| bytes[object::FIXED_BYTES + 12] = 3).unwrap_err();
    assert!(refused.to_string().contains("codec"), "{refused}");
}

#[test]
fn what_is_reserved_in_a_frame_is_refused() {
    for at in 13..16 {
        let bytes = unhex(include_str!("../../testdata/v4/object.hex"));
        let refused = tampered(bytes, |bytes| bytes[object::FIXED_BYTES + at] = 1).unwrap_err();
        assert!(refused.to_string().contains("reserved"), "{refused}");
    }
}

#[test]
fn gc_object_version_1_is_frozen() {
    let bytes = object(ObjectKind::Gc);
    frozen("gc", &bytes, include_str!("../../testdata/v1/gc.hex"));
    let header = ObjectHeader::decode(&bytes).unwrap();
    let source = GcSource { stream: 0, payload_offset: 64, seq: ObjectSeq(3), epoch: Epoch(1) };
    assert_eq!(header.sources, [source]);
}

/// A gc object whose second extent names a source, too.
fn gc_with(kind: ExtentKind) -> Vec<u8> {
    let mut spec = spec(ObjectKind::Gc);
    (spec.first_write, spec.last_write) = (WriteMark::default(), WriteMark::default());
    spec.extents[1].kind = kind;
    spec.streams = vec![spec.id.stream];
    let source = GcSource { stream: 0, payload_offset: 64, seq: ObjectSeq(3), epoch: Epoch(1) };
    spec.sources = vec![source; 2];
    encoded(spec)
}

fn data_key() -> DataKey {
    DataKey::draw(|bytes| bytes.fill(7))
}

fn sealed_object() -> Vec<u8> {
    sealed_object_of(None)
}

fn sealed_object_of(opening: Option<HexId>) -> Vec<u8> {
    let payload = [Bytes::from_static(b"water")];
    let key = data_key();
    let spec = ObjectSpec { opening, ..spec(ObjectKind::Data) };
    object::encode(spec, &payload, ENCODING, Some(&key)).expect("readable").parts.concat()
}

#[test]
fn a_sealed_object_is_frozen() {
    let bytes = sealed_object();
    frozen("sealed", &bytes, include_str!("../../testdata/v1/sealed.hex"));
    let (header, key) = ObjectHeader::open(&bytes, Some(&data_key())).unwrap();
    let (at, len) = header.frame_place(0);
    let stored =
        Bytes::copy_from_slice(&bytes[at.try_into().unwrap()..][..len.try_into().unwrap()]);
    let frame = frame::decode(&header.id, 0, &header.frames[0], Blocks::None, key.as_ref(), stored)
        .unwrap();
    assert_eq!(frame, "water");
}

/// Whoever can write the store can make checksums right, but no tags.
#[test]
fn no_bit_of_a_sealed_header_may_change_though_its_checksum_is_right() {
    for opening in [None, Some(OPENING)] {
        no_bit_may_change(&sealed_object_of(opening));
    }
}

fn no_bit_may_change(good: &[u8]) {
    let key = data_key();
    let other = DataKey::draw(|bytes| bytes.fill(8));
    let open = |bytes: &[u8], key| ObjectHeader::open(bytes, key).map(drop);
    assert_eq!(open(good, Some(&key)), Ok(()));
    assert!(matches!(open(good, None), Err(DecodeError::NoKey { .. })));
    assert!(matches!(open(good, Some(&other)), Err(DecodeError::OtherKey { .. })));
    let plain = object(ObjectKind::Data);
    assert!(matches!(open(&plain, Some(&key)), Err(DecodeError::OtherKey { .. })));
    let len = usize::try_from(ObjectHeader::decode(good).unwrap().header_len()).unwrap();
    for bit in (0..len * 8).filter(|bit| !(64..96).contains(bit)) {
        let mut bytes = good.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let crc = crate::format::crc32c(&[&bytes[12..len], &[bytes[6]]]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert!(open(&bytes, Some(&key)).is_err(), "bit {bit}");
    }
}

fn kept_manifest(text: &str) -> Manifest {
    let manifest: Manifest = serde_json::from_str(text).unwrap();
    assert!(manifest.is_intact(), "a manifest verifies for ever, of whichever format");
    assert_eq!(manifest.encode(), text.as_bytes(), "and is written as it was");
    manifest
}

#[test]
fn an_encrypted_manifest_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v1/manifest_encrypted.json"));
    let encryption = manifest.encryption.unwrap();
    let kek = WrappingKey::of([1; 32]);
    let wrapped_with = KeyId(encryption.wrapped_with.0);
    let wrapped = WrappedKey { wrapped_with, bytes: encryption.wrapped.0 };
    assert_eq!((kek.id(), kek.unwrap_key(&wrapped).unwrap().id()), (wrapped_with, data_key().id()));
}

#[test]
fn what_a_repair_gave_up_is_frozen() {
    frozen("poison", &gc_with(ExtentKind::Poison), include_str!("../../testdata/v1/poison.hex"));
    for kind in [ExtentKind::Poison, ExtentKind::Zero] {
        assert_eq!(ObjectHeader::decode(&gc_with(kind)).unwrap().extents[1].kind, kind);
    }
}

#[test]
fn an_extent_of_a_gc_object_that_discards_is_refused() {
    let mut bytes = gc_with(ExtentKind::Poison);
    let header = ObjectHeader::decode(&bytes).unwrap();
    let len = usize::try_from(header.header_len()).unwrap();
    // The kind of the second extent, behind the frames.
    bytes[object::FIXED_BYTES + header.frames.len() * 16 + 16 + 15] = 2;
    let crc = crate::format::crc32c(&[&bytes[12..len], &[bytes[6]]]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    let refused = ObjectHeader::decode(&bytes).unwrap_err();
    assert!(refused.to_string().contains("extent of a gc object"), "{refused}");
}

#[test]
fn an_object_that_nobody_could_read_is_not_made() {
    let good = spec(ObjectKind::Data);
    let refused = |extents: Vec<ObjectExtent>, root| {
        let spec = ObjectSpec { extents, root, ..good.clone() };
        let payload = [Bytes::from_static(b"water")];
        object::encode(spec, &payload, ENCODING, None).map(drop).unwrap_err().to_string()
    };
    let (data, zeroes) = (good.extents[0], good.extents[1]);
    let overlapping = ObjectExtent { offset: data.offset + data.len - 1, ..zeroes };
    for extents in [vec![data, overlapping], vec![zeroes, data]] {
        assert!(refused(extents, None).contains("field extent is"));
    }
    let empty = ObjectExtent { len: 0, ..zeroes };
    assert!(refused(vec![data, empty], None).contains("field extent is"));
    let beyond = ObjectExtent { offset: i64::MAX as u64, ..zeroes };
    assert!(refused(vec![data, beyond], None).contains("field extent is"));
    let longer = ObjectExtent { len: 6, ..data };
    assert!(refused(vec![longer], None).contains("data of the extents"));
    assert!(refused(good.extents.clone(), Some((4, 2))).contains("field root"));
    let source = GcSource { stream: 1, payload_offset: 64, seq: ObjectSeq(3), epoch: Epoch(1) };
    let mut moved = spec(ObjectKind::Gc);
    (moved.streams, moved.sources) = (vec![moved.id.stream], vec![source]);
    moved.extents.truncate(1);
    let payload = [Bytes::from_static(b"water")];
    let refused = object::encode(moved, &payload, ENCODING, None).map(drop).unwrap_err();
    assert!(refused.to_string().contains("source stream"), "{refused}");
}

#[test]
fn the_documented_example_is_the_frozen_object() {
    let page = include_str!("../../../../docs/formats/object.md").replace(char::is_whitespace, "");
    let expected = include_str!("../../testdata/v3/object.hex").replace(char::is_whitespace, "");
    assert!(page.contains(&expected), "docs/formats/object.md shows the bytes of testdata/v3");
}

#[test]
fn headers_read_back_and_refuse_every_truncation_and_every_flipped_bit() {
    let both = [None, Some(OPENING)];
    for (kind, opening) in both.iter().flat_map(|o| [(ObjectKind::Data, *o), (ObjectKind::Gc, *o)])
    {
        let bytes = object_of(kind, opening);
        let header = ObjectHeader::decode(&bytes).unwrap();
        assert_eq!(header.kind, kind);
        let last = if kind == ObjectKind::Data { mark(2, 43) } else { WriteMark::default() };
        assert_eq!(header.last_write, last);
        assert_eq!(header.payload_len(), 5);
        let len = usize::try_from(header.header_len()).unwrap();
        assert!((0..len).all(|n| ObjectHeader::decode(&bytes[..n]).is_err()));
        for bit in 0..len * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ObjectHeader::decode(&flipped).is_err(), "bit {bit} is covered");
        }
    }
}

fn frozen(name: &str, bytes: &[u8], expected: &str) {
    assert_eq!(hex(bytes), expected.replace(char::is_whitespace, ""), "testdata/v1/{name}.hex");
}

#[test]
fn checkpoint_version_1_is_frozen() {
    let piece = |number| PieceRef {
        number,
        seq: ObjectSeq(5),
        epoch: Epoch(2),
        offset: 0x0102_0304,
        len: 20,
    };
    let root = CheckpointRoot {
        as_of: ObjectSeq(4),
        committed: mark(2, 77),
        volume_size: 1 << 40,
        table_entries: 3,
        map_pages: vec![piece(0), piece(7)],
        table_pages: vec![piece(0)],
    };
    frozen("root", &root.encode(), include_str!("../../testdata/v1/root.hex"));
    let page = encode_page(&[piece(1), piece(2)]);
    frozen("page", &page, include_str!("../../testdata/v1/page.hex"));
    let id = spec(ObjectKind::Data).id;
    let records = [TableRecord { id, payload_len: 5 }];
    frozen("table", &encode_table(&records), include_str!("../../testdata/v1/table.hex"));
    let records = [records[0], TableRecord::FREE];
    let bytes = encode_table(&records);
    frozen("table_free", &bytes, include_str!("../../testdata/v1/table_free.hex"));
    assert_eq!(decode_table(&bytes).unwrap(), records);
}

#[test]
fn manifest_format_1_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v1/manifest.json"));
    assert_eq!(manifest.owner_of(ObjectSeq(9)), Some(Epoch(3)));
}

#[test]
fn manifest_format_4_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v4/manifest.json"));
    assert_eq!((manifest.format, manifest.format_needed()), (4, 4));
    assert_eq!(manifest.object_version, Some(3));
    let before = Manifest { object_version: None, ..manifest };
    assert_eq!(before.format_needed(), 3);
}

#[test]
fn manifest_format_5_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v5/manifest.json"));
    assert_eq!((manifest.format, manifest.format_needed()), (5, 5));
    assert_eq!(manifest.object_version, Some(4));
}

#[test]
fn manifest_format_3_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v3/manifest.json"));
    assert_eq!((manifest.format, manifest.format_needed()), (3, 3));
    let [old, new] = [&manifest.epochs[2], &manifest.epochs[3]];
    assert_eq!((old.opening, new.opening, new.previous), (None, Some(OPENING), None));
    assert_eq!(manifest.history_of(Epoch(1)), Some(OPENING), "the next one that has a name");
    let kept: Vec<_> = manifest.salvage.iter().map(|record| record.snapshot).collect();
    assert_eq!(kept, [Some(HexId([0x0b; 16])), None]);
}

#[test]
fn names_are_frozen() {
    let text = include_str!("../../testdata/v2/name.json");
    let record = NameRecord::decode(text.as_bytes(), "demo", 2).unwrap();
    assert_eq!(record.volume, Some(HexId(*b"0123456789abcdef")));
    assert_eq!(record.encode(), text.as_bytes(), "and is written as it was");
    let text = include_str!("../../testdata/v1/name.json");
    let old = NameRecord::decode(text.as_bytes(), "demo", 2).unwrap();
    assert_eq!((old.volume, old.nonce), (record.volume, record.nonce), "format 1 is still read");
}

#[test]
fn lease_format_1_is_frozen() {
    let text = include_str!("../../testdata/v1/lease.json");
    let record: LeaseRecord = serde_json::from_str(text).unwrap();
    assert!(record.is_intact(), "a renewal of format 1 verifies for ever");
    assert_eq!(record.encode(), text.as_bytes(), "and is written as it was");
}

#[test]
fn lease_format_2_is_frozen() {
    let text = include_str!("../../testdata/v2/lease.json");
    let record: LeaseRecord = serde_json::from_str(text).unwrap();
    assert!(record.is_intact(), "a renewal of format 2 verifies for ever");
    assert_eq!(record.encode(), text.as_bytes(), "and is written as it was");
    assert_eq!(record.format, LEASE_FORMAT);
    let flushed = record.volumes[0].flushed.expect("it is open");
    assert_eq!((flushed.opening, flushed.write), (OPENING, 43));
}

#[test]
fn the_manifest_of_a_replica_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v1/replica.json"));
    assert_eq!(manifest.root(), manifest.origin, "it has no checkpoint of its own");
}

#[test]
fn replica_note_format_1_is_frozen() {
    let text = include_str!("../../testdata/v1/replica_note.json");
    let note = ReplicaNote::decode(text.as_bytes()).unwrap();
    assert_eq!(note.copying_through, Some(77));
    assert_eq!(note.encode(), text.as_bytes(), "and is written as it was");
}

#[test]
fn the_manifest_of_a_clone_is_frozen() {
    let manifest = kept_manifest(include_str!("../../testdata/v1/clone.json"));
    assert_eq!(manifest.origins[0].snapshot, "monday");
    assert!(manifest.snapshots[0].deleting && manifest.snapshot("old").is_none());
}

#[test]
fn dependant_format_1_is_frozen() {
    let text = include_str!("../../testdata/v1/dependant.json");
    let record: DependantRecord = serde_json::from_str(text).unwrap();
    assert!(record.is_intact(), "a note of format 1 verifies for ever");
    assert_eq!(record.encode(), text.as_bytes(), "and is written as it was");
}

#[test]
fn data_and_copies_have_the_version_that_a_volume_is_kept_at() {
    for version in [ObjectVersion::V2, ObjectVersion::V3, ObjectVersion::V4] {
        for kind in [ObjectKind::Data, ObjectKind::Gc] {
            let spec = spec_of(kind, Some(OPENING));
            let encoding = Encoding { compression: Compression::None, version };
            let payload = [Bytes::from_static(b"water")];
            let bytes =
                object::encode(spec, &payload, encoding, None).expect("readable").parts.concat();
            assert_eq!(
                ObjectHeader::decode(&bytes).expect("readable").version,
                version,
                "{kind:?}"
            );
        }
    }
}
