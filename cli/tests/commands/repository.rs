//! `tam sign`, `verify`, `push` and `pull`: signatures beside a file, in a directory, and from a
//! registry on loopback.

use super::status;
use super::trust::User;
use ::oci_client::{AccessDenied, router};
use module_store::{Digest, Store};
use std::net::SocketAddr;
use std::path::Path;

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/v1/abi/monitor.wasm");
const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/v1/abi/echo.wasm");

/// Returns a user with the keys of alice and bob, and a module in the user's folder.
fn user() -> User {
    let user = User::new();
    user.key("alice");
    user.key("bob");
    std::fs::copy(MODULE, user.0.path().join("monitor.wasm")).unwrap();
    user
}

fn bytes(user: &User, name: &str) -> Vec<u8> {
    std::fs::read(user.0.path().join(name)).unwrap()
}

#[test]
fn a_module_is_signed_beside_its_file_by_several_and_no_changed_byte_passes() {
    let user = user();
    let verify = |key| ["verify", "monitor.wasm", "--key", key];
    user.fails(&verify("alice"), 4, "is not signed by any of these keys");
    let signed = user.run_json(&["sign", "monitor.wasm", "--key", "alice"]);
    let digest = Digest::of(&bytes(&user, "monitor.wasm")).to_string();
    assert_eq!(
        (&signed["digest"], &signed["signature"]),
        (&digest.into(), &"monitor.wasm.sig".into())
    );
    let alice = signed["signer"].as_str().unwrap();
    user.fails(&verify("bob"), 4, &format!("it is signed by {alice}"));
    user.run_json(&["sign", "monitor.wasm", "--key", "bob"]);
    let told = user.run_json(&verify("bob"));
    assert_eq!(
        (told["signers"].as_array().unwrap().len(), &told["strangers"][0]),
        (1, &alice.into())
    );
    let both = user.run_json(&["verify", "monitor.wasm", "--key", "bob", "--key", alice]);
    assert_eq!(both["signers"].as_array().unwrap().len(), 2);

    user.fails(&["sign", "monitor.wasm", "--key", "nobody"], 3, "there is no key 'nobody'");
    // A signature of another module, and a file that has been touched.
    std::fs::copy(OTHER, user.0.path().join("echo.wasm")).unwrap();
    std::fs::copy(user.0.path().join("monitor.wasm.sig"), user.0.path().join("echo.wasm.sig"))
        .unwrap();
    user.fails(&["verify", "echo.wasm", "--key", "alice"], 4, "is about another image");
    let text = String::from_utf8(bytes(&user, "monitor.wasm.sig")).unwrap();
    user.file("monitor.wasm.sig", &text.replacen("\"key\"", " \"key\"", 1));
    user.fails(&verify("alice"), 4, "not a signature file");
    user.fails(&["sign", "absent.wasm", "--key", "alice"], 3, "absent.wasm");
}

#[test]
fn a_signed_module_goes_through_a_directory_and_comes_back_with_its_signatures() {
    let user = user();
    user.run_json(&["sign", "monitor.wasm", "--key", "alice"]);
    let pushed = user.run_json(&["push", "monitor.wasm", "oci:layout:one"]);
    assert_eq!(
        (&pushed["reference"], &pushed["signatures"]),
        (&"oci:layout:one".into(), &1.into())
    );
    user.run_json(&["sign", "oci:layout", "--key", "bob"]);
    let pulled = user.run_json(&["pull", "oci:layout:one", "--key", "bob", "-o", "back.wasm"]);
    assert_eq!(pulled["strangers"].as_array().unwrap().len(), 1);
    assert_eq!(bytes(&user, "back.wasm"), bytes(&user, "monitor.wasm"));
    user.run_json(&["verify", "back.wasm", "--key", "alice"]);
    user.run_json(&["verify", "layout", "--key", "bob"]);

    // Into the store of the user, and by its name from there.
    user.fails(&["verify", "monitor", "--key", "alice"], 3, "there is no module 'monitor'");
    user.run_json(&["pull", "oci:layout:one"]);
    user.run_json(&["verify", "monitor", "--key", "alice"]);
    user.run_json(&["push", "monitor", "oci:again"]);
    user.run_json(&["verify", "oci:again:monitor", "--key", "bob"]);
    user.fails(&["pull", "oci:layout:two"], 3, "there is no module 'two'");
    user.fails(&["push", "monitor.wasm", "nowhere"], 2, "is no place to push to");
    user.fails(&["pull", "monitor.wasm"], 2, "names no registry");
    user.fails(&["verify", "dir/monitor", "--key", "bob"], 3, "there is no file dir/monitor");
    user.fails(&["pull", "localhost:5000/Monitor"], 2, "is no reference to a registry");
}

