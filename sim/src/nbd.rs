//! Clients that reach their volume over NBD: the server is the front end's own code, the connections are those of a
//! simulated network, the client is `weir_nbd`'s codec.
//!
//! A client that finds its connection lost connects again. What it had asked for and was not answered may have been
//! done, or be done at any later moment until the server has let go of that connection; from then on the oracle takes
//! it for something that happened before, or never. Every loss of a connection needs a reason, as every error does.

mod link;
mod server;
pub(crate) mod trouble;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use weir_device::{Address, DeviceError, DeviceExt, ErrorKind, Operation, Reply, WriteZeroesFlags};
use weir_frontend::nbd::Server;
use weir_nbd::{Command, Failure, ReplyStyle};
use weir_net::sim::ConnectionId;

use self::link::{Answered, Link, Lost};
use self::server::{Directory, Served};
use crate::client::Life;
use crate::content::WriteId;
use crate::dice::Dice;
use crate::world::World;

/// Time that a client waits for a connection that fell silent, at most.
const PATIENCE_MS_MAX: u64 = 20_000;

/// Time after which a server that has not let go of a connection is not waited for any more.
const SERVER_LETS_GO: Duration = Duration::from_secs(3600);

/// A volume that is served over NBD, and the connections of its clients.
pub(crate) struct Nbd {
    pub(crate) world: Rc<World>,
    pub(crate) at: Address,
    pub(crate) trouble: Option<Duration>,
    served: Rc<Served>,
    server: RefCell<Option<Server>>,
    /// A listener that stays while the volume comes and goes, and hands clients off to it.
    listener: RefCell<Option<(Server, Rc<Directory>)>>,
    places: Vec<Rc<Place>>,
    dice: RefCell<Dice>,
    /// Connections to which something was done.
    struck: RefCell<BTreeSet<ConnectionId>>,
    /// Connections of its clients, since this life began.
    links: RefCell<Vec<Rc<Link>>>,
    /// Connections are refused: by the network, or because the server is not there.
    refused: Cell<bool>,
    /// How often that has changed.
    away: Cell<u64>,
    /// Clients ask for nothing: they are to leave.
    pub(crate) is_closed: Cell<bool>,
    writes: Rc<RefCell<Vec<Writing>>>,
}

/// A write under way.
struct Writing {
    number: u64,
    link: ConnectionId,
    from: u64,
    to: u64,
}

/// Ends it, also where nobody waits for its answer any more.
struct WritingGuard {
    writes: Rc<RefCell<Vec<Writing>>>,
    number: u64,
}

impl Drop for WritingGuard {
    fn drop(&mut self) {
        self.writes.borrow_mut().retain(|write| write.number != self.number);
    }
}

/// What one connection at a time is for.
struct Place {
    link: RefCell<Option<Rc<Link>>>,
    connecting: tokio::sync::Mutex<()>,
}

/// How a client reaches the volume.
#[derive(Clone)]
pub(crate) enum Access {
    /// As those do who have the device.
    Device,
    /// By a connection, one of several.
    Nbd { nbd: Rc<Nbd>, place: usize },
}

/// The same at the moment of one operation.
#[derive(Clone)]
pub(crate) enum Way {
    Device,
    Nbd(Rc<Nbd>, Rc<Link>),
}

impl Access {
    /// The way of the next operation; `None` while there is none.
    pub(crate) async fn way(&self, life: &Rc<Life>) -> Option<Way> {
        match self {
            Self::Device => Some(Way::Device),
            Self::Nbd { nbd, place } => {
                let link = nbd.link(life, *place).await?;
                Some(Way::Nbd(Rc::clone(nbd), link))
            }
        }
    }
}

impl Way {
    /// Whether it is a connection.
    pub(crate) fn is_nbd(&self) -> bool {
        matches!(self, Self::Nbd(..))
    }

    /// Whether it can ask what a range holds.
    pub(crate) fn has_extents(&self) -> bool {
        match self {
            Self::Device => true,
            Self::Nbd(_, link) => !link.session.contexts.is_empty(),
        }
    }

    /// Runs an operation; `None` if the connection was lost before it was answered.
    pub(crate) async fn call(
        &self,
        life: &Life,
        operation: Operation,
    ) -> Option<Result<Reply, DeviceError>> {
        match self {
            Self::Device => Some(life.answer(operation).await),
            Self::Nbd(nbd, link) => nbd.call(life, link, operation).await,
        }
    }

    /// A write was not answered: its connection was lost.
    pub(crate) fn lost_write(&self, id: WriteId) {
        if let Self::Nbd(nbd, link) = self
            && !crate::client::is_foreign(id)
        {
            nbd.world.note("write lost with its connection", [id.0.into(), 0, 0]);
            link.lose(&nbd.world, id);
        }
    }
}

