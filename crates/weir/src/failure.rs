//! What the user sees when something does not work: `error: ...`, and `help: ...` where there is a way out.

use std::process::ExitCode;

use weir_device::with_causes;
use weir_node::NodeError;
use weir_store::StoreError;

/// Wrong usage that only shows once the command has begun, as clap's own code for it.
const USAGE: u8 = 2;

/// A failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
    code: u8,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, code: 1 }
    }

    /// A failure of whoever typed the command, with exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::new(message) }
    }

    /// The same with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The same with what to do next.
    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Tells the user.
    pub(crate) fn print(&self) {
        eprintln!("error: {}", self.message);
        if let Some(help) = &self.help {
            eprintln!("help: {help}");
        }
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self { help: error.help(), ..Self::new(with_causes(&error)) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(with_causes(&error))
    }
}
