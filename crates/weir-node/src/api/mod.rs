//! The HTTP/JSON API of a serving process: how verbs, scrapers and other programs reach it.

pub mod client;
mod meant;
pub(crate) mod named;
pub(crate) mod progress;
pub(crate) mod refusal;
pub(crate) mod routes;
pub(crate) mod server;
pub mod types;

pub use routes::openapi_json;
pub use server::{TcpAccess, TcpApi};
