//! One line of each text format.

use std::collections::BTreeMap;

use crate::{Format, Op, Request};

/// Unit of blocks in the formats that count them.
const SECTOR_BYTES: u64 = 512;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Request(Request),
    /// A heading, a comment, an event that is no request.
    Other,
}

/// Understands lines of one format.
#[derive(Debug)]
pub(crate) struct Lines {
    format: Format,
    /// Numbers of the disks that have names.
    devices: BTreeMap<String, u64>,
    /// An iolog of version 3 has a time before everything else.
    fio_has_times: bool,
    /// Time of an iolog of version 2, which only says how long it waits.
    fio_time_us: u64,
    is_first: bool,
}

impl Lines {
    pub(crate) fn new(format: Format) -> Self {
        let (devices, is_first) = (BTreeMap::new(), true);
        Self { format, devices, fio_has_times: false, fio_time_us: 0, is_first }
    }

    /// A line; `None` if it is not as the format says.
    pub(crate) fn parse(&mut self, line: &str) -> Option<Line> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Some(Line::Other);
        }
        let is_first = std::mem::take(&mut self.is_first);
        let parsed = match self.format {
            Format::Fio => return self.fio(line),
            Format::Blkparse => return self.blkparse(line),
            Format::Lis => lis(line),
            _ => self.commas(line),
        };
        match parsed {
            Some(request) => Some(Line::Request(request)),
            None if is_first && line.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                Some(Line::Other)
            }
            None => None,
        }
    }

    fn device(&mut self, name: &str) -> u64 {
        let next = self.devices.len() as u64;
        *self.devices.entry(name.to_owned()).or_insert(next)
    }

    fn commas(&mut self, line: &str) -> Option<Request> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let (time_us, op, device, offset, len) = match (self.format, &fields[..]) {
            (Format::Csv, [time, op, device, offset, len]) => {
                (number(time)?, op, device, number(offset)?, number(len)?)
            }
            (Format::Alibaba, [device, op, offset, len, time]) => {
                (number(time)?, op, device, number(offset)?, number(len)?)
            }
            (Format::Msr, [time, host, disk, op, offset, len, _]) => {
                let device = self.device(&format!("{host} {disk}"));
                let request = (number(time)? / 10, letter(op)?, number(offset)?, number(len)?);
                let (time_us, op, offset, len) = request;
                return checked(Request { time_us, op, device, offset, len });
            }
            (Format::Tencent, [time, offset, len, op, device]) => {
                (micros(time)?, op, device, sectors(offset)?, sectors(len)?)
            }
            (Format::Systor, [time, _, op, device, offset, len]) => {
                (micros(time)?, op, device, number(offset)?, number(len)?)
            }
            (Format::Spc, [device, lba, len, op, time, ..]) => {
                (micros(time)?, op, device, sectors(lba)?, number(len)?)
            }
            _ => return None,
        };
        let op = letter(op)?;
        let device = self.device(device);
        checked(Request { time_us, op, device, offset, len })
    }

    /// `8,0 1 1 0.000000000 697 Q W 223490 + 8 [kjournald]`; what other rows say is about the same requests.
    fn blkparse(&mut self, line: &str) -> Option<Line> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, _, _, time, _, "Q", what, sector, "+", count, ..] = &words[..] else {
            return Some(Line::Other);
        };
        let op = match what {
            what if what.contains('D') => Op::Discard,
            what if what.contains('W') => Op::Write,
            what if what.contains('R') => Op::Read,
            _ => return Some(Line::Other),
        };
        let (time_us, offset, len) = (micros(time)?, sectors(sector)?, sectors(count)?);
        let device = self.device(device);
        checked(Request { time_us, op, device, offset, len }).map(Line::Request)
    }

    fn fio(&mut self, line: &str) -> Option<Line> {
        if let Some(version) = line.strip_prefix("fio version ") {
            self.fio_has_times = version.starts_with('3');
            return matches!(version, "2 iolog" | "3 iolog").then_some(Line::Other);
        }
        let mut words = line.split_whitespace();
        if self.fio_has_times {
            // Milliseconds in old versions, microseconds since; only their order matters here.
            self.fio_time_us = number(words.next()?)?;
        }
        let name = words.next()?;
        let action = words.next()?;
        let op = match action {
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Discard,
            "sync" | "datasync" => Op::Flush,
            "add" | "open" | "close" => return Some(Line::Other),
            "wait" => {
                self.fio_time_us += number(words.next()?)?;
                return Some(Line::Other);
            }
            _ => return None,
        };
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => (number(words.next()?)?, number(words.next()?)?),
        };
        let (time_us, device) = (self.fio_time_us, self.device(name));
        checked(Request { time_us, op, device, offset, len }).map(Line::Request)
    }
}

fn lis(line: &str) -> Option<Request> {
    let mut words = line.split_whitespace();
    let (offset, len) = (sectors(words.next()?)?, sectors(words.next()?)?);
    checked(Request { time_us: 0, op: Op::Read, device: 0, offset, len })
}

