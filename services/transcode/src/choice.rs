//! Choice of a device: the settings in its request, parsed into types.

use crate::dither::Dither;
use crate::limits::{
    HEIGHT_MAX, HEIGHT_MIN, KBITS_MAX, KBITS_MIN, PIXELS_MAX, QUALITY_MAX, QUALITY_MIN,
    QUOTED_LENGTH_MAX, RATE_MAX, RATE_MIN, SLOW_WEIGHT, VALUE_LENGTH_MAX, WIDTH_MAX, WIDTH_MIN,
};
use crate::pack::Layout;
use crate::palette::Palette;
use std::fmt;

/// Names of the settings, for messages.
const SETTINGS: &str = "size, rate, kbits, format, palette, dither, layout and quality";

/// Size of a picture in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Width in pixels.
    pub width: u16,
    /// Height in pixels.
    pub height: u16,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// Picture rate in thousandths of a picture per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u32);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, thousandths) = (self.0 / 1_000, self.0 % 1_000);
        if thousandths == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{thousandths:03}").trim_end_matches('0'))
    }
}

/// Format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Packed pixels after a head.
    Frames,
    /// JPEGs in a multipart body.
    Mjpeg,
}

impl Format {
    /// Returns the name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Mjpeg => "mjpeg",
        }
    }
}

/// Choice of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Size of the pictures.
    pub size: Size,
    /// Picture rate, if the stream has as many.
    pub rate: Rate,
    /// Limit of the byte rate in kbit/s.
    pub kbits: Option<u32>,
    /// Format of the response.
    pub format: Format,
    /// Palette of frames.
    pub palette: Palette,
    /// Dithering of frames.
    pub dither: Dither,
    /// Layout of the packed pixels of frames.
    pub layout: Layout,
    /// Quality of JPEGs.
    pub quality: u8,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            size: Size { width: 160, height: 120 },
            rate: Rate(10_000),
            kbits: None,
            format: Format::Frames,
            palette: Palette::Grey4,
            dither: Dither::Ordered,
            layout: Layout::Rows,
            quality: 5,
        }
    }
}

/// A setting is invalid: a fault of its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Name of the setting.
    pub setting: String,
    /// Description of the error.
    pub why: String,
    /// Valid values.
    pub can_be: String,
}

impl Wrong {
    /// Creates the error for a setting.
    pub fn new(setting: &str, why: String, can_be: impl Into<String>) -> Self {
        Self { setting: setting.to_owned(), why, can_be: can_be.into() }
    }

    /// Quotes a value for a message: without non-ASCII characters, and truncated.
    pub fn quoted(value: &str) -> String {
        format!("\"{}\"", Self::shown(value))
    }

    fn shown(value: &str) -> String {
        let shown = value.chars().take(QUOTED_LENGTH_MAX);
        let shown: String =
            shown.map(|it| if matches!(it, ' '..='~') { it } else { '?' }).collect();
        if value.len() > QUOTED_LENGTH_MAX { shown + "..." } else { shown }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; it can be {}", self.setting, self.why, self.can_be)
    }
}

