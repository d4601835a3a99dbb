//! Ledger state: turns meter readings into bytes to append.
//!
//! A batch is written at once: its records, and a head with the node's signature. A batch counts
//! only with its head. Meters give absolute readings, and the bill is the difference to the reading
//! in the meter's last record. A reading given twice is therefore billed once, and one that was
//! never written is included in the next.
//!
//! The ledger's time never runs backwards: it is the clock's, or that of the last record while the
//! clock is behind. Billed amounts do not depend on it.

use crate::amounts::{Amounts, Field};
use crate::record::{
    self, Account, Digest, FRAME_LENGTH, Frame, Head, LedgerId, MeterId, Segment, Usage,
};
use std::collections::{BTreeMap, VecDeque};
use trust::{PublicKey, SecretKey, UnixTime};
use units::Name;

/// Largest number of readings in one batch: some for each of 256 services, and those that waited. A
/// segment holds dozens of such batches.
pub const BATCH_MAX: usize = 2048;
/// Size of a segment file in bytes, some 42,000 records: small enough to be read in one piece and
/// copied by hand.
pub const SEGMENT_LENGTH_MAX: usize = 16 << 20;
/// Largest number of ended meters that are remembered, so that a repeated last reading is not
/// billed again: readings that were not confirmed when the daemon crashed, some hundred at most.
pub const ENDED_METERS_MAX: usize = 4096;
const _: () = assert!((BATCH_MAX + 2) * FRAME_LENGTH < SEGMENT_LENGTH_MAX);

/// Absolute reading of a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Account that pays.
    pub account: Account,
    /// Service that was metered; `None` if the usage belongs to no single service.
    pub service: Option<Name>,
    /// Meter that was read.
    pub meter: MeterId,
    /// Amounts that the meter shows.
    pub reading: Amounts,
    /// True if the meter has ended.
    pub is_last: bool,
}

/// Reason why a reading is not billed. A fault of this software or of the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    /// The reading is lower than the meter's last one.
    #[error("the meter {meter} shows less {} than in its last record", field.name())]
    Backwards {
        /// Id of the meter.
        meter: MeterId,
        /// Field that is lower.
        field: Field,
    },
    /// The meter belonged to another account before.
    #[error("the meter {meter} counted for another account before")]
    OtherAccount {
        /// Id of the meter.
        meter: MeterId,
    },
    /// The reading is higher than that of the meter's end.
    #[error("the meter {meter} shows more than when it ended")]
    Ended {
        /// Id of the meter.
        meter: MeterId,
    },
    /// The batch has more than [`BATCH_MAX`] readings.
    #[error("a batch has at most {BATCH_MAX} readings; give the others with the next")]
    TooMany,
}

/// Batch to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Number of the segment to append to.
    pub segment: u64,
    /// True if the batch begins the segment, so that its file has to be created.
    pub begins: bool,
    /// Bytes to append; empty if nothing changed.
    pub bytes: Vec<u8>,
    /// Records of the batch.
    pub records: Vec<Usage>,
    /// Refused readings, by their index in the input.
    pub refused: Vec<(usize, ReadingError)>,
}

/// Ledger state after its last head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    id: LedgerId,
    node: PublicKey,
    /// Current segment and its length in bytes; 0 before the first.
    pub(crate) segment: u64,
    pub(crate) length: usize,
    length_max: usize,
    /// Number of the next frame.
    pub(crate) next: u64,
    pub(crate) chain: Digest,
    pub(crate) time: UnixTime,
    pub(crate) principals: BTreeMap<PublicKey, PrincipalChain>,
    pub(crate) meters: BTreeMap<MeterId, Meter>,
    ended: VecDeque<MeterId>,
}

/// Chain of one principal's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrincipalChain {
    pub(crate) count: u64,
    pub(crate) hash: Digest,
}

/// State of a meter after its last record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    pub(crate) account: Account,
    pub(crate) reading: Amounts,
    pub(crate) time: UnixTime,
    pub(crate) is_ended: bool,
}

