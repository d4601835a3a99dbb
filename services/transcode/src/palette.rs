//! Palettes: values of a display's pixels, and the number of bits.

use crate::choice::Wrong;
use crate::limits::{COLOURS_MAX, COLOURS_MIN};

/// Colour as red, green and blue.
pub type Rgb = [u8; 3];

/// Named palettes, for messages.
pub const NAMES: &str = "bw, grey2, grey4, grey8, web216, rgb332, rgb565, or 2 to 256 colours as \
                         six hex digits each with commas between";

/// Set of values that a pixel can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Palette {
    /// Two values: 0 black, 1 white.
    Bw,
    /// Four greys, 0 black.
    Grey2,
    /// Sixteen greys, 0 black.
    Grey4,
    /// 256 greys, 0 black.
    Grey8,
    /// Six levels of each colour: 36 red + 6 green + blue.
    Web216,
    /// Three bits of red, three of green, two of blue.
    Rgb332,
    /// Five bits of red, six of green, five of blue.
    Rgb565,
    /// Colours of the device's own.
    Colours(Colours),
}

/// Levels of each channel of a grid palette, and the step of each in a pixel's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of levels of red, green and blue.
    pub levels: Rgb,
    /// Step of one level in the value.
    pub steps: [u16; 3],
}

impl Palette {
    /// Parses a name, or a list of colours. The error names the setting `palette`.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        Ok(match text {
            "bw" => Self::Bw,
            "grey2" => Self::Grey2,
            "grey4" => Self::Grey4,
            "grey8" => Self::Grey8,
            "web216" => Self::Web216,
            "rgb332" => Self::Rgb332,
            "rgb565" => Self::Rgb565,
            _ => Self::Colours(Colours::parse(text)?),
        })
    }

    /// Returns the name; `colours` for a device's own.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bw => "bw",
            Self::Grey2 => "grey2",
            Self::Grey4 => "grey4",
            Self::Grey8 => "grey8",
            Self::Web216 => "web216",
            Self::Rgb332 => "rgb332",
            Self::Rgb565 => "rgb565",
            Self::Colours(_) => "colours",
        }
    }

    /// Returns the number in a frame's head.
    pub fn number(&self) -> u8 {
        match self {
            Self::Bw => 1,
            Self::Grey2 => 2,
            Self::Grey4 => 3,
            Self::Grey8 => 4,
            Self::Web216 => 5,
            Self::Rgb332 => 6,
            Self::Rgb565 => 7,
            Self::Colours(_) => 8,
        }
    }

    /// Returns the bits of a pixel: 1, 2, 4, 8 or 16.
    pub fn bits(&self) -> usize {
        match self {
            Self::Bw => 1,
            Self::Grey2 => 2,
            Self::Grey4 => 4,
            Self::Grey8 | Self::Web216 | Self::Rgb332 => 8,
            Self::Rgb565 => 16,
            Self::Colours(Colours(colours)) => match colours.len() {
                0..=2 => 1,
                3..=4 => 2,
                5..=16 => 4,
                _ => 8,
            },
        }
    }

    /// Returns the number of greys; `None` if the palette has colours.
    pub fn greys(&self) -> Option<u16> {
        match self {
            Self::Bw => Some(2),
            Self::Grey2 => Some(4),
            Self::Grey4 => Some(16),
            Self::Grey8 => Some(256),
            _ => None,
        }
    }

    /// Returns the grid of colours; `None` if the palette has greys, or colours without order.
    pub fn grid(&self) -> Option<Grid> {
        match self {
            Self::Web216 => Some(Grid { levels: [6, 6, 6], steps: [36, 6, 1] }),
            Self::Rgb332 => Some(Grid { levels: [8, 8, 4], steps: [32, 4, 1] }),
            Self::Rgb565 => Some(Grid { levels: [32, 64, 32], steps: [2048, 32, 1] }),
            _ => None,
        }
    }
}

/// Device's own colours: 2 to 256. The first has value 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Colours(Vec<Rgb>);

impl Colours {
    /// Parses `rrggbb,rrggbb,…`.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = |why: String| Wrong::new("palette", why, NAMES);
        if !text.contains(',') && text.len() != 6 {
            return Err(wrong(format!("{} is no palette", Wrong::quoted(text))));
        }
        let mut colours = Vec::new();
        for (at, word) in text.split(',').enumerate() {
            if at == COLOURS_MAX {
                return Err(wrong(format!("it has more than {COLOURS_MAX} colours")));
            }
            let colour = colour(word).ok_or_else(|| {
                wrong(format!("colour {}, {}, is no six hex digits", at + 1, Wrong::quoted(word)))
            })?;
            colours.push(colour);
        }
        if colours.len() < COLOURS_MIN {
            return Err(wrong("it has one colour, which is no picture".to_owned()));
        }
        Ok(Self(colours))
    }

    /// Returns the colours, by value.
    pub fn as_slice(&self) -> &[Rgb] {
        &self.0
    }
}

fn colour(word: &str) -> Option<Rgb> {
    let is_hex = word.len() == 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_hex.then(|| u32::from_str_radix(word, 16).ok())??;
    let [_, red, green, blue] = number.to_be_bytes();
    Some([red, green, blue])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn palettes_are_names_or_lists_of_colours() {
        for (text, number, bits) in [
            ("bw", 1, 1),
            ("grey2", 2, 2),
            ("grey4", 3, 4),
            ("grey8", 4, 8),
            ("web216", 5, 8),
            ("rgb332", 6, 8),
            ("rgb565", 7, 16),
            ("000000,FFFFFF", 8, 1),
            ("000000,ff0000,00ff00", 8, 2),
            ("0,1,2,3,4".replace(char::is_numeric, "80a0c0").as_str(), 8, 4),
        ] {
            let palette = Palette::parse(text).unwrap();
            assert_eq!((palette.number(), palette.bits()), (number, bits), "{text}");
        }
        let many = vec!["102030"; 17].join(",");
        assert_eq!(Palette::parse(&many).unwrap().bits(), 8);
        let Palette::Colours(colours) = Palette::parse("ff8001,000000").unwrap() else { panic!() };
        assert_eq!(colours.as_slice(), [[255, 128, 1], [0, 0, 0]]);
    }

    #[test]
    fn what_is_no_palette_is_refused_with_its_place() {
        let many = vec!["102030"; 257].join(",");
        for (text, says) in [
            ("", "is no palette"),
            ("purple", "is no six hex digits"),
            ("greys", "is no palette"),
            ("000000", "one colour"),
            ("000000,12345g", "colour 2, \"12345g\""),
            ("000000,+12345", "colour 2"),
            ("000000,", "colour 2, \"\""),
            ("000000,fffffff", "colour 2"),
            (many.as_str(), "more than 256"),
        ] {
            let error = Palette::parse(text).unwrap_err().to_string();
            assert!(error.contains(says) && error.starts_with("palette: "), "{text}: {error}");
        }
    }
}
