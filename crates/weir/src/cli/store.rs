//! `weir store` and its verbs.

use clap::Subcommand;

use crate::terminal::form::Output;

/// `weir store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Try out whether a store keeps what volumes rest on; the exit code says whether it may be used
    Probe {
        /// The store, as s3://bucket/prefix
        url: String,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}
