//! `tam key` and `tam token` as users call them, checked against OpenSSL.

use super::{document, status, text};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// User with a folder of keys.
pub(crate) struct User(pub(crate) TempDir);

impl User {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn tam(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tam"));
        command.env("XDG_CONFIG_HOME", self.0.path()).env("XDG_DATA_HOME", self.0.path());
        command.env("DOCKER_CONFIG", self.0.path()).stdin(Stdio::null());
        command.current_dir(self.0.path()).args(arguments).output().unwrap()
    }

    /// Runs a command that must succeed; returns its document.
    #[track_caller]
    pub(crate) fn run_json(&self, arguments: &[&str]) -> Value {
        let output = self.tam(&[&["--json"], arguments].concat());
        assert_eq!(status(&output), 0, "{output:?}");
        document(&output)
    }

    #[track_caller]
    pub(crate) fn fails(&self, arguments: &[&str], expected: i32, says: &str) {
        let output = self.tam(&[&["--json"], arguments].concat());
        let document = document(&output);
        assert_eq!(status(&output), expected, "{document}");
        let message = document["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn key(&self, name: &str) -> String {
        let made = self.run_json(&["key", "new", name, "--plain"]);
        made["public_key"].as_str().unwrap().to_owned()
    }

    fn token(&self, file: &str, arguments: &[&str]) {
        let told = self.run_json(arguments);
        self.file(file, told["token"].as_str().unwrap());
    }
}

fn openssl(arguments: &[&str], input: &Path) -> String {
    let mut command = Command::new("openssl");
    let output = command.args(arguments).arg("-in").arg(input).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn a_key_is_made_once_encrypted_and_read_by_openssl() {
    let user = User::new();
    user.file("passphrase", "two tapirs\n");
    let new = ["key", "new", "root", "--passphrase-file", "passphrase"];
    let made = user.run_json(&new);
    assert_eq!(made["encrypted"], true);
    let secret = PathBuf::from(made["file"].as_str().unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&secret), mode(secret.parent().unwrap())), (0o600, 0o700));

    let public = std::fs::read_to_string(made["public_file"].as_str().unwrap()).unwrap();
    assert_eq!(openssl(&["pkey", "-passin", "pass:two tapirs", "-pubout"], &secret), public);
    assert_eq!(text(&user.tam(&["key", "show", "root", "--pem"]).stdout).trim(), public.trim());
    let shown = text(&user.tam(&["key", "show", "root"]).stdout);
    assert_eq!(shown.trim(), made["public_key"].as_str().unwrap());
    assert_eq!(user.run_json(&["key", "show"])["keys"][0]["name"], "root");

    user.fails(&new, 1, "there is a key 'root' already");
    user.fails(&["key", "new", "other"], 2, "no terminal to ask for a passphrase");
    user.file("empty", "\n");
    user.fails(&["key", "new", "x", "--passphrase-file", "empty"], 2, "the passphrase is empty");
    user.fails(&["key", "show", "nobody"], 3, "there is no key 'nobody'");
}

#[test]
fn a_key_of_openssl_signs_tokens_and_other_kinds_are_named() {
    let user = User::new();
    let make = |file: &str, arguments: &[&str]| {
        let out = user.0.path().join(file);
        let mut command = Command::new("openssl");
        let made = command.arg("genpkey").args(arguments).arg("-out").arg(&out).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    };
    make("ed.pem", &["-algorithm", "ed25519", "-aes256", "-pass", "pass:secret"]);
    make("ec.pem", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    user.file("passphrase", "secret");
    let alice = user.key("alice");
    let new = |key| {
        [
            "token",
            "new",
            "--key",
            key,
            "--passphrase-file",
            "passphrase",
            "--for",
            &alice,
            "--admin",
        ]
    };
    user.run_json(&new("./ed.pem"));
    user.fails(&new("./ec.pem"), 2, "the key is of another kind (ECDSA)");
    user.file("passphrase", "wrong");
    user.fails(&new("./ed.pem"), 4, "the passphrase does not decrypt the key");
}

#[test]
fn a_token_is_signed_narrowed_without_the_administrator_and_shown() {
    let user = User::new();
    user.key("default");
    let alice = user.key("alice");
    user.token(
        "alice.token",
        &[
            "token",
            "new",
            "--for",
            "alice",
            "--may",
            "read,deploy,rule",
            "--session",
            "alice",
            "--module",
            "name:mon*",
            "--kind",
            "application",
            "--level",
            "all",
            "--function",
            "all",
            "--traffic",
            "10.1.0.0/16",
            "--most",
            "services=4",
            "--until",
            "30d",
        ],
    );
    user.token("less.token", &["token", "attenuate", "alice.token", "--may", "read"]);
    // A module that is pulled is of no kind.
    let pulls = ["token", "new", "--for", "alice", "--may", "read", "--module", "name:mon*"];
    assert_eq!(user.run_json(&pulls)["warnings"], serde_json::json!([]));
    // A right that can never be used is reported at once.
    let stores = ["token", "new", "--for", "alice", "--may", "store", "--module", "name:mon*"];
    let warned = user.run_json(&stores);
    let warning = warned["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("`store` can never be used"), "{warning}");
    let shown = user.tam(&stores);
    assert!(text(&shown.stderr).contains("add --kind application"), "{shown:?}");
    let narrowed = user.run_json(&["token", "attenuate", "alice.token", "--level", "nic"]);
    assert!(narrowed["warnings"][0].as_str().unwrap().starts_with("`deploy` can never be used"));
    let shown = user.run_json(&["token", "inspect", "less.token", "--root", "default"]);
    assert_eq!(shown["principal"], alice);
    assert_eq!(shown["signature"], "good");
    let blocks = shown["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 2);
    let says = |block: usize, what: &str| {
        let source = blocks[block]["datalog"].as_str().unwrap();
        assert!(source.contains(what), "{source}");
    };
    says(0, "grant(\"module\", \"name:mon*\")");
    says(0, "all(\"level\")");
    says(0, "check if time($now), $now < ");
    says(1, "{\"read\"}.contains($value)");
    let whole = user.run_json(&["token", "inspect", "alice.token"]);
    assert_eq!(whole["signature"], "not looked at");
    assert_eq!(whole["blocks"][0]["revocation_id"], blocks[0]["revocation_id"]);

    let plain = user.tam(&["token", "inspect", "less.token"]);
    for said in ["block 1, a holder's", "\"4:0000101000000001\"); // 10.1.0.0/16"] {
        assert!(text(&plain.stdout).contains(said), "{plain:?}");
    }
    user.fails(&["token", "inspect", "less.token", "--root", "alice"], 4, "no administrator");
    user.fails(&["token", "attenuate", "less.token"], 2, "nothing says what to leave");
    let wrong = ["token", "attenuate", "less.token", "--level", "cloud"];
    user.fails(&wrong, 2, "'cloud' is no value of --level");
    user.file("damaged.token", "biscuit:AAAA");
    user.fails(&["token", "inspect", "damaged.token"], 2, "this is no token");
    user.file("long.token", &"A".repeat(20_000));
    user.fails(&["token", "inspect", "long.token"], 5, "the token has 20000 characters");
}
