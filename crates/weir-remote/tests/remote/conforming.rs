//! The contract of devices, on a good network and a bad one.

use std::rc::Rc;
use std::time::Duration;

use weir_device::conformance;
use weir_net::sim::SimNetworkOptions;

use crate::support::{Server, run};

#[test]
fn it_conforms_on_one_connection_and_on_several() {
    run(async {
        for connections in [1, 4] {
            let server = Server::start(3).await;
            let volume = server.open(|args| args.connections = connections).await;
            assert_eq!(volume.status().connections, connections);
            conformance::run(&*volume, 5, 400).await;
            volume.close(Duration::ZERO).await.expect("closes");
        }
    });
}

#[test]
fn it_conforms_while_connections_are_lost_and_bytes_come_in_pieces() {
    run(async {
        let mut lost = 0;
        for seed in 0..6 {
            let server = Rc::new(Server::start(seed).await);
            server.network.change_options(|options| {
                *options = SimNetworkOptions {
                    delay: Duration::from_millis(1)..=Duration::from_millis(3),
                    short_one_in: 3,
                    read_bytes_max: 5000,
                    ..SimNetworkOptions::default()
                };
            });
            let volume =
                server.open(|args| args.connections = 1 + usize::from(seed % 2 == 1)).await;
            let cutting = Rc::clone(&server);
            let cuts = tokio::task::spawn_local(async move {
                for pause in (0_u64..).map(|nth| 40 + nth * 37 % 90) {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    cutting.cut();
                }
            });
            conformance::run(&*volume, seed, 150).await;
            cuts.abort();
            lost += volume.status().lost;
        }
        assert!(lost > 20, "connections were lost {lost} times");
    });
}

#[test]
fn it_conforms_while_the_server_loses_its_power() {
    run(async {
        let mut lost = 0;
        for seed in 0..12 {
            // To another Weir changes are sent again without being told to.
            let is_weir = seed % 2 == 0;
            let server = Rc::new(match is_weir {
                true => Server::start_weir(seed).await,
                false => Server::start(seed).await,
            });
            server.network.change_options(|options| {
                options.delay = Duration::from_millis(1)..=Duration::from_millis(2);
            });
            let volume = server.open(|args| args.resend = !is_weir).await;
            let rebooting = Rc::clone(&server);
            let reboots = tokio::task::spawn_local(async move {
                for nth in 0_u64.. {
                    let pause = 60 + nth * 41 % 110;
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    match nth % 3 {
                        0 => rebooting.cut(),
                        _ => rebooting.reboot().await,
                    }
                }
            });
            conformance::run(&*volume, seed, 150).await;
            reboots.abort();
            lost += volume.status().lost;
        }
        assert!(lost > 20, "the server rebooted {lost} times");
    });
}
