//! The ledger as it goes on: readings of meters in, bytes to append out.
//!
//! A batch is what is written at once: its records, and a head with the node's signature. Only a
//! batch with its head counts. Meters give absolute readings, and what is billed is what a meter
//! shows less what it showed in the last record: so a reading that is given twice is billed
//! once, and one that nobody wrote down is billed with the next, whoever gives it.
//!
//! The ledger's time never runs backwards: it is the clock's, or, while the clock is behind the
//! last record, that record's. What is billed does not depend on it.

use crate::amounts::{Amounts, Field};
use crate::record::{
    self, Account, Digest, FRAME_LENGTH, Frame, Head, LedgerId, MeterId, Segment, Usage,
};
use std::collections::{BTreeMap, VecDeque};
use trust::{PublicKey, SecretKey, UnixTime};
use units::Name;

/// Readings of one batch: some for each of 256 services, and what waited; a segment has room for
/// dozens of them.
pub const BATCH_MAX: usize = 2048;
/// Bytes of a segment file, some 42,000 records: read in one piece, and copied by an operator
/// without thinking.
pub const SEGMENT_LENGTH_MAX: usize = 16 << 20;
/// Meters that have ended and are remembered, so that their last reading is not billed again when
/// it is given again: what a daemon had not heard of when it died, some hundred at most.
pub const ENDED_METERS_MAX: usize = 4096;
const _: () = assert!((BATCH_MAX + 2) * FRAME_LENGTH < SEGMENT_LENGTH_MAX);

/// What a meter shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Who pays.
    pub account: Account,
    /// For which service, if for one.
    pub service: Option<Name>,
    /// What counts.
    pub meter: MeterId,
    /// What it shows.
    pub reading: Amounts,
    /// It counts no further.
    pub is_last: bool,
}

/// Why a reading is not billed. Our fault, or the host's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// It shows less than before.
    #[error("the meter {meter} shows less {} than in its last record", field.name())]
    Backwards {
        /// Which one.
        meter: MeterId,
        /// Less of what.
        field: Field,
    },
    /// It counted for somebody else.
    #[error("the meter {meter} counted for another account before")]
    OtherAccount {
        /// Which one.
        meter: MeterId,
    },
    /// It goes on behind its end.
    #[error("the meter {meter} shows more than when it ended")]
    Ended {
        /// Which one.
        meter: MeterId,
    },
    /// Beyond [`BATCH_MAX`].
    #[error("a batch has at most {BATCH_MAX} readings; give the others with the next")]
    TooMany,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// To which segment; it begins with these bytes if `begins` says so.
    pub segment: u64,
    /// Whether there is no such segment yet.
    pub begins: bool,
    /// What to append; nothing when nothing has changed.
    pub bytes: Vec<u8>,
    /// Its records.
    pub records: Vec<Usage>,
    /// Readings that are not in it, by their place.
    pub refused: Vec<(usize, ReadingError)>,
}

/// Where the ledger is, behind its last head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    id: LedgerId,
    node: PublicKey,
    /// The present segment, and its length; 0 before the first.
    pub(crate) segment: u64,
    pub(crate) length: usize,
    length_max: usize,
    /// The number of the next frame.
    pub(crate) next: u64,
    pub(crate) chain: Digest,
    pub(crate) time: UnixTime,
    pub(crate) owns: BTreeMap<PublicKey, Own>,
    pub(crate) meters: BTreeMap<MeterId, Meter>,
    ended: VecDeque<MeterId>,
}

/// A principal's chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) count: u64,
    pub(crate) hash: Digest,
}

/// What a meter showed last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    pub(crate) account: Account,
    pub(crate) reading: Amounts,
    pub(crate) time: UnixTime,
    pub(crate) is_ended: bool,
}

