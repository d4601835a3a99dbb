//! Server nginx, with files that it serves in several ways.

use crate::common::{Line, SOON};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use testkit::{Running, wait_for};

/// Running nginx; it ends on drop.
pub struct Nginx {
    folder: TempDir,
    _running: Running,
}

impl Nginx {
    /// Starts nginx at an L4 port, without files.
    ///
    /// `/ssi/` serves the files in chunks, `/gzip/` encodes them, `/coded/` declares them as
    /// encoded, `/put/` accepts uploads into the folder `put`, and `/sink` accepts posted bodies.
    pub fn start(line: &Line, port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (root, put) = (folder.path().join("files"), folder.path().join("put"));
        for folder in [&root, &put] {
            std::fs::create_dir(folder).unwrap();
        }
        let root = root.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};"))
            .concat();
        // One process, which ends when it is killed.
        let configuration = format!(
            "daemon off; master_process off; user root; pid nginx.pid; error_log stderr;
             worker_rlimit_nofile 4096;
             events {{ worker_connections 2048; }}
             http {{
               access_log off; keepalive_requests 1000000; client_max_body_size 64m; {temporary}
               types {{ text/plain txt; text/event-stream events; application/gzip gz; }}
               default_type application/octet-stream;
               server {{
                 listen {address}; root {root};
                 location /ssi/ {{ alias {root}/; ssi on; ssi_types *; }}
                 location /gzip/ {{ alias {root}/; gzip on; gzip_types *; }}
                 location /coded/ {{ alias {root}/; add_header Content-Encoding gzip; }}
                 location /put/ {{ root {folder}; dav_methods PUT DELETE; }}
                 location /sink {{ return 204; }}
                 location /connection {{ return 200 $connection; }}
               }}
             }}\n",
            address = line.server(port),
            folder = folder.path().display(),
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, configuration).unwrap();
        let (prefix, file) = (folder.path().display().to_string(), file.display().to_string());
        let argv = ["nginx", "-p", &prefix, "-c", &file, "-e", "stderr"];
        let running = Running::start(&line.net.namespace("server").unwrap(), &argv).unwrap();
        listens(line, port);
        Self { folder, _running: running }
    }

    /// Adds a file to serve.
    pub fn serves(&self, name: &str, content: &[u8]) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// Returns the path of a served file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("files").join(name)
    }

    /// Returns the folder of uploads.
    pub fn uploaded(&self) -> &Path {
        self.folder.path()
    }
}

/// Waits until a program listens at this L4 port of the server.
pub fn listens(line: &Line, port: u16) {
    let listens = wait_for(SOON, || {
        let sockets = line.run("server", &["ss", "-Hltn", "sport", "=", &format!(":{port}")]);
        (!sockets.is_empty()).then_some(())
    });
    assert!(listens.is_some(), "nobody listens at port {port} of the server");
}
