//! What a device answers, and what the answer depends on until it leaves.

use std::fmt;
use std::rc::Rc;

use crate::{Data, DeviceError, ErrorKind};

/// What a range of a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentState {
    /// Bytes that were written.
    Data,
    /// Known to read as zeroes, provisioned.
    Zero,
    /// Never written or discarded; reads as zeroes.
    Hole,
}

/// A run of bytes in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// What it holds.
    pub state: ExtentState,
}

/// What an operation that succeeded brings back.
#[derive(Clone, Debug)]
pub enum Body {
    /// It is done.
    Done,
    /// What was read, as long as what was asked for.
    Data(Data),
    /// What a range holds.
    Extents(Vec<Extent>),
}

/// A right that an answer depends on until it reaches the client, such as the exclusive ownership of a volume.
pub trait Lease {
    /// Whether an answer may still leave. Cheap, and does not block.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] where another owner may have begun, or why the device is gone.
    fn check(&self) -> Result<(), DeviceError>;
}

/// The leases that an answer depends on: none, one in nearly all cases, or those of several devices.
#[derive(Clone, Default)]
pub struct Leases {
    first: Option<Rc<dyn Lease>>,
    others: Vec<Rc<dyn Lease>>,
}

impl Leases {
    /// One lease.
    #[must_use]
    pub fn of(lease: Rc<dyn Lease>) -> Self {
        Self { first: Some(lease), others: Vec::new() }
    }

    /// Depends on those of `other` as well; one that both name counts once.
    pub fn join(&mut self, other: &Self) {
        for lease in other.first.iter().chain(&other.others) {
            let is_known = self.first.iter().chain(&self.others).any(|own| Rc::ptr_eq(own, lease));
            match &self.first {
                _ if is_known => {}
                None => self.first = Some(Rc::clone(lease)),
                Some(_) => self.others.push(Rc::clone(lease)),
            }
        }
    }

    /// Whether every one of them still holds.
    ///
    /// # Errors
    /// Of the first that does not.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.first.iter().chain(&self.others).try_for_each(|lease| lease.check())
    }

    /// Depends on nothing any more.
    pub fn clear(&mut self) {
        self.first = None;
        self.others.clear();
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leases({})", usize::from(self.first.is_some()) + self.others.len())
    }
}

/// The answer to an operation that succeeded.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What it brings back.
    pub body: Body,
    /// What must hold at the moment when the reply leaves the process: whoever sends it checks exactly these.
    pub leases: Leases,
    /// Which content of the device it shows. A rollback begins another; what was read before fills no cache after it.
    pub generation: u64,
}

impl Reply {
    /// A reply that depends on nothing, of a device whose content is never replaced.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self { body, leases: Leases::default(), generation: 0 }
    }

    /// The bytes that were read.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] where the device answered something else.
    pub fn into_data(self) -> Result<Data, DeviceError> {
        match self.body {
            Body::Data(data) => Ok(data),
            _ => Err(DeviceError::new(ErrorKind::Bug, "a read was answered without data")),
        }
    }

    /// The extents that were asked for.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] where the device answered something else.
    pub fn into_extents(self) -> Result<Vec<Extent>, DeviceError> {
        match self.body {
            Body::Extents(extents) => Ok(extents),
            _ => Err(DeviceError::new(ErrorKind::Bug, "extents were asked for and not answered")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Held(Cell<bool>);

    impl Lease for Held {
        fn check(&self) -> Result<(), DeviceError> {
            let lost = || DeviceError::new(ErrorKind::Fenced, "superseded");
            self.0.get().then_some(()).ok_or_else(lost)
        }
    }

    #[test]
    fn a_reply_may_leave_as_long_as_every_lease_holds_that_it_depends_on() {
        let [a, b, c] = std::array::from_fn(|_| Rc::new(Held(Cell::new(true))));
        let of = |held: &Rc<Held>| Leases::of(Rc::clone(held) as Rc<dyn Lease>);
        let mut joined = Leases::default();
        for lease in [&a, &b, &a, &b] {
            joined.join(&of(lease));
        }
        assert_eq!(format!("{joined:?}"), "Leases(2)", "each counts once");
        c.0.set(false);
        joined.check().expect("it does not depend on that one");
        b.0.set(false);
        assert_eq!(joined.check().unwrap_err().kind(), ErrorKind::Fenced);
        joined.clear();
        joined.check().expect("it depends on nothing");
    }
}
