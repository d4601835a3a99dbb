//! Video that a module gets as pictures: codecs beside a node, their rights, and their end.

use crate::clean_end::{gone, kill};
use crate::common::{Ends, Line, SOON};
use api::SessionRequest;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{Service, root_or_skip, service_module, skip_this, wait_for};

const PORT: u16 = 8090;
const WISH: &str = "width=160 height=120 rate=10 pixels=gray8";
/// Bytes of a picture with its header.
const PICTURE: usize = 16 + 160 * 120;
/// Time for a codec's first picture, or its end, on a busy machine.
const SOME_TIME: Duration = Duration::from_secs(20);

fn can_run(test: &str) -> bool {
    if !root_or_skip(test) {
        return false;
    }
    let has = Command::new("ffmpeg").arg("-version").output().is_ok_and(|it| it.status.success());
    if !has {
        skip_this("there is no ffmpeg on the path");
    }
    has
}

/// Returns a module that requests all bodies as pictures, and logs the answers.
fn transcodes() -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "env" "proxy_call_foreign_function"
                (func $call (param i32 i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
            (memory (export "memory") 4)
            (global $heap (mut i32) (i32.const 0x10000))
            (data (i32.const 0x100) "tamandua_transcode")
            (data (i32.const 0x200) "{WISH}")
            (func (export "proxy_abi_version_0_2_1"))
            (func (export "proxy_on_memory_allocate") (param i32) (result i32)
                (if (i32.gt_u (i32.add (global.get $heap) (local.get 0)) (i32.const 0x30000))
                    (then (global.set $heap (i32.const 0x10000))))
                (global.get $heap)
                (global.set $heap (i32.add (global.get $heap) (local.get 0))))
            (func (export "proxy_on_context_create") (param i32 i32))
            (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
                (drop (call $call (i32.const 0x100) (i32.const 18) (i32.const 0x200)
                    (i32.const {}) (i32.const 0x300) (i32.const 0x304)))
                (drop (call $log (i32.const 2)
                    (i32.load (i32.const 0x300)) (i32.load (i32.const 0x304))))
                (i32.const 0))
            (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
                (i32.const 0)))"#,
        WISH.len()
    );
    wat::parse_str(text).unwrap()
}

/// Returns a line whose node decodes video into pictures.
fn line(session: &str) -> Line {
    let line = Line::up();
    line.resolve_neighbours();
    if !session.is_empty() {
        let cpu = vec!["1ms/40ms".to_owned()];
        let request = SessionRequest { name: session.to_owned(), cpu, ..SessionRequest::default() };
        line.node.client().create_session(&request).unwrap();
    }
    deploy(&line, session);
    line
}

fn deploy(line: &Line, session: &str) {
    let rules = [&*format!("proto tcp dport {PORT}")];
    let parameters = [("capabilities", "transcode")];
    let (rules, parameters) = (&rules[..], &parameters[..]);
    let service = Service { name: "video", rules, parameters, session, ..Service::default() };
    line.node.deploy(&transcodes(), &service).unwrap();
}

fn film(seconds: u32, format: &str) -> Vec<u8> {
    let picture = format!("testsrc=size=352x288:rate=25:duration={seconds}");
    let arguments = ["-v", "error", "-nostdin", "-f", "lavfi", "-i", &picture];
    let coded = ["-c:v", "mpeg2video", "-b:v", "1500k", "-g", "12", "-bf", "2", "-f", format];
    let output = Command::new("ffmpeg").args(arguments).args(coded).arg("pipe:1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Returns ffmpeg's own output for a film.
fn expected(film: &[u8], format: &str) -> Vec<u8> {
    let input = ["-v", "error", "-nostdin", "-f", format, "-i", "pipe:0", "-an", "-vf"];
    let filters = "setpts=PTS-STARTPTS,fps=10,scale=160:120:flags=fast_bilinear";
    let output = ["-fps_mode", "passthrough", "-pix_fmt", "gray", "-f", "rawvideo", "pipe:1"];
    let mut child = Command::new("ffmpeg")
        .args(input)
        .arg(filters)
        .args(output)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let film = film.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&film));
    let mut pictures = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut pictures).unwrap();
    writer.join().unwrap().unwrap();
    assert!(child.wait().unwrap().success());
    pictures
}

/// Returns the pixels of all pictures of a body.
fn pixels(body: &[u8]) -> Vec<u8> {
    let pictures = body.chunks_exact(PICTURE);
    assert!(pictures.remainder().is_empty(), "{} bytes", body.len());
    pictures.flat_map(|picture| picture[16..].iter().copied()).collect()
}

fn listener(line: &Line) -> TcpListener {
    let address = SocketAddr::from((line.net.v4("server", "r1").unwrap(), PORT));
    let bind = || TcpListener::bind(address);
    line.net.within("server", bind).unwrap().unwrap()
}

/// Returns the daemon's child processes that run a codec.
fn codecs(daemon: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").unwrap();
    let numbers = numbers.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &u32| {
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
                return false;
            };
            let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
            let parent = rest.split(' ').nth(1).and_then(|it| it.parse().ok());
            name.ends_with("(ffmpeg") && parent == Some(daemon)
        })
        .collect()
}

