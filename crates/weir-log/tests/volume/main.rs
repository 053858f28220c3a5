//! The log volume over a simulated disk and a store in memory: one behaviour per test. What random crashes do to it is
//! the business of the simulation.

mod adopted;
mod behaviour;
mod cached;
mod changes;
mod clones;
mod collect;
mod damage;
mod deletion;
mod device;
mod encryption;
mod failed_disk;
mod histories;
mod history;
mod leases;
mod lost;
mod openings;
mod pacing;
mod packed;
mod rename;
mod repair;
mod replicas;
mod resize;
mod rollback;
mod salvage;
mod scale;
mod snapshots;
mod support;
mod takeover;
mod warm;
