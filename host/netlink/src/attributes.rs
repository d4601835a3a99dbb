//! Attributes of messages for which the library (`rtnetlink`) has no types: nftables, whose whole
//! subsystem it lacks, and actions of traffic control, which it writes without the flag of nested
//! attributes. They are written as the library's generic attributes.

use rtnetlink::packet_core::{DefaultNla, Emitable, NLA_F_NESTED};

/// Attributes in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<DefaultNla>);

impl Attributes {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds an attribute with raw bytes.
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.push(DefaultNla::new(kind, value.to_vec()));
        self
    }

    /// Adds a number in network byte order.
    pub(super) fn be32(self, kind: u16, number: u32) -> Self {
        self.bytes(kind, &number.to_be_bytes())
    }

    /// Adds a zero-terminated string.
    pub(super) fn text(self, kind: u16, text: &str) -> Self {
        self.bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that contains attributes.
    pub(super) fn nested(self, kind: u16, inner: Self) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.emit())
    }

    /// Serialises the attributes.
    pub(super) fn emit(&self) -> Vec<u8> {
        let attributes = self.0.as_slice();
        let mut bytes = vec![0; attributes.buffer_len()];
        attributes.emit(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested_ones_say_so() {
        let inner = Attributes::new().be32(2, 7).text(1, "ab");
        let bytes = Attributes::new().nested(4, inner).bytes(1, &[9]).emit();
        let mut expected = Vec::new();
        for (length, kind, value) in
            [(20, 0x8004, &[][..]), (8, 2, &[0, 0, 0, 7]), (7, 1, b"ab\0\0"), (5, 1, &[9, 0, 0, 0])]
        {
            let (length, kind): (u16, u16) = (length, kind);
            expected.extend(length.to_ne_bytes());
            expected.extend(kind.to_ne_bytes());
            expected.extend(value);
        }
        assert_eq!(bytes, expected);
    }
}