fn line_of(pid: u32, key: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(key));
    line.map(|line| line[key.len()..].trim().to_owned()).unwrap_or_default()
}

#[test]
fn video_comes_as_the_pictures_that_ffmpeg_gives_and_its_session_pays() {
    if !can_run("video through a node") {
        return;
    }
    let line = line("");
    let listener = listener(&line);
    let films = [("mpeg2video", "mpegvideo"), ("mpegts", "mpegts"), ("vob", "mpeg")];
    let folder = tempfile::tempdir().unwrap();
    for (writes, reads) in films {
        let film = film(4, writes);
        let path: PathBuf = folder.path().join(writes);
        let url = format!("http://{}/film", line.server(PORT));
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", film.len());
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(&film).unwrap();
            });
            let path = path.display().to_string();
            line.run("client", &["curl", "-sS", "-f", "-m", "30", "-D", "-", "-o", &path, &url])
        });
        assert!(output.contains("chunked") && !output.contains("Content-Length"), "{output}");
        let came = pixels(&std::fs::read(&path).unwrap());
        let expected = expected(&film, reads);
        assert_eq!(came.len(), expected.len(), "{writes}");
        assert!(came == expected, "{writes}: other pictures");
    }
    let daemon = line.node.pid().unwrap();
    let ended = wait_for(SOON, || codecs(daemon).is_empty().then_some(()));
    assert!(ended.is_some(), "{:?}", codecs(daemon));
    // Three codecs have taken more than a cell takes to carry their bytes.
    let cpu = || Some(line.node.service("video").unwrap().stats.streams?.cpu_ns);
    let paid = wait_for(SOON, || cpu().filter(|cpu| *cpu > 60_000_000));
    assert!(paid.is_some(), "{:?}", cpu());
}

/// Serves clients concurrently, until `over` is set.
fn serves<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    listener: &'scope TcpListener,
    over: &'scope AtomicBool,
    serve: impl Fn(TcpStream) + Copy + Send + 'scope,
) {
    listener.set_nonblocking(true).unwrap();
    scope.spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            scope.spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                serve(stream);
            });
        }
    });
}

/// Serves a film to each client.
fn cinema<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    listener: &'scope TcpListener,
    film: &'scope [u8],
    over: &'scope AtomicBool,
) {
    serves(scope, listener, over, move |mut stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n";
        let head = format!("{head}Content-Length: {}\r\n\r\n", film.len());
        // Whoever leaves early is a client like others.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(film));
    });
}

/// Returns size, palette and bytes of each frame that a device gets (docs/guides/transcode.md).
fn frames(mut body: &[u8]) -> Vec<(u16, u16, u8, usize)> {
    let mut frames = Vec::new();
    while let Some((head, behind)) = body.split_first_chunk::<20>() {
        assert_eq!(head[..2], *b"TF");
        let two = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let length = u32::from_be_bytes([head[12], head[13], head[14], head[15]]) as usize;
        frames.push((two(2), two(4), head[6], length));
        body = &behind[length..];
    }
    assert!(body.is_empty(), "{} bytes behind the last frame", body.len());
    frames
}

#[test]
fn a_device_and_a_browser_play_a_film_through_a_node() {
    if !can_run("a film through a node") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let rules = [&*format!("proto tcp dport {PORT}")];
    let parameters = [("capabilities", "transcode")];
    let (rules, parameters) = (&rules[..], &parameters[..]);
    let service = Service { name: "video", rules, parameters, ..Service::default() };
    line.node.deploy(&service_module("transcode").unwrap(), &service).unwrap();
    let (listener, film, over) = (listener(&line), film(4, "mpegts"), AtomicBool::new(false));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let server = format!("http://{}", line.server(PORT));
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        cinema(scope, &listener, &film, &over);
        let curl = |path: &str, to: &str| {
            let url = format!("{server}{path}");
            line.run("client", &["curl", "-sS", "-f", "-m", "30", "-D", "-", "-o", &at(to), &url])
        };
        // Without a wish it is as it was.
        curl("/film.ts", "plain");
        assert!(std::fs::read(at("plain")).unwrap() == film);
        let wish = "tamandua-size=160x120&tamandua-rate=10&tamandua-palette=grey4";
        let head = curl(&format!("/film.ts?{wish}"), "frames");
        assert!(head.contains("application/x-tamandua-frames"), "{head}");
        let frames = frames(&std::fs::read(at("frames")).unwrap());
        assert_eq!(frames.len(), 40, "four seconds");
        let palette = frames[0].2;
        assert!(frames.iter().all(|frame| *frame == (160, 120, palette, 160 * 120 / 2)));
        let Some(browser) = browser() else { return skip_this("there is no Chromium") };
        let page = format!("{server}/tamandua/viewer?src=/film.ts&size=96x64&palette=grey2");
        let profile = format!("--user-data-dir={}", at("profile"));
        let argv = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            &profile,
            "--virtual-time-budget=8000",
            "--dump-dom",
            &page,
        ];
        let page = line.run("client", &argv);
        let shown = |id: &str| {
            let (_, behind) = page.split_once(&format!("id=\"{id}\">")).unwrap();
            behind.split('<').next().unwrap().to_owned()
        };
        assert_eq!(shown("shape"), "96×64", "{page}");
        assert_eq!(shown("left"), "0");
    });
    assert_eq!(line.node.service("video").unwrap().stats.counters["started"], 2);
}

