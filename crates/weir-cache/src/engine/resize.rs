//! Another size for a cache that is in use.
//!
//! Where a band belongs depends on the number of columns, so a cache of another size has other places for nearly all
//! bands, and begins empty. Who is killed on the way leaves what an opening copes with at any time: the file as it was,
//! none, or one that was made and has no superblock yet.

use weir_device::Env;
use weir_disk::Directory;

use super::cache::Cache;
use super::error::CacheError;
use super::opening::{CacheSize, Found};
use super::thread::ThreadCache;

impl ThreadCache {
    /// Ends the use of the cache on the thread that opened it, once no other thread uses it, and opens one of another
    /// size in its place. No other process gets in between. Where it has that size already, what is in it is kept only
    /// as far as the headers of its runs say.
    ///
    /// # Errors
    /// As [`ThreadCache::open`], or when requests of the cache do not end. Then this thread has no cache any more, and
    /// other processes may have it.
    pub async fn replace(
        &self,
        directory: &Directory,
        env: &Env,
        size: CacheSize,
    ) -> Result<(Cache, Found), CacheError> {
        if let Some(open) = self.take()
            && let Err(error) = open.cache.end().await
        {
            self.release().await;
            return Err(error);
        }
        if weir_device::mutant("cache_resized_without_lock") {
            self.release().await;
        }
        self.open(directory, env, size).await
    }
}
