//! Keyboard of `tam top`: `q` and Ctrl-C end it, and the terminal's modes are restored.

use crate::failure::Failure;
use crate::interrupt::on_interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use std::io::{IsTerminal, Stdin, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time until a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Keys that end the picture: `q`, `Q`, and Ctrl-C and Ctrl-D where they come as bytes.
const ENDS: [u8; 4] = [b'q', b'Q', 3, 4];

/// Keyboard in raw mode for the duration of the command.
pub struct Keys {
    input: Stdin,
    /// Terminal modes to restore; `None` where standard input is no terminal of this process group.
    before: Option<Termios>,
    interrupted: Arc<AtomicBool>,
}

impl Keys {
    /// Puts the terminal into raw mode without echo, until this is dropped.
    pub fn open() -> Result<Self, Failure> {
        let interrupted = on_interrupt()?;
        let input = stdin();
        // A background process that changes the modes would be stopped (POSIX.1-2017, 11.1.4).
        let is_ours = input.is_terminal()
            && termios::tcgetpgrp(&input).is_ok_and(|group| group == rustix::process::getpgrp());
        let before = if is_ours { termios::tcgetattr(&input).ok() } else { None };
        if let Some(modes) = &before {
            let mut one_by_one = modes.clone();
            one_by_one.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            termios::tcsetattr(&input, OptionalActions::Now, &one_by_one)
                .map_err(|error| Failure::io("reading keys of the terminal", &error.into()))?;
        }
        Ok(Self { input, before, interrupted })
    }

    /// Waits for `time`; returns true if a key or signal asked to end meanwhile.
    pub fn ended_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
            if self.interrupted.load(Ordering::Relaxed) || self.ending_key_within(left) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    fn ending_key_within(&self, time: Duration) -> bool {
        if self.before.is_none() {
            std::thread::sleep(time);
            return false;
        }
        let mut input = [PollFd::new(&self.input, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        // A signal interrupts the wait; the flag says which.
        if poll(&mut input, time.as_ref()).unwrap_or(0) == 0 {
            return false;
        }
        let mut keys = [0; 64];
        match rustix::io::read(&self.input, &mut keys) {
            // The terminal is gone.
            Ok(0) | Err(rustix::io::Errno::IO) => true,
            Ok(length) => keys[..length].iter().any(|key| ENDS.contains(key)),
            Err(_) => false,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(modes) = &self.before {
            // A terminal that is gone needs no modes.
            let _ = termios::tcsetattr(&self.input, OptionalActions::Now, modes);
        }
    }
}
