//! What goes wrong, and how often: plain values that a test or a simulated run changes as it goes.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How often something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u32);

impl Chance {
    /// Parts in one.
    const WHOLE: u32 = 1_000_000;
    /// It never happens.
    pub const NEVER: Self = Self(0);
    /// It always happens.
    pub const ALWAYS: Self = Self(Self::WHOLE);

    /// So many times in a hundred; a hundred at most.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self::per_million(percent.saturating_mul(10_000))
    }

    /// So many times in a million; a million at most.
    #[must_use]
    pub const fn per_million(parts: u32) -> Self {
        Self(if parts < Self::WHOLE { parts } else { Self::WHOLE })
    }

    /// Whether it happens, by the next random number. Takes none where there is no choice.
    pub(crate) fn happens(self, random: impl FnOnce() -> u64) -> bool {
        match self {
            Self::NEVER => false,
            Self::ALWAYS => true,
            Self(parts) => random() % u64::from(Self::WHOLE) < u64::from(parts),
        }
    }
}

/// What can go wrong with every kind of operation, before the store does anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationFaults {
    /// The store fails (HTTP 5xx).
    pub server_error: Chance,
    /// The store asks to slow down (HTTP 429).
    pub throttled: Chance,
    /// No answer ever comes; the attempt times out.
    pub timeout: Chance,
}

/// Everything that can go wrong. The default is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// How long an operation takes. The store acts at a random point within it.
    pub latency: RangeInclusive<Duration>,
    /// Faults of PUTs.
    pub put: OperationFaults,
    /// Faults of GETs.
    pub get: OperationFaults,
    /// Faults of LISTs.
    pub list: OperationFaults,
    /// Faults of DELETEs.
    pub delete: OperationFaults,
    /// A PUT or DELETE is done, and answered with an error.
    pub lost_reply: Chance,
    /// A PUT is answered with an error and done later. Also: a PUT whose future is dropped before the store acted (its
    /// attempt timed out, its node crashed) is done later.
    pub late_put: Chance,
    /// Lost replies and late PUTs are of keys that contain this: of all, while it is empty.
    pub lost_of: &'static str,
    /// How much later.
    pub late_put_delay: RangeInclusive<Duration>,
    /// A GET returns fewer bytes than it should.
    pub short_body: Chance,
    /// A GET returns one wrong bit.
    pub flipped_bit: Chance,
    /// A GET is answered "no such object".
    pub missing_key: Chance,
    /// A LIST does not show the newest objects.
    pub stale_list: Chance,
    /// How old a stale list is at most.
    pub stale_list_age_max: Duration,
    /// How often in a row chance lets an operation on a key fail or its reply be lost; any number of times, if `None`.
    pub in_a_row_max: Option<u32>,
    /// All operations fail.
    pub outage: bool,
    /// No operation is answered.
    pub silence: bool,
    /// Its file system says that it is full. It takes what is put all the same.
    pub no_room: bool,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO..=Duration::ZERO,
            put: OperationFaults::default(),
            get: OperationFaults::default(),
            list: OperationFaults::default(),
            delete: OperationFaults::default(),
            lost_reply: Chance::NEVER,
            late_put: Chance::NEVER,
            lost_of: "",
            late_put_delay: Duration::ZERO..=Duration::from_secs(120),
            short_body: Chance::NEVER,
            flipped_bit: Chance::NEVER,
            missing_key: Chance::NEVER,
            stale_list: Chance::NEVER,
            stale_list_age_max: Duration::from_secs(10),
            in_a_row_max: None,
            outage: false,
            silence: false,
            no_room: false,
        }
    }
}
