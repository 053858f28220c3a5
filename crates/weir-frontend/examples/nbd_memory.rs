//! Serves a device in memory over NBD: `cargo run --release -p weir-frontend --example nbd_memory -- SOCKET SIZE_MIB`.
//! With `tcp:ADDRESS` in place of SOCKET it listens on TCP. Ends on SIGTERM or SIGINT.

use std::error::Error;
use std::rc::Rc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use weir_device::{Address, MemoryDevice, SourceId, VolumeId};
use weir_frontend::nbd::{self, ConnectionOptions, Export, Exports, ListenerOptions};
use weir_net::HostNetwork;

struct OneDevice(Rc<MemoryDevice>);

impl Exports for OneDevice {
    type Device = MemoryDevice;

    fn find(&self, name: &str) -> Option<Export<MemoryDevice>> {
        matches!(name, "" | "memory" | "read-only").then(|| Export {
            name: if name.is_empty() { "memory" } else { name }.to_owned(),
            description: "bytes in memory".to_owned(),
            device: Rc::clone(&self.0),
            volume: VolumeId([0; 16]),
            read_only: name == "read-only",
            history: None,
        })
    }

    fn list(&self) -> Vec<String> {
        vec!["memory".to_owned(), "read-only".to_owned()]
    }
}

async fn serve(socket: &str, size: u64) -> Result<(), Box<dyn Error>> {
    let exports = Rc::new(OneDevice(Rc::new(MemoryDevice::new(size))));
    let options = ListenerOptions::new(ConnectionOptions::new(SourceId(0), socket));
    let at = match socket.strip_prefix("tcp:") {
        Some(address) => Address::Tcp(address.to_owned()),
        None => Address::Unix(socket.into()),
    };
    let server = nbd::serve(&HostNetwork, &at, exports, options).await?;
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.stop().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, size_mib] = arguments.as_slice() else {
        return Err("usage: nbd_memory SOCKET|tcp:ADDRESS SIZE_MIB".into());
    };
    let size = size_mib.parse::<u64>()?.checked_mul(1 << 20).ok_or("the size is too large")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(socket, size))
}
