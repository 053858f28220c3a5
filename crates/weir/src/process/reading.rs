//! Settings and certificates are read anew on a thread of their own. A file may not answer, such as one on a server of
//! NFS that is away: signals and clients must not wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use weir_device::mutant;

use crate::process::signals;
use crate::terminal::failure::Failure;

/// Reads one kind of thing, one at a time.
#[derive(Debug)]
pub(crate) struct Reading {
    what: &'static str,
    is_under_way: Arc<AtomicBool>,
}

/// A reading that is under way.
struct UnderWay(Arc<AtomicBool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Reading {
    /// For `what`, in the plural.
    pub(crate) fn of(what: &'static str) -> Self {
        Self { what, is_under_way: Arc::default() }
    }

    /// What `read` returns. What comes after `limit` is dropped. While a file does not answer, none is read anew.
    pub(crate) async fn within<T: Send + 'static>(
        &self,
        limit: Duration,
        read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let what = self.what;
        if self.is_under_way.swap(true, Ordering::AcqRel) && !mutant("hanging_settings_read_again")
        {
            let message =
                format!("{what} cannot be read: a file has not answered since the last time");
            return Err(Failure::new(message).with_help(AGAIN));
        }
        let under_way = UnderWay(Arc::clone(&self.is_under_way));
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_file_that_does_not_answer_is_waited_for_once_and_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let reading = Reading::of("settings");
            let read = reading.within(Duration::MAX, || Ok(5)).await;
            assert_eq!(read.expect("it answers"), 5);
            let (answer, file) = mpsc::channel::<()>();
            let (left, has_left) = mpsc::channel::<()>();
            let hangs = move || {
                let _left = left;
                file.recv().map_err(|error| Failure::new(error.to_string()))
            };
            let late = reading.within(Duration::from_millis(1), hangs).await.expect_err("late");
            assert!(late.message().contains("did not answer within"), "{}", late.message());
            let again = reading.within(Duration::MAX, || Ok(6)).await.expect_err("it hangs still");
            assert!(again.message().contains("has not answered"), "{}", again.message());
            drop(answer);
            assert!(has_left.recv().is_err(), "the thread ends");
            while reading.is_under_way.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let read = reading.within(Duration::MAX, || Ok(7)).await;
            assert_eq!(read.expect("it answers"), 7);
        });
    }
}
