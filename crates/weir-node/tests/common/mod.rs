//! A client of NBD, and what drives a node that it talks to.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A client of NBD.
pub(crate) struct Client(UnixStream);

impl Client {
    /// A client of an export, after its handshake.
    pub(crate) fn connect(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the socket of the process");
        flags_of(&mut stream, export).expect("the export is offered");
        Self(stream)
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, (command, offset, length): (u16, u64, u32), data: &[u8]) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(command.to_be_bytes());
        request.extend(7_u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(data);
        self.0.write_all(&request).expect("sent");
    }

    /// Sends a request, and waits for its simple reply.
    pub(crate) fn ask(&mut self, request: (u16, u64, u32), data: &[u8]) {
        self.send(request, data);
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("answered");
        assert_eq!(reply[4..8], [0; 4], "no error");
    }

    pub(crate) fn read(&mut self, length: u32) -> Vec<u8> {
        self.ask((0, 0, length), &[]);
        let mut data = vec![0; length as usize];
        self.0.read_exact(&mut data).expect("the data follow");
        data
    }
}

/// The flags of an export as a client finds them in its handshake; nothing if it does not get the export.
pub(crate) fn flags_of(stream: &mut (impl Read + Write), export: &str) -> Option<u16> {
    stream.read_exact(&mut [0; 18]).expect("greeted");
    let mut ask = 3_u32.to_be_bytes().to_vec();
    ask.extend(b"IHAVEOPT");
    ask.extend(1_u32.to_be_bytes());
    ask.extend(u32::try_from(export.len()).expect("short").to_be_bytes());
    ask.extend(export.as_bytes());
    stream.write_all(&ask).expect("sent");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).ok()?;
    Some(u16::from_be_bytes([answer[8], answer[9]]))
}

/// Runs a test in real time.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(test);
}