impl Choice {
    /// Returns this choice with some settings changed, given as names and values.
    ///
    /// # Errors
    /// A setting is invalid, occurs twice, or contradicts the others.
    pub fn with<'a>(
        &self,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Wrong> {
        let mut choice = self.clone();
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in settings {
            if seen.contains(&name) {
                return Err(Wrong::new(name, "it stands there twice".to_owned(), "said once"));
            }
            // One of `SETTINGS`, or the loop ends: so there are at most eight.
            seen.push(name);
            choice.set(name, value)?;
        }
        choice.fits(&seen)?;
        Ok(choice)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Wrong> {
        if value.len() > VALUE_LENGTH_MAX {
            let why = format!("its value has {} bytes", value.len());
            return Err(Wrong::new(name, why, format!("{VALUE_LENGTH_MAX} bytes long at most")));
        }
        match name {
            "size" => self.size = size(value)?,
            "rate" => self.rate = rate(value)?,
            "kbits" => self.kbits = kbits(value)?,
            "format" => self.format = format(value)?,
            "palette" => self.palette = Palette::parse(value)?,
            "dither" => self.dither = Dither::parse(value)?,
            "layout" => self.layout = Layout::parse(value)?,
            "quality" => self.quality = quality(value)?,
            _ => {
                let why = "there is no such setting".to_owned();
                return Err(Wrong::new(&Wrong::shown(name), why, format!("one of {SETTINGS}")));
            }
        }
        Ok(())
    }

    /// Checks that the settings fit together; `said` lists those that were set now.
    fn fits(&self, said: &[&str]) -> Result<(), Wrong> {
        let of_the_other: &[&str] = match self.format {
            Format::Frames => &["quality"],
            Format::Mjpeg => &["palette", "dither", "layout"],
        };
        if let Some(name) = said.iter().find(|name| of_the_other.contains(name)) {
            let why = format!("it means nothing when the format is {}", self.format.name());
            return Err(Wrong::new(name, why, "left out"));
        }
        if self.format == Format::Mjpeg {
            return Ok(());
        }
        if self.layout == Layout::Pages && self.palette.bits() != 1 {
            let why = "pages are for one bit a pixel".to_owned();
            return Err(Wrong::new("layout", why, "rows or rows-lsb with this palette"));
        }
        let pixels = u32::from(self.size.width) * u32::from(self.size.height);
        let most = PIXELS_MAX / self.weight();
        if pixels > most {
            let why = format!("{} has {pixels} pixels", self.size);
            let can_be = match self.weight() {
                1 => format!("{most} pixels (800x480) at most, or larger with format=mjpeg"),
                _ => format!("{most} pixels at most with colours and dither=floyd"),
            };
            return Err(Wrong::new("size", why, can_be));
        }
        Ok(())
    }

    /// Returns the number of pixels that each one counts for in the limits of a call.
    pub fn weight(&self) -> u32 {
        let is_slow = self.dither == Dither::Floyd && self.palette.greys().is_none();
        if is_slow { SLOW_WEIGHT } else { 1 }
    }

    /// Returns the argument for the node's function (docs/reference/stream-functions.md): two choices
    /// with the same text are equal to the node.
    pub fn argument(&self) -> String {
        let Self { size: Size { width, height }, rate, .. } = self;
        let head = format!("width={width} height={height} rate={rate}");
        match (self.format, self.palette.greys()) {
            (Format::Frames, Some(_)) => format!("{head} pixels=gray8"),
            (Format::Frames, None) => format!("{head} pixels=rgb24"),
            (Format::Mjpeg, _) => format!("{head} pixels=mjpeg quality={}", self.quality),
        }
    }
}

fn size(value: &str) -> Result<Size, Wrong> {
    let can_be = || {
        format!(
            "WIDTHxHEIGHT from {WIDTH_MIN}x{HEIGHT_MIN} to {WIDTH_MAX}x{HEIGHT_MAX}, as in 160x120"
        )
    };
    let wrong = |why| Err(Wrong::new("size", why, can_be()));
    let sides = value.split_once('x').map(|(width, height)| (number(width), number(height)));
    let Some((Some(width), Some(height))) = sides else {
        return wrong(format!("{} is no size", Wrong::quoted(value)));
    };
    let in_range = |side: u32, least: u16, most: u16| {
        u16::try_from(side).ok().filter(|side| (least..=most).contains(side))
    };
    let width = in_range(width, WIDTH_MIN, WIDTH_MAX);
    let height = in_range(height, HEIGHT_MIN, HEIGHT_MAX);
    match (width, height) {
        (Some(width), Some(height)) => Ok(Size { width, height }),
        _ => wrong(format!("{value} is out of its range")),
    }
}

fn rate(value: &str) -> Result<Rate, Wrong> {
    let wrong = || {
        let why = format!("{} is no rate", Wrong::quoted(value));
        Wrong::new("rate", why, "pictures a second from 1 to 60, as in 10 or 12.5")
    };
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    if fraction.is_empty() || fraction.len() > 3 {
        return Err(wrong());
    }
    let whole = number(whole).filter(|whole| *whole <= RATE_MAX).ok_or_else(wrong)?;
    let thousandths = number(&format!("{fraction:0<3}")).ok_or_else(wrong)?;
    let rate = whole * 1_000 + thousandths;
    if (RATE_MIN..=RATE_MAX).contains(&rate) { Ok(Rate(rate)) } else { Err(wrong()) }
}

fn kbits(value: &str) -> Result<Option<u32>, Wrong> {
    if value == "any" {
        return Ok(None);
    }
    match number(value).filter(|kbits| (KBITS_MIN..=KBITS_MAX).contains(kbits)) {
        Some(kbits) => Ok(Some(kbits)),
        None => {
            let why = format!("{} is no byte rate", Wrong::quoted(value));
            let can_be = format!("any, or kbit/s from {KBITS_MIN} to {KBITS_MAX}");
            Err(Wrong::new("kbits", why, can_be))
        }
    }
}

fn format(value: &str) -> Result<Format, Wrong> {
    match value {
        "frames" => Ok(Format::Frames),
        "mjpeg" => Ok(Format::Mjpeg),
        _ => {
            let why = format!("{} is no format", Wrong::quoted(value));
            Err(Wrong::new("format", why, "frames or mjpeg"))
        }
    }
}

fn quality(value: &str) -> Result<u8, Wrong> {
    let quality = number(value).and_then(|quality| u8::try_from(quality).ok());
    quality.filter(|quality| (QUALITY_MIN..=QUALITY_MAX).contains(quality)).ok_or_else(|| {
        let why = format!("{} is no quality", Wrong::quoted(value));
        Wrong::new("quality", why, format!("{QUALITY_MIN}, the best, to {QUALITY_MAX}"))
    })
}

/// Parses digits only.
fn number(text: &str) -> Option<u32> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(settings: &[(&str, &str)]) -> Result<Choice, Wrong> {
        Choice::default().with(settings.iter().copied())
    }

