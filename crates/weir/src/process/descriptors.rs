//! How many files a process that serves many volumes may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the host allows. The low limit that most processes start with is for programs that use
/// `select`, which cannot handle more.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, it stays as it is.
    if current != maximum
        && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err()
    {
        tracing::debug!("the limit on open files could not be raised");
    }
}
