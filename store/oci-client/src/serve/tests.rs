//! Tests of the pull API by its paths.

use super::*;
use axum::body::to_bytes;
use std::collections::BTreeSet;
use std::sync::Mutex;
use tempfile::TempDir;
use tower::ServiceExt;
use trust::{ImageDigest, SecretKey, Seed, Signature};

struct Served {
    _directory: TempDir,
    store: Store,
    module: Digest,
    image: Digest,
}

fn manifest(name: &str) -> abi::Manifest {
    let text = format!("abi = 1\nname = \"{name}\"\nversion = \"0.1.0\"\nwindow = 96\n");
    abi::Manifest::parse(&text).unwrap()
}

fn served() -> Served {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let module = store.put(b"\0asm 0123456789", &manifest("monitor")).unwrap();
    let image = *store.images_of(&module).unwrap().first().unwrap();
    let key = SecretKey::from_seed(&Seed::from([1; 32]));
    let signature = Signature::new(&key, &ImageDigest(*image.bytes()), "monitor");
    store.put_signature(&image, &signature).unwrap();
    Served { _directory: directory, store, module, image }
}

/// Access control by a header that names the caller and lists its modules.
fn may(parts: &Parts, module: &Digest) -> Result<(), AccessDenied> {
    let yours = parts.headers.get_all("may").iter().any(|may| *may == *module.to_string());
    if yours { Ok(()) } else { Err(AccessDenied) }
}

impl Served {
    async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, axum::http::HeaderMap, Vec<u8>) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = router(self.store.clone(), may).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
    }

    fn paths(&self) -> Vec<String> {
        let payload = Digest::of(&self.store.signatures(&self.image).unwrap()[0].payload);
        vec![
            "/v2/monitor/manifests/0.1.0".into(),
            format!("/v2/monitor/manifests/{}", self.image),
            format!("/v2/any/name/manifests/module-{}", self.module.hex()),
            format!("/v2/monitor/manifests/sha256-{}.sig", self.image.hex()),
            format!("/v2/monitor/blobs/{}", self.module),
            format!("/v2/other/blobs/{payload}"),
            "/v2/monitor/tags/list".into(),
        ]
    }
}

/// Access control that puts a module into the store when it is requested.
struct Brings {
    store: Store,
    wanted: Mutex<Vec<Digest>>,
}

impl Access for Arc<Brings> {
    fn check(&self, _: &Parts, _: &Digest) -> Result<(), AccessDenied> {
        Ok(())
    }

    fn fetch_missing(&self, _: &Parts, module: &Digest) {
        self.wanted.lock().unwrap().push(*module);
        self.store.put(b"\0asm brought", &manifest("brought")).unwrap();
    }
}

#[tokio::test]
async fn a_missing_module_is_fetched_once_and_then_served() {
    let served = served();
    let wanted = Digest::of(b"\0asm brought");
    let brings = Arc::new(Brings { store: served.store.clone(), wanted: Mutex::default() });
    let router = router(served.store.clone(), Arc::clone(&brings));
    let ask = async |path: String| {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        (status, to_bytes(response.into_body(), usize::MAX).await.unwrap())
    };
    // Existing objects, and tags that name no module, are not requested elsewhere.
    for path in [format!("/v2/x/blobs/{}", served.module), "/v2/x/manifests/9.9.9".to_owned()] {
        ask(path).await;
    }
    assert_eq!(*brings.wanted.lock().unwrap(), []);
    let (status, bytes) = ask(format!("/v2/x/blobs/{wanted}")).await;
    assert_eq!((status, &bytes[..]), (StatusCode::OK, &b"\0asm brought"[..]));
    ask(format!("/v2/x/manifests/module-{}", wanted.hex())).await;
    let absent = Digest::of(b"absent");
    let (status, _) = ask(format!("/v2/x/manifests/module-{}", absent.hex())).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(*brings.wanted.lock().unwrap(), [wanted, absent]);
}

