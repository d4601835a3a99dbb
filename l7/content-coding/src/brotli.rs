//! br, by the codec in Rust: the same for small and large bodies.

use crate::{Coding, Failed, Level};
use brotli::enc::StandardAlloc;
use brotli::enc::encode::{
    BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};

/// Brotli qualities by level. Qualities 0 and 1 are left out: their output is larger than that of
/// 2, and they are hardly faster in this codec. 7, 8 and 9 take 8, 16 and 32 MiB of tables for 2 %
/// less each, 10 and 11 are too slow for a waiting client.
const QUALITIES: [u32; Level::COUNT] = [2, 3, 4, 5, 6, 6, 6, 6, 6];
/// Window for bodies of unknown length: 512 KiB. From quality 5 on the codec needs this much to
/// find distant matches; RFC 7932 allows 16 MiB.
const WINDOW_BITS: u32 = 19;
/// Smallest window of the format, in bits.
const WINDOW_BITS_MIN: u32 = 10;
/// Smallest window from quality 5 on, in bits: for less the codec takes other tables, which cost 8
/// ms to initialise.
const WINDOW_BITS_MIN_SEARCHED: u32 = 17;
const QUALITY_MIN_SEARCHED: u32 = 5;

/// Encoder of one body.
pub(crate) struct Stream {
    state: Box<BrotliEncoderStateStruct<StandardAlloc>>,
}

impl Stream {
    /// Creates an encoder. With a known length, the window is no larger than necessary, and so is
    /// the memory.
    pub(crate) fn new(level: Level, length: Option<usize>) -> Self {
        let mut state = Box::new(BrotliEncoderStateStruct::new(StandardAlloc::default()));
        let quality = QUALITIES[level.index()];
        let window_min =
            if quality < QUALITY_MIN_SEARCHED { WINDOW_BITS_MIN } else { WINDOW_BITS_MIN_SEARCHED };
        let window = match length {
            // A window of n bits reaches 2^n - 16 bytes back (RFC 7932, section 9.1).
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
            // Without output space the codec keeps its output for `take_output`.
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
