//! Registry of a test, with chosen answers and delays, and a record of its requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::Net;

/// Function from a path to its answer: `None` for no answer, or status and body. The body of a
/// redirect is its target.
type Answer = dyn Fn(&str) -> Option<(u16, Vec<u8>)> + Send + Sync;

/// Registry that listens in the namespace of a host, without TLS.
pub struct Registry {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    pub fn start(
        net: &Net,
        host: &str,
        address: Ipv4Addr,
        delay: Duration,
        answer: impl Fn(&str) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
    ) -> Self {
        let listener = net.within(host, || TcpListener::bind((address, 0))).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer): (_, Arc<Answer>) = (Arc::clone(&asked), Arc::new(answer));
        // They end with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &log, delay, &*answer));
            }
        });
        Self { address, asked }
    }

    /// Returns how many requested paths contain this text.
    pub fn asked_for(&self, part: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|path| path.contains(part)).count()
    }

    /// Returns the registry's section of a node file.
    pub fn section(&self) -> String {
        let address = self.address;
        format!("[[repository]]\nregistry = \"{address}/modules\"\nplain_http = true\n")
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<String>>, delay: Duration, answer: &Answer) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        while lines.next().is_some_and(|line| !line.is_empty()) {}
        log.lock().unwrap().push(path.clone());
        std::thread::sleep(delay);
        let Some((status, body)) = answer(&path) else {
            // It says nothing, and does not go away.
            std::thread::sleep(Duration::from_secs(60));
            return;
        };
        let location = match status {
            300..400 => format!("Location: {}\r\n", String::from_utf8_lossy(&body)),
            _ => String::new(),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\n{location}Content-Length: {length}\r\n\r\n");
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        if sent.is_err() {
            return;
        }
    }
}
