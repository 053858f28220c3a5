//! `weir limits`: the limits on uploads of what is served here, while it is served.

use std::num::NonZeroU64;
use std::process::ExitCode;

use serde::Serialize;
use weir_node::ProcessId;
use weir_node::api::types::Limits;
use weir_node::config::Config;
use weir_node::size::{Size, human};

use crate::cli::global::Global;
use crate::cli::limits::{Limit, LimitsCommand};
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
            LimitsCommand::Set { upload_bandwidth, upload_requests, output } => {
                let change = move |now| changed(now, upload_bandwidth, upload_requests);
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
) -> Limits {
    Limits {
        upload_bytes_per_second: bandwidth
            .map_or(now.upload_bytes_per_second, |Limit(limit)| limit.map(|Size(bytes)| bytes)),
        upload_requests_per_second: requests
            .map_or(now.upload_requests_per_second, |Limit(limit)| limit.map(NonZeroU64::get)),
    }
}

/// The limits of one process.
#[derive(Serialize)]
struct Line {
    process: Option<i32>,
    #[serde(flatten)]
    limits: Limits,
}

fn print(found: &[(ProcessId, Limits)], form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        let lines = found.iter().map(|(id, limits)| Line { process: id.0, limits: *limits });
        return output::print_json(&lines.collect::<Vec<_>>());
    }
    let none = || "none".to_owned();
    let row = |(id, limits): &(ProcessId, Limits)| {
        let bandwidth = limits.upload_bytes_per_second.map(|bytes| format!("{}/s", human(bytes)));
        let requests = limits.upload_requests_per_second.map(|count| format!("{count}/s"));
        vec![id.to_string(), bandwidth.unwrap_or_else(none), requests.unwrap_or_else(none)]
    };
    let headings = ["PROCESS", "UPLOAD BANDWIDTH", "UPLOAD REQUESTS"];
    output::print_table(&headings, found.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_stays_as_it_is() {
        let now = Limits { upload_bytes_per_second: Some(5), upload_requests_per_second: Some(6) };
        assert_eq!(changed(now, None, None), now);
        let without = changed(now, Some(Limit(None)), None);
        assert_eq!(without, Limits { upload_bytes_per_second: None, ..now });
        let requests = changed(now, None, Some(Limit(NonZeroU64::new(9))));
        assert_eq!(requests, Limits { upload_requests_per_second: Some(9), ..now });
    }
}
