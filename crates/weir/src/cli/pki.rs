//! `weir pki` and its verbs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use weir_net::pki;

use crate::terminal::form::Output;

/// `weir pki`.
#[derive(Debug, Args)]
pub(crate) struct Pki {
    /// Directory of the authority [default: pki/ in the data directory]
    #[arg(long, value_name = "DIR", env = "WEIR_PKI", global = true, hide_env_values = true)]
    pub(crate) pki: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: PkiVerb,
}

/// The verbs of `weir pki`.
#[derive(Debug, Subcommand)]
pub(crate) enum PkiVerb {
    /// Make an authority; its key stays in its directory
    Init {
        /// Its name, as clients see it in certificates
        #[arg(long, value_name = "NAME", env = "WEIR_NAME", default_value = "weir")]
        name: String,
        /// For how many days it is valid
        #[arg(long, value_name = "DAYS", env = "WEIR_DAYS", default_value_t = pki::AUTHORITY_DAYS)]
        days: u32,
    },
    /// Issue a certificate to NAME, and print the directory that its host needs
    Issue {
        /// Who is to hold it: the name that exports allow, and the first host name
        name: String,
        /// Another host name or address under which clients connect to it; may be given again, and with commas
        #[arg(long, value_name = "HOST", env = "WEIR_HOST", value_delimiter = ',')]
        host: Vec<String>,
        /// What it may be used for
        #[arg(long, value_name = "USAGE", env = "WEIR_USAGE", default_value = "both")]
        usage: Usage,
        /// For how many days it is valid
        #[arg(long, value_name = "DAYS", env = "WEIR_DAYS", default_value_t = pki::CERTIFICATE_DAYS)]
        days: u32,
    },
    /// Issue the certificate of NAME again, with the same key and hosts, before it expires
    Renew {
        /// Who holds it
        name: String,
        /// For how many days it is valid
        #[arg(long, value_name = "DAYS", env = "WEIR_DAYS", default_value_t = pki::CERTIFICATE_DAYS)]
        days: u32,
    },
    /// Revoke every certificate of NAME; servers refuse it once they have read the new list
    Revoke {
        /// Who holds it
        name: String,
    },
    /// List all certificates that were issued
    List {
        /// Form of the output
        #[command(flatten)]
        output: Output,
    },
}

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Usage {
    /// As a server, and as a client.
    Both,
    /// As a server alone.
    Server,
    /// As a client alone.
    Client,
}

impl From<Usage> for pki::Usage {
    fn from(usage: Usage) -> Self {
        match usage {
            Usage::Both => Self::Both,
            Usage::Server => Self::Server,
            Usage::Client => Self::Client,
        }
    }
}
