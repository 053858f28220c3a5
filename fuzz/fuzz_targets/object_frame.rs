//! A compressed frame: whatever comes out has the length that was promised.
#![no_main]

use libfuzzer_sys::fuzz_target;
use bytes::Bytes;
use weir_device::VolumeId;
use weir_journal::Epoch;
use weir_log::format::frame::{self, Codec, Frame};
use weir_log::{ObjectId, ObjectSeq};

fuzz_target!(|input: &[u8]| {
    let [codec, low, high, stored @ ..] = input else { return };
    let id = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(1), epoch: Epoch(1) };
    let raw_len = u32::from(u16::from_le_bytes([*low, *high])) + 1;
    let codec = Codec::from_code(codec % 3).expect("three codecs");
    let stored_len = u32::try_from(stored.len()).expect("a short input");
    let entry = Frame { stored_len, raw_len, crc: 0, codec };
    if let Ok(raw) = frame::decode(&id, 0, &entry, None, Bytes::copy_from_slice(stored)) {
        assert_eq!(raw.len(), raw_len as usize);
    }
});
