//! Whether a file system answers.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

/// A question that was asked: it ends with the answer.
pub(crate) type Asked = watch::Receiver<()>;

/// Asks whether the file system of a directory takes a file. A thread of its own does that, which is kept for as long
/// as nothing answers, and which the end of the process does not wait for.
pub(crate) fn ask(directory: PathBuf) -> Asked {
    let (answered, asked) = watch::channel(());
    let asking = move || {
        let path = directory.join(format!(".answers-{}", std::process::id()));
        // An error is an answer as well: the file system does not hang.
        let _ = std::fs::write(&path, "").and_then(|()| std::fs::remove_file(&path));
        drop(answered);
    };
    // Without a thread nothing is known, and nothing hangs.
    let _ = std::thread::Builder::new().name("weir-asks".into()).spawn(asking);
    asked
}

/// Whether the answer has not come yet.
pub(crate) fn is_open(asked: &Asked) -> bool {
    asked.has_changed().is_ok()
}

/// Whether the answer comes within `limit`.
pub(crate) async fn is_answered(mut asked: Asked, limit: Duration) -> bool {
    tokio::time::timeout(limit, async { while asked.changed().await.is_ok() {} }).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe in the place of the file: to open it waits for a reader, as a file system that hangs does.
    #[tokio::test(start_paused = true)]
    async fn what_does_not_answer_is_found_out_and_what_does_as_well() {
        let place = tempfile::tempdir().unwrap();
        assert!(is_answered(ask(place.path().to_owned()), Duration::MAX).await);
        assert!(is_answered(ask(place.path().join("missing")), Duration::MAX).await);
        let pipe = place.path().join(format!(".answers-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let asked = ask(place.path().to_owned());
        assert!(!is_answered(asked.clone(), Duration::from_secs(2)).await && is_open(&asked));
        let reader = std::thread::spawn(move || std::fs::read(pipe));
        assert!(is_answered(asked.clone(), Duration::MAX).await && !is_open(&asked));
        reader.join().unwrap().unwrap();
    }
}
