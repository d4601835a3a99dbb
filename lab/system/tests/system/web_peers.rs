//! Clients curl and wrk and the server nginx at the ends of stream services: the received bytes are
//! those served.

use crate::common::Line;
use crate::nginx::Nginx;
use crate::streams::{PORT, counts_bytes, deploys, noise, passes, stats};
use sha2::{Digest, Sha256};
use std::path::Path;
use testkit::{root_or_skip, service_module};

/// Served file: its name, and its bytes.
type File = (&'static str, Vec<u8>);

fn files() -> Vec<File> {
    let text = |length: usize| -> Vec<u8> {
        let lines = (0..).flat_map(|at: u32| format!("line {at} of some text\n").into_bytes());
        lines.take(length).collect()
    };
    let event = |at: u32| format!("id: {at}\ndata: something happened\n\n");
    vec![
        ("empty.txt", Vec::new()),
        ("one.txt", text(1)),
        ("thousand.txt", text(1_000)),
        ("odd.bin", noise(1_000)),
        ("some.txt", text(65_536)),
        ("meg.txt", text(1_000_000)),
        ("noise.bin", noise(20_000_000)),
        ("coded.gz", gzip(&text(300_000))),
        ("live.events", (0..2_000).flat_map(|at| event(at).into_bytes()).collect()),
    ]
}

fn content<'files>(files: &'files [File], path: &str) -> &'files [u8] {
    &files.iter().find(|(name, _)| *name == path).unwrap().1
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Service on the path; the first entry has none.
struct Way {
    name: &'static str,
    module: Option<Vec<u8>>,
    parameters: &'static [(&'static str, &'static str)],
    /// True if it leaves heads unchanged.
    keeps_heads: bool,
}

fn ways() -> Vec<Way> {
    let way = |name, module| Way { name, module, parameters: &[], keeps_heads: true };
    let of = |name, parameters| Way {
        name,
        module: Some(service_module(name).unwrap()),
        parameters,
        keeps_heads: false,
    };
    vec![
        way("none", None),
        way("plain", Some(passes())),
        Way { parameters: &[("protocol", "tcp")], ..way("tcp", Some(counts_bytes())) },
        way("http", Some(shows_all())),
        Way { parameters: KEEPS_SERVERS, ..way("kept", Some(shows_all())) },
        of("compress", &[("capabilities", "code-responses")]),
        of("reflector", &[("capabilities", "reflect")]),
    ]
}

/// Manifest setting by which connections to servers are kept for the next client of the same
/// address.
const KEEPS_SERVERS: &[(&str, &str)] = &[("capabilities", "keep-servers")];

/// Returns a filter that is called for all of each message and changes nothing.
fn shows_all() -> Vec<u8> {
    let callback = |name: &str| {
        format!("(func (export \"proxy_on_{name}\") (param i32 i32 i32) (result i32) i32.const 0)")
    };
    let callbacks = ["request_headers", "request_body", "response_headers", "response_body"];
    let text = String::from("(module $shown (memory (export \"memory\") 1) ")
        + "(func (export \"proxy_abi_version_0_2_1\"))"
        + &callbacks.map(callback).concat()
        + ")";
    wat::parse_str(text).unwrap()
}

/// Result of one call of curl: status and fields, without the time of day, and the body's digest.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    status: String,
    fields: Vec<String>,
    body: String,
}

/// Calls curl with these arguments, followed by the URL.
fn curl(line: &Line, scratch: &Path, arguments: &[&str], path: &str) -> Got {
    let url = format!("http://{}/{path}", line.server(PORT));
    let body = scratch.join("body");
    // A body that is empty leaves the file before.
    let _ = std::fs::remove_file(&body);
    let body_path = body.display().to_string();
    let usual = ["curl", "-sS", "-m", "20", "-D", "-", "-o", &body_path];
    let said = line.run("client", &[&usual, arguments, &[&*url]].concat());
    // The last head: 100 comes before it.
    let head = said.trim_end().rsplit("\r\n\r\n").next().unwrap_or_default();
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().to_owned();
    let fields = lines.filter(|field| !field.starts_with("Date: ")).map(str::to_owned).collect();
    // Of a head alone curl makes a body.
    let body = match arguments.contains(&"-I") {
        true => Vec::new(),
        false => std::fs::read(&body).unwrap_or_default(),
    };
    Got { status, fields, body: sha256(&body) }
}

