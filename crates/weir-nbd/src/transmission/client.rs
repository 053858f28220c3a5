//! The client's side of the transmission: encodes requests, and says what the server's bytes mean for which of them.
//!
//! The caller moves the bytes. The data of a read never passes through here: [`ReplyStep::Data`] says how many bytes
//! that follow belong where, and the caller takes them off the stream into memory of its own.
//!
//! A server is not trusted: what does not answer a request in flight, lies outside a read, comes twice, or is missing
//! when a reply ends, is a [`ProtocolError`], and the connection must be closed. The requests that are left then,
//! [`Requests::into_unanswered`], may have been carried out or not.

use std::collections::BTreeMap;

use super::judge::{Command, Session};
use super::reply::{Chunk, ContextStatus, ExtentStatus, ReplyHeader, decode_chunk, decode_reply};
use super::request::{Cookie, RequestHeader};
use super::style::ReplyStyle;
use crate::bytes::{Decoded, Reader};
use crate::error::ProtocolError;
use crate::limits::READ_PARTS_MAX;
use crate::numbers::{
    ChunkCode, ChunkFlags, CommandCode, CommandFlags, ErrorCode, TransmissionFlags,
};

/// Bytes of the offset that goes before the data of a chunk.
const DATA_OFFSET_BYTES: u32 = 8;

/// Why a request failed, in the server's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How.
    pub code: ErrorCode,
    /// For a person; empty where the reply has no room for it.
    pub message: String,
    /// Where on the export, if the server says so.
    pub offset: Option<u64>,
}

/// What the next bytes of the server mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyStep {
    /// At least so many more bytes must be received before anything can be said.
    NeedMore(usize),
    /// The `length` bytes that follow what was consumed are those of a read, `at` bytes from its begin. They must be
    /// taken off the stream before the next call.
    Data {
        /// Which read.
        cookie: Cookie,
        /// Distance from its begin.
        at: u32,
        /// How many, at least one.
        length: u32,
    },
    /// A part of a read is zeroes.
    Zeroes {
        /// Which read.
        cookie: Cookie,
        /// Distance from its begin.
        at: u32,
        /// How many, at least one.
        length: u32,
    },
    /// Block status in one context.
    Status {
        /// Which request.
        cookie: Cookie,
        /// Its status there.
        status: ContextStatus,
    },
    /// A request was answered: this was the last of its reply.
    Done {
        /// Which request.
        cookie: Cookie,
        /// What it was.
        command: Command,
        /// Whether it succeeded. A read that did was told in full.
        result: Result<(), Failure>,
    },
    /// Nothing to be done; call again.
    Again,
}

/// What became of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyProgress {
    /// Bytes to remove from the input.
    pub consumed: usize,
    /// What they mean.
    pub step: ReplyStep,
}

/// A request in flight.
#[derive(Debug)]
struct Pending {
    command: Command,
    /// Parts of a read that were told, as begin and end, in order and apart.
    told: Vec<(u32, u32)>,
    /// Contexts of a block status that were told.
    contexts: Vec<u32>,
    failure: Option<Failure>,
}

/// The requests in flight on one connection.
#[derive(Debug)]
pub struct Requests {
    session: Session,
    pending: BTreeMap<Cookie, Pending>,
    cookies: u64,
    /// The request whose reply ended with data, which the caller has taken by the next call.
    ending: Option<Cookie>,
}

const fn unexpected(reason: &'static str) -> ProtocolError {
    ProtocolError::Unexpected { message: "reply", reason }
}

impl Command {
    /// Code, flags, offset and length, as a request says them in this style.
    fn fields(&self, style: ReplyStyle) -> (CommandCode, CommandFlags, u64, u64) {
        let given = |flag: CommandFlags, is_set: bool| if is_set { flag } else { CommandFlags(0) };
        match *self {
            Self::Read { offset, length, unbroken } => {
                // A simple reply is unbroken in any case.
                let unbroken = unbroken && style != ReplyStyle::Simple;
                (CommandCode::READ, given(CommandFlags::DF, unbroken), offset, length.into())
            }
            Self::Write { offset, length, fua } => {
                let announced = given(CommandFlags::PAYLOAD_LEN, style == ReplyStyle::Extended);
                let flags = given(CommandFlags::FUA, fua).with(announced);
                (CommandCode::WRITE, flags, offset, length.into())
            }
            Self::WriteZeroes { offset, length, fua, no_hole, fast } => {
                let flags = given(CommandFlags::FUA, fua)
                    .with(given(CommandFlags::NO_HOLE, no_hole))
                    .with(given(CommandFlags::FAST_ZERO, fast));
                (CommandCode::WRITE_ZEROES, flags, offset, length)
            }
            Self::Trim { offset, length, fua } => {
                (CommandCode::TRIM, given(CommandFlags::FUA, fua), offset, length)
            }
            Self::Flush => (CommandCode::FLUSH, CommandFlags(0), 0, 0),
            Self::Cache { offset, length } => (CommandCode::CACHE, CommandFlags(0), offset, length),
            Self::BlockStatus { offset, length, one } => {
                (CommandCode::BLOCK_STATUS, given(CommandFlags::REQ_ONE, one), offset, length)
            }
        }
    }

