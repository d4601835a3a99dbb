//! Reading a ledger: its segments one after the other, each as the bytes of its file.
//!
//! What was cut off while it was written (by a crash, a full disk) lies behind the last head of
//! the last segment, and has an end that is missing, or sectors that were never written. That is
//! a torn tail: it counted for nobody. Anything else that is not as it was written is damage,
//! and has a place.

use crate::amounts::{Amounts, Field};
use crate::chain::Ledger;
use crate::record::{
    self, Digest, FRAME_LENGTH, FormError, Frame, Head, LedgerId, MeterId, Segment, Usage,
};
use trust::{PublicKey, UnixTime};

/// What a disk writes as a whole, or not at all.
const SECTOR: usize = 512;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment}, byte {offset}, frame {frame}: {kind}")]
pub struct Damage {
    /// The segment, by its file's name.
    pub segment: u64,
    /// Where the frame begins in it.
    pub offset: usize,
    /// The number that the frame there has to have.
    pub frame: u64,
    /// What is wrong.
    pub kind: DamageKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageKind {
    /// A bit or more.
    #[error("its bytes are not those that were written")]
    Changed,
    /// The hash holds, and what it holds is nothing.
    #[error("{0}")]
    Form(FormError),
    /// A part is missing or twice there.
    #[error("it says that it is frame {said}")]
    Number {
        /// Its number.
        said: u64,
    },
    /// Another file has its place.
    #[error("the segment says that it is number {said}")]
    Index {
        /// Its index.
        said: u64,
    },
    /// A file is not there.
    #[error("the segment before it, number {missing}, is not there")]
    Missing {
        /// The index that was to come.
        missing: u64,
    },
    /// Parts of two ledgers.
    #[error("it belongs to another ledger ({0})")]
    OtherLedger(LedgerId),
    /// Another node's.
    #[error("it is the ledger of the node {0}")]
    OtherNode(Box<PublicKey>),
    /// What comes before it is not what came before it.
    #[error("it follows another chain: {0}")]
    OtherChain(Digest),
    /// Not signed, or by somebody else.
    #[error("the node has not signed it")]
    NotSigned,
    /// A frame where another belongs.
    #[error("a {0} stands where none belongs")]
    Order(&'static str),
    /// An end is missing that cannot have been cut off while it was written.
    #[error("the segment ends within a batch, and another one follows")]
    CutOff,
    /// The time of a record is before the one in front.
    #[error("its time is before that of the record in front of it")]
    Time,
    /// A head counts other records than there are.
    #[error("a head says that its batch has {said} records")]
    Batch {
        /// As it says.
        said: u64,
    },
    /// What is billed is not what the meter counted.
    #[error("the meter {meter} does not follow its last record{}", of(*field))]
    Meter {
        /// Which one.
        meter: MeterId,
        /// In which field, if in one.
        field: Option<Field>,
    },
    /// A principal's records are no chain.
    #[error("the principal's records do not follow each other")]
    Own,
}

fn of(field: Option<Field>) -> String {
    field.map_or_else(String::new, |field| format!(" in {}", field.name()))
}

/// What was cut off while it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its segment.
    pub segment: u64,
    /// Where it begins: the segment's length without it.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

/// How a ledger ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// To go on with; none when there is no whole batch.
    pub ledger: Option<Ledger>,
    /// What is to be cut off before anything is appended.
    pub torn: Option<Torn>,
    /// Its records.
    pub records: u64,
}

/// Reads segments in their order.
#[derive(Clone, Debug)]
pub struct Replay {
    node: PublicKey,
    ledger: Option<Ledger>,
    torn: Option<Torn>,
    records: u64,
    /// Segments so far, and whether the last may be the last only.
    segments: u64,
    is_last: bool,
}

/// A batch that has no head yet.
struct Batch {
    /// The ledger, as far as its frames go.
    next: u64,
    chain: Digest,
    /// The chain in front of its last frame.
    before: Digest,
    segment: Option<Segment>,
    records: Vec<Usage>,
}

impl Replay {
    /// Of this node's ledger.
    #[must_use]
    pub const fn new(node: PublicKey) -> Self {
        Self { node, ledger: None, torn: None, records: 0, segments: 0, is_last: false }
    }

