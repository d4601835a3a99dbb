//! Attributes, of which all messages consist behind their fixed headers (`struct nlattr`,
//! include/uapi/linux/netlink.h): a length, a type, a value, and what fills it up to four bytes.
//! What a type means is the business of who reads or writes it.

use std::net::IpAddr;

/// `NLA_F_NESTED`: the value is attributes. Families that are older than the flag do without it.
pub(super) const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`: the type without the two flags above it.
const TYPE_MASK: u16 = 0x3fff;
/// Length of `struct nlattr`.
const HEADER_LENGTH: usize = 4;

/// One attribute of a message of the kernel's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute<'a> {
    /// Its type, without flags.
    pub(super) kind: u16,
    pub(super) value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Its value as a number of 16 bits in the machine's byte order; `None` where it is shorter.
    pub(super) fn u16(&self) -> Option<u16> {
        self.value.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
    }

    /// Its value as a number of 32 bits in the machine's byte order.
    pub(super) fn u32(&self) -> Option<u32> {
        self.value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Its value as text, without the zero at its end.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(self.value).trim_end_matches('\0').to_owned()
    }

    /// Its value as an address: of IPv4 or of IPv6, as its length says.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.value.len() {
            4 => self.value.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
            16 => self.value.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
            _ => None,
        }
    }

    /// The attributes that its value is.
    pub(super) fn nested(&self) -> impl Iterator<Item = Attribute<'a>> {
        attributes(self.value)
    }
}

/// Reads attributes, in order; what is none ends them.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let [l0, l1, t0, t1] = *bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(HEADER_LENGTH..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind: u16::from_ne_bytes([t0, t1]) & TYPE_MASK, value })
    })
}

/// Writes an attribute.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = (HEADER_LENGTH + value.len()) as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Writes one whose value is attributes, and that says so.
pub(super) fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

/// Writes a number of 32 bits in the machine's byte order.
pub(super) fn ne32(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_ne_bytes())
}

/// Writes a number of 32 bits in network byte order.
pub(super) fn be32(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

/// Writes text, with the zero at its end.
pub(super) fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// Writes an address of either family.
pub(super) fn address(kind: u16, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => attribute(kind, &address.octets()),
        IpAddr::V6(address) => attribute(kind, &address.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let bytes = [
            text(3, "eth0"),
            ne32(4, 1500),
            nested(18, &[address(1, [10, 0, 0, 1].into()), attribute(2, &[7])].concat()),
        ]
        .concat();
        assert_eq!(bytes.len(), 12 + 8 + 4 + 8 + 8);
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read.iter().map(|it| it.kind).collect::<Vec<_>>(), [3, 4, 18]);
        assert_eq!((read[0].text().as_str(), read[1].u32()), ("eth0", Some(1500)));
        let nested: Vec<_> = read[2].nested().collect();
        assert_eq!(nested[0].address(), Some([10, 0, 0, 1].into()));
        assert_eq!((nested[1].value, nested[1].u16(), nested[1].u32()), (&[7][..], None, None));
    }

    #[test]
    fn what_is_no_attribute_ends_them() {
        let whole = ne32(4, 1500);
        for bytes in [&[][..], &[8, 0, 4], &[3, 0, 4, 0], &[9, 0, 4, 0, 1, 2, 3, 4]] {
            let bytes = [&whole[..], bytes].concat();
            assert_eq!(attributes(&bytes).count(), 1, "{bytes:?}");
        }
        // The last one need not be filled up.
        assert_eq!(attributes(&[5, 0, 1, 0, 9]).next().unwrap().value, [9]);
    }
}