    /// What the server must offer for it.
    fn needs(&self, style: ReplyStyle) -> TransmissionFlags {
        let none = TransmissionFlags(0);
        let given = |flag: TransmissionFlags, is_set: bool| if is_set { flag } else { none };
        let fua = |is_set| given(TransmissionFlags::SEND_FUA, is_set);
        match *self {
            Self::Read { unbroken, .. } => {
                given(TransmissionFlags::SEND_DF, unbroken && style != ReplyStyle::Simple)
            }
            Self::Write { fua: is_set, .. } => fua(is_set),
            Self::WriteZeroes { fua: is_set, fast, .. } => TransmissionFlags::SEND_WRITE_ZEROES
                .with(fua(is_set))
                .with(given(TransmissionFlags::SEND_FAST_ZERO, fast)),
            Self::Trim { fua: is_set, .. } => TransmissionFlags::SEND_TRIM.with(fua(is_set)),
            Self::Flush => TransmissionFlags::SEND_FLUSH,
            Self::Cache { .. } => TransmissionFlags::SEND_CACHE,
            Self::BlockStatus { .. } => none,
        }
    }
}

impl Session {
    /// Whether the server offers a command, with the flags that it has.
    #[must_use]
    pub fn offers(&self, command: &Command) -> bool {
        let (_, _, _, length) = command.fields(self.style);
        let is_short = self.style == ReplyStyle::Extended || u32::try_from(length).is_ok();
        let writes = matches!(
            command,
            Command::Write { .. } | Command::WriteZeroes { .. } | Command::Trim { .. }
        );
        let is_read_only = self.flags.contains(TransmissionFlags::READ_ONLY);
        let has_context =
            !matches!(command, Command::BlockStatus { .. }) || !self.contexts.is_empty();
        self.flags.contains(command.needs(self.style))
            && is_short
            && has_context
            && !(writes && is_read_only)
    }
}

