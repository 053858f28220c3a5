//! A remote volume of one node over a server of another: the product's own client and front end over a simulated
//! network, a medium that forgets what was not flushed, and an oracle of what a client may read.
//!
//! Three kinds of servers, by the seed: another Weir, of which the client may ask for exclusive access while others
//! try to write; a server that does not tell its openings apart, to which changes
//! are sent again because the user says so; and one to which they are not. The first one may also be slow to carry out
//! what it has taken, so that an old request could come behind a newer one: only there is that kept from happening.

mod client;
mod intruder;
mod medium;
mod oracle;
mod server;
mod trouble;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;
use weir_device::{Env, NoFileReads};
use weir_net::sim::{SimNetwork, SimNetworkOptions};

use self::medium::Medium;
use self::oracle::Oracle;
use self::server::Server;
use crate::dice::Dice;
use crate::env::{Scheduling, Stop, env};
use crate::events::Events;

/// Runs of this kind, where others are named by the number of their nodes.
pub(crate) const REMOTE: u64 = 3;

/// Time for a call.
const DEADLINE: Duration = Duration::from_secs(20);

/// What the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Another Weir.
    Weir,
    /// Another server, to which changes are sent again.
    Trusted,
    /// Another server.
    Plain,
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
struct Profile {
    kind: Kind,
    connections: usize,
    /// What is carried out may be carried out late.
    is_late: bool,
    /// The client alone may write, and others try to.
    is_exclusive: bool,
    operations: u64,
    /// Troubles in a thousand operations.
    troubles: u64,
}

/// What the parts of a run share.
struct World {
    profile: Profile,
    events: RefCell<Events>,
    dice: RefCell<Dice>,
    network: SimNetwork,
    medium: Rc<Medium>,
    server: Server,
    oracle: RefCell<Oracle>,
    violation: RefCell<Option<String>>,
    operations: Cell<u64>,
    /// Times that another client tried to get in, and writes of such clients that were answered.
    intrusions: Cell<u64>,
    written_by_another: Cell<u64>,
}

impl World {
    fn new(seed: u64) -> Rc<Self> {
        let mut dice = Dice::new(seed, 40);
        let kind = dice.pick(&[Kind::Weir, Kind::Weir, Kind::Trusted, Kind::Plain]);
        let is_late = kind == Kind::Weir && dice.percent(50);
        let profile = Profile {
            kind,
            connections: usize::try_from(dice.within(1..4)).expect("few"),
            is_late,
            is_exclusive: kind == Kind::Weir && !is_late && dice.percent(60),
            operations: dice.within(60..240),
            troubles: dice.pick(&[20, 60, 150]),
        };
        let delay_ms_max = dice.pick(&[0, 1, 5]);
        let options = SimNetworkOptions {
            delay: Duration::ZERO..=Duration::from_millis(delay_ms_max),
            short_one_in: dice.pick(&[0, 3]),
            read_bytes_max: dice.pick(&[700, 64 << 10]),
            ..SimNetworkOptions::default()
        };
        let network = SimNetwork::new(dice.next(), options);
        let medium = Rc::new(Medium::new(dice.next(), profile.is_late));
        let server = Server::new(network.clone(), Rc::clone(&medium), kind == Kind::Weir);
        Rc::new(Self {
            profile,
            events: RefCell::new(Events::new()),
            dice: RefCell::new(dice),
            network,
            medium,
            server,
            oracle: RefCell::default(),
            violation: RefCell::default(),
            operations: Cell::new(0),
            intrusions: Cell::new(0),
            written_by_another: Cell::new(0),
        })
    }

    fn note(&self, what: &'static str, numbers: [u64; 3]) {
        self.events.borrow_mut().note(what, numbers);
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.borrow_mut().below(bound)
    }

    fn percent(&self, percent: u64) -> bool {
        self.dice.borrow_mut().percent(percent)
    }

    /// Loses all connections.
    fn cut(&self) {
        self.network
            .connections()
            .into_iter()
            .for_each(|connection| self.network.reset(connection));
    }

    fn is_violated(&self) -> bool {
        self.violation.borrow().is_some()
    }

    /// The rule that was broken.
    fn violate(&self, what: String) -> Stop {
        self.violation.borrow_mut().get_or_insert(what);
        Stop
    }

    fn env(&self, tasks: &Rc<LocalSet>) -> Env {
        let scheduling = Scheduling { late_percent: 0, yield_percent: 20 };
        let mut dice = self.dice.borrow_mut();
        let surroundings = env(&mut dice, [1; 16], scheduling, tasks, Rc::default());
        let network = Rc::new(self.network.clone());
        Env { network, files: Rc::new(NoFileReads), ..surroundings }
    }
}

/// What became of a run.
pub(crate) struct Outcome {
    pub(crate) events: Events,
    pub(crate) violation: Option<String>,
    pub(crate) operations: u64,
}

/// Runs a seed. Everything that it spawns ends with it.
pub(crate) async fn run(seed: u64) -> Outcome {
    let world = World::new(seed);
    let name = match world.profile.kind {
        Kind::Weir if world.profile.is_late => "server: a slow Weir",
        Kind::Weir if world.profile.is_exclusive => "server: a Weir, exclusively",
        Kind::Weir => "server: a Weir",
        Kind::Trusted => "server: another, trusted",
        Kind::Plain => "server: another",
    };
    world.note(name, [world.profile.connections as u64, world.profile.operations, 0]);
    let all = LocalSet::new();
    // What stopped it is noted.
    let _ = all.run_until(Box::pin(client::lives(Rc::clone(&world)))).await;
    drop(all);
    let counters = world.network.counters();
    let world = Rc::into_inner(world);
    let world = world.unwrap_or_else(|| panic!("tasks of a run have ended with it"));
    let mut events = world.events.into_inner();
    events.count("network: connections", counters.connections);
    events.count("network: resets", counters.resets);
    events.count("network: timeouts", counters.timeouts);
    Outcome { events, violation: world.violation.into_inner(), operations: world.operations.get() }
}
