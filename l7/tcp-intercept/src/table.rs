//! Connections by numbers that are never given twice.

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The client's.
    Downstream,
    /// The server's.
    Upstream,
}

impl Side {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::Downstream, Self::Upstream];
}

/// A service of [`Streams`](crate::Streams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceNumber(pub(crate) u16);

/// Set in what an event says of a listener; no connection has it.
const LISTENER: u64 = 1 << 63;

impl ServiceNumber {
    /// As an event says it of a service's listener: which of them, and whose.
    pub(crate) const fn listener(self, at: u16) -> u64 {
        LISTENER | (at as u64) << 16 | self.0 as u64
    }

    pub(crate) const fn of_listener(data: u64) -> Option<(Self, u16)> {
        if data & LISTENER == 0 { None } else { Some((Self(data as u16), (data >> 16) as u16)) }
    }
}

/// A connection: its place, and how many were there before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    place: u32,
    turn: u32,
}

/// Turns fit beside the flag of a listener.
const TURN_MASK: u32 = u32::MAX >> 1;

impl Key {
    /// As an event says it: turn, place, side.
    pub(crate) const fn with(self, side: Side) -> u64 {
        (self.turn as u64) << 32 | (self.place as u64) << 1 | matches!(side, Side::Upstream) as u64
    }

    pub(crate) const fn and_side(data: u64) -> (Self, Side) {
        let side = if data & 1 == 0 { Side::Downstream } else { Side::Upstream };
        (Self { place: (data as u32) >> 1, turn: (data >> 32) as u32 }, side)
    }
}

struct Place<T> {
    turn: u32,
    what: Option<T>,
}

/// See above.
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    /// One has gone since somebody asked.
    has_lost: bool,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), has_lost: false }
    }
}

impl<T> Table<T> {
    pub(crate) const fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, what: T) -> Key {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { turn: 0, what: None });
            // As many as there are descriptors, at most.
            (self.places.len() - 1) as u32
        });
        let slot = &mut self.places[place as usize];
        slot.what = Some(what);
        Key { place, turn: slot.turn }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.place as usize)?;
        place.what.as_mut().filter(|_| place.turn == key.turn)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.place as usize)?;
        if place.turn != key.turn {
            return None;
        }
        let what = place.what.take()?;
        place.turn = place.turn.wrapping_add(1) & TURN_MASK;
        self.free.push(key.place);
        self.has_lost = true;
        Some(what)
    }

    /// Whether one has gone since this was asked last.
    pub(crate) const fn take_lost(&mut self) -> bool {
        std::mem::replace(&mut self.has_lost, false)
    }

    /// All that are there.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let there = self.places.iter().enumerate().filter(|(_, place)| place.what.is_some());
        there.map(|(at, place)| Key { place: at as u32, turn: place.turn }).collect()
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
