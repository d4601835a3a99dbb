//! Tests of `services/compress` on this host, with a foreign function that records its arguments.

use super::{Tried, fields, http, spec};
use crate::abi::{Action, Status};
use crate::{Call, ForeignFunction, HeaderMap, MetricValue, Shared, StartError, VmSpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::OnceLock;

fn module() -> &'static [u8] {
    static MODULE: OnceLock<Vec<u8>> = OnceLock::new();
    MODULE.get_or_init(|| {
        let built =
            testbase::built_for_wasm("services/compress/Cargo.toml", "filters/compress", &[]);
        std::fs::read(built.join("compress.wasm")).unwrap()
    })
}

/// Service under test, with its requests to the node.
struct Service {
    tried: Tried,
    asked: Rc<RefCell<Vec<Vec<u8>>>>,
    shared: Rc<RefCell<Shared>>,
}

impl Service {
    fn spec(configuration: &str, foreign: BTreeMap<String, ForeignFunction>) -> VmSpec {
        VmSpec {
            plugin_configuration: Rc::from(configuration.as_bytes()),
            foreign: Rc::new(foreign),
            ..spec()
        }
    }

    /// Starts it on a node that returns `answer`.
    fn start(configuration: &str, answer: Result<(), Status>) -> Self {
        let asked = Rc::new(RefCell::new(Vec::new()));
        let notes = Rc::clone(&asked);
        let code: ForeignFunction = Rc::new(move |_, arguments| {
            notes.borrow_mut().push(arguments.to_vec());
            answer.map(|()| Vec::new())
        });
        let foreign = BTreeMap::from([("tamandua_code_response".to_owned(), code)]);
        let spec = Self::spec(configuration, foreign);
        let shared = Rc::clone(&spec.shared);
        Self { tried: Tried::start(module(), spec).unwrap(), asked, shared }
    }

    /// Passes a request and its response through the module; returns both.
    fn pass(
        &mut self,
        request: &[(&str, &str)],
        response: &[(&str, &str)],
        is_last: bool,
    ) -> (HeaderMap, HeaderMap) {
        let context = self.tried.create(http(request));
        let call = Call::RequestHeaders { context, is_last: true };
        assert_eq!(self.tried.action(call), Action::Continue, "{:?}", self.tried.log);
        let request = std::mem::take(&mut self.tried.stream(context).downstream.headers);
        self.tried.stream(context).upstream.headers = fields(response);
        let call = Call::ResponseHeaders { context, is_last };
        assert_eq!(self.tried.action(call), Action::Continue, "{:?}", self.tried.log);
        if !is_last {
            self.tried.stream(context).upstream.trailers =
                fields(&[("repr-digest", "sha-256=:AA==:"), ("x-sum", "1")]);
            let call = Call::ResponseTrailers(context);
            assert_eq!(self.tried.action(call), Action::Continue);
        }
        (request, std::mem::take(&mut self.tried.stream(context).upstream.headers))
    }

    fn asked(&self) -> Vec<Vec<u8>> {
        self.asked.take()
    }

