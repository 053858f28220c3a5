//! A proxy between a client and a server that delays, stalls and cuts their connections; see README.md.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program of its own, for tests"
)]

mod control;
mod socket;
mod tube;

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use clap::Parser;

use crate::control::Control;
use crate::socket::{Listener, Socket};

#[derive(Parser)]
#[command(about = "Delays, stalls and cuts connections between a client and a server")]
struct Arguments {
    /// Where clients connect: HOST:PORT, or the path of a unix socket
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Where the server listens
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// Microseconds that bytes are held back in each direction
    #[arg(long, value_name = "US", default_value_t = 0)]
    delay_us: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let listener = Listener::bind(&arguments.listen)?;
    println!("listening at {}", listener.address()?);
    std::io::stdout().flush()?;
    let control = Arc::new(Control::new(arguments.delay_us));
    let (accepting, to) = (Arc::clone(&control), arguments.to);
    thread::spawn(move || accept(&listener, &to, &accepting));
    for line in std::io::stdin().lock().lines() {
        match control.obey(&line?) {
            Ok(()) => println!("ok"),
            Err(error) => println!("error: {error:#}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn accept(listener: &Listener, to: &str, control: &Arc<Control>) {
    loop {
        let accepted = listener.accept().and_then(|client| connect(client, to, control));
        if let Err(error) = accepted {
            println!("a connection failed: {error:#}");
        }
    }
}

/// Connects a client to the server, unless clients are refused.
fn connect(client: Socket, to: &str, control: &Arc<Control>) -> Result<()> {
    if control.refuses() {
        return Ok(());
    }
    let server = Socket::connect(to).with_context(|| format!("connecting to {to}"))?;
    control.add(&client, &server)?;
    let both = [(&client, &server, true), (&server, &client, false)];
    for (from, into, is_from_client) in both {
        let (from, into) = (from.another()?, into.another()?);
        tube::start(from, into, is_from_client, Arc::clone(control));
    }
    Ok(())
}
