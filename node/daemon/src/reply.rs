//! Replies to requests of the API: each is given exactly once.
//!
//! ```text
//!  handler ─ Reply::pair ─▶ Reply ─▶ daemon ─ ok, refuse, answer ─▶ Awaited ─▶ handler
//!                                       └ dropped: the node stops ───▲
//! ```

use crate::answer::{Answer, error};
use api::{ErrorCode, ErrorInfo};
use tokio::sync::oneshot;

/// Obligation to answer one request. Dropped without an answer, it tells the client that the node
/// is stopping, which must be the only case.
#[must_use = "a client waits for the answer"]
#[derive(Debug)]
pub(crate) struct Reply<T>(Option<oneshot::Sender<Answer<T>>>);

/// Receiver of the answer to a request.
#[derive(Debug)]
pub(crate) struct Awaited<T>(oneshot::Receiver<Answer<T>>);

impl<T> Reply<T> {
    /// Creates a reply and its receiver.
    pub(crate) fn pair() -> (Self, Awaited<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(sender)), Awaited(receiver))
    }

    /// Returns true when the client has closed its connection.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Answers with a document or a refusal.
    pub(crate) fn answer(mut self, answer: Answer<T>) {
        if let Some(sender) = self.0.take() {
            // The client may have gone meanwhile.
            let _ = sender.send(answer);
        }
    }

    /// Answers with a document.
    pub(crate) fn ok(self, document: T) {
        self.answer(Ok(document));
    }

    /// Answers with a refusal.
    pub(crate) fn refuse(self, refusal: ErrorInfo) {
        self.answer(Err(refusal));
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(Err(stopping()));
        }
    }
}

impl<T> Awaited<T> {
    /// Waits for the answer.
    pub(crate) async fn answer(self) -> Answer<T> {
        self.0.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Blocks this thread, which is none of the runtime's, until the answer is there.
    pub(crate) fn blocking_answer(self) -> Answer<T> {
        self.0.blocking_recv().unwrap_or_else(|_| Err(stopping()))
    }

    /// Returns the answer if it has been given.
    #[cfg(test)]
    pub(crate) fn try_answer(&mut self) -> Option<Answer<T>> {
        self.0.try_recv().ok()
    }
}

/// Returns the refusal of a request to a node that is stopping.
pub(crate) fn stopping() -> ErrorInfo {
    error(ErrorCode::Unreachable, "the node is stopping", None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_answered_once_and_one_that_is_dropped_says_that_the_node_stops() {
        let (reply, mut awaited) = Reply::pair();
        assert!(awaited.try_answer().is_none() && !reply.is_abandoned());
        reply.ok(1);
        assert_eq!(awaited.try_answer(), Some(Ok(1)));
        assert_eq!(awaited.try_answer(), None, "dropping it afterwards says nothing more");

        let (reply, mut awaited) = Reply::<u8>::pair();
        drop(reply);
        let refusal = awaited.try_answer().unwrap().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Unreachable);

        let (reply, awaited) = Reply::<u8>::pair();
        drop(awaited);
        assert!(reply.is_abandoned());
        reply.refuse(stopping());
    }
}
