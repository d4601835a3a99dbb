//! Answers to requests, their refusals, and the parts of requests that several of them have.

use abi::Level;
use api::{ErrorCode, ErrorInfo};
use node::rule::Stage;
use units::Name;

/// Answer to a request: a document or a refusal.
pub(crate) type Answer<T> = Result<T, ErrorInfo>;

/// Returns a refusal with advice.
pub(crate) fn error(code: ErrorCode, message: impl Into<String>, help: Option<&str>) -> ErrorInfo {
    ErrorInfo { code, message: message.into(), help: help.map(str::to_owned) }
}

/// Returns the refusal of a request with a mistake.
pub(crate) fn usage(problem: impl std::fmt::Display) -> ErrorInfo {
    error(ErrorCode::Usage, problem.to_string(), None)
}

/// Returns the refusal of a request that the node or its host could not do.
pub(crate) fn failed(problem: impl std::fmt::Display) -> ErrorInfo {
    error(ErrorCode::Failed, problem.to_string(), None)
}

/// Returns the refusal of a request to which the node gave an outcome of another kind: a fault of
/// the node itself.
pub(crate) fn unexpected(request: &str) -> ErrorInfo {
    let message = format!("internal error: the outcome of {request} is of another kind");
    let help = "this is a fault of the node: report it with its log; `tam list` shows what runs";
    error(ErrorCode::Failed, message, Some(help))
}

/// Returns a refusal of `core/node` for the API.
pub(crate) fn refused(refusal: &node::Refusal) -> ErrorInfo {
    let (code, message) = (api::code_of(refusal.class()), refusal.to_string());
    ErrorInfo { code, message, help: None }
}

/// Parses a name.
pub(crate) fn name(text: &str) -> Answer<Name> {
    Name::new(text).map_err(usage)
}

/// Parses the name of a session; without one it is the best-effort session.
pub(crate) fn session(wanted: Option<&str>) -> Answer<Name> {
    wanted.map_or_else(|| Ok(node::session::best_effort()), name)
}

/// Parses the name of a rule's stage.
pub(crate) fn stage(text: Option<&str>) -> Answer<Option<Stage>> {
    text.map(str::parse).transpose().map_err(usage)
}

/// Parses the name of a level.
pub(crate) fn level(text: &str) -> Answer<Level> {
    Level::ALL.iter().copied().find(|level| level.name() == text).ok_or_else(|| {
        let known = Level::ALL.iter().map(|level| level.name());
        let meant = abi::manifest::Meant::new(text, known);
        usage(format!("'{}' is no level{meant}", quoted(text)))
    })
}

/// Returns a text of a client as messages quote it: its first 40 characters, escaped.
pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

/// Returns the refusal for a service that is not there, or is not the client's: they are one.
pub(crate) fn no_service<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> ErrorInfo {
    let meant = abi::manifest::Meant::new(wanted, known);
    error(
        ErrorCode::NotFound,
        format!("there is no service '{}' on this node{meant}", quoted(wanted)),
        Some("'tam list' shows the services"),
    )
}

/// Returns the refusal for a capture that is not there, or is not the client's: they are one.
pub(crate) fn no_capture(id: u32) -> ErrorInfo {
    let help = Some("a capture ends when nobody asks for its packets for 10 s");
    error(ErrorCode::NotFound, format!("there is no capture {id}"), help)
}
