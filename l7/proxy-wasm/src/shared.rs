//! Shared state of a service's VMs: data, queues, metrics, all bounded and charged to an account.

use crate::abi::{MetricType, Status};
use crate::limits::{
    BUCKETS, METRICS_MAX, QUEUE_ITEMS_MAX, QUEUES_MAX, SHARED_BYTES_MAX, SHARED_ENTRIES_MAX,
    SHARED_NAME_MAX, SHARED_VALUE_MAX,
};
use engine::{MemoryAccount, Part};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// An operation on shared state is refused: a fault of the module, or its session has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The name or number is unknown.
    #[error("the name or number is unknown")]
    NotFound,
    /// Another writer has changed the value.
    #[error("the value is another one than was compared with")]
    Changed,
    /// The queue is empty.
    #[error("nothing waits in the queue")]
    Empty,
    /// The metric does not support the operation, or has another kind.
    #[error("a metric of this kind cannot do this")]
    WrongKind,
    /// A limit of the service is reached.
    #[error("a limit of shared data, queues or metrics is reached")]
    Limit,
    /// The session has no memory left.
    #[error("the session has no memory for it")]
    NoMemory,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound => Self::NotFound,
            Refusal::Changed => Self::CasMismatch,
            Refusal::Empty => Self::Empty,
            Refusal::WrongKind => Self::BadArgument,
            Refusal::Limit | Refusal::NoMemory => Self::InternalFailure,
        }
    }
}

/// Metric, as the host reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name, as the module gave it.
    pub name: String,
    /// Value.
    pub value: MetricValue,
}

/// Value of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricValue {
    /// Count so far.
    Counter(u64),
    /// Current value.
    Gauge(u64),
    /// Distribution of values.
    Histogram {
        /// Number of values.
        count: u64,
        /// Sum of the values, saturating.
        sum: u64,
        /// Number of values with `n` bits: bucket 0 counts zeros, bucket 10 values from 512 to
        /// 1,023.
        buckets: Box<[u64; BUCKETS]>,
    },
}

impl MetricValue {
    fn new(kind: MetricType) -> Self {
        match kind {
            MetricType::Counter => Self::Counter(0),
            MetricType::Gauge => Self::Gauge(0),
            MetricType::Histogram => {
                Self::Histogram { count: 0, sum: 0, buckets: Box::new([0; BUCKETS]) }
            }
        }
    }

    const fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram { .. } => MetricType::Histogram,
        }
    }
}

struct Queue {
    vm_id: String,
    name: Vec<u8>,
    /// VM that registered the queue last: it is notified of new items.
    owner: u64,
    items: VecDeque<Vec<u8>>,
}

/// Usage of a service's shared state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedUse {
    /// Entries of shared data.
    pub entries: usize,
    /// Queues.
    pub queues: usize,
    /// Metrics.
    pub metrics: usize,
    /// Bytes of data and of waiting items.
    pub bytes: usize,
}

/// Data, queues and metrics of one service. Data and queues belong to a VM id: VMs with the same id
/// share them.
#[derive(Default)]
pub struct Shared {
    data: BTreeMap<(String, Vec<u8>), (Vec<u8>, u32)>,
    last_cas: u32,
    /// Queues by number, from 1.
    queues: Vec<Queue>,
    /// Metrics by number, from 1.
    metrics: Vec<Metric>,
    bytes: usize,
    room: Option<Rc<dyn MemoryAccount>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.used()).finish()
    }
}

impl Shared {
    /// Creates an empty state; `room` is the account for its bytes.
    #[must_use]
    pub fn new(room: Option<Rc<dyn MemoryAccount>>) -> Self {
        let mut shared = Self::default();
        shared.room = room;
        shared
    }

    /// Returns the usage.
    #[must_use]
    pub fn used(&self) -> SharedUse {
        SharedUse {
            entries: self.data.len(),
            queues: self.queues.len(),
            metrics: self.metrics.len(),
            bytes: self.bytes,
        }
    }

    /// Returns a value and its compare-and-swap number.
    #[must_use]
    pub fn get(&self, vm_id: &str, key: &[u8]) -> Option<(&[u8], u32)> {
        let (value, cas) = self.data.get(&(vm_id.to_owned(), key.to_vec()))?;
        Some((value, *cas))
    }

    /// Sets a value; a `cas` other than 0 must be the value's current number.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if the number differs or there is no value; [`Refusal::Limit`] or
    /// [`Refusal::NoMemory`].
    pub fn set(&mut self, vm_id: &str, key: &[u8], value: &[u8], cas: u32) -> Result<(), Refusal> {
        let id = (vm_id.to_owned(), key.to_vec());
        let known = self.data.get(&id);
        if cas != 0 && known.is_none_or(|(_, current)| *current != cas) {
            return Err(Refusal::Changed);
        }
        let old = known.map(|(value, _)| key.len() + value.len());
        if key.len() > SHARED_NAME_MAX
            || value.len() > SHARED_VALUE_MAX
            || (old.is_none() && self.data.len() >= SHARED_ENTRIES_MAX)
        {
            return Err(Refusal::Limit);
        }
        self.resize(old.unwrap_or(0), key.len() + value.len())?;
        // Zero means no comparison, so no value has it.
        self.last_cas = self.last_cas.checked_add(1).unwrap_or(1);
        self.data.insert(id, (value.to_vec(), self.last_cas));
        Ok(())
    }

