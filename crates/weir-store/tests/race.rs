//! Create-only PUTs of two processes to one directory: one winner each, whoever it is.

#![allow(clippy::disallowed_methods, reason = "a test starts processes and waits for them")]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use bytes::Bytes;
use weir_store::{Put, Store};

const ROUNDS: usize = 40;
const RACERS_PER_PROCESS: u8 = 8;
const URL_VARIABLE: &str = "WEIR_STORE_TEST_RACE_URL";
const PROCESS_VARIABLE: &str = "WEIR_STORE_TEST_RACE_PROCESS";

/// What every racer writes: long enough to be seen half written, if that were possible.
fn body(process: u8, racer: u8) -> Bytes {
    Bytes::from([process, racer].repeat(40_000))
}

async fn race(url: &str, process: u8) -> Vec<String> {
    let store = Store::open(url).expect("open");
    let mut won = Vec::new();
    for round in 0..ROUNDS {
        // Not a rendezvous, but near: the processes leave each round together.
        store.put_create(&format!("start/{round}-{process}"), vec![]).await.expect("put");
        while store.list("start/", None).await.expect("list").len() < 2 * (round + 1) {
            tokio::task::yield_now().await;
        }
        let racers: Vec<_> = (0..RACERS_PER_PROCESS)
            .map(|racer| {
                let (store, key) = (store.clone(), format!("race/{round}"));
                tokio::spawn(async move {
                    let put = store.put_create(&key, vec![body(process, racer)]).await;
                    let put = put.expect("put");
                    let seen = store.get(&key).await.expect("whoever won, it is there");
                    assert_eq!(seen.len(), 80_000, "a racer saw a half-written object");
                    (put, racer)
                })
            })
            .collect();
        for racer in racers {
            let (put, racer) = racer.await.expect("no panic");
            if put == Put::Created {
                won.push(format!("won {round} {process} {racer}"));
            }
        }
    }
    won
}

/// The second process: this test again, with the place to race at in its environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn second_process() {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return };
    let process = std::env::var(PROCESS_VARIABLE).expect("set beside the URL");
    for line in race(&url, process.parse().expect("a number")).await {
        println!("\n{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_have_one_winner_per_key() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let url = format!("file://{}", directory.path().display());
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "second_process", "--nocapture"])
        .env(URL_VARIABLE, &url)
        .env(PROCESS_VARIABLE, "2")
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the second process");
    let mut won = race(&url, 1).await;
    let output = child.wait_with_output().expect("second process");
    assert!(output.status.success(), "second process failed");
    let text = String::from_utf8(output.stdout).expect("text");
    won.extend(text.lines().filter(|line| line.starts_with("won ")).map(str::to_owned));

    let store = Store::open(&url).expect("open");
    let mut winners: BTreeMap<usize, Vec<(u8, u8)>> = BTreeMap::new();
    for line in won {
        let mut words = line.split(' ').skip(1);
        let mut number = || words.next().expect("word").parse::<u8>().expect("number");
        let (round, process, racer) = (number(), number(), number());
        winners.entry(usize::from(round)).or_default().push((process, racer));
    }
    for round in 0..ROUNDS {
        let winners = winners.get(&round).map_or(&[][..], Vec::as_slice);
        let [(process, racer)] = winners[..] else { panic!("round {round}: {winners:?}") };
        let stored = store.get(&format!("race/{round}")).await.expect("get");
        assert_eq!(stored, body(process, racer), "round {round}: not the winner's bytes");
    }
    assert_eq!(store.list("race/", None).await.expect("list").len(), ROUNDS);
}
