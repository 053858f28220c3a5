//! The suite on a real service, which `tests/clients/70-s3.sh` starts and names. No part of `cargo test` by itself:
//! without a service it fails, instead of passing without having looked at anything.

mod suite;

use weir_store::Store;

use self::suite::{many_objects, suite};

/// More objects than a page of a listing has.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms() {
    let url = std::env::var("WEIR_STORE_CONFORMANCE_URL").expect("names a prefix that is empty");
    let store = Store::open(&url).expect("open");
    suite(&store).await;
    many_objects(&store, 1100).await;
}
