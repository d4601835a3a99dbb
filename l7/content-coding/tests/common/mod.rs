//! Generated bodies. The output is decoded by `l7_testkit`, and in `programs.rs` by other programs.

use testbase::Chance;

/// Returns deterministic text with the repetitions of web pages: tags, words, numbers.
pub fn text(length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "<div class=\"row\">",
        "</div>\n",
        "<a href=\"/item/",
        "\">",
        "</a> ",
        "price ",
        "the ",
        "function ",
        "return ",
        "router ",
        "of the ",
        "packet",
        "<li>",
        "</li>\n",
        "const ",
        "= ",
    ];
    let mut text = Vec::with_capacity(length + 32);
    let mut random = Chance(7);
    while text.len() < length {
        let draw = random.draw();
        text.extend_from_slice(WORDS[(draw % 16) as usize].as_bytes());
        if draw & 0x300 == 0 {
            text.extend_from_slice((draw >> 40).to_string().as_bytes());
        }
    }
    text.truncate(length);
    text
}

/// Returns incompressible bytes.
pub fn noise(length: usize) -> Vec<u8> {
    let mut random = Chance(length as u64 + 1);
    (0..length).map(|_| (random.draw() >> 33) as u8).collect()
}
