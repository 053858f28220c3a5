//! Requests that are larger than what a connection holds at a time, in pieces.
//!
//! A read is sent piece by piece: as chunks in any order, or, where it must be unbroken, as one run in order, during
//! which nothing else is sent. A write that is longer than [`WHOLE_WRITE_BYTES_MAX`] runs piece by piece as its bytes
//! arrive; it is several writes, as the contract of devices has it.

use std::future::Future;

use weir_device::{BufferPool, Data, DeviceError, SharedBuf, mutant};
use weir_nbd::{ChunkFlags, Command, ReplyTo};

use super::super::answer::error_code;
use super::super::error::NbdError;
use super::super::operation::{Answer, Answered};
use super::{Connection, Part, REPLY_BYTES, Receiving, Taken, Ticket};

/// Longest write that runs as one, in bytes: what a log volume keeps whole, and a little more.
pub(super) const WHOLE_WRITE_BYTES_MAX: usize = 4 << 20;

/// Longest read that is answered in one run while there is memory for it, in bytes.
pub(super) const WHOLE_READ_BYTES_MAX: u32 = 4 << 20;

/// Lengths of pieces in bytes, the first for which there is memory; the last one fits what every connection has.
pub(super) const PIECE_BYTES: [u64; 4] = [1 << 20, 256 << 10, 64 << 10, 8 << 10];

/// Pieces of one request that are in flight at most.
pub(super) const PIECES_MAX: usize = 4;

/// Length of the next piece: pieces end at multiples of `piece`.
pub(super) fn piece_len(next: u64, end: u64, piece: u64) -> u32 {
    let len = (piece - next % piece).min(end - next);
    u32::try_from(len).expect("a piece is at most 1 MiB")
}

/// A read that is being answered in pieces.
pub(super) struct LargeRead {
    pub(super) reply_to: ReplyTo,
    pub(super) command: Command,
    /// First byte that was not asked for yet.
    pub(super) next: u64,
    pub(super) end: u64,
    /// Bytes in all.
    pub(super) length: u32,
    /// Nothing else may be sent in between.
    pub(super) unbroken: bool,
    /// Pieces asked for and not there yet.
    pub(super) outstanding: usize,
    /// The reply has begun.
    pub(super) has_begun: bool,
    pub(super) failure: Option<DeviceError>,
}

impl LargeRead {
    /// Whether another piece may be asked for while `in_flight` are on their way, sent or read.
    pub(super) fn wants_piece(&self, in_flight: usize) -> bool {
        let most = if self.unbroken { 1 } else { PIECES_MAX };
        self.next < self.end && self.outstanding < most && in_flight < PIECES_MAX
    }

    /// Whether all pieces are there.
    pub(super) fn is_complete(&self) -> bool {
        self.next == self.end && self.outstanding == 0
    }
}

/// A write that runs in pieces as they arrive.
pub(super) struct LargeWrite {
    pub(super) reply_to: ReplyTo,
    pub(super) command: Command,
    /// First byte that has not begun to arrive.
    pub(super) next: u64,
    pub(super) end: u64,
    pub(super) fua: bool,
    /// Pieces that run.
    pub(super) outstanding: usize,
    pub(super) failure: Option<DeviceError>,
}