    /// Reads the next segment: its index by its name, its bytes, and whether it is the last one.
    /// `each` gets the number of each record's frame, and the record, once its batch has its head.
    ///
    /// # Errors
    /// Where something is wrong, and what.
    pub fn segment(
        &mut self,
        index: u64,
        bytes: &[u8],
        is_last: bool,
        mut each: impl FnMut(u64, &Usage),
    ) -> Result<(), Damage> {
        let wanted = self.segments + 1;
        if index != wanted || self.is_last {
            let kind = match index > wanted {
                true => DamageKind::Missing { missing: wanted },
                false => DamageKind::Index { said: index },
            };
            return Err(self.damage(index, 0, kind));
        }
        (self.segments, self.is_last) = (index, is_last);
        let mut good = 0;
        let mut batch = self.batch();
        for (at, frame) in bytes.chunks(FRAME_LENGTH).enumerate() {
            let offset = at * FRAME_LENGTH;
            let number = batch.next;
            let damaged = |kind| Damage { segment: index, offset, frame: number, kind };
            let Ok(frame) = frame.try_into() else { break };
            let read = batch.read(frame, offset == 0).and_then(|frame| match frame {
                Frame::Head(head) => self.close(&mut batch, index, &head, &mut each).map(Some),
                _ => Ok(None),
            });
            match read {
                Ok(Some(())) => {
                    good = offset + FRAME_LENGTH;
                    batch = self.batch();
                }
                Ok(None) => {}
                Err(DamageKind::Changed) if is_last && was_never_written(bytes, good) => break,
                Err(kind) => return Err(damaged(kind)),
            }
        }
        if good < bytes.len() || good == 0 {
            if !is_last {
                return Err(self.damage(index, good, DamageKind::CutOff));
            }
            self.torn = Some(Torn { segment: index, offset: good, bytes: bytes.len() - good });
        }
        if let Some(ledger) = self.ledger.as_mut().filter(|_| good > 0) {
            ledger.length = good;
        }
        Ok(())
    }

    /// All segments were read.
    #[must_use]
    pub fn end(self) -> End {
        End { ledger: self.ledger, torn: self.torn, records: self.records }
    }

    fn damage(&self, segment: u64, offset: usize, kind: DamageKind) -> Damage {
        Damage { segment, offset, frame: self.batch().next, kind }
    }

    fn batch(&self) -> Batch {
        let (next, chain) =
            self.ledger.as_ref().map_or((0, Digest::default()), |it| (it.next, it.chain));
        Batch { next, chain, before: chain, segment: None, records: Vec::new() }
    }

    /// A head is there: what it signs is looked at as a whole, and counts.
    fn close(
        &mut self,
        batch: &mut Batch,
        index: u64,
        head: &Head,
        each: &mut impl FnMut(u64, &Usage),
    ) -> Result<(), DamageKind> {
        if let Some(segment) = &batch.segment {
            self.begin(segment, index)?;
        }
        let ledger = self.ledger.as_mut().ok_or(DamageKind::Order("head"))?;
        let (id, number) = (ledger.id(), batch.next - 1);
        let before = batch.records.len() as u64;
        if head.batch != before || before == 0 {
            return Err(DamageKind::Batch { said: head.batch });
        }
        let statement = record::head_statement(id, number, head, batch.before);
        if !self.node.has_signed(&statement, &head.signature) {
            return Err(DamageKind::NotSigned);
        }
        for (at, usage) in batch.records.iter().enumerate() {
            follows(ledger, usage, head)?;
            ledger.note(usage);
            each(number - before + at as u64, usage);
        }
        self.records += before;
        (ledger.next, ledger.chain, ledger.time) = (batch.next, batch.chain, head.time);
        ledger.segment = index;
        Ok(())
    }

