//! Tests of the loader, and of the committed files.

use super::*;

/// Returns a file with one module, and `row` as its case.
fn file(row: &str) -> String {
    format!(
        "[modules.m]\nmanifest = 'window = 0'\nwat = '''\n(memory (export \"memory\") 1)\n\
         (func (export \"on_packet\") (result i32) (i32.const 0))'''\n[[cases]]\n{row}\n"
    )
}

const GOOD: &str = "name = 'n'\nmodule = 'm'\nframe = 'ipv4 udp'\nends = 'pass'";

#[test]
fn every_file_of_the_folder_is_in_the_table() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/conformance");
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<_> = names.filter(|name| name.ends_with(".toml")).collect();
    found.sort();
    assert_eq!(found, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}

#[test]
fn the_table_loads_and_no_name_is_in_it_twice() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() > 100, "only {} cases", cases.len());
}

#[test]
fn a_case_says_what_it_expects_by_default() {
    let case = load("f", &file(GOOD)).unwrap().remove(0);
    assert_eq!((case.file.as_str(), case.line), ("f", 7));
    assert_eq!(case.expected, Outcome::of(Ending::Pass(0), Some(case.frame.clone())));
    assert!(case.is_routable());
}

#[test]
fn faults_have_their_line() {
    let line = |row: &str| load("f", &file(row)).unwrap_err().to_string();
    for (from, to, expected) in [
        ("'ipv4 udp'", "'ipv4 upd'", "f:9: 'upd' is no word of a frame"),
        ("'pass'", "'pas'", "f:10: 'pas' is no ending"),
        ("module = 'm'", "module = 'x'", "f:8: no module 'x'; the file has m"),
        ("'pass'", "'pass'\nfoo = 1", "f:11: unknown field `foo`"),
        ("'pass'", "'pass'\nevents = [{ code = 1, data = '0' }]", "f:11: an event's data"),
        ("'pass'", "'pass'\nsent = [{ port = 'x', frame = 'y' }]", "f:11: 'y' is no word"),
        ("'pass'", "'pass'\nbefore = [\n'ipv4',\n'z']", "f:13: 'z' is no word"),
        ("'pass'", "'pass", "f:10: "),
    ] {
        let message = line(&GOOD.replace(from, to));
        assert!(message.starts_with(expected), "{message}");
    }
    let twice = load("f", &(file(GOOD) + "[[cases]]\n" + GOOD)).unwrap_err().to_string();
    assert!(twice.starts_with("f:12: a second case is named 'n'"), "{twice}");
    let wat = load("f", &file(GOOD).replace("i32.const 0", "i32.cons 0")).unwrap_err();
    assert!(wat.to_string().starts_with("f:3: the module 'm' is not valid"), "{wat}");
}
