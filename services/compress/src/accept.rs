//! Codings that a client accepts: Accept-Encoding, RFC 9110, section 12.5.3.

use crate::coding::Coding;
use crate::fields::{members, pair, parameters};

/// Preference of a client in thousandths: 0 means not acceptable (section 12.4.2).
type Quality = u16;
const MOST: Quality = 1_000;

/// Preferences of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    codings: [Option<Quality>; Coding::COUNT],
    identity: Option<Quality>,
    /// `*`: every coding that is not named.
    others: Option<Quality>,
}

impl Accept {
    /// Parses the field. Invalid members are skipped; of two for one coding the first counts.
    /// Several fields are one list (section 5.3).
    pub fn parse(field: &[u8]) -> Self {
        let mut accept = Self::default();
        for member in members(field) {
            let (name, parameters) = parameters(member);
            let Some(quality) = quality(parameters) else { continue };
            let place = match name {
                b"*" => &mut accept.others,
                _ if name.eq_ignore_ascii_case(b"identity") => &mut accept.identity,
                _ => match Coding::named(name) {
                    Some(coding) => &mut accept.codings[coding.index()],
                    None => continue,
                },
            };
            place.get_or_insert(quality);
        }
        accept
    }

    /// Returns the coding for a response: the one with the highest preference, and the first in
    /// `order` of equal ones; `None` if the client prefers the uncoded response.
    ///
    /// Without the field every coding is acceptable (section 12.5.3, rule 1), but such clients
    /// often cannot decode any: no coding is chosen.
    pub fn choose(&self, order: &[Coding]) -> Option<Coding> {
        let liked = |coding: Coding| self.codings[coding.index()].or(self.others).unwrap_or(0);
        let mut best = None;
        let mut best_liked = 0;
        for &coding in order {
            if liked(coding) > best_liked {
                (best, best_liked) = (Some(coding), liked(coding));
            }
        }
        // Identity is acceptable unless it is refused (rule 2). If it is not named, a coding may be
        // chosen; if it is, as in `identity;q=1, gzip;q=0.5`, its preference counts.
        best.filter(|_| self.identity.is_none_or(|identity| best_liked >= identity))
    }
}

/// Returns the weight among a member's parameters; `None` if there are other parameters.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<Quality> {
    let Some(parameter) = parameters.next() else { return Some(MOST) };
    match (pair(parameter), parameters.next()) {
        ((b"q" | b"Q", Some(value)), None) => thousandths(value),
        _ => None,
    }
}

