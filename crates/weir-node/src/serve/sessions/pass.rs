//! Sessions from one process to the program that it executes: their sockets wait in a pair of datagram sockets, with a
//! file in memory before them that holds the records.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use weir_device::DetachedStream;
use weir_net::connected;

use super::format;
use super::kept::{KeptSession, SESSIONS_MAX};

/// Descriptors in one message; the kernel takes 253. All messages together fit a queue of ten.
const MESSAGE_DESCRIPTORS: usize = 250;

const _: () = assert!(SESSIONS_MAX.div_ceil(MESSAGE_DESCRIPTORS) < 10, "they fit the queue");

/// A connection that this process must go on with, and the socket of which the next one has the other end.
#[derive(Debug)]
pub struct Relayed {
    /// The client.
    pub client: Box<dyn DetachedStream>,
    /// The next process.
    pub server: OwnedFd,
}

/// Sessions that are ready to be handed to the next program.
#[derive(Debug)]
pub struct Passed {
    /// What the next program takes them from.
    pub channel: OwnedFd,
    /// How many they are.
    pub count: usize,
    /// What this process has to pass on meanwhile.
    pub relayed: Vec<Relayed>,
}

impl Passed {
    /// Makes sessions ready. What cannot be handed over of them ends, and its client connects anew.
    ///
    /// # Errors
    /// What the system does not give; all of them have ended then.
    pub fn of(sessions: Vec<KeptSession>) -> io::Result<Self> {
        let (mut records, mut sockets, mut relayed) = (Vec::new(), Vec::new(), Vec::new());
        for KeptSession { stream, record } in sessions {
            let encoded = match format::encode(&record) {
                _ if sockets.len() == SESSIONS_MAX => {
                    Err(format!("there are {SESSIONS_MAX} others"))
                }
                None => Err("its certificates, or something else of it, are too long".to_owned()),
                Some(bytes) if bytes.len() > format::BYTES_MAX - records.len() => {
                    Err("all are too long together".to_owned())
                }
                Some(bytes) => Ok(bytes),
            };
            let taken = encoded.and_then(|bytes| {
                let (socket, one) = socket_of(stream).map_err(|error| error.to_string())?;
                Ok((bytes, socket, one))
            });
            match taken {
                Ok((bytes, socket, one)) => {
                    records.extend(bytes);
                    sockets.push(socket);
                    relayed.extend(one);
                }
                Err(reason) => {
                    let client = record.state.client;
                    tracing::warn!(
                        client,
                        reason,
                        "the session of a client cannot be handed over: it ends"
                    );
                }
            }
        }
        let channel = send(&format::file(sockets.len(), &records), &sockets)?;
        Ok(Self { channel, count: sockets.len(), relayed })
    }
}

/// What the next process gets of a connection, and what this one passes on to it where that is not the client's own.
fn socket_of(stream: Box<dyn DetachedStream>) -> io::Result<(OwnedFd, Option<Relayed>)> {
    match stream.into_socket() {
        Ok(socket) => Ok((socket, None)),
        Err(client) => {
            let (near, far) = UnixStream::pair()?;
            Ok((far.into(), Some(Relayed { client, server: near.into() })))
        }
    }
}

fn send(records: &[u8], sockets: &[OwnedFd]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("weir-sessions", MemfdFlags::CLOEXEC)?);
    file.write_all(records)?;
    file.rewind()?;
    let (channel, sender) = UnixDatagram::pair()?;
    sender.set_nonblocking(true)?;
    send_descriptors(&sender, &[file.as_fd()])?;
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    for some in sockets.chunks(MESSAGE_DESCRIPTORS) {
        send_descriptors(&sender, some)?;
    }
    Ok(channel.into())
}

fn send_descriptors(sender: &UnixDatagram, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for a message"));
    }
    sendmsg(sender, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_descriptors(channel: &UnixDatagram) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let messages = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(messages.flatten().collect())
}

/// Takes the sessions that the process before this one handed over.
pub(crate) fn take(channel: &UnixDatagram) -> io::Result<Vec<KeptSession>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let first = match receive_descriptors(channel) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
        received => received?,
    };
    let Some(file) = first.into_iter().next_back() else {
        return Err(wrong("there are no records of sessions"));
    };
    let mut bytes = Vec::new();
    File::from(file).take(2 * format::BYTES_MAX as u64).read_to_end(&mut bytes)?;
    let records = format::decode(&bytes).map_err(wrong)?;
    let mut sockets = Vec::new();
    while sockets.len() < records.len() {
        let some = receive_descriptors(channel)?;
        if some.is_empty() {
            return Err(wrong("there are fewer sockets than sessions"));
        }
        sockets.extend(some);
    }
    let sessions = sockets.into_iter().zip(records);
    Ok(sessions.map(|(socket, record)| KeptSession { stream: connected(socket), record }).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use weir_device::{Peer, VolumeId};
    use weir_frontend::nbd::KeptState;
    use weir_nbd::{ReplyStyle, Session, TransmissionFlags};

    use super::super::kept::SessionRecord;
    use super::*;

    fn session(number: u64) -> (KeptSession, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let (style, flags) = (ReplyStyle::Structured, TransmissionFlags(1));
        let state = KeptState {
            export: "disk".to_owned(),
            session: Session { style, flags, contexts: Vec::new() },
            size: number,
            client: String::new(),
            peer: Peer::Unknown,
            certificate: None,
            unread: vec![1; 100_000],
        };
        let record = SessionRecord { volume: VolumeId([1; 16]), epoch: 1, state };
        (KeptSession { stream: connected(near.into()), record }, far)
    }

    #[test]
    fn sockets_arrive_with_the_records_that_are_theirs() {
        let (sessions, clients): (Vec<_>, Vec<_>) = (0..300).map(session).unzip();
        let passed = Passed::of(sessions).unwrap();
        assert_eq!((passed.count, passed.relayed.len()), (300, 0));
        let taken = take(&UnixDatagram::from(passed.channel)).unwrap();
        assert_eq!(taken.len(), 300);
        for (number, (KeptSession { stream, record }, mut client)) in
            taken.into_iter().zip(clients).enumerate()
        {
            assert_eq!(record.state.size, number as u64);
            let mut socket = UnixStream::from(stream.into_socket().unwrap());
            client.write_all(&number.to_le_bytes()).unwrap();
            let mut bytes = [0; 8];
            socket.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, number.to_le_bytes());
        }
    }

    #[test]
    fn a_session_that_cannot_be_handed_over_ends_alone() {
        let (mut sessions, clients): (Vec<_>, Vec<_>) = (0..3).map(session).unzip();
        sessions[1].record.state.export = "x".repeat(1 << 16);
        let passed = Passed::of(sessions).unwrap();
        assert_eq!(passed.count, 2);
        let taken = take(&UnixDatagram::from(passed.channel)).unwrap();
        let sizes: Vec<u64> = taken.iter().map(|one| one.record.state.size).collect();
        assert_eq!(sizes, [0, 2]);
        let mut ended = &clients[1];
        assert_eq!(ended.read(&mut [0; 8]).unwrap(), 0, "it has ended");
    }

    #[test]
    fn a_channel_with_nothing_in_it_has_no_sessions() {
        let (channel, _sender) = UnixDatagram::pair().unwrap();
        let error = take(&channel).unwrap_err();
        assert_eq!(error.to_string(), "there are no records of sessions");
    }
}
