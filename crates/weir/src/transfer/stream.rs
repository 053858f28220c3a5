//! Raw bytes of a volume to standard output, and from standard input into a volume. A stream has no second try: what
//! comes too short, or is closed early, is an error.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read, Write};

use tokio::sync::{mpsc, oneshot};
use weir_node::size::human;

use super::nbd::Connection;
use crate::terminal::failure::Failure;

/// Bytes of a request.
const PIECE_BYTES: usize = 1 << 20;

/// Requests in flight.
const IN_FLIGHT_MAX: usize = 8;

/// Refuses to print a disk on a terminal.
pub(super) fn check_output(format: Option<&str>) -> Result<(), Failure> {
    check_format(format, "written to standard output")?;
    if std::io::stdout().is_terminal() {
        return Err(Failure::usage("the bytes of a disk are not written to a terminal")
            .with_help("redirect standard output to a program or a file"));
    }
    Ok(())
}

/// A stream can carry raw bytes: other formats are written and read here and there.
pub(super) fn check_format(format: Option<&str>, how: &str) -> Result<(), Failure> {
    match format {
        None | Some("raw") => Ok(()),
        Some(format) => Err(Failure::usage(format!(
            "{format} cannot be {how}: it is not written from its begin to its end"
        ))
        .with_help("use raw bytes, or a file")),
    }
}

/// Writes `size` bytes of an export to standard output.
pub(super) async fn write_out(uri: &str, size: u64) -> Result<(), Failure> {
    let mut export = Connection::open(uri).await?;
    if export.size < size {
        return Err(Failure::new(format!("{uri} has {} bytes, not {size}", export.size)));
    }
    let (output, outcome) = output();
    let (mut asked, mut handed_on) = (0, 0);
    let mut waiting: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    while handed_on < size {
        while asked < size && export.in_flight() + waiting.len() < IN_FLIGHT_MAX {
            let length = (size - asked).min(PIECE_BYTES as u64);
            export.read(asked, u32::try_from(length).unwrap_or(u32::MAX)).await?;
            asked += length;
        }
        let answered = export.next().await?;
        waiting.insert(answered.offset, answered.data);
        while let Some(data) = waiting.remove(&handed_on) {
            handed_on += data.len() as u64;
            if output.send(data).await.is_err() {
                // It says why it ended.
                handed_on = size;
            }
        }
    }
    drop(output);
    match outcome.await {
        Ok((written, Ok(()))) if written == size => Ok(()),
        Ok((written, Err(error))) => {
            let (written, size) = (human(written), human(size));
            Err(Failure::new(format!("standard output took {written} of {size}: {error}")))
        }
        Ok(_) | Err(_) => Err(Failure::new("standard output was not written to its end")),
    }
}

type Written = (u64, io::Result<()>);

/// Takes pieces for standard output, and says in the end how many bytes it took. On a thread of its own, which ends
/// with the process: a reader that reads nothing must not keep a signal from ending it.
fn output() -> (mpsc::Sender<Vec<u8>>, oneshot::Receiver<Written>) {
    let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(1);
    let (done, outcome) = oneshot::channel();
    std::thread::spawn(move || {
        let (mut stdout, mut written) = (io::stdout().lock(), 0);
        let mut write = || {
            while let Some(piece) = pieces.blocking_recv() {
                stdout.write_all(&piece)?;
                written += piece.len() as u64;
            }
            stdout.flush()
        };
        let outcome = write();
        // Whoever waits may be gone.
        let _ = done.send((written, outcome));
    });
    (sender, outcome)
}

/// Fills an export with `size` bytes of standard input. `is_blank` says that it reads as zeroes already.
pub(super) async fn read_in(uri: &str, size: u64, is_blank: bool) -> Result<(), Failure> {
    let mut export = Connection::open(uri).await?;
    let mut input = input();
    let mut offset = 0;
    while let Some(piece) = input.recv().await {
        let failed = |error| Failure::new(format!("reading standard input: {error}"));
        let piece = piece.map_err(failed)?;
        let length = piece.len() as u64;
        if offset + length > size {
            let message = format!("standard input has more than the {} of the volume", human(size));
            return Err(
                Failure::new(message).with_help("give the size of the whole image with --size")
            );
        }
        if piece.iter().any(|byte| *byte != 0) {
            export.write(offset, &piece).await?;
        } else if !is_blank {
            export.zero(offset, length).await?;
        }
        offset += length;
        while export.in_flight() >= IN_FLIGHT_MAX {
            export.next().await?;
        }
    }
    while export.in_flight() > 0 {
        export.next().await?;
    }
    if offset < size {
        let (got, size) = (human(offset), human(size));
        return Err(Failure::new(format!("standard input ended after {got} of {size}")));
    }
    Ok(())
}

/// The pieces of standard input, each as long as it may be but for the last one. On a thread of its own, as above.
fn input() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, pieces) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            let read = (&mut stdin).take(PIECE_BYTES as u64).read_to_end(&mut piece);
            let is_last = !matches!(read, Ok(PIECE_BYTES));
            if read.is_ok() && piece.is_empty() {
                return;
            }
            if sender.blocking_send(read.map(|_| piece)).is_err() || is_last {
                return;
            }
        }
    });
    pieces
}
