//! `BPF_PROG_TEST_RUN`: runs a program over one packet, or as a source of live frames.
//!
//! No device is involved in the first; the second redirects or passes real frames.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytemuck::{Pod, Zeroable};
use libbpf_sys as sys;
use units::Nanos;

/// Most bytes that a program may add to a packet: head and tail space are below a page.
const GROWTH_MAX: usize = 4096;

/// `struct xdp_md`, as [`Program::test_run`](crate::Program::test_run) takes and returns it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct XdpContext {
    /// Offset of the frame: the bytes of metadata in front of it.
    pub data: u32,
    /// End of the frame: the length of the input, metadata included.
    pub data_end: u32,
    /// Offset of the metadata: 0.
    pub data_meta: u32,
    /// Arrival device, of the current network namespace; 0 means loopback.
    pub ingress_ifindex: u32,
    /// Receive queue.
    pub rx_queue_index: u32,
    /// Always 0.
    pub egress_ifindex: u32,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// Return value of the program for the last packet (`XDP_PASS` …).
    pub retval: u32,
    /// Packet afterwards; begins with the metadata, if there is any.
    pub data_out: Vec<u8>,
    /// Context afterwards, when one was given.
    pub ctx_out: Option<Vec<u8>>,
    /// Mean time of one run, rounded down by the kernel.
    pub duration: Nanos,
}

/// Failure to run a program.
#[derive(Debug, thiserror::Error)]
pub enum TestRunError {
    /// The input is longer than a packet can be, or than the kernel counts.
    #[error("cannot run '{program}': {what} of {found} is over {limit}")]
    TooLarge {
        /// Name of the program.
        program: String,
        /// `a packet` or `a repetition`.
        what: &'static str,
        /// Size as given.
        found: usize,
        /// Limit of the size.
        limit: usize,
    },
    /// The kernel refused.
    #[error("cannot run '{program}' over {length} bytes: {source}")]
    Kernel {
        /// Name of the program.
        program: String,
        /// Length of the packet, bytes.
        length: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Program that is run.
#[derive(Clone, Copy)]
pub(crate) struct Tested<'a> {
    pub(crate) name: &'a str,
    pub(crate) fd: BorrowedFd<'a>,
}

/// Runs a program as [`Program::test_run`](crate::Program::test_run) says.
pub(crate) fn once(
    program: Tested<'_>,
    data: &[u8],
    ctx: Option<&[u8]>,
    repeat: u32,
) -> Result<TestRun, TestRunError> {
    let mut data_out = vec![0u8; data.len() + GROWTH_MAX];
    let mut ctx_out = ctx.map(<[u8]>::to_vec);
    let mut options = program.options(data, ctx, repeat)?;
    options.data_out = data_out.as_mut_ptr().cast();
    options.data_size_out = options.data_size_in + GROWTH_MAX as u32;
    if let Some(ctx_out) = &mut ctx_out {
        options.ctx_out = ctx_out.as_mut_ptr().cast();
        options.ctx_size_out = options.ctx_size_in;
    }
    program.run(&mut options)?;
    data_out.truncate(options.data_size_out as usize);
    let duration = Nanos(u64::from(options.duration));
    Ok(TestRun { retval: options.retval, data_out, ctx_out, duration })
}

/// Runs a program as [`Program::test_run_live`](crate::Program::test_run_live) says.
pub(crate) fn live(
    program: Tested<'_>,
    frame: &[u8],
    ingress_ifindex: u32,
    repeat: u32,
    batch_size: u32,
) -> Result<(), TestRunError> {
    let data_end = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let context = XdpContext { data_end, ingress_ifindex, ..Default::default() };
    let mut options = program.options(frame, Some(bytemuck::bytes_of(&context)), repeat)?;
    options.flags = sys::BPF_F_TEST_XDP_LIVE_FRAMES;
    options.batch_size = batch_size;
    program.run(&mut options)
}

impl Tested<'_> {
    fn options(
        &self,
        data: &[u8],
        ctx: Option<&[u8]>,
        repeat: u32,
    ) -> Result<sys::bpf_test_run_opts, TestRunError> {
        let too_large = |what, found, limit| {
            let program = self.name.to_owned();
            TestRunError::TooLarge { program, what, found, limit }
        };
        // Data unit of IP with its Ethernet header, and space for metadata.
        const LENGTH_MAX: usize = 65_535 + 256;
        if data.len() > LENGTH_MAX {
            return Err(too_large("a packet", data.len(), LENGTH_MAX));
        }
        let repeat = i32::try_from(repeat)
            .map_err(|_| too_large("a repetition", repeat as usize, i32::MAX as usize))?;
        let ctx = ctx.unwrap_or_default();
        Ok(sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as u64,
            data_in: data.as_ptr().cast(),
            data_size_in: data.len() as u32,
            ctx_in: if ctx.is_empty() { std::ptr::null() } else { ctx.as_ptr().cast() },
            ctx_size_in: ctx.len() as u32,
            repeat,
            ..Default::default()
        })
    }

    fn run(&self, options: &mut sys::bpf_test_run_opts) -> Result<(), TestRunError> {
        // SAFETY: the callers' buffers live across the call and are as long as the options say.
        let answer = unsafe { sys::bpf_prog_test_run_opts(self.fd.as_raw_fd(), &raw mut *options) };
        if answer < 0 {
            let source = io::Error::from_raw_os_error(-answer);
            let (program, length) = (self.name.to_owned(), options.data_size_in as usize);
            return Err(TestRunError::Kernel { program, length, source });
        }
        Ok(())
    }
}