impl Nbd {
    /// Serves the volume of a life that begins, if its seed is about that.
    pub(crate) async fn begin(life: &Rc<Life>, mut dice: Dice) -> Option<Rc<Self>> {
        let world = Rc::clone(&life.world);
        let profile = world.profile.nbd.clone()?;
        let served = Served::new(Rc::clone(&life.stack));
        let hands_off = dice.percent(50);
        let place = || {
            let connecting = tokio::sync::Mutex::new(());
            Rc::new(Place { link: RefCell::default(), connecting })
        };
        let nbd = Rc::new(Self {
            at: Address::Tcp(format!("host-{}:10809", life.host)),
            trouble: profile.trouble.filter(|_| dice.percent(80)),
            served,
            server: RefCell::default(),
            listener: RefCell::default(),
            places: (0..profile.connections).map(|_| place()).collect(),
            dice: RefCell::new(dice),
            struck: RefCell::default(),
            links: RefCell::default(),
            refused: Cell::new(false),
            away: Cell::new(0),
            is_closed: Cell::new(false),
            writes: Rc::default(),
            world,
        });
        // A life may have ended while they were refused.
        nbd.world.network.refuse(&nbd.at, false);
        if hands_off {
            nbd.listen().await;
        }
        nbd.attach().await;
        Some(nbd)
    }

    /// How the next client reaches the volume.
    pub(crate) fn access(self: &Rc<Self>, client: u64) -> Access {
        let places = u64::try_from(self.places.len()).expect("few");
        let place = usize::try_from(client % places).expect("an index");
        Access::Nbd { nbd: Rc::clone(self), place }
    }

    fn dice<T>(&self, draw: impl FnOnce(&mut Dice) -> T) -> T {
        draw(&mut self.dice.borrow_mut())
    }

    async fn listen(&self) {
        let directory = Rc::new(Directory::default());
        let network = &self.world.network;
        match server::listen(network, &self.at, Rc::clone(&directory)).await {
            Ok(listener) => drop(self.listener.replace(Some((listener, directory)))),
            Err(error) => self.world.violate(format!("nobody can listen: {error}")),
        }
    }

    /// The server comes.
    pub(crate) async fn attach(&self) {
        self.away.set(self.away.get() + 1);
        if let Some((_, directory)) = &*self.listener.borrow() {
            let (hand_off, server) = server::serve_others(Rc::clone(&self.served));
            directory.add(Rc::clone(&self.served), hand_off);
            self.server.replace(Some(server));
            self.world.note("attached: clients are handed off", [0; 3]);
            return;
        }
        let network = &self.world.network;
        match server::serve(network, &self.at, Rc::clone(&self.served)).await {
            Ok(server) => drop(self.server.replace(Some(server))),
            Err(error) => self.world.violate(format!("the volume cannot be served: {error}")),
        }
        self.world.note("attached", [0; 3]);
    }

    /// The server finishes what is in flight, and goes.
    pub(crate) async fn detach(&self) {
        let Some(server) = self.server.borrow_mut().take() else { return };
        self.away.set(self.away.get() + 1);
        self.strike_all();
        let clients = u64::try_from(server.clients()).expect("few");
        self.world.note("detach", [clients, 0, 0]);
        self.meets("detach");
        // What is in flight may be given up, and is left to what devices promise.
        self.links.borrow().iter().for_each(|link| link.may_linger());
        if let Some((_, directory)) = &*self.listener.borrow() {
            directory.remove();
        }
        server.stop().await;
        self.world.note("  detached", [0; 3]);
    }

    /// The server goes for good, and whoever listens with it.
    pub(crate) async fn end(&self) {
        self.detach().await;
        if let Some((listener, _)) = self.listener.take() {
            listener.stop().await;
        }
    }

    /// A connection falls silent, perhaps, and nobody is told.
    pub(crate) fn silence_one(&self) {
        if self.trouble.is_none() || !self.dice(|dice| dice.percent(40)) {
            return;
        }
        let links = self.links.borrow();
        if let Some(link) = links.iter().find(|link| !link.is_over()) {
            self.world.note("connection falls silent", [0; 3]);
            self.struck.borrow_mut().insert(link.id);
            self.world.network.silence(link.id);
            link.fall_silent();
        }
    }

    /// Whether nobody is let in.
    fn is_away(&self) -> bool {
        self.refused.get() || self.server.borrow().is_none()
    }

