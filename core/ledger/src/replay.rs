//! Replay: reads and verifies a ledger, segment after segment, each as the bytes of its file.
//!
//! An interrupted write (by a crash or a full disk) leaves bytes after the last head of the last
//! segment whose end is missing or whose sectors were never written. That is a torn tail, and was
//! not billed. Any other deviation is damage, and is reported with its place.

use crate::amounts::{Amounts, Field};
use crate::chain::Ledger;
use crate::record::{
    self, Digest, FRAME_LENGTH, FormError, Frame, Head, LedgerId, MeterId, Segment, Usage,
};
use trust::{PublicKey, UnixTime};

/// Unit that a disk writes atomically, in bytes.
const SECTOR: usize = 512;

/// Damage of the ledger, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment}, byte {offset}, frame {frame}: {kind}")]
pub struct Damage {
    /// Number of the segment, from its file name.
    pub segment: u64,
    /// Offset of the damaged frame in the segment, in bytes.
    pub offset: usize,
    /// Number that the frame should have.
    pub frame: u64,
    /// Kind of damage.
    pub kind: DamageKind,
}

/// Kind of damage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageKind {
    /// The frame's hash does not match its bytes.
    #[error("the frame was changed: its hash does not match")]
    Changed,
    /// The hash matches, but the frame is malformed.
    #[error("{0}")]
    Form(FormError),
    /// The frame has another number: frames are missing or duplicated.
    #[error("the frame has the number {stated}")]
    Number {
        /// Number in the frame.
        stated: u64,
    },
    /// The segment has another index than its file name: files were exchanged.
    #[error("the segment has the index {stated}: files were renamed or exchanged")]
    Index {
        /// Index in the segment.
        stated: u64,
    },
    /// A segment file is missing.
    #[error("the segment before it, {missing}, is missing")]
    Missing {
        /// Index of the missing segment.
        missing: u64,
    },
    /// The segment belongs to another ledger.
    #[error("the segment belongs to another ledger ({0})")]
    OtherLedger(LedgerId),
    /// The ledger is another node's.
    #[error("the ledger is that of the node {0}")]
    OtherNode(Box<PublicKey>),
    /// The segment follows another chain than that of the segment before.
    #[error("the segment does not continue the chain of the one before: {0}")]
    OtherChain(Digest),
    /// The node's signature is invalid.
    #[error("the node's signature is invalid")]
    NotSigned,
    /// The frame has a tag that is not allowed here.
    #[error("a {0} is not allowed here")]
    Order(&'static str),
    /// The segment ends within a batch although another segment follows.
    #[error("the segment ends within a batch, and another one follows")]
    CutOff,
    /// The time of a record is before that of the record in front.
    #[error("the record's time is before that of the previous record")]
    Time,
    /// The head states another number of records than its batch has.
    #[error("the head states {stated} records, which is not what its batch has")]
    Batch {
        /// Number stated in the head.
        stated: u64,
    },
    /// The billed amounts or the reading do not continue the meter's last record.
    #[error("the reading of the meter {meter} does not continue its last record{}", of(*field))]
    Meter {
        /// Id of the meter.
        meter: MeterId,
        /// Field that does not match, if it is one.
        field: Option<Field>,
    },
    /// The principal's records are not consecutive.
    #[error("the principal's records are not consecutive")]
    PrincipalChain,
}

fn of(field: Option<Field>) -> String {
    field.map_or_else(String::new, |field| format!(" in {}", field.name()))
}

/// Torn tail: the remains of an interrupted write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Number of the segment.
    pub segment: u64,
    /// Offset of the tail, which is the segment's length without it.
    pub offset: usize,
    /// Length of the tail in bytes.
    pub bytes: usize,
}

/// Result of a complete replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Ledger state to which further batches are appended; `None` if there is no complete batch.
    pub ledger: Option<Ledger>,
    /// Torn tail to be truncated before anything is appended.
    pub torn: Option<Torn>,
    /// Number of records.
    pub records: u64,
}

/// Reader of segments in their order.
#[derive(Clone, Debug)]
pub struct Replay {
    node: PublicKey,
    ledger: Option<Ledger>,
    torn: Option<Torn>,
    records: u64,
    /// Number of segments read, and whether the last one was marked as the last.
    segments: u64,
    is_last: bool,
}

