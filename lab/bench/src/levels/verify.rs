//! Check of a function against its test vectors.

use anyhow::Result;

use super::{Runner, State, Vectors};

/// Difference from the vectors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {found}, not {expected}")]
pub struct Difference {
    /// Packet, or entry of a table, that differs.
    pub what: String,
    /// Expected value.
    pub expected: String,
    /// Actual value.
    pub found: String,
}

/// Runs all packets through a new instance and compares every result, then every entry of every
/// table with the vectors or its initial value.
///
/// # Errors
/// The function cannot be run.
pub fn verify(runner: &mut dyn Runner, vectors: &Vectors) -> Result<Vec<Difference>> {
    let before = entries(runner, vectors)?;
    let mut differences = Vec::new();
    let mut compare = |what: &dyn Fn() -> String, expected: String, found: String| {
        if expected != found {
            differences.push(Difference { what: what(), expected, found });
        }
    };
    for packet in &vectors.packets {
        let handled = runner.handle(&packet.frame, packet.now_ms)?;
        let of = |kind: &str| format!("{kind} of '{}'", packet.about);
        let word = |verdict: u32| format!("{verdict:#x}");
        compare(&|| of("the verdict"), word(packet.verdict), word(handled.verdict));
        let bytes = (hex::encode(packet.after()), hex::encode(&handled.packet));
        compare(&|| of("the bytes"), bytes.0, bytes.1);
    }
    for (old, new) in before.iter().zip(entries(runner, vectors)?) {
        let same = |state: &&State| state.table == old.table && state.entry == old.entry;
        let expected = vectors.states.iter().find(same).unwrap_or(old);
        let what = || format!("entry {} of table {}", old.entry, old.table);
        compare(&what, hex::encode(&expected.bytes), hex::encode(&new.bytes));
    }
    Ok(differences)
}

/// Returns all entries of all tables.
fn entries(runner: &mut dyn Runner, vectors: &Vectors) -> Result<Vec<State>> {
    let mut all = Vec::new();
    for table in &vectors.tables {
        for entry in 0..table.count {
            let bytes = runner.entry(table, entry)?;
            all.push(State { table: table.name.clone(), entry, bytes });
        }
    }
    Ok(all)
}
