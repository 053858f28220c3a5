//! Stacks over a log volume on a simulated disk and a store in memory: one behaviour per test.

mod batches;
mod conforming;
mod split;
mod support;
mod verbs;
mod write_back;
