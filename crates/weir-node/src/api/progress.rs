//! Answers to requests that take their time: one JSON object per line until the work is done.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::{oneshot, watch};

use crate::api::types::{Problem, Progress};
use crate::error::NodeError;

/// How often work in progress is reported: often enough for a bar, and for a client to tell it from silence.
const INTERVAL: Duration = Duration::from_millis(500);

/// The type of a body with one JSON object per line.
const LINES: &str = "application/x-ndjson";

/// What work comes to.
type Outcome<R> = Result<R, NodeError>;

struct Work<R> {
    progress: watch::Receiver<(u64, u64)>,
    outcome: Option<oneshot::Receiver<Outcome<R>>>,
}

fn line<R: Serialize>(progress: &Progress<R>) -> Bytes {
    let mut line = serde_json::to_vec(progress).expect("a progress line has only string keys");
    line.push(b'\n');
    line.into()
}

fn last_line<R: Serialize>(outcome: Result<Outcome<R>, oneshot::error::RecvError>) -> Bytes {
    match outcome.unwrap_or(Err(NodeError::ShuttingDown)) {
        Ok(report) => line(&Progress::Done { report }),
        Err(error) => line(&Progress::<R>::Failed(Problem::from(&error))),
    }
}

/// An answer that reports on work which was begun already.
pub(crate) fn answer<R: Serialize + Send + 'static>(
    progress: watch::Receiver<(u64, u64)>,
    outcome: oneshot::Receiver<Outcome<R>>,
) -> Response {
    let work = Work { progress, outcome: Some(outcome) };
    let lines = stream::unfold(work, |mut work| async move {
        let outcome = work.outcome.as_mut()?;
        let bytes = tokio::select! {
            biased;
            outcome = outcome => {
                work.outcome = None;
                last_line(outcome)
            }
            () = tokio::time::sleep(INTERVAL) => {
                let (done, total) = *work.progress.borrow();
                line(&Progress::<R>::Running { done, total })
            }
        };
        Some((Ok::<_, Infallible>(bytes), work))
    });
    ([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response()
}
