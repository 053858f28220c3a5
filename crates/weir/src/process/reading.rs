//! Settings and certificates are read anew on a thread of their own. A file may not answer, such as one on a server of
//! NFS that is away: signals and clients must not wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use weir_device::mutant;

use crate::process::signals;
use crate::terminal::failure::Failure;

/// Readings of one kind that are under way at once. A thread whose file does not answer cannot be ended, so that each
/// reading of such a file leaves one behind. More than one, because whoever puts another file in its place has that one
/// read by the next signal.
const UNDER_WAY_MAX: usize = 4;

/// Reads one kind of thing. Whoever waits gets the outcome of the reading that it began: an earlier one that ends late
/// is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    what: &'static str,
    under_way: Arc<AtomicUsize>,
}

/// A reading that is under way.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    /// `None` if there are too many.
    fn begin(count: &Arc<AtomicUsize>) -> Option<Self> {
        let one_more =
            |now| (now < UNDER_WAY_MAX || mutant("hanging_settings_read_again")).then(|| now + 1);
        let begun = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        begun.ok().map(|_| Self(Arc::clone(count)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Reading {
    /// For `what`, in the plural.
    pub(crate) fn of(what: &'static str) -> Self {
        Self { what, under_way: Arc::default() }
    }

    /// What is in the way of a replacement of the program, in words, where no reading is waited for: one that was given
    /// up and has not ended. The kernel would wait for its thread.
    pub(crate) fn hangs(&self) -> Option<String> {
        let is_under_way = self.under_way.load(Ordering::Acquire) > 0;
        let hangs = is_under_way && !mutant("replaced_over_hanging_reading");
        hangs.then(|| format!("a file from which {} are read does not answer", self.what))
    }

    /// What `read` returns. What comes after `limit` is dropped. Nothing is read while [`UNDER_WAY_MAX`] readings wait.
    pub(crate) async fn within<T: Send + 'static>(
        &self,
        limit: Duration,
        read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let what = self.what;
        let Some(under_way) = UnderWay::begin(&self.under_way) else {
            let message = format!(
                "{what} cannot be read: a file has not answered the last {UNDER_WAY_MAX} times"
            );
            return Err(Failure::new(message).with_help(RESTART));
        };
        let (done, outcome) = oneshot::channel();
        // The end of the process does not wait for it.
        let thread =
            std::thread::Builder::new().name("weir-settings".to_owned()).spawn(move || {
                let read = signals::hold_back().and_then(|()| read());
                drop(under_way);
                // It may have come too late.
                drop(done.send(read));
            });
        thread.map_err(|error| Failure::new(format!("reading {what}: {error}")))?;
        match tokio::time::timeout(limit, outcome).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(Failure::new(format!("reading {what} ended abnormally"))),
            Err(_) => {
                let message = format!(
                    "{what} cannot be read: a file did not answer within {} s",
                    limit.as_secs()
                );
                Err(Failure::new(message).with_help(AGAIN))
            }
        }
    }
}

const AGAIN: &str =
    "send the signal again once all files and the file systems that they are on answer";

const RESTART: &str = "until one of them answers none is read anew: a restart helps once the \
                       files answer, or others are in their place";

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_file_that_does_not_answer_is_waited_for_a_few_times_and_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let reading = Reading::of("settings");
            let read = reading.within(Duration::MAX, || Ok(5)).await;
            assert_eq!(read.expect("it answers"), 5);
            let mut answers = Vec::new();
            for count in 1..=UNDER_WAY_MAX {
                let (answer, file) = mpsc::channel::<()>();
                answers.push(answer);
                let hangs = move || file.recv().map_err(|error| Failure::new(error.to_string()));
                let late = reading.within(Duration::from_millis(1), hangs).await.expect_err("late");
                assert!(late.message().contains("did not answer within"), "{}", late.message());
                assert!(reading.hangs().is_some_and(|why| why.contains("settings are read")));
                if count < UNDER_WAY_MAX {
                    let read = reading.within(Duration::MAX, || Ok(6)).await;
                    assert_eq!(read.expect("another file is in its place"), 6);
                }
            }
            let again = reading.within(Duration::MAX, || Ok(7)).await.expect_err("too many hang");
            assert!(again.message().contains("has not answered the last 4"), "{}", again.message());
            drop(answers.remove(0));
            while reading.under_way.load(Ordering::Acquire) >= UNDER_WAY_MAX {
                std::thread::yield_now();
            }
            let read = reading.within(Duration::MAX, || Ok(8)).await;
            assert_eq!(read.expect("one has ended"), 8);
            drop(answers);
            while reading.under_way.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
            assert_eq!(reading.hangs(), None);
        });
    }
}
