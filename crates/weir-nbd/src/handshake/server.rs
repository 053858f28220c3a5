//! The server's side of the handshake.
//!
//! Invariants
//!  H1. One call answers at most one option, so that what waits to be sent is bounded by one answer.
//!  H2. Every option is answered or ends the connection; the stream stays in step whatever its data.
//!  H3. Metadata contexts and attachments are agreed on only for the export name that they were negotiated for, by the
//!      last attempt.
//!  H4. Nothing is taken after the handshake is over.
//!  H5. Where TLS is required, nothing is said of any export before it is there; what was agreed on before it is
//!      forgotten.

use weir_device::mutant;

use super::attachment::{Attached, Attachment, Exclusive, Instance, NotAttached};
use super::context::ChosenContext;
use super::export::ExportInfo;
use super::layout::EXPORT_NAME_ZEROES;
use super::option::{
    OPTION_HEADER_BYTES, OptionFault, OptionHeader, OptionRequest, decode_option,
    decode_option_header,
};
use super::reply::{BlockSizes, Fact, OptionReply, encode_option_reply};
use crate::bytes::{Decoded, Reader, put_u16, put_u64};
use crate::error::ProtocolError;
use crate::limits::{
    BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, CONTEXTS_MAX, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX,
    OPTIONS_MAX, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX,
};
use crate::numbers::{
    ClientFlags, GREETING_MAGIC, HandshakeFlags, InfoCode, OPTION_MAGIC, OptionCode,
    OptionReplyCode, TransmissionFlags,
};
use crate::transmission::judge::Session;
use crate::transmission::style::ReplyStyle;

/// Why a client does not get an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOffered {
    /// There is none of that name.
    Unknown,
    /// It is not for this client; a sentence that says why.
    Refused(&'static str),
}

impl NotOffered {
    fn reply(self) -> (OptionReplyCode, &'static str) {
        match self {
            Self::Unknown => (OptionReplyCode::ERR_UNKNOWN, "there is no such export"),
            Self::Refused(reason) => (OptionReplyCode::ERR_POLICY, reason),
        }
    }
}

/// Whether a server speaks TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsOffer {
    /// It does not.
    #[default]
    None,
    /// Clients may ask for it.
    Optional,
    /// Clients get nothing without it.
    Required,
}

const OPENED_ANEW: &str =
    "the export was opened anew since this client attached: it is to do so again";

/// The exports that a handshake may offer.
pub trait Catalog {
    /// What the caller needs to serve an export.
    type Handle;

    /// The export of that name. The empty name is the default export, if there is one.
    ///
    /// # Errors
    /// [`NotOffered`].
    fn find(&self, name: &str) -> Result<(ExportInfo, Self::Handle), NotOffered>;

    /// Names of all exports that the client may use, for clients that list them.
    fn list(&self) -> Vec<String>;

    /// Called when a client says what its connection belongs to, before that is answered, and again if it says so once
    /// more, of this export or another. What comes with exclusive access where it has that from now on.
    ///
    /// # Errors
    /// [`NotAttached`].
    fn attach(
        &self,
        _found: (&ExportInfo, &Self::Handle),
        attachment: &Attachment,
    ) -> Result<Option<Exclusive>, NotAttached> {
        let refused = NotAttached::Refused("exclusive access is not given here");
        if attachment.exclusive { Err(refused) } else { Ok(None) }
    }

    /// Called when a client wants to begin with an export, before that is answered. An error is a sentence for the
    /// client, which does not get it.
    ///
    /// # Errors
    /// When there is no place for it.
    fn admit(
        &self,
        _found: (&ExportInfo, &Self::Handle),
        _attachment: Option<&Attachment>,
    ) -> Result<Admission, &'static str> {
        Ok(Admission::AsOffered)
    }
}

/// How a client gets an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As it is.
    AsOffered,
    /// Without writes, which another client alone may make at present.
    ReadOnly,
}

/// What the next message asks of the catalog: for one that has to look it up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// The export of this name.
    Export(&'a str),
    /// The names of all.
    List,
}

