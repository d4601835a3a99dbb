//! Failure of a command: kind, cause and advice.

use api::{ClientError, ErrorCode, ErrorDocument, ErrorInfo, SCHEMA_VERSION};
use netlink::NetlinkError;
use std::io;

/// Failure of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind, which chooses the exit status.
    pub code: ErrorCode,
    /// Cause, in one sentence.
    pub message: String,
    /// Advice for the user.
    pub help: Option<String>,
}

/// Result of a command: an exit status, or the failure.
pub type Outcome = Result<u8, Failure>;
/// Exit status of a command that succeeded.
pub const DONE: u8 = 0;

impl Failure {
    /// Returns a failure of this kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: None }
    }

    /// Returns a failure of the kind [`ErrorCode::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Failed, message)
    }

    /// Adds advice.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Returns the failure of a file or device; the kind follows from the kernel's error.
    pub fn io(tried: impl Into<String>, error: &io::Error) -> Self {
        let failure = Self::new(code_of(error.kind()), format!("{}: {error}", tried.into()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.help(RIGHTS),
            io::ErrorKind::NotFound => failure.help("check the path"),
            _ => failure,
        }
    }

    /// Returns the failure for a chain of errors; its kind is that of the first cause that has one.
    pub fn from_chain(error: &anyhow::Error) -> Self {
        let message = chain_text(error);
        for cause in error.chain() {
            if let Some(client) = cause.downcast_ref::<ClientError>() {
                return Self { code: client.code(), message, help: client.help() };
            }
            if let Some(door) = cause.downcast_ref::<bpf::FrontDoorError>() {
                return Self::of_front_door(door, message);
            }
            if cause.is::<daemon::ConfigError>() {
                return Self::new(ErrorCode::Usage, message)
                    .help("correct the node file; `tam node` prints a commented sample");
            }
            if let Some(code) = code_of_cause(cause) {
                return Self::new(code, message);
            }
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                return Self { message, ..Self::io("", io) };
            }
        }
        Self::failed(message)
    }

    /// Returns the failure for a refusal of the kernel or the BPF file system.
    fn of_front_door(error: &bpf::FrontDoorError, message: String) -> Self {
        let failure = Self::new(ErrorCode::Unsupported, message);
        match error {
            bpf::FrontDoorError::Folder { .. } => failure.help(
                "mount -t bpf bpf /sys/fs/bpf; inside `ip netns exec` it is hidden: use `nsenter --net=/run/netns/NAME`",
            ),
            _ => failure.help("`tam doctor` says what this machine can do"),
        }
    }

    /// Returns the JSON document of the failure.
    pub fn document(&self) -> ErrorDocument {
        ErrorDocument {
            schema_version: SCHEMA_VERSION,
            error: ErrorInfo {
                code: self.code,
                message: without_numbers(&self.message),
                help: self.help.clone(),
            },
        }
    }
}

/// Advice when the kernel refuses for lack of rights.
const RIGHTS: &str = "run it as root; `tam doctor` names the capabilities that are missing";

/// Removes the numbers that Rust's library writes behind the kernel's words: `(os error 2)`.
fn without_numbers(message: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut text = String::new();
    let mut rest = message;
    while let Some(at) = rest.find(BEGIN) {
        let (before, number) = (&rest[..at], &rest[at + BEGIN.len()..]);
        let Some((digits, behind)) = number.split_once(')') else { break };
        text.push_str(before);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            text.push_str(&rest[at..rest.len() - behind.len()]);
        }
        rest = behind;
    }
    text + rest
}

/// Joins the causes into one line; a cause whose text its effect already contains is left out.
fn chain_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns the kind of a cause that has one of its own, whatever the kernel's error below it.
fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<ErrorCode> {
    match cause.downcast_ref::<NetlinkError>() {
        Some(NetlinkError::NoDevice { .. }) => return Some(ErrorCode::NotFound),
        Some(NetlinkError::NoKind { .. }) => return Some(ErrorCode::Unsupported),
        _ => {}
    }
    let kernel_cannot = cause.is::<bpf::AttachError>()
        || cause.is::<bpf::LoadError>()
        || cause.is::<bpf::RawLoadError>();
    kernel_cannot.then_some(ErrorCode::Unsupported)
}

fn code_of(kind: io::ErrorKind) -> ErrorCode {
    match kind {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        // The kernel refuses, not a policy of ours.
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => ErrorCode::Unsupported,
        _ => ErrorCode::Failed,
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self { code: error.code(), help: error.help(), message: error.to_string() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::from_chain(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_kernels_reason_is_said_in_words() {
        let missing = io::Error::from_raw_os_error(2);
        let failure = Failure::io("reading a.wasm", &missing);
        let message = failure.document().error.message;
        assert_eq!(message, "reading a.wasm: No such file or directory");
        for (message, shown) in [
            ("a (os error 2): b (os error 13)", "a: b"),
            ("a (os error x) b", "a (os error x) b"),
            ("a (os error ", "a (os error "),
            ("plain", "plain"),
        ] {
            assert_eq!(without_numbers(message), shown);
        }
    }

    #[test]
    fn the_kind_is_that_of_the_cause() {
        let cause: Result<(), io::Error> = Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let failure = Failure::from(cause.context("attaching the front door").unwrap_err());
        assert_eq!(failure.code, ErrorCode::Unsupported);
        assert!(failure.message.starts_with("attaching the front door: "), "{}", failure.message);
        assert!(failure.help.unwrap().contains("root"));
        let missing = NetlinkError::NoDevice { name: "eth9".to_owned() };
        let failure = Failure::from(anyhow::Error::new(missing).context("port 'left'"));
        assert_eq!(failure.code, ErrorCode::NotFound);
        assert!(failure.message.starts_with("port 'left': there is no"), "{}", failure.message);
    }
}
