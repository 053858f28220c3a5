//! The io_uring engine: one ring per shard thread, woken through tokio.
//!
//! Invariants
//!  U1. A slot owns the buffers, the slice table and the file of its operation from before the
//!      submission until the kernel's completion, whatever becomes of the future that waits for it.
//!  U2. At most `RING_ENTRIES` operations are with the kernel, each with one entry: neither queue
//!      of the ring overflows. The others wait in the backlog, whose length is that of the callers'
//!      own queues. They wait here and not in their futures, so that an operation goes on when its
//!      future is not polled, or dropped.
//!  U3. The ring is dropped only after every operation has completed.
//!  U4. New entries go to the kernel as soon as they are as many as the operations that it has, the others in
//!      the next turn of the driver task, which `start` wakes. So an idle disk begins at once, and what the
//!      tasks of one turn start goes down in few system calls, of which a disk behind a hypervisor is told.
//!
//! Why the ring is plain `SINGLE_ISSUER`: with `DEFER_TASKRUN` completions wait for a call into the
//! ring, and a thread that sleeps in epoll never makes one. Why a duplicate of the ring's
//! descriptor is registered with tokio: the driver task may outlive the ring by a moment, and a
//! number that was closed could already name another file.
#![allow(
    unsafe_code,
    reason = "hands pointers to the kernel; every block states why they stay valid"
)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use weir_device::{AlignedBuf, SharedBuf};

use crate::engine::open_file::OpenFile;
use crate::engine::sync_gate::{SyncGroup, SyncKind};
use crate::engine::transfer::{Next, after_read, after_write, remaining, remaining_mut, total_len};
use crate::engine::under_way::{self, Question};
use crate::error::{DiskError, DiskOperation};

/// Entries of the submission queue, and most operations with the kernel at once: about as deep as
/// one NVMe queue is used.
const RING_ENTRIES: u32 = 128;

/// Most of them that the operations of one image have: what users name may hang, and others go on beside three such
/// images. As deep as a disk needs to be busy.
pub(crate) const IMAGE_ENTRIES_MAX: u32 = 40;
const _: () = assert!(3 * IMAGE_ENTRIES_MAX < RING_ENTRIES);

/// Most bytes of one read call; the length of an entry has 32 bits, and a longer read goes on from
/// here.
const READ_BYTES_MAX: usize = 1 << 30;

/// Pause before a submission is tried again that the kernel refused for want of memory.
const SUBMIT_RETRY: Duration = Duration::from_millis(1);

/// What `struct iovec` is to the kernel.
#[repr(C)]
struct KernelSlice {
    start: *const u8,
    len: usize,
}

/// What an operation moves.
enum Transfer {
    Read(AlignedBuf),
    ReadPieces(Vec<AlignedBuf>),
    Write(Vec<SharedBuf>),
    /// The group is gone when it has been answered.
    Sync(Option<SyncGroup>),
}

/// An operation with the kernel.
struct Running {
    transfer: Transfer,
    file: Arc<OpenFile>,
    offset: u64,
    wanted_bytes: usize,
    done_bytes: usize,
    waker: Option<Waker>,
    /// Its future was dropped: nobody takes the result.
    abandoned: bool,
    /// When it began, for whoever asks what has not ended.
    number: u64,
}

enum State {
    Free,
    Running(Running),
    Ended(Transfer, Result<(), DiskError>),
}

struct Slot {
    state: State,
    /// Kept from one operation to the next, so that a steady state allocates nothing.
    slices: Vec<KernelSlice>,
}

/// The ring and everything that the kernel holds pointers into.
struct Ring {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Operations with the kernel.
    in_flight: u32,
    backlog: VecDeque<usize>,
}

struct Shared {
    ring: RefCell<Ring>,
    driver: Rc<DriverWaker>,
    /// Wakers of operations that ended, kept to be woken after the ring is let go.
    woken: RefCell<Vec<Waker>>,
    submit_failing: Cell<bool>,
    /// Entries that the kernel was not told of (U4).
    unsubmitted: Cell<u32>,
}

