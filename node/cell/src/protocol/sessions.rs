//! Reservation and usage of sessions, as the daemon and a cell exchange them.
//!
//! A reservation travels as numbers. Text, which people write, has several spellings for one value;
//! numbers have one, and the receiver checks them against the same limits.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use session::memory::Account;
use session::{Reservation, Share, VirtualProcessor, Weight};
use units::{Bytes, Name, Nanos, SessionId};

/// Most session reports in one message: it stays below the longest message that the socket takes.
pub const SESSION_REPORTS_MAX: usize = 250;

/// Upper bounds (inclusive) of the buckets of [`SessionReport::deviations`], in millionths of a
/// period: how much a virtual processor's guaranteed time differed from its slice. The last bucket
/// has no bound.
pub const DEVIATION_BOUNDS: [u64; 9] =
    [500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000];
/// Number of buckets of deviations.
pub const DEVIATIONS: usize = DEVIATION_BOUNDS.len() + 1;

/// Session, with its reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// Number of the session.
    pub id: SessionId,
    /// Resources that it was promised.
    #[serde(with = "numbers")]
    pub reservation: Reservation,
}

/// Usage of a session: counters since the cell started, and present values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Number of the session.
    pub session: SessionId,
    /// Processor time of its modules.
    pub cpu: Nanos,
    /// Bytes of packets queued for it now.
    pub queue: Bytes,
    /// Packets dropped because its queue was full.
    pub dropped: u64,
    /// Bytes sent, by all ports.
    pub sent: Bytes,
    /// Memory account.
    pub memory: Account,
    /// Histogram of the periods of its virtual processors by the deviation of the time given from
    /// the slice: less although there was work, or more.
    pub deviations: [u64; DEVIATIONS],
}

impl SessionReport {
    /// Returns the report of a session that has used nothing.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            cpu: Nanos::ZERO,
            queue: Bytes::ZERO,
            dropped: 0,
            sent: Bytes::ZERO,
            memory: Account::default(),
            deviations: [0; DEVIATIONS],
        }
    }
}

/// Wire form of a share.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Numbers {
    slice: Nanos,
    period: Nanos,
}

impl From<Share> for Numbers {
    fn from(share: Share) -> Self {
        Self { slice: share.slice(), period: share.period() }
    }
}

impl Numbers {
    fn share<E: serde::de::Error>(self) -> Result<Share, E> {
        Share::new(self.slice, self.period).map_err(E::custom)
    }
}

/// Wire form of a reservation.
#[derive(Serialize, Deserialize)]
struct Promised {
    processors: Vec<(Numbers, bool)>,
    below: Option<Numbers>,
    memory: Option<u64>,
    queue: Option<u64>,
    send: Vec<(Name, Numbers)>,
    weight: u16,
}

mod numbers {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        reservation: &Reservation,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        // Destructured in full, so that a new field cannot be forgotten here.
        let Reservation { processors, below, memory, queue, send, weight } = reservation;
        let send = send.iter().map(|(port, share)| (port.clone(), (*share).into()));
        Promised {
            processors: processors.iter().map(|it| (it.share.into(), it.extra)).collect(),
            below: below.map(Numbers::from),
            memory: memory.map(|bytes| bytes.0),
            queue: queue.map(|bytes| bytes.0),
            send: send.collect(),
            weight: weight.get(),
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Reservation, D::Error> {
        let promised = Promised::deserialize(from)?;
        let processor = |(share, extra): (Numbers, bool)| {
            share.share::<D::Error>().map(|share| VirtualProcessor { share, extra })
        };
        let reservation = Reservation {
            processors: promised.processors.into_iter().map(processor).collect::<Result<_, _>>()?,
            below: promised.below.map(Numbers::share::<D::Error>).transpose()?,
            memory: promised.memory.map(Bytes),
            queue: promised.queue.map(Bytes),
            send: promised
                .send
                .into_iter()
                .map(|(port, share)| Ok((port, share.share::<D::Error>()?)))
                .collect::<Result<_, D::Error>>()?,
            weight: Weight::new(promised.weight).map_err(D::Error::custom)?,
        };
        reservation.check().map_err(D::Error::custom)?;
        Ok(reservation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FromCell, ToCell, decode, encode};
    use session::memory::{Held, Use};

    #[test]
    fn a_reservation_is_decoded_as_it_was_encoded() {
        let all = r#"{"cpu":["1ms/4ms+extra","2ms/20ms"],"below":"400us/4ms","memory":"64MiB",
            "queue":"256KiB","send":{"left":"1ms/4ms","right":"2ms/6ms"},"weight":200}"#;
        for json in [all, "{}"] {
            let reservation: Reservation = serde_json::from_str(json).unwrap();
            let facts = SessionSpec { id: SessionId(7), reservation };
            let bytes = encode(&ToCell::Session(Box::new(facts.clone()))).unwrap();
            let Ok(ToCell::Session(read)) = decode(&bytes) else { panic!("{json}") };
            assert_eq!(*read, facts);
        }
    }

    #[test]
    fn an_impossible_reservation_is_refused() {
        let promised = |slice: u64, weight: u16| {
            let numbers = Numbers { slice: Nanos(slice), period: Nanos::from_millis(4) };
            let promised = Promised {
                processors: vec![(numbers, false)],
                below: None,
                memory: None,
                queue: None,
                send: Vec::new(),
                weight,
            };
            let bytes = encode(&(SessionId(7), promised)).unwrap();
            decode::<SessionSpec>(&bytes).is_ok()
        };
        assert!(promised(1_000_000, 100));
        assert!(!promised(5_000_000, 100));
        assert!(!promised(1_000_000, 0));
    }

    fn account(most: u64) -> Account {
        let held = Use::ALL.into_iter().fold(Held::default(), |held, what| {
            // Their sum is no number of bytes that a machine has.
            held.with(what, Bytes(most))
        });
        let mut account = Account::default();
        (account.reserved, account.held, account.peak) = (Some(Bytes(most)), held, Bytes(most));
        (account.used, account.refused, account.lows) = (Bytes(most), most, most);
        account
    }

    #[test]
    fn the_most_reports_of_a_message_fit_into_it() {
        let (most, session) = (u64::MAX, SessionId(u16::MAX));
        let report = SessionReport {
            session,
            cpu: Nanos(most),
            queue: Bytes(most),
            dropped: most,
            sent: Bytes(most),
            memory: account(most),
            deviations: [most; DEVIATIONS],
        };
        let bytes = encode(&FromCell::Sessions(vec![report; SESSION_REPORTS_MAX])).unwrap();
        assert!(bytes.len() <= sandbox::fd_passing::MESSAGE_LENGTH_MAX, "{}", bytes.len());
    }
}
