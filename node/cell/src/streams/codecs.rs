//! Codecs of a cell's streams: admission, processor time, and the accounts that pay.
//!
//! ```text
//!  filter ─ admit, start, stop ─▶ Codecs ─ WantsCodec, CodecUnwanted ─▶ daemon ─▶ process
//!         ◀─────── events ─────────        ◀─ CodecStarted, CodecEnded ──
//! ```
//!
//! A cell starts no process: the daemon does, and passes it a socket. The processor time of a codec
//! is measured here, since the session of its stream pays for it and feeds it in its own turns: a
//! session that has used up its slice, and gets no extra time, feeds none.

use crate::protocol::CodecSpec;
use mpeg2::TranscodeParams;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::time::Duration;
use stream_services::{CodecEvent, Refusal, Share};
use units::{EntryId, Nanos, SessionId};

/// Most streams with codecs, whatever time they use: each is a process or two.
pub(crate) const STREAMS_MAX: usize = 128;
/// Part of the codecs' cores that streams may need together, in thousandths: the rest is for
/// pictures that take longer than others, and for the start of codecs.
const USED_MAX: u64 = 900;
/// Assumed need of a stream before it has been measured, in thousandths of a core: main level at 25
/// pictures a second, with a margin.
const NEED_UNKNOWN: u64 = 60;
/// Playing time of a stream after which its need is known.
const NEED_KNOWN_FROM: Nanos = Nanos::from_millis(1_000);
/// Period at which the processor time of codecs is read: several times in each session's period.
const POLL_PERIOD: Nanos = Nanos::from_millis(5);

/// Codecs of a cell; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Codecs(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    facts: Option<CodecSpec>,
    streams: BTreeMap<u64, Stream>,
    codecs: BTreeMap<u64, Codec>,
    last: u64,
    requests: VecDeque<CodecRequest>,
    /// Limit of a session in thousandths of a core; a session without one has what is left.
    ceilings: BTreeMap<SessionId, u64>,
    /// Processor time of codecs not charged yet, by service.
    uncharged: BTreeMap<EntryId, Nanos>,
    polled_at: Nanos,
}

/// Stream with codecs.
struct Stream {
    session: SessionId,
    cpu: Nanos,
    /// Playing time of the stream that has been shown.
    shown: Nanos,
}

struct Codec {
    stream: u64,
    entry: EntryId,
    events: Weak<RefCell<VecDeque<CodecEvent>>>,
    /// Process id, once it runs.
    pid: Option<u32>,
    cpu: Nanos,
}

/// Request to the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CodecRequest {
    /// Start of a codec, with its parameters.
    Start(u64, String),
    /// End of a codec.
    Stop(u64),
}

impl Stream {
    /// Returns the thousandths of a core that it needs to be shown in real time, if that is known.
    fn need(&self) -> Option<u64> {
        if self.shown < NEED_KNOWN_FROM {
            return None;
        }
        u64::try_from(u128::from(self.cpu.0) * 1000 / u128::from(self.shown.0)).ok()
    }
}

impl Codecs {
    /// Sets the availability of codecs, as the daemon states it.
    pub(crate) fn set_facts(&self, facts: CodecSpec) {
        self.0.borrow_mut().facts = Some(facts);
    }

    /// Sets the limit of a session in thousandths of a core; `None`: what is left.
    pub(crate) fn set_ceiling(&self, session: SessionId, permille: Option<u64>) {
        let ceilings = &mut self.0.borrow_mut().ceilings;
        match permille {
            Some(permille) => ceilings.insert(session, permille),
            None => ceilings.remove(&session),
        };
    }

    /// Returns the codecs of one service's module.
    pub(crate) fn of(&self, session: SessionId, entry: EntryId) -> Rc<dyn stream_services::Codecs> {
        Rc::new(ServiceCodecs { all: self.clone(), session, entry, events: Rc::default() })
    }

    /// Returns the next request to the daemon.
    pub(crate) fn poll_request(&self) -> Option<CodecRequest> {
        self.0.borrow_mut().requests.pop_front()
    }

