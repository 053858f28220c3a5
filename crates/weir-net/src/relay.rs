//! A connection passed on to another process, byte by byte: what a process does with its clients under TLS that has
//! given their volumes to the next one.
//!
//! Invariants
//!  P1. Bytes arrive in the order in which they were sent, each once, and none is kept back while its reader is ready.
//!  P2. Memory is bounded: one piece of [`PIECE_BYTES`] in each direction. A side that does not read holds the other
//!      back.
//!  P3. The end of the server's side ends the client's at once, or after [`GOODBYE`] where the client takes nothing.
//!      The end of the client's side is passed on, and what the server still has to say goes to the client.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{sleep, timeout};
use weir_device::ByteStream;

use crate::socket::{connected, until_closed};

/// What is passed on at a time, in each direction.
const PIECE_BYTES: usize = 64 << 10;

/// Time in which a client must take a piece: as long as a server has patience with one that does not get on.
const STALL: Duration = Duration::from_secs(60);

/// Time for the last words to a client.
const GOODBYE: Duration = Duration::from_secs(2);

/// Passes everything on between a client and its server, a unix socket, until one of them is gone.
///
/// # Errors
/// How the connection ended, where nobody said that it ends.
pub async fn relay(client: Box<dyn ByteStream>, server: OwnedFd) -> io::Result<()> {
    let watched = server.try_clone()?;
    let server = connected(server).attach()?;
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let up = async {
        let passed = pass_on(&mut from_client, &mut to_server, None).await;
        match passed {
            // P3: the server ends once it has said everything.
            Ok(()) => match to_server.shutdown().await {
                Ok(()) => pending().await,
                Err(error) => error,
            },
            Err(error) => error,
        }
    };
    let down = pass_on(&mut from_server, &mut to_client, Some(STALL));
    // P3: its end is behind what it has said, and that is not read while the client takes nothing.
    let gone = async {
        match until_closed(watched).await {
            Ok(()) => {
                sleep(GOODBYE).await;
                io::ErrorKind::ConnectionAborted.into()
            }
            Err(error) => error,
        }
    };
    let ended = tokio::select! {
        biased;
        ended = down => ended,
        error = up => Err(error),
        error = gone => Err(error),
    };
    // It may be gone already; there is nobody to tell.
    let _ = timeout(GOODBYE, to_client.shutdown()).await;
    ended
}

/// Passes bytes on until there are no more. Each piece is taken within `patience`.
async fn pass_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    patience: Option<Duration>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        let taken = async {
            to.write_all(&piece[..length]).await?;
            to.flush().await
        };
        match patience {
            Some(patience) => timeout(patience, taken).await??,
            None => taken.await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tokio::task::JoinHandle;

    use super::*;
    use crate::socket::Socket;

    fn pair() -> (OwnedFd, Socket) {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        (near.into(), Socket::new(far).expect("registered"))
    }

    /// The ends of a client and of a server, and what passes bytes on between them.
    fn relayed() -> (Socket, Socket, JoinHandle<io::Result<()>>) {
        let ((near, client), (far, server)) = (pair(), pair());
        let near = connected(near).attach().expect("registered");
        (client, server, tokio::task::spawn_local(relay(near, far)))
    }

    async fn on_local(test: impl Future<Output = ()>) {
        tokio::task::LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn bytes_go_both_ways_in_order_and_the_client_gets_all_after_its_own_end() {
        on_local(async {
            let (client, server, relaying) = relayed();
            let sent: Vec<u8> = (0..3_u32 << 20).map(|at| (at % 251) as u8).collect();
            let (mut from_server, mut to_server) = tokio::io::split(client);
            let (expected, echoed) = (sent.clone(), sent.len());
            let sending = tokio::task::spawn_local(async move {
                to_server.write_all(&sent).await.expect("sent");
                to_server.shutdown().await.expect("said");
                to_server
            });
            let echoing = tokio::task::spawn_local(async move {
                let (mut from, mut to) = tokio::io::split(server);
                let count = tokio::io::copy(&mut from, &mut to).await.expect("echoed");
                assert_eq!(count, echoed as u64);
                to.shutdown().await.expect("said");
            });
            let mut received = Vec::new();
            from_server.read_to_end(&mut received).await.expect("received");
            assert!(received == expected);
            echoing.await.expect("ended");
            drop(sending.await.expect("ended"));
            relaying.await.expect("no panic").expect("everybody said goodbye");
        })
        .await;
    }

    #[tokio::test]
    async fn the_end_of_the_server_ends_a_client_that_waits_and_one_that_is_gone_ends_the_server() {
        on_local(async {
            let (mut client, server, relaying) = relayed();
            drop(server);
            assert_eq!(client.read(&mut [0; 8]).await.expect("the end"), 0);
            relaying.await.expect("no panic").expect("an end");
            let (client, mut server, relaying) = relayed();
            drop(client);
            assert_eq!(server.read(&mut [0; 8]).await.expect("the end"), 0);
            drop(server);
            relaying.await.expect("no panic").expect("an end");
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_holds_its_server_back_and_is_cut_off() {
        on_local(async {
            let (client, mut server, relaying) = relayed();
            let mut sent = 0_usize;
            let piece = [7; 4096];
            // Nothing else is to be done, so the clock of the test goes on by itself.
            let held_back = async {
                loop {
                    sent += server.write(&piece).await.expect("sent");
                }
            };
            assert!(timeout(Duration::from_secs(30), held_back).await.is_err(), "it is held back");
            assert!(sent < 4 << 20, "{sent} bytes");
            let ended = relaying.await.expect("no panic").expect_err("cut off");
            assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
            drop(client);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_server_ends_a_client_that_takes_nothing() {
        on_local(async {
            let (client, mut server, relaying) = relayed();
            let piece = [7; 4096];
            let held_back = async {
                loop {
                    server.write_all(&piece).await.expect("sent");
                }
            };
            assert!(timeout(Duration::from_secs(1), held_back).await.is_err(), "it is held back");
            drop(server);
            // Long before the client would be cut off for taking nothing.
            let ended = timeout(STALL / 2, relaying).await.expect("it ends").expect("no panic");
            assert_eq!(ended.expect_err("cut off").kind(), io::ErrorKind::ConnectionAborted);
            drop(client);
        })
        .await;
    }
}
