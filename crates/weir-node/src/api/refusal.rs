//! Answers of the API that are no success.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use weir_device::{ErrorKind, with_causes};
use weir_log::catalog::VolumeName;

use crate::api::types::{ErrorBody, Problem};
use crate::error::NodeError;

/// An answer that is no success.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    problem: Problem,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        let kind = format!("{kind:?}");
        Self { status, problem: Problem { kind, message: message.into(), help: None } }
    }
}

impl From<&NodeError> for Problem {
    fn from(error: &NodeError) -> Self {
        let kind = format!("{:?}", error.kind());
        Self { kind, message: with_causes(error), help: error.help() }
    }
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Exists | ErrorKind::Busy | ErrorKind::Fenced | ErrorKind::ReadOnly => {
                StatusCode::CONFLICT
            }
            ErrorKind::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Retry | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Corrupt | ErrorKind::Poisoned | ErrorKind::Bug => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self { status, problem: Problem::from(&error) }
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), ErrorKind::Invalid, rejection.body_text())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(rejection.status(), ErrorKind::Invalid, rejection.body_text())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.problem })).into_response()
    }
}

/// The name of a volume in the path of a request.
pub(crate) fn volume_name(name: &str) -> Result<VolumeName, Refusal> {
    VolumeName::new(name).map_err(|error| NodeError::from(error).into())
}
