//! Whether a file system answers, and takes a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;

use crate::data_directory::take_file;
use crate::serve::lock::lock;

/// What a file system says when it is to take a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Takes,
    /// It does not take one, and why.
    Refuses(String),
    /// Nothing yet.
    Hangs,
}

/// A question that was asked: what was wrong, once it has ended.
type Asked = watch::Receiver<Option<String>>;

/// The last question to each directory.
#[derive(Debug, Default)]
pub(crate) struct Probes(Mutex<BTreeMap<PathBuf, Asked>>);

impl Probes {
    /// Has the file system of a directory take a file, and write it to its disk, and waits for `limit` at most. One
    /// thread asks a directory at a time: as long as nothing answers, it is kept, and the end of the process does not
    /// wait for it.
    pub(crate) async fn ask(&self, directory: PathBuf, limit: Duration) -> Answer {
        let mut asked = {
            let mut all = lock(&self.0);
            let under_way = all.get(&directory).filter(|asked| asked.has_changed().is_ok());
            let asked = under_way.cloned().unwrap_or_else(|| begin(directory.clone()));
            all.insert(directory, asked.clone());
            asked
        };
        let ended = async { while asked.changed().await.is_ok() {} };
        if tokio::time::timeout(limit, ended).await.is_err() {
            return Answer::Hangs;
        }
        let wrong = asked.borrow().clone();
        wrong.map_or(Answer::Takes, Answer::Refuses)
    }
}

fn begin(directory: PathBuf) -> Asked {
    let (answered, asked) = watch::channel(None);
    let asking = move || {
        let path = directory.join(format!(".answers-{}", std::process::id()));
        let taken = take_file(&path);
        answered.send_replace(taken.err().map(|error| error.to_string()));
    };
    // Without a thread nothing is known, and nothing hangs.
    let _ = std::thread::Builder::new().name("weir-asks".into()).spawn(asking);
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the clock of the machine, as threads answer in its time.
    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn a_directory_that_takes_no_file_says_why() {
        let (place, probes) = (tempfile::tempdir().unwrap(), Probes::default());
        assert_eq!(probes.ask(place.path().to_owned(), LONG).await, Answer::Takes);
        assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing is left there");
        let missing = probes.ask(place.path().join("missing"), LONG).await;
        assert!(matches!(&missing, Answer::Refuses(why) if why.contains("No such file")));
        let full = probes.ask("/dev/full".into(), LONG).await;
        assert!(matches!(full, Answer::Refuses(_)));
    }

    /// A pipe in the place of the file: to open it waits for a reader, as a file system that hangs does.
    #[tokio::test]
    async fn what_does_not_answer_is_asked_by_one_thread_until_it_does() {
        let (place, probes) = (tempfile::tempdir().unwrap(), Probes::default());
        let pipe = place.path().join(format!(".answers-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let ask = |limit| probes.ask(place.path().to_owned(), limit);
        for _ in 0..2 {
            assert_eq!(ask(Duration::from_millis(50)).await, Answer::Hangs);
        }
        let reader = std::thread::spawn(move || std::fs::read(pipe));
        // A pipe cannot be synced; and it is gone after that.
        assert!(matches!(ask(LONG).await, Answer::Refuses(_)));
        reader.join().unwrap().unwrap();
        assert_eq!(ask(LONG).await, Answer::Takes);
    }
}