    /// Discards outstanding requests, of which a new daemon does not know: streams lose codecs that
    /// were starting.
    pub(crate) fn discard_requests(&self) {
        let waiting = |(number, codec): (&u64, &Codec)| codec.pid.is_none().then_some(*number);
        let waiting: Vec<u64> = self.0.borrow().codecs.iter().filter_map(waiting).collect();
        for number in waiting {
            self.ended(number, "the node's daemon has been replaced".to_owned(), Nanos::ZERO);
        }
    }

    /// Passes a started codec to its stream.
    pub(crate) fn started(&self, number: u64, pid: u32, socket: OwnedFd) {
        // If no stream wants it, the socket closes and the codec ends.
        let mut all = self.0.borrow_mut();
        if let Some(codec) = all.codecs.get_mut(&number) {
            codec.pid = Some(pid);
            if let Some(events) = codec.events.upgrade() {
                events.borrow_mut().push_back(CodecEvent::Started(number, socket));
            }
        }
    }

    /// Removes a codec that has ended or could not be started; `cpu` is its total processor time,
    /// zero if unknown.
    pub(crate) fn ended(&self, number: u64, why: String, cpu: Nanos) {
        let mut all = self.0.borrow_mut();
        let Some(codec) = all.codecs.remove(&number) else { return };
        all.add(codec.stream, codec.entry, cpu.saturating_sub(codec.cpu));
        if let Some(events) = codec.events.upgrade() {
            events.borrow_mut().push_back(CodecEvent::Ended(number, why));
        }
    }

    /// Reads the processor time of codecs if a period has passed.
    pub(crate) fn poll(&self, now: Nanos, taken: impl Fn(u32) -> Option<Duration>) {
        let mut all = self.0.borrow_mut();
        if all.codecs.is_empty() || now.saturating_sub(all.polled_at) < POLL_PERIOD {
            return;
        }
        all.polled_at = now;
        let mut more = Vec::new();
        for codec in all.codecs.values_mut() {
            let taken = codec.pid.and_then(&taken);
            let nanos = taken.and_then(|time| u64::try_from(time.as_nanos()).ok()).map(Nanos);
            if let Some(cpu) = nanos.filter(|cpu| *cpu > codec.cpu) {
                more.push((codec.stream, codec.entry, cpu.saturating_sub(codec.cpu)));
                codec.cpu = cpu;
            }
        }
        for (stream, entry, cpu) in more {
            all.add(stream, entry, cpu);
        }
    }

    /// Takes the processor time of a service's codecs that has not been charged.
    pub(crate) fn take_uncharged(&self, entry: EntryId) -> Nanos {
        self.0.borrow_mut().uncharged.remove(&entry).unwrap_or_default()
    }
}

impl State {
    fn add(&mut self, stream: u64, entry: EntryId, cpu: Nanos) {
        *self.uncharged.entry(entry).or_default() += cpu;
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.cpu += cpu;
        }
    }

    fn admit(&mut self, session: SessionId) -> Result<u64, Refusal> {
        let cores = match &self.facts {
            None => return Err(Refusal::Unavailable("this node has no codec".to_owned())),
            Some(CodecSpec { missing: Some(why), .. }) => {
                return Err(Refusal::Unavailable(why.clone()));
            }
            Some(facts) => u64::from(facts.cores),
        };
        if self.streams.len() >= STREAMS_MAX {
            return Err(Refusal::Busy(format!(
                "the limit of {STREAMS_MAX} streams with codecs is reached"
            )));
        }
        // The need of another stream is the mean of the known needs.
        let known = self.streams.values().filter_map(Stream::need);
        let (count, sum) = known.fold((0, 0), |(count, sum), need| (count + 1, sum + need));
        let another = u64::checked_div(sum, count).unwrap_or(NEED_UNKNOWN).max(1);
        let need = |stream: &Stream| stream.need().unwrap_or(another);
        let needed: u64 = self.streams.values().map(need).sum();
        if needed + another > cores * USED_MAX {
            let streams = self.streams.len();
            return Err(Refusal::Busy(format!(
                "{streams} streams need {needed} of {} thousandths of a processor",
                cores * USED_MAX
            )));
        }
        if let Some(&ceiling) = self.ceilings.get(&session) {
            let own = self.streams.values().filter(|stream| stream.session == session);
            let own: u64 = own.map(need).sum();
            if own + another > ceiling {
                return Err(Refusal::Busy(format!(
                    "its session's streams need {own} of {ceiling} thousandths of a processor"
                )));
            }
        }
        self.last += 1;
        let stream = Stream { session, cpu: Nanos::ZERO, shown: Nanos::ZERO };
        self.streams.insert(self.last, stream);
        Ok(self.last)
    }

    /// Asks the daemon to end a codec, whose time is read until it has ended.
    fn stop(&mut self, number: u64) {
        if self.codecs.contains_key(&number) {
            self.requests.push_back(CodecRequest::Stop(number));
        }
    }
}