/// A request that ends where an offset can still be said.
pub(crate) fn checked(request: Request) -> Option<Request> {
    let end = request.offset.checked_add(request.len)?;
    (end <= i64::MAX.unsigned_abs()).then_some(request)
}

fn letter(text: &str) -> Option<Op> {
    match text {
        "R" | "r" | "Read" | "read" | "0" => Some(Op::Read),
        "W" | "w" | "Write" | "write" | "1" => Some(Op::Write),
        "D" | "d" => Some(Op::Discard),
        "F" | "f" => Some(Op::Flush),
        _ => None,
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn sectors(text: &str) -> Option<u64> {
    number(text)?.checked_mul(SECTOR_BYTES)
}

/// Seconds with a fraction, without a detour through binary fractions.
fn micros(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let six: String = fraction.chars().chain(std::iter::repeat('0')).take(6).collect();
    number(whole)?.checked_mul(1_000_000)?.checked_add(number(&six)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(format: Format, text: &str) -> Vec<(u64, Op, u64, u64, u64)> {
        let mut lines = Lines::new(format);
        let parsed = text.lines().map(|line| lines.parse(line).expect(line));
        parsed
            .filter_map(|line| match line {
                Line::Request(r) => Some((r.time_us, r.op, r.device, r.offset, r.len)),
                Line::Other => None,
            })
            .collect()
    }

    #[test]
    fn lines_of_every_format_are_understood() {
        let write = (Op::Write, 0, 4096, 512);
        for (format, text, time) in [
            (Format::Csv, "17,W,3,4096,512", 17),
            (Format::Alibaba, "419,W,4096,512,1577808000000012", 1_577_808_000_000_012),
            (Format::Msr, "128166372003061629,usr,0,Write,4096,512,41286", 12_816_637_200_306_162),
            (Format::Tencent, "1538323200,8,1,1,1063", 1_538_323_200_000_000),
            (
                Format::Systor,
                "Timestamp,Response,IOType,LUN,Offset,Size\n1455592371.024094000,0.0001,W,6,4096,512",
                1_455_592_371_024_094,
            ),
            (Format::Spc, "2,8,512,w,0.026214", 26_214),
            (
                Format::Blkparse,
                "8,0 1 1 1.5 697 Q WS 8 + 1 [x]\n8,0 1 2 1.6 697 C WS 8 + 1 [0]\nCPU0 (8,0):\n Reads: 1",
                1_500_000,
            ),
            (
                Format::Fio,
                "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a wait 5\n/dev/a write 4096 512\n/dev/a close",
                5,
            ),
            (Format::Fio, "fio version 3 iolog\n1 a add\n9 a write 4096 512", 9),
        ] {
            let (op, device, offset, len) = write;
            assert_eq!(all(format, text), [(time, op, device, offset, len)], "{format:?}");
        }
        assert_eq!(all(Format::Lis, "8 1 0 5"), [(0, Op::Read, 0, 4096, 512)]);
    }

    #[test]
    fn other_operations_and_disks_are_told_apart() {
        let blk =
            "8,0 1 1 0.0 1 Q DS 0 + 8 [x]\n8,16 1 2 0.1 1 Q R 8 + 8 [x]\n8,0 1 3 0.2 1 Q FN [x]";
        let found: Vec<_> = all(Format::Blkparse, blk).iter().map(|r| (r.1, r.2)).collect();
        assert_eq!(found, [(Op::Discard, 0), (Op::Read, 1)]);
        let fio = "fio version 2 iolog\na trim 0 4096\nb sync\na datasync";
        let found: Vec<_> = all(Format::Fio, fio).iter().map(|r| (r.1, r.2)).collect();
        assert_eq!(found, [(Op::Discard, 0), (Op::Flush, 1), (Op::Flush, 0)]);
    }

    #[test]
    fn what_is_no_request_is_not_taken_for_one() {
        for (format, line) in [
            (Format::Csv, "17,W,3,4096"),
            (Format::Csv, "17,X,3,4096,512"),
            (Format::Csv, "17,W,3,-4096,512"),
            (Format::Csv, "17,W,3,9223372036854775807,512"),
            (Format::Tencent, "1.x,8,1,1,1063"),
            (Format::Spc, "2,99999999999999999999,512,w,0.02"),
            (Format::Lis, "8"),
            (Format::Fio, "/dev/a write 4096"),
            (Format::Fio, "fio version 9 iolog"),
        ] {
            assert_eq!(Lines::new(format).parse(line), None, "{line}");
        }
        let mut lines = Lines::new(Format::Csv);
        assert_eq!(lines.parse("time,op,device,offset,len"), Some(Line::Other), "a heading");
        assert_eq!(lines.parse("time,op,device,offset,len"), None, "only at the top");
    }
}