    /// The first frame of a segment belongs to this ledger.
    fn begin(&mut self, segment: &Segment, index: u64) -> Result<(), DamageKind> {
        if segment.index != index {
            return Err(DamageKind::Index { said: segment.index });
        }
        if segment.node != self.node {
            return Err(DamageKind::OtherNode(Box::new(segment.node)));
        }
        let ledger = self.ledger.get_or_insert_with(|| Ledger::new(segment.ledger, segment.node));
        if ledger.id() != segment.ledger {
            return Err(DamageKind::OtherLedger(segment.ledger));
        }
        if segment.time < ledger.time { Err(DamageKind::Time) } else { Ok(()) }
    }
}

impl Batch {
    /// The next frame, if it is that of the chain.
    fn read(&mut self, bytes: &[u8; FRAME_LENGTH], is_first: bool) -> Result<Frame, DamageKind> {
        let chain = record::chain_hash(self.chain, bytes);
        let read = Frame::from_bytes(bytes);
        if chain != record::said_chain(bytes) {
            // Whole, and yet of another chain: say of which, if it begins one.
            return Err(match read {
                Ok((_, Frame::Segment(segment))) if is_first && segment.is_of(bytes) => {
                    DamageKind::OtherChain(segment.chain)
                }
                _ => DamageKind::Changed,
            });
        }
        let (said, frame) = read.map_err(DamageKind::Form)?;
        if said != self.next {
            return Err(DamageKind::Number { said });
        }
        match (&frame, is_first) {
            (Frame::Segment(segment), true) => {
                if segment.chain != self.chain {
                    return Err(DamageKind::OtherChain(segment.chain));
                }
                self.segment = Some(segment.clone());
            }
            (Frame::Segment(_), false) => return Err(DamageKind::Order("segment's first frame")),
            (Frame::Usage(_), true) => return Err(DamageKind::Order("record")),
            (Frame::Head(_), true) => return Err(DamageKind::Order("head")),
            (Frame::Usage(usage), false) => self.records.push(Usage::clone(usage)),
            (Frame::Head(_), false) => {}
        }
        (self.before, self.chain, self.next) = (self.chain, chain, self.next + 1);
        Ok(frame)
    }
}

/// Whether a record is what a ledger that is here goes on with.
fn follows(ledger: &Ledger, usage: &Usage, head: &Head) -> Result<(), DamageKind> {
    let clock_is_right = usage.clock == head.clock && head.time == ledger.time.max(head.clock);
    if usage.time != head.time || !clock_is_right {
        return Err(DamageKind::Time);
    }
    let own = ledger.own_chain(&usage.account.principal);
    if own != (usage.own_number, usage.previous) {
        return Err(DamageKind::Own);
    }
    let known = ledger.meters.get(&usage.meter);
    let wrong = |field| DamageKind::Meter { meter: usage.meter, field };
    if known.is_some_and(|known| known.account != usage.account || known.is_ended) {
        return Err(wrong(None));
    }
    let before = known.map_or(&Amounts::NONE, |known| &known.reading);
    let used = usage.reading.since(before).map_err(|field| wrong(Some(field)))?;
    if let Some(field) = Field::ALL.into_iter().find(|it| used.get(*it) != usage.used.get(*it)) {
        return Err(wrong(Some(field)));
    }
    let since: UnixTime = known.map_or(usage.time, |known| known.time);
    if usage.since == since { Ok(()) } else { Err(DamageKind::Time) }
}

/// Whether a sector of what lies behind the last head is all zeros: it was never written, since
/// no sector is without the hash of a frame.
fn was_never_written(bytes: &[u8], good: usize) -> bool {
    let first = good.div_ceil(SECTOR) * SECTOR;
    let sectors = bytes.get(first..).unwrap_or_default().chunks(SECTOR);
    // What lies between the last head and the next sector was written with that head. A shorter
    // piece of a sector can be the zeros of a hash.
    let mut whole = sectors.filter(|sector| sector.len() >= size_of::<Digest>());
    whole.any(|sector| sector.iter().all(|byte| *byte == 0))
}
