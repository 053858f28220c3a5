//! Events of a node, kept for people and programs that ask later: a bounded ring in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Events kept. A busy day has fewer; older ones are in the log.
const EVENTS_MAX: usize = 1024;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A volume is served.
    VolumeOpened,
    /// A volume is served no longer, and everything is in the store: the process stops, or the configuration of a
    /// start does not have the volume any more.
    VolumeClosed,
    /// A volume was detached.
    VolumeDetached,
    /// A volume could not be opened or closed, or takes no writes.
    VolumeFailed,
    /// Something is wrong with a volume that still does its work.
    VolumeDegraded,
    /// Nothing is wrong with the volume any more.
    VolumeRecovered,
    /// A volume was created.
    VolumeCreated,
    /// A volume was created as a clone.
    VolumeCloned,
    /// A volume has another name.
    VolumeRenamed,
    /// A volume has another size.
    VolumeResized,
    /// The limits of a volume's clients were changed.
    VolumeLimited,
    /// Bytes that were lost were given up, so that the volume works again.
    VolumeRepaired,
    /// A volume was deleted.
    VolumeDeleted,
    /// A volume was set back to a snapshot.
    VolumeRolledBack,
    /// Who may take a volume over was changed.
    TakeoverChanged,
    /// A snapshot was taken.
    SnapshotTaken,
    /// A snapshot was deleted.
    SnapshotDeleted,
    /// A snapshot is exported to its first client.
    SnapshotOpened,
    /// The last client of a snapshot left.
    SnapshotClosed,
    /// A replica is kept up to date no longer.
    ReplicaEnded,
    /// The limits of the node were changed.
    LimitsChanged,
    /// The cache on the local disk has another size.
    CacheResized,
    /// Clients were refused, because the node has as many as it may have.
    ClientsRefused,
    /// The program was to be replaced, and was not.
    NodeNotReplaced,
    /// The node stops.
    NodeStopping,
    /// What only a newer version knows.
    #[serde(other)]
    Other,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number; every event of this process has a higher one than those before it.
    pub number: u64,
    /// When, in milliseconds since 1970 by the host's clock.
    pub time_ms: u64,
    /// What.
    pub kind: EventKind,
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
    pub(crate) fn note(&self, kind: EventKind, volume: Option<&str>, message: impl Into<String>) {
        let message = message.into();
        tracing::info!(?kind, volume, message, "event");
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last += 1;
        let (number, volume) = (ring.last, volume.map(str::to_owned));
        if ring.events.len() == EVENTS_MAX {
            ring.events.pop_front();
        }
        ring.events.push_back(Event { number, time_ms, kind, volume, message });
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
            events.note(EventKind::VolumeOpened, Some("demo"), format!("{number}"));
        }
        let kept = events.after(0);
        assert_eq!(kept.len(), EVENTS_MAX);
        assert_eq!((kept[0].number, kept[0].message.as_str()), (6, "5"));
        assert_eq!(events.after(events.count() - 1).len(), 1);
        assert_eq!(events.after(u64::MAX), []);
    }
}
