//! The client's side of the handshake: asks for the best headers it may use, for the metadata contexts wanted, and for
//! one export; falls back step by step to what older servers know.

use super::attachment::{Attached, Attachment};
use super::context::ChosenContext;
use super::layout::{EXPORT_NAME_ZEROES, GREETING_BYTES};
use super::option::{OptionRequest, encode_option};
use super::reply::{BlockSizes, Fact, OptionReply, decode_option_reply};
use crate::bytes::{Decoded, Reader, put_u32};
use crate::error::ProtocolError;
use crate::numbers::{
    ClientFlags, GREETING_MAGIC, HandshakeFlags, InfoCode, OPTION_MAGIC, OptionCode,
    OptionReplyCode, TransmissionFlags,
};
use crate::transmission::judge::Session;
use crate::transmission::style::ReplyStyle;

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientWish {
    /// Name of the export; empty for the server's default.
    pub export: String,
    /// Whether nothing else may be said before TLS is there. A server without it is refused.
    pub tls: bool,
    /// The best headers to ask for; the server may know less.
    pub style_max: ReplyStyle,
    /// What the connection belongs to; a server that is no Weir does not know of it.
    pub attachment: Option<Attachment>,
    /// Names of the metadata contexts to ask for, such as `base:allocation`; the server may not have them.
    pub contexts: Vec<String>,
}

/// What client and server agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Headers, flags and metadata contexts.
    pub session: Session,
    /// Size of the export in bytes.
    pub size: u64,
    /// Sizes to keep to, where the server names them.
    pub block_sizes: Option<BlockSizes>,
    /// Which opening of the export answers, and whether access is exclusive, where the server took the attachment. If
    /// exclusive access was asked for, it is there.
    pub attached: Option<Attached>,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Send the output, receive at least so many more bytes, and call again.
    NeedMore(usize),
    /// Send the output, then call again with the input that is left.
    Again,
    /// Begin TLS, then call again. Input that is left was sent in the clear behind the answer, where nothing may be:
    /// the connection must be closed then.
    StartTls,
    /// Transmission begins with the input that is left.
    Transmit(Agreement),
}

/// What became of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientProgress {
    /// Bytes to remove from the input.
    pub consumed: usize,
    /// What to do next.
    pub step: ClientStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// TLS is there now.
    Secured,
    /// Waiting for replies to this option.
    Asked(OptionCode),
    Over,
}

/// The client's side of one handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    wish: ClientWish,
    state: State,
    no_zeroes: bool,
    style: ReplyStyle,
    contexts: Vec<ChosenContext>,
    export: Option<(u64, TransmissionFlags)>,
    block_sizes: Option<BlockSizes>,
    attached: Option<Attached>,
}

const fn unexpected(reason: &'static str) -> ProtocolError {
    ProtocolError::Unexpected { message: "answer of the server", reason }
}

impl ClientHandshake {
    /// A handshake that will ask for `wish`. The server speaks first.
    #[must_use]
    pub fn new(wish: ClientWish) -> Self {
        Self {
            wish,
            state: State::Greeting,
            no_zeroes: false,
            style: ReplyStyle::Simple,
            contexts: Vec::new(),
            export: None,
            block_sizes: None,
            attached: None,
        }
    }

    /// Takes the next message from `input` and appends the answer to `out`.
    ///
    /// # Errors
    /// A [`ProtocolError`]: the server broke the protocol or refused the export.
    ///
    /// # Panics
    /// If called after the handshake is over.
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientProgress, ProtocolError> {
        match self.state {
            State::Greeting => self.on_greeting(input, out),
            State::Secured => {
                self.ask_for_style(out)?;
                Ok(ClientProgress { consumed: 0, step: ClientStep::Again })
            }
            State::Asked(OptionCode::EXPORT_NAME) => self.on_export_name(input),
            State::Asked(option) => self.on_reply(option, input, out),
            State::Over => panic!("the handshake is over"),
        }
    }

    fn ask(&mut self, request: &OptionRequest<'_>, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        encode_option(request, out)?;
        self.state = State::Asked(request.code());
        Ok(())
    }

