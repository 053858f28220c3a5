//! Settings of a volume whose bytes are a file or a block device of this host.

use std::path::PathBuf;

use serde::Deserialize;

/// A file or a block device as a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Where it is.
    pub path: PathBuf,
    /// Past the page cache (`O_DIRECT`).
    #[serde(default)]
    pub direct: bool,
}

impl FileConfig {
    /// As a volume is served with it.
    ///
    /// # Errors
    /// A sentence for the user, and what to do.
    pub fn checked(&self) -> Result<Self, (String, String)> {
        if !self.path.is_absolute() {
            return Err((
                format!("the path {} of a file does not begin with /", self.path.display()),
                "write the whole path: a service may be started in any directory".to_owned(),
            ));
        }
        Ok(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_whole() {
        let config = |path: &str| FileConfig { path: path.into(), direct: true };
        assert_eq!(config("/dev/sdb").checked(), Ok(config("/dev/sdb")));
        assert!(config("disk.raw").checked().expect_err("refused").0.contains("disk.raw"));
    }
}