/// How the driver task learns that it should look at the ring, or that the ring is gone.
#[derive(Default)]
struct DriverWaker {
    waker: RefCell<Option<Waker>>,
}

impl DriverWaker {
    fn wake(&self) {
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The engine. Belongs to the thread that made it.
#[derive(Clone)]
pub(crate) struct UringEngine {
    shared: Rc<Shared>,
}

impl fmt::Debug for UringEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringEngine({RING_ENTRIES} operations at most)")
    }
}

impl UringEngine {
    /// Sets up a ring and the task that reaps it. Needs a tokio `LocalSet`.
    pub(crate) fn new() -> Result<Self, Errno> {
        let uring = set_up()?;
        // SAFETY: the descriptor is the ring's own and stays open during this borrow: `uring` lives
        // past it.
        let fd = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) };
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
        // SAFETY: the number behind an `OwnedFd` stays the same and open until the `AsyncFd` that
        // owns it is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
            .map_err(|error| Errno::from_io_error(&error.into()).unwrap_or(Errno::IO))?;
        let ring = Ring {
            uring,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            backlog: VecDeque::new(),
        };
        let shared = Rc::new(Shared {
            ring: RefCell::new(ring),
            driver: Rc::default(),
            woken: RefCell::default(),
            submit_failing: Cell::new(false),
            unsubmitted: Cell::new(0),
        });
        let driver = drive(fd, Rc::downgrade(&shared), Rc::clone(&shared.driver));
        tokio::task::spawn_local(driver);
        Ok(Self { shared })
    }

    pub(crate) async fn read(
        &self,
        file: &Arc<OpenFile>,
        buf: AlignedBuf,
        offset: u64,
    ) -> (AlignedBuf, Result<(), DiskError>) {
        let len = buf.len();
        match self.run(file, Transfer::Read(buf), offset, len).await {
            (Transfer::Read(buf), result) => (buf, result),
            _ => unreachable!("a read ends as a read"),
        }
    }

    pub(crate) async fn read_pieces(
        &self,
        file: &Arc<OpenFile>,
        pieces: Vec<AlignedBuf>,
        offset: u64,
    ) -> (Vec<AlignedBuf>, Result<(), DiskError>) {
        let len = total_len(&pieces);
        match self.run(file, Transfer::ReadPieces(pieces), offset, len).await {
            (Transfer::ReadPieces(pieces), result) => (pieces, result),
            _ => unreachable!("a read ends as a read"),
        }
    }

    pub(crate) async fn write(
        &self,
        file: &Arc<OpenFile>,
        pieces: Vec<SharedBuf>,
        offset: u64,
    ) -> (Vec<SharedBuf>, Result<(), DiskError>) {
        let len = total_len(&pieces);
        match self.run(file, Transfer::Write(pieces), offset, len).await {
            (Transfer::Write(pieces), result) => (pieces, result),
            _ => unreachable!("a write ends as a write"),
        }
    }

    /// Runs the sync of a group, and of all groups that form meanwhile.
    pub(crate) fn start_sync(&self, file: &Arc<OpenFile>, group: SyncGroup) {
        // The group's callers are answered by the gate: nobody waits for the slot.
        let running =
            Running { abandoned: true, ..Running::new(file, Transfer::Sync(Some(group)), 0, 0) };
        self.shared.start(running);
    }

    /// The files of the operations that a question is of and that have not ended.
    pub(crate) fn unanswered(&self, question: Question) -> Vec<Arc<str>> {
        let ring = self.shared.ring.borrow();
        let running = ring.slots.iter().filter_map(|slot| match &slot.state {
            State::Running(running) if question.is_of(running.number) => Some(&running.file.path),
            _ => None,
        });
        running.cloned().collect()
    }

    async fn run(
        &self,
        file: &Arc<OpenFile>,
        transfer: Transfer,
        offset: u64,
        wanted_bytes: usize,
    ) -> (Transfer, Result<(), DiskError>) {
        if wanted_bytes == 0 {
            return (transfer, Ok(()));
        }
        let running = Running::new(file, transfer, offset, wanted_bytes);
        let slot = self.shared.start(running);
        Reply { shared: Rc::clone(&self.shared), slot }.await
    }
}