impl Ledger {
    /// Makes a ledger without records; the id has 16 random bytes.
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
            principals: BTreeMap::new(),
            meters: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// Sets the length of segments, in bytes. A batch is never split: a longer one has a segment of
    /// its own.
    #[must_use]
    pub const fn with_segments_of(mut self, length_max: usize) -> Self {
        self.length_max = length_max;
        self
    }

    /// Returns the id of the ledger.
    #[must_use]
    pub const fn id(&self) -> LedgerId {
        self.id
    }

    /// Returns the node that writes the ledger.
    #[must_use]
    pub const fn node(&self) -> PublicKey {
        self.node
    }

    /// Returns the number of frames, which is the number of the next one.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.next
    }

    /// Returns the hash of the chain of all frames.
    #[must_use]
    pub const fn chain(&self) -> Digest {
        self.chain
    }

    /// Returns the time of the last batch.
    #[must_use]
    pub const fn time(&self) -> UnixTime {
        self.time
    }

    /// Returns the number of the current segment, 0 before the first, and its length in bytes.
    #[must_use]
    pub const fn segment(&self) -> (u64, usize) {
        (self.segment, self.length)
    }

    /// Returns the reading in a meter's last record, if it has one.
    #[must_use]
    pub fn last_reading(&self, meter: MeterId) -> Option<&Amounts> {
        self.meters.get(&meter).map(|meter| &meter.reading)
    }

    /// Returns the length and the hash of a principal's chain.
    #[must_use]
    pub fn own_chain(&self, principal: &PublicKey) -> (u64, Digest) {
        let own = self.principals.get(principal).copied().unwrap_or_default();
        (own.count, own.hash)
    }

    /// Appends a batch to the state. A caller that fails to write its bytes has to discard this
    /// ledger and replay the files.
    ///
    /// # Panics
    /// The key is another node's.
    pub fn append(&mut self, key: &SecretKey, clock: UnixTime, readings: &[Reading]) -> Appended {
        assert_eq!(key.public(), self.node, "a ledger has one node");
        let time = self.time.max(clock);
        let (mut records, mut refused) = (Vec::new(), Vec::new());
        // Meters with the changes of this batch.
        let mut begun = self.clone_for(readings);
        for (at, reading) in readings.iter().enumerate() {
            if records.len() >= BATCH_MAX {
                refused.push((at, ReadingError::TooMany));
                continue;
            }
            match begun.usage(reading, time, clock) {
                Ok(Some(usage)) => {
                    begun.apply(&usage);
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
        records.iter().for_each(|usage| self.apply(usage));
        Appended { segment: self.segment, begins, bytes, records, refused }
    }

    /// Returns a copy of the state that these readings can change.
    fn clone_for(&self, readings: &[Reading]) -> Self {
        let mut part = Self::new(self.id, self.node);
        for Reading { account, meter, .. } in readings {
            if let Some(known) = self.meters.get(meter) {
                part.meters.insert(*meter, known.clone());
            }
            if let Some(own) = self.principals.get(&account.principal) {
                part.principals.insert(account.principal, *own);
            }
        }
        part
    }

    /// Returns the record of a reading; `None` if nothing was used.
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
        let own = self.principals.get(&account.principal).copied().unwrap_or_default();
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

    /// Encodes a batch and advances the chain.
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
            self.write_frame(&Frame::Segment(segment), &mut bytes);
        }
        for usage in records {
            self.write_frame(&Frame::Usage(Box::new(usage.clone())), &mut bytes);
        }
        let mut head = Head { time, clock, batch: records.len() as u64, signature: [0; 64] };
        head.signature = key.sign(&record::head_statement(self.id, self.next, &head, self.chain));
        self.write_frame(&Frame::Head(head), &mut bytes);
        self.length += bytes.len();
        self.time = time;
        (begins, bytes)
    }

    fn write_frame(&mut self, frame: &Frame, bytes: &mut Vec<u8>) {
        let (frame, chain) = frame.to_bytes(self.next, self.chain);
        bytes.extend_from_slice(&frame);
        self.chain = chain;
        self.next += 1;
    }

    /// Applies a record to the state.
    pub(crate) fn apply(&mut self, usage: &Usage) {
        let own = PrincipalChain { count: usage.own_number + 1, hash: usage.own_hash() };
        self.principals.insert(usage.account.principal, own);
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
