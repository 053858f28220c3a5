//! A change that runs to its end, whatever becomes of the call that it is for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use weir_device::{DeviceError, Env, LocalBoxFuture};

/// What a change answers.
pub(crate) type Changed = Result<(), DeviceError>;

/// A change under way. Where it is dropped before its end, a task takes it there (rule 5 of the device contract): what
/// it holds of the range lock keeps later changes of the same bytes behind it.
pub(crate) struct Finishing {
    change: Option<LocalBoxFuture<'static, Changed>>,
    env: Env,
}

impl Finishing {
    pub(crate) fn new(env: &Env, change: impl Future<Output = Changed> + 'static) -> Self {
        Self { change: Some(Box::pin(change)), env: env.clone() }
    }
}

impl Future for Finishing {
    type Output = Changed;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Changed> {
        let Some(change) = &mut self.change else { unreachable!("polled after its end") };
        let polled = change.as_mut().poll(cx);
        if polled.is_ready() {
            self.change = None;
        }
        polled
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            self.env.spawn_local(async move {
                // Nobody asks any more; a failed flush is remembered by the volume.
                let _ = change.await;
            });
        }
    }
}
