//! Rust files as flat token lists: what they say in code, without comments and strings.
//!
//! The reader knows words and where they stand, no types and no names' meanings: a
//! check that needs those belongs to clippy.

use proc_macro2::{TokenStream, TokenTree};

/// Token of Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Text; a literal is `""`, brackets are tokens of their own.
    pub text: String,
    /// Line, counted from 1.
    pub line: usize,
    /// True in an item under `#[cfg(test)]` or `#[test]`.
    pub test: bool,
}

/// Rust file as tokens and items.
#[derive(Debug)]
pub struct Source {
    tokens: Vec<Token>,
}

/// The file has no balanced brackets, or text that is no token.
#[derive(Debug)]
pub struct Unreadable {
    /// Line at which reading stopped.
    pub line: usize,
}

impl Source {
    /// Reads one file.
    ///
    /// # Errors
    /// The text is no list of Rust tokens.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
            Unreadable { line: error.span().start().line }
        })?;
        let mut tokens = Vec::new();
        flatten(stream, false, &mut tokens);
        Ok(Self { tokens })
    }

    /// Returns the first token of each place at which the words follow each other, such as
    /// `["Instant", ":", ":", "now"]`.
    pub fn find<'a>(&'a self, words: &'a [&str]) -> impl Iterator<Item = &'a Token> {
        self.tokens
            .windows(words.len())
            .filter(move |window| window.iter().zip(words).all(|(token, word)| token.text == *word))
            .filter_map(|window| window.first())
    }

    /// Returns true if the words follow each other somewhere.
    pub fn has(&self, words: &[&str]) -> bool {
        self.find(words).next().is_some()
    }

    /// Tokens between the brackets that open behind such words, brackets of them included.
    pub fn within<'a>(&'a self, words: &'a [&str]) -> impl Iterator<Item = &'a Token> {
        let mut depth = 0_usize;
        self.tokens.iter().enumerate().filter_map(move |(at, token)| {
            let begins = self.tokens[..at].ends_with_words(words);
            match token.text.as_str() {
                "{" | "(" | "[" if depth > 0 || begins => depth += 1,
                "}" | ")" | "]" if depth > 0 => depth -= 1,
                _ => return (depth > 0).then_some(token),
            }
            None
        })
    }

    /// Names of modules in files of their own that are built for tests only.
    pub fn test_modules(&self) -> impl Iterator<Item = &str> {
        self.tokens
            .windows(3)
            .filter(|window| window[0].test && window[0].text == "mod" && window[2].text == ";")
            .map(|window| window[1].text.as_str())
    }

    /// Returns true when the whole file is built for tests only.
    pub fn is_test(&self) -> bool {
        self.tokens.iter().all(|token| token.test)
    }

    /// Returns the number of lines with code, of all or of tests only.
    pub fn lines(&self, tests_only: bool) -> usize {
        let tokens = self.tokens.iter().filter(|token| token.test || !tests_only);
        tokens.map(|token| token.line).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Says that the whole file is built for tests only.
    pub fn mark_as_test(&mut self) {
        self.tokens.iter_mut().for_each(|token| token.test = true);
    }

    /// Names of functions under an attribute that ends in `test`, such as `#[tokio::test]`.
    pub fn tests(&self) -> Vec<&str> {
        let mut names = Vec::new();
        let mut attribute = false;
        for (at, token) in self.tokens.iter().enumerate() {
            let text = |offset: usize| self.tokens.get(at + offset).map_or("", |t| t.text.as_str());
            match token.text.as_str() {
                "test" if matches!(text(1), "]" | "(") => attribute = true,
                "fn" if attribute => {
                    names.push(text(1));
                    attribute = false;
                }
                "{" | ";" => attribute = false,
                _ => {}
            }
        }
        names
    }
}

/// Appends the tokens of a stream; brackets become tokens. `test` is inherited.
fn flatten(stream: TokenStream, test: bool, out: &mut Vec<Token>) {
    let mut item_is_test = test;
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: String, line| out.push(Token { text, line, test: item_is_test });
        match tree {
            TokenTree::Ident(ident) => push(ident.to_string(), line),
            TokenTree::Punct(punct) => {
                push(punct.to_string(), line);
                if punct.as_char() == ';' {
                    item_is_test = test;
                }
            }
            TokenTree::Literal(_) => push(String::new(), line),
            TokenTree::Group(group) => {
                let (open, close) = brackets(group.delimiter());
                push(open.to_owned(), line);
                let body = group.stream();
                let marks_test = open == "[" && is_test_attribute(&body);
                flatten(body, item_is_test, out);
                let end = group.span_close().start().line;
                out.push(Token { text: close.to_owned(), line: end, test: item_is_test });
                if open == "{" {
                    item_is_test = test;
                } else if marks_test {
                    item_is_test = true;
                }
            }
        }
    }
}

trait Words {
    fn ends_with_words(&self, words: &[&str]) -> bool;
}

impl Words for [Token] {
    fn ends_with_words(&self, words: &[&str]) -> bool {
        let last = self.len().checked_sub(words.len()).map(|from| &self[from..]);
        last.is_some_and(|last| last.iter().zip(words).all(|(token, word)| token.text == *word))
    }
}

fn brackets(delimiter: proc_macro2::Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        proc_macro2::Delimiter::Parenthesis => ("(", ")"),
        proc_macro2::Delimiter::Brace => ("{", "}"),
        proc_macro2::Delimiter::Bracket => ("[", "]"),
        proc_macro2::Delimiter::None => ("", ""),
    }
}

/// `test`, `tokio::test(…)`, `cfg(test)`, `cfg(all(test, …))`.
fn is_test_attribute(attribute: &TokenStream) -> bool {
    let text = attribute.to_string().replace(' ', "");
    text == "test"
        || text.ends_with("::test")
        || text.contains("::test(")
        || text == "cfg(test)"
        || text.starts_with("cfg(all(test,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::parse(text).unwrap()
    }

    #[test]
    fn comments_and_strings_are_no_words() {
        let source = source("// unsafe\n/* unsafe */ fn f() { g(\"unsafe\", 'u', r#\"unsafe\"#) }");
        assert!(!source.has(&["unsafe"]));
    }

    #[test]
    fn words_are_found_with_their_line() {
        let source = source("fn f() {\n    let now = Instant::now();\n}\n");
        let found: Vec<_> = source.find(&["Instant", ":", ":", "now"]).map(|t| t.line).collect();
        assert_eq!(found, [2]);
    }

    #[test]
    fn items_under_cfg_test_are_tests() {
        let source = source("#[cfg(test)]\nmod tests { fn a() { one() } }\nfn b() { two() }");
        assert!(source.find(&["one"]).all(|token| token.test));
        assert!(source.find(&["two"]).all(|token| !token.test));
    }

    #[test]
    fn a_test_use_does_not_make_the_rest_a_test() {
        let source = source("#[cfg(test)]\nuse std::fs;\nfn b() { two() }");
        assert!(source.find(&["two"]).all(|token| !token.test));
    }

    #[test]
    fn modules_for_tests_only_are_listed() {
        let source = source("mod a;\n#[cfg(test)]\nmod b;\nmod c;\n#[cfg(test)]\nmod d {}");
        assert_eq!(source.test_modules().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn names_of_tests_are_listed_also_inside_macros() {
        let text = "#[test]\nfn one() {}\n#[tokio::test]\nasync fn two() {}\nfn three() {}\n\
                    proptest! { #[test] fn four(x in 0..1u8) {} }";
        assert_eq!(source(text).tests(), ["one", "two", "four"]);
    }
}
