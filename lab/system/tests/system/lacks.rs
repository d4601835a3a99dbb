//! Limits of a capability beside operations and traffic, on a real node: memory, host functions,
//! and signers of modules; and a new administrator in place of one whose key is lost.

use api::{Client, DeployRequest, ErrorCode};
use testkit::{Net, NodeUnderTest, root_or_skip};
use trust::{Ceilings, Extent, Grant, ModulePattern};

use crate::common::{Line, key, module, token};
use crate::demand::signed;

const ROOT: u8 = 1;
const SECOND_ROOT: u8 = 2;
const ALICE: u8 = 10;
const PAGE: u64 = 64 << 10;
/// Index of memory among the ceilings.
const MEMORY: usize = 2;

fn line() -> Line {
    let net = Net::line(1500).unwrap();
    let more = |text: String| {
        let keys = [ROOT, SECOND_ROOT].map(|it| format!("\"{}\"", key(it).public())).join(", ");
        let signers = [5, 6].map(|it| format!("\"{}\"", key(it).public())).join(", ");
        format!("{text}administrators = [{keys}]\nsigners = [{signers}]\n")
    };
    let node = NodeUnderTest::start_edited(&net, "r1", "", more).unwrap();
    Line { node, net }
}

/// Returns a module that may grow to `pages` pages, and imports `event` if `events` is true.
fn wants(name: &str, pages: u32, events: bool) -> Vec<u8> {
    let (import, needs) = match events {
        true => {
            let import = r#"(import "tam" "event" (func (param i32 i32 i32) (result i32)))"#;
            (import, "\nneeds = [\"events\"]")
        }
        false => ("", ""),
    };
    let fields = format!(
        "{import}(memory (export \"memory\") 1)\n(func (export \"on_packet\") (result i32) (i32.const 0))"
    );
    let manifest = format!("window = 64\nmemory_pages_max = {pages}\nlevels = [\"user\"]{needs}");
    module(name, &manifest, &fields)
}

fn deploy(client: &Client, digest: &str) -> Result<(), (ErrorCode, String)> {
    let request = DeployRequest { module: digest.to_owned(), ..DeployRequest::default() };
    client.deploy(&request).map(drop).map_err(|error| (error.code(), error.to_string()))
}

fn refused_for(client: &Client, digest: &str, says: &str) {
    let (code, text) = deploy(client, digest).unwrap_err();
    assert!(code == ErrorCode::Refused && text.contains(says), "{code:?}: {text}");
}

#[test]
fn memory_and_host_functions_beyond_a_capability_are_refused_and_named() {
    if !root_or_skip("access") {
        return;
    }
    let line = line();
    let operator = line.node.client();
    let store = |wasm: Vec<u8>| operator.store_module(wasm).unwrap().digest;
    let small = store(wants("small", 1, false));
    let large = store(wants("large", 3, false));
    let tells = store(wants("tells", 1, true));
    let mut ceilings = Ceilings::NONE;
    ceilings.0[MEMORY] = Some(3 * PAGE);
    let grant = Grant { ceilings, functions: Extent::none(), ..Grant::all() };
    let alice = operator.clone().with_token(token(ROOT, ALICE, &grant));
    refused_for(&alice, &tells, "lacks function event");
    deploy(&alice, &small).unwrap();
    // Running services count towards the ceiling.
    refused_for(&alice, &large, "ceiling memory");
    alice.remove("small", true).unwrap();
    deploy(&alice, &large).unwrap();
    refused_for(&alice, &small, "ceiling memory");
    // The operator's do not count for her, nor hers for him.
    deploy(operator, &tells).unwrap();
}

#[test]
fn a_capability_for_a_signers_modules_runs_no_others() {
    if !root_or_skip("access") {
        return;
    }
    let line = line();
    let operator = line.node.client();
    let store = |name: &str, by: Option<u8>| {
        let wasm = wants(name, 1, false);
        let digest = operator.store_module(wasm.clone()).unwrap().digest;
        if let Some(by) = by {
            operator.add_signatures(&digest, &signed(&wasm, &key(by))).unwrap();
        }
        digest
    };
    let (hers, theirs, nobodys) =
        (store("hers", Some(5)), store("theirs", Some(6)), store("nobodys", None));
    let modules = Extent::only([ModulePattern::Signer(key(5).public().into())]);
    let grant = Grant { modules, ..Grant::all() };
    let alice = operator.clone().with_token(token(ROOT, ALICE, &grant));
    deploy(&alice, &hers).unwrap();
    for digest in [theirs, nobodys] {
        assert_eq!(deploy(&alice, &digest).unwrap_err().0, ErrorCode::NotFound);
    }
}

#[test]
fn a_second_administrator_takes_the_place_of_one_whose_key_is_lost() {
    if !root_or_skip("access") {
        return;
    }
    let line = line();
    let operator = line.node.client();
    let digest = operator.store_module(wants("small", 1, false)).unwrap().digest;
    let alice = operator.clone().with_token(token(ROOT, ALICE, &Grant::all()));
    deploy(&alice, &digest).unwrap();
    let second = operator.clone().with_token(token(SECOND_ROOT, 20, &Grant::all()));
    let revoke = vec![key(ROOT).public().to_string()];
    let revoked = second.revoke(&api::RevokeRequest { revoke }).unwrap();
    assert_eq!(revoked.services, ["small"]);
    let (code, _) = deploy(&alice, &digest).unwrap_err();
    assert_eq!(code, ErrorCode::Refused);
    // The lost key cannot undo this.
    let finder = operator.clone().with_token(token(ROOT, 21, &Grant::all()));
    let revoke = vec![key(SECOND_ROOT).public().to_string()];
    assert!(finder.revoke(&api::RevokeRequest { revoke }).is_err());
    let alice = operator.clone().with_token(token(SECOND_ROOT, ALICE, &Grant::all()));
    deploy(&alice, &digest).unwrap();
}
