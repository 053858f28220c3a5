//! How many files a process that serves many volumes may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many as the host allows. The limit that most processes start with is for programs that cannot use more.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Where it cannot be raised, what is there has to do.
    if current != maximum
        && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err()
    {
        tracing::debug!("the limit on open files could not be raised");
    }
}
