//! Where the data of an object's extents is in its payload. Page: `docs/formats/object.md`.

use bytes::Bytes;

use crate::format::object::{ExtentKind, ObjectExtent, ObjectVersion};
use crate::limits::BLOCK_BYTES;

/// Follows the extents of an object, and says for each where its data begins in the payload. From version 3 on, those
/// that begin and end at a multiple of 4 KiB come first, so that a block of the volume is a block of a frame, whatever
/// odd writes came between; the others follow them. Nothing is left between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Where the next aligned one begins.
    aligned: u64,
    /// Where the next other one begins; nothing where they are not told apart.
    others: Option<u64>,
}

/// Whether an extent covers whole blocks of the volume.
fn is_aligned(extent: &ObjectExtent) -> bool {
    let block = u64::from(BLOCK_BYTES);
    extent.offset.is_multiple_of(block) && extent.len.is_multiple_of(block)
}

fn has_data(extent: &&ObjectExtent) -> bool {
    extent.kind == ExtentKind::Data
}

impl Placement {
    /// Before the first extent of an object of these.
    #[must_use]
    pub fn of(version: ObjectVersion, extents: &[ObjectExtent]) -> Self {
        if version < ObjectVersion::V3 && !weir_device::mutant("placement_of_other_version") {
            return Self::default();
        }
        let aligned = extents.iter().filter(has_data).filter(|extent| is_aligned(extent));
        Self { aligned: 0, others: Some(aligned.map(|extent| extent.len).sum()) }
    }

    /// Where the data of the next extent begins. One without data has none, and takes no place.
    pub fn place(&mut self, extent: &ObjectExtent) -> u64 {
        let next = match &mut self.others {
            Some(others) if !is_aligned(extent) => others,
            _ => &mut self.aligned,
        };
        let begin = *next;
        if has_data(&extent) {
            *next += extent.len;
        }
        begin
    }
}

/// The bytes of extents, which are one behind the other in `bytes`, in the order of their places.
pub(super) fn placed(extents: &[ObjectExtent], bytes: &[Bytes]) -> Vec<Bytes> {
    if extents.iter().filter(has_data).all(is_aligned) {
        return bytes.to_vec();
    }
    let (mut aligned, mut others) = (Vec::with_capacity(bytes.len()), Vec::new());
    let mut parts = bytes.iter();
    let mut rest = Bytes::new();
    for extent in extents.iter().filter(has_data) {
        let target = if is_aligned(extent) { &mut aligned } else { &mut others };
        let mut missing = usize::try_from(extent.len).unwrap_or(usize::MAX);
        while missing > 0 {
            if rest.is_empty() {
                // Extents and bytes that disagree are refused when the header is checked.
                let Some(part) = parts.next() else { break };
                rest = part.clone();
            }
            let taken = rest.split_to(missing.min(rest.len()));
            missing -= taken.len();
            target.push(taken);
        }
    }
    aligned.append(&mut others);
    aligned.push(rest);
    aligned.extend(parts.cloned());
    aligned.retain(|part| !part.is_empty());
    aligned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(of: &[(u64, u64, ExtentKind)]) -> Vec<ObjectExtent> {
        of.iter().map(|&(offset, len, kind)| ObjectExtent { offset, len, kind }).collect()
    }

    /// A byte for each 512 of an extent, which tells where on the volume they are.
    fn bytes_of(extent: &ObjectExtent) -> Vec<u8> {
        (0..extent.len).map(|at| (((extent.offset + at) / 512) % 251).to_le_bytes()[0]).collect()
    }

    #[test]
    fn one_odd_write_shifts_nothing_and_no_byte_is_added() {
        use ExtentKind::{Data, Discard};
        let extents = extents(&[
            (512, 512, Data),
            (8192, 4096, Data),
            (12288, 4096, Discard),
            (20480, 8192, Data),
            (28672, 1024, Data),
            (65536, 4096, Data),
        ]);
        let data: Vec<&ObjectExtent> = extents.iter().filter(has_data).collect();
        let run: Vec<u8> = data.iter().flat_map(|extent| bytes_of(extent)).collect();
        // Parts end within extents, and extents within parts.
        let parts: Vec<Bytes> = run.chunks(700).map(Bytes::copy_from_slice).collect();
        let payload = placed(&extents, &parts).concat();
        assert_eq!(payload.len(), run.len());
        let mut placement = Placement::of(ObjectVersion::V3, &extents);
        let mut places = Vec::new();
        for extent in &extents {
            let at = placement.place(extent);
            if extent.kind == Data {
                let at = usize::try_from(at).unwrap();
                assert_eq!(&payload[at..][..extent.len.try_into().unwrap()], bytes_of(extent));
                places.push(at);
            }
        }
        assert_eq!(places, [16384, 0, 4096, 16896, 12288]);
        let mut before = Placement::of(ObjectVersion::V2, &extents);
        let places: Vec<u64> = extents.iter().map(|extent| before.place(extent)).collect();
        assert_eq!(places, [0, 512, 4608, 4608, 12800, 13824], "as they come, before version 3");
    }
}
