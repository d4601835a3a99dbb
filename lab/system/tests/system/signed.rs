//! Modules without a signature that the node trusts, and versions older than the last.

use abi::Unverified;
use api::{DeployRequest, ErrorCode};
use testkit::{Net, NodeUnderTest, root_or_skip, tam};
use trust::{ImageDigest, SecretKey, Signature, SignatureFile};

use crate::common::{Line, key, module_with_manifest};

fn pass(version: &str) -> Vec<u8> {
    let manifest = format!("abi = 1\nname = \"pass\"\nversion = \"{version}\"\nwindow = 64");
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0))"#;
    module_with_manifest(&manifest, fields)
}

/// Returns the signature file that `tam sign` writes beside a module.
fn signed(wasm: &[u8], by: &SecretKey) -> String {
    let checked = Unverified(wasm).check().unwrap();
    let image = module_store::layout::documents(wasm, &checked.manifest).unwrap().entry.digest;
    let mut file = SignatureFile::default();
    file.add(Signature::new(by, &ImageDigest(*image.bytes()), "pass")).unwrap();
    file.to_string()
}

/// Returns a line whose node runs modules signed by this key.
fn believing(signer: &SecretKey) -> Line {
    let net = Net::line(1500).unwrap();
    let signers = format!("signers = [\"{}\"]", signer.public());
    let edit = |text: String| text.replace("unsigned = \"accept\"", &signers);
    let node = NodeUnderTest::start_edited(&net, "r1", "", edit).unwrap();
    Line { node, net }
}

fn request(module: &str) -> DeployRequest {
    DeployRequest { module: module.to_owned(), ..DeployRequest::default() }
}

#[test]
fn only_modules_signed_by_a_trusted_signer_run() {
    if !root_or_skip("signatures") {
        return;
    }
    let line = believing(&key(1));
    let client = line.node.client();
    let wasm = pass("0.1.0");
    let digest = client.store_module(wasm.clone()).unwrap().digest;
    let refused = || {
        let error = client.deploy(&request(&digest)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Refused);
        assert!(error.to_string().contains("no signer that this node trusts"), "{error}");
    };
    refused();
    // Somebody else's signature, and one about another module, change nothing.
    assert!(client.add_signatures(&digest, &signed(&wasm, &key(2))).unwrap().signers.is_empty());
    refused();
    let other = signed(&pass("0.2.0"), &key(1));
    assert!(client.add_signatures(&digest, &other).unwrap().signers.is_empty());
    refused();
    let counts = client.add_signatures(&digest, &signed(&wasm, &key(1))).unwrap().signers;
    assert_eq!(counts, [key(1).public().to_string()]);
    assert_eq!(client.deploy(&request(&digest)).unwrap().service.name, "pass");
    // A file is no way around it, nor is a node file that is applied.
    let unsigned = client.store_module(pass("0.3.0")).unwrap().digest;
    let text = format!("[[service]]\nmodule = \"{unsigned}\"\n");
    let applied = client.apply(&api::ApplyRequest { text, ..Default::default() });
    assert_eq!(applied.unwrap_err().code(), ErrorCode::Refused);
    client.service("pass").unwrap();
}

#[test]
fn an_older_module_version_is_refused_unless_an_administrator_allows_it() {
    if !root_or_skip("signatures") {
        return;
    }
    let mut line = believing(&key(1));
    let client = line.node.client().clone();
    let store = |version: &str| {
        let wasm = pass(version);
        let digest = client.store_module(wasm.clone()).unwrap().digest;
        client.add_signatures(&digest, &signed(&wasm, &key(1))).unwrap();
        digest
    };
    let (old, new) = (store("0.1.0"), store("0.2.0"));
    let deploy = |digest: &str| client.deploy(&request(digest)).map(|it| it.service.version);
    assert_eq!(deploy(&old).unwrap(), "0.1.0");
    client.remove("pass", true).unwrap();
    assert_eq!(deploy(&new).unwrap(), "0.2.0");
    let refused = || {
        let error = deploy(&old).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Refused);
        assert!(error.to_string().contains("is older than 0.2.0"), "{error}");
        let text = format!("[[service]]\nmodule = \"{old}\"\n");
        let apply = api::ApplyRequest { text, discard_state: true, ..Default::default() };
        assert_eq!(client.apply(&apply).unwrap_err().code(), ErrorCode::Refused);
    };
    refused();
    client.remove("pass", true).unwrap();
    refused();
    // Also by the next daemon.
    line.node.stop().unwrap();
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    refused();
    let allowed = DeployRequest { allow_older: true, ..request(&old) };
    assert_eq!(client.deploy(&allowed).unwrap().service.version, "0.1.0");
    // It is the one that counts from now on.
    client.remove("pass", true).unwrap();
    assert_eq!(deploy(&old).unwrap(), "0.1.0");
    // So does the way back to what ran before, and what stays as it is asks nobody.
    assert_eq!(deploy(&new).unwrap(), "0.2.0");
    client.rollback(&api::RollbackRequest::default()).unwrap();
    assert_eq!(client.service("pass").unwrap().version, "0.1.0");
    let text = format!("[[service]]\nmodule = \"{old}\"\n");
    let applied = client.apply(&api::ApplyRequest { text, ..Default::default() });
    assert_eq!(applied.unwrap().changes, []);
}

#[test]
fn a_module_is_signed_and_deployed_from_its_file() {
    if !root_or_skip("signatures") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(tam());
        command.env("XDG_CONFIG_HOME", folder.path()).current_dir(folder.path());
        command.arg("--json").args(arguments).output().unwrap()
    };
    let told = |arguments: &[&str]| {
        let output = run(arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let made = told(&["key", "new", "me", "--plain"]);
    let net = Net::line(1500).unwrap();
    let signers = format!("signers = [{}]", made["public_key"]);
    let edit = |text: String| text.replace("unsigned = \"accept\"", &signers);
    let line = Line { node: NodeUnderTest::start_edited(&net, "r1", "", edit).unwrap(), net };
    std::fs::write(folder.path().join("pass.wasm"), pass("1.0.0")).unwrap();
    let node = line.node.name().to_string();
    let deploy = ["--node", &node, "deploy", "pass.wasm"];
    let unsigned = run(&deploy);
    assert_eq!(unsigned.status.code(), Some(4), "{unsigned:?}");
    told(&["sign", "pass.wasm", "--key", "me"]);
    assert_eq!(told(&deploy)["service"]["name"], "pass");
    // One byte of the module, and it is nobody's.
    let mut changed = pass("1.0.0");
    let at = changed.len() - 1;
    changed[at] = b'5';
    std::fs::write(folder.path().join("pass.wasm"), &changed).unwrap();
    let refused = run(&deploy);
    assert_ne!(refused.status.code(), Some(0), "{refused:?}");
}