    fn on_greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientProgress, ProtocolError> {
        let mut reader = Reader::new(input);
        let (Some(first), Some(second), Some(flags)) = (reader.u64(), reader.u64(), reader.u16())
        else {
            let step = ClientStep::NeedMore(GREETING_BYTES - input.len());
            return Ok(ClientProgress { consumed: 0, step });
        };
        for (found, expected) in [(first, GREETING_MAGIC), (second, OPTION_MAGIC)] {
            if found != expected {
                return Err(ProtocolError::Magic { message: "greeting", found, expected });
            }
        }
        let offered = HandshakeFlags(flags);
        let fixed = offered.contains(HandshakeFlags::FIXED_NEWSTYLE);
        self.no_zeroes = offered.contains(HandshakeFlags::NO_ZEROES);
        let mut answer = ClientFlags::default();
        if fixed {
            answer = answer.with(ClientFlags::FIXED_NEWSTYLE);
        }
        if self.no_zeroes {
            answer = answer.with(ClientFlags::NO_ZEROES);
        }
        put_u32(out, answer.0);
        match (fixed, self.wish.tls) {
            (true, true) => self.ask(&OptionRequest::StartTls, out)?,
            (true, false) => self.ask_for_style(out)?,
            (false, true) => return Err(unexpected("the server is too old for TLS")),
            (false, false) if self.asks_for_exclusive() => {
                return Err(unexpected("the server is too old for exclusive access"));
            }
            (false, false) => self.ask_by_name_only(out)?,
        }
        Ok(ClientProgress { consumed: GREETING_BYTES, step: ClientStep::Again })
    }

    fn ask_for_style(&mut self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        match self.wish.style_max {
            ReplyStyle::Extended => self.ask(&OptionRequest::ExtendedHeaders, out),
            ReplyStyle::Structured => self.ask(&OptionRequest::StructuredReply, out),
            ReplyStyle::Simple => self.ask_to_attach(out),
        }
    }

    fn ask_for_context(&mut self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        if self.wish.contexts.is_empty() || self.style == ReplyStyle::Simple {
            return self.ask_to_attach(out);
        }
        let wish = self.wish.clone();
        let queries = wish.contexts.iter().map(String::as_str).collect();
        self.ask(&OptionRequest::SetMetaContext { name: &wish.export, queries }, out)
    }

    fn asks_for_exclusive(&self) -> bool {
        self.wish.attachment.is_some_and(|attachment| attachment.exclusive)
    }

    /// After everything else but the export itself.
    fn ask_to_attach(&mut self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let Some(attachment) = self.wish.attachment else { return self.ask_for_export(out) };
        let name = self.wish.export.clone();
        self.ask(&OptionRequest::Attach { name: &name, attachment }, out)
    }

    fn ask_for_export(&mut self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let name = self.wish.export.clone();
        let facts = vec![InfoCode::BLOCK_SIZE];
        self.ask(&OptionRequest::Go { name: &name, facts }, out)
    }

    fn ask_by_name_only(&mut self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let name = self.wish.export.clone();
        self.ask(&OptionRequest::ExportName(&name), out)
    }

