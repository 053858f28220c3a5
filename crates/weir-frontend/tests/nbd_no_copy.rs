//! What a cache has goes from its memory to the socket: the bytes that a connection hands to its stream are counted by
//! where they lie.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_device::{
    Body, Device, DeviceError, DeviceInfo, IoHeader, Operation, Reply, SourceId, VolumeId,
};
use weir_frontend::nbd::{ConnectionOptions, Export, Exports, serve_connection};
use weir_nbd::{
    CommandCode, CommandFlags, Cookie, OptionRequest, ReplyStyle, RequestHeader, encode_option,
};

const LEN: u32 = 4096;
const REQUESTS: u64 = 100;

/// Answers reads from the memory of a cache.
struct Cached(Bytes);

impl Device for Cached {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::local(self.0.len() as u64)
    }
    async fn call(&self, _: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        let (offset, len) = operation.span();
        let at = |n: u64| usize::try_from(n).expect("small");
        let slice = self.0.slice(at(offset)..at(offset + len));
        Ok(Reply::new(Body::Data(slice.into())))
    }
}

impl Exports for Cached {
    type Device = Self;
    fn find(&self, _name: &str) -> Option<Export<Self>> {
        Some(Export {
            name: "cached".to_owned(),
            description: String::new(),
            device: Rc::new(Self(self.0.clone())),
            volume: VolumeId([0; 16]),
            read_only: false,
            history: None,
        })
    }
    fn list(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A client that says all it has to say, and a socket that counts what is handed to it.
struct Script {
    says: Vec<u8>,
    cache: Bytes,
    from_cache: Rc<Cell<u64>>,
    from_elsewhere: Rc<Cell<u64>>,
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = self.says.len().min(into.remaining());
        into.put_slice(&self.says[..bytes]);
        self.says.drain(..bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let cache = self.cache.as_ptr_range();
        for slice in slices {
            let lies = if cache.contains(&slice.as_ptr()) {
                &self.from_cache
            } else {
                &self.from_elsewhere
            };
            lies.set(lies.get() + slice.len() as u64);
        }
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn what_a_cache_has_reaches_the_socket_without_a_copy() {
    let mut says = vec![0, 0, 0, 3];
    encode_option(&OptionRequest::StructuredReply, &mut says).expect("short");
    encode_option(&OptionRequest::Go { name: "", facts: Vec::new() }, &mut says).expect("short");
    for index in 0..REQUESTS {
        let (flags, command) = (CommandFlags::default(), CommandCode::READ);
        let (cookie, offset, length) = (Cookie(index), index * u64::from(LEN), LEN.into());
        let header = RequestHeader { flags, command, cookie, offset, length };
        header.encode(ReplyStyle::Structured, &mut says).expect("short");
    }
    let cache = Bytes::from(vec![7; usize::try_from(REQUESTS * u64::from(LEN)).expect("small")]);
    let (from_cache, from_elsewhere) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let stream = Script {
        says,
        cache: cache.clone(),
        from_cache: Rc::clone(&from_cache),
        from_elsewhere: Rc::clone(&from_elsewhere),
    };
    let options = ConnectionOptions::new(SourceId(0), "script");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new()
        .block_on(
            &runtime,
            serve_connection(stream, Rc::new(Cached(cache)), options, std::future::pending()),
        )
        .expect("the script ends between two requests");
    assert_eq!(from_cache.get(), REQUESTS * u64::from(LEN), "every byte of the data");
    // The handshake, and the head of each reply: 20 bytes, and 8 of the offset.
    assert!(from_elsewhere.get() < 1000 + 28 * REQUESTS, "{}", from_elsewhere.get());
}
