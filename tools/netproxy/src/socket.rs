//! TCP and unix sockets as one type.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Whether an address is the path of a unix socket.
fn is_path(address: &str) -> bool {
    address.contains('/')
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    pub(crate) fn bind(address: &str) -> Result<Self> {
        let failed = || format!("listening at {address}");
        if is_path(address) {
            let listener = UnixListener::bind(address).with_context(failed)?;
            return Ok(Self::Unix(listener, PathBuf::from(address)));
        }
        TcpListener::bind(address).map(Self::Tcp).with_context(failed)
    }

    pub(crate) fn address(&self) -> Result<String> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.to_string(),
            Self::Unix(_, path) => path.display().to_string(),
        })
    }

    pub(crate) fn accept(&self) -> Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => Socket::tcp(listener.accept()?.0)?,
            Self::Unix(listener, _) => Socket::Unix(listener.accept()?.0),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Socket {
    fn tcp(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(crate) fn connect(address: &str) -> Result<Self> {
        match is_path(address) {
            true => Ok(Self::Unix(UnixStream::connect(address)?)),
            false => Self::tcp(TcpStream::connect(address)?),
        }
    }

    /// The same socket once more.
    pub(crate) fn another(&self) -> Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    pub(crate) fn shut(&self, how: Shutdown) {
        // It may be over already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}
