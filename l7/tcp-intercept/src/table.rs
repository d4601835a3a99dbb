//! Table of connections by keys that are never reused.

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// End at the client.
    Downstream,
    /// End at the server.
    Upstream,
}

impl Side {
    /// Both ends.
    pub(crate) const BOTH: [Self; 2] = [Self::Downstream, Self::Upstream];
}

/// Number of a service of [`Streams`](crate::Streams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceNumber(pub(crate) u16);

/// Flag for listeners in the user data of an epoll event; no connection's key has it.
const LISTENER: u64 = 1 << 63;

impl ServiceNumber {
    /// Returns the epoll user data of the listener with this index.
    pub(crate) const fn listener(self, at: u16) -> u64 {
        LISTENER | (at as u64) << 16 | self.0 as u64
    }

    pub(crate) const fn of_listener(data: u64) -> Option<(Self, u16)> {
        if data & LISTENER == 0 { None } else { Some((Self(data as u16), (data >> 16) as u16)) }
    }
}

/// Key of a connection: its slot, and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    slot: u32,
    generation: u32,
}

/// Mask of generations, which leaves the bit of [`LISTENER`] free.
const GENERATION_MASK: u32 = u32::MAX >> 1;

impl Key {
    /// Returns the epoll user data of one end: generation, slot, side.
    pub(crate) const fn with(self, side: Side) -> u64 {
        (self.generation as u64) << 32
            | (self.slot as u64) << 1
            | matches!(side, Side::Upstream) as u64
    }

    pub(crate) const fn and_side(data: u64) -> (Self, Side) {
        let side = if data & 1 == 0 { Side::Downstream } else { Side::Upstream };
        (Self { slot: (data as u32) >> 1, generation: (data >> 32) as u32 }, side)
    }
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Slot map of connections.
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// True if an entry was removed since the last [`Table::take_removed`].
    has_removed: bool,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), has_removed: false }
    }
}

impl<T> Table<T> {
    pub(crate) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            // Bounded by the number of file descriptors.
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        entry.value = Some(value);
        Key { slot, generation: entry.generation }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        self.free.push(key.slot);
        self.has_removed = true;
        Some(value)
    }

    /// Returns true if an entry was removed since the last call.
    pub(crate) const fn take_removed(&mut self) -> bool {
        std::mem::replace(&mut self.has_removed, false)
    }

    /// Returns the keys of all entries.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let there = self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some());
        there.map(|(at, slot)| Key { slot: at as u32, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_good_for_one_connection_only() {
        let mut table = Table::default();
        let first = table.insert('a');
        let second = table.insert('b');
        assert_eq!(table.remove(first), Some('a'));
        let third = table.insert('c');
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.len(), 2);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(third), Some(&mut 'c'));
        for key in [second, third] {
            for side in [Side::Downstream, Side::Upstream] {
                assert_eq!(Key::and_side(key.with(side)), (key, side));
                assert_eq!(ServiceNumber::of_listener(key.with(side)), None);
            }
        }
        let number = ServiceNumber(7);
        assert_eq!(ServiceNumber::of_listener(number.listener(1)), Some((number, 1)));
    }
}
