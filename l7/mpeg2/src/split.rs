//! Splitter of a codec's output into pictures.

use crate::limits::PICTURE_LENGTH_MAX;
use crate::params::TranscodeParams;

/// The codec's output does not consist of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// A JPEG does not begin where expected, or violates T.81.
    #[error("the codec's output is no JPEG picture")]
    Jpeg,
    /// A picture is longer than the limit.
    #[error("the codec writes a picture of more than {PICTURE_LENGTH_MAX} bytes")]
    TooLong,
}

/// Splitter of bytes into whole pictures.
#[derive(Debug)]
pub struct Splitter {
    bytes: Vec<u8>,
    /// Number of leading bytes that have been dropped.
    from: usize,
    /// Length of every picture in bytes; `None` for JPEG.
    length: Option<usize>,
    jpeg: Jpeg,
}

/// Parser state of the first JPEG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Jpeg {
    /// Offset up to which the picture has been read.
    at: usize,
    /// True within entropy-coded data.
    is_coded: bool,
    /// Length of the picture in bytes, once it is complete.
    length: Option<usize>,
}

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;

impl Splitter {
    /// Creates a splitter for a codec with these parameters.
    #[must_use]
    pub fn new(params: &TranscodeParams) -> Self {
        let (length, jpeg) = (params.picture_length(), Jpeg::default());
        Self { bytes: Vec::new(), from: 0, length, jpeg }
    }

    /// Appends output of the codec.
    ///
    /// # Errors
    /// The output cannot be split into pictures.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        if self.from > 0 && self.from >= self.bytes.len() / 2 {
            self.bytes.drain(..self.from);
            self.from = 0;
        }
        self.bytes.extend_from_slice(bytes);
        self.parse_first()
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.from..).unwrap_or_default()
    }

    /// Returns the first picture, if it is complete.
    #[must_use]
    pub fn first(&self) -> Option<&[u8]> {
        let length = self.length.or(self.jpeg.length)?;
        self.rest().get(..length)
    }

    /// Returns true if a complete picture follows the first one. For JPEG, only its plausible end
    /// is checked.
    #[must_use]
    pub fn has_second(&self) -> bool {
        match self.length {
            Some(length) => self.rest().len() >= 2 * length,
            None => {
                let tail = self.jpeg.length.and_then(|length| self.rest().get(length..));
                tail.is_some_and(|tail| {
                    let mut next = Jpeg::default();
                    matches!(next.read(tail), Ok(())) && next.length.is_some()
                })
            }
        }
    }

    /// Removes the first picture.
    ///
    /// # Errors
    /// The bytes after it cannot be split.
    pub fn take(&mut self) -> Result<(), OutputError> {
        let Some(length) = self.first().map(<[u8]>::len) else { return Ok(()) };
        self.from += length;
        self.jpeg = Jpeg::default();
        if self.from == self.bytes.len() {
            self.bytes.clear();
            self.from = 0;
        }
        self.parse_first()
    }

    /// Returns the number of bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rest().len()
    }

    /// Returns true if no bytes are held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parse_first(&mut self) -> Result<(), OutputError> {
        if self.length.is_some() {
            return Ok(());
        }
        let mut jpeg = self.jpeg;
        jpeg.read(self.rest())?;
        self.jpeg = jpeg;
        Ok(())
    }
}

