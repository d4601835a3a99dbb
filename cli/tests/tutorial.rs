//! docs/start/tutorial.md typed by the test: each block of commands into one shell, in an empty
//! folder, with the output compared to what the page shows.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Splits the document into its blocks; true marks commands.
fn blocks(text: &str) -> Vec<(bool, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut open, line) {
            (None, "```sh") => open = Some((true, String::new())),
            (None, "```text") => open = Some((false, String::new())),
            (None, _) => assert!(!line.starts_with("```"), "a block of another kind: {line}"),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some((_, block)), line) => *block += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// Masks numbers and digests, which differ from run to run, with the width of their columns.
fn comparable(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let word = word.trim_end_matches(',');
        let is_digest = word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_digit = |c: char| c.is_ascii_digit() || c == '.' || c == '%';
        if is_digest {
            return "DIGEST".to_owned();
        }
        if !word.is_empty() && word.chars().all(is_digit) {
            "N".to_owned()
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Guard that takes the lab down, however the test ends.
struct LabDown(PathBuf);

impl Drop for LabDown {
    fn drop(&mut self) {
        let lab = self.0.join("lab.toml");
        if lab.exists() {
            let _ = Command::new(env!("CARGO_BIN_EXE_tam")).args(["lab", "down"]).arg(lab).output();
        }
    }
}

#[test]
fn the_tutorial_does_what_it_says() {
    if !testbase::root_or_skip("the tutorial") {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/start/tutorial.md");
    let blocks = blocks(&std::fs::read_to_string(path).unwrap());
    let commands: Vec<&str> =
        blocks.iter().filter(|(run, _)| *run).map(|(_, block)| &block[..]).collect();
    assert!(commands.len() > 8, "{} blocks of commands", commands.len());
    let folder = tempfile::tempdir().unwrap();
    let _lab_down = LabDown(folder.path().to_owned());
    let program = Path::new(env!("CARGO_BIN_EXE_tam")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let script = format!("set -euo pipefail\n{}", commands.concat());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(&folder)
        .env("PATH", path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let beside = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{beside}");
    let said: Vec<String> = said.lines().chain(beside.lines()).map(comparable).collect();
    for line in blocks.iter().filter(|(run, _)| !run).flat_map(|(_, block)| block.lines()) {
        let shown = comparable(line);
        let found = said.iter().any(|said| said.starts_with(&shown));
        assert!(found, "the tutorial shows\n  {shown}\nand there is only\n{}", said.join("\n"));
    }
}