    fn counted(&self) -> Vec<(String, u64)> {
        let shared = self.shared.borrow();
        let value = |value: &MetricValue| match value {
            MetricValue::Counter(count) => *count,
            _ => panic!("no counter"),
        };
        shared
            .metrics()
            .iter()
            .map(|metric| (metric.name.clone(), value(&metric.value)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

const BROWSER: &[(&str, &str)] =
    &[(":method", "GET"), (":path", "/"), ("accept-encoding", "gzip, deflate, br, zstd")];
const PAGE: &[(&str, &str)] = &[
    (":status", "200"),
    ("Content-Type", "text/html"),
    ("Content-Length", "5000"),
    ("Accept-Ranges", "bytes"),
    ("Repr-Digest", "sha-256=:AA==:"),
    ("ETag", "\"a\""),
];

#[test]
fn a_page_is_coded_and_its_head_declares_it() {
    let mut service = Service::start("", Ok(()));
    let (request, response) = service.pass(BROWSER, PAGE, false);
    assert_eq!(request, fields(BROWSER), "Accept-Encoding goes on as it came");
    let expected = fields(&[
        (":status", "200"),
        ("Content-Type", "text/html"),
        ("ETag", "W/\"a\""),
        ("content-encoding", "zstd"),
        ("vary", "Accept-Encoding"),
    ]);
    assert_eq!(response, expected);
    assert_eq!(service.tried.stream(2).upstream.trailers, fields(&[("x-sum", "1")]));
    assert_eq!(service.asked(), [[4, 255]]);
    assert_eq!(service.counted(), [("coded.zstd".to_owned(), 1)]);
}

#[test]
fn the_configuration_selects_coding_and_level() {
    let mut service = Service::start("codings gzip deflate\nlevel 3\nminimum 5001", Ok(()));
    let (_, response) = service.pass(BROWSER, PAGE, false);
    assert_eq!(response, fields(PAGE), "too small");
    let long = PAGE.iter().map(|&(name, value)| match name {
        "Content-Length" => (name, "5001"),
        _ => (name, value),
    });
    let (_, response) = service.pass(BROWSER, &long.collect::<Vec<_>>(), false);
    assert_eq!(response.get(b"content-encoding"), Some(&b"gzip"[..]));
    assert_eq!(service.asked(), [[2, 3]]);
}

#[test]
fn an_unknown_configuration_is_refused_with_its_line() {
    let spec = Service::spec("level 1\nlevle 2", BTreeMap::new());
    let failure = Tried::start(module(), spec).err().unwrap();
    assert_eq!(failure.error, StartError::Refused("proxy_on_configure"));
    let reason = failure.reason();
    assert!(reason.contains("configuration, line 2: there is no levle"), "{reason}");
}

#[test]
fn a_client_without_codings_gets_it_uncoded_and_vary_is_set() {
    let mut service = Service::start("", Ok(()));
    let (_, response) = service.pass(&[(":method", "GET"), (":path", "/")], PAGE, false);
    let mut expected = fields(PAGE);
    expected.add(b"vary", b"Accept-Encoding").unwrap();
    assert_eq!(response, expected);
    assert_eq!(service.asked(), [[0; 0]; 0]);
}

#[test]
fn a_response_to_head_declares_the_coding_without_requesting_it() {
    let mut service = Service::start("", Ok(()));
    let request = [(":method", "HEAD"), (":path", "/"), ("accept-encoding", "gzip")];
    let (_, response) = service.pass(&request, PAGE, true);
    assert_eq!(response.get(b"content-encoding"), Some(&b"gzip"[..]));
    assert_eq!((response.get(b"content-length"), response.len()), (None, 5));
    assert_eq!(service.asked(), [[0; 0]; 0]);
}

#[test]
fn a_cached_coded_response_is_revalidated() {
    let mut service = Service::start("", Ok(()));
    let request = [&[("if-none-match", "W/\"a\"")][..], BROWSER].concat();
    let not_modified = [(":status", "304"), ("etag", "\"a\"")];
    let (request, response) = service.pass(&request, &not_modified, true);
    assert_eq!(request.get(b"if-none-match"), Some(&b"W/\"a\", \"a\""[..]));
    let expected = fields(&[(":status", "304"), ("etag", "W/\"a\""), ("vary", "Accept-Encoding")]);
    assert_eq!(response, expected);
}

#[test]
fn a_node_that_does_not_code_leaves_the_response_as_it_is() {
    let expected = {
        let mut expected = fields(PAGE);
        expected.add(b"vary", b"Accept-Encoding").unwrap();
        expected
    };
    let mut service = Service::start("", Err(Status::InternalFailure));
    for _ in 0..2 {
        let (_, response) = service.pass(BROWSER, PAGE, false);
        assert_eq!(response, expected);
    }
    assert_eq!(service.counted(), [("refused".to_owned(), 2)]);
    let warnings = |lines: &[String]| {
        lines.iter().filter(|line| line.contains("the node does not code")).count()
    };
    assert_eq!(warnings(&service.tried.log), 1, "{:?}", service.tried.log);

    // A node without the function.
    let spec = Service::spec("", BTreeMap::new());
    let (asked, shared) = (Rc::default(), Rc::clone(&spec.shared));
    let mut service = Service { tried: Tried::start(module(), spec).unwrap(), asked, shared };
    let (_, response) = service.pass(BROWSER, PAGE, false);
    assert_eq!(response, expected);
    assert_eq!(warnings(&service.tried.log), 1);
}

#[test]
fn heads_of_any_bytes_do_not_end_the_module() {
    let mut service = Service::start("", Ok(()));
    for value in ["\u{ff}\u{0}", ",;=\"\\", "\"", "W/\"", "*;q=\"", ";;;", "9999999999999999999999"]
    {
        let names = [
            "accept-encoding",
            "range",
            "if-none-match",
            "cache-control",
            "content-type",
            "content-encoding",
            "content-length",
            "etag",
            "vary",
            ":status",
            ":method",
        ];
        for name in names {
            let request = [BROWSER, &[(name, value)]].concat();
            let response = [PAGE, &[(name, value)]].concat();
            service.pass(&request, &response, false);
            // Bytes that are no text in a value, as HTTP allows them.
            let context = service.tried.create(http(BROWSER));
            let headers = &mut service.tried.stream(context).downstream.headers;
            headers.add(name.as_bytes(), &[0xff, 0x80, b'"']).unwrap();
            let call = Call::RequestHeaders { context, is_last: true };
            assert_eq!(service.tried.action(call), Action::Continue);
            let headers = &mut service.tried.stream(context).upstream.headers;
            headers.add(name.as_bytes(), &[0xff, 0x80, b'"']).unwrap();
            let call = Call::ResponseHeaders { context, is_last: false };
            assert_eq!(service.tried.action(call), Action::Continue);
        }
    }
}
