//! Object stores of Weir by URL: create-only PUTs, verified reads, retries, fault injection.