#[tokio::test]
async fn access_to_a_module_includes_its_image_and_its_signatures() {
    let served = served();
    let me = [("may", &*served.module.to_string())];
    for path in served.paths() {
        let (status, headers, body) = served.ask("GET", &path, &me).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        if let Some(digest) = headers.get("docker-content-digest") {
            assert_eq!(digest, &Digest::of(&body).to_string());
        }
        let (status, head, nothing) = served.ask("HEAD", &path, &me).await;
        assert_eq!((status, nothing.len()), (StatusCode::OK, 0));
        assert_eq!(head.get("content-length"), headers.get("content-length"), "{path}");
    }
    let (_, headers, body) = served.ask("GET", "/v2/monitor/manifests/0.1.0", &me).await;
    assert_eq!(headers["content-type"], module_store::layout::MANIFEST_TYPE);
    assert_eq!(Digest::of(&body), served.image);
    let (_, _, tags) = served.ask("GET", "/v2/monitor/tags/list", &me).await;
    assert_eq!(tags, br#"{"name":"monitor","tags":["0.1.0"]}"#);
    assert_eq!(served.ask("GET", "/v2/", &[]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn missing_and_forbidden_objects_get_the_same_response() {
    let served = served();
    let other = served.store.put(b"\0asm other", &manifest("nat")).unwrap();
    let absent = Digest::of(b"absent");
    let swap = |path: &str| {
        path.replace(&served.module.hex(), &absent.hex())
            .replace(&served.image.hex(), &absent.hex())
            .replace("monitor", "absent")
    };
    let mut answers = BTreeSet::new();
    for path in served.paths() {
        // Callers without a name, with access to another module, and with access that requests a
        // missing one.
        let nobody = served.ask("GET", &path, &[]).await;
        let stranger = served.ask("GET", &path, &[("may", &other.to_string())]).await;
        assert_eq!((nobody.0, &nobody.2), (StatusCode::NOT_FOUND, &stranger.2), "{path}");
        assert_eq!(nobody.1, stranger.1);
        let path = swap(&path);
        let missing = served.ask("GET", &path, &[("may", &served.module.to_string())]).await;
        if missing.0 == StatusCode::NOT_FOUND {
            assert_eq!((&missing.1, &missing.2), (&nobody.1, &nobody.2), "{path}");
        }
        answers.insert(nobody.2);
    }
    assert_eq!(answers.len(), 3, "for manifests, blobs and names");
}

#[tokio::test]
async fn referrers_of_any_digest_are_an_empty_index() {
    let served = served();
    let me = [("may", &*served.module.to_string())];
    let mut answers = Vec::new();
    for digest in [served.image, Digest::of(b"absent")] {
        let path = format!("/v2/monitor/referrers/{digest}");
        for caller in [&me[..], &[]] {
            let (status, headers, body) = served.ask("GET", &path, caller).await;
            assert_eq!(status, StatusCode::OK);
            assert_eq!(headers[CONTENT_TYPE], INDEX_TYPE);
            assert!(!headers.contains_key("oci-filters-applied"));
            answers.push(body);
        }
        let filtered = format!("{path}?n=5&artifactType=application/vnd.example");
        let (status, headers, _) = served.ask("HEAD", &filtered, &me).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers["oci-filters-applied"], "artifactType");
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "it says nothing of what is there");
    let index: serde_json::Value = serde_json::from_slice(&answers[0]).unwrap();
    let expected = serde_json::json!({
        "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []
    });
    assert_eq!(index, expected);
    let (status, _, body) = served.ask("GET", "/v2/monitor/referrers/sha256:0", &me).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(String::from_utf8(body).unwrap().contains("DIGEST_INVALID"));
}

#[tokio::test]
async fn a_blob_comes_in_parts() {
    let served = served();
    let path = format!("/v2/monitor/blobs/{}", served.module);
    let of = async |range: &str| {
        served.ask("GET", &path, &[("may", &served.module.to_string()), ("range", range)]).await
    };
    for (range, part, said) in [
        ("bytes=5-", &b"0123456789"[..], "bytes 5-14/15"),
        ("bytes=5-6", b"01", "bytes 5-6/15"),
        ("bytes=5-999", b"0123456789", "bytes 5-14/15"),
        ("bytes=-3", b"789", "bytes 12-14/15"),
        ("bytes=-999", b"\0asm 0123456789", "bytes 0-14/15"),
    ] {
        let (status, headers, body) = of(range).await;
        assert_eq!((status, &*body), (StatusCode::PARTIAL_CONTENT, part), "{range}");
        assert_eq!(headers["content-range"], said);
    }
    for beyond in ["bytes=15-", "bytes=99-100", "bytes=-0"] {
        let (status, headers, _) = of(beyond).await;
        assert_eq!(
            (status, &headers["content-range"]),
            (StatusCode::RANGE_NOT_SATISFIABLE, &"bytes */15".parse().unwrap())
        );
    }
    for passed_over in ["bytes=6-5", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=", ""] {
        assert_eq!(of(passed_over).await.0, StatusCode::OK, "{passed_over}");
    }
}

#[tokio::test]
async fn the_registry_is_read_only_and_other_paths_are_not_found() {
    let served = served();
    let me = [("may", &*served.module.to_string())];
    for method in ["PUT", "POST", "PATCH", "DELETE"] {
        let (status, _, body) = served.ask(method, "/v2/monitor/blobs/uploads/", &me).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
        assert!(String::from_utf8(body).unwrap().contains("UNSUPPORTED"));
    }
    for path in [
        "/",
        "/v1/",
        "/v2/monitor",
        "/v2/_catalog",
        "/v2/Monitor/tags/list",
        "/v2/../blobs/x",
        "/v2//tags/list",
        "/v2/monitor/blobs/..%2f..%2findex.json",
        "/v2/monitor/manifests/monitor:0.1.0",
        "/v2/nat/manifests/0.1.0",
        "/v2/monitor/referrers",
        "/v2/monitor/manifests/",
        "/v2/monitor/blobs/sha256:00",
    ] {
        assert_eq!(served.ask("GET", path, &me).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    // Manifests are available as blobs, but modules not as manifests.
    let path = format!("/v2/monitor/manifests/{}", served.module);
    assert_eq!(served.ask("GET", &path, &me).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_new_module_is_served_at_once() {
    let served = served();
    let router = router(served.store.clone(), |_: &Parts, _: &Digest| Ok(()));
    let ask = async |path: &str| {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(ask("/v2/nat/manifests/0.1.0").await, StatusCode::NOT_FOUND);
    let other = served.store.put(b"\0asm other", &manifest("nat")).unwrap();
    assert_eq!(ask("/v2/nat/manifests/0.1.0").await, StatusCode::OK);
    served.store.remove(&other).unwrap();
    assert_eq!(ask("/v2/nat/manifests/0.1.0").await, StatusCode::NOT_FOUND);
}
