//! What a request means: the one place where flags, lengths and bounds are checked.

use super::reply::{ReplyTo, STATUS_HEAD_BYTES_MAX};
use super::request::RequestHeader;
use super::style::ReplyStyle;
use crate::error::ProtocolError;
use crate::handshake::context::ChosenContext;
use crate::limits::{CONTEXTS_MAX, EXTENTS_MAX, PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::numbers::{CommandCode, CommandFlags, ErrorCode, TransmissionFlags};

/// What client and server agreed on for one export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Headers in use.
    pub style: ReplyStyle,
    /// What the export offers.
    pub flags: TransmissionFlags,
    /// The metadata contexts that the client chose for this export: block status has an answer in each.
    pub contexts: Vec<ChosenContext>,
}

/// A request that is well formed and lies within the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send `length` bytes from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`REQUEST_BYTES_MAX`].
        length: u32,
        /// They must be sent as one run without a break: in a simple reply, or where the client asked for one chunk.
        unbroken: bool,
    },
    /// Write the payload at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes of payload, at most [`REQUEST_BYTES_MAX`].
        length: u32,
        /// Answer when it is on stable storage.
        fua: bool,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Answer when it is on stable storage.
        fua: bool,
        /// Keep the range provisioned.
        no_hole: bool,
        /// Fail rather than zero slowly.
        fast: bool,
    },
    /// Give a range up.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Answer when it is on stable storage.
        fua: bool,
    },
    /// Put every answered write on stable storage.
    Flush,
    /// The client will want this range soon.
    Cache {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Describe what a range holds.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Bytes, at least one.
        length: u64,
        /// One extent is enough, and all that is allowed.
        one: bool,
    },
}

/// Why a request is answered with an error without running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error for the client.
    pub code: ErrorCode,
    /// The reason for a person.
    pub reason: &'static str,
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Take `payload_bytes` off the stream, run the command with them, answer.
    Run {
        /// What to do.
        command: Command,
        /// Bytes that follow the header.
        payload_bytes: u32,
    },
    /// Take `payload_bytes` off the stream, throw them away, answer with the refusal.
    Refuse {
        /// Why.
        refusal: Refusal,
        /// Bytes that follow the header.
        payload_bytes: u32,
    },
    /// The client says goodbye: finish what is in flight and close.
    Disconnect,
}

const fn refusal(code: ErrorCode, reason: &'static str) -> Refusal {
    Refusal { code, reason }
}

impl Session {
    /// How to answer `header`.
    #[must_use]
    pub fn reply_to(&self, header: &RequestHeader) -> ReplyTo {
        ReplyTo { style: self.style, cookie: header.cookie, offset: header.offset }
    }

    /// Decides about one request on an export of `size` bytes. Whatever the verdict, the stream stays in step.
    ///
    /// # Errors
    /// [`ProtocolError::TooLong`] for a payload that is too long to be skipped: the connection must be closed.
    pub fn judge(&self, header: &RequestHeader, size: u64) -> Result<Verdict, ProtocolError> {
        let payload_bytes = self.payload_bytes(header)?;
        if header.command == CommandCode::DISC {
            return Ok(Verdict::Disconnect);
        }
        Ok(match self.command(header, size) {
            Ok(command) => Verdict::Run { command, payload_bytes },
            Err(refusal) => Verdict::Refuse { refusal, payload_bytes },
        })
    }

    /// Bytes that follow the header, by its form alone: the command may be refused or unknown.
    fn payload_bytes(&self, header: &RequestHeader) -> Result<u32, ProtocolError> {
        let has_payload = match self.style {
            ReplyStyle::Extended => header.flags.contains(CommandFlags::PAYLOAD_LEN),
            ReplyStyle::Simple | ReplyStyle::Structured => header.command == CommandCode::WRITE,
        };
        if !has_payload {
            return Ok(0);
        }
        match u32::try_from(header.length) {
            Ok(length) if length <= REQUEST_BYTES_MAX => Ok(length),
            _ => Err(ProtocolError::TooLong {
                field: "payload of a request",
                value: header.length,
                limit: u64::from(REQUEST_BYTES_MAX),
            }),
        }
    }

    /// Flags that may stand on a command in this session.
    fn flags_allowed(&self, command: CommandCode) -> CommandFlags {
        // FUA must be accepted on every command once it is offered, whether it means something there or not.
        let own = match command {
            CommandCode::READ if self.flags.contains(TransmissionFlags::SEND_DF) => {
                CommandFlags::DF
            }
            CommandCode::WRITE if self.style == ReplyStyle::Extended => CommandFlags::PAYLOAD_LEN,
            CommandCode::WRITE_ZEROES => CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            CommandCode::BLOCK_STATUS => CommandFlags::REQ_ONE,
            _ => CommandFlags::default(),
        };
        own.with(CommandFlags::FUA)
    }

