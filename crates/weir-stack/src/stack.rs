//! The stack of a volume: stages over an endpoint, and the device that its clients call.
//!
//! Invariants
//!  K1. Only the stack opens and closes its endpoint, and nobody else calls it.
//!  K2. Events are taken by the stack alone. They pass the stages on their way, before the verb that caused them
//!      returns and before operations go on that waited for it; the owner of the stack finds them queued.
//!  K3. A verb that replaces the content, or names a state of it, does so with nothing dirty in a stage.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::Mutex;
use weir_device::{
    Device, DeviceError, DeviceInfo, Env, ErrorKind, Event, Events, History, IoHeader,
    LocalBoxFuture, Operation, Reply, mutant,
};
use weir_log::{LogVolume, OpenReport, SnapshotView};

use crate::endpoint::{Endpoint, EndpointSpec};
use crate::error::StackError;
use crate::gate::Gate;
use crate::layer::{Below, Layer};
use crate::limit::{Limit, LimitSettings, Rate};
use crate::measured::{Counted, Counters, Measured};
use crate::status::{LayerStatus, StageStatus};
use crate::trace::{Trace, TraceLog, TraceSpec};

/// Makes a stage over what is below it.
type MakeLayer = Box<dyn FnOnce(Below) -> Rc<dyn Layer>>;

/// One stage of a description.
pub enum StageSpec {
    /// Holds operations up. The first one of a stack is what [`Stack::set_limit`] changes.
    Limit(LimitSettings),
    /// Records the headers of operations.
    Trace(TraceSpec),
    /// A stage of another kind.
    Other(MakeLayer),
}

impl fmt::Debug for StageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(settings) => write!(f, "{settings:?}"),
            Self::Trace(spec) => write!(f, "{spec:?}"),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

/// What a stack is made of.
#[derive(Debug)]
pub struct StackSpec {
    /// The bottom.
    pub endpoint: EndpointSpec,
    /// The stages, the topmost first.
    pub stages: Vec<StageSpec>,
}

impl StackSpec {
    /// An endpoint without stages.
    #[must_use]
    pub fn plain(endpoint: EndpointSpec) -> Self {
        Self { endpoint, stages: Vec::new() }
    }
}

/// What calls go to first. A stack without stages calls its endpoint without an allocation.
#[derive(Clone)]
enum Top {
    Endpoint(Endpoint),
    Layer(Rc<dyn Layer>),
}

/// The layers of a stack as they are now.
struct Layers {
    top: Top,
    /// The stages, the topmost first.
    stages: Vec<Rc<dyn Layer>>,
    /// The endpoint as the lowest stage sees it. Without stages it is called directly, and the counters of the stack
    /// are those of the endpoint.
    endpoint: Option<Rc<Measured<Endpoint>>>,
    /// What [`Stack::set_limit`] changes.
    rate: Option<Rc<Rate>>,
    /// Whether that limit was put on top while the stack was open.
    is_limit_added: bool,
}

/// A volume's stack. See the head of this file.
pub struct Stack {
    pub(crate) env: Env,
    pub(crate) endpoint: Endpoint,
    layers: RefCell<Layers>,
    counters: Counters,
    pub(crate) gate: Rc<Gate>,
    /// What the owner of the stack has not taken yet.
    events: Events,
    /// Whoever takes the events of the devices when no verb does.
    pump: RefCell<Option<Waker>>,
    /// One verb at a time that needs the content to stand still.
    pub(crate) verbs: Mutex<()>,
    pub(crate) is_closed: Cell<bool>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stack({:?})", self.endpoint)
    }
}

/// Puts the stages on the endpoint, the lowest first.
fn build(env: &Env, endpoint: &Endpoint, stages: Vec<StageSpec>) -> Layers {
    let mut layers = Layers {
        top: Top::Endpoint(endpoint.clone()),
        stages: Vec::with_capacity(stages.len()),
        endpoint: None,
        rate: None,
        is_limit_added: false,
    };
    for spec in stages.into_iter().rev() {
        layers.put_on(endpoint, |below| match spec {
            StageSpec::Limit(settings) => {
                let rate = Rc::new(Rate::new(settings));
                (Rc::new(Measured::new(Limit::new(below, Rc::clone(&rate)))), Some(rate))
            }
            StageSpec::Trace(spec) => {
                (Rc::new(Measured::new(Trace::new(below, TraceLog::begin(env, spec)))), None)
            }
            StageSpec::Other(make) => (make(below), None),
        });
    }
    layers
}

