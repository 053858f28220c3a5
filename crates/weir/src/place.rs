//! Where the data directory and the store are, from flags and environment.

use std::path::{Path, PathBuf};

use weir_node::{DataDirectory, Home};
use weir_store::StoreOptions;

use crate::cli::Global;
use crate::failure::Failure;

/// What `--data-dir` and `--store` say, or their defaults.
pub(crate) fn home(global: &Global) -> Result<Home, Failure> {
    let data = data_directory(global)?;
    let store_url = global.store.clone().unwrap_or_else(|| data.store_url());
    Ok(Home { data, store_url, store_options: store_options(global)? })
}

/// How a store is reached, from flags and environment.
pub(crate) fn store_options(global: &Global) -> Result<StoreOptions, Failure> {
    let mut options = StoreOptions::from_environment()?;
    options.single_writer |= global.single_writer;
    Ok(options)
}

fn data_directory(global: &Global) -> Result<DataDirectory, Failure> {
    let path = match &global.data_dir {
        Some(path) => path.clone(),
        None => {
            let variable = |name| std::env::var_os(name).map(PathBuf::from);
            let root = rustix::process::geteuid().is_root();
            default_path(root, variable("XDG_DATA_HOME"), variable("HOME")).ok_or_else(|| {
                Failure::usage("there is no data directory: HOME and XDG_DATA_HOME are not set")
                    .with_help("name one with --data-dir")
            })?
        }
    };
    Ok(DataDirectory::at(&path)?)
}

fn default_path(root: bool, data_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/lib/weir"));
    }
    // A relative XDG_DATA_HOME is to be ignored, as its specification says.
    let data_home = data_home.filter(|path| path.is_absolute());
    let below_home = || home.filter(|path| path != Path::new("")).map(|p| p.join(".local/share"));
    data_home.or_else(below_home).map(|path| path.join("weir"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_follows_the_user() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(default_path(true, path("/x"), path("/h")), path("/var/lib/weir"));
        assert_eq!(default_path(false, path("/x"), path("/h")), path("/x/weir"));
        assert_eq!(default_path(false, path("x"), path("/h")), path("/h/.local/share/weir"));
        assert_eq!(default_path(false, None, path("/h")), path("/h/.local/share/weir"));
        assert_eq!(default_path(false, None, path("")), None);
        assert_eq!(default_path(false, None, None), None);
    }
}
