//! The binary records of vscsi traces, little-endian: what a virtual SCSI disk was asked for.
//!
//! Version 1, 32 bytes: sequence u32, length u32, scatter-gather entries u32, command u16, version u16, block u64, time
//! u64. Version 2, 40 bytes: command u16, version u16, sequence u32, length u32, entries u32, block u64, time u64,
//! response u64. The version is in the upper byte of its field; blocks have 512 bytes; times are microseconds.

use crate::text::checked;
use crate::{Format, Op, Request};

const BYTES_1: usize = 32;
const BYTES_2: usize = 40;

/// Bytes of a record; `None` for formats that have none.
pub(crate) fn record_bytes(format: Format) -> Option<usize> {
    match format {
        Format::Vscsi1 => Some(BYTES_1),
        Format::Vscsi2 => Some(BYTES_2),
        _ => None,
    }
}

fn array<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..at + N)?.try_into().ok()
}

/// The version that a record says it has.
fn version(record: &[u8], at: usize) -> Option<u8> {
    record.get(at + 1).copied()
}

/// Two records that say the same version decide.
pub(crate) fn guess(head: &[u8]) -> Option<Format> {
    let says = |bytes: usize, at: usize, wanted: u8| {
        (0..2).all(|index| version(head, index * bytes + at) == Some(wanted))
    };
    match () {
        () if says(BYTES_2, 2, 2) => Some(Format::Vscsi2),
        () if says(BYTES_1, 14, 1) => Some(Format::Vscsi1),
        () => None,
    }
}

/// A record; `None` if it is none. Commands that neither read, write nor unmap count as flushes of nothing.
pub(crate) fn parse(format: Format, record: &[u8]) -> Option<Request> {
    let (command_at, version_at, len_at, block_at, number) = match format {
        Format::Vscsi1 => (12, 14, 4, 16, 1),
        _ => (0, 2, 8, 16, 2),
    };
    if version(record, version_at)? != number {
        return None;
    }
    let command = u16::from_le_bytes(array(record, command_at)?);
    let len = u32::from_le_bytes(array(record, len_at)?);
    let block = u64::from_le_bytes(array(record, block_at)?);
    let time_us = u64::from_le_bytes(array(record, block_at + 8)?);
    let op = match command {
        0x08 | 0x28 | 0x88 | 0xa8 => Op::Read,
        0x0a | 0x2a | 0x8a | 0xaa => Op::Write,
        0x42 => Op::Discard,
        _ => Op::Flush,
    };
    let (offset, len) = match op {
        Op::Flush => (0, 0),
        _ => (block.checked_mul(512)?, len.into()),
    };
    checked(Request { time_us, op, device: 0, offset, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_1(command: u16, len: u32, block: u64, time: u64) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend([0_u8; 4]);
        record.extend(len.to_le_bytes());
        record.extend([0_u8; 4]);
        record.extend(command.to_le_bytes());
        record.extend(0x0100_u16.to_le_bytes());
        record.extend(block.to_le_bytes());
        record.extend(time.to_le_bytes());
        record
    }

    fn record_2(command: u16, len: u32, block: u64, time: u64) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(command.to_le_bytes());
        record.extend(0x0200_u16.to_le_bytes());
        record.extend([0_u8; 4]);
        record.extend(len.to_le_bytes());
        record.extend([0_u8; 4]);
        record.extend(block.to_le_bytes());
        record.extend(time.to_le_bytes());
        record.extend([0_u8; 8]);
        record
    }

    #[test]
    fn both_versions_are_told_apart_and_read() {
        let want = Request { time_us: 77, op: Op::Write, device: 0, offset: 4096, len: 512 };
        let one = record_1(0x2a, 512, 8, 77);
        assert_eq!(one.len(), BYTES_1);
        assert_eq!(guess(&one.repeat(2)), Some(Format::Vscsi1));
        assert_eq!(parse(Format::Vscsi1, &one), Some(want));
        let two = record_2(0x8a, 512, 8, 77);
        assert_eq!(two.len(), BYTES_2);
        assert_eq!(guess(&two.repeat(2)), Some(Format::Vscsi2));
        assert_eq!(parse(Format::Vscsi2, &two), Some(want));
        assert_eq!(parse(Format::Vscsi2, &record_2(0x42, 512, 8, 77)).unwrap().op, Op::Discard);
        assert_eq!(parse(Format::Vscsi2, &record_2(0x00, 0, 0, 1)).unwrap().op, Op::Flush);
        assert_eq!(parse(Format::Vscsi1, &two), None, "another version");
        assert_eq!(parse(Format::Vscsi2, &two[..39]).map(|r| r.len), Some(512));
        assert_eq!(parse(Format::Vscsi2, &record_2(0x2a, 512, u64::MAX, 0)), None, "past the end");
        assert_eq!(guess(&[0; 100]), None);
    }
}
