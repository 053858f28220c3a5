//! The stages of a volume as settings, and where its trace goes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use weir_device::{DeviceError, ErrorKind, LocalBoxFuture};
use weir_log::catalog::VolumeName;
use weir_stack::{LimitSettings, StageSpec, TraceSink, TraceSpec};

/// The stages between the clients of a volume and its endpoint, and what it may have of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Limits on the operations and bytes of clients.
    pub limit: LimitSettings,
    /// The file that their operations are recorded in.
    pub trace: Option<PathBuf>,
    /// Most of the cache on the local disk that it may have, in percent.
    pub cache_share: Option<u64>,
}

impl Stages {
    /// The description of a stack with these stages: a limit, and below it the trace of what it lets through.
    pub(crate) fn describe(&self, name: &VolumeName) -> Vec<StageSpec> {
        let mut stages = Vec::new();
        if !self.limit.is_unlimited() {
            stages.push(StageSpec::Limit(self.limit));
        }
        if let Some(path) = &self.trace {
            let sink = Rc::new(FileSink::new(path.clone()));
            stages.push(StageSpec::Trace(TraceSpec::new(sink, name.to_string())));
        }
        stages
    }
}

/// A trace in a file, which is appended to.
struct FileSink {
    path: PathBuf,
    file: Arc<Mutex<Option<File>>>,
}

impl FileSink {
    fn new(path: PathBuf) -> Self {
        Self { path, file: Arc::default() }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = File::options().append(true).create(true).mode(0o600).open(path)?;
    weir_disk::adopt_file(&file, path)?;
    Ok(file)
}

/// Appends whole lines, or nothing.
fn append(held: &mut Option<File>, path: &Path, lines: &[u8]) -> io::Result<()> {
    let file = match held {
        Some(file) => file,
        None => held.insert(open(path)?),
    };
    let before = file.metadata()?.len();
    let written = file.write_all(lines);
    if written.is_err() {
        // A partial line would make the trace unreadable.
        file.set_len(before)?;
    }
    written
}

impl TraceSink for FileSink {
    fn append<'a>(&'a self, lines: &'a [u8]) -> LocalBoxFuture<'a, Result<(), DeviceError>> {
        let (file, path, lines) = (Arc::clone(&self.file), self.path.clone(), lines.to_vec());
        Box::pin(async move {
            let shown = self.path.display();
            let failed = |error: io::Error| {
                let message = format!("writing the trace {shown}: {error}");
                DeviceError::new(ErrorKind::Unavailable, message)
            };
            let work = tokio::task::spawn_blocking(move || {
                append(&mut file.lock().unwrap_or_else(PoisonError::into_inner), &path, &lines)
            });
            work.await.map_err(io::Error::other).and_then(|written| written).map_err(failed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_trace_is_appended_to_and_an_error_names_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.csv");
        for text in ["1,R,demo,0,512\n", "2,W,demo,0,512\n"] {
            // Each as of a process of its own.
            FileSink::new(path.clone()).append(text.as_bytes()).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1,R,demo,0,512\n2,W,demo,0,512\n");
        let nowhere = FileSink::new(directory.path().join("none/trace.csv"));
        let error = nowhere.append(b"x\n").await.unwrap_err();
        assert!(error.to_string().contains("none/trace.csv: No such file"), "{error}");
    }

    #[test]
    fn the_limit_is_on_top_and_nothing_is_in_the_way_unless_it_is_set() {
        let name = VolumeName::new("demo").unwrap();
        assert!(Stages::default().describe(&name).is_empty());
        let limit = LimitSettings::checked(Some(5), None, None).unwrap();
        let stages = Stages { limit, trace: Some("/t".into()), cache_share: None }.describe(&name);
        assert!(matches!(stages[..], [StageSpec::Limit(_), StageSpec::Trace(_)]));
    }
}
