//! The format of traces that Weir itself writes: `csv`.

use std::io::Write as _;

use crate::{Op, Request};

/// What the columns are: a comment, which may stand anywhere.
pub const CSV_HEADING: &str = "# time_us,op,device,offset,len\n";

/// Appends a request as a line of the format [`Format::Csv`](crate::Format::Csv). `device` names its device, without
/// commas or line ends; the number in the request is not used.
pub fn write_csv(out: &mut Vec<u8>, request: &Request, device: &str) {
    let op = match request.op {
        Op::Read => 'R',
        Op::Write => 'W',
        Op::Discard => 'D',
        Op::Flush => 'F',
    };
    let Request { time_us, offset, len, .. } = request;
    // Writing to memory does not fail.
    let _ = writeln!(out, "{time_us},{op},{device},{offset},{len}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read;

    #[test]
    fn what_is_written_is_guessed_and_read_again() {
        for first in [Op::Read, Op::Write, Op::Discard, Op::Flush] {
            let ops = [first, Op::Read, Op::Write, Op::Discard, Op::Flush];
            let requests: Vec<Request> = (0_u64..)
                .zip(ops)
                .map(|(nth, op)| {
                    let (offset, len) =
                        if op == Op::Flush { (0, 0) } else { (nth << 12, 512 + nth) };
                    Request { time_us: 1_700_000_000_000_000 + nth, op, device: 0, offset, len }
                })
                .collect();
            let mut text = CSV_HEADING.repeat(2).into_bytes();
            for request in &requests {
                write_csv(&mut text, request, "a-volume.1");
                text.extend_from_slice(b"# 3 requests are missing\n");
            }
            let trace = read(std::io::Cursor::new(text), "memory", None).unwrap();
            assert_eq!(trace.map(Result::unwrap).collect::<Vec<_>>(), requests);
        }
    }
}
