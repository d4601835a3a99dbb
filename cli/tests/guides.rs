//! docs/start/tutorial.md and the section "Try it" of each guide, as somebody types them: the
//! commands into one shell, in an empty folder; and what is shown is what comes.
//!
//! A guide's lab has the name of its page, so that they run side by side. What is compared are
//! words and not numbers: no test here depends on how long something took.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Heading of the section of a guide that is run.
const RUN: &str = "## Try it";
/// Line of a shown output for lines that are left out.
const LEFT_OUT: &str = "…";
/// Seconds after which a run is ended; each takes a tenth of it on an idle machine.
const SECONDS_MAX: &str = "90";
/// Least digits of a digest or key, also of one that is shown shortened.
const DIGEST_LENGTH_MIN: usize = 12;

/// Block of a document.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Commands(String),
    Shown(String),
}

/// Returns the blocks of a document.
///
/// # Panics
/// A block is neither commands nor their output.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (&mut open, line) {
            (None, "```sh") => open = Some(Block::Commands(String::new())),
            (None, "```text") => open = Some(Block::Shown(String::new())),
            (None, _) => assert!(!line.starts_with("```"), "a block of another kind: {line}"),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(Block::Commands(block) | Block::Shown(block)), line) => {
                *block += &format!("{line}\n");
            }
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// Returns the section of a guide that is run.
fn section(text: &str) -> &str {
    let (_, behind) = text.split_once(&format!("\n{RUN}\n")).expect("a guide has this section");
    behind.split_once("\n## ").map_or(behind, |(section, _)| section)
}

/// Returns a line without what differs from run to run: numbers, times, digests, the columns.
fn comparable(line: &str) -> String {
    line.split_whitespace().map(comparable_word).collect::<Vec<_>>().join(" ")
}

fn comparable_word(word: &str) -> String {
    let word = word.trim_end_matches([',', ':']);
    let (kind, bare) = ["ed25519/", "sha256:"]
        .into_iter()
        .find_map(|kind| Some((kind, word.strip_prefix(kind)?)))
        .unwrap_or(("", word));
    if bare.len() >= DIGEST_LENGTH_MIN && bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return format!("{kind}DIGEST");
    }
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return word.to_owned();
    }
    // "2", "0.2%", "10.77.2.2:8000", "1.04MiB", "2026-11-28T12:44:42Z".
    let mut comparable = String::new();
    for c in word.chars() {
        match c {
            '0'..='9' | '.' if comparable.ends_with('N') => {}
            '0'..='9' => comparable.push('N'),
            c => comparable.push(c),
        }
    }
    comparable
}

/// Takes the lab of a folder down when it is dropped, however the test ends.
struct LabDown(PathBuf);

impl Drop for LabDown {
    fn drop(&mut self) {
        let lab = self.0.join("lab.toml");
        if lab.exists() {
            let _ = Command::new(env!("CARGO_BIN_EXE_tam")).args(["lab", "down"]).arg(lab).output();
        }
    }
}

/// Types the commands of a document, and looks for what it shows in what they print.
fn runs_as_shown(name: &str, text: &str) {
    let blocks = blocks(text);
    let commands: String = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Commands(commands) => Some(commands.as_str()),
            Block::Shown(_) => None,
        })
        .collect();
    if commands.contains("ffmpeg ") && Command::new("ffmpeg").arg("-version").output().is_err() {
        testbase::skip(name, "there is no ffmpeg on the path");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let services = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services");
    // `tam lab up` looks for flakeway beside the current folder, too.
    std::os::unix::fs::symlink(&services, folder.path().join("services")).unwrap();
    for module in commands.split("$SERVICES/").skip(1).filter_map(|it| it.split_whitespace().next())
    {
        assert!(services.join(module).exists(), "{module} is not built: make samples");
    }
    let _lab_down = LabDown(folder.path().to_owned());
    // A file and not a pipe: what goes on in the lab would keep a pipe open.
    let printed = folder.path().join("printed");
    let output = File::create(&printed).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tam")).parent().unwrap();
    let status = Command::new("timeout")
        .args([SECONDS_MAX, "bash", "-c", &format!("set -euo pipefail\n{commands}")])
        .current_dir(&folder)
        .env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()))
        .env("SERVICES", &services)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    let printed = String::from_utf8_lossy(&std::fs::read(printed).unwrap()).into_owned();
    assert!(status.success(), "{name} ended with {status}:\n{printed}");
    let printed: Vec<String> = printed.lines().map(comparable).collect();
    for block in &blocks {
        let Block::Shown(lines) = block else { continue };
        for line in lines.lines().filter(|line| *line != LEFT_OUT) {
            let shown = comparable(line);
            let found = printed.iter().any(|printed| printed.starts_with(&shown));
            assert!(found, "{name} shows\n  {shown}\nand there is only\n{}", printed.join("\n"));
        }
    }
}

fn document(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(path))
        .unwrap()
}

/// Runs the section of a guide, whose lab has the guide's name.
fn guide(name: &str) {
    if !testbase::root_or_skip(&format!("the guide of {name}")) {
        return;
    }
    let text = document(&format!("guides/{name}.md"));
    let section = section(&text);
    assert!(section.contains(&format!("\nname = \"{name}\"\n")), "the lab has another name");
    runs_as_shown(name, section);
}

#[test]
fn the_tutorial_does_what_it_says() {
    if testbase::root_or_skip("the tutorial") {
        runs_as_shown("tutorial", &document("start/tutorial.md"));
    }
}

macro_rules! guides {
    ($($name:ident)*) => {
        /// Guides with a test of their own, so that they run side by side.
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        mod the_guide_of {
            $(#[test]
            fn $name() {
                super::guide(stringify!($name));
            })*
        }
    };
}

guides! {
    associations compress failure filters flakeway guard ledger reflector repository rules sessions
    transcode trust
}

#[test]
fn every_guide_begins_with_a_run_that_is_tested() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides");
    let mut guides: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        // A list of the sample services.
        .filter(|name| name != "examples")
        .collect();
    guides.sort();
    assert_eq!(guides, TESTED);
    for name in guides {
        let text = document(&format!("guides/{name}.md"));
        let first = text.lines().find(|line| line.starts_with("## "));
        assert_eq!(first, Some(RUN), "{name}");
    }
}

#[test]
fn blocks_of_a_section_end_where_the_next_one_begins() {
    let text = "# A\n\n## Try it\n\n```sh\ntam list\n```\n\n```text\nno services\n```\n\n\
                ## How it works\n\n```toml\n```\n";
    let expected =
        [Block::Commands("tam list\n".to_owned()), Block::Shown("no services\n".to_owned())];
    assert_eq!(blocks(section(text)), expected);
}

#[test]
fn numbers_times_and_digests_do_not_count() {
    for (line, expected) in [
        ("4 of 4 answered,  0.2%", "N of N answered N%"),
        ("client  10.77.2.2/24  to-r1", "client N/N to-r1"),
        ("key ed25519/0123456789abcdef", "key ed25519/DIGEST"),
        ("module beefbeefbeef dead", "module DIGEST dead"),
        ("used 2026-11-28T12:44:42Z, 1.04MiB", "used N-N-NTN:N:NZ NMiB"),
    ] {
        assert_eq!(comparable(line), expected);
    }
}