impl Jpeg {
    /// Reads up to the end of the picture, or of the bytes.
    fn read(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        while self.length.is_none() {
            if self.at > PICTURE_LENGTH_MAX {
                return Err(OutputError::TooLong);
            }
            let rest = bytes.get(self.at..).unwrap_or_default();
            if self.is_coded {
                // Entropy-coded data ends at a marker: `FF` and neither a stuffed zero nor a
                // restart.
                let is_marker = |two: &[u8]| two[0] == 0xff && !matches!(two[1], 0 | 0xd0..=0xd7);
                match rest.windows(2).position(is_marker) {
                    Some(offset) => (self.at, self.is_coded) = (self.at + offset, false),
                    None => {
                        self.at += rest.len().saturating_sub(1);
                        return Ok(());
                    }
                }
                continue;
            }
            let [0xff, marker, ..] = rest else {
                return match rest {
                    [] | [0xff] => Ok(()),
                    _ => Err(OutputError::Jpeg),
                };
            };
            if (self.at == 0) != (*marker == SOI) {
                return Err(OutputError::Jpeg);
            }
            match *marker {
                SOI => self.at += 2,
                EOI => self.length = Some(self.at + 2),
                // Fill bytes before a marker.
                0xff => self.at += 1,
                marker => {
                    let Some(length) = rest.get(2..4) else { return Ok(()) };
                    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
                    if length < 2 {
                        return Err(OutputError::Jpeg);
                    }
                    self.at += 2 + length;
                    self.is_coded = marker == SOS;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(params: &str, bytes: &[u8], parts: &[usize]) -> Result<Vec<Vec<u8>>, OutputError> {
        let mut splitter = Splitter::new(&TranscodeParams::parse(params.as_bytes()).unwrap());
        let (mut rest, mut pictures) = (bytes, Vec::new());
        let mut parts = parts.iter().cycle();
        while !rest.is_empty() {
            let (part, tail) = rest.split_at((*parts.next().unwrap_or(&1)).clamp(1, rest.len()));
            rest = tail;
            splitter.push(part)?;
            while let Some(picture) = splitter.first() {
                pictures.push(picture.to_vec());
                splitter.take()?;
            }
        }
        Ok(pictures)
    }

    /// Returns a JPEG with a comment that contains an end of image, data with stuffing and
    /// restarts, and another scan.
    fn jpeg(mark: u8) -> Vec<u8> {
        let mut bytes = vec![0xff, 0xd8, 0xff, 0xfe, 0, 6, 0xff, 0xd9, 0xff, 0xda];
        bytes.extend([0xff, 0xda, 0, 3, 1, mark, 0xff, 0, 7, 0xff, 0xd3, 8]);
        bytes.extend([0xff, 0xda, 0, 2, mark, 0xff, 0xff, 0xd9]);
        bytes
    }

    proptest! {
        #[test]
        fn pictures_are_the_same_wherever_output_is_cut(parts in prop::collection::vec(1_usize..700, 1..8)) {
            let raw: Vec<u8> = (0..256 * 5).map(|at| (at % 251) as u8).collect();
            let pictures = all("width=16 height=16 rate=1 pixels=gray8", &raw, &parts).unwrap();
            prop_assert_eq!(pictures, raw.chunks(256).map(<[u8]>::to_vec).collect::<Vec<_>>());
            let jpegs: Vec<Vec<u8>> = (0..20).map(jpeg).collect();
            let params = "width=16 height=16 rate=1 pixels=mjpeg quality=5";
            prop_assert_eq!(all(params, &jpegs.concat(), &parts).unwrap(), jpegs);
        }
    }

    #[test]
    fn an_invalid_jpeg_is_an_error() {
        let params = "width=16 height=16 rate=1 pixels=mjpeg quality=5";
        for bytes in [&b"GIF89a"[..], &[0xff, 0xd9], &[0xff, 0xd8, 0xff, 0xd8], &[0xff, 0xd8, 1]] {
            assert_eq!(all(params, bytes, &[1]), Err(OutputError::Jpeg));
        }
        assert_eq!(all(params, &[0xff, 0xd8, 0xff, 0xe0, 0, 1], &[9]), Err(OutputError::Jpeg));
        let mut endless = vec![0xff, 0xd8, 0xff, 0xda, 0, 2];
        endless.resize(PICTURE_LENGTH_MAX + (1 << 17), 0);
        assert_eq!(all(params, &endless, &[1 << 16]), Err(OutputError::TooLong));
    }

    #[test]
    fn another_complete_picture_is_detected() {
        let mut splitter = Splitter::new(
            &TranscodeParams::parse(b"width=16 height=16 rate=1 pixels=mjpeg quality=5").unwrap(),
        );
        splitter.push(&jpeg(1)).unwrap();
        assert!(splitter.first().is_some() && !splitter.has_second());
        splitter.push(&jpeg(2)).unwrap();
        assert!(splitter.has_second());
        splitter.take().unwrap();
        assert_eq!(splitter.first(), Some(&jpeg(2)[..]));
    }
}