/// What the caller does next.
#[derive(Debug, PartialEq, Eq)]
pub enum HandshakeStep<H> {
    /// Send the output, receive at least so many more bytes, and call again.
    NeedMore(usize),
    /// Send the output, then call again with the input that is left.
    Again,
    /// Send the output; transmission begins with the input that is left.
    Transmit {
        /// What was agreed on.
        session: Session,
        /// The export.
        info: ExportInfo,
        /// The catalog's handle on it.
        handle: H,
        /// What the connection belongs to, if the client said so.
        attachment: Option<Attachment>,
    },
    /// Send the output and begin TLS, then call again. Input that is left was sent in the clear behind the request,
    /// where nothing may be: the connection must be closed then.
    StartTls,
    /// Send the output and close: the client said goodbye.
    Close,
}

/// What became of the input.
#[derive(Debug, PartialEq, Eq)]
pub struct HandshakeProgress<H> {
    /// Bytes to remove from the input.
    pub consumed: usize,
    /// What to do next.
    pub step: HandshakeStep<H>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    Options,
    /// Passing over the data of an option that was refused.
    Skipping(u32),
    Over,
}

/// The server's side of one handshake.
#[derive(Debug)]
pub struct ServerHandshake {
    state: State,
    client: ClientFlags,
    style: ReplyStyle,
    /// The metadata contexts that were chosen, and the export name that they were chosen for.
    contexts: Option<(String, Vec<ChosenContext>)>,
    /// What the connection belongs to, the export name that it was said for, and the opening that took it.
    attachment: Option<(String, Attachment, Instance)>,
    options_left: u32,
    /// What is offered still; nothing once it is there.
    tls: TlsOffer,
    tls_is_there: bool,
}

/// The end of the handshake, as an option brings it about.
enum Outcome<H> {
    Answered,
    Chosen { info: ExportInfo, handle: H, name: String },
    StartTls,
    Goodbye,
}

impl Default for ServerHandshake {
    fn default() -> Self {
        Self::new(TlsOffer::None)
    }
}

impl ServerHandshake {
    /// One with a client that has not said anything yet.
    #[must_use]
    pub fn new(tls: TlsOffer) -> Self {
        Self {
            state: State::ClientFlags,
            client: ClientFlags::default(),
            style: ReplyStyle::Simple,
            contexts: None,
            attachment: None,
            options_left: OPTIONS_MAX,
            tls,
            tls_is_there: false,
        }
    }

