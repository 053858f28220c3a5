//! A frame, and blocks of one: whatever comes out has the length that was promised.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bytes::Bytes;
use weir_device::VolumeId;
use weir_journal::Epoch;
use weir_log::format::blocks::{self, BlockRange, Blocks};
use weir_log::format::frame::{self, Codec, Frame, Look};
use weir_log::format::packed::Packed;
use weir_log::{ObjectId, ObjectSeq};
use weir_seal::{DataKey, Purpose};

fuzz_target!(|input: &[u8]| {
    let [codec, low, high, first, last, stored @ ..] = input else { return };
    let id = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(1), epoch: Epoch(1) };
    let raw_len = u32::from(u16::from_le_bytes([*low, *high])) + 1;
    let codec = Codec::from_code(codec % 4).expect("four codecs");
    let stored_len = u32::try_from(stored.len()).expect("a short input");
    let entry = Frame { stored_len, raw_len, crc: 0, codec };
    let stored = Bytes::copy_from_slice(stored);
    let key = DataKey::draw(|bytes| bytes.fill(1)).derive(Purpose::Object, &[b"fuzz"]);
    let sums = vec![0; blocks::count(raw_len) as usize];
    // What a header says of them comes from outside as well. The first bytes are lengths, and stored at the same time.
    let lens: Vec<u16> = stored.chunks_exact(2).take(sums.len())
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let packed = Blocks::Packed(Packed { lens: &lens, sums: &sums });
    let kinds = [
        (Blocks::None, None),
        (Blocks::Plain(&sums), None),
        (Blocks::Sealed, None),
        (Blocks::Sealed, Some(&key)),
        (packed, None),
    ];
    for (blocks, key) in kinds {
        if let Ok(raw) = frame::decode(&id, 0, &entry, blocks, key, stored.clone()) {
            assert_eq!(raw.len(), raw_len as usize);
        }
        for look in [Look::Checksums, Look::Decode(key)] {
            for ((from, to), _) in frame::damage(&id, (0, &entry), blocks, look, &stored) {
                assert!(from < to && to <= raw_len);
            }
        }
        let range = BlockRange { first: (*first).into(), last: (*last).into() };
        let (from, to) = range.raw(raw_len);
        if let Ok(raw) = blocks::decode(&id, (0, &entry), blocks, range, key, stored.clone()) {
            assert_eq!(raw.len(), (to - from) as usize);
        }
    }
});
