//! Log lines go to standard error; `WEIR_LOG` filters them.

use tracing_subscriber::EnvFilter;

use crate::cli::global::LogFormat;
use crate::terminal::failure::Failure;

/// What is logged unless `WEIR_LOG` says otherwise: what an operator has to know.
const FILTER_DEFAULT: &str = "warn";

/// Starts logging. Called once.
pub(crate) fn start(format: LogFormat) -> Result<(), Failure> {
    let wanted = std::env::var("WEIR_LOG").unwrap_or_else(|_| FILTER_DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&wanted).map_err(|error| {
        Failure::usage(format!("WEIR_LOG={wanted:?} is not a filter: {error}")).with_help(
            "write a level, as WEIR_LOG=debug, or levels of parts, as weir_log=debug,info",
        )
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would report a line that cannot be written with `eprintln!`, which panics then.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => {
            lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init()
        }
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}
