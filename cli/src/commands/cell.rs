//! `tam cell`, `tam compile-worker` and `tam codec`: worker processes started by a node, never
//! typed by a user.

use crate::failure::{DONE, Failure, Outcome};
use clap::Args;
use sandbox::fd_passing;
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `tam cell`.
#[derive(Debug, Args)]
pub struct Cell {
    /// The descriptor of the connection to the node
    #[arg(long, value_name = "N")]
    fd: i32,
    /// The node's folder, where the next daemon finds this cell
    #[arg(long, value_name = "FOLDER")]
    directory: PathBuf,
    /// Receive queues of all ports together, which packet memory is sized for
    #[arg(long, value_name = "N")]
    queues: u32,
    /// The core to run on
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// The format of the log on standard error
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: daemon::LogFormat,
}

impl Cell {
    pub(crate) fn run(&self) -> Outcome {
        let daemon = fd_passing::inherited(self.fd).map_err(|error| {
            Failure::io(format!("taking descriptor {}", self.fd), &error)
                .help("a node starts its cells by itself: `tam node --config FILE`")
        })?;
        super::node::log_to_standard_error(self.log_format);
        cell::run(daemon, &self.directory, self.queues, self.core)?;
        Ok(DONE)
    }
}

/// Arguments of `tam compile-worker`: Wasm on standard input, code on standard output.
#[derive(Debug, Args)]
pub struct CompileWorker {
    /// Compile for user level only
    #[arg(long)]
    no_bpf: bool,
    /// Receive the module later, by standard input
    #[arg(long)]
    warm: bool,
    /// A core of another process, used only while that one is idle
    #[arg(long)]
    guest_core: Option<usize>,
}

impl CompileWorker {
    pub(crate) fn run(&self) -> Outcome {
        let compiled = cell::compile_worker(!self.no_bpf, self.warm, self.guest_core);
        compiled.map_err(|error| Failure::io("compiling a module", &error))?;
        Ok(DONE)
    }
}

/// Arguments of `tam codec`: video on standard input, pictures on standard output.
#[derive(Debug, Args)]
pub struct Codec {
    /// A core of another process, used only while that one is idle
    #[arg(long, value_name = "N")]
    guest_core: Option<usize>,
    /// The program to execute in this process
    program: PathBuf,
    /// Arguments of the program
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

impl Codec {
    pub(crate) fn run(&self) -> Outcome {
        let Self { guest_core, program, arguments } = self;
        let Err(error) = cell::run_codec(program, *guest_core, arguments);
        Err(Failure::io(format!("running {}", program.display()), &error))
    }
}
