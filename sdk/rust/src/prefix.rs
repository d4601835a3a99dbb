//! Address prefixes in a text parameter, and lists of values in one.
//!
//! ```
//! use tam::prefix::Prefixes;
//!
//! let mut inside = Prefixes::<u32, 8>::NONE;
//! assert!(inside.read("10.0.0.0/8, 192.0.2.7").is_some());
//! assert!(inside.contains(0x0a01_0203) && !inside.contains(0x0b00_0000));
//! assert!(inside.read("10.0.0.1/8").is_none(), "bits after the prefix");
//! ```

use core::net::{IpAddr, Ipv4Addr};

/// Prefix of IPv4-mapped IPv6 addresses, ::ffff:a.b.c.d (RFC 4291, section 2.5.5.2).
pub const V4_MAPPED: u128 = 0xffff_0000_0000;

/// Integer that represents addresses: `u32` for IPv4 only, `u128` for both, with
/// [mapped](V4_MAPPED) IPv4 addresses.
pub trait Address: Copy + Eq {
    /// Number 0.
    const ZERO: Self;

    /// Parses an address; returns it with the number of bits that a prefix may have.
    fn parse(text: &str) -> Option<(Self, u32)>;

    /// Returns the mask whose lowest `host_bits` bits are 0.
    #[must_use]
    fn mask(host_bits: u32) -> Self;

    /// Returns the bitwise AND.
    #[must_use]
    fn and(self, other: Self) -> Self;
}

impl Address for u32 {
    const ZERO: Self = 0;

    fn parse(text: &str) -> Option<(Self, u32)> {
        Some((text.parse::<Ipv4Addr>().ok()?.into(), 32))
    }

    fn mask(host_bits: u32) -> Self {
        Self::MAX.checked_shl(host_bits).unwrap_or(0)
    }

    #[inline]
    fn and(self, other: Self) -> Self {
        self & other
    }
}

impl Address for u128 {
    const ZERO: Self = 0;

    fn parse(text: &str) -> Option<(Self, u32)> {
        Some(match text.parse().ok()? {
            IpAddr::V4(v4) => (V4_MAPPED | Self::from(u32::from(v4)), 32),
            IpAddr::V6(v6) => (v6.into(), 128),
        })
    }

    fn mask(host_bits: u32) -> Self {
        Self::MAX.checked_shl(host_bits).unwrap_or(0)
    }

    #[inline]
    fn and(self, other: Self) -> Self {
        self & other
    }
}

/// Address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix<A> {
    address: A,
    mask: A,
}

impl<A: Address> Prefix<A> {
    /// Prefix of every address.
    pub const ALL: Self = Self { address: A::ZERO, mask: A::ZERO };

    /// Parses `10.0.0.0/8`, `2001:db8::/32`, or a single address. `None` for anything else, and for
    /// an address with bits set after the prefix, which is probably a typing error.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let (address, bits) = A::parse(address)?;
        let host_bits = bits.checked_sub(length.unwrap_or(bits))?;
        let mask = A::mask(host_bits);
        (address.and(mask) == address).then_some(Self { address, mask })
    }

    /// Returns true if the prefix contains the address.
    #[inline]
    #[must_use]
    pub fn contains(&self, address: A) -> bool {
        address.and(self.mask) == self.address
    }
}

/// List of at most `MAX` prefixes.
#[derive(Clone, Copy, Debug)]
pub struct Prefixes<A, const MAX: usize> {
    prefixes: [Prefix<A>; MAX],
    count: usize,
}

impl<A: Address, const MAX: usize> Prefixes<A, MAX> {
    /// Empty list.
    pub const NONE: Self = Self { prefixes: [Prefix::ALL; MAX], count: 0 };

    /// Replaces the list by a parsed [list](parse_list) of prefixes, and returns their number;
    /// `None` if the text is no such list.
    pub fn read(&mut self, text: &str) -> Option<usize> {
        self.count = parse_list(text, &mut self.prefixes, Prefix::parse)?;
        Some(self.count)
    }

    /// Returns true if the list is empty.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if one of the prefixes contains the address.
    #[must_use]
    pub fn contains(&self, address: A) -> bool {
        self.prefixes.iter().take(self.count).any(|prefix| prefix.contains(address))
    }
}

/// Parses a list of words separated by spaces and commas into `places`, and returns their number.
/// `None` if one of them is invalid, or there are too many.
pub fn parse_list<T>(
    text: &str,
    places: &mut [T],
    parse: impl Fn(&str) -> Option<T>,
) -> Option<usize> {
    let mut count = 0;
    let words = text.split([' ', ',']).filter(|word| !word.is_empty());
    for word in words {
        *places.get_mut(count)? = parse(word)?;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<A: Address>(text: &str) -> Option<Prefixes<A, 2>> {
        let mut list = Prefixes::NONE;
        list.read(text).map(|_| list)
    }

    #[test]
    fn a_prefix_has_the_addresses_that_begin_like_it() {
        let prefix = Prefix::<u32>::parse("10.1.0.0/16").unwrap();
        assert!(prefix.contains(0x0a01_0000) && prefix.contains(0x0a01_ffff));
        assert!(!prefix.contains(0x0a02_0000) && !prefix.contains(0));
        assert!(Prefix::<u32>::parse("192.0.2.7").unwrap().contains(0xc000_0207));
        assert_eq!(Prefix::<u32>::parse("0.0.0.0/0"), Some(Prefix::ALL));
        assert!(Prefix::<u32>::ALL.contains(u32::MAX));
    }

    #[test]
    fn ipv4_and_ipv6_stand_beside_each_other() {
        let both = list::<u128>("10.0.0.0/8 2001:db8::/32").unwrap();
        assert!(both.contains(V4_MAPPED | 0x0a01_0203));
        assert!(both.contains(0x2001_0db8 << 96 | 1));
        // 10.0.0.0 as bits of an IPv6 address that is not mapped.
        assert!(!both.contains(0x0a00_0000) && !both.contains(V4_MAPPED | 0x0b00_0000));
        assert!(Prefix::<u128>::parse("::/0").unwrap().contains(V4_MAPPED));
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        let refused = [
            "",
            "10.0.0",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/x",
            "/8",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "inside",
        ];
        for text in refused {
            assert!(Prefix::<u32>::parse(text).is_none(), "{text}");
            assert!(Prefix::<u128>::parse(text).is_none(), "{text}");
        }
        assert!(Prefix::<u32>::parse("2001:db8::/32").is_none());
        assert!(Prefix::<u128>::parse("2001:db8::/129").is_none());
        assert!(Prefix::<u128>::parse("2001:db8::1/32").is_none());
    }

    #[test]
    fn a_list_of_prefixes_is_separated_by_spaces_and_commas_and_limited() {
        let both = list::<u32>(" 10.0.0.0/8,, 192.0.2.7 ").unwrap();
        assert!(both.contains(0x0a00_0001) && both.contains(0xc000_0207) && !both.contains(0));
        assert!(list::<u32>("10.0.0.1 10.0.0.2 10.0.0.3").is_none());
        assert!(list::<u32>("10.0.0.1 x").is_none());
        let none = list::<u32>(" , ").unwrap();
        assert!(none.is_empty() && !none.contains(0));
    }
}
