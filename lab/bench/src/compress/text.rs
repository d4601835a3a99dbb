//! Generated text that compresses like text of people: words of very different frequency, repeated
//! phrases, tags. The same in each run.

/// Syllables that words are made of.
const SYLLABLES: [&str; 32] = [
    "ta", "man", "du", "a", "re", "in", "on", "ter", "con", "de", "ti", "ve", "ly", "er", "es",
    "pro", "al", "ma", "ne", "sta", "vi", "lo", "com", "un", "ri", "so", "ment", "ing", "per",
    "ca", "no", "ble",
];
/// Size of the vocabulary; the first words are the most frequent.
const WORDS: usize = 3000;
/// Positions of a thousand at which an earlier phrase is repeated.
const AGAIN_PER_MILLE: u64 = 150;
/// Words of a repeated phrase, from and to.
const PHRASE: std::ops::Range<u64> = 3..9;
/// Words back within which a repeated phrase lies.
const NEAR: usize = 3000;
/// Words of a paragraph.
const PARAGRAPH: u64 = 60;

/// Linear congruential generator (Knuth's MMIX), of which the upper bits are used.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Returns a number below `limit`, small ones more often: by the cube of a fraction.
    fn skewed(&mut self, limit: usize) -> usize {
        (self.fraction().powi(3) * limit as f64) as usize
    }

    /// Returns a number from 0 to below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }
}

/// Returns a page of `length` bytes: paragraphs, lists and links.
pub(crate) fn html(length: usize) -> Vec<u8> {
    html_of(1, length)
}

/// Returns such a page with other words for each seed.
pub(crate) fn html_of(seed: u64, length: usize) -> Vec<u8> {
    let mut text = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><title>A page</title></head>\n<body>\n",
    );
    let mut writer = Writer::new(seed);
    while text.len() < length {
        let heading = writer.words(4);
        text += &format!("<h2 id=\"section-{}\">{heading}</h2>\n<p>", text.len());
        text += &writer.words(PARAGRAPH);
        text += "</p>\n<ul class=\"links\">\n";
        for _ in 0..3 {
            let (to, label) = (writer.words(1), writer.words(3));
            text += &format!("<li><a class=\"link\" href=\"/pages/{to}.html\">{label}</a></li>\n");
        }
        text += "</ul>\n";
    }
    cut(text, length)
}

/// Returns paragraphs of `length` bytes.
pub(super) fn plain(length: usize) -> Vec<u8> {
    let (mut text, mut writer) = (String::new(), Writer::new(2));
    while text.len() < length {
        text += &writer.words(PARAGRAPH);
        text += ".\n\n";
    }
    cut(text, length)
}

fn cut(text: String, length: usize) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.truncate(length);
    bytes
}

/// Writer of words, one after another.
struct Writer {
    random: Random,
    words: Vec<String>,
    /// Indexes of the words written so far.
    written: Vec<usize>,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let word = |_| -> String {
            let syllables = 1 + random.below(4);
            (0..syllables).map(|_| SYLLABLES[random.below(32) as usize]).collect()
        };
        let words = (0..WORDS).map(word).collect();
        Self { random, words, written: Vec::new() }
    }

    fn words(&mut self, count: u64) -> String {
        let mut text: Vec<&str> = Vec::new();
        while (text.len() as u64) < count {
            let phrase = PHRASE.start + self.random.below(PHRASE.end - PHRASE.start);
            let is_again = self.random.below(1000) < AGAIN_PER_MILLE;
            let begin = self.written.len().saturating_sub(NEAR);
            let near = (self.written.len() - begin).max(1);
            let from = begin + self.random.below(near as u64) as usize;
            let words: Vec<usize> = match is_again && self.written.len() > from + phrase as usize {
                true => self.written[from..from + phrase as usize].to_vec(),
                false => vec![self.random.skewed(WORDS)],
            };
            self.written.extend(&words);
            text.extend(words.iter().filter_map(|word| self.words.get(*word)).map(String::as_str));
        }
        text.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::read::GzEncoder;
    use std::io::Read as _;

    #[test]
    fn texts_are_as_compressible_as_those_of_people_and_always_the_same() {
        for (text, length) in [(html as fn(usize) -> Vec<u8>, 25_000), (plain, 1_000_000)] {
            let made = text(length);
            assert_eq!((made.len(), &made), (length, &text(length)));
            let mut coded = Vec::new();
            GzEncoder::new(&made[..], Compression::new(6)).read_to_end(&mut coded).unwrap();
            let ratio = made.len() as f64 / coded.len() as f64;
            assert!((3.0..5.0).contains(&ratio), "{ratio}");
        }
    }
}
