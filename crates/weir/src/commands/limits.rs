//! `weir limits`: the limits on uploads of what is served here, and whether it is drained, while it is served.

use std::num::NonZeroU64;
use std::process::ExitCode;

use serde::Serialize;
use weir_node::ProcessId;
use weir_node::api::types::Limits;
use weir_node::config::Config;
use weir_node::size::{Size, human};

use crate::cli::global::Global;
use crate::cli::limits::{Limit, LimitsCommand, Switch};
use crate::process::threads;
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output;

/// Runs the command.
pub(crate) fn run(
    global: &Global,
    file: &Config,
    verb: LimitsCommand,
) -> Result<ExitCode, Failure> {
    let home = settings::home(global, file)?;
    let (found, form) = threads::on_node(settings::verb_node(global, file), async |node| {
        Ok(match verb {
            LimitsCommand::Show { output } => {
                let mut found = Vec::new();
                for process in node.processes(home).await? {
                    found.push((process.id, process.status?.limits));
                }
                (found, output)
            }
            LimitsCommand::Set { upload_bandwidth, upload_requests, drain, output } => {
                let change = move |now| changed(now, upload_bandwidth, upload_requests, drain);
                (node.change_limits(home, change).await?, output)
            }
        })
    })?;
    print(&found, form.output).map(|()| ExitCode::SUCCESS)
}

fn changed(
    now: Limits,
    bandwidth: Option<Limit<Size>>,
    requests: Option<Limit<NonZeroU64>>,
    drain: Option<Switch>,
) -> Limits {
    Limits {
        upload_bytes_per_second: bandwidth
            .map_or(now.upload_bytes_per_second, |Limit(limit)| limit.map(|Size(bytes)| bytes)),
        upload_requests_per_second: requests
            .map_or(now.upload_requests_per_second, |Limit(limit)| limit.map(NonZeroU64::get)),
        drain: drain.map_or(now.drain, |drain| drain == Switch::On),
    }
}

/// The limits of one process.
#[derive(Serialize)]
struct Line {
    process: Option<i32>,
    upload_bytes_per_second: Option<u64>,
    upload_requests_per_second: Option<u64>,
    drain: bool,
}

impl Line {
    fn new((id, limits): &(ProcessId, Limits)) -> Self {
        Self {
            process: id.0,
            upload_bytes_per_second: limits.upload_bytes_per_second,
            upload_requests_per_second: limits.upload_requests_per_second,
            drain: limits.drain,
        }
    }
}

fn print(found: &[(ProcessId, Limits)], form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(&found.iter().map(Line::new).collect::<Vec<_>>());
    }
    let none = || "none".to_owned();
    let row = |(id, limits): &(ProcessId, Limits)| {
        let bandwidth = limits.upload_bytes_per_second.map(|bytes| format!("{}/s", human(bytes)));
        let requests = limits.upload_requests_per_second.map(|count| format!("{count}/s"));
        let drain = if limits.drain { "on" } else { "off" }.to_owned();
        vec![id.to_string(), bandwidth.unwrap_or_else(none), requests.unwrap_or_else(none), drain]
    };
    let headings = ["PROCESS", "UPLOAD BANDWIDTH", "UPLOAD REQUESTS", "DRAIN"];
    output::print_table(&headings, found.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_stays_as_it_is() {
        let now = Limits {
            upload_bytes_per_second: Some(5),
            upload_requests_per_second: Some(6),
            drain: true,
        };
        assert_eq!(changed(now, None, None, None), now);
        let kept = changed(now, None, None, Some(Switch::Off));
        assert_eq!(kept, Limits { drain: false, ..now });
        assert_eq!(changed(kept, None, None, Some(Switch::On)), now);
        let without = changed(now, Some(Limit(None)), None, None);
        assert_eq!(without, Limits { upload_bytes_per_second: None, ..now });
        let requests = changed(now, None, Some(Limit(NonZeroU64::new(9))), None);
        assert_eq!(requests, Limits { upload_requests_per_second: Some(9), ..now });
    }
}
