//! `weir pki`: a small certificate authority in a directory.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use weir_net::pki::{Authority, Entry, PkiError, Request, Usage};
use weir_node::config::Config;

use crate::cli::global::Global;
use crate::cli::pki::{Pki, PkiVerb};
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output::{self, say};

/// Runs the verb.
pub(crate) fn run(global: &Global, file: &Config, command: Pki) -> Result<ExitCode, Failure> {
    let Pki { pki, verb } = command;
    let directory = match pki {
        Some(directory) => directory,
        None => settings::home(global, file)?.data.path().join("pki"),
    };
    match verb {
        PkiVerb::Init { name, days } => {
            Authority::create(&directory, &name, days).map_err(failure)?;
            say!("the authority {name} is in {}; keep its key to yourself", directory.display());
            say!("next: weir pki issue NAME, for each host");
            print_path(&directory)?;
        }
        PkiVerb::Issue { name, host, usage, days } => {
            let mut authority = Authority::open(&directory).map_err(failure)?;
            let request = Request { name: &name, hosts: &host, usage: usage.into(), days };
            let issued = authority.issue(&request).map_err(failure)?;
            say!("give this directory to the host of {name}, and to nobody else; there:");
            say!("{}", how_to_use(request.usage));
            tell_expiry(&authority, days);
            print_path(&issued)?;
        }
        PkiVerb::Renew { name, days } => {
            let mut authority = Authority::open(&directory).map_err(failure)?;
            let issued = authority.renew(&name, days).map_err(failure)?;
            say!("put the new certificate on the host of {name}, and tell its server: SIGHUP");
            tell_expiry(&authority, days);
            print_path(&issued)?;
        }
        PkiVerb::Revoke { name } => {
            let mut authority = Authority::open(&directory).map_err(failure)?;
            let revoked = authority.revoke(&name).map_err(failure)?;
            let expired = match revoked.expired {
                0 => String::new(),
                count => format!(", {count} of which had expired"),
            };
            say!("certificates of {name} that are revoked: {}{expired}", revoked.count);
            say!("put ca-crl.pem on every server, and tell each: SIGHUP");
            print_path(&directory.join(weir_net::tls::REVOKED))?;
        }
        PkiVerb::List { output } => {
            let authority = Authority::open(&directory).map_err(failure)?;
            list(authority.entries(), output.output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says until when the newest certificate counts: none outlives its authority.
fn tell_expiry(authority: &Authority, days: u32) {
    let Some(newest) = authority.entries().last() else { return };
    let asked = newest.issued + i64::from(days) * 24 * 60 * 60;
    let less = match newest.expires < asked {
        true => format!(", with the authority, and not after {days} days"),
        false => String::new(),
    };
    say!("it expires at {}{less}", date(newest.expires));
}

/// What is done with a directory of certificates on its host.
fn how_to_use(usage: Usage) -> &'static str {
    match usage {
        Usage::Server => "weir serve --tls-certificates DIR",
        Usage::Client => {
            "nbds://HOST/VOLUME?tls-certificates=DIR, or weir up --remote --tls-certificates DIR"
        }
        Usage::Both => {
            "weir serve --tls-certificates DIR, or nbds://HOST/VOLUME?tls-certificates=DIR"
        }
    }
}

fn failure(error: PkiError) -> Failure {
    match error {
        PkiError::BadName { .. } | PkiError::BadHost { .. } | PkiError::Days { .. } => {
            Failure::usage(error.to_string())
        }
        _ => Failure::new(error.to_string()),
    }
}

fn print_path(path: &std::path::Path) -> Result<(), Failure> {
    let path: PathBuf = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    output::print(&format!("{}\n", path.display()))
}

/// A certificate as programs read it.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    state: &'static str,
}

fn state(entry: &Entry, now: i64) -> &'static str {
    match entry.revoked {
        Some(_) => "revoked",
        None if entry.expires <= now => "expired",
        None => "valid",
    }
}

fn list(entries: &[Entry], form: OutputForm) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if form == OutputForm::Json {
        let listed: Vec<Listed<'_>> =
            entries.iter().map(|entry| Listed { entry, state: state(entry, now) }).collect();
        return output::print_json(&listed);
    }
    let rows = entries.iter().map(|entry| {
        let usage = match entry.usage {
            Usage::Both => "both",
            Usage::Server => "server",
            Usage::Client => "client",
        };
        vec![
            entry.name.clone(),
            state(entry, now).to_owned(),
            date(entry.expires),
            usage.to_owned(),
            entry.hosts.join(" "),
            entry.serial.clone(),
        ]
    });
    let headings = ["NAME", "STATE", "EXPIRES", "USAGE", "HOSTS", "SERIAL"];
    output::print_table(&headings, rows.collect())
}

/// A time as people write it.
fn date(seconds: i64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    humantime::format_rfc3339_seconds(time).to_string()
}