/// Serves a store on loopback while `work` runs; the blob `hidden` is refused.
fn served(directory: &Path, hidden: Option<Digest>, work: impl FnOnce(SocketAddr)) {
    let store = Store::open(directory).unwrap();
    let may = move |_: &axum::http::request::Parts, module: &Digest| {
        if Some(*module) == hidden { Err(AccessDenied) } else { Ok(()) }
    };
    let (told, hears) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let serving = axum::serve(listener, router(store, may)).into_future();
                // The sender is dropped when the work fails, which also ends the server.
                tokio::select! { _ = serving => {}, _ = stopped => {} }
            });
        });
        let stop = stop;
        work(hears.recv().unwrap());
        drop(stop);
    });
}

#[test]
fn a_node_gives_what_it_holds_to_whoever_may_have_it() {
    let user = user();
    let layout = user.0.path().join("layout");
    user.run_json(&["push", "monitor.wasm", "oci:layout"]);
    user.run_json(&["sign", "oci:layout", "--key", "alice"]);
    let version = user.run_json(&["verify", "oci:layout", "--key", "alice"])["version"].clone();
    let version = version.as_str().unwrap();
    let digest = Digest::of(&bytes(&user, "monitor.wasm"));
    served(&layout, None, |address| {
        let reference = format!("{address}/monitor:{version}");
        let pulled = user.run_json(&["pull", &reference, "--key", "alice"]);
        assert_eq!(
            (&pulled["digest"], &pulled["verified"]),
            (&digest.to_string().into(), &true.into())
        );
        user.run_json(&["verify", "monitor", "--key", "alice"]);
        let by_digest = format!("{address}/any@{}", pulled["resolved"].as_str().unwrap());
        user.run_json(&["pull", &by_digest, "-o", "again.wasm"]);
        user.run_json(&["verify", "again.wasm", "--key", "alice"]);
        user.fails(&["pull", &reference, "--key", "bob"], 4, "is not signed by any of these keys");
        user.fails(&["pull", &format!("{address}/monitor:9.9.9")], 3, "does not have the manifest");
        user.fails(&["push", "monitor.wasm", &reference], 6, "answered 405");
        // A mirror has the module while the first registry is down.
        let down = format!("127.0.0.1:1/monitor:{version}");
        let mirrored =
            user.run_json(&["pull", &down, "--mirror", &address.to_string(), "--time", "30"]);
        assert_eq!(mirrored["from"], format!("{address}/monitor"));
        let plain = user.tam(&["pull", &reference]);
        assert_eq!(status(&plain), 0, "{plain:?}");
    });
    served(&layout, Some(digest), |address| {
        user.fails(&["pull", &format!("{address}/monitor:{version}")], 3, "does not have");
    });
}