impl Layers {
    fn put_on(
        &mut self,
        endpoint: &Endpoint,
        make: impl FnOnce(Below) -> (Rc<dyn Layer>, Option<Rc<Rate>>),
    ) {
        let below = match self.stages.first() {
            Some(stage) => Below::Layer(Rc::clone(stage)),
            None => {
                let counted = Rc::new(Measured::new(endpoint.clone()));
                Below::Endpoint(Rc::clone(self.endpoint.insert(counted)))
            }
        };
        let (layer, rate) = make(below);
        self.rate = rate.or_else(|| self.rate.take());
        self.top = Top::Layer(Rc::clone(&layer));
        self.stages.insert(0, layer);
    }

    fn take_off(&mut self, endpoint: &Endpoint) {
        self.stages.remove(0);
        self.top = match self.stages.first() {
            Some(stage) => Top::Layer(Rc::clone(stage)),
            None => Top::Endpoint(endpoint.clone()),
        };
        if self.stages.is_empty() {
            self.endpoint = None;
        }
    }
}

impl Stack {
    /// Opens the endpoint, and puts the stages on it.
    ///
    /// # Errors
    /// Why the endpoint cannot be opened.
    // Boxed, so that it is compiled once and not in each crate that awaits it.
    #[inline(never)]
    pub fn open<'a>(
        env: &'a Env,
        spec: StackSpec,
    ) -> LocalBoxFuture<'a, Result<(Rc<Self>, OpenReport), StackError>> {
        Box::pin(async move {
            let (endpoint, report) = spec.endpoint.open(env).await?;
            let stack = Rc::new(Self {
                env: env.clone(),
                layers: RefCell::new(build(env, &endpoint, spec.stages)),
                endpoint,
                counters: Counters::default(),
                gate: Rc::default(),
                events: Events::default(),
                pump: RefCell::default(),
                verbs: Mutex::new(()),
                is_closed: Cell::new(false),
            });
            let weak = Rc::downgrade(&stack);
            env.spawn_local(poll_fn(move |cx| Self::poll_pump(&weak, cx)));
            Ok((stack, report))
        })
    }

    fn top(&self) -> Top {
        self.layers.borrow().top.clone()
    }

    /// A call that waits for no quiesce: of the verbs.
    pub(crate) async fn call_top(
        &self,
        io: IoHeader,
        operation: Operation,
    ) -> Result<Reply, DeviceError> {
        match self.top() {
            Top::Endpoint(endpoint) => endpoint.call(io, operation).await,
            Top::Layer(layer) => layer.dyn_call(io, operation).await,
        }
    }

    /// The stages, the topmost first.
    pub(crate) fn stages(&self) -> Vec<Rc<dyn Layer>> {
        self.layers.borrow().stages.clone()
    }

    /// Whether a stage acknowledges writes before the endpoint does.
    pub(crate) fn holds_writes(&self) -> bool {
        self.layers.borrow().stages.iter().any(|layer| layer.stage().holds_writes())
    }

    /// Bytes that stages acknowledged and that the layers below lack.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.layers.borrow().stages.iter().map(|layer| layer.stage().dirty_bytes()).sum()
    }

    fn poll_pump(stack: &Weak<Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stack) = stack.upgrade().filter(|stack| !stack.is_closed.get()) else {
            return Poll::Ready(());
        };
        *stack.pump.borrow_mut() = Some(cx.waker().clone());
        stack.take_events();
        Poll::Pending
    }

    /// K2: has the events that there are pass the stages.
    pub(crate) fn take_events(&self) {
        let waker = self.pump.borrow().clone();
        let waker = waker.as_ref().unwrap_or(Waker::noop());
        let mut cx = Context::from_waker(waker);
        loop {
            let polled = match self.top() {
                Top::Endpoint(endpoint) => endpoint.poll_event(&mut cx),
                Top::Layer(_) if mutant("events_pass_stages_by") => {
                    self.endpoint.poll_event(&mut cx)
                }
                Top::Layer(layer) => layer.dyn_poll_event(&mut cx),
            };
            let Poll::Ready(event) = polled else { return };
            if !(mutant("event_lost") && matches!(event, Event::ContentReplaced { .. })) {
                self.events.push(event);
            }
        }
    }

    /// Ends the task that takes events.
    pub(crate) fn end_pump(&self) {
        if let Some(waker) = self.pump.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The log volume at the bottom.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where something else is there.
    pub(crate) fn log(&self) -> Result<&Rc<LogVolume>, DeviceError> {
        match &self.endpoint {
            Endpoint::Log(volume) => Ok(volume),
            other => Err(DeviceError::new(
                ErrorKind::Unsupported,
                format!("{} is no log volume", other.name()),
            )),
        }
    }

    /// Whether a log volume is at the bottom.
    #[must_use]
    pub fn is_log(&self) -> bool {
        matches!(self.endpoint, Endpoint::Log(_))
    }

    /// The view at the bottom, of a snapshot or a replica.
    #[must_use]
    pub fn view(&self) -> Option<&Rc<SnapshotView>> {
        match &self.endpoint {
            Endpoint::View(view) | Endpoint::Snapshot(view) => Some(view),
            Endpoint::Log(_) | Endpoint::Memory(_) | Endpoint::Remote(_) | Endpoint::File(_) => {
                None
            }
        }
    }

    /// The earlier states of what is at the bottom, if it knows any.
    #[must_use]
    pub fn history(&self) -> Option<Rc<dyn History>> {
        match &self.endpoint {
            Endpoint::Snapshot(view) => Some(Rc::clone(view) as Rc<dyn History>),
            _ => None,
        }
    }

    /// What clients asked for, waits included, in the order of [`Kind::ALL`](crate::Kind::ALL).
    #[must_use]
    pub fn operations(&self) -> [Counted; 4] {
        self.counters.copy()
    }

    /// Operations of clients that run now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.gate.in_flight()
    }

    /// Whether operations wait for a verb at present.
    #[must_use]
    pub fn is_quiesced(&self) -> bool {
        self.gate.is_quiesced()
    }

    /// Returns once a file or block device at the bottom has answered what its close will ask it; at once where there
    /// is none. What is written so far is durable then, unless the status says otherwise.
    pub async fn answers(&self) {
        if let Endpoint::File(volume) = &self.endpoint {
            volume.answers().await;
        }
    }

    /// Layer by layer, the topmost first, the endpoint last.
    #[must_use]
    pub fn layers(&self) -> Vec<LayerStatus> {
        let layers = self.layers.borrow();
        let mut found: Vec<LayerStatus> = Vec::with_capacity(layers.stages.len() + 1);
        found.extend(layers.stages.iter().map(|layer| LayerStatus {
            stage: layer.stage().status(),
            operations: layer.operations(),
            dirty_bytes: layer.stage().dirty_bytes(),
        }));
        found.push(LayerStatus {
            stage: match &self.endpoint {
                Endpoint::Remote(volume) => StageStatus::Remote(volume.status()),
                Endpoint::File(volume) => StageStatus::File(volume.status()),
                other => StageStatus::Other(other.name()),
            },
            operations: match &layers.endpoint {
                Some(counted) => counted.operations(),
                None => self.counters.copy(),
            },
            dirty_bytes: 0,
        });
        found
    }

    /// What is limited now.
    #[must_use]
    pub fn limit(&self) -> LimitSettings {
        self.layers.borrow().rate.as_ref().map_or_else(LimitSettings::default, |r| r.settings())
    }

    /// Sets another limit, at once, for operations that wait already, too. A stack that has no such stage gets one on
    /// top, and loses it again when nothing is limited any more.
    pub fn set_limit(&self, settings: LimitSettings) {
        let mut layers = self.layers.borrow_mut();
        match layers.rate.clone() {
            Some(rate) => {
                rate.set(settings);
                if settings.is_unlimited() && layers.is_limit_added {
                    // Those who wait in it hold it until they have passed.
                    layers.take_off(&self.endpoint);
                    (layers.rate, layers.is_limit_added) = (None, false);
                }
            }
            None if settings.is_unlimited() => {}
            None => {
                layers.put_on(&self.endpoint, |below| {
                    let rate = Rc::new(Rate::new(settings));
                    (Rc::new(Measured::new(Limit::new(below, Rc::clone(&rate)))), Some(rate))
                });
                layers.is_limit_added = true;
            }
        }
        drop(layers);
        // A device tells of its events to whoever asked last.
        self.take_events();
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.end_pump();
    }
}

impl Device for Stack {
    fn info(&self) -> DeviceInfo {
        match self.top() {
            Top::Endpoint(endpoint) => endpoint.info(),
            Top::Layer(layer) => layer.dyn_info(),
        }
    }

    async fn call(&self, io: IoHeader, operation: Operation) -> Result<Reply, DeviceError> {
        self.counters
            .count(operation, async |operation| {
                let running = self.gate.enter().await?;
                let _running = (!mutant("in_flight_not_counted")).then_some(running);
                let reply = self.call_top(io, operation).await?;
                self.gate.check_cut()?;
                Ok(reply)
            })
            .await
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Event> {
        self.events.poll(cx)
    }
}
