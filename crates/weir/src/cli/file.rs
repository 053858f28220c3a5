//! Flags of a volume whose bytes are a file or a block device.

use std::path::PathBuf;

use clap::Args;
use weir_node::config::FileConfig;

use crate::terminal::failure::Failure;

/// A file or a block device as the volume.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "A file or a block device as the volume")]
pub(crate) struct FileFlags {
    /// Serve this raw image or block device instead of a volume of the store. With --size, a file that is not there is
    /// made
    #[arg(long, value_name = "PATH", env = "WEIR_FILE", hide_env_values = true)]
    #[arg(conflicts_with_all = ["remote", "accept_loss", "take_over", "discard_journal", "adopt_journal"])]
    file: Option<PathBuf>,
    /// Use it past the page cache (O_DIRECT)
    #[arg(long, env = "WEIR_FILE_DIRECT", hide_env_values = true)]
    file_direct: bool,
}

impl FileFlags {
    /// What the flags say; what they do not, the settings of the volume in the file.
    pub(crate) fn or(&self, listed: Option<FileConfig>) -> Result<Option<FileConfig>, Failure> {
        let config = match &self.file {
            Some(path) => {
                let whole = std::path::absolute(path);
                let whole = whole.map_err(|e| Failure::usage(format!("--file: {e}")))?;
                FileConfig { path: whole, direct: false }
            }
            None => match listed {
                Some(listed) => listed,
                None if self.file_direct => {
                    return Err(Failure::usage("--file-direct needs --file PATH".to_owned()));
                }
                None => return Ok(None),
            },
        };
        Ok(Some(FileConfig { direct: config.direct || self.file_direct, ..config }))
    }

    /// Whether a flag names one.
    pub(crate) fn is_given(&self) -> bool {
        self.file.is_some()
    }
}