    fn command(&self, header: &RequestHeader, size: u64) -> Result<Command, Refusal> {
        let RequestHeader { flags, command, offset, length, .. } = *header;
        let known = CommandCode::READ.0..=CommandCode::BLOCK_STATUS.0;
        if !known.contains(&command.0) {
            return Err(refusal(ErrorCode::Invalid, "unknown command"));
        }
        if !flags.without(self.flags_allowed(command)).is_empty() {
            return Err(refusal(ErrorCode::Invalid, "unknown flag, or one that has no place here"));
        }
        self.check_permitted(command)?;
        let fua = flags.contains(CommandFlags::FUA);
        if command == CommandCode::FLUSH {
            return match (offset, length) {
                (0, 0) => Ok(Command::Flush),
                _ => Err(refusal(ErrorCode::Invalid, "a flush has neither offset nor length")),
            };
        }
        check_bounds(command, offset, length, size)?;
        match command {
            CommandCode::READ => self.read(header),
            CommandCode::WRITE => self.write(header, fua),
            CommandCode::TRIM => Ok(Command::Trim { offset, length, fua }),
            CommandCode::CACHE => Ok(Command::Cache { offset, length }),
            CommandCode::WRITE_ZEROES => Ok(Command::WriteZeroes {
                offset,
                length,
                fua,
                no_hole: flags.contains(CommandFlags::NO_HOLE),
                fast: flags.contains(CommandFlags::FAST_ZERO),
            }),
            _ => self.block_status(header),
        }
    }

    fn check_permitted(&self, command: CommandCode) -> Result<(), Refusal> {
        let writes =
            matches!(command, CommandCode::WRITE | CommandCode::TRIM | CommandCode::WRITE_ZEROES);
        if writes && self.flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(refusal(ErrorCode::NotPermitted, "the export is read-only"));
        }
        Ok(())
    }

    fn read(&self, header: &RequestHeader) -> Result<Command, Refusal> {
        let is_one_chunk = header.flags.contains(CommandFlags::DF);
        let most = if is_one_chunk { PAYLOAD_BYTES_MAX } else { REQUEST_BYTES_MAX };
        match u32::try_from(header.length) {
            Ok(length) if length <= most => {
                let unbroken = is_one_chunk || self.style == ReplyStyle::Simple;
                Ok(Command::Read { offset: header.offset, length, unbroken })
            }
            // Only replies in chunks can ask for as much.
            _ => Err(refusal(ErrorCode::Overflow, "a read exceeds the maximum payload")),
        }
    }

    fn write(&self, header: &RequestHeader, fua: bool) -> Result<Command, Refusal> {
        let announced = header.flags.contains(CommandFlags::PAYLOAD_LEN);
        if self.style == ReplyStyle::Extended && !announced {
            return Err(refusal(ErrorCode::Invalid, "an extended write lacks its payload flag"));
        }
        let length = u32::try_from(header.length)
            .expect("a payload above its limit was refused before the command is looked at");
        Ok(Command::Write { offset: header.offset, length, fua })
    }

    fn block_status(&self, header: &RequestHeader) -> Result<Command, Refusal> {
        if self.contexts.is_empty() {
            return Err(refusal(ErrorCode::Invalid, "no metadata context was negotiated"));
        }
        if header.length == 0 {
            return Err(refusal(ErrorCode::Invalid, "block status of an empty range"));
        }
        Ok(Command::BlockStatus {
            offset: header.offset,
            length: header.length,
            one: header.flags.contains(CommandFlags::REQ_ONE),
        })
    }
}

/// Checks that the range ends within the export. A write past the end is "no space", anything else is "invalid".
fn check_bounds(command: CommandCode, offset: u64, length: u64, size: u64) -> Result<(), Refusal> {
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let code = match command {
        CommandCode::WRITE | CommandCode::WRITE_ZEROES => ErrorCode::NoSpace,
        _ => ErrorCode::Invalid,
    };
    Err(refusal(code, "the range goes past the end of the export"))
}

impl Command {
    /// Bytes of reply payload that the command can produce at most, beside one header.
    #[must_use]
    pub fn reply_payload_bytes_max(&self) -> u64 {
        match self {
            Self::Read { length, .. } => u64::from(*length),
            Self::BlockStatus { one, .. } => {
                let extents = if *one { CONTEXTS_MAX } else { EXTENTS_MAX };
                16 * extents as u64 + CONTEXTS_MAX as u64 * STATUS_HEAD_BYTES_MAX
            }
            _ => 0,
        }
    }
}
