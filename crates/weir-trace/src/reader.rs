//! A trace as a stream of requests: opened, decompressed, guessed, and read record after record.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::text::{Line, Lines};
use crate::{Format, Op, REQUEST_BYTES_MAX, Request, TraceError, vscsi};

/// Bytes of the beginning that a format is guessed from.
const HEAD_BYTES: usize = 4096;

/// First bytes of what zstd compressed.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Longest line in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// How much of what is not understood is shown.
const SHOWN_CHARS: usize = 80;

/// A trace that is being read: an iterator over its requests. It ends at the first error.
#[derive(Debug)]
pub struct Trace {
    path: String,
    format: Format,
    parser: Parser,
    input: Input,
    number: u64,
    is_over: bool,
}

#[derive(Debug)]
enum Parser {
    Lines(Lines),
    Records(usize),
}

struct Input(Box<dyn BufRead>);

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Input")
    }
}

/// Opens the trace in a file, `-` being standard input; its format is guessed unless it is given.
///
/// # Errors
/// [`TraceError::Io`], [`TraceError::Unknown`].
pub fn open(path: &Path, format: Option<Format>) -> Result<Trace, TraceError> {
    let shown = path.display().to_string();
    if shown == "-" {
        return read(io::stdin(), "standard input", format);
    }
    match File::open(path) {
        Ok(file) => read(file, &shown, format),
        Err(source) => Err(TraceError::Io { path: shown, source }),
    }
}

/// The trace in `input`, called `path` in errors.
///
/// # Errors
/// As [`open`].
pub fn read(
    input: impl Read + 'static,
    path: &str,
    format: Option<Format>,
) -> Result<Trace, TraceError> {
    let failed = |source| TraceError::Io { path: path.to_owned(), source };
    let (head, rest) = with_head(input).map_err(failed)?;
    let (head, input): (Vec<u8>, Box<dyn Read>) = if head.starts_with(&ZSTD_MAGIC) {
        let decoder = zstd::Decoder::new(io::Cursor::new(head).chain(rest)).map_err(failed)?;
        let (head, rest) = with_head(decoder).map_err(failed)?;
        (head, Box::new(rest))
    } else {
        (head, Box::new(rest))
    };
    let unknown = || TraceError::Unknown { path: path.to_owned(), known: Format::names() };
    let format = format.or_else(|| Format::guess(&head)).ok_or_else(unknown)?;
    let parser = match vscsi::record_bytes(format) {
        Some(bytes) => Parser::Records(bytes),
        None => Parser::Lines(Lines::new(format)),
    };
    let input = Input(Box::new(BufReader::new(io::Cursor::new(head).chain(input))));
    Ok(Trace { path: path.to_owned(), format, parser, input, number: 0, is_over: false })
}

/// The first bytes of `input`, and what comes after them.
fn with_head<R: Read>(mut input: R) -> io::Result<(Vec<u8>, R)> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head, input))
}