/// Codecs of one version of a service.
struct ServiceCodecs {
    all: Codecs,
    session: SessionId,
    entry: EntryId,
    events: Rc<RefCell<VecDeque<CodecEvent>>>,
}

impl stream_services::Codecs for ServiceCodecs {
    fn admit(&self) -> Result<Rc<dyn Share>, Refusal> {
        let stream = self.all.0.borrow_mut().admit(self.session)?;
        Ok(Rc::new(StreamCodecs {
            all: self.all.clone(),
            stream,
            entry: self.entry,
            events: Rc::downgrade(&self.events),
            own: RefCell::default(),
            shown: Cell::default(),
        }))
    }

    fn poll(&self) -> Option<CodecEvent> {
        self.events.borrow_mut().pop_front()
    }

    fn has_events(&self) -> bool {
        !self.events.borrow().is_empty()
    }
}

/// Admitted stream, with its codecs.
struct StreamCodecs {
    all: Codecs,
    stream: u64,
    entry: EntryId,
    events: Weak<RefCell<VecDeque<CodecEvent>>>,
    own: RefCell<Vec<u64>>,
    shown: Cell<Nanos>,
}

impl Share for StreamCodecs {
    fn start(&self, params: &TranscodeParams) -> u64 {
        let mut all = self.all.0.borrow_mut();
        all.last += 1;
        let number = all.last;
        let (stream, entry, events) = (self.stream, self.entry, self.events.clone());
        all.codecs.insert(number, Codec { stream, entry, events, pid: None, cpu: Nanos::ZERO });
        all.requests.push_back(CodecRequest::Start(number, params.to_string()));
        self.own.borrow_mut().push(number);
        number
    }

    fn stop(&self, codec: u64) {
        self.own.borrow_mut().retain(|own| *own != codec);
        self.all.0.borrow_mut().stop(codec);
    }

    fn show(&self, time: Nanos) {
        if time > self.shown.replace(time) {
            let mut all = self.all.0.borrow_mut();
            if let Some(stream) = all.streams.get_mut(&self.stream) {
                stream.shown = time;
            }
        }
    }
}