    #[test]
    fn settings_change_what_they_name() {
        assert_eq!(with(&[]).unwrap(), Choice::default());
        let choice = with(&[
            ("size", "320x240"),
            ("rate", "12.5"),
            ("kbits", "500"),
            ("palette", "bw"),
            ("dither", "floyd"),
            ("layout", "pages"),
        ])
        .unwrap();
        assert_eq!(choice.size, Size { width: 320, height: 240 });
        assert_eq!(choice.kbits, Some(500));
        assert_eq!((choice.palette, choice.dither), (Palette::Bw, Dither::Floyd));
        assert_eq!(choice.layout, Layout::Pages);
        let mjpeg = with(&[("size", "1920x1080"), ("format", "mjpeg"), ("quality", "31")]).unwrap();
        assert_eq!((mjpeg.format, mjpeg.quality), (Format::Mjpeg, 31));
        let any = Choice { kbits: Some(3), ..Choice::default() };
        assert_eq!(any.with([("kbits", "any")]).unwrap().kbits, None);
    }

    #[test]
    fn a_choice_is_encoded_as_the_nodes_transcode_argument() {
        for (settings, text) in [
            (&[][..], "width=160 height=120 rate=10 pixels=gray8"),
            (
                &[("palette", "rgb332"), ("rate", "29.970")],
                "width=160 height=120 rate=29.97 pixels=rgb24",
            ),
            (&[("palette", "000000,ffffff")], "width=160 height=120 rate=10 pixels=rgb24"),
            (
                &[("format", "mjpeg"), ("size", "800x600"), ("rate", "1.005")],
                "width=800 height=600 rate=1.005 pixels=mjpeg quality=5",
            ),
        ] {
            assert_eq!(with(settings).unwrap().argument(), text);
        }
        let module_only = with(&[("kbits", "9"), ("palette", "bw"), ("dither", "none")]).unwrap();
        assert_eq!(module_only.argument(), Choice::default().argument());
    }

