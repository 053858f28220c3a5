//! The HTTP/JSON API of a serving process: how verbs, scrapers and other programs reach it.

mod attach;
pub mod client;
mod clones;
mod meant;
mod metrics;
pub(crate) mod progress;
mod repair;
mod routes;
pub(crate) mod server;
mod snapshots;
pub mod types;

pub use routes::openapi_json;
pub use server::TcpApi;
