//! br, by the codec in Rust: there is one way for small and for large bodies.

use crate::{Coding, Failed, Level};
use brotli::enc::StandardAlloc;
use brotli::enc::encode::{
    BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};

/// What the levels are to Brotli. Qualities 0 and 1 are left out: they are larger than 2 and
/// hardly faster in this codec. 7, 8 and 9 take 8, 16 and 32 MiB of tables for 2 % less each,
/// 10 and 11 are for files, not for who waits.
const QUALITIES: [u32; Level::COUNT] = [2, 3, 4, 5, 6, 6, 6, 6, 6];
/// The window for bodies whose length is not known: 512 KiB. From quality 5 on the codec wants
/// this much to find what is far away; RFC 7932 allows 16 MiB.
const WINDOW_BITS: u32 = 19;
/// The smallest window that the format has.
const WINDOW_BITS_MIN: u32 = 10;
/// The smallest one from quality 5 on: for less the codec takes other tables, which cost 8 ms to
/// begin with.
const WINDOW_BITS_MIN_SEARCHED: u32 = 17;
const QUALITY_MIN_SEARCHED: u32 = 5;

/// A body under way.
pub(crate) struct Stream {
    state: Box<BrotliEncoderStateStruct<StandardAlloc>>,
}

impl Stream {
    /// With a length, the window is no larger than it has to be, and so is the memory.
    pub(crate) fn new(level: Level, length: Option<usize>) -> Self {
        let mut state = Box::new(BrotliEncoderStateStruct::new(StandardAlloc::default()));
        let quality = QUALITIES[level.index()];
        let window_min =
            if quality < QUALITY_MIN_SEARCHED { WINDOW_BITS_MIN } else { WINDOW_BITS_MIN_SEARCHED };
        let window = match length {
            // What a window of so many bits reaches is 16 bytes less (RFC 7932, section 9.1).
            Some(length) => {
                (usize::BITS - (length + 16).leading_zeros()).clamp(window_min, WINDOW_BITS)
            }
            None => WINDOW_BITS,
        };
        use BrotliEncoderParameter as Parameter;
        state.set_parameter(Parameter::BROTLI_PARAM_QUALITY, quality);
        state.set_parameter(Parameter::BROTLI_PARAM_LGWIN, window);
        let hint = length.and_then(|length| u32::try_from(length).ok()).unwrap_or(0);
        state.set_parameter(Parameter::BROTLI_PARAM_SIZE_HINT, hint);
        Self { state }
    }

    pub(crate) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
        self.run(input, BrotliEncoderOperation::BROTLI_OPERATION_PROCESS, out)
    }

    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.run(&[], BrotliEncoderOperation::BROTLI_OPERATION_FLUSH, out)
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Failed> {
        self.run(&[], BrotliEncoderOperation::BROTLI_OPERATION_FINISH, out)
    }

    fn run(
        &mut self,
        input: &[u8],
        operation: BrotliEncoderOperation,
        out: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let mut left = input.len();
        let mut at = 0;
        loop {
            // It gets no room, so that it keeps its output where `take_output` finds it.
            let is_done = self.state.compress_stream(
                operation,
                &mut left,
                input,
                &mut at,
                &mut 0,
                &mut [],
                &mut 0,
                &mut None,
                &mut |_, _, _, _| (),
            );
            if !is_done {
                return Err(Failed { coding: Coding::Brotli, reason: "it refuses to go on" });
            }
            let mut taken = false;
            while self.state.has_more_output() {
                let mut length = 0;
                let coded = self.state.take_output(&mut length);
                out.extend_from_slice(coded.get(..length).unwrap_or_default());
                taken = true;
            }
            if left == 0 && !taken {
                return Ok(());
            }
        }
    }
}