    /// Opens a queue, and creates it if there is none; from now on `owner` is notified of new
    /// items.
    ///
    /// # Errors
    /// A limit is reached, or the session has no memory left.
    pub fn register(&mut self, vm_id: &str, name: &[u8], owner: u64) -> Result<u32, Refusal> {
        if let Some(number) = self.resolve(vm_id, name) {
            self.queue(number)?.owner = owner;
            return Ok(number);
        }
        if self.queues.len() >= QUEUES_MAX || name.len() > SHARED_NAME_MAX {
            return Err(Refusal::Limit);
        }
        let vm_id = vm_id.to_owned();
        self.queues.push(Queue { vm_id, name: name.to_vec(), owner, items: VecDeque::new() });
        Ok(self.queues.len() as u32)
    }

    /// Returns the number of a queue.
    #[must_use]
    pub fn resolve(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let found = self.queues.iter().position(|it| it.vm_id == vm_id && it.name == name)?;
        Some(found as u32 + 1)
    }

    fn queue(&mut self, number: u32) -> Result<&mut Queue, Refusal> {
        let index = (number as usize).checked_sub(1).ok_or(Refusal::NotFound)?;
        self.queues.get_mut(index).ok_or(Refusal::NotFound)
    }

    /// Adds an item; returns the VM to notify.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], or a limit is reached.
    pub fn enqueue(&mut self, number: u32, item: &[u8]) -> Result<u64, Refusal> {
        if self.queue(number)?.items.len() >= QUEUE_ITEMS_MAX || item.len() > SHARED_VALUE_MAX {
            return Err(Refusal::Limit);
        }
        self.resize(0, item.len())?;
        let queue = self.queue(number)?;
        queue.items.push_back(item.to_vec());
        Ok(queue.owner)
    }

    /// Returns the oldest item.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] and [`Refusal::Empty`].
    pub fn first(&self, number: u32) -> Result<&[u8], Refusal> {
        let index = (number as usize).checked_sub(1).ok_or(Refusal::NotFound)?;
        let queue = self.queues.get(index).ok_or(Refusal::NotFound)?;
        queue.items.front().map(Vec::as_slice).ok_or(Refusal::Empty)
    }

    /// Removes the oldest item.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] and [`Refusal::Empty`].
    pub fn dequeue(&mut self, number: u32) -> Result<Vec<u8>, Refusal> {
        let item = self.queue(number)?.items.pop_front().ok_or(Refusal::Empty)?;
        self.resize(item.len(), 0)?;
        Ok(item)
    }

    /// Defines a metric, or finds the one of this name.
    ///
    /// # Errors
    /// [`Refusal::WrongKind`] if that has another kind, or a limit is reached.
    pub fn define(&mut self, kind: MetricType, name: &[u8]) -> Result<u32, Refusal> {
        if name.len() > SHARED_NAME_MAX {
            return Err(Refusal::Limit);
        }
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(index) = self.metrics.iter().position(|metric| metric.name == name) {
            let is_same = self.metrics[index].value.kind() == kind;
            return if is_same { Ok(index as u32 + 1) } else { Err(Refusal::WrongKind) };
        }
        if self.metrics.len() >= METRICS_MAX {
            return Err(Refusal::Limit);
        }
        self.metrics.push(Metric { name, value: MetricValue::new(kind) });
        Ok(self.metrics.len() as u32)
    }

    fn metric(&mut self, number: u32) -> Result<&mut MetricValue, Refusal> {
        let index = (number as usize).checked_sub(1).ok_or(Refusal::NotFound)?;
        Ok(&mut self.metrics.get_mut(index).ok_or(Refusal::NotFound)?.value)
    }

    /// Sets a counter or a gauge, or adds a value to a histogram.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn record(&mut self, number: u32, value: u64) -> Result<(), Refusal> {
        match self.metric(number)? {
            MetricValue::Counter(now) | MetricValue::Gauge(now) => *now = value,
            MetricValue::Histogram { count, sum, buckets } => {
                *count = count.saturating_add(1);
                *sum = sum.saturating_add(value);
                let bucket = &mut buckets[(u64::BITS - value.leading_zeros()) as usize];
                *bucket = bucket.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Changes a counter or a gauge, saturating.
    ///
    /// # Errors
    /// [`Refusal::NotFound`]; [`Refusal::WrongKind`] for a histogram, or a counter that would
    /// decrease.
    pub fn increment(&mut self, number: u32, delta: i64) -> Result<(), Refusal> {
        match self.metric(number)? {
            MetricValue::Counter(now) if delta >= 0 => *now = now.saturating_add_signed(delta),
            MetricValue::Gauge(now) => *now = now.saturating_add_signed(delta),
            MetricValue::Counter(_) | MetricValue::Histogram { .. } => {
                return Err(Refusal::WrongKind);
            }
        }
        Ok(())
    }

    /// Returns the value of a counter or a gauge.
    ///
    /// # Errors
    /// [`Refusal::NotFound`]; [`Refusal::WrongKind`] for a histogram.
    pub fn value(&mut self, number: u32) -> Result<u64, Refusal> {
        match self.metric(number)? {
            MetricValue::Counter(now) | MetricValue::Gauge(now) => Ok(*now),
            MetricValue::Histogram { .. } => Err(Refusal::WrongKind),
        }
    }

    /// Returns all metrics, in the order of their definition.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Charges the growth of an item from `old` to `new` bytes, or releases its shrinkage.
    fn resize(&mut self, old: usize, new: usize) -> Result<(), Refusal> {
        if self.bytes - old + new > SHARED_BYTES_MAX {
            return Err(Refusal::Limit);
        }
        if let Some(room) = &self.room {
            if new > old && !room.take(Part::State, (new - old) as u64) {
                return Err(Refusal::NoMemory);
            }
            if old > new {
                room.give(Part::State, (old - new) as u64);
            }
        }
        self.bytes = self.bytes - old + new;
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(room) = self.room.as_ref().filter(|_| self.bytes > 0) {
            room.give(Part::State, self.bytes as u64);
        }
    }
}

#[cfg(test)]
mod tests;
