//! Messages to systemd about a service: one datagram each to the socket in `NOTIFY_SOCKET`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells systemd, if it listens.
pub(crate) fn notify(message: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(place.as_bytes(), message) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

fn send(place: &[u8], message: &str) -> std::io::Result<()> {
    let address = match place.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(place))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_datagram_at_a_path_or_an_abstract_name() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("@weir-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        for (socket, place) in
            [(&by_path, path.as_os_str().as_bytes()), (&by_name, name.as_bytes())]
        {
            send(place, "READY=1\n").unwrap();
            let mut buf = [0; 100];
            let len = socket.recv(&mut buf).unwrap();
            assert_eq!(&buf[..len], b"READY=1\n");
        }
    }
}
