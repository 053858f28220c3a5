//! What the user sees when a command fails: `error: ...`, and `help: ...` if there is something to do next; one JSON
//! object if programs read the output.

use std::process::ExitCode;

use serde_json::json;
use weir_device::{ErrorKind, with_causes};
use weir_node::NodeError;
use weir_store::StoreError;

use crate::terminal::form::is_for_programs;
use crate::terminal::output::say;

/// Wrong usage that only shows once the command has begun, as clap's own code for it.
const USAGE: u8 = 2;

/// Exit code of a command that did its work and found damage, or left something undone, as distinct from one that
/// failed.
pub(crate) const DAMAGED: u8 = 3;

/// The kind of a failure that has none in the API.
const OTHER: &str = "Other";

fn named(kind: ErrorKind) -> String {
    format!("{kind:?}")
}

/// A failure of a command.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
    /// What a caller can do, as in the API.
    kind: String,
    code: u8,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, kind: OTHER.to_owned(), code: 1 }
    }

    /// A failure of whoever typed the command, with exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, kind: named(ErrorKind::Invalid), ..Self::new(message) }
    }

    /// The same with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same with what to do next.
    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// What is said of it.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// What to do next, if there is something.
    #[cfg(test)]
    pub(crate) fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Tells the user.
    pub(crate) fn print(&self) {
        if is_for_programs() {
            let Self { message, help, kind, .. } = self;
            say!("{}", json!({ "error": message, "help": help, "kind": kind }));
            return;
        }
        say!("error: {}", self.message);
        if let Some(help) = &self.help {
            say!("help: {help}");
        }
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self { help: error.help(), kind: named(error.kind()), ..Self::new(with_causes(&error)) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { kind: named(error.kind()), ..Self::new(with_causes(&error)) }
    }
}
