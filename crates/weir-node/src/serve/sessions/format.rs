//! The records of sessions, as one process writes them for the next: `docs/formats/sessions.md`.

use std::net::IpAddr;

use crc_fast::{CrcAlgorithm, Digest};
use weir_device::{Peer, VolumeId};
use weir_frontend::nbd::KeptState;
use weir_nbd::{ChosenContext, ReplyStyle, Session, TransmissionFlags};
use weir_net::tls::{MinVersion, PeerCertificate};

use super::kept::{SESSIONS_MAX, SessionRecord};

const MAGIC: &[u8; 8] = b"WEIRSESS";

/// The only version that is read. The process before this one has asked for it: a program that takes another version is
/// given nothing.
const VERSION: u32 = 2;

const HEADER_BYTES: usize = 24;

/// Most bytes of all records.
pub(super) const BYTES_MAX: usize = 256 << 20;

/// Most certificates of a chain.
const CHAIN_MAX: usize = 16;

/// Least bytes that a context and a certificate take, to bound what is sized from a count.
const CONTEXT_BYTES_MIN: usize = 6;
const CERTIFICATE_BYTES_MIN: usize = 4;

/// Least bytes of a record.
const RECORD_BYTES_MIN: usize = 65;

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(body);
    u32::try_from(digest.finalize()).expect("a CRC of 32 bits")
}

/// The records of so many sessions, one after the other, as what holds them. No more than [`SESSIONS_MAX`], and
/// [`BYTES_MAX`] all together.
pub(super) fn file(count: usize, records: &[u8]) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).expect("within its bound").to_le_bytes();
    assert!(count <= SESSIONS_MAX && records.len() <= BYTES_MAX, "the caller keeps the bounds");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + records.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&number(count));
    bytes.extend_from_slice(&number(records.len()));
    let crc = checksum(&bytes, records);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(records);
    bytes
}

/// A record as bytes; `None` where something of it is longer than the format lets it be.
pub(super) fn encode(record: &SessionRecord) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let out = &mut bytes;
    let SessionRecord { volume, epoch, state } = record;
    let Session { style, flags, contexts } = &state.session;
    out.extend_from_slice(&volume.0);
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&state.size.to_le_bytes());
    out.extend_from_slice(&flags.0.to_le_bytes());
    out.push(match style {
        ReplyStyle::Simple => 0,
        ReplyStyle::Structured => 1,
        ReplyStyle::Extended => 2,
    });
    let (kind, number) = match &state.peer {
        Peer::Unknown => (0, 0),
        Peer::User(number) => (1, u128::from(*number)),
        Peer::Host(IpAddr::V4(address)) => (2, u128::from(u32::from(*address))),
        Peer::Host(IpAddr::V6(address)) => (3, u128::from(*address)),
    };
    out.push(kind);
    out.extend_from_slice(&number.to_le_bytes());
    put_text(&state.export, out)?;
    put_text(&state.client, out)?;
    out.extend_from_slice(&u16::try_from(contexts.len()).ok()?.to_le_bytes());
    for ChosenContext { id, name } in contexts {
        out.extend_from_slice(&id.to_le_bytes());
        put_text(name, out)?;
    }
    out.push(match state.certificate.as_ref().map(PeerCertificate::version) {
        None => 0,
        Some(MinVersion::Tls12) => 2,
        Some(MinVersion::Tls13) => 3,
    });
    let chain = state.certificate.as_ref().map_or(&[][..], PeerCertificate::chain);
    if chain.len() > CHAIN_MAX {
        return None;
    }
    out.extend_from_slice(&u16::try_from(chain.len()).ok()?.to_le_bytes());
    for certificate in chain {
        put_bytes(certificate, out)?;
    }
    put_bytes(&state.unread, out)?;
    Some(bytes)
}

fn put_text(text: &str, out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&u16::try_from(text.len()).ok()?.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Some(())
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend_from_slice(bytes);
    Some(())
}

/// What has not been read yet.
struct Rest<'a>(&'a [u8]);

/// What is wrong with records.
pub(super) type Wrong = &'static str;