/// Parses a weight (section 12.4.2): 0 or 1, and up to three digits after a point.
fn thousandths(value: &[u8]) -> Option<Quality> {
    let (whole, digits) = match value {
        [whole, b'.', digits @ ..] => (whole, digits),
        [whole] => (whole, &[][..]),
        _ => return None,
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |place: usize| digits.get(place).map_or(0, |byte| Quality::from(byte - b'0'));
    let part = 100 * digit(0) + 10 * digit(1) + digit(2);
    match whole {
        b'0' => Some(part),
        b'1' if part == 0 => Some(MOST),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Coding::{Brotli, Deflate, Gzip, Zstd};

    fn chosen(field: &str) -> Option<Coding> {
        Accept::parse(field.as_bytes()).choose(&Coding::PREFERRED)
    }

    /// Section numbers are those of RFC 9110.
    #[test]
    fn accept_encoding_is_read_as_the_rfc_says() {
        for (field, expected, source) in [
            ("", None, "12.5.3: an empty field wants no coding"),
            ("gzip", Some(Gzip), "12.5.3"),
            ("GZip", Some(Gzip), "8.4.1: names have no case"),
            ("x-gzip", Some(Gzip), "8.4.1.3: the same as gzip"),
            ("deflate", Some(Deflate), "8.4.1.2"),
            ("compress, gzip", Some(Gzip), "12.5.3, an example of the RFC; compress is not here"),
            ("*", Some(Zstd), "12.5.3: whatever is not named"),
            ("compress;q=0.5, gzip;q=1.0", Some(Gzip), "12.5.3, an example of the RFC"),
            ("gzip;q=1.0, identity; q=0.5, *;q=0", Some(Gzip), "12.5.3, an example of the RFC"),
            ("*;q=0", None, "12.5.3: nothing that is not named"),
            ("*;q=0, br", Some(Brotli), "12.5.3: but what is named"),
            ("zstd;q=0, *", Some(Brotli), "12.5.3: and what is refused is not in it"),
            ("gzip;q=0", None, "12.4.2: 0 is not acceptable"),
            ("gzip;q=0.000, br;q=0.001", Some(Brotli), "12.4.2: three digits"),
            ("gzip, deflate, br, zstd", Some(Zstd), "what browsers send: our order decides"),
            ("gzip, deflate, br", Some(Brotli), "what browsers without zstd send"),
            ("gzip, deflate", Some(Gzip), "what they send without TLS"),
            ("br;q=0.9, gzip", Some(Gzip), "12.4.2: the larger weight"),
            ("br;q=0.9, gzip;q=0.8", Some(Brotli), "12.4.2: the larger weight"),
            ("identity", None, "12.5.3: nothing else is named"),
            ("identity, gzip", Some(Gzip), "12.5.3: alike; the smaller one"),
            ("identity;q=1, gzip;q=0.5", None, "12.5.3: the client likes it better as it is"),
            ("identity;q=0", None, "15.5.7: what else there is, it does not say"),
            ("identity;q=0, *", Some(Zstd), "12.5.3: anything but as it is"),
            ("exi, sdch, gzip", Some(Gzip), "what nobody has here is passed over"),
            (
                " gzip ; q=0.5 ,\tbr ; Q=0.6 ",
                Some(Brotli),
                "5.6.3, 5.6.6: space, names without case",
            ),
            ("gzip,,br,", Some(Brotli), "5.6.1.2: empty members are nothing"),
            ("gzip, gzip;q=0", Some(Gzip), "no section says: the first counts"),
            ("gzip;q=0, gzip", None, "no section says: the first counts"),
            ("gzip;q=1.5", None, "12.4.2: no weight, so it is passed over"),
            ("gzip;q=1.001", None, "12.4.2: no weight"),
            ("gzip;q=0.1234", None, "12.4.2: more than three digits"),
            ("gzip;q=-1, br", Some(Brotli), "12.4.2: no weight; the others count"),
            ("gzip;q=, br;q", None, "12.4.2: no weight"),
            ("gzip;q=.5", None, "12.4.2: no digit in front"),
            ("gzip;q=0.", None, "12.4.2: 0 with no digit behind is 0"),
            ("gzip;q=1.", Some(Gzip), "12.4.2: 1 with no digit behind is 1"),
            ("gzip;level=1", None, "12.5.3: there is no such parameter"),
            ("gzip;q=1;x=1", None, "12.5.3: nor one behind the weight"),
            ("gzip br", None, "5.6.2: no token"),
            ("gzip\u{e4}", None, "5.6.2: no token"),
            ("\"gzip\"", None, "5.6.2: no token"),
        ] {
            assert_eq!(chosen(field), expected, "{field:?}: {source}");
        }
    }

    #[test]
    fn the_order_is_the_operators() {
        let accept = Accept::parse(b"gzip, deflate, br, zstd");
        assert_eq!(accept.choose(&[Gzip, Zstd]), Some(Gzip));
        assert_eq!(accept.choose(&[]), None);
        assert_eq!(Accept::parse(b"zstd").choose(&[Gzip, Brotli]), None);
    }

    #[test]
    fn no_bytes_panic() {
        let mut seed: u32 = 1;
        for _ in 0..20_000 {
            let field: Vec<u8> = (0..24)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"gzipbr*q=;,. \"\\01\xff\t"[(seed >> 16) as usize % 19]
                })
                .collect();
            let accept = Accept::parse(&field);
            if let Some(coding) = accept.choose(&Coding::PREFERRED) {
                assert_ne!(accept.codings[coding.index()].or(accept.others), Some(0));
            }
        }
    }
}