/// Request: path and options.
#[derive(Debug)]
struct Request<'a> {
    path: &'static str,
    how: Vec<&'a str>,
}

const GZIP: &str = "Accept-Encoding: gzip";

fn requests(is_known: &str) -> Vec<Request<'_>> {
    let some: [(&'static str, &[&str]); 23] = [
        ("nothing.txt", &[]),
        ("meg.txt", &["-H", is_known]),
        ("meg.txt", &["-H", "If-None-Match: \"another\""]),
        ("meg.txt", &["-H", "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT"]),
        ("empty.txt", &["-I"]),
        ("meg.txt", &["-I"]),
        ("meg.txt", &["-r", "0-0"]),
        ("meg.txt", &["-r", "65530-131080"]),
        ("noise.bin", &["-r", "-70000"]),
        ("noise.bin", &["-r", "19999999-"]),
        ("meg.txt", &["-r", "1000000-"]),
        ("ssi/empty.txt", &[]),
        ("ssi/some.txt", &[]),
        ("ssi/meg.txt", &["-0"]),
        ("empty.txt", &["-0"]),
        ("meg.txt", &["-0"]),
        ("noise.bin", &["-0"]),
        ("ssi/noise.bin", &[]),
        ("gzip/meg.txt", &["-H", GZIP]),
        ("gzip/meg.txt", &["--compressed"]),
        ("coded/coded.gz", &["--compressed"]),
        ("thousand.txt", &["-d", "not here"]),
        ("thousand.txt", &["-0", "-d", "not here"]),
    ];
    let mut requests = Vec::new();
    for (path, how) in some {
        requests.push(Request { path, how: how.to_vec() });
    }
    for (path, _) in files() {
        for how in [&[][..], &["--compressed"]] {
            requests.push(Request { path, how: how.to_vec() });
        }
    }
    requests
}

impl Request<'_> {
    /// Returns the file, if the response has all of it, decoded.
    fn whole<'files>(&self, files: &'files [File]) -> Option<&'files [u8]> {
        let is_whole = matches!(self.how[..], [] | ["-0"] | ["--compressed"]);
        let is_file = files.iter().any(|(name, _)| *name == self.path);
        (is_whole && is_file).then(|| content(files, self.path))
    }
}

#[test]
fn what_curl_gets_of_nginx_is_the_same_with_every_kind_of_service_in_between() {
    if !root_or_skip("curl and nginx") {
        return;
    }
    let line = Line::up();
    let nginx = Nginx::start(&line, PORT);
    line.resolve_neighbours();
    let (files, scratch) = (files(), tempfile::tempdir().unwrap());
    files.iter().for_each(|(name, content)| nginx.serves(name, content));
    let etag = curl(&line, scratch.path(), &[], "meg.txt").field("ETag");
    let is_known = format!("If-None-Match: {etag}");
    let requests = requests(&is_known);
    let mut directly = Vec::new();
    for way in ways() {
        if let Some(module) = &way.module {
            deploys(&line, "streams", PORT, module, way.parameters);
        }
        for (number, request) in requests.iter().enumerate() {
            let got = curl(&line, scratch.path(), &request.how, request.path);
            if let Some(content) = request.whole(&files) {
                let expected = ("200 OK", &*sha256(content));
                assert_eq!((got.code(), &*got.body), expected, "{}: {request:?}", way.name);
            }
            match directly.get(number) {
                Some(before) => compare(&way, request, &got, before, &files),
                None => directly.push(got),
            }
        }
        uploads(&line, &nginx, way.name, scratch.path());
        if way.module.is_some() {
            let stats = stats(&line);
            assert!(stats.accepted >= requests.len() as u64, "{}: {stats:?}", way.name);
            line.node.remove("streams").unwrap();
        }
    }
    for status in ["304", "206", "416", "404", "405"] {
        assert!(directly.iter().any(|got| got.code().starts_with(status)), "{status}");
    }
    let is_chunked = |got: &&Got| got.field("Transfer-Encoding") == "chunked";
    assert!(directly.iter().filter(is_chunked).count() >= 3, "{directly:#?}");
}