    /// Something happens while clients are connected and write.
    pub(crate) fn meets(&self, what: &'static str) {
        let mut events = self.world.events.borrow_mut();
        if self.links.borrow().iter().any(|link| !link.is_over()) {
            events.count_pair(what, "client connected");
        }
        if !self.writes.borrow().is_empty() {
            events.count_pair(what, "write in flight");
        }
        if self.links.borrow().iter().any(|link| link.is_silent() && !link.is_over()) {
            events.count_pair("half-open", what);
        }
    }

    /// Whatever becomes of these connections is no fault.
    fn strike_all(&self) {
        let links = self.links.borrow();
        self.struck.borrow_mut().extend(links.iter().map(|link| link.id));
    }

    fn is_struck(&self, id: ConnectionId) -> bool {
        self.struck.borrow().contains(&id)
    }

    /// Every client leaves, and none is let in until [`Self::open`]. Ends when the server has let go of the last one.
    pub(crate) async fn close(&self) {
        self.is_closed.set(true);
        self.strike_all();
        let links = self.links.borrow().clone();
        for link in &links {
            link.leave();
        }
        for link in links {
            self.world.network.dropped(link.id, weir_net::sim::Side::Server).await;
        }
    }

    pub(crate) fn open(&self) {
        self.is_closed.set(false);
    }

    // --- connections ---------------------------------------------------------------------------------------------

    /// The connection of a place, made anew if it is lost.
    async fn link(&self, life: &Rc<Life>, place: usize) -> Option<Rc<Link>> {
        let place = &self.places[place];
        let alive = || place.link.borrow().clone().filter(|link| !link.is_over());
        if let Some(link) = alive() {
            return Some(link);
        }
        let _connecting = place.connecting.lock().await;
        if let Some(link) = alive() {
            return Some(link);
        }
        if self.is_closed.get() || life.stopping.get() || life.closing.get() {
            return None;
        }
        let (style, seed) = self.dice(|dice| {
            let styles = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
            (dice.pick(&styles), dice.next())
        });
        let (before, begun) = (self.away.get(), Instant::now());
        match link::connect(&self.world, &self.at, style, Dice::new(seed, 41)).await {
            Ok((link, driver)) => {
                let mut links = self.links.borrow_mut();
                links.retain(|known| !known.is_forgotten());
                links.push(Rc::clone(&link));
                drop(links);
                place.link.replace(Some(Rc::clone(&link)));
                if before != self.away.get() {
                    // The server began to go while it shook hands.
                    self.struck.borrow_mut().insert(link.id);
                    link.may_linger();
                }
                self.world.note("connected", [0; 3]);
                tokio::task::spawn_local(watch(Rc::clone(life), Rc::clone(&link), driver));
                Some(link)
            }
            Err((id, error)) => {
                let stopped = self.world.stopped_since(life.host, begun);
                let away = before != self.away.get() || self.is_away() || stopped;
                let struck = id.is_some_and(|id| self.is_struck(id));
                if !away && !struck && !life.closing.get() && !self.is_closed.get() {
                    self.world
                        .violate(format!("a client was not let in without a reason: {error}"));
                }
                self.world.note("not connected", [0; 3]);
                None
            }
        }
    }

    // --- operations ----------------------------------------------------------------------------------------------

    async fn call(
        &self,
        life: &Life,
        link: &Rc<Link>,
        operation: Operation,
    ) -> Option<Result<Reply, DeviceError>> {
        let command =
            command_of(&operation, link, |percent| self.dice(|dice| dice.percent(percent)));
        let payload = match operation {
            Operation::Write { data, .. } => data.to_vec(),
            _ => Vec::new(),
        };
        let _writing = self.begin_write(link, &command);
        let asked = link.ask(command, &payload);
        let patience = self.dice(|dice| Duration::from_millis(dice.within(500..PATIENCE_MS_MAX)));
        let answer = self.wait(link, asked, patience).await;
        match answer {
            Err(Lost) => {
                let what = match command {
                    Command::Flush => "flush",
                    Command::Read { .. } => "read",
                    Command::BlockStatus { .. } | Command::Cache { .. } => "other request",
                    _ => "write",
                };
                self.world.events.borrow_mut().count_pair("connection lost", what);
                None
            }
            // It was true when it left; what it says was the owner's to say.
            Ok(Answered { answer: Ok(_), left }) if life.was_owner_at(left) => {
                self.world.note("answered before it was superseded", [0; 3]);
                None
            }
            Ok(Answered { answer: Ok(body), .. }) => Some(Ok(Reply::new(body))),
            Ok(Answered { answer: Err(failure), .. }) => {
                Some(Err(self.error_behind(life, &command, &failure)))
            }
        }
    }

