//! Object stores of Weir by URL: create-only PUTs, verified reads, retries, fault injection.
//!
//! The log volume rests on four promises of a store, and this crate gives no others:
//! an object is created once and never changed; a create that was answered survives power loss; a listing is
//! complete and shows only objects that survive power loss; a read returns exactly the bytes that were asked for,
//! or an error. [`Store`] checks what can be checked from outside (lengths, keys, timeouts); the backends below it do
//! the work, and the fault decorator sits between the two, so that a lie of a store meets the same checks as in
//! production.
//!
//! This crate must not know volumes, formats, checksums or leases.

mod backend;
mod cloud;
mod counters;
mod directory;
mod error;
mod faults;
mod http;
mod key;
mod limits;
mod location;
mod memory;
mod options;
mod probe;
mod profile;
mod refusal;
mod remote;
mod retry;
mod s3;
mod store;
mod uploads;

pub use backend::{Listed, Put};
pub use counters::StoreCounters;
pub use error::{Cause, Place, StoreError};
pub use faults::{
    Chance, Fault, FaultCounts, FaultPlan, Faults, OperationFaults, TraceEntry, Watched,
};
pub use limits::{ATTEMPT_TIMEOUT, KEY_BYTES_MAX, KEY_SEGMENT_BYTES_MAX, UNDELAYED_PUT_BYTES_MAX};
pub use options::{S3Options, Secret, StoreOptions};
pub use probe::{Access, ProbeCheck, ProbeRecord, ProbeRecordError, ProbeReport, Verdict};
pub use refusal::Refusal;
pub use retry::{RetryPolicy, RetryScope, retry};
pub use store::Store;
pub use uploads::{UploadLimits, UploadRates};
