//! Reader of one TOML table, field by field, so that every error has its line.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::manifest::error::ManifestError;
use crate::meant::Meant;

/// Table of the manifest.
pub(crate) struct Fields<'a> {
    /// Whole text, for line numbers.
    text: &'a str,
    table: &'a DeTable<'a>,
    /// Name of the table in messages.
    within: String,
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(text: &'a str, table: &'a DeTable<'a>, within: String) -> Self {
        Self { text, table, within }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the names of the fields present.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.table.iter().map(|(key, _)| key.get_ref().as_ref())
    }

    /// Rejects a field that is not in `known`.
    pub(crate) fn known(&self, known: &[&str]) -> Result<(), ManifestError> {
        match self.table.iter().find(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
            None => Ok(()),
            Some((key, _)) => Err(ManifestError::UnknownField {
                line: line_at(self.text, key.span().start),
                within: self.within.clone(),
                field: key.get_ref().chars().take(64).collect(),
                meant: Meant::new(key.get_ref(), known.iter().copied()),
            }),
        }
    }

    pub(crate) fn missing(&self, field: &'static str, example: &'static str) -> ManifestError {
        ManifestError::Missing { within: self.within.clone(), field, example }
    }

    /// Returns the line of a field.
    pub(crate) fn line_of(&self, field: &str) -> usize {
        self.spanned(field).map_or(1, |value| line_at(self.text, value.span().start))
    }

    pub(crate) fn value(&self, field: &str) -> Option<&'a DeValue<'a>> {
        self.spanned(field).map(Spanned::get_ref)
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, ManifestError> {
        self.typed(field, "text in quotes", |value| value.as_str())
    }

    /// Returns text that is safe to print: one line, no control characters.
    pub(crate) fn line(
        &self,
        field: &str,
        length_max: usize,
    ) -> Result<Option<String>, ManifestError> {
        let Some(text) = self.text(field)? else { return Ok(None) };
        if text.len() > length_max || text.chars().any(char::is_control) {
            let (line, field) = (self.line_of(field), field.into());
            return Err(ManifestError::Text { line, field, length_max });
        }
        Ok(Some(text.into()))
    }

    pub(crate) fn integer(&self, field: &str) -> Result<Option<i64>, ManifestError> {
        self.typed(field, "a whole number", |value| {
            let integer = value.as_integer()?;
            i64::from_str_radix(integer.as_str(), integer.radix()).ok()
        })
    }

    /// Returns a whole number from `min` to `max`.
    pub(crate) fn number(
        &self,
        field: &str,
        min: u32,
        max: u32,
    ) -> Result<Option<u32>, ManifestError> {
        let Some(value) = self.integer(field)? else { return Ok(None) };
        match u32::try_from(value) {
            Ok(value) if (min..=max).contains(&value) => Ok(Some(value)),
            _ => Err(ManifestError::Range {
                line: self.line_of(field),
                field: field.into(),
                value: value.to_string(),
                min,
                max,
            }),
        }
    }

    pub(crate) fn table(&self, field: &str) -> Result<Option<Fields<'a>>, ManifestError> {
        let table = self.typed(field, "a table", |value| value.as_table())?;
        // "[parameters]" within the top level, "[parameters.dscp]" within that.
        let within = match self.within.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(outer) => format!("[{outer}.{field}]"),
            None => format!("[{field}]"),
        };
        Ok(table.map(|table| Fields::new(self.text, table, within)))
    }

    /// Returns the error for a word that is not among the choices.
    pub(crate) fn no_choice<const N: usize>(
        &self,
        field: &str,
        word: &str,
        all: [&str; N],
    ) -> ManifestError {
        ManifestError::Choice {
            line: self.line_of(field),
            field: field.into(),
            value: word.chars().take(32).collect(),
            meant: Meant::new(word, all),
        }
    }

    /// Returns a list of words out of `all`, without repetition.
    pub(crate) fn choices<T: Copy + PartialEq>(
        &self,
        field: &str,
        all: &[T],
        word_of: fn(T) -> &'static str,
    ) -> Result<Vec<T>, ManifestError> {
        let list = self.typed(field, "a list of words", |value| value.as_array())?;
        let mut chosen = Vec::new();
        for item in list.into_iter().flat_map(|list| list.iter()) {
            let line = line_at(self.text, item.span().start);
            let word = item.get_ref().as_str().ok_or_else(|| ManifestError::Type {
                line,
                field: field.into(),
                found: item.get_ref().type_str(),
                wanted: "a list of words in quotes".into(),
            })?;
            let value = || word.chars().take(32).collect::<String>();
            let Some(choice) = all.iter().copied().find(|choice| word_of(*choice) == word) else {
                let meant = Meant::new(word, all.iter().map(|choice| word_of(*choice)));
                return Err(ManifestError::Choice {
                    line,
                    field: field.into(),
                    value: value(),
                    meant,
                });
            };
            if chosen.contains(&choice) {
                return Err(ManifestError::Twice { line, field: field.into(), value: value() });
            }
            chosen.push(choice);
        }
        Ok(chosen)
    }

    fn spanned(&self, field: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.iter().find(|(key, _)| key.get_ref() == field).map(|(_, value)| value)
    }

    fn typed<T>(
        &self,
        field: &str,
        wanted: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, ManifestError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| ManifestError::Type {
            line: self.line_of(field),
            field: field.into(),
            found: value.type_str(),
            wanted: wanted.into(),
        })
    }
}

/// Returns the line of byte `at` of `text`, counted from 1.
pub(crate) fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}
