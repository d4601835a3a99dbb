//! Reader of TOML tables: each refusal names the line, the key and a suggestion. It knows TOML, not
//! topologies.

use std::ops::Range;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::error::{Place, PlanError};
use crate::suggest::did_you_mean_or_list;

/// File being read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'t> {
    pub(crate) file: &'t str,
    pub(crate) text: &'t str,
}

impl<'t> Source<'t> {
    /// Parses the whole file as one table.
    pub(crate) fn parse(self) -> Result<DeTable<'t>, PlanError> {
        DeTable::parse(self.text).map(Spanned::into_inner).map_err(|error| PlanError::Syntax {
            place: self.place(error.span().unwrap_or(0..0)),
            problem: error.message().to_owned(),
        })
    }

    fn place(self, span: Range<usize>) -> Place {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        Place { file: self.file.to_owned(), line }
    }
}

/// Table of the file with the keys that it may have.
pub(crate) struct Fields<'a, 't> {
    source: Source<'t>,
    table: &'a DeTable<'t>,
    what: &'static str,
    pub(crate) place: Place,
}

/// Value with its position in the file.
pub(crate) struct Field<'a, 't> {
    source: Source<'t>,
    key: &'static str,
    value: &'a DeValue<'t>,
    span: Range<usize>,
}

impl<'a, 't> Fields<'a, 't> {
    /// Returns the fields of the whole file, which may have the `allowed` keys.
    pub(crate) fn root(
        source: Source<'t>,
        table: &'a DeTable<'t>,
        allowed: &[&str],
    ) -> Result<Self, PlanError> {
        Self::new(source, table, "the file", source.place(0..0), allowed)
    }

    fn new(
        source: Source<'t>,
        table: &'a DeTable<'t>,
        what: &'static str,
        place: Place,
        allowed: &[&str],
    ) -> Result<Self, PlanError> {
        // The first in the file, not the first of the alphabet.
        let unknown = table.keys().filter(|key| !allowed.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|key| key.span().start) {
            Some(key) => Err(PlanError::UnknownKey {
                place: source.place(key.span()),
                key: key.get_ref().to_string(),
                table: what,
                suggestion: did_you_mean_or_list(key.get_ref(), allowed.iter().copied()),
            }),
            None => Ok(Self { source, table, what, place }),
        }
    }

    pub(crate) fn get(&self, key: &'static str) -> Option<Field<'a, 't>> {
        let (_, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(Field { source: self.source, key, value: value.get_ref(), span: value.span() })
    }

    pub(crate) fn required(
        &self,
        key: &'static str,
        example: &'static str,
    ) -> Result<Field<'a, 't>, PlanError> {
        self.get(key).ok_or_else(|| PlanError::MissingKey {
            place: self.place.clone(),
            table: self.what,
            key,
            example,
        })
    }

    /// Returns the tables of an array of tables, such as all `[[host]]`; none when there is no such
    /// key.
    pub(crate) fn tables(
        &self,
        key: &'static str,
        what: &'static str,
        allowed: &[&str],
    ) -> Result<Vec<Fields<'a, 't>>, PlanError> {
        let Some(field) = self.get(key) else { return Ok(Vec::new()) };
        let array = match field.value {
            DeValue::Array(array) => array,
            _ => return Err(field.is_no(expected_array_of(key))),
        };
        array
            .iter()
            .map(|element| match element.get_ref() {
                DeValue::Table(table) => {
                    let place = self.source.place(element.span());
                    Fields::new(self.source, table, what, place, allowed)
                }
                _ => Err(field.is_no(expected_array_of(key))),
            })
            .collect()
    }
}

fn expected_array_of(key: &str) -> &'static str {
    match key {
        "host" => "tables written [[host]]",
        "router" => "tables written [[router]]",
        _ => "tables written [[link]]",
    }
}

impl<'a, 't> Field<'a, 't> {
    pub(crate) fn place(&self) -> Place {
        self.source.place(self.span.clone())
    }

    pub(crate) fn text(&self) -> Result<&'a str, PlanError> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.is_no("a text in quotes")),
        }
    }

    /// Returns a whole number within bounds; `why` ends the sentence that gives them.
    pub(crate) fn number(&self, range: (u64, u64), why: &'static str) -> Result<u64, PlanError> {
        let DeValue::Integer(number) = self.value else {
            return Err(self.is_no("a whole number"));
        };
        let (min, max) = range;
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(PlanError::Range {
                place: self.place(),
                key: self.key,
                found: number.to_string(),
                min,
                max,
                why,
            }),
        }
    }

    /// Returns the texts of an array of texts, each with its own position.
    pub(crate) fn texts(&self) -> Result<Vec<(&'a str, Place)>, PlanError> {
        const EXPECTED: &str = "an array of texts in quotes";
        let DeValue::Array(array) = self.value else { return Err(self.is_no(EXPECTED)) };
        let array: &DeArray<'_> = array;
        array
            .iter()
            .map(|element| match element.get_ref() {
                DeValue::String(text) => Ok((text.as_ref(), self.source.place(element.span()))),
                _ => Err(self.is_no(EXPECTED)),
            })
            .collect()
    }

    /// Returns a table whose keys are checked elsewhere.
    pub(crate) fn foreign_table(&self) -> Result<toml::Table, PlanError> {
        if !matches!(self.value, DeValue::Table(_)) {
            return Err(self.is_no("a table"));
        }
        let value = Spanned::new(self.span.clone(), self.value.clone());
        toml::Table::deserialize(value.into_deserializer()).map_err(|error| PlanError::Syntax {
            place: self.source.place(error.span().unwrap_or(self.span.clone())),
            problem: error.message().to_owned(),
        })
    }

    fn is_no(&self, expected: &'static str) -> PlanError {
        PlanError::Type {
            place: self.place(),
            key: self.key.to_owned(),
            expected,
            found: format!("of type {}", self.value.type_str()),
        }
    }
}