impl Requests {
    /// None yet.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self { session, pending: BTreeMap::new(), cookies: 0, ending: None }
    }

    /// What was agreed on.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Requests in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether none is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Appends a request to `out`; its mark. The payload of a write is the caller's to send right after it.
    ///
    /// # Errors
    /// [`ProtocolError::Unexpected`] for what the server does not offer; nothing was appended.
    pub fn request(
        &mut self,
        command: Command,
        out: &mut Vec<u8>,
    ) -> Result<Cookie, ProtocolError> {
        if !self.session.offers(&command) {
            let reason = "the server does not offer it";
            return Err(ProtocolError::Unexpected { message: "request", reason });
        }
        let (code, flags, offset, length) = command.fields(self.session.style);
        let cookie = Cookie(self.cookies);
        let header = RequestHeader { flags, command: code, cookie, offset, length };
        header.encode(self.session.style, out)?;
        self.cookies += 1;
        let (told, contexts) = Default::default();
        self.pending.insert(cookie, Pending { command, told, contexts, failure: None });
        Ok(cookie)
    }

    /// Appends the client's goodbye to `out`. Nothing may be sent after it; what is in flight is still answered.
    ///
    /// # Errors
    /// None in practice: the header has no length.
    pub fn goodbye(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let (flags, command, cookie) = (CommandFlags(0), CommandCode::DISC, Cookie(self.cookies));
        let header = RequestHeader { flags, command, cookie, offset: 0, length: 0 };
        header.encode(self.session.style, out)
    }

    /// The requests that were not answered, in the order in which they were made. Each may have been carried out.
    pub fn into_unanswered(self) -> impl Iterator<Item = (Cookie, Command)> {
        self.pending.into_iter().map(|(cookie, pending)| (cookie, pending.command))
    }

    /// Takes the next message from `input`, or its begin.
    ///
    /// # Errors
    /// The server broke the protocol: the connection must be closed.
    pub fn advance(&mut self, input: &[u8]) -> Result<ReplyProgress, ProtocolError> {
        if let Some(cookie) = self.ending.take() {
            return Ok(ReplyProgress { consumed: 0, step: self.end(cookie)? });
        }
        let (header, header_bytes) = match decode_reply(self.session.style, input)? {
            Decoded::NeedMore(bytes) => {
                return Ok(ReplyProgress { consumed: 0, step: ReplyStep::NeedMore(bytes) });
            }
            Decoded::Message { message, consumed } => (message, consumed),
        };
        match header {
            ReplyHeader::Simple { cookie, error } => {
                let step = self.on_simple(cookie, error)?;
                Ok(ReplyProgress { consumed: header_bytes, step })
            }
            ReplyHeader::Chunk { cookie, flags, code, offset, length } => {
                let pending = self.of(cookie)?;
                let (_, _, asked, _) = pending.command.fields(ReplyStyle::Extended);
                if offset.is_some_and(|offset| offset != asked) {
                    return Err(unexpected("it repeats another offset than the one asked for"));
                }
                let chunk = ChunkHead { cookie, is_last: flags.contains(ChunkFlags::DONE), code };
                match code {
                    ChunkCode::OFFSET_DATA => self.on_data(chunk, length, input, header_bytes),
                    _ => self.on_chunk(chunk, length, input, header_bytes),
                }
            }
        }
    }

    fn of(&mut self, cookie: Cookie) -> Result<&mut Pending, ProtocolError> {
        self.pending.get_mut(&cookie).ok_or(unexpected("it answers no request in flight"))
    }

    fn on_simple(
        &mut self,
        cookie: Cookie,
        error: Option<ErrorCode>,
    ) -> Result<ReplyStep, ProtocolError> {
        let style = self.session.style;
        let pending = self.of(cookie)?;
        if !pending.is_untouched() {
            return Err(unexpected("a simple reply to what was answered in chunks"));
        }
        if let Some(code) = error {
            pending.failure = Some(Failure { code, message: String::new(), offset: None });
            return self.end(cookie);
        }
        match pending.command {
            Command::Read { .. } | Command::BlockStatus { .. } if style != ReplyStyle::Simple => {
                Err(unexpected("a simple reply to a request that is answered in chunks"))
            }
            Command::BlockStatus { .. } => Err(unexpected("a block status without chunks")),
            Command::Read { length, .. } if length > 0 => {
                pending.tell(0, length)?;
                self.ending = Some(cookie);
                Ok(ReplyStep::Data { cookie, at: 0, length })
            }
            _ => self.end(cookie),
        }
    }

    /// The head of a chunk of data, the offset included; the data is left to the caller.
    fn on_data(
        &mut self,
        chunk: ChunkHead,
        length: u32,
        input: &[u8],
        header_bytes: usize,
    ) -> Result<ReplyProgress, ProtocolError> {
        let empty = unexpected("a chunk of data without any");
        let length = length.checked_sub(DATA_OFFSET_BYTES).filter(|n| *n > 0).ok_or(empty)?;
        let rest = &input[header_bytes..];
        let Some(offset) = Reader::new(rest).u64() else {
            let missing = header_bytes + 8 - input.len();
            return Ok(ReplyProgress { consumed: 0, step: ReplyStep::NeedMore(missing) });
        };
        let at = self.of(chunk.cookie)?.place(offset, length)?;
        if chunk.is_last {
            self.ending = Some(chunk.cookie);
        }
        let step = ReplyStep::Data { cookie: chunk.cookie, at, length };
        Ok(ReplyProgress { consumed: header_bytes + 8, step })
    }

    /// A chunk whose payload is small, or bounded by what was asked for.
    fn on_chunk(
        &mut self,
        chunk: ChunkHead,
        length: u32,
        input: &[u8],
        header_bytes: usize,
    ) -> Result<ReplyProgress, ProtocolError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let consumed = header_bytes.saturating_add(length);
        let Some(payload) = input.get(header_bytes..consumed) else {
            let missing = consumed - input.len();
            return Ok(ReplyProgress { consumed: 0, step: ReplyStep::NeedMore(missing) });
        };
        let cookie = chunk.cookie;
        let style = self.session.style;
        let contexts = self.session.contexts.iter().map(|context| context.id);
        let known: Vec<u32> = match chunk.code {
            ChunkCode::BLOCK_STATUS | ChunkCode::BLOCK_STATUS_EXT => contexts.collect(),
            _ => Vec::new(),
        };
        let pending = self.of(cookie)?;
        let step = match decode_chunk(chunk.code, payload)? {
            Chunk::None if !chunk.is_last => {
                return Err(unexpected("an empty chunk that does not end its reply"));
            }
            Chunk::None => ReplyStep::Again,
            Chunk::Data { .. } => return Err(unexpected("data in a chunk of another type")),
            Chunk::Hole { offset, length } => {
                ReplyStep::Zeroes { cookie, at: pending.place(offset, length)?, length }
            }
            Chunk::Status { context, extents } => {
                let is_wide = chunk.code == ChunkCode::BLOCK_STATUS_EXT;
                if is_wide != (style == ReplyStyle::Extended) {
                    return Err(unexpected("extents in the form of another style"));
                }
                pending.add_status(context, &extents, &known)?;
                ReplyStep::Status { cookie, status: ContextStatus { context, extents } }
            }
            Chunk::Error { code, message, offset } => {
                let failure = Failure { code, message: message.to_owned(), offset };
                // The first one is what happened; others follow from it.
                pending.failure.get_or_insert(failure);
                ReplyStep::Again
            }
        };
        let step = match step {
            ReplyStep::Again if chunk.is_last => self.end(cookie)?,
            step => {
                if chunk.is_last {
                    self.ending = Some(cookie);
                }
                step
            }
        };
        Ok(ReplyProgress { consumed, step })
    }

    /// The reply to a request is over.
    fn end(&mut self, cookie: Cookie) -> Result<ReplyStep, ProtocolError> {
        let missing = unexpected("it answers no request in flight");
        let pending = self.pending.remove(&cookie).ok_or(missing)?;
        let Pending { command, told, contexts, failure } = pending;
        if let Some(failure) = failure {
            return Ok(ReplyStep::Done { cookie, command, result: Err(failure) });
        }
        match command {
            Command::Read { length, .. } if length > 0 && told != [(0, length)] => {
                Err(unexpected("a read ends as a success, and a part of it was not told"))
            }
            Command::BlockStatus { .. } if contexts.len() < self.session.contexts.len() => {
                Err(unexpected("a block status ends as a success, and lacks a context"))
            }
            _ => Ok(ReplyStep::Done { cookie, command, result: Ok(()) }),
        }
    }
}

