//! Transcode parameters of a device, and the codec's command line for them.

use crate::limits::{HEIGHT_MAX, RATE_MAX, RATE_MIN, SIDE_MIN, WIDTH_MAX};
use std::fmt;
use units::Nanos;

/// Picture rate in thousandths of a picture per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    /// Creates a rate within the limits.
    #[must_use]
    pub fn new(thousandths: u32) -> Option<Self> {
        (RATE_MIN..=RATE_MAX).contains(&thousandths).then_some(Self(thousandths))
    }

    /// Returns the presentation time of picture number `count`, from the first one.
    #[must_use]
    pub fn time_of(self, count: u64) -> Nanos {
        let time = u128::from(count) * 1_000_000_000_000 / u128::from(self.0);
        Nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Parses digits, with at most three after a decimal point.
    fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) || part.len() > 3 || whole.len() > 3 {
            return None;
        }
        let whole: u32 = whole.parse().ok()?;
        let part: u32 = format!("{part:0<3}").parse().ok()?;
        Self::new(whole * 1_000 + part)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 1_000, self.0 % 1_000);
        if part == 0 { write!(f, "{whole}") } else { write!(f, "{whole}.{part:03}") }
    }
}

/// Pixel format of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    /// Luminance, a byte per pixel.
    Gray8,
    /// Three bytes per pixel: red, green, blue.
    Rgb24,
    /// JPEG with this quality on ffmpeg's scale: 2 is the best, 31 the smallest.
    Mjpeg(u8),
}

/// Transcode parameters: size, rate and format of the pictures that a device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TranscodeParams {
    /// Pixels of a row.
    pub width: u16,
    /// Number of rows.
    pub height: u16,
    /// Pictures per second.
    pub rate: Rate,
    /// Pixel format.
    pub pixels: Pixels,
}

/// The text is no valid set of parameters: a fault of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// The text is no list of `key=value`, or has a key twice.
    #[error("the text is not a list of key=value separated by single spaces, each key once")]
    Form,
    /// A key is unknown.
    #[error("a key is unknown: the keys are width, height, rate, pixels and quality")]
    Key,
    /// A key is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A value is invalid, or exceeds its limits.
    #[error("{0} is not within its limits")]
    Value(&'static str),
}

const KEYS: [&str; 5] = ["width", "height", "rate", "pixels", "quality"];

impl TranscodeParams {
    /// Parses `width=160 height=120 rate=10 pixels=rgb24`, in any order; with `pixels=mjpeg` also
    /// `quality=2..31`.
    ///
    /// # Errors
    /// The text is not valid, as the variants of [`ParamsError`] say.
    pub fn parse(text: &[u8]) -> Result<Self, ParamsError> {
        let text = std::str::from_utf8(text).map_err(|_| ParamsError::Form)?;
        let mut values: [Option<&str>; KEYS.len()] = [None; KEYS.len()];
        for pair in text.split(' ') {
            let (key, value) = pair.split_once('=').ok_or(ParamsError::Form)?;
            let offset = KEYS.iter().position(|it| *it == key).ok_or(ParamsError::Key)?;
            if values[offset].replace(value).is_some() {
                return Err(ParamsError::Form);
            }
        }
        let [width, height, rate, pixels, quality] = values;
        let number = |value: Option<&str>, name, range: std::ops::RangeInclusive<u16>| {
            let value = value.ok_or(ParamsError::Missing(name))?;
            let is_digits = value.bytes().all(|it| it.is_ascii_digit());
            let number = value.parse().ok().filter(|number| is_digits && range.contains(number));
            number.ok_or(ParamsError::Value(name))
        };
        let width = number(width, "width", SIDE_MIN..=WIDTH_MAX)?;
        let height = number(height, "height", SIDE_MIN..=HEIGHT_MAX)?;
        let rate = rate.ok_or(ParamsError::Missing("rate"))?;
        let rate = Rate::parse(rate).ok_or(ParamsError::Value("rate"))?;
        let pixels = match pixels.ok_or(ParamsError::Missing("pixels"))? {
            "gray8" => Pixels::Gray8,
            "rgb24" => Pixels::Rgb24,
            "mjpeg" => Pixels::Mjpeg(number(quality, "quality", 2..=31)? as u8),
            _ => return Err(ParamsError::Value("pixels")),
        };
        if quality.is_some() && !matches!(pixels, Pixels::Mjpeg(_)) {
            return Err(ParamsError::Value("quality"));
        }
        Ok(Self { width, height, rate, pixels })
    }

    /// Returns the bytes of a picture, if all pictures have the same length.
    #[must_use]
    pub fn picture_length(&self) -> Option<usize> {
        let count = usize::from(self.width) * usize::from(self.height);
        match self.pixels {
            Pixels::Gray8 => Some(count),
            Pixels::Rgb24 => Some(3 * count),
            Pixels::Mjpeg(_) => None,
        }
    }

