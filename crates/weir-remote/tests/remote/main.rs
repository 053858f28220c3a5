//! A remote volume over a simulated network: one behaviour per test.

mod conforming;
mod losses;
mod support;
mod waits;
