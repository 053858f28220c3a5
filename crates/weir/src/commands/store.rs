//! `weir store`: verbs on stores themselves, without a node.

use std::process::ExitCode;

use weir_node::config::Config;
use weir_store::{ProbeReport, Store, Verdict};

use crate::cli::global::Global;
use crate::cli::store::StoreCommand;
use crate::process::threads;
use crate::settings;
use crate::terminal::failure::Failure;
use crate::terminal::form::OutputForm;
use crate::terminal::output;

/// Runs the verb.
pub(crate) fn run(global: &Global, file: &Config, verb: StoreCommand) -> Result<ExitCode, Failure> {
    let runtime = threads::runtime()?;
    match verb {
        StoreCommand::Probe { url, output } => {
            let store = Store::open_with(&url, &settings::store_options(global, file)?)?;
            let report = runtime.block_on(probe(&store))?;
            print(&report, output.output)?;
            let usable = match report.verdict {
                Verdict::Usable => true,
                Verdict::SingleWriter => settings::store_options(global, file)?.single_writer,
                Verdict::Unusable => false,
            };
            Ok(if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// Probes the store, whatever an earlier probe found, and keeps the result for later openings.
async fn probe(store: &Store) -> Result<ProbeReport, Failure> {
    let mut random = rand::random::<u64>;
    let report = store.probe(&mut random).await?;
    store.remember(&report, &mut random).await?;
    Ok(report)
}

fn print(report: &ProbeReport, form: OutputForm) -> Result<(), Failure> {
    if form == OutputForm::Json {
        return output::print_json(report);
    }
    let rows = report.checks.iter().map(|check| {
        let result = if check.passed { "ok" } else { "BROKEN" };
        let time = format!("{} ms", check.time_ms);
        vec![check.name.to_owned(), result.to_owned(), time, check.detail.clone()]
    });
    output::print_table(&["CHECK", "RESULT", "TIME", "DETAIL"], rows.collect())?;
    let verdict = match report.verdict {
        Verdict::Usable => "may be used",
        Verdict::SingleWriter => {
            "may be used with --single-writer, if never more than one process writes to it"
        }
        Verdict::Unusable => "must not be used: it would lose data",
    };
    let mut text = format!("\n{} {verdict}\n", report.url);
    if report.left_behind > 0 {
        text += "some objects below weir-probe/run-... could not be deleted again\n";
    }
    output::print(&text)
}