    /// Appends the greeting, which the server sends first.
    pub fn greet(&self, out: &mut Vec<u8>) {
        put_u64(out, GREETING_MAGIC);
        put_u64(out, OPTION_MAGIC);
        put_u16(out, HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES).0);
    }

    /// What the next call of [`Self::advance`] with this input asks of the catalog. Nothing where the message is not
    /// all there yet, or does not need it.
    #[must_use]
    pub fn wanted<'a>(&self, input: &'a [u8]) -> Option<Wanted<'a>> {
        if self.state != State::Options || self.lacks_tls() {
            return None;
        }
        let Ok(Decoded::Message { message: header, .. }) = decode_option_header(input) else {
            return None;
        };
        let length = usize::try_from(header.length).ok().filter(|l| *l <= OPTION_BYTES_MAX)?;
        let data = input.get(OPTION_HEADER_BYTES..OPTION_HEADER_BYTES + length)?;
        match decode_option(header.code, data).ok()? {
            OptionRequest::ExportName(name)
            | OptionRequest::Info { name, .. }
            | OptionRequest::Go { name, .. }
            | OptionRequest::ListMetaContext { name, .. }
            | OptionRequest::SetMetaContext { name, .. }
            | OptionRequest::Attach { name, .. } => Some(Wanted::Export(name)),
            OptionRequest::List => Some(Wanted::List),
            OptionRequest::Abort
            | OptionRequest::StartTls
            | OptionRequest::StructuredReply
            | OptionRequest::ExtendedHeaders => None,
        }
    }

    /// Takes the next message from `input` and appends the answer to `out`.
    ///
    /// # Errors
    /// A [`ProtocolError`] that cannot be answered: what is in `out` may be sent, then the connection must be closed.
    ///
    /// # Panics
    /// If called after the handshake is over (H4).
    pub fn advance<C: Catalog>(
        &mut self,
        input: &[u8],
        catalog: &C,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeProgress<C::Handle>, ProtocolError> {
        match self.state {
            State::ClientFlags => self.on_client_flags(input),
            State::Options => self.on_option(input, catalog, out),
            State::Skipping(left) => Ok(self.on_skipped(input, left)),
            State::Over => panic!("H4: the handshake is over"),
        }
    }

    fn on_client_flags<H>(&mut self, input: &[u8]) -> Result<HandshakeProgress<H>, ProtocolError> {
        let Some(bits) = Reader::new(input).u32() else {
            let step = HandshakeStep::NeedMore(4 - input.len());
            return Ok(HandshakeProgress { consumed: 0, step });
        };
        let flags = ClientFlags(bits);
        if !flags.without(ClientFlags::FIXED_NEWSTYLE.with(ClientFlags::NO_ZEROES)).is_empty() {
            return Err(ProtocolError::ClientFlags { flags: bits });
        }
        self.client = flags;
        self.state = State::Options;
        Ok(HandshakeProgress { consumed: 4, step: HandshakeStep::Again })
    }

    fn on_skipped<H>(&mut self, input: &[u8], left: u32) -> HandshakeProgress<H> {
        let here = u32::try_from(input.len()).unwrap_or(u32::MAX).min(left);
        let left = left - here;
        let consumed = usize::try_from(here).expect("no more than the input's length");
        if left == 0 {
            self.state = State::Options;
            return HandshakeProgress { consumed, step: HandshakeStep::Again };
        }
        self.state = State::Skipping(left);
        HandshakeProgress { consumed, step: HandshakeStep::NeedMore(1) }
    }

    fn on_option<C: Catalog>(
        &mut self,
        input: &[u8],
        catalog: &C,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeProgress<C::Handle>, ProtocolError> {
        let need = |bytes| HandshakeProgress { consumed: 0, step: HandshakeStep::NeedMore(bytes) };
        let header = match decode_option_header(input)? {
            Decoded::NeedMore(bytes) => return Ok(need(bytes)),
            Decoded::Message { message, .. } => message,
        };
        self.check_allowed(header)?;
        let after_header = &input[OPTION_HEADER_BYTES..];
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if length > OPTION_BYTES_MAX {
            return self.refuse_long(header, out);
        }
        let Some(data) = after_header.get(..length) else {
            return Ok(need(length - after_header.len()));
        };
        self.options_left = self
            .options_left
            .checked_sub(1)
            .ok_or(ProtocolError::TooManyOptions { limit: OPTIONS_MAX })?;
        let outcome = self.answer(header.code, data, catalog, out)?;
        let consumed = OPTION_HEADER_BYTES + length;
        let step = match outcome {
            Outcome::Answered => HandshakeStep::Again,
            Outcome::StartTls => HandshakeStep::StartTls,
            Outcome::Goodbye => {
                self.state = State::Over;
                HandshakeStep::Close
            }
            Outcome::Chosen { info, handle, name } => {
                self.state = State::Over;
                let session = self.session(&info, &name);
                let attachment = self.attachment_to(&name).copied();
                HandshakeStep::Transmit { session, info, handle, attachment }
            }
        };
        Ok(HandshakeProgress { consumed, step })
    }

    /// Options that cannot even be refused with a reply.
    fn check_allowed(&self, header: OptionHeader) -> Result<(), ProtocolError> {
        if header.code == OptionCode::EXPORT_NAME {
            if u64::from(header.length) > STRING_BYTES_MAX as u64 {
                return Err(ProtocolError::TooLong {
                    field: "name of an export",
                    value: u64::from(header.length),
                    limit: STRING_BYTES_MAX as u64,
                });
            }
        } else if !self.client.contains(ClientFlags::FIXED_NEWSTYLE) {
            return Err(ProtocolError::NotFixedNewstyle { option: header.code.0 });
        }
        Ok(())
    }

    fn refuse_long<H>(
        &mut self,
        header: OptionHeader,
        out: &mut Vec<u8>,
    ) -> Result<HandshakeProgress<H>, ProtocolError> {
        if header.length > OPTION_SKIP_BYTES_MAX {
            return Err(ProtocolError::TooLong {
                field: "data of an option",
                value: u64::from(header.length),
                limit: u64::from(OPTION_SKIP_BYTES_MAX),
            });
        }
        self.forget_choice(header.code);
        refuse(header.code, OptionReplyCode::ERR_TOO_BIG, "the option is too long", out);
        self.state = State::Skipping(header.length);
        let consumed = OPTION_HEADER_BYTES;
        Ok(HandshakeProgress { consumed, step: HandshakeStep::Again })
    }

    fn answer<C: Catalog>(
        &mut self,
        code: OptionCode,
        data: &[u8],
        catalog: &C,
        out: &mut Vec<u8>,
    ) -> Result<Outcome<C::Handle>, ProtocolError> {
        if self.lacks_tls() && !matches!(code, OptionCode::STARTTLS | OptionCode::ABORT) {
            // H5.
            let message = "this server takes nothing but TLS: begin it first";
            if code == OptionCode::EXPORT_NAME {
                return Err(ProtocolError::ExportRefused { reason: message });
            }
            refuse(code, OptionReplyCode::ERR_TLS_REQD, message, out);
            return Ok(Outcome::Answered);
        }
        self.forget_choice(code);
        let request = match decode_option(code, data) {
            Ok(request) => request,
            Err(_) if code == OptionCode::EXPORT_NAME => {
                return Err(ProtocolError::ExportRefused { reason: "the name is not text" });
            }
            Err(fault) => {
                let (reply, message) = match fault {
                    OptionFault::Unknown => {
                        (OptionReplyCode::ERR_UNSUP, "the option is not known here")
                    }
                    OptionFault::Invalid(reason) => (OptionReplyCode::ERR_INVALID, reason),
                    OptionFault::TooBig(reason) => (OptionReplyCode::ERR_TOO_BIG, reason),
                };
                refuse(code, reply, message, out);
                return Ok(Outcome::Answered);
            }
        };
        match request {
            OptionRequest::ExportName(name) => return self.on_export_name(name, catalog, out),
            OptionRequest::Abort => {
                encode_option_reply(code, &OptionReply::Ack, out);
                return Ok(Outcome::Goodbye);
            }
            OptionRequest::Info { name, facts } => {
                self.describe(code, name, &facts, catalog, out);
            }
            OptionRequest::Go { name, facts } => {
                if let Some((info, handle)) = self.describe(code, name, &facts, catalog, out) {
                    return Ok(Outcome::Chosen { info, handle, name: name.to_owned() });
                }
            }
            OptionRequest::List => list(code, catalog, out),
            OptionRequest::StartTls => return Ok(self.on_start_tls(code, out)),
            OptionRequest::StructuredReply => self.on_structured_reply(code, out),
            OptionRequest::ExtendedHeaders => {
                self.style = ReplyStyle::Extended;
                encode_option_reply(code, &OptionReply::Ack, out);
            }
            OptionRequest::ListMetaContext { name, queries } => {
                self.on_meta_context(code, name, &queries, catalog, out);
            }
            OptionRequest::SetMetaContext { name, queries } => {
                let chosen = self.on_meta_context(code, name, &queries, catalog, out);
                self.contexts = Some((name.to_owned(), chosen));
            }
            OptionRequest::Attach { name, attachment } => {
                self.on_attach(code, (name, attachment), catalog, out);
            }
        }
        Ok(Outcome::Answered)
    }

    /// What the connection belongs to, if that was said for this export.
    fn attachment_to(&self, name: &str) -> Option<&Attachment> {
        self.attachment.as_ref().filter(|(export, ..)| export == name).map(|(_, one, _)| one)
    }

    /// Whether the export was opened anew since the client attached: what it was told is not so any more.
    fn is_another_opening(&self, name: &str, info: &ExportInfo) -> bool {
        let attached = self.attachment.as_ref().filter(|(export, ..)| export == name);
        attached.is_some_and(|(.., instance)| Some(*instance) != info.instance)
    }

    /// H3: a new attempt replaces the earlier choice even where it fails.
    fn forget_choice(&mut self, code: OptionCode) {
        match code {
            OptionCode::SET_META_CONTEXT => self.contexts = None,
            OptionCode::WEIR_ATTACH => self.attachment = None,
            _ => {}
        }
    }

    /// Whether the client must begin TLS before it gets anything.
    fn lacks_tls(&self) -> bool {
        self.tls == TlsOffer::Required && !self.tls_is_there
    }

    fn on_start_tls<H>(&mut self, code: OptionCode, out: &mut Vec<u8>) -> Outcome<H> {
        let refusal = match self.tls {
            _ if self.tls_is_there => (OptionReplyCode::ERR_INVALID, "TLS is there already"),
            TlsOffer::None => (OptionReplyCode::ERR_UNSUP, "this server does not speak TLS"),
            TlsOffer::Optional | TlsOffer::Required => {
                self.tls_is_there = true;
                // H5: somebody else may have said it.
                (self.style, self.contexts, self.attachment) = (ReplyStyle::Simple, None, None);
                encode_option_reply(code, &OptionReply::Ack, out);
                return Outcome::StartTls;
            }
        };
        refuse(code, refusal.0, refusal.1, out);
        Outcome::Answered
    }

    fn on_export_name<C: Catalog>(
        &mut self,
        name: &str,
        catalog: &C,
        out: &mut Vec<u8>,
    ) -> Result<Outcome<C::Handle>, ProtocolError> {
        if self.style == ReplyStyle::Extended {
            let reason = "extended headers were agreed on, which asks for GO";
            return Err(ProtocolError::ExportRefused { reason });
        }
        let refused = |why: NotOffered| ProtocolError::ExportRefused { reason: why.reply().1 };
        let (mut info, handle) = catalog.find(name).map_err(refused)?;
        if self.is_another_opening(name, &info) {
            return Err(ProtocolError::ExportRefused { reason: OPENED_ANEW });
        }
        let admitted = catalog.admit((&info, &handle), self.attachment_to(name));
        let admission = admitted.map_err(|reason| ProtocolError::ExportRefused { reason })?;
        info.read_only |=
            admission == Admission::ReadOnly && !mutant("export_name_writes_beside_holder");
        put_u64(out, info.size);
        put_u16(out, self.transmission_flags(&info).0);
        if !self.client.contains(ClientFlags::NO_ZEROES) {
            out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        Ok(Outcome::Chosen { info, handle, name: name.to_owned() })
    }

    fn on_attach<C: Catalog>(
        &mut self,
        code: OptionCode,
        (name, attachment): (&str, Attachment),
        catalog: &C,
        out: &mut Vec<u8>,
    ) {
        let (info, handle) = match catalog.find(name) {
            Ok(found) => found,
            Err(why) => {
                let (reply, reason) = why.reply();
                return refuse(code, reply, reason, out);
            }
        };
        let Some(instance) = info.instance else {
            let message = "this export does not tell one opening from another";
            return refuse(code, OptionReplyCode::ERR_UNSUP, message, out);
        };
        match catalog.attach((&info, &handle), &attachment) {
            Ok(exclusive) => {
                let attached = Attached { instance, volume: info.volume, exclusive };
                encode_option_reply(code, &OptionReply::Attached(attached), out);
                encode_option_reply(code, &OptionReply::Ack, out);
                self.attachment = Some((name.to_owned(), attachment, instance));
            }
            Err(NotAttached::Taken(reason)) => {
                refuse(code, OptionReplyCode::ERR_WEIR_TAKEN, reason, out);
            }
            Err(NotAttached::Refused(reason)) => {
                refuse(code, OptionReplyCode::ERR_POLICY, reason, out);
            }
        }
    }

    fn on_structured_reply(&mut self, code: OptionCode, out: &mut Vec<u8>) {
        if self.style == ReplyStyle::Extended {
            let message = "extended headers were agreed on already";
            return refuse(code, OptionReplyCode::ERR_EXT_HEADER_REQD, message, out);
        }
        self.style = ReplyStyle::Structured;
        encode_option_reply(code, &OptionReply::Ack, out);
    }

    /// Answers `INFO` or `GO`; the export, if there is one.
    fn describe<C: Catalog>(
        &self,
        code: OptionCode,
        name: &str,
        facts: &[InfoCode],
        catalog: &C,
        out: &mut Vec<u8>,
    ) -> Option<(ExportInfo, C::Handle)> {
        let (mut info, handle) = match catalog.find(name) {
            Ok(found) => found,
            Err(why) => {
                let (reply, reason) = why.reply();
                refuse(code, reply, reason, out);
                return None;
            }
        };
        if code == OptionCode::GO {
            let admitted = match self.is_another_opening(name, &info) {
                true => Err(OPENED_ANEW),
                false => catalog.admit((&info, &handle), self.attachment_to(name)),
            };
            match admitted {
                Ok(admission) => info.read_only |= admission == Admission::ReadOnly,
                Err(reason) => {
                    refuse(code, OptionReplyCode::ERR_POLICY, reason, out);
                    return None;
                }
            }
        }
        let flags = self.transmission_flags(&info);
        let mut say = |fact| encode_option_reply(code, &OptionReply::Info(fact), out);
        say(Fact::Export { size: info.size, flags });
        if facts.contains(&InfoCode::NAME) {
            say(Fact::Name(&info.name));
        }
        if facts.contains(&InfoCode::DESCRIPTION) {
            say(Fact::Description(&info.description));
        }
        if facts.contains(&InfoCode::BLOCK_SIZE) {
            say(Fact::BlockSize(BlockSizes {
                minimum: BLOCK_BYTES_MIN,
                preferred: BLOCK_BYTES_PREFERRED,
                payload_max: PAYLOAD_BYTES_MAX,
            }));
        }
        encode_option_reply(code, &OptionReply::Ack, out);
        Some((info, handle))
    }

    /// Answers a metadata option; the contexts in the answer.
    fn on_meta_context<C: Catalog>(
        &self,
        code: OptionCode,
        name: &str,
        queries: &[&str],
        catalog: &C,
        out: &mut Vec<u8>,
    ) -> Vec<ChosenContext> {
        if self.style == ReplyStyle::Simple {
            let message = "structured replies or extended headers must be agreed on first";
            refuse(code, OptionReplyCode::ERR_INVALID, message, out);
            return Vec::new();
        }
        let info = match catalog.find(name) {
            Ok((info, _)) => info,
            Err(why) => {
                let (reply, reason) = why.reply();
                refuse(code, reply, reason, out);
                return Vec::new();
            }
        };
        let listing = code == OptionCode::LIST_META_CONTEXT;
        let mut contexts = info.contexts(queries, listing);
        if !listing {
            // The client learns from the answer what it got.
            contexts.truncate(CONTEXTS_MAX);
        }
        for ChosenContext { id, name } in &contexts {
            let id = if listing { 0 } else { *id };
            encode_option_reply(code, &OptionReply::MetaContext { id, name }, out);
        }
        encode_option_reply(code, &OptionReply::Ack, out);
        contexts
    }

    fn transmission_flags(&self, info: &ExportInfo) -> TransmissionFlags {
        let mut flags = TransmissionFlags::HAS_FLAGS
            .with(TransmissionFlags::SEND_FLUSH)
            .with(TransmissionFlags::SEND_FUA)
            .with(TransmissionFlags::SEND_CACHE)
            .with(TransmissionFlags::CAN_MULTI_CONN);
        flags = if info.read_only {
            flags.with(TransmissionFlags::READ_ONLY)
        } else {
            flags
                .with(TransmissionFlags::SEND_TRIM)
                .with(TransmissionFlags::SEND_WRITE_ZEROES)
                .with(TransmissionFlags::SEND_FAST_ZERO)
        };
        if self.style != ReplyStyle::Simple {
            flags = flags.with(TransmissionFlags::SEND_DF);
        }
        flags
    }

    fn session(&self, info: &ExportInfo, name: &str) -> Session {
        let chosen = self.contexts.as_ref().filter(|(export, _)| export == name);
        Session {
            style: self.style,
            flags: self.transmission_flags(info),
            contexts: chosen.map(|(_, contexts)| contexts.clone()).unwrap_or_default(),
        }
    }
}

fn list<C: Catalog>(code: OptionCode, catalog: &C, out: &mut Vec<u8>) {
    for name in catalog.list() {
        // The longest name is the protocol's bound; a catalog that breaks it cannot be spoken of.
        if name.len() <= STRING_BYTES_MAX {
            let reply = OptionReply::Server { name: &name, description: "" };
            encode_option_reply(code, &reply, out);
        }
    }
    encode_option_reply(code, &OptionReply::Ack, out);
}

fn refuse(option: OptionCode, code: OptionReplyCode, message: &str, out: &mut Vec<u8>) {
    encode_option_reply(option, &OptionReply::Error { code, message }, out);
}
