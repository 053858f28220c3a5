//! Events of a node, kept for people and programs that ask later: a bounded ring in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Events kept. A busy day has fewer; older ones are in the log.
const EVENTS_MAX: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number; every event of this process has a higher one than those before it.
    pub number: u64,
    /// When, in milliseconds since 1970 by the host's clock.
    pub time_ms: u64,
    /// What: `volume_opened`, `volume_closed`, `volume_failed`, `volume_resized`, `volume_degraded`,
    /// `volume_recovered`, `volume_created`, `volume_deleted`, `limits_changed`, `node_stopping`.
    pub kind: String,
    /// The volume it is about, if it is about one.
    pub volume: Option<String>,
    /// For people.
    pub message: String,
}

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    events: VecDeque<Event>,
}

/// The events of one process.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Ring>);

impl Events {
    /// Notes an event, and logs it.
    pub(crate) fn note(
        &self,
        kind: &'static str,
        volume: Option<&str>,
        message: impl Into<String>,
    ) {
        let message = message.into();
        tracing::info!(kind, volume, message, "event");
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last += 1;
        let (number, volume) = (ring.last, volume.map(str::to_owned));
        if ring.events.len() == EVENTS_MAX {
            ring.events.pop_front();
        }
        ring.events.push_back(Event { number, time_ms, kind: kind.to_owned(), volume, message });
    }

    /// The events after number `after`, oldest first.
    pub(crate) fn after(&self, after: u64) -> Vec<Event> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.iter().filter(|event| event.number > after).cloned().collect()
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_and_numbers_go_on() {
        let events = Events::default();
        for number in 0..EVENTS_MAX + 5 {
            events.note("volume_opened", Some("demo"), format!("{number}"));
        }
        let kept = events.after(0);
        assert_eq!(kept.len(), EVENTS_MAX);
        assert_eq!((kept[0].number, kept[0].message.as_str()), (6, "5"));
        assert_eq!(events.after(events.count() - 1).len(), 1);
        assert_eq!(events.after(u64::MAX), []);
    }
}