impl Ledger {
    /// One without a record; the id has 16 random bytes.
    #[must_use]
    pub const fn new(id: LedgerId, node: PublicKey) -> Self {
        Self {
            id,
            node,
            segment: 0,
            length: 0,
            length_max: SEGMENT_LENGTH_MAX,
            next: 0,
            chain: Digest([0; 32]),
            time: UnixTime(0),
            owns: BTreeMap::new(),
            meters: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// The same with shorter segments. A batch is never parted: one that is longer has a segment
    /// of its own.
    #[must_use]
    pub const fn with_segments_of(mut self, length_max: usize) -> Self {
        self.length_max = length_max;
        self
    }

    /// Which one it is.
    #[must_use]
    pub const fn id(&self) -> LedgerId {
        self.id
    }

    /// Who writes it.
    #[must_use]
    pub const fn node(&self) -> PublicKey {
        self.node
    }

    /// The number of the next frame, and so how many there are.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.next
    }

    /// What all its frames come to.
    #[must_use]
    pub const fn chain(&self) -> Digest {
        self.chain
    }

    /// The time of its last batch.
    #[must_use]
    pub const fn time(&self) -> UnixTime {
        self.time
    }

    /// The present segment, 0 before the first, and its length in bytes.
    #[must_use]
    pub const fn segment(&self) -> (u64, usize) {
        (self.segment, self.length)
    }

    /// What a meter showed in its last record, if it has one.
    #[must_use]
    pub fn last_reading(&self, meter: MeterId) -> Option<&Amounts> {
        self.meters.get(&meter).map(|meter| &meter.reading)
    }

    /// How many records a principal has, and what they come to.
    #[must_use]
    pub fn own_chain(&self, principal: &PublicKey) -> (u64, Digest) {
        let own = self.owns.get(principal).copied().unwrap_or_default();
        (own.count, own.hash)
    }

    /// Goes on by a batch. Whoever cannot write its bytes throws this ledger away, and reads
    /// what is on the disk.
    ///
    /// # Panics
    /// When the key is another node's.
    pub fn append(&mut self, key: &SecretKey, clock: UnixTime, readings: &[Reading]) -> Appended {
        assert_eq!(key.public(), self.node, "a ledger has one node");
        let time = self.time.max(clock);
        let (mut records, mut refused) = (Vec::new(), Vec::new());
        // Meters as they are within this batch.
        let mut begun = self.clone_for(readings);
        for (at, reading) in readings.iter().enumerate() {
            if records.len() >= BATCH_MAX {
                refused.push((at, ReadingError::TooMany));
                continue;
            }
            match begun.usage(reading, time, clock) {
                Ok(Some(usage)) => {
                    begun.note(&usage);
                    records.push(usage);
                }
                Ok(None) => {}
                Err(error) => refused.push((at, error)),
            }
        }
        if records.is_empty() {
            let segment = self.segment;
            return Appended { segment, begins: false, bytes: Vec::new(), records, refused };
        }
        let (begins, bytes) = self.frames_of(&records, key, time, clock);
        records.iter().for_each(|usage| self.note(usage));
        Appended { segment: self.segment, begins, bytes, records, refused }
    }

    /// As much of it as these readings can change.
    fn clone_for(&self, readings: &[Reading]) -> Self {
        let mut part = Self::new(self.id, self.node);
        for Reading { account, meter, .. } in readings {
            if let Some(known) = self.meters.get(meter) {
                part.meters.insert(*meter, known.clone());
            }
            if let Some(own) = self.owns.get(&account.principal) {
                part.owns.insert(account.principal, *own);
            }
        }
        part
    }

    /// What a reading comes to; nothing when nothing was used.
    fn usage(
        &self,
        reading: &Reading,
        time: UnixTime,
        clock: UnixTime,
    ) -> Result<Option<Usage>, ReadingError> {
        let Reading { account, service, meter, reading, is_last } = reading;
        let known = self.meters.get(meter);
        let before = known.map_or(&Amounts::NONE, |known| &known.reading);
        if known.is_some_and(|known| known.account != *account) {
            return Err(ReadingError::OtherAccount { meter: *meter });
        }
        let used = reading
            .since(before)
            .map_err(|field| ReadingError::Backwards { meter: *meter, field })?;
        let is_ended = known.is_some_and(|known| known.is_ended);
        if is_ended && !used.is_none() {
            return Err(ReadingError::Ended { meter: *meter });
        }
        let ends = *is_last && known.is_some_and(|known| !known.is_ended);
        if used.is_none() && !ends {
            return Ok(None);
        }
        let own = self.owns.get(&account.principal).copied().unwrap_or_default();
        Ok(Some(Usage {
            own_number: own.count,
            since: known.map_or(time, |known| known.time),
            time,
            clock,
            account: account.clone(),
            service: service.clone(),
            meter: *meter,
            is_last: *is_last,
            used,
            reading: *reading,
            previous: own.hash,
        }))
    }

    /// The bytes of a batch; the chain goes on.
    fn frames_of(
        &mut self,
        records: &[Usage],
        key: &SecretKey,
        time: UnixTime,
        clock: UnixTime,
    ) -> (bool, Vec<u8>) {
        let mut bytes = Vec::with_capacity((records.len() + 2) * FRAME_LENGTH);
        let needed = self.length + (records.len() + 1) * FRAME_LENGTH;
        let begins = self.segment == 0 || needed > self.length_max;
        if begins {
            (self.segment, self.length) = (self.segment + 1, 0);
            let (index, ledger, node, chain) = (self.segment, self.id, self.node, self.chain);
            let segment = Segment { index, time, ledger, node, chain };
            self.put(&Frame::Segment(segment), &mut bytes);
        }
        for usage in records {
            self.put(&Frame::Usage(Box::new(usage.clone())), &mut bytes);
        }
        let mut head = Head { time, clock, batch: records.len() as u64, signature: [0; 64] };
        head.signature = key.sign(&record::head_statement(self.id, self.next, &head, self.chain));
        self.put(&Frame::Head(head), &mut bytes);
        self.length += bytes.len();
        self.time = time;
        (begins, bytes)
    }

    fn put(&mut self, frame: &Frame, bytes: &mut Vec<u8>) {
        let (frame, chain) = frame.to_bytes(self.next, self.chain);
        bytes.extend_from_slice(&frame);
        self.chain = chain;
        self.next += 1;
    }

    /// A record is there.
    pub(crate) fn note(&mut self, usage: &Usage) {
        let own = Own { count: usage.own_number + 1, hash: usage.own_hash() };
        self.owns.insert(usage.account.principal, own);
        let Usage { account, reading, time, is_last: is_ended, .. } = usage.clone();
        self.meters.insert(usage.meter, Meter { account, reading, time, is_ended });
        if !is_ended {
            return;
        }
        self.ended.push_back(usage.meter);
        if self.ended.len() > ENDED_METERS_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.meters.remove(&oldest);
        }
    }
}
