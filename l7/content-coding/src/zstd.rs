//! zstd, by the reference codec.

use crate::memory::WHOLE_ZSTD;
use crate::{Coding, Failed, Level};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// zstd levels by level.
const LEVELS: [i32; Level::COUNT] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// Window of a stream: 512 KiB. RFC 9659 lets a receiver refuse more than 8 MiB.
const WINDOW_LOG: u32 = 19;
/// Size of the hash table of the higher levels of a stream, in bits: half the window's positions.
/// With its own table level 9 takes 9 MiB, and its output is 1 % smaller.
const TABLE_LOG: u32 = 18;
/// Lowest level with this table; those below have smaller ones of their own.
const TABLE_LEVEL_MIN: i32 = 5;
/// Output space of one call.
const OUT_STEP: usize = 8 * 1024;

fn failed(reason: &'static str) -> Failed {
    Failed { coding: Coding::Zstd, reason }
}

fn codec_error(code: usize) -> Failed {
    failed(get_error_name(code))
}

/// Codec for bodies as a whole. The frame's header has the body's length, so that the receiver
/// needs a window of that size only.
#[derive(Default)]
pub(crate) struct Whole {
    context: Option<CCtx<'static>>,
}

impl Whole {
    /// Returns the bytes of memory needed beyond those allocated.
    pub(crate) const fn needed_bytes(&self) -> usize {
        if self.context.is_some() { 0 } else { WHOLE_ZSTD }
    }

    pub(crate) fn code(
        &mut self,
        level: Level,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let context = match &mut self.context {
            Some(context) => context,
            empty => empty.insert(CCtx::try_create().ok_or_else(|| failed("no memory"))?),
        };
        out.reserve(zstd_safe::compress_bound(body.len()));
        let at = out.len();
        let mut buffer = OutBuffer::around_pos(out, at);
        context
            .set_parameter(CParameter::CompressionLevel(LEVELS[level.index()]))
            .map_err(codec_error)?;
        context.set_pledged_src_size(Some(body.len() as u64)).map_err(codec_error)?;
        let mut input = InBuffer::around(body);
        let end = ZSTD_EndDirective::ZSTD_e_end;
        match context.compress_stream2(&mut buffer, &mut input, end) {
            Ok(0) => Ok(()),
            Ok(_) => Err(failed("it wrote more than its own bound")),
            Err(code) => Err(codec_error(code)),
        }
    }
}

/// Encoder of one body.
pub(crate) struct Stream {
    context: CCtx<'static>,
}

impl Stream {
    pub(crate) fn new(level: Level) -> Result<Self, Failed> {
        let context = CCtx::try_create().ok_or_else(|| failed("no memory"))?;
        let mut stream = Self { context };
        stream.restart(level)?;
        Ok(stream)
    }

    /// Prepares the stream for another body.
    pub(crate) fn restart(&mut self, level: Level) -> Result<(), Failed> {
        self.context.reset(ResetDirective::SessionAndParameters).map_err(codec_error)?;
        let level = LEVELS[level.index()];
        // 0 means the level's default.
        let table_log = if level < TABLE_LEVEL_MIN { 0 } else { TABLE_LOG };
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::WindowLog(WINDOW_LOG),
            CParameter::HashLog(table_log),
        ] {
            self.context.set_parameter(parameter).map_err(codec_error)?;
        }
        Ok(())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.context.sizeof()
    }

    pub(crate) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        self.run(input, ZSTD_EndDirective::ZSTD_e_continue, out)
    }

    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.run(&[], ZSTD_EndDirective::ZSTD_e_flush, out)
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.run(&[], ZSTD_EndDirective::ZSTD_e_end, out)
    }

    fn run(
        &mut self,
        input: &[u8],
        directive: ZSTD_EndDirective,
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let mut input = InBuffer::around(input);
        loop {
            out.reserve(OUT_STEP);
            let at = out.len();
            let mut buffer = OutBuffer::around_pos(out, at);
            let left = self
                .context
                .compress_stream2(&mut buffer, &mut input, directive)
                .map_err(codec_error)?;
            let is_read = input.pos() == input.src.len();
            // Without a flush, the call is done when all input is read.
            let is_done = left == 0 || directive == ZSTD_EndDirective::ZSTD_e_continue;
            if is_read && is_done {
                return Ok(());
            }
        }
    }
}