impl Drop for StreamCodecs {
    fn drop(&mut self) {
        let mut all = self.all.0.borrow_mut();
        for codec in self.own.take() {
            all.stop(codec);
        }
        all.streams.remove(&self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(3);
    const ENTRY: EntryId = EntryId(5);

    fn codecs(cores: u16) -> Codecs {
        let codecs = Codecs::default();
        codecs.set_facts(CodecSpec { cores, missing: None });
        codecs
    }

    fn socket() -> OwnedFd {
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()
    }

    fn params() -> TranscodeParams {
        TranscodeParams::parse(b"width=160 height=120 rate=10 pixels=rgb24").unwrap()
    }

    fn is_busy(refused: Result<Rc<dyn Share>, Refusal>) -> bool {
        matches!(refused.map(|_| ()), Err(Refusal::Busy(_)))
    }

    #[test]
    fn there_are_as_many_streams_as_the_processor_carries() {
        let codecs = codecs(1);
        let own = codecs.of(SESSION, ENTRY);
        // Without a measurement, each needs the same.
        let mut all: Vec<_> = (0..15).map(|_| own.admit().unwrap()).collect();
        assert!(is_busy(own.admit()), "15 at 60 are 900");
        all.pop();
        all.push(own.admit().unwrap());
        // Measured need: 20 thousandths each, since a second shown has taken 20 ms.
        for (count, share) in all.iter().enumerate() {
            let number = share.start(&params());
            codecs.started(number, count as u32, socket());
            share.show(NEED_KNOWN_FROM);
        }
        codecs.poll(Nanos::from_millis(100), |_| Some(Duration::from_millis(20)));
        all.extend((0..20).map(|_| own.admit().unwrap()));
        assert!(!is_busy(own.admit()));
        // Measured need: 59 thousandths each.
        codecs.poll(Nanos::from_millis(200), |_| Some(Duration::from_millis(59)));
        assert!(is_busy(own.admit()));
        all.clear();
        assert!(own.admit().is_ok());
    }

    #[test]
    fn a_session_with_a_ceiling_has_streams_up_to_it() {
        let codecs = codecs(4);
        codecs.set_ceiling(SESSION, Some(130));
        let (own, other) = (codecs.of(SESSION, ENTRY), codecs.of(SessionId(4), EntryId(6)));
        let _two = [own.admit().unwrap(), own.admit().unwrap()];
        assert!(is_busy(own.admit()));
        assert!(other.admit().is_ok());
        codecs.set_ceiling(SESSION, None);
        assert!(own.admit().is_ok());
    }

    #[test]
    fn a_node_without_a_codec_says_so() {
        let codecs = Codecs::default();
        let own = codecs.of(SESSION, ENTRY);
        assert!(matches!(own.admit().map(|_| ()), Err(Refusal::Unavailable(_))));
        codecs.set_facts(CodecSpec { cores: 1, missing: Some("no ffmpeg".to_owned()) });
        let refused = own.admit().map(|_| ());
        assert_eq!(refused, Err(Refusal::Unavailable("no ffmpeg".to_owned())));
    }

    #[test]
    fn codec_time_is_charged_to_its_service_once() {
        let codecs = codecs(1);
        let own = codecs.of(SESSION, ENTRY);
        let share = own.admit().unwrap();
        let number = share.start(&params());
        let asked = CodecRequest::Start(number, params().to_string());
        assert_eq!((codecs.poll_request(), codecs.poll_request()), (Some(asked), None));
        codecs.started(number, 7, socket());
        assert!(own.has_events() && matches!(own.poll(), Some(CodecEvent::Started(..))));
        let taken = |ms| move |pid| (pid == 7).then(|| Duration::from_millis(ms));
        codecs.poll(Nanos::from_millis(10), taken(3));
        codecs.poll(Nanos::from_millis(20), taken(8));
        codecs.poll(Nanos::from_millis(21), taken(9));
        assert_eq!(codecs.take_uncharged(ENTRY), Nanos::from_millis(8), "the last is too soon");
        assert_eq!(codecs.take_uncharged(ENTRY), Nanos::ZERO);
        // The total time is known at its end.
        codecs.ended(number, String::new(), Nanos::from_millis(11));
        assert_eq!(codecs.take_uncharged(ENTRY), Nanos::from_millis(3));
        assert!(matches!(own.poll(), Some(CodecEvent::Ended(..))));
        // A dropped stream ends its codecs, also those that the daemon has not started.
        let number = share.start(&params());
        drop(share);
        let last: Vec<CodecRequest> = std::iter::from_fn(|| codecs.poll_request()).collect();
        assert_eq!(last[1..], [CodecRequest::Stop(number)]);
        codecs.started(number, 8, socket());
        codecs.ended(number, String::new(), Nanos::from_millis(1));
        assert!(codecs.0.borrow().codecs.is_empty());
    }

    #[test]
    fn requests_to_an_old_daemon_are_discarded() {
        let codecs = codecs(1);
        let own = codecs.of(SESSION, ENTRY);
        let share = own.admit().unwrap();
        let (runs, waits) = (share.start(&params()), share.start(&params()));
        codecs.started(runs, 7, socket());
        codecs.discard_requests();
        assert!(matches!(own.poll(), Some(CodecEvent::Started(number, _)) if number == runs));
        assert!(matches!(own.poll(), Some(CodecEvent::Ended(number, _)) if number == waits));
        assert!(own.poll().is_none());
    }
}
