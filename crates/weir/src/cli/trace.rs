//! `weir trace` and its verbs.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use weir_log::limits::BATCH_BYTES_MAX;
use weir_node::size::Size;
use weir_trace::Format;

use crate::terminal::form::Output;

/// `weir trace`.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Say what the writes of a trace would come to as objects: bytes, extents of the map, and what merging spares.
    /// Every disk of the trace is a volume; nothing is stored
    Sim {
        /// The trace, plain or compressed with zstd; - for standard input
        #[arg(required_unless_present = "generate")]
        file: Option<PathBuf>,
        /// A generated trace with known answers in place of a file
        #[arg(long, value_name = "SHAPE", env = "WEIR_GENERATE", hide_env_values = true)]
        #[arg(conflicts_with = "file")]
        generate: Option<TraceShape>,
        /// csv, msr, alibaba, tencent, systor, spc, blkparse, fio, lis, vscsi1 or vscsi2 [default: guessed, but never
        /// alibaba]
        #[arg(long, value_name = "FORMAT", env = "WEIR_FORMAT", hide_env_values = true)]
        format: Option<Format>,
        /// Bytes that make an object; may be given again, and with commas
        #[arg(long, value_name = "SIZE", env = "WEIR_BATCH", hide_env_values = true)]
        #[arg(value_delimiter = ',', default_value = "8M,32M", value_parser = batch)]
        batch: Vec<Size>,
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

/// A generated trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceShape {
    /// 4 KiB blocks, few of them written most of the time
    Zipf,
    /// Records of 16 KiB, written again around holes of 4 KiB
    Holes,
}

fn batch(text: &str) -> Result<Size, String> {
    let Size(bytes) = text.parse::<Size>()?;
    match bytes {
        1..=BATCH_BYTES_MAX => Ok(Size(bytes)),
        _ => Err(format!("{text:?} is no batch: 40M is the largest")),
    }
}
