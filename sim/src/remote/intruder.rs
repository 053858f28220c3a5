//! Another client, which wants to write while the first one has exclusive access: it gets in only where the first one
//! is not connected.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};
use weir_device::{Address, Device, DeviceExt, FlushScope, SharedBuf};
use weir_net::sim::Side;
use weir_remote::RemoteVolume;

use super::client::arguments;
use super::oracle::{CELL_BYTES, CELLS};
use super::server::AT;
use super::{DEADLINE, World};

/// Cells that it writes at most.
const CELLS_MAX: u64 = 60;

/// Writes of one that may write, at most.
const WRITES_MAX: u64 = 4;

/// Bytes that a server sends before requests begin, about.
const HANDSHAKE_BYTES: u64 = 400;

impl World {
    /// The first client is kept away for a while, or not, and another one tries to write.
    pub(super) async fn intrude(self: &Rc<Self>) {
        let at = Address::Tcp(AT.to_owned());
        if self.percent(70) {
            self.network.refuse(&at, true);
            self.cut();
            sleep(Duration::from_millis(self.below(4000))).await;
            self.network.refuse(&at, false);
        }
        self.intrusions.set(self.intrusions.get() + 1);
        self.note("another client tries to write", [0; 3]);
        let tasks = Rc::new(LocalSet::new());
        let world = Rc::clone(self);
        let intruding = async {
            let mut args = arguments(&world);
            args.exclusive = world.percent(50);
            if let Ok(volume) = RemoteVolume::open(world.env(&tasks), args).await {
                world.writes_as_another(&volume).await;
            }
        };
        // What it has under way is gone with it, as with a client that is killed.
        let _ = tasks.run_until(timeout(DEADLINE, intruding)).await;
        if self.percent(50) {
            self.lose_next_handshake().await;
        }
    }

    /// The next connection is lost while it is set up: what the server has decided by then may not be heard.
    async fn lose_next_handshake(&self) {
        let before = self.network.connections();
        for _ in 0..2000 {
            sleep(Duration::from_millis(1)).await;
            let all = self.network.connections();
            if let Some(connection) = all.into_iter().find(|each| !before.contains(each)) {
                self.note("connection lost while it is set up", [0; 3]);
                let bytes = usize::try_from(self.below(HANDSHAKE_BYTES)).expect("few");
                return self.network.reset_after(connection, Side::Client, bytes);
            }
        }
    }

    async fn writes_as_another(&self, volume: &RemoteVolume) {
        if volume.info().is_read_only {
            self.note("another client may not write", [0; 3]);
            return;
        }
        for _ in 0..=self.below(WRITES_MAX) {
            self.write_as_another(volume).await;
            if self.percent(50) {
                sleep(Duration::from_millis(self.below(3000))).await;
            }
        }
        if self.percent(70) {
            // The server may be gone.
            let _ = volume.close(Duration::ZERO).await;
        }
    }

    async fn write_as_another(&self, volume: &RemoteVolume) {
        let length = 1 + self.below(CELLS_MAX);
        let start = self.below(CELLS - length);
        let to_usize = |cells: u64| usize::try_from(cells).expect("few");
        let cells = to_usize(start)..to_usize(start + length);
        let number = self.oracle.borrow_mut().intrude(cells.clone());
        let data = SharedBuf::copy_of(&number.to_le_bytes().repeat(cells.len()));
        if volume.write(start * CELL_BYTES, data).await.is_ok() {
            self.note("another client writes", [start, length, number]);
            self.written_by_another.set(self.written_by_another.get() + 1);
            self.oracle.borrow_mut().intruded(cells.clone(), number, false);
            if volume.flush(FlushScope::Local).await.is_ok() {
                self.oracle.borrow_mut().intruded(cells, number, true);
            }
        }
    }
}
