//! `weir limits` and its verbs.

use std::num::NonZeroU64;

use clap::{ArgGroup, Subcommand, ValueEnum};
use weir_node::size::Size;

use crate::terminal::form::Output;

/// `weir limits`.
#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Show the limits
    Show {
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Change limits at once, until the process ends; what is not given stays as it is
    #[command(group = ArgGroup::new("limit").required(true).multiple(true))]
    Set {
        /// Bytes per second uploaded to the store at most, as 20M; or none
        #[arg(long, value_name = "SIZE")]
        #[arg(value_parser = bandwidth, group = "limit")]
        upload_bandwidth: Option<Limit<Size>>,
        /// Upload requests per second to the store at most; or none
        #[arg(long, value_name = "COUNT")]
        #[arg(value_parser = requests, group = "limit")]
        upload_requests: Option<Limit<NonZeroU64>>,
        /// Whether work in the background, uploads above all, takes all that it can, whatever clients feel: for who
        /// wants to leave the host now. Limits on uploads hold all the same
        #[arg(long, value_name = "WHETHER")]
        #[arg(group = "limit")]
        drain: Option<Switch>,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<T>(pub(crate) Option<T>);

fn bandwidth(text: &str) -> Result<Limit<Size>, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => text.parse().map(|limit| Limit(Some(limit))),
    }
}

fn requests(text: &str) -> Result<Limit<NonZeroU64>, String> {
    let wrong = |_| format!("{text:?} is neither a number from 1 on nor \"none\"");
    match text {
        "none" => Ok(Limit(None)),
        text => text.parse().map(|limit| Limit(Some(limit))).map_err(wrong),
    }
}
