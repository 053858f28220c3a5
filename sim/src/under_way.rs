//! Which verbs are under way, and what may happen when a lease runs out.

use std::cell::{Cell, RefCell};

use tokio::time::Instant;
use weir_log::Takeover;

/// The verbs that are under way, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    pub(crate) active: RefCell<Vec<Active>>,
    pub(crate) begun: Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub(crate) number: u64,
    pub(crate) host: usize,
    pub(crate) verb: &'static str,
}

/// What may happen when the holder's lease runs out: while it is being changed, either.
#[derive(Debug, Default)]
pub(crate) struct Rule {
    pub(crate) auto: Cell<bool>,
    pub(crate) manual: Cell<bool>,
    /// When it was settled that nobody has to be told to any more.
    was_manual: Cell<Option<Instant>>,
}

impl Rule {
    pub(crate) fn add(&self, takeover: Takeover) {
        match takeover {
            Takeover::Auto => self.auto.set(true),
            Takeover::Manual => self.manual.set(true),
        }
    }

    pub(crate) fn settle(&self, takeover: Takeover) {
        if self.manual.get() {
            self.was_manual.set(Some(Instant::now()));
        }
        self.auto.set(takeover == Takeover::Auto);
        self.manual.set(takeover == Takeover::Manual);
    }

    /// Whether another node may take the volume without being told to.
    pub(crate) fn may_be_auto(&self) -> bool {
        self.auto.get()
    }

    /// Whether it may have had to be told to at any moment since `start`.
    pub(crate) fn was_manual_since(&self, start: Instant) -> bool {
        self.manual.get() || self.was_manual.get().is_some_and(|last| last >= start)
    }

    pub(crate) fn is_auto(&self) -> bool {
        self.auto.get() && !self.manual.get()
    }
}
