//! How the allocator of the C library divides its memory.

/// Lets all threads share two arenas. By itself glibc gives each thread one of its own, and what is freed in one serves
/// no other thread: with small budgets for memory, such leftovers took a fifth of it.
///
/// To be called before the first thread is started. Other C libraries have no arenas.
#[allow(unsafe_code, reason = "the C library is told this in no other way")]
pub(crate) fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers and no pointers; before other threads run nobody allocates beside it.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
