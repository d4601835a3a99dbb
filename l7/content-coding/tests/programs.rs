//! Tests that independent programs can decode the output: zlib by Python, gzip, zstd and brotli.

mod common;

use common::{noise, text};
use content_coding::{Coding, Encoder, Level};
use std::io::Write;
use std::process::{Command, Stdio};

/// Returns a program that decodes a coding from its standard input; `tools/setup.sh --tests`
/// installs them.
fn program(coding: Coding) -> Command {
    let (name, arguments): (&str, &[&str]) = match coding {
        Coding::Deflate => (
            "/usr/bin/python3",
            &[
                "-c",
                "import sys,zlib;sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))",
            ],
        ),
        Coding::Gzip => ("gzip", &["-dc"]),
        Coding::Brotli => ("brotli", &["-dc"]),
        // Window of at most 8 MiB, as RFC 9659 allows.
        Coding::Zstd => ("zstd", &["-dc", "--memory=8MB"]),
    };
    let mut program = Command::new(name);
    program.args(arguments);
    program
}

/// Returns the program's output and error messages.
fn read(coding: Coding, coded: &[u8]) -> (Vec<u8>, String) {
    let mut child = program(coding)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("no program for {coding} ({error}): tools/setup.sh --tests")
        });
    let mut input = child.stdin.take().unwrap();
    let coded = coded.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&coded));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn other_programs_decode_the_output() {
    for coding in Coding::ALL {
        for level in Level::all() {
            // Buffered; streamed; streamed with flushes, and with a change of level where the codec
            // can.
            let cases = [text(25_000), [text(300_000), noise(70_000)].concat(), text(400_000)];
            for (case, body) in cases.into_iter().enumerate() {
                let mut encoder = Encoder::new(coding, level);
                let mut out = Vec::new();
                for (number, part) in body.chunks(16_384).enumerate() {
                    encoder.write(part, &mut out).unwrap();
                    if case == 2 && number % 8 == 0 {
                        encoder.flush(&mut out).unwrap();
                        encoder.set_level(Level::MAX, &mut out).unwrap();
                    }
                }
                encoder.finish(&mut out).unwrap();
                let (read, complaint) = read(coding, &out);
                assert!(read == body, "{coding} {level}, case {case}: {complaint}");
            }
        }
    }
}