#[test]
fn cosigns_keys_are_taken_and_openssls_signatures_of_them() {
    let user = user();
    let path = |name: &str| user.0.path().join(name).to_str().unwrap().to_owned();
    let openssl = |arguments: &[&str]| {
        let output = std::process::Command::new("openssl").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &path("ec.pem")]);
    openssl(&["ec", "-in", &path("ec.pem"), "-pubout", "-out", &path("ec.pub")]);
    // The same payload signed by the other key.
    user.run_json(&["push", "monitor.wasm", "oci:layout"]);
    user.run_json(&["sign", "oci:layout", "--key", "alice"]);
    let store = Store::open(user.0.path().join("layout")).unwrap();
    let digest = Digest::of(&bytes(&user, "monitor.wasm"));
    let image = *store.images_of(&digest).unwrap().first().unwrap();
    let mut signature = store.signatures(&image).unwrap().remove(0);
    std::fs::write(path("payload"), &signature.payload).unwrap();
    openssl(&["dgst", "-sha256", "-sign", &path("ec.pem"), "-out", &path("der"), &path("payload")]);
    (signature.bytes, signature.claimed) = (bytes(&user, "der"), None);
    user.fails(&["verify", "oci:layout", "--key", "ec.pub"], 4, "is not signed by any");
    store.put_signature(&image, &signature).unwrap();
    let told = user.run_json(&["verify", "oci:layout", "--key", "ec.pub"]);
    assert!(told["signers"][0].as_str().unwrap().starts_with("secp256r1/"), "{told}");
    user.run_json(&["pull", "oci:layout", "--key", "ec.pub", "-o", "back.wasm"]);
    user.run_json(&["verify", "back.wasm", "--key", told["signers"][0].as_str().unwrap()]);
}

/// Replaces text in the one blob of a directory that contains it, and updates the digests and sizes
/// in the documents that lead to it.
fn edited(directory: &Path, from: &str, to: &str) {
    let blobs = directory.join("blobs/sha256");
    let files: Vec<_> = std::fs::read_dir(&blobs).unwrap().map(|it| it.unwrap().path()).collect();
    let manifest = files.iter().find(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.starts_with(b"{") && String::from_utf8_lossy(&bytes).contains(from)
    });
    let old = std::fs::read_to_string(manifest.unwrap()).unwrap();
    let new = old.replacen(from, to, 1);
    std::fs::write(blobs.join(Digest::of(new.as_bytes()).hex()), &new).unwrap();
    let index = std::fs::read_to_string(directory.join("index.json")).unwrap();
    let (old_digest, new_digest) = (Digest::of(old.as_bytes()), Digest::of(new.as_bytes()));
    let index = index.replace(&old_digest.to_string(), &new_digest.to_string());
    let sizes = [old.len(), new.len()].map(|length| format!("\"size\": {length}"));
    std::fs::write(directory.join("index.json"), index.replace(&sizes[0], &sizes[1])).unwrap();
}

#[test]
fn a_directory_is_read_as_it_is_and_nothing_is_made_of_one_that_is_not_there() {
    let user = user();
    let at = |name: &str| user.0.path().join(name);
    user.run_json(&["push", "monitor.wasm", "oci:layout:v1"]);
    for command in ["pull", "verify", "sign"] {
        let more: &[&str] = if command == "pull" { &[] } else { &["--key", "alice"] };
        let asks = |what| [&[command, what], more].concat();
        user.fails(&asks("oci:nowhere:v1"), 3, "there is no directory nowhere");
        std::fs::create_dir_all(at("other")).unwrap();
        user.fails(&asks("oci:other"), 2, "other is no directory in OCI layout");
    }
    assert!(!at("nowhere").exists() && std::fs::read_dir(at("other")).unwrap().count() == 0);

    // A layer whose stated length is wrong.
    let size = bytes(&user, "monitor.wasm").len();
    let [from, to] = [size, size - 1].map(|size| format!("\"size\":{size}"));
    edited(&at("layout"), &from, &to);
    let says = format!("has {size} bytes, but its descriptor says {}", size - 1);
    user.fails(&["pull", "oci:layout:v1", "-o", "x.wasm"], 4, &says);
    user.fails(&["verify", "oci:layout:v1", "--key", "alice"], 4, &says);
    assert!(!at("x.wasm").exists());
}