    #[test]
    fn a_setting_that_means_nothing_is_refused_and_says_what_it_can_be() {
        let long = "0".repeat(VALUE_LENGTH_MAX + 1);
        for (settings, setting, says) in [
            (&[("size", "160")][..], "size", "\"160\" is no size"),
            (&[("size", "160X120")], "size", "is no size"),
            (&[("size", "+160x120")], "size", "is no size"),
            (&[("size", "15x120")], "size", "15x120 is out of its range"),
            (&[("size", "1921x120")], "size", "1921x120 is out of its range; it can be"),
            (&[("size", "70000x120")], "size", "out of its range"),
            (&[("size", "9999999999x120")], "size", "is no size"),
            (&[("size", "801x480")], "size", "801x480 has 384480 pixels; it can be 384000"),
            (
                &[("size", "480x401"), ("palette", "rgb565"), ("dither", "floyd")],
                "size",
                "480x401 has 192480 pixels; it can be 192000 pixels at most with colours and dither",
            ),
            (&[("rate", "0")], "rate", "from 1 to 60"),
            (&[("rate", "60.001")], "rate", "from 1 to 60"),
            (&[("rate", "12,5")], "rate", "\"12,5\" is no rate"),
            (&[("rate", "12.")], "rate", "is no rate"),
            (&[("rate", "1.2345")], "rate", "is no rate"),
            (&[("rate", "4294968")], "rate", "is no rate"),
            (&[("kbits", "0")], "kbits", "any, or kbit/s from 1 to"),
            (&[("kbits", "-1")], "kbits", "is no byte rate"),
            (&[("format", "gif")], "format", "frames or mjpeg"),
            (&[("palette", "pink")], "palette", "is no palette"),
            (&[("dither", "much")], "dither", "none, ordered or floyd"),
            (&[("layout", "columns")], "layout", "rows, rows-lsb or pages"),
            (&[("layout", "pages")], "layout", "one bit a pixel"),
            (&[("quality", "5")], "quality", "nothing when the format is frames"),
            (&[("format", "mjpeg"), ("dither", "none")], "dither", "when the format is mjpeg"),
            (&[("format", "mjpeg"), ("quality", "1")], "quality", "2, the best, to 31"),
            (&[("rate", "9"), ("rate", "9")], "rate", "twice"),
            (&[("colour", "9")], "colour", "no such setting; it can be one of size, rate"),
            (&[("kbits", long.as_str())], "kbits", "2049 bytes"),
        ] {
            let wrong = with(settings).unwrap_err();
            assert_eq!(wrong.setting, setting, "{wrong}");
            assert!(wrong.to_string().contains(says), "{wrong}");
        }
        let wrong = with(&[("dither", &"ä\n".repeat(50))]).unwrap_err().to_string();
        assert!(wrong.contains(&"?".repeat(40)) && wrong.contains("?..."), "{wrong}");
    }

    proptest! {
        #[test]
        fn any_setting_is_valid_or_refused_with_the_valid_values(name in "size|rate|kbits|format|palette|dither|layout|quality|\\PC*", value in "[0-9x.,a-f]{0,20}|\\PC{0,60}") {
            match with(&[(&name, &value)]) {
                // A valid choice has a valid argument.
                Ok(choice) => prop_assert!(choice.argument().is_ascii()),
                Err(wrong) => prop_assert!(!wrong.can_be.is_empty()),
            }
        }

        #[test]
        fn rates_are_read_as_they_are_written(thousandths in RATE_MIN..=RATE_MAX) {
            let rate = Rate(thousandths);
            prop_assert_eq!(super::rate(&rate.to_string()), Ok(rate));
        }
    }
}