    /// Returns the arguments of ffmpeg, version 5.1 or later: an elementary stream on standard
    /// input, pictures on standard output.
    ///
    /// Output begins with the first picture, whatever its time; ffmpeg reads no more than a
    /// sequence header before it decodes, and drops pictures before it scales the rest. Two options
    /// that promise a lower delay are not used: `nobuffer` loses the pictures read during probing,
    /// and `low_delay` outputs pictures in coding order.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let Self { width, height, rate, pixels } = self;
        let filters =
            format!("setpts=PTS-STARTPTS,fps={rate},scale={width}:{height}:flags=fast_bilinear");
        let mut all: Vec<String> = [
            "-hide_banner",
            "-nostdin",
            "-loglevel",
            "error",
            "-probesize",
            "2048",
            "-analyzeduration",
            "0",
            "-threads",
            "1",
            "-f",
            "mpegvideo",
            "-i",
            "pipe:0",
            "-an",
            "-sn",
            "-dn",
            "-filter_threads",
            "1",
            "-vf",
            &filters,
            "-fps_mode",
            "passthrough",
            "-threads",
            "1",
            "-flush_packets",
            "1",
        ]
        .map(str::to_owned)
        .into();
        match pixels {
            Pixels::Gray8 => all.extend(["-pix_fmt", "gray", "-f", "rawvideo"].map(str::to_owned)),
            Pixels::Rgb24 => all.extend(["-pix_fmt", "rgb24", "-f", "rawvideo"].map(str::to_owned)),
            Pixels::Mjpeg(quality) => {
                all.extend(["-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "-q:v"].map(str::to_owned));
                all.push(quality.to_string());
                all.extend(["-f", "image2pipe"].map(str::to_owned));
            }
        }
        all.push("pipe:1".to_owned());
        all
    }
}

impl fmt::Display for TranscodeParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, height, rate, pixels } = self;
        write!(f, "width={width} height={height} rate={rate} pixels=")?;
        match pixels {
            Pixels::Gray8 => f.write_str("gray8"),
            Pixels::Rgb24 => f.write_str("rgb24"),
            Pixels::Mjpeg(quality) => write!(f, "mjpeg quality={quality}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_parsed_and_formatted() {
        for text in [
            "width=160 height=120 rate=10 pixels=rgb24",
            "width=16 height=1080 rate=12.500 pixels=gray8",
            "width=1920 height=17 rate=60 pixels=mjpeg quality=2",
        ] {
            assert_eq!(TranscodeParams::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        let any_order = b"pixels=mjpeg rate=1.5 quality=31 height=16 width=16";
        let params = TranscodeParams::parse(any_order).unwrap();
        assert_eq!((params.pixels, params.rate), (Pixels::Mjpeg(31), Rate(1_500)));
        assert_eq!(params.picture_length(), None);
    }

    #[test]
    fn invalid_params_are_refused_with_their_reason() {
        use ParamsError::{Form, Key, Missing, Value};
        let cases = [
            ("", Form),
            ("width=160  height=120 rate=10 pixels=rgb24", Form),
            ("width=160 width=160 height=120 rate=10 pixels=rgb24", Form),
            ("width=160 height=120 rate=10 pixels=rgb24 ", Form),
            ("width=160 height=120 rate=10 pixels=rgb24 depth=1", Key),
            ("height=120 rate=10 pixels=rgb24", Missing("width")),
            ("width=160 height=120 pixels=rgb24", Missing("rate")),
            ("width=160 height=120 rate=10", Missing("pixels")),
            ("width=160 height=120 rate=10 pixels=mjpeg", Missing("quality")),
            ("width=15 height=120 rate=10 pixels=rgb24", Value("width")),
            ("width=1921 height=120 rate=10 pixels=rgb24", Value("width")),
            ("width=+160 height=120 rate=10 pixels=rgb24", Value("width")),
            ("width=160 height=1081 rate=10 pixels=rgb24", Value("height")),
            ("width=160 height=120 rate=0.999 pixels=rgb24", Value("rate")),
            ("width=160 height=120 rate=60.001 pixels=rgb24", Value("rate")),
            ("width=160 height=120 rate=1.2345 pixels=rgb24", Value("rate")),
            ("width=160 height=120 rate=.5 pixels=rgb24", Value("rate")),
            ("width=160 height=120 rate=10 pixels=yuv", Value("pixels")),
            ("width=160 height=120 rate=10 pixels=mjpeg quality=1", Value("quality")),
            ("width=160 height=120 rate=10 pixels=mjpeg quality=32", Value("quality")),
            ("width=160 height=120 rate=10 pixels=rgb24 quality=5", Value("quality")),
        ];
        for (text, error) in cases {
            assert_eq!(TranscodeParams::parse(text.as_bytes()), Err(error), "{text}");
        }
        assert_eq!(TranscodeParams::parse(b"width=\xff"), Err(Form));
    }

    #[test]
    fn pictures_have_their_times() {
        let rate = Rate::parse("12.5").unwrap();
        assert_eq!(rate.time_of(25), Nanos(2_000_000_000));
        assert_eq!(Rate::parse("60").unwrap().time_of(1), Nanos(16_666_666));
    }

    #[test]
    fn the_arguments_have_size_rate_and_pixels() {
        let params = TranscodeParams::parse(b"width=17 height=33 rate=7.5 pixels=gray8").unwrap();
        let line = params.arguments().join(" ");
        assert!(line.contains("fps=7.500,scale=17:33:"), "{line}");
        assert!(line.ends_with("-pix_fmt gray -f rawvideo pipe:1"), "{line}");
        let params =
            TranscodeParams::parse(b"width=17 height=33 rate=7 pixels=mjpeg quality=9").unwrap();
        assert!(params.arguments().join(" ").ends_with("-q:v 9 -f image2pipe pipe:1"));
    }
}
