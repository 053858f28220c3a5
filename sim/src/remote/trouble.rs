//! What happens to the network and to the server while a client works.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use weir_device::Address;
use weir_net::sim::Side;

use super::server::AT;
use super::{Kind, World};

/// Longest time that a server is away in most cases.
const AWAY_MS_MAX: u64 = 3000;

impl World {
    fn any_connection(&self) -> Option<weir_net::sim::ConnectionId> {
        let all = self.network.connections();
        let index = usize::try_from(self.below(all.len().max(1) as u64)).expect("few");
        all.get(index).copied()
    }

    /// The server ends, and comes back after a while, with its memory or without it.
    async fn restart(&self, loses_power: bool, away_ms: u64) {
        if !self.server.is_up() {
            return;
        }
        self.note(
            if loses_power { "server loses its power" } else { "server killed" },
            [away_ms, 0, 0],
        );
        self.server.kill().await;
        self.cut();
        if loses_power {
            self.medium.lose_power();
            self.oracle.borrow_mut().power_lost(self.profile.kind != Kind::Plain);
        }
        sleep(Duration::from_millis(away_ms)).await;
        self.server.begin().await;
    }

    async fn one_trouble(self: &Rc<Self>) {
        let connection = self.any_connection();
        if self.profile.is_exclusive && self.percent(12) {
            return self.intrude().await;
        }
        match (self.below(100), connection) {
            (0..15, _) => {
                self.note("connections cut", [0; 3]);
                self.cut();
            }
            (15..30, Some(connection)) => {
                let to = if self.percent(50) { Side::Client } else { Side::Server };
                self.note("connection lost in a message", [0; 3]);
                let bytes = usize::try_from(self.below(4000)).expect("few");
                self.network.reset_after(connection, to, bytes);
            }
            (30..40, Some(connection)) => {
                self.note("connection falls silent", [0; 3]);
                self.network.silence(connection);
            }
            // What is held back on a connection that is gone would reach the server behind newer changes: a server that
            // is not told which connections are older must not be given any, and that is what the user vouches for.
            (40..50, Some(connection)) if self.profile.kind != Kind::Trusted => {
                let ms = self.below(2000);
                self.note("connection stalls", [ms, 0, 0]);
                self.network.stall(connection, Duration::from_millis(ms));
            }
            (50..70, _) => {
                let ms = self.below(AWAY_MS_MAX);
                self.restart(false, ms).await;
            }
            (70..90, _) => {
                let ms = self.below(AWAY_MS_MAX);
                self.restart(true, ms).await;
            }
            (90..93, _) => {
                self.note("server away for long", [0; 3]);
                let (loses_power, ms) = (self.percent(50), 15_000 + self.below(20_000));
                self.restart(loses_power, ms).await;
            }
            (93..96, _) => {
                let at = Address::Tcp(AT.to_owned());
                self.note("connections refused", [0; 3]);
                self.network.refuse(&at, true);
                let ms = self.below(AWAY_MS_MAX);
                sleep(Duration::from_millis(ms)).await;
                self.network.refuse(&at, false);
            }
            _ => {
                self.note("server slow", [0; 3]);
                self.medium.answer_ms_max.set(200);
                sleep(Duration::from_millis(self.below(2000))).await;
                self.medium.answer_ms_max.set(2);
            }
        }
    }
}

/// Makes trouble until it is aborted.
pub(super) async fn makes(world: Rc<World>) {
    loop {
        // An operation takes some milliseconds.
        let mean_ms = 10_000 / world.profile.troubles;
        let ms = 1 + world.below(2 * mean_ms);
        sleep(Duration::from_millis(ms)).await;
        world.one_trouble().await;
    }
}
