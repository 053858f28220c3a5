//! NBD messages: one sans-I/O codec for server and client.