const SHORT: Wrong = "the records of sessions are cut short";

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    fn length(&mut self) -> Result<usize, Wrong> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| SHORT)
    }

    fn count(&mut self) -> Result<usize, Wrong> {
        Ok(usize::from(u16::from_le_bytes(self.array()?)))
    }

    fn text(&mut self) -> Result<String, Wrong> {
        let length = self.count()?;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned).map_err(|_| "a name in the records of sessions is no text")
    }

    fn bytes(&mut self) -> Result<&'a [u8], Wrong> {
        let length = self.length()?;
        self.take(length)
    }

    /// That many things of so many bytes at least are there.
    fn check(&self, count: usize, bytes_min: usize) -> Result<(), Wrong> {
        if self.0.len() / bytes_min < count { Err(SHORT) } else { Ok(()) }
    }
}

/// The records that `bytes` hold.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<SessionRecord>, Wrong> {
    let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(SHORT)?;
    let mut rest = Rest(header);
    if rest.take(MAGIC.len())? != MAGIC {
        return Err("these are no records of sessions");
    }
    if u32::from_le_bytes(rest.array()?) != VERSION {
        return Err("the records of sessions are of another version");
    }
    let (count, length) = (rest.length()?, rest.length()?);
    let crc = u32::from_le_bytes(rest.array()?);
    if length != body.len() {
        return Err(SHORT);
    }
    // A fuzzer would never get past it.
    if crc != checksum(&header[..HEADER_BYTES - 4], body) && !cfg!(fuzzing) {
        return Err("the checksum of the records of sessions is wrong");
    }
    let mut rest = Rest(body);
    rest.check(count, RECORD_BYTES_MIN)?;
    if count > SESSIONS_MAX {
        return Err("there are too many records of sessions");
    }
    let records = (0..count).map(|_| decode_one(&mut rest)).collect::<Result<Vec<_>, _>>()?;
    match rest.0.is_empty() {
        true => Ok(records),
        false => Err("there is more than the records of sessions"),
    }
}

fn decode_one(rest: &mut Rest<'_>) -> Result<SessionRecord, Wrong> {
    let volume = VolumeId(rest.array()?);
    let epoch = u64::from_le_bytes(rest.array()?);
    let size = u64::from_le_bytes(rest.array()?);
    let flags = TransmissionFlags(u16::from_le_bytes(rest.array()?));
    let [style, kind] = rest.array()?;
    let style = match style {
        0 => ReplyStyle::Simple,
        1 => ReplyStyle::Structured,
        2 => ReplyStyle::Extended,
        _ => return Err("a session has headers of an unknown kind"),
    };
    let number = u128::from_le_bytes(rest.array()?);
    let peer = peer_of(kind, number)?;
    let (export, client) = (rest.text()?, rest.text()?);
    let count = rest.count()?;
    rest.check(count, CONTEXT_BYTES_MIN)?;
    let context = |rest: &mut Rest<'_>| {
        let id = u32::from_le_bytes(rest.array()?);
        Ok(ChosenContext { id, name: rest.text()? })
    };
    let contexts = (0..count).map(|_| context(rest)).collect::<Result<Vec<_>, Wrong>>()?;
    let [tls] = rest.array()?;
    let version = match tls {
        0 => None,
        2 => Some(MinVersion::Tls12),
        3 => Some(MinVersion::Tls13),
        _ => return Err("a session is under an unknown version of TLS"),
    };
    let count = rest.count()?;
    rest.check(count, CERTIFICATE_BYTES_MIN)?;
    if count > CHAIN_MAX {
        return Err("a session has too many certificates");
    }
    let chain = (0..count).map(|_| rest.bytes()).collect::<Result<Vec<_>, _>>()?;
    let certificate = certificate_of(&chain, version)?;
    let unread = rest.bytes()?.to_vec();
    let session = Session { style, flags, contexts };
    let state = KeptState { export, session, size, client, peer, certificate, unread };
    Ok(SessionRecord { volume, epoch, state })
}