/// Batch whose head has not been read.
struct Batch {
    /// Number of the next frame.
    next: u64,
    chain: Digest,
    /// Hash of the chain before its last frame.
    before: Digest,
    segment: Option<Segment>,
    records: Vec<Usage>,
}

impl Replay {
    /// Makes a replay of this node's ledger.
    #[must_use]
    pub const fn new(node: PublicKey) -> Self {
        Self { node, ledger: None, torn: None, records: 0, segments: 0, is_last: false }
    }

    /// Reads the next segment: its index from its file name, its bytes, and whether it is the last
    /// one. Calls `each` with the frame number and the record of each usage frame, after the
    /// batch's head has been verified.
    ///
    /// # Errors
    /// Damage, with its place.
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
                false => DamageKind::Index { stated: index },
            };
            return Err(self.damage(index, 0, kind));
        }
        (self.segments, self.is_last) = (index, is_last);
        let mut valid = 0;
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
                    valid = offset + FRAME_LENGTH;
                    batch = self.batch();
                }
                Ok(None) => {}
                Err(DamageKind::Changed) if is_last && was_never_written(bytes, valid) => break,
                Err(kind) => return Err(damaged(kind)),
            }
        }
        if valid < bytes.len() || valid == 0 {
            if !is_last {
                return Err(self.damage(index, valid, DamageKind::CutOff));
            }
            self.torn = Some(Torn { segment: index, offset: valid, bytes: bytes.len() - valid });
        }
        if let Some(ledger) = self.ledger.as_mut().filter(|_| valid > 0) {
            ledger.length = valid;
        }
        Ok(())
    }

    /// Ends the replay after all segments.
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

    /// Verifies a batch as a whole at its head, and applies it.
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
            return Err(DamageKind::Batch { stated: head.batch });
        }
        let statement = record::head_statement(id, number, head, batch.before);
        if !self.node.has_signed(&statement, &head.signature) {
            return Err(DamageKind::NotSigned);
        }
        for (at, usage) in batch.records.iter().enumerate() {
            follows(ledger, usage, head)?;
            ledger.apply(usage);
            each(number - before + at as u64, usage);
        }
        self.records += before;
        (ledger.next, ledger.chain, ledger.time) = (batch.next, batch.chain, head.time);
        ledger.segment = index;
        Ok(())
    }

    /// Checks that the first frame of a segment belongs to this ledger.
    fn begin(&mut self, segment: &Segment, index: u64) -> Result<(), DamageKind> {
        if segment.index != index {
            return Err(DamageKind::Index { stated: segment.index });
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
    /// Decodes the next frame and checks that it continues the chain.
    fn read(&mut self, bytes: &[u8; FRAME_LENGTH], is_first: bool) -> Result<Frame, DamageKind> {
        let chain = record::chain_hash(self.chain, bytes);
        let read = Frame::from_bytes(bytes);
        if chain != record::stated_chain(bytes) {
            // Intact frame of another chain: reported precisely if it begins a segment.
            return Err(match read {
                Ok((_, Frame::Segment(segment))) if is_first && segment.matches(bytes) => {
                    DamageKind::OtherChain(segment.chain)
                }
                _ => DamageKind::Changed,
            });
        }
        let (stated, frame) = read.map_err(DamageKind::Form)?;
        if stated != self.next {
            return Err(DamageKind::Number { stated });
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

/// Checks that a record continues the state of the ledger.
fn follows(ledger: &Ledger, usage: &Usage, head: &Head) -> Result<(), DamageKind> {
    let clock_is_right = usage.clock == head.clock && head.time == ledger.time.max(head.clock);
    if usage.time != head.time || !clock_is_right {
        return Err(DamageKind::Time);
    }
    let own = ledger.own_chain(&usage.account.principal);
    if own != (usage.own_number, usage.previous) {
        return Err(DamageKind::PrincipalChain);
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

/// Returns true if a sector after the last head is all zeros and so was never written: every
/// written sector contains part of a frame's hash.
fn was_never_written(bytes: &[u8], valid: usize) -> bool {
    let first = valid.div_ceil(SECTOR) * SECTOR;
    let sectors = bytes.get(first..).unwrap_or_default().chunks(SECTOR);
    // The sector of the last head was written with that head. A part of a sector may be zeros
    // within a hash.
    let mut whole = sectors.filter(|sector| sector.len() >= size_of::<Digest>());
    whole.any(|sector| sector.iter().all(|byte| *byte == 0))
}