/// Names of the files that `compress` encodes.
const CODED: [&str; 3] = ["thousand.txt", "some.txt", "meg.txt"];

/// Compares a response through a service with the one without it.
fn compare(way: &Way, request: &Request, got: &Got, before: &Got, files: &[File]) {
    let what = format!("{}: {request:?}: {got:#?}", way.name);
    let codes = request.how.contains(&GZIP);
    let body = match way.name {
        // It asks servers for nothing that is coded.
        "reflector" if codes => sha256(content(files, "meg.txt")),
        _ => before.body.clone(),
    };
    assert_eq!((&got.status, &got.body), (&before.status, &body), "{what}");
    if way.keeps_heads {
        assert_eq!(got.fields, before.fields, "{what}");
    }
    if way.name == "compress" && request.how == ["--compressed"] {
        // What is small, an event stream, or no text, is not coded; what its server has coded is.
        let is_coded = CODED.contains(&request.path) || before.is_coded();
        assert_eq!(got.is_coded(), is_coded, "{what}");
    }
}

impl Got {
    /// Returns the status without the version.
    fn code(&self) -> &str {
        self.status.split_once(' ').map_or("", |(_, code)| code)
    }

    fn is_coded(&self) -> bool {
        !self.field("Content-Encoding").is_empty()
    }

    /// Returns the value of a field; empty without it.
    fn field(&self, name: &str) -> String {
        let mut fields = self.fields.iter().filter_map(|field| field.split_once(": "));
        let field = fields.find(|field| field.0.eq_ignore_ascii_case(name));
        field.map(|field| field.1.to_owned()).unwrap_or_default()
    }
}

/// Checks that curl's uploads, with a length, in chunks, and after `Expect: 100-continue`, are in
/// nginx' folder.
fn uploads(line: &Line, nginx: &Nginx, way: &str, scratch: &Path) {
    let file = scratch.join("upload");
    let path = file.display().to_string();
    let chunked = ["-H", "Transfer-Encoding: chunked"];
    for (length, how) in
        [(0, &[][..]), (1, &[]), (70_000, &chunked), (3_000_000, &[]), (3_000_000, &chunked)]
    {
        let content = noise(length);
        std::fs::write(&file, &content).unwrap();
        let upload = [how, &["-T", &path]].concat();
        let got = curl(line, scratch, &upload, "put/upload");
        assert!(got.code().starts_with("201"), "{way}: {length} {how:?}: {got:#?}");
        let kept = nginx.uploaded().join("put/upload");
        assert_eq!(sha256(&std::fs::read(&kept).unwrap()), sha256(&content), "{way}: {length}");
        std::fs::remove_file(&kept).unwrap();
        if length < 70_000 {
            continue;
        }
        let posted = format!("@{path}");
        let post = [how, &["--data-binary", &posted]].concat();
        let got = curl(line, scratch, &post, "sink");
        assert!(got.code().starts_with("204"), "{way}: {length} {how:?}: {got:#?}");
    }
}

#[test]
fn clients_of_one_address_share_connections_to_nginx_where_the_operator_says_so() {
    if !root_or_skip("connections to nginx") {
        return;
    }
    let line = Line::up();
    let _nginx = Nginx::start(&line, PORT);
    line.resolve_neighbours();
    let url = format!("http://{}/connection", line.server(PORT));
    for (parameters, is_shared) in [(&[][..], false), (KEEPS_SERVERS, true)] {
        deploys(&line, "streams", PORT, &shows_all(), parameters);
        let ask = |close: bool| {
            let close: &[&str] = if close { &["-H", "Connection: close"] } else { &[] };
            line.run("client", &[&["curl", "-sSi", "-m", "20"], close, &[&*url]].concat())
        };
        // Clients that say that they end, and clients that just do.
        let answers = [true, true, false, false, true].map(ask);
        let numbers: Vec<&str> =
            answers.iter().filter_map(|it| it.rsplit("\r\n\r\n").next()).collect();
        assert!(numbers.iter().all(|it| it.trim().parse::<u64>().is_ok()), "{answers:#?}");
        assert_eq!(numbers.iter().all(|it| *it == numbers[0]), is_shared, "{answers:#?}");
        for (answer, closes) in answers.iter().zip([true, true, false, false, true]) {
            assert_eq!(answer.contains("Connection: close"), closes, "{answer}");
        }
        line.node.remove("streams").unwrap();
    }
}