    fn on_reply(
        &mut self,
        asked: OptionCode,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ClientProgress, ProtocolError> {
        let (message, consumed) = match decode_option_reply(input)? {
            Decoded::NeedMore(bytes) => {
                return Ok(ClientProgress { consumed: 0, step: ClientStep::NeedMore(bytes) });
            }
            Decoded::Message { message, consumed } => (message, consumed),
        };
        let (option, reply) = message;
        if option != asked {
            return Err(unexpected("it answers another option than the one asked"));
        }
        match reply {
            OptionReply::Ack if asked == OptionCode::STARTTLS => {
                self.state = State::Secured;
                return Ok(ClientProgress { consumed, step: ClientStep::StartTls });
            }
            OptionReply::Ack => {
                if let Some(agreement) = self.on_ack(asked, out)? {
                    self.state = State::Over;
                    let step = ClientStep::Transmit(agreement);
                    return Ok(ClientProgress { consumed, step });
                }
            }
            OptionReply::Error { code, message } => self.on_error(asked, code, message, out)?,
            OptionReply::Info(fact) if asked == OptionCode::GO => match fact {
                Fact::Export { size, flags } => self.export = Some((size, flags)),
                Fact::BlockSize(sizes) => self.block_sizes = Some(checked_sizes(sizes)?),
                Fact::Name(_) | Fact::Description(_) | Fact::Other(_) => {}
            },
            OptionReply::MetaContext { id, name } if asked == OptionCode::SET_META_CONTEXT => {
                self.on_context(id, name)?;
            }
            OptionReply::Attached(attached) if asked == OptionCode::WEIR_ATTACH => {
                self.attached = Some(attached);
            }
            OptionReply::Info(_)
            | OptionReply::MetaContext { .. }
            | OptionReply::Server { .. }
            | OptionReply::Attached(_) => {
                return Err(unexpected("a reply of this type does not answer the option asked"));
            }
        }
        Ok(ClientProgress { consumed, step: ClientStep::Again })
    }

    /// Takes a context that was asked for, once.
    fn on_context(&mut self, id: u32, name: &str) -> Result<(), ProtocolError> {
        let is_known = self.contexts.iter().any(|known| known.name == name);
        if is_known || !self.wish.contexts.iter().any(|wanted| wanted == name) {
            return Ok(());
        }
        if self.contexts.iter().any(|known| known.id == id) {
            return Err(unexpected("two metadata contexts have the same number"));
        }
        self.contexts.push(ChosenContext { id, name: name.to_owned() });
        Ok(())
    }

    fn on_ack(
        &mut self,
        asked: OptionCode,
        out: &mut Vec<u8>,
    ) -> Result<Option<Agreement>, ProtocolError> {
        match asked {
            OptionCode::EXTENDED_HEADERS => {
                self.style = ReplyStyle::Extended;
                self.ask_for_context(out)?;
            }
            OptionCode::STRUCTURED_REPLY => {
                self.style = ReplyStyle::Structured;
                self.ask_for_context(out)?;
            }
            OptionCode::SET_META_CONTEXT => self.ask_to_attach(out)?,
            OptionCode::WEIR_ATTACH => {
                let attached =
                    self.attached.ok_or(unexpected("an attachment without an instance"))?;
                if self.asks_for_exclusive() && attached.exclusive.is_none() {
                    return Err(unexpected("an attachment without the exclusive access asked for"));
                }
                self.ask_for_export(out)?;
            }
            _ => {
                let (size, flags) =
                    self.export.ok_or(unexpected("an export without size and flags"))?;
                return Ok(Some(self.agreement(size, flags)));
            }
        }
        Ok(None)
    }

    fn on_error(
        &mut self,
        asked: OptionCode,
        code: OptionReplyCode,
        message: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        match asked {
            OptionCode::EXTENDED_HEADERS => self.ask(&OptionRequest::StructuredReply, out),
            OptionCode::STRUCTURED_REPLY => self.ask_to_attach(out),
            OptionCode::SET_META_CONTEXT => {
                self.contexts.clear();
                self.ask_to_attach(out)
            }
            // Whatever is wrong with the export is said when it is asked for.
            OptionCode::WEIR_ATTACH
                if !matches!(
                    code,
                    OptionReplyCode::ERR_POLICY | OptionReplyCode::ERR_WEIR_TAKEN
                ) && !self.asks_for_exclusive() =>
            {
                self.attached = None;
                self.ask_for_export(out)
            }
            OptionCode::GO
                if code == OptionReplyCode::ERR_UNSUP && self.style != ReplyStyle::Extended =>
            {
                self.ask_by_name_only(out)
            }
            _ => Err(ProtocolError::Refused {
                option: asked.0,
                reply: code.0,
                message: message.to_owned(),
            }),
        }
    }

    fn on_export_name(&mut self, input: &[u8]) -> Result<ClientProgress, ProtocolError> {
        let zeroes = if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES };
        let consumed = 10 + zeroes;
        let mut reader = Reader::new(input);
        let fields = (input.len() >= consumed).then(|| reader.u64().zip(reader.u16())).flatten();
        let Some((size, flags)) = fields else {
            let step = ClientStep::NeedMore(consumed - input.len());
            return Ok(ClientProgress { consumed: 0, step });
        };
        self.state = State::Over;
        let agreement = self.agreement(size, TransmissionFlags(flags));
        Ok(ClientProgress { consumed, step: ClientStep::Transmit(agreement) })
    }

    fn agreement(&self, size: u64, flags: TransmissionFlags) -> Agreement {
        Agreement {
            session: Session { style: self.style, flags, contexts: self.contexts.clone() },
            size,
            block_sizes: self.block_sizes,
            attached: self.attached,
        }
    }
}

/// Sizes that keep the protocol's own rules: powers of two in order, and a payload of at least one preferred block.
fn checked_sizes(sizes: BlockSizes) -> Result<BlockSizes, ProtocolError> {
    let BlockSizes { minimum, preferred, payload_max } = sizes;
    let sound = minimum.is_power_of_two()
        && minimum <= 1 << 16
        && preferred.is_power_of_two()
        && preferred >= minimum.max(512)
        && payload_max >= minimum;
    sound.then_some(sizes).ok_or(unexpected("block sizes that contradict each other"))
}
