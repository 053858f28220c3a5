//! A client of NBD for copies that no program does for us: between an export and a stream.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_device::{ByteStream, Network};
use weir_nbd::{ClientWish, Command, Cookie, ReplyStep, ReplyStyle, Requests};
use weir_net::HostNetwork;
use weir_remote::{Greeted, RemoteUrl, shake_hands};

use super::qemu::READING_FAILED;
use crate::terminal::failure::Failure;

/// Bytes that are received at a time.
const RECEIVED_BYTES: usize = 256 << 10;

/// A connection to one export.
pub(super) struct Connection {
    stream: Box<dyn ByteStream>,
    uri: String,
    received: Vec<u8>,
    requests: Requests,
    /// Reads in flight.
    buffers: BTreeMap<Cookie, Vec<u8>>,
    /// Size of the export in bytes.
    pub(super) size: u64,
}

/// A request that was answered: what it was, and the bytes of a read.
pub(super) struct Answered {
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

impl Connection {
    /// Connects to an export.
    pub(super) async fn open(uri: &str) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{uri}: {error}"));
        let url = RemoteUrl::parse(uri).map_err(|error| Failure::new(error.to_string()))?;
        let security = url.security.with(None).map_err(|error| failed(&error))?;
        let connected = HostNetwork.connect(&url.address).await;
        let wish = ClientWish {
            export: url.export.clone(),
            tls: false,
            attachment: None,
            style_max: ReplyStyle::Structured,
            contexts: Vec::new(),
        };
        let stream = connected.map_err(|error| failed(&error))?;
        let greeted = shake_hands(stream, wish, security).await;
        let Greeted { stream, agreement, received, .. } =
            greeted.map_err(|error| failed(&error))?;
        Ok(Self {
            stream,
            uri: uri.to_owned(),
            received,
            requests: Requests::new(agreement.session),
            buffers: BTreeMap::new(),
            size: agreement.size,
        })
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::new(format!("{}: {error}", self.uri))
    }

    /// Requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.requests.len()
    }

    async fn send(&mut self, command: Command, payload: &[u8]) -> Result<Cookie, Failure> {
        let mut out = Vec::new();
        let sent = self.requests.request(command, &mut out);
        let cookie = sent.map_err(|error| self.failed(&error))?;
        let written = match self.stream.write_all(&out).await {
            Ok(()) => self.stream.write_all(payload).await,
            failed => failed,
        };
        written.map_err(|error| self.failed(&error)).map(|()| cookie)
    }

    /// Asks for bytes.
    pub(super) async fn read(&mut self, offset: u64, length: u32) -> Result<(), Failure> {
        let command = Command::Read { offset, length, unbroken: false };
        let cookie = self.send(command, &[]).await?;
        self.buffers.insert(cookie, vec![0; usize::try_from(length).unwrap_or(0)]);
        Ok(())
    }

    /// Asks for bytes to be written.
    pub(super) async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let length = u32::try_from(data.len()).map_err(|error| self.failed(&error))?;
        self.send(Command::Write { offset, length, fua: false }, data).await.map(drop)
    }

    /// Asks for zeroes.
    pub(super) async fn zero(&mut self, offset: u64, length: u64) -> Result<(), Failure> {
        let command =
            Command::WriteZeroes { offset, length, fua: false, no_hole: false, fast: false };
        self.send(command, &[]).await.map(drop)
    }

    /// Takes so many bytes that were received.
    async fn take(&mut self, cookie: Cookie, at: u32, length: u32) -> Result<(), Failure> {
        let [at, length] = [at, length].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        while self.received.len() < length {
            self.receive().await?;
        }
        let buffer =
            self.buffers.get_mut(&cookie).and_then(|buffer| buffer.get_mut(at..at + length));
        if let Some(buffer) = buffer {
            buffer.copy_from_slice(&self.received[..length]);
        }
        self.received.drain(..length);
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), Failure> {
        self.received.reserve(RECEIVED_BYTES);
        match self.stream.read_buf(&mut self.received).await {
            Ok(0) => Err(self.failed(&"the server closed the connection")),
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The next request that is answered.
    pub(super) async fn next(&mut self) -> Result<Answered, Failure> {
        loop {
            let advanced = self.requests.advance(&self.received);
            let progress = advanced.map_err(|error| self.failed(&error))?;
            self.received.drain(..progress.consumed);
            match progress.step {
                ReplyStep::NeedMore(_) => self.receive().await?,
                ReplyStep::Data { cookie, at, length } => self.take(cookie, at, length).await?,
                // The buffer was zeroes.
                ReplyStep::Zeroes { .. } | ReplyStep::Status { .. } | ReplyStep::Again => {}
                ReplyStep::Done { cookie, command, result } => {
                    let (Command::Read { offset, .. }
                    | Command::Write { offset, .. }
                    | Command::WriteZeroes { offset, .. }) = command
                    else {
                        continue;
                    };
                    if let Err(failure) = result {
                        let (code, message) = (failure.code, failure.message);
                        let at = failure.offset.unwrap_or(offset);
                        let what = match command {
                            Command::Read { .. } => READING_FAILED,
                            _ => "error while writing",
                        };
                        let why = format!("{what} at byte {at}: {code:?} {message}");
                        return Err(self.failed(&why));
                    }
                    let data = self.buffers.remove(&cookie).unwrap_or_default();
                    return Ok(Answered { offset, data });
                }
            }
        }
    }
}