#[test]
fn one_connection_of_curl_and_many_at_once_get_many_files_through_a_filter() {
    if !root_or_skip("connections of curl") {
        return;
    }
    let line = Line::up();
    let nginx = Nginx::start(&line, PORT);
    line.resolve_neighbours();
    let (files, scratch) = (files(), tempfile::tempdir().unwrap());
    files.iter().for_each(|(name, content)| nginx.serves(name, content));
    let paths: Vec<String> = ["", "ssi/"]
        .iter()
        .flat_map(|at| files.iter().map(move |(name, _)| format!("{at}{name}")))
        .collect();
    let kept = ways().into_iter().filter(|way| matches!(way.name, "http" | "kept" | "compress"));
    for way in kept {
        deploys(&line, "streams", PORT, way.module.as_deref().unwrap(), way.parameters);
        for (number, how) in
            [&["--no-parallel"][..], &["--compressed"], &["--parallel"]].iter().enumerate()
        {
            let mut argv = vec!["curl", "-sS", "-m", "30", "-w", "%{http_code} %{num_connects}\\n"];
            argv.extend_from_slice(how);
            let outputs: Vec<[String; 2]> = paths
                .iter()
                .map(|path| {
                    let output = scratch.path().join(path.replace('/', "-")).display().to_string();
                    [output, format!("http://{}/{path}", line.server(PORT))]
                })
                .collect();
            argv.extend(outputs.iter().flat_map(|[output, url]| ["-o", output, url]));
            let said = line.run("client", &argv);
            let what = format!("{} {how:?}: {said}", way.name);
            assert!(said.lines().all(|line| line.starts_with("200 ")), "{what}");
            let connections = said.lines().filter(|line| line.ends_with(" 1")).count();
            assert_eq!(connections == 1, number < 2, "{what}");
            for (path, [output, _]) in paths.iter().zip(&outputs) {
                let content = content(&files, path.trim_start_matches("ssi/"));
                // curl makes no file of nothing.
                let came = std::fs::read(output).unwrap_or_default();
                assert_eq!(sha256(&came), sha256(content), "{what}: {path}");
                let _ = std::fs::remove_file(output);
            }
        }
        line.node.remove("streams").unwrap();
    }
}

#[test]
fn wrk_sees_no_error_through_a_filter_and_through_compress() {
    if !root_or_skip("wrk") {
        return;
    }
    let line = Line::up();
    let nginx = Nginx::start(&line, PORT);
    line.resolve_neighbours();
    nginx.serves("page.txt", &"Many words, again and again. ".repeat(800).into_bytes());
    let url = format!("http://{}/page.txt", line.server(PORT));
    for way in ways().into_iter().filter(|way| matches!(way.name, "tcp" | "http" | "compress")) {
        deploys(&line, "streams", PORT, way.module.as_deref().unwrap(), way.parameters);
        let argv = ["wrk", "-t", "1", "-c", "50", "-d", "1", "-H", GZIP, &url];
        let said = line.run("client", &argv);
        // It has these lines only when there was one.
        let failed = said.contains("Socket errors") || said.contains("Non-2xx");
        let requests = said.lines().find_map(|line| line.trim().split_once(" requests in "));
        let requests: u64 = requests.and_then(|it| it.0.parse().ok()).unwrap_or_default();
        assert!(!failed && requests > 50, "{}: {said}", way.name);
        let service = line.node.service("streams").unwrap().stats;
        let streams = service.streams.unwrap();
        assert!(streams.accepted >= 50 && streams.unreachable == 0, "{streams:?}");
        if way.name == "compress" {
            let coded = service.counters["coded.gzip"];
            assert!(coded >= requests, "{coded} of {requests}");
        }
        line.node.remove("streams").unwrap();
    }
}