impl Trace {
    /// Its format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    fn malformed(&self, unit: &'static str, text: &str) -> TraceError {
        let (path, number, format) = (self.path.clone(), self.number, self.format.name());
        let text = text.trim().chars().take(SHOWN_CHARS).collect();
        TraceError::Malformed { path, unit, number, format, text }
    }

    /// The request, if it is one that a disk can have been asked for.
    fn possible(
        &self,
        unit: &'static str,
        request: Request,
    ) -> Result<Option<Request>, TraceError> {
        match request.op {
            Op::Read | Op::Write if request.len > REQUEST_BYTES_MAX => {
                let (path, number, format) = (self.path.clone(), self.number, self.format.name());
                Err(TraceError::TooLong { path, unit, number, format, bytes: request.len })
            }
            _ => Ok(Some(request)),
        }
    }

    fn step(&mut self) -> Result<Option<Request>, TraceError> {
        let failed = |source| TraceError::Io { path: self.path.clone(), source };
        loop {
            self.number += 1;
            match &mut self.parser {
                Parser::Records(bytes) => {
                    let mut record = Vec::new();
                    let mut input = self.input.0.by_ref().take(*bytes as u64);
                    input.read_to_end(&mut record).map_err(failed)?;
                    if record.is_empty() {
                        return Ok(None);
                    }
                    let whole = record.len() == *bytes;
                    let request = whole.then(|| vscsi::parse(self.format, &record)).flatten();
                    let request = request.ok_or_else(|| {
                        self.malformed("record", &format!("{} bytes", record.len()))
                    })?;
                    return self.possible("record", request);
                }
                Parser::Lines(lines) => {
                    let mut line = Vec::new();
                    let mut input = self.input.0.by_ref().take(LINE_BYTES_MAX);
                    if input.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                        return Ok(None);
                    }
                    let line = String::from_utf8_lossy(&line);
                    match lines.parse(&line) {
                        Some(Line::Request(request)) => return self.possible("line", request),
                        Some(Line::Other) => {}
                        None => return Err(self.malformed("line", &line)),
                    }
                }
            }
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let step = self.step();
        self.is_over = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn of(bytes: &[u8]) -> Result<Trace, TraceError> {
        read(io::Cursor::new(bytes.to_vec()), "trace", None)
    }

    #[test]
    fn a_trace_is_read_plain_and_compressed() {
        let text: String = (0..5000).map(|n| format!("{n},W,0,{},4096\n", n * 4096)).collect();
        let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
        for bytes in [text.as_bytes(), &packed] {
            let trace = of(bytes).unwrap();
            assert_eq!(trace.format(), Format::Csv);
            let requests: Vec<_> = trace.map(Result::unwrap).collect();
            assert_eq!(requests.len(), 5000);
            let last = requests.last().unwrap();
            assert_eq!((last.time_us, last.op, last.offset), (4999, Op::Write, 4999 * 4096));
        }
    }

    #[test]
    fn an_error_names_the_line_and_ends_the_trace() {
        let mut trace = of(b"1,W,0,0,4096\n\n2,W,0,x,4096\n3,W,0,0,4096\n").unwrap();
        assert!(trace.next().unwrap().is_ok());
        let error = trace.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "trace, line 3, is no request in the format csv: \"2,W,0,x,4096\"");
        assert!(trace.next().is_none());
        let error = of(b"what is this\n").unwrap_err().to_string();
        assert!(error.contains("name it with --format: csv, msr"), "{error}");
    }

    #[test]
    fn an_offset_that_is_read_as_a_length_is_an_error_in_every_format() {
        const LONG: u64 = REQUEST_BYTES_MAX + 512;
        let sectors = LONG / 512;
        for (format, line) in [
            (Format::Csv, format!("1,W,0,0,{LONG}")),
            (Format::Alibaba, format!("0,R,4,{LONG},8192")),
            (Format::Msr, format!("1,usr,0,Read,0,{LONG},7")),
            (Format::Tencent, format!("1,0,{sectors},1,7")),
            (Format::Systor, format!("1.5,0.1,W,6,0,{LONG}")),
            (Format::Spc, format!("0,0,{LONG},w,0.5")),
            (Format::Blkparse, format!("8,0 1 1 0.0 1 Q W 0 + {sectors} [x]")),
            (Format::Fio, format!("a write 0 {LONG}")),
            (Format::Lis, format!("0 {sectors} 0 0")),
        ] {
            let input = io::Cursor::new(format!("{line}\n").into_bytes());
            let mut trace = read(input, "trace", Some(format)).unwrap();
            let error = trace.next().unwrap().unwrap_err().to_string();
            let name = format.name();
            let start =
                format!("trace, line 1, would be a request of {LONG} bytes in the format {name}");
            assert!(error.starts_with(&start) && error.contains("another format"), "{error}");
            assert!(trace.next().is_none());
        }
        let longest = format!("1,W,0,0,{REQUEST_BYTES_MAX}\n2,D,0,0,{LONG}\n");
        assert_eq!(of(longest.as_bytes()).unwrap().map(Result::unwrap).count(), 2);
    }

    #[test]
    fn a_record_that_is_cut_is_an_error() {
        let mut record = vec![0; 40];
        (record[0], record[3]) = (0x2a, 2);
        let mut trace =
            of(&[record.clone(), record.clone(), record[..39].to_vec()].concat()).unwrap();
        assert_eq!(trace.format(), Format::Vscsi2);
        assert!(trace.next().unwrap().is_ok() && trace.next().unwrap().is_ok());
        let error = trace.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("record 3"), "{error}");
    }
}
