//! Connection to a stream's origin: opening, deadlines, and reconnection with back-off.

use super::{Connection, Effect};
use crate::limits::{
    BACK_OFF_MAX, BACK_OFF_MIN, HEAD_WAIT_MAX, RECONNECT_MAX, SILENCE_MAX, STABLE,
};
use http1::RequestHead;
use std::sync::Arc;
use units::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Closed,
    /// Waiting for the head.
    Waiting {
        until: Nanos,
    },
    /// Receiving the body.
    Flowing {
        since: Nanos,
        silent_at: Nanos,
    },
    /// Pause before the next try.
    BackOff {
        until: Nanos,
    },
}

/// Deadline of an origin that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// Reconnecting has taken too long: the origin is not tried any more.
    Expired,
    /// Silence of the origin has lasted too long.
    Silent,
    /// Pause is over: the origin is to be opened again.
    Retry,
}

/// Origin of a stream.
#[derive(Debug)]
pub(super) struct Origin {
    request: Arc<RequestHead>,
    link: Link,
    connection: Connection,
    /// Pauses that were made without a stable connection between them.
    attempts: u32,
    /// Time of the connection's loss, if nothing has come since.
    lost: Option<Nanos>,
}

impl Origin {
    /// An origin that was never opened.
    pub(super) const fn new(request: Arc<RequestHead>) -> Self {
        Self { request, link: Link::Closed, connection: Connection(0), attempts: 0, lost: None }
    }

    /// Returns the latest connection.
    pub(super) const fn connection(&self) -> Connection {
        self.connection
    }

    /// Returns true if this connection is open and has received no head.
    pub(super) fn is_waiting_for(&self, connection: Connection) -> bool {
        connection == self.connection && matches!(self.link, Link::Waiting { .. })
    }

    /// Returns true if this connection is receiving a body.
    pub(super) fn is_flowing_by(&self, connection: Connection) -> bool {
        connection == self.connection && matches!(self.link, Link::Flowing { .. })
    }

    /// Returns the time at which [`Origin::due`] has to be called.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        let link = match self.link {
            Link::Closed => None,
            Link::Waiting { until } | Link::BackOff { until } => Some(until),
            Link::Flowing { silent_at, .. } => Some(silent_at),
        };
        [link, self.expires()].into_iter().flatten().min()
    }

    /// Returns the deadline that has passed, if one has.
    pub(super) fn due(&self, now: Nanos) -> Option<Deadline> {
        if self.expires().is_some_and(|at| at <= now) {
            return Some(Deadline::Expired);
        }
        match self.link {
            Link::Waiting { until } | Link::Flowing { silent_at: until, .. } if until <= now => {
                Some(Deadline::Silent)
            }
            Link::BackOff { until } if until <= now => Some(Deadline::Retry),
            _ => None,
        }
    }

    /// Opens the next connection.
    pub(super) fn open(&mut self, now: Nanos) -> Effect {
        self.connection = Connection(self.connection.0.wrapping_add(1));
        self.link = Link::Waiting { until: now + HEAD_WAIT_MAX };
        Effect::Open { connection: self.connection, request: Arc::clone(&self.request) }
    }

    /// Closes the connection, if there is one.
    pub(super) fn close(&mut self) -> Option<Effect> {
        let is_open = matches!(self.link, Link::Waiting { .. } | Link::Flowing { .. });
        self.link = Link::Closed;
        is_open.then_some(Effect::Close { connection: self.connection })
    }

    /// Hands the connection over, or leaves it as it is; its events are ignored from now on.
    pub(super) const fn release(&mut self) {
        self.link = Link::Closed;
    }

    /// Notes that the origin's head is here.
    pub(super) fn begin_body(&mut self, now: Nanos) {
        self.link = Link::Flowing { since: now, silent_at: now + SILENCE_MAX };
    }

    /// Notes bytes of a connection; false when it is another one, or has no body.
    pub(super) fn note_bytes(&mut self, now: Nanos, connection: Connection) -> bool {
        let Link::Flowing { since, .. } = self.link else { return false };
        if connection != self.connection {
            return false;
        }
        self.link = Link::Flowing { since, silent_at: now + SILENCE_MAX };
        self.lost = None;
        if now.saturating_sub(since) >= STABLE {
            self.attempts = 0;
        }
        true
    }

    /// Notes that the connection was lost in the middle of the stream.
    pub(super) fn note_loss(&mut self, now: Nanos) {
        self.lost = self.lost.or(Some(now));
    }

    /// Clears the time of the loss: no listener waits for the origin any more.
    pub(super) const fn forget_loss(&mut self) {
        self.lost = None;
    }

    /// Makes a pause before the next connection, each twice as long as the one before.
    pub(super) fn back_off(&mut self, now: Nanos) {
        let pause = BACK_OFF_MIN.0.saturating_mul(1 << self.attempts.min(16));
        self.attempts = self.attempts.saturating_add(1);
        self.link = Link::BackOff { until: now + Nanos(pause.min(BACK_OFF_MAX.0)) };
    }

    /// Returns the time at which the origin is not tried any more.
    fn expires(&self) -> Option<Nanos> {
        self.lost.map(|lost| lost + RECONNECT_MAX)
    }
}
