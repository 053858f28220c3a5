//! A remote volume over a simulated network: one behaviour per test.

mod blocks;
mod conforming;
mod exclusive;
mod losses;
mod support;
mod waits;