impl<F, M> Connection<'_, F, M>
where
    F: Future<Output = Result<Answered, DeviceError>>,
    M: FnMut(Command, SharedBuf) -> F,
{
    /// Takes a read that is answered in pieces off the window.
    pub(super) fn begin_large_read(&mut self, ticket: &Ticket, header_bytes: usize) -> Taken {
        let Command::Read { offset, length, unbroken } = ticket.command else {
            return Taken::HeldBack;
        };
        if unbroken && self.in_flight() > 0 {
            return Taken::HeldBack;
        }
        self.window.consume(header_bytes);
        self.is_short = false;
        self.large_read = Some(LargeRead {
            reply_to: ticket.reply_to,
            command: ticket.command,
            next: offset,
            end: offset + u64::from(length),
            length,
            unbroken,
            outstanding: 0,
            has_begun: false,
            failure: None,
        });
        Taken::Yes
    }

    /// Takes memory for the next piece of what is left; its length and what was taken.
    fn admit_piece(&mut self, next: u64, end: u64) -> Option<(u32, usize)> {
        PIECE_BYTES.into_iter().find_map(|piece| {
            let len = piece_len(next, end, piece);
            let cost_bytes = REPLY_BYTES + BufferPool::bytes_for(super::to_usize(len));
            self.admit(cost_bytes).then_some((len, cost_bytes))
        })
    }

    /// Asks the device for the next pieces of a read; whether any was asked for.
    pub(super) fn read_pieces(&mut self) -> bool {
        let mut has_progress = false;
        loop {
            let in_flight = self.in_flight();
            let Some(large) = &self.large_read else { return has_progress };
            if !large.wants_piece(in_flight) {
                return has_progress;
            }
            let (reply_to, next, end) = (large.reply_to, large.next, large.end);
            let Some((length, cost_bytes)) = self.admit_piece(next, end) else {
                return has_progress;
            };
            if let Some(large) = &mut self.large_read {
                large.next += u64::from(length);
                large.outstanding += 1;
            }
            let command = Command::Read { offset: next, length, unbroken: true };
            let ticket = Ticket { reply_to, command, cost_bytes, part: Part::Read };
            self.start(ticket, SharedBuf::default());
            has_progress = true;
        }
    }

    /// Queues a piece of a read, or ends it.
    pub(super) fn on_piece_read(&mut self, ticket: &Ticket, outcome: Result<Answer, DeviceError>) {
        let Some(large) = &mut self.large_read else { return self.release(ticket.cost_bytes) };
        large.outstanding -= 1;
        match outcome {
            Ok(Answer::Data(data)) if large.failure.is_none() => {
                let Command::Read { offset, length, .. } = ticket.command else {
                    unreachable!("a piece of a read is a read")
                };
                let (reply_to, all, unbroken) = (large.reply_to, large.length, large.unbroken);
                let is_first = !std::mem::replace(&mut large.has_begun, true);
                let is_last = large.is_complete();
                let done = if is_last { ChunkFlags::DONE } else { ChunkFlags::default() };
                self.outgoing.push(data, ticket.cost_bytes, |out| match unbroken {
                    true if is_first => reply_to.read_head(out, all),
                    true => {}
                    false => reply_to.read_chunk(out, offset, length, done),
                });
                if is_last {
                    self.large_read = None;
                }
                return;
            }
            Ok(_) => {}
            Err(source) if large.unbroken && large.has_begun => {
                // Its header said that all bytes would come.
                self.release(ticket.cost_bytes);
                self.large_read = None;
                return self.stop_taking(Err(NbdError::ReadFailed { source }));
            }
            Err(error) => {
                large.next = large.end;
                large.failure.get_or_insert(error);
            }
        }
        let failure = if large.is_complete() { large.failure.take() } else { None };
        let Some(error) = failure else { return self.release(ticket.cost_bytes) };
        let (reply_to, command) = (large.reply_to, large.command);
        self.large_read = None;
        self.release(ticket.cost_bytes - REPLY_BYTES);
        self.push_error(reply_to, &command, &error);
    }

    /// Takes the header of a write that arrives in pieces off the window.
    pub(super) fn begin_large_write(&mut self, ticket: &Ticket, header_bytes: usize) -> Taken {
        let Command::Write { offset, length, fua } = ticket.command else {
            unreachable!("only writes have a payload that is run")
        };
        if self.large_write.is_some() {
            return Taken::HeldBack;
        }
        self.window.consume(header_bytes);
        self.expects_payload = true;
        self.large_write = Some(LargeWrite {
            reply_to: ticket.reply_to,
            command: ticket.command,
            next: offset,
            end: offset + u64::from(length),
            fua,
            outstanding: 0,
            failure: None,
        });
        self.receiving = Receiving::Piece;
        Taken::Yes
    }

    /// Makes ready for the next piece of a write. After a failure the rest is thrown away.
    pub(super) fn take_piece(&mut self) -> Taken {
        let large = self.large_write.as_ref().expect("a piece belongs to a write");
        let (reply_to, next, end, fua) = (large.reply_to, large.next, large.end, large.fua);
        if large.failure.is_some() {
            let left = usize::try_from(end - next).expect("a payload fits the address space");
            self.receiving = Receiving::Skip { left };
            self.end_large_write(None);
            return Taken::Yes;
        }
        let Some((length, cost_bytes)) = self.admit_piece(next, end) else {
            return Taken::HeldBack;
        };
        if let Some(large) = &mut self.large_write {
            large.next += u64::from(length);
            large.outstanding += 1;
        }
        let fua = fua && !mutant("fua_lost_in_pieces");
        let command = Command::Write { offset: next, length, fua };
        let ticket = Ticket { reply_to, command, cost_bytes, part: Part::Write };
        let buf = self.pool.alloc(super::to_usize(length));
        self.receiving = Receiving::Payload { ticket, buf, filled: 0 };
        Taken::Yes
    }

    /// What is received after a piece that is whole.
    pub(super) fn after_piece(&self) -> Receiving {
        match &self.large_write {
            Some(large) if large.next < large.end => Receiving::Piece,
            _ => Receiving::Header,
        }
    }

    /// Takes note of a piece that was written, or was not.
    pub(super) fn on_piece_written(
        &mut self,
        ticket: &Ticket,
        outcome: Result<Answer, DeviceError>,
    ) {
        let Some(large) = &mut self.large_write else { return self.release(ticket.cost_bytes) };
        large.outstanding -= 1;
        match outcome {
            Err(error) => drop(large.failure.get_or_insert(error)),
            Ok(_) if mutant("later_piece_hides_failure") => large.failure = None,
            Ok(_) => {}
        }
        self.release(ticket.cost_bytes - REPLY_BYTES);
        self.end_large_write(Some(REPLY_BYTES));
    }

    /// Answers a write of which nothing runs or arrives any more. `held_bytes` were kept for the reply; without them
    /// the reply waits for the piece that has them.
    fn end_large_write(&mut self, held_bytes: Option<usize>) {
        let arrives = match &self.receiving {
            Receiving::Piece => true,
            Receiving::Payload { ticket, .. } => ticket.part == Part::Write,
            Receiving::Header | Receiving::Skip { .. } => false,
        };
        let is_over = !arrives
            && self.large_write.as_ref().is_some_and(|large| {
                large.outstanding == 0 || mutant("large_write_answered_early")
            });
        let Some(large) = self.large_write.take_if(|_| is_over) else {
            return self.release(held_bytes.unwrap_or(0));
        };
        if held_bytes.is_none() {
            // Few bytes, once for each such write: nothing of it is held any more.
            self.bytes_in_flight += REPLY_BYTES;
            self.share.take_in_any_case(REPLY_BYTES);
        }
        if !self.is_sending {
            return self.release(REPLY_BYTES);
        }
        match large.failure {
            None => {
                self.outgoing.push(Data::default(), REPLY_BYTES, |out| large.reply_to.success(out));
            }
            Some(error) => self.push_error(large.reply_to, &large.command, &error),
        }
    }

    /// Queues an error whose [`REPLY_BYTES`] were taken.
    fn push_error(&mut self, reply_to: ReplyTo, command: &Command, error: &DeviceError) {
        let (code, message) = (error_code(error.kind(), command), error.to_string());
        self.outgoing.push(Data::default(), REPLY_BYTES, |out| reply_to.error(out, code, &message));
    }
}
