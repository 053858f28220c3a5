//! The clients of the remote volume: their operations, their lives, and what is left at the end.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};
use weir_device::{
    DeviceError, DeviceExt, ErrorKind, FlushScope, Operation, SharedBuf, WriteZeroesFlags,
};
use weir_remote::{RemoteArgs, RemoteUrl, RemoteVolume};

use super::oracle::{CELL_BYTES, CELLS};
use super::server::AT;
use super::{DEADLINE, Kind, World, trouble};
use crate::env::{HANG, Stop};

/// Most lives of clients; most runs have one or two.
const LIVES_MAX: u64 = 6;

/// Cells of one operation at most.
const LENGTH_MAX: u64 = 200;

/// How a client's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It did all that it was to do.
    Done,
    /// It is killed.
    Killed,
    /// The volume takes no writes any more: it is opened again.
    Refused,
}

fn bytes(cells: &Range<usize>) -> (u64, u64) {
    (cells.start as u64 * CELL_BYTES, cells.len() as u64 * CELL_BYTES)
}

/// One client, several of whose operations are under way at a time.
struct Client {
    world: Rc<World>,
    volume: Rc<RemoteVolume>,
    is_refused: Cell<bool>,
    /// How often another client had tried to get in before this one was opened, and its writes by the time it was.
    intrusions: u64,
    written: u64,
}

impl Client {
    fn some_cells(&self) -> Range<usize> {
        let world = &self.world;
        let length = 1 + world.below(if world.percent(70) { 16 } else { LENGTH_MAX });
        let start = world.below(CELLS - length);
        let to_usize = |cells: u64| usize::try_from(cells).expect("few");
        to_usize(start)..to_usize(start + length)
    }

    /// Judges an error: a call fails at its deadline, and only where the server was away; or because the connection was
    /// lost, where the server is one to which nothing is sent again.
    fn judge(&self, error: &DeviceError, began: Instant, is_change: bool) -> Result<(), Stop> {
        let world = &self.world;
        let is_late = began.elapsed() >= DEADLINE;
        let is_plain = world.profile.kind == Kind::Plain;
        match error.kind() {
            ErrorKind::Unavailable if is_late => {
                world.note("call misses its deadline", [0; 3]);
                Ok(())
            }
            ErrorKind::Unavailable if is_plain && is_change => {
                world.note("change whose fate is not known", [0; 3]);
                Ok(())
            }
            // Whoever tried may have been let in without having heard of it.
            ErrorKind::Fenced if world.intrusions.get() > self.intrusions => {
                world.note("exclusive access lost", [0; 3]);
                self.is_refused.set(true);
                Ok(())
            }
            ErrorKind::Poisoned if is_plain => {
                world.note("volume refuses", [0; 3]);
                self.is_refused.set(true);
                Ok(())
            }
            _ => {
                let seconds = began.elapsed().as_secs_f64();
                Err(world.violate(format!("an error after {seconds:.3} s: {error:?}")))
            }
        }
    }

    /// A call was begun; [`Self::answered`] wants to know what other clients had written by then.
    fn begin(&self) -> (Instant, u64) {
        (Instant::now(), self.world.written_by_another.get())
    }

    /// A call that was begun after another client had written in this life is not answered.
    fn answered(&self, written: u64) -> Result<(), Stop> {
        if written != self.written {
            let message = "a call is answered though another client has written";
            return Err(self.world.violate(message.to_owned()));
        }
        Ok(())
    }

    /// A call ends, whatever happens.
    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, Stop> {
        let ended = timeout(HANG, call).await;
        ended.map_err(|_| self.world.violate("a call hangs".to_owned()))
    }

    async fn change(&self) -> Result<(), Stop> {
        let world = &self.world;
        let cells = self.some_cells();
        let is_zero = world.percent(15);
        let Some(number) = world.oracle.borrow_mut().change(cells.clone(), is_zero) else {
            return Ok(());
        };
        let (offset, len) = bytes(&cells);
        let fua = world.percent(15);
        let operation = match is_zero {
            true if world.percent(50) => Operation::Discard { offset, len },
            true => {
                let flags = WriteZeroesFlags { fua, ..WriteZeroesFlags::default() };
                Operation::WriteZeroes { offset, len, flags }
            }
            false => {
                let data = number.to_le_bytes().repeat(cells.len());
                Operation::Write { offset, data: SharedBuf::copy_of(&data), fua }
            }
        };
        let fua = fua && !matches!(operation, Operation::Discard { .. });
        let (began, written) = self.begin();
        let result = self.in_time(self.volume.internal(operation)).await?;
        world.oracle.borrow_mut().changed(cells, number, result.is_ok(), fua);
        match result {
            Ok(_) => {
                self.answered(written)?;
                world.note(if fua { "forced change" } else { "change" }, [offset, len, number]);
                Ok(())
            }
            Err(error) => self.judge(&error, began, true),
        }
    }

    async fn read(&self, cells: Range<usize>) -> Result<(), Stop> {
        let world = &self.world;
        let reading = world.oracle.borrow().begin_read(cells.clone());
        let (offset, len) = bytes(&cells);
        let mut found = vec![0; usize::try_from(len).expect("few")];
        let (began, written) = self.begin();
        match self.in_time(self.volume.read(offset, &mut found)).await? {
            Ok(()) => {
                self.answered(written)?;
                world.note("read", [offset, len, 0]);
                let values = found.as_chunks::<8>().0.iter().map(|cell| u64::from_le_bytes(*cell));
                let values: Vec<u64> = values.collect();
                let wrong = world.oracle.borrow().judge(&reading, &values);
                wrong.map_or(Ok(()), |wrong| Err(world.violate(wrong)))
            }
            Err(error) => self.judge(&error, began, false),
        }
    }