/// What is known of a chunk before its payload.
#[derive(Clone, Copy)]
struct ChunkHead {
    cookie: Cookie,
    is_last: bool,
    code: ChunkCode,
}

impl Pending {
    fn is_untouched(&self) -> bool {
        self.told.is_empty() && self.contexts.is_empty() && self.failure.is_none()
    }

    /// Where in its read a part lies, which is told now.
    fn place(&mut self, offset: u64, length: u32) -> Result<u32, ProtocolError> {
        let Command::Read { offset: first, .. } = self.command else {
            return Err(unexpected("data for a request that reads nothing"));
        };
        let outside = unexpected("data outside of what was asked for");
        let at = offset.checked_sub(first).and_then(|at| u32::try_from(at).ok());
        let at = at.ok_or(outside)?;
        self.tell(at, length)?;
        Ok(at)
    }

    /// Takes note that a part of the read is told.
    fn tell(&mut self, at: u32, length: u32) -> Result<(), ProtocolError> {
        let Command::Read { length: all, unbroken, .. } = self.command else {
            return Err(unexpected("data for a request that reads nothing"));
        };
        let end = at.checked_add(length).filter(|end| *end <= all);
        let end = end.ok_or(unexpected("data outside of what was asked for"))?;
        if unbroken && !self.told.is_empty() {
            return Err(unexpected("a second piece of a read that must not be broken"));
        }
        let next = self.told.partition_point(|(begin, _)| *begin < at);
        let before = next.checked_sub(1).map(|index| self.told[index].1);
        let after = self.told.get(next).map(|(begin, _)| *begin);
        if before.is_some_and(|before| before > at) || after.is_some_and(|after| after < end) {
            return Err(unexpected("a part of a read that was told before"));
        }
        match (before == Some(at), after == Some(end)) {
            (true, true) => {
                self.told[next - 1].1 = self.told[next].1;
                self.told.remove(next);
            }
            (true, false) => self.told[next - 1].1 = end,
            (false, true) => self.told[next].0 = at,
            (false, false) if self.told.len() >= READ_PARTS_MAX => {
                return Err(unexpected("a read in too many pieces without order"));
            }
            (false, false) => self.told.insert(next, (at, end)),
        }
        Ok(())
    }

    fn add_status(
        &mut self,
        context: u32,
        extents: &[ExtentStatus],
        known: &[u32],
    ) -> Result<(), ProtocolError> {
        let Command::BlockStatus { length, one, .. } = self.command else {
            return Err(unexpected("extents for a request that asks for none"));
        };
        if !known.contains(&context) || self.contexts.contains(&context) {
            return Err(unexpected("extents of a context that was not agreed on, or told before"));
        }
        let before_last = extents.iter().rev().skip(1);
        let told = before_last.fold(0_u64, |sum, extent| sum.saturating_add(extent.length));
        if told >= length || (one && extents.len() > 1) {
            return Err(unexpected("extents beyond the range asked for"));
        }
        self.contexts.push(context);
        Ok(())
    }
}