fn certificate_of(
    chain: &[&[u8]],
    version: Option<MinVersion>,
) -> Result<Option<PeerCertificate>, Wrong> {
    match (version, chain.is_empty()) {
        (None, true) => Ok(None),
        (Some(version), false) => {
            let certificate = PeerCertificate::of_der(chain, version);
            certificate.map(Some).map_err(|_| "the certificate of a session is none")
        }
        _ => Err("a session is under TLS without a certificate, or has one in the clear"),
    }
}

fn peer_of(kind: u8, number: u128) -> Result<Peer, Wrong> {
    const WRONG: Wrong = "the peer of a session is none";
    let small = || u32::try_from(number).map_err(|_| WRONG);
    Ok(match kind {
        0 if number == 0 => Peer::Unknown,
        1 => Peer::User(small()?),
        2 => Peer::Host(IpAddr::V4(small()?.into())),
        3 => Peer::Host(IpAddr::V6(number.into())),
        _ => return Err(WRONG),
    })
}

/// All of some records, none of which is too long.
fn all(records: &[SessionRecord]) -> Vec<u8> {
    let each = records.iter().map(|record| encode(record).expect("no record is too long"));
    file(records.len(), &each.collect::<Vec<_>>().concat())
}

/// What a fuzzer gives it: bytes that are no records are refused, and what is read is written as it was.
///
/// # Panics
/// If it is not.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(records) = decode(bytes) {
        let written = all(&records);
        let but_checksum = |bytes: &[u8]| [&bytes[..20], &bytes[24..]].concat();
        assert_eq!(but_checksum(&written), but_checksum(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<SessionRecord> {
        let state = |export: &str, peer| KeptState {
            export: export.to_owned(),
            session: Session {
                style: ReplyStyle::Extended,
                flags: TransmissionFlags(0x1ed),
                contexts: vec![ChosenContext { id: 1, name: "base:allocation".to_owned() }],
            },
            size: 1 << 30,
            client: "127.0.0.1:4711".to_owned(),
            peer,
            certificate: None,
            unread: vec![1, 2, 3],
        };
        let record =
            |number, state| SessionRecord { volume: VolumeId([number; 16]), epoch: 7, state };
        vec![
            record(1, state("one", Peer::User(1000))),
            record(2, state("two", Peer::host(IpAddr::from([127, 0, 0, 1])))),
            record(3, state("three", Peer::Unknown)),
        ]
    }

    fn shown(records: &[SessionRecord]) -> String {
        format!("{records:?}")
    }

    #[test]
    fn records_are_read_as_they_were_written_and_nothing_less_is_read() {
        let bytes = all(&records());
        assert_eq!(shown(&decode(&bytes).expect("whole")), shown(&records()));
        for length in 0..bytes.len() {
            decode(&bytes[..length]).expect_err("cut short");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            decode(&damaged).expect_err("damaged");
        }
        assert_eq!(decode(&all(&[])).expect("none").len(), 0);
    }

    #[test]
    fn a_session_is_under_tls_with_a_certificate_or_has_neither() {
        assert!(matches!(certificate_of(&[], None), Ok(None)));
        certificate_of(&[], Some(MinVersion::Tls13)).expect_err("nobody has shown anything");
        certificate_of(&[b"of whom"], None).expect_err("in the clear");
        let mut bytes = all(&records()[..1]);
        let at = bytes.len() - 10;
        assert_eq!(bytes[at], 0, "in the clear");
        bytes[at] = 1;
        let crc = checksum(&bytes[..HEADER_BYTES - 4], &bytes[HEADER_BYTES..]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&bytes).unwrap_err(), "a session is under an unknown version of TLS");
    }

    #[test]
    fn the_bytes_of_a_record_stay_as_they_are() {
        let bytes = all(&records()[..1]);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, FROZEN);
    }

    const FROZEN: &str = "574549525345535302000000010000006a0000004493927301010101010101010101010101010101070000000000\
        00000000004000000000ed010201e803000000000000000000000000000003006f6e650e003132372e302e302e313a34373131010001\
        0000000f00626173653a616c6c6f636174696f6e00000003000000010203";
}
