//! Bad days of connections: what networks, clients that misbehave and operators do to them.

use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use weir_device::ByteStream;
use weir_nbd::{
    ClientHandshake, ClientStep, ClientWish, CommandCode, CommandFlags, Cookie, ReplyStyle,
    RequestHeader,
};
use weir_net::sim::Side;

use super::Nbd;
use super::link::Link;
use super::server::EXPORT;
use crate::client::Life;
use crate::dice::Dice;

/// Time in which a server must hang up on one that sends garbage; more than its patience with silence.
const HANGS_UP: Duration = Duration::from_secs(200);

/// What happens in one life at most: a life that waits for a store that is away lasts long.
const TROUBLES_MAX: u64 = 40;

/// Disturbs the connections of a life until it ends.
pub(crate) async fn run(life: Rc<Life>, mut dice: Dice) {
    let Some(nbd) = life.nbd() else { return };
    let Some(pace) = nbd.trouble else { return };
    for _ in 0..TROUBLES_MAX {
        let percent = u32::try_from(dice.within(10..200)).expect("small");
        tokio::time::sleep(pace * percent / 100).await;
        let is_over = life.stopping.get() || life.closing.get();
        if is_over || life.world.is_violated() || life.calm.get() {
            return;
        }
        if nbd.is_closed.get() {
            continue;
        }
        match dice.below(14) {
            0..8 => nbd.strike(&mut dice),
            8 => nbd.refuse_for_a_while(&mut dice).await,
            9 | 10 => {
                let (nbd, dice) = (Rc::clone(&nbd), Dice::new(dice.next(), 42));
                tokio::task::spawn_local(async move { nbd.stranger(dice).await });
            }
            11 | 12 => nbd.go_and_come_back(&life, &mut dice).await,
            _ => {}
        }
    }
}

impl Nbd {
    /// Something happens to one connection.
    fn strike(&self, dice: &mut Dice) {
        let alive: Vec<Rc<Link>> =
            self.links.borrow().iter().filter(|link| !link.is_over()).cloned().collect();
        if alive.is_empty() {
            return;
        }
        let link = &alive[usize::try_from(dice.below(alive.len() as u64)).expect("an index")];
        let (network, world, id) = (&self.world.network, &self.world, link.id);
        let bytes = usize::try_from(match dice.below(3) {
            0 => dice.within(1..60),
            1 => dice.within(1..6_000),
            _ => dice.within(1..200_000),
        });
        let bytes = bytes.expect("small");
        match dice.below(8) {
            0 => {
                world.note("connection reset", [0; 3]);
                self.struck.borrow_mut().insert(id);
                network.reset(id);
            }
            1 | 2 => {
                world.note("connection lost in a request", [bytes as u64, 0, 0]);
                self.struck.borrow_mut().insert(id);
                network.reset_after(id, Side::Server, bytes);
            }
            3 | 4 => {
                world.note("connection lost in a reply", [bytes as u64, 0, 0]);
                self.struck.borrow_mut().insert(id);
                network.reset_after(id, Side::Client, bytes);
            }
            5 => {
                world.note("connection falls silent", [0; 3]);
                self.struck.borrow_mut().insert(id);
                network.silence(id);
                link.fall_silent();
            }
            6 => {
                let ms = dice.within(1..3_000);
                world.note("connection stalls", [ms, 0, 0]);
                network.stall(id, Duration::from_millis(ms));
            }
            _ if dice.percent(50) => {
                let ms = dice.within(1..200);
                world.note("slow reader", [ms, 0, 0]);
                // The server may run out of patience with it.
                self.struck.borrow_mut().insert(id);
                link.slow.set(Some(Duration::from_millis(ms)));
            }
            _ => {
                world.note("client leaves", [0; 3]);
                link.leave();
            }
        }
    }

    /// Nobody can connect.
    async fn refuse_for_a_while(&self, dice: &mut Dice) {
        let ms = dice.within(1..1_000);
        self.world.note("connections refused", [ms, 0, 0]);
        self.refused.set(true);
        self.away.set(self.away.get() + 1);
        self.world.network.refuse(&self.at, true);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.world.network.refuse(&self.at, false);
        self.refused.set(false);
        self.away.set(self.away.get() + 1);
    }

    /// The volume is detached from its clients, and attached again.
    async fn go_and_come_back(&self, life: &Life, dice: &mut Dice) {
        life.meets_waiting("detach");
        self.detach().await;
        tokio::time::sleep(Duration::from_millis(dice.below(300))).await;
        if !life.closing.get() {
            self.attach().await;
        }
    }

    /// Somebody who does not speak the protocol, or stops in the middle. Nothing of what it says may show.
    async fn stranger(&self, mut dice: Dice) {
        let Ok((id, mut stream)) = self.world.network.connect_numbered(&self.at).await else {
            return;
        };
        let kind = dice.below(4);
        self.world.note("stranger", [kind, 0, 0]);
        if kind > 0 && self.introduce(&mut stream).await.is_none() {
            return;
        }
        let mut bytes: Vec<u8> = (0..dice.within(40..4_000)).map(|_| byte(&mut dice)).collect();
        match kind {
            0 | 1 => bytes[0] = 0x77,
            // A write whose payload ends early.
            _ => {
                let len = dice.within(2..100_000);
                let left = usize::try_from(dice.below(len)).expect("small");
                let header = RequestHeader {
                    flags: CommandFlags(0),
                    command: CommandCode::WRITE,
                    cookie: Cookie(1),
                    offset: self.world.profile.islands.place(0),
                    length: len,
                };
                let mut request = Vec::new();
                header.encode(ReplyStyle::Simple, &mut request).expect("a length that fits");
                request.resize(request.len() + left, 0xee);
                bytes = request;
            }
        }
        let _ = stream.write_all(&bytes).await;
        let hung_up = async {
            let mut buf = [0; 512];
            while matches!(stream.read(&mut buf).await, Ok(bytes) if bytes > 0) {}
        };
        let stays = dice.percent(50);
        let patience = if stays { HANGS_UP } else { Duration::from_millis(dice.below(500)) };
        let gone = timeout(patience, hung_up).await.is_ok();
        if stays && !gone {
            self.world.violate("the server does not hang up on one that stops in the middle");
        }
        drop(stream);
        self.world.network.dropped(id, Side::Server).await;
        self.world.note("  stranger gone", [kind, u64::from(gone), 0]);
    }

    /// Shakes hands as clients do.
    async fn introduce(&self, stream: &mut Box<dyn ByteStream>) -> Option<()> {
        let style_max = ReplyStyle::Simple;
        let (export, contexts) = (EXPORT.to_owned(), Vec::new());
        let wish = ClientWish { export, tls: false, attachment: None, style_max, contexts };
        let mut handshake = ClientHandshake::new(wish);
        let (mut received, mut out) = (Vec::new(), Vec::new());
        loop {
            let progress = handshake.advance(&received, &mut out).ok()?;
            received.drain(..progress.consumed);
            stream.write_all(&out).await.ok()?;
            out.clear();
            match progress.step {
                ClientStep::Again | ClientStep::StartTls => {}
                ClientStep::Transmit(_) => return Some(()),
                ClientStep::NeedMore(_) => {
                    if stream.read_buf(&mut received).await.ok()? == 0 {
                        return None;
                    }
                }
            }
        }
    }
}

fn byte(dice: &mut Dice) -> u8 {
    dice.next().to_le_bytes()[0]
}
