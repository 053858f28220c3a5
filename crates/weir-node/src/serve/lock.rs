//! Locks of what the threads of a serving process share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks one of the tables of [`Core`](crate::serve::core::Core), also after a thread panicked that held it: each of
/// them is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