    async fn flush(&self) -> Result<(), Stop> {
        let world = &self.world;
        let flushing = world.oracle.borrow_mut().begin_flush();
        let (began, written) = self.begin();
        match self.in_time(self.volume.flush(FlushScope::Local)).await? {
            Ok(()) => {
                self.answered(written)?;
                world.note("flush", [0; 3]);
                world.oracle.borrow_mut().flushed(&flushing);
                Ok(())
            }
            Err(error) => self.judge(&error, began, false),
        }
    }

    /// One operation after the other.
    async fn works(&self) -> Result<(), Stop> {
        let world = &self.world;
        while world.operations.get() < world.profile.operations {
            if self.is_refused.get() || world.is_violated() {
                return Ok(());
            }
            world.operations.set(world.operations.get() + 1);
            match world.below(100) {
                0..50 => self.change().await?,
                50..88 => self.read(self.some_cells()).await?,
                88..94 => self.flush().await?,
                _ => sleep(Duration::from_millis(world.below(40))).await,
            }
        }
        Ok(())
    }

    /// Until it has done all that it was to do, or is killed.
    async fn lives(&self) -> Result<End, Stop> {
        let world = &self.world;
        let depth = 1 + world.below(4);
        let work = join_all((0..depth).map(|_| self.works()));
        let life = if world.percent(40) {
            Duration::from_millis(world.below(3000))
        } else {
            Duration::MAX
        };
        match timeout(life, work).await {
            Err(_) => Ok(End::Killed),
            Ok(results) => {
                results.into_iter().collect::<Result<(), Stop>>()?;
                Ok(if self.is_refused.get() { End::Refused } else { End::Done })
            }
        }
    }

    /// Everything is as it should be, and survives.
    async fn ends_in_order(&self) -> Result<(), Stop> {
        let all = usize::try_from(CELLS).expect("few");
        self.read(0..all).await?;
        self.flush().await?;
        let closed = self.in_time(self.volume.close(DEADLINE)).await?;
        if let Err(error) = closed
            && !self.is_refused.get()
        {
            return Err(self.world.violate(format!("a close in calm weather fails: {error:?}")));
        }
        Ok(())
    }
}

/// How a client of this run opens the volume.
pub(super) fn arguments(world: &World) -> RemoteArgs {
    RemoteArgs {
        url: RemoteUrl::parse(&format!("nbd://{AT}/disk")).expect("an address"),
        tls: None,
        connections: world.profile.connections,
        deadline: DEADLINE,
        resend: world.profile.kind == Kind::Trusted,
        exclusive: world.profile.is_exclusive,
    }
}

/// Opens the volume, however often that fails while there is trouble.
async fn open(world: &Rc<World>, tasks: &Rc<LocalSet>) -> Result<Rc<RemoteVolume>, Stop> {
    let args = arguments(world);
    let began = Instant::now();
    loop {
        match RemoteVolume::open(world.env(tasks), args.clone()).await {
            Ok(volume) => return Ok(volume),
            Err(error) if began.elapsed() > HANG => {
                return Err(world.violate(format!("it cannot be opened: {error:?}")));
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Clients one after the other, and in the end a look at what is there.
pub(super) async fn lives(world: Rc<World>) -> Result<(), Stop> {
    world.server.begin().await;
    let troubled = tokio::task::spawn_local(trouble::makes(Rc::clone(&world)));
    let mut ends = End::Killed;
    for _ in 0..LIVES_MAX {
        ends = one_life(&world, false).await?;
        if ends == End::Done {
            break;
        }
    }
    world.note(if ends == End::Done { "work done" } else { "work left" }, [0; 3]);
    troubled.abort();
    // It was cancelled.
    let _ = troubled.await;
    world.network.refuse(&weir_device::Address::Tcp(AT.to_owned()), false);
    world.medium.answer_ms_max.set(2);
    if !world.server.is_up() {
        world.server.begin().await;
    }
    one_life(&world, true).await?;
    // What was flushed is there for whoever comes.
    world.server.kill().await;
    world.medium.lose_power();
    world.oracle.borrow_mut().power_lost(false);
    world.server.begin().await;
    one_life(&world, true).await?;
    world.server.kill().await;
    Ok(())
}

/// One process with the volume open. In calm weather it looks at everything, and closes.
async fn one_life(world: &Rc<World>, is_calm: bool) -> Result<End, Stop> {
    let tasks = Rc::new(LocalSet::new());
    let living = async {
        // Before it is opened: whoever tries from now on may get in between two of its connections.
        let intrusions = world.intrusions.get();
        let volume = open(world, &tasks).await?;
        world.note("opened", [0; 3]);
        let is_refused = Cell::new(false);
        let written = world.written_by_another.get();
        let client = Client { world: Rc::clone(world), volume, is_refused, intrusions, written };
        if is_calm {
            return client.ends_in_order().await.map(|()| End::Done);
        }
        client.lives().await
    };
    let end = tasks.run_until(living).await?;
    // Its tasks end with it, and its connections.
    drop(tasks);
    world.cut();
    if !is_calm {
        world.note(
            match end {
                End::Done => "client ends",
                End::Killed => "client killed",
                End::Refused => "client opens again",
            },
            [0; 3],
        );
    }
    world.oracle.borrow_mut().client_ended(world.profile.is_late);
    Ok(end)
}