/// Makes a ring and sees a no-operation through it: a sandbox may allow one and refuse the other.
fn set_up() -> Result<IoUring, Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut uring = match IoUring::builder().setup_single_issuer().build(RING_ENTRIES) {
        // Kernels before 6.0 do not know the flag.
        Err(error) if errno_is(&error, Errno::INVAL) => IoUring::new(RING_ENTRIES),
        result => result,
    }
    .map_err(errno)?;
    // SAFETY: a no-operation has no pointers.
    unsafe { uring.submission().push(&opcode::Nop::new().build()) }
        .expect("an empty queue has room");
    uring.submit_and_wait(1).map_err(errno)?;
    let completed = uring.completion().next().is_some_and(|completion| completion.result() == 0);
    // The kernel has a thread do what would block, four for each CPU at most unless it is told: a disk that hangs would
    // hold them all, and every sync of another disk would wait. Kernels before 5.15 do not know the call.
    if let Err(error) = uring.submitter().register_iowq_max_workers(&mut [RING_ENTRIES; 2]) {
        tracing::debug!(%error, "the threads of io_uring stay as few as they are");
    }
    if completed { Ok(uring) } else { Err(Errno::IO) }
}

fn errno_is(error: &std::io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

impl Ring {
    /// Hands the next step of a slot's operation to the kernel's queue.
    fn push(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let State::Running(running) = &mut slot.state else {
            unreachable!("U1: only a running operation has steps")
        };
        let user_data = u64::try_from(number).expect("slots are few");
        let flags = match running.file.blocks_callers {
            true => squeue::Flags::ASYNC,
            false => squeue::Flags::empty(),
        };
        let entry = next_entry(running, &mut slot.slices).user_data(user_data).flags(flags);
        // SAFETY: the entry points at buffers and at a slice table that this slot owns, and at a
        // descriptor that it keeps open; U1 keeps all of them, unmoved and unchanged, until the
        // completion (heap memory does not move when slots do), and U3 keeps the slots until the
        // ring has drained.
        unsafe { self.uring.submission().push(&entry) }
            .expect("U2: the queue has an entry for each operation with the kernel");
    }

    /// Starts operations of the backlog as far as there is room, also behind those of a file that has all it may have.
    /// Returns how many.
    fn start_backlog(&mut self) -> u32 {
        let (mut started, mut at) = (0, 0);
        while self.in_flight < RING_ENTRIES {
            let Some(number) = self.backlog.get(at).copied() else { break };
            let State::Running(running) = &self.slots[number].state else {
                unreachable!("U1: what waits in the backlog is running")
            };
            let file = &running.file;
            if file.entries.load(Ordering::Relaxed) >= file.entries_max
                && !weir_device::mutant("image_takes_whole_ring")
            {
                at += 1;
                continue;
            }
            file.entries.fetch_add(1, Ordering::Relaxed);
            self.backlog.remove(at);
            self.in_flight += 1;
            self.push(number);
            started += 1;
        }
        started
    }

    /// Takes one completion: either the operation goes on, or it has ended and its waker is
    /// returned.
    fn complete(&mut self, number: usize, result: i32) -> Step {
        let State::Running(running) = &mut self.slots[number].state else {
            unreachable!("U1: a completion belongs to a running operation")
        };
        let Some(result) = running.after(result) else { return Step::GoOn };
        let state = std::mem::replace(&mut self.slots[number].state, State::Free);
        let State::Running(running) = state else { unreachable!("it was running above") };
        self.in_flight -= 1;
        running.file.entries.fetch_sub(1, Ordering::Relaxed);
        if running.abandoned {
            self.free.push(number);
            return Step::Ended(None);
        }
        self.slots[number].state = State::Ended(running.transfer, result);
        Step::Ended(running.waker)
    }

    /// Takes every completion that is there. Returns whether there are new entries for the kernel.
    fn reap(&mut self, mut wake: impl FnMut(Waker)) -> bool {
        let mut new_entries = false;
        loop {
            let Some(completion) = self.uring.completion().next() else { break };
            let number = usize::try_from(completion.user_data()).expect("slots are few");
            match self.complete(number, completion.result()) {
                Step::Ended(Some(waker)) => wake(waker),
                Step::Ended(None) => {}
                Step::GoOn => {
                    self.push(number);
                    new_entries = true;
                }
            }
        }
        self.start_backlog() > 0 || new_entries
    }
}

enum Step {
    GoOn,
    Ended(Option<Waker>),
}

impl Running {
    fn new(file: &Arc<OpenFile>, transfer: Transfer, offset: u64, wanted_bytes: usize) -> Self {
        let file = Arc::clone(file);
        let (done_bytes, waker, abandoned, number) = (0, None, false, under_way::number());
        Self { transfer, file, offset, wanted_bytes, done_bytes, waker, abandoned, number }
    }

    /// Decides after a completion: `None` if there is more to do, else the result of the operation.
    fn after(&mut self, result: i32) -> Option<Result<(), DiskError>> {
        let operation = match &mut self.transfer {
            Transfer::Read(_) | Transfer::ReadPieces(_) => DiskOperation::Read,
            Transfer::Write(_) => DiskOperation::Write,
            Transfer::Sync(group) => {
                // An interrupted sync is not repeated: a second one could succeed without the
                // failure of the first.
                let ended = group.take().expect("a sync with the kernel has callers to answer");
                *group = self.file.syncs.finish(ended, errno_of(result).map_or(Ok(()), Err));
                return if group.is_some() { None } else { Some(Ok(())) };
            }
        };
        match errno_of(result) {
            Some(Errno::INTR) => return None,
            Some(errno) => return Some(Err(self.file.error(operation, Some(self.offset), errno))),
            None => {}
        }
        let moved = usize::try_from(result).expect("errors are handled above");
        let (done, wanted, alignment) = (self.done_bytes, self.wanted_bytes, self.file.alignment);
        let next = match operation {
            DiskOperation::Read => after_read(done, moved, wanted, alignment),
            _ => after_write(done, moved, wanted, alignment),
        };
        match next {
            Next::Done => Some(Ok(())),
            Next::Continue(done) => {
                self.done_bytes = done;
                None
            }
            Next::Stuck(moved) => Some(Err(self.file.short(operation, self.offset, wanted, moved))),
        }
    }
}

fn errno_of(result: i32) -> Option<Errno> {
    (result < 0).then(|| Errno::from_raw_os_error(-result))
}

/// The queue entry for what is left of an operation. Fills `slices` where it needs them.
fn next_entry(running: &mut Running, slices: &mut Vec<KernelSlice>) -> squeue::Entry {
    let fd = types::Fd(running.file.fd.as_fd().as_raw_fd());
    let at = running.offset + running.done_bytes as u64;
    match &mut running.transfer {
        Transfer::Read(buf) => {
            let rest = &mut buf[running.done_bytes..];
            let len = entry_len(rest.len().min(READ_BYTES_MAX));
            opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(at).build()
        }
        Transfer::ReadPieces(pieces) => {
            slices.clear();
            slices.extend(
                remaining_mut(pieces, running.done_bytes)
                    .map(|slice| KernelSlice { start: slice.as_mut_ptr(), len: slice.len() }),
            );
            let len = entry_len(slices.len());
            opcode::Readv::new(fd, slices.as_ptr().cast(), len).offset(at).build()
        }
        Transfer::Write(pieces) => {
            slices.clear();
            slices.extend(
                remaining(pieces, running.done_bytes)
                    .map(|slice| KernelSlice { start: slice.as_ptr(), len: slice.len() }),
            );
            let len = entry_len(slices.len());
            opcode::Writev::new(fd, slices.as_ptr().cast(), len).offset(at).build()
        }
        Transfer::Sync(group) => {
            let flags = match group.as_ref().map(|group| group.kind) {
                Some(SyncKind::Data) => types::FsyncFlags::DATASYNC,
                _ => types::FsyncFlags::empty(),
            };
            opcode::Fsync::new(fd).flags(flags).build()
        }
    }
}

fn entry_len(len: usize) -> u32 {
    u32::try_from(len).expect("lengths of entries are capped")
}

impl Shared {
    /// Puts an operation into a slot and its entry into the kernel's queue.
    fn start(&self, running: Running) -> usize {
        let mut ring = self.ring.borrow_mut();
        let number = match ring.free.pop() {
            Some(number) => number,
            None => {
                ring.slots.push(Slot { state: State::Free, slices: Vec::new() });
                ring.slots.len() - 1
            }
        };
        ring.slots[number].state = State::Running(running);
        ring.backlog.push_back(number);
        let known = self.unsubmitted.get();
        let unsubmitted = known + ring.start_backlog();
        self.unsubmitted.set(unsubmitted);
        if unsubmitted > 0 && unsubmitted >= ring.in_flight - unsubmitted {
            self.unsubmitted.set(0);
            self.submit(&mut ring);
        } else if known == 0 && unsubmitted > 0 {
            self.driver.wake();
        }
        number
    }

    /// U4: hands over what was started since the last turn.
    fn submit_started(&self) {
        if self.unsubmitted.take() > 0 {
            self.submit(&mut self.ring.borrow_mut());
        }
    }

    /// Tells the kernel of new entries. What it does not take now the driver offers again.
    fn submit(&self, ring: &mut Ring) {
        let result = loop {
            match ring.uring.submit() {
                Err(error) if errno_is(&error, Errno::INTR) => {}
                result => break result,
            }
        };
        let left = !ring.uring.submission().is_empty();
        if let Err(error) = &result
            && !self.submit_failing.get()
        {
            tracing::warn!(%error, "the kernel refuses I/O for now; trying again");
        }
        if left != self.submit_failing.replace(left) && left {
            self.driver.wake();
        }
    }

    /// Takes completions and wakes whoever waits for them.
    fn reap(&self) {
        let mut woken = self.woken.take();
        {
            let mut ring = self.ring.borrow_mut();
            let new_entries = ring.reap(|waker| woken.push(waker));
            if self.unsubmitted.take() > 0 || new_entries || self.submit_failing.get() {
                self.submit(&mut ring);
            }
        }
        // Outside the borrow: dropping a waker may drop a future, which looks at its slot.
        for waker in woken.drain(..) {
            waker.wake();
        }
        self.woken.replace(woken);
    }
}

/// Reaps the ring whenever it is readable, until it is gone.
async fn drive(fd: AsyncFd<OwnedFd>, shared: Weak<Shared>, driver: Rc<DriverWaker>) {
    loop {
        let retry = poll_fn(|context| {
            driver.waker.replace(Some(context.waker().clone()));
            poll_ring(&fd, &shared, context)
        })
        .await;
        match retry {
            Turn::Gone => return,
            Turn::SubmitFailed => {
                tokio::time::sleep(SUBMIT_RETRY).await;
                if let Some(shared) = shared.upgrade() {
                    shared.reap();
                }
            }
        }
    }
}

enum Turn {
    Gone,
    SubmitFailed,
}

fn poll_ring(
    fd: &AsyncFd<OwnedFd>,
    shared: &Weak<Shared>,
    context: &mut Context<'_>,
) -> Poll<Turn> {
    loop {
        let Some(shared) = shared.upgrade() else { return Poll::Ready(Turn::Gone) };
        shared.submit_started();
        if shared.submit_failing.get() {
            return Poll::Ready(Turn::SubmitFailed);
        }
        match fd.poll_read_ready(context) {
            Poll::Pending => return Poll::Pending,
            // The runtime is going away, and this task with it.
            Poll::Ready(Err(_)) => return Poll::Ready(Turn::Gone),
            Poll::Ready(Ok(mut ready)) => {
                // In this order: a completion that comes after the reaping must wake us again.
                ready.clear_ready();
                shared.reap();
            }
        }
    }
}

/// Waits for the end of the operation in a slot.
struct Reply {
    shared: Rc<Shared>,
    slot: usize,
}

impl Future for Reply {
    type Output = (Transfer, Result<(), DiskError>);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ring = &mut *self.shared.ring.borrow_mut();
        let slot = &mut ring.slots[self.slot];
        if let State::Running(running) = &mut slot.state {
            match &mut running.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => running.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut slot.state, State::Free) {
            State::Ended(transfer, result) => Poll::Ready((transfer, result)),
            _ => panic!("a reply is taken once"),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let unheard = {
            let ring = &mut *self.shared.ring.borrow_mut();
            match &mut ring.slots[self.slot].state {
                State::Running(running) => {
                    running.abandoned = true;
                    running.waker.take();
                    return;
                }
                state => {
                    let state = std::mem::replace(state, State::Free);
                    ring.free.push(self.slot);
                    state
                }
            }
        };
        drop(unheard);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.wake();
        let ring = self.ring.get_mut();
        while ring.in_flight > 0 {
            match ring.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if errno_is(&error, Errno::INTR) => {}
                Err(error) => {
                    // U3 cannot be kept any other way: the kernel may still use this memory.
                    tracing::error!(%error, in_flight = ring.in_flight, "the ring does not drain");
                    std::mem::forget(std::mem::take(&mut ring.slots));
                    return;
                }
            }
            ring.reap(drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::open_file::Descriptor;

    fn opened(fd: OwnedFd) -> OpenFile {
        OpenFile::new(Descriptor::Own(fd), Arc::from("test"), 1)
    }

    /// A pipe in which nothing is hangs as a disk does.
    #[tokio::test]
    async fn an_image_that_hangs_leaves_entries_to_others() {
        let test = async {
            // Where the kernel refuses rings, volumes use threads.
            let Ok(engine) = UringEngine::new() else { return };
            let (hangs, mut writer) = std::io::pipe().unwrap();
            let mut image = opened(hangs.into());
            image.entries_max = IMAGE_ENTRIES_MAX;
            let image = Arc::new(image);
            let hanging: Vec<_> = (0..2 * RING_ENTRIES)
                .map(|_| {
                    let (engine, image) = (engine.clone(), Arc::clone(&image));
                    let read = async move { engine.read(&image, AlignedBuf::zeroed(1), 0).await };
                    tokio::task::spawn_local(read)
                })
                .collect();
            while engine.shared.ring.borrow().slots.len() < hanging.len() {
                tokio::task::yield_now().await;
            }
            let file = tempfile::tempfile().unwrap();
            file.set_len(4096).unwrap();
            let other = Arc::new(opened(file.into()));
            let read = engine.read(&other, AlignedBuf::zeroed(4096), 0);
            let (_, read) = tokio::time::timeout(Duration::from_secs(20), read)
                .await
                .expect("the file has an entry");
            read.unwrap();
            // Those that waited for an entry come in their turn.
            let bytes = [7; 2 * RING_ENTRIES as usize];
            std::io::Write::write_all(&mut writer, &bytes).unwrap();
            for one in hanging {
                let (buf, read) = one.await.unwrap();
                read.unwrap();
                assert_eq!(buf[0], 7);
            }
            assert_eq!(image.entries.load(Ordering::Relaxed), 0, "each is given back");
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }
}
