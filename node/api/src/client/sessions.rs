//! Sessions, asked for by the client.

use super::{Call, Client, ClientError};
use crate::endpoints::Operation;
use crate::sessions::{
    SessionChange, SessionDetails, SessionList, SessionPromised, SessionRemoved, SessionRequest,
};

impl Client {
    /// All sessions: what they were promised, and what they use.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all methods.
    pub fn sessions(&self) -> Result<SessionList, ClientError> {
        self.read(Operation::Sessions)
    }

    /// One session.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn session(&self, name: &str) -> Result<SessionDetails, ClientError> {
        self.call(Call::of(Operation::Session, Some(name)))
    }

    /// Makes a session.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn create_session(&self, request: &SessionRequest) -> Result<SessionPromised, ClientError> {
        self.write(Call::of(Operation::CreateSession, None), request)
    }

    /// Promises a session something else.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_session(
        &self,
        name: &str,
        change: &SessionChange,
    ) -> Result<SessionPromised, ClientError> {
        self.write(Call::of(Operation::SetSession, Some(name)), change)
    }

    /// Removes a session; with `cascade` the services and rules in it go, too. Returns when they
    /// have stopped.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove_session(&self, name: &str, cascade: bool) -> Result<SessionRemoved, ClientError> {
        let mut call = Call::of(Operation::RemoveSession, Some(name));
        if cascade {
            call.target.push_str("?cascade=true");
        }
        self.call(call)
    }
}
