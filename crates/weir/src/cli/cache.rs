//! `weir cache` and its verbs.

use clap::Subcommand;
use weir_node::CacheSetting;

use crate::cli::known::Known;
use crate::terminal::form::Output;

/// `weir cache`.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Show what the cache holds, how often it had what was asked for, and how much is written to it
    Show {
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Give the cache of the process that serves another size, at once. It begins empty, as where a block lies depends
    /// on the size; clients go on, and read from the store what it does not have yet
    Resize {
        /// The size, as 20G; "auto" for a tenth of what is free; or "off" to close it, with what is in its file
        #[arg(value_name = "SIZE|auto|off", hide_possible_values = true)]
        #[arg(value_parser = Known::new(["auto", "off"], |text| text.parse::<CacheSetting>()))]
        size: CacheSetting,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Make the file of the cache before a process that serves is started, to see whether there is room for it
    Create {
        /// The size, as 20G
        #[arg(value_parser = bytes)]
        size: u64,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
    /// Remove the file of the cache, which no process may have open. What is in it is in the store as well
    Destroy {
        /// Do not ask
        #[arg(long, env = "WEIR_YES", hide_env_values = true)]
        yes: bool,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

fn bytes(text: &str) -> Result<u64, String> {
    match text.parse()? {
        CacheSetting::Bytes(bytes) => Ok(bytes),
        CacheSetting::Auto | CacheSetting::Off => {
            Err(format!("\"{text}\" is no size: give one, as 20G"))
        }
    }
}