fn browser() -> Option<&'static str> {
    let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs)
}

/// Serves a stream that repeats its film slowly, until `over` is set.
fn endless<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    listener: &'scope TcpListener,
    film: &'scope [u8],
    over: &'scope AtomicBool,
) {
    serves(scope, listener, over, move |mut stream| {
        let mut goes_on = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_ok();
        for part in film.chunks(4_000).cycle() {
            if !goes_on || over.load(Ordering::Relaxed) {
                return;
            }
            goes_on = stream.write_all(part).is_ok();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// Returns the connection of a client that has received a picture.
fn watcher(line: &Line) -> TcpStream {
    let to = line.server(PORT);
    let mut stream = line.net.within("client", || TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(SOME_TIME)).unwrap();
    stream.write_all(b"GET /film HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut came = 0;
    while came < PICTURE {
        came += match stream.read(&mut [0; 1 << 16]) {
            Ok(count @ 1..) => count,
            other => panic!("{other:?}: {}", line.node.log()),
        };
    }
    stream
}

#[test]
fn a_codec_has_no_rights_and_ends_with_its_stream_its_cell_and_its_node() {
    if !can_run("codecs of a node") {
        return;
    }
    let mut line = line("");
    let (listener, film, over) = (listener(&line), film(2, "mpegts"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        endless(scope, &listener, &film, &over);
        let daemon = line.node.pid().unwrap();
        let client = watcher(&line);
        let [codec] = codecs(daemon)[..] else { panic!("{:?}", codecs(daemon)) };
        for (key, value) in
            [("NoNewPrivs:", "1"), ("Seccomp:", "2"), ("CapEff:", "0000000000000000")]
        {
            assert_eq!(line_of(codec, key), value, "{key}");
        }
        let users = line_of(codec, "Uid:");
        let user: u32 = users.split_whitespace().next().unwrap().parse().unwrap();
        assert!(user >= 0x7000_0000 && users.split_whitespace().all(|it| it == user.to_string()));
        assert_eq!(line_of(codec, "Groups:"), "");
        let limits = std::fs::read_to_string(format!("/proc/{codec}/limits")).unwrap();
        let limit = |name: &str| {
            let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..].split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(limit("Max data size"), (96 << 20).to_string());
        assert_eq!((limit("Max core file size"), limit("Max file size")), ("0".into(), "0".into()));
        // Its descriptors: the socket twice, and what it complains to.
        let descriptors = std::fs::read_dir(format!("/proc/{codec}/fd")).unwrap();
        let mut kinds: Vec<String> = descriptors
            .map(|it| std::fs::read_link(it.unwrap().path()).unwrap().display().to_string())
            .map(|it| it.split(':').next().unwrap_or_default().to_owned())
            .collect();
        kinds.sort();
        assert_eq!(kinds, ["pipe", "socket", "socket"]);
        // With its stream.
        drop(client);
        assert!(gone(codec), "the client has gone");
        // With its cell.
        let _client = watcher(&line);
        let [codec] = codecs(daemon)[..] else { panic!("{:?}", codecs(daemon)) };
        kill(line.node.cell().unwrap());
        assert!(gone(codec), "the cell has gone");
        // When it is killed itself, its client is not told that this was all.
        let again = wait_for(SOME_TIME, || {
            let service = line.node.service("video").ok()?;
            (service.state == "running").then_some(())
        });
        assert!(again.is_some(), "{:?}", line.node.service("video"));
        let mut client = watcher(&line);
        let [codec] = codecs(daemon)[..] else { panic!("{:?}", codecs(daemon)) };
        kill(codec);
        assert!(gone(codec));
        let mut rest = Vec::new();
        assert!(client.read_to_end(&mut rest).is_err() || !rest.ends_with(b"0\r\n\r\n"));
        // With its node.
        let _client = watcher(&line);
        let [codec] = codecs(daemon)[..] else { panic!("{:?}", codecs(daemon)) };
        assert!(line.node.stop().unwrap().success());
        assert!(gone(codec), "the node has stopped");
    });
}

#[test]
fn a_stream_beyond_its_sessions_processor_time_is_refused_at_once() {
    if !can_run("codecs of a session") {
        return;
    }
    let line = line("small");
    let listener = listener(&line);
    let to = line.server(PORT);
    let mut client = line.net.within("client", || TcpStream::connect(to)).unwrap().unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(b"GET /film HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
    server.write_all(answer).unwrap();
    let mut came = vec![0; answer.len()];
    client.read_exact(&mut came).unwrap();
    assert_eq!(came, answer, "what its module does not change goes as it is");
    let said = || line.node.log().contains("refused busy its session").then_some(());
    assert!(wait_for(SOON, said).is_some(), "{}", line.node.log());
    assert_eq!(codecs(line.node.pid().unwrap()), [0; 0]);
}
