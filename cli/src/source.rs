//! Source lines of a module, from its debug information (DWARF in custom sections). A module
//! without debug information has none.

use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use wasmparser::{Parser, Payload};

/// Debug information of one module.
pub struct Lines<'a> {
    context: Context<EndianSlice<'a, LittleEndian>>,
    /// Offset of the code section's content in the module; DWARF addresses count from there.
    code: u64,
}

impl<'a> Lines<'a> {
    /// Reads the debug information of a valid module; `None` when it cannot be read.
    #[must_use]
    pub fn read(module: &'a [u8]) -> Option<Self> {
        let mut sections = Vec::new();
        let mut code = None;
        for payload in Parser::new(0).parse_all(module) {
            match payload.ok()? {
                Payload::CodeSectionStart { range, .. } => code = Some(range.start as u64),
                Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                    sections.push((section.name().to_owned(), section.data()));
                }
                _ => {}
            }
        }
        if sections.is_empty() {
            return None;
        }
        let find = |id: SectionId| -> Result<_, addr2line::gimli::Error> {
            let found = sections.iter().find(|(name, _)| name == id.name());
            Ok(EndianSlice::new(found.map_or(&[][..], |(_, data)| data), LittleEndian))
        };
        let context = Context::from_dwarf(Dwarf::load(find).ok()?).ok()?;
        Some(Self { context, code: code? })
    }

    /// Returns `file:line` of a byte offset in the module.
    #[must_use]
    pub fn at(&self, place: u32) -> Option<String> {
        let address = u64::from(place).checked_sub(self.code)?;
        let location = self.context.find_location(address).ok()??;
        Some(format!("{}:{}", location.file?, location.line?))
    }
}