    /// Waits for an answer; not for ever if nothing arrives any more.
    async fn wait<T>(
        &self,
        link: &Rc<Link>,
        asked: impl Future<Output = Result<T, Lost>>,
        patience: Duration,
    ) -> Result<T, Lost> {
        let mut asked = Box::pin(asked);
        let gives_up = async {
            link.until_silent().await;
            tokio::time::sleep(patience).await;
        };
        tokio::select! {
            biased;
            answer = &mut asked => answer,
            () = gives_up => {
                self.world.note("client gave a silent connection up", [0; 3]);
                link.abandon();
                Err(Lost)
            }
        }
    }

    /// Takes note of a write, and of others that it overlaps.
    fn begin_write(&self, link: &Link, command: &Command) -> Option<WritingGuard> {
        let (from, len) = match *command {
            Command::Write { offset, length, .. } => (offset, u64::from(length)),
            Command::WriteZeroes { offset, length, .. } | Command::Trim { offset, length, .. } => {
                (offset, length)
            }
            _ => return None,
        };
        let mut writes = self.writes.borrow_mut();
        let to = from + len;
        let overlaps = |other: &&Writing| other.from < to && from < other.to;
        let mut events = self.world.events.borrow_mut();
        for other in writes.iter().filter(overlaps) {
            let what = if other.link == link.id { "same connection" } else { "other connection" };
            events.count_pair("overlapping writes", what);
        }
        let number = writes.last().map_or(0, |write| write.number + 1);
        writes.push(Writing { number, link: link.id, from, to });
        Some(WritingGuard { writes: Rc::clone(&self.writes), number })
    }

    /// The error of the device that a client was told of.
    fn error_behind(&self, life: &Life, command: &Command, failure: &Failure) -> DeviceError {
        if let Some(error) = self.served.error_behind(command, failure) {
            return error;
        }
        if server::is_beyond(command, life.stack.size(), failure) {
            return DeviceError::new(ErrorKind::Invalid, "past the end");
        }
        self.world.violate(format!("{command:?} failed as no device did: {failure:?}"));
        DeviceError::new(ErrorKind::Bug, failure.message.clone())
    }
}

/// The command for an operation.
fn command_of(operation: &Operation, link: &Link, chance: impl FnOnce(u64) -> bool) -> Command {
    let short = |len: u64| u32::try_from(len).expect("reads and writes are small here");
    match operation {
        Operation::Read { offset, len } => {
            let unbroken = link.session.style != ReplyStyle::Simple && chance(30);
            Command::Read { offset: *offset, length: short(*len), unbroken }
        }
        Operation::Write { offset, data, fua } => {
            let length = short(data.len() as u64);
            Command::Write { offset: *offset, length, fua: *fua }
        }
        Operation::WriteZeroes { offset, len, flags } => {
            let WriteZeroesFlags { fua, no_hole, fast } = *flags;
            Command::WriteZeroes { offset: *offset, length: *len, fua, no_hole, fast }
        }
        Operation::Discard { offset, len } => {
            Command::Trim { offset: *offset, length: *len, fua: false }
        }
        Operation::Extents { offset, len, .. } => {
            Command::BlockStatus { offset: *offset, length: *len, one: chance(20) }
        }
        Operation::Flush(_) => Command::Flush,
        Operation::Batch { .. } => unreachable!("a batch is several requests over NBD"),
    }
}

/// Moves the bytes of a connection until it is over, judges how it ended, and settles what it leaves.
async fn watch(life: Rc<Life>, link: Rc<Link>, driver: impl Future<Output = String>) {
    let Some(nbd) = life.nbd.borrow().clone() else { return };
    let ended = driver.await;
    let world = &life.world;
    world.note("connection over", [0; 3]);
    // Who was told another size than the volume has by then is turned away before anything is answered.
    let resized = link.size != life.stack.size() && !link.is_served();
    let excused = nbd.is_struck(link.id) || link.has_left() || resized;
    let fenced = life.may_be_fenced.get() || life.closing.get();
    if !excused && !fenced {
        world.violate(format!("a connection was lost without a reason: {ended}"));
    }
    let gone = world.network.dropped(link.id, weir_net::sim::Side::Server);
    let is_gone = timeout(SERVER_LETS_GO, gone).await.is_ok();
    // One whose volume is closed, or refuses writes, ends operations with errors that nobody hears of here: what a
    // failed write left may still show.
    let has_failed = life.refused_since.get().is_some() || nbd.served.has_failed_change();
    let lingers = link.lingers() || life.closing.get() || has_failed;
    link.settle(world, is_gone && !lingers);
}
