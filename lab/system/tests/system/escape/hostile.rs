//! Process made hostile: it runs native code of the test's choice, with its own rights.
//!
//! ```text
//!  stopped by ptrace ─▶ registers: call, arguments ─▶ one step over `syscall` ─▶ what came back
//! ```
//!
//! So a real cell, as shipped, with its own descriptors and behind its own filter, acts as code
//! that broke out of its module would. Afterwards it continues as if nothing had happened.

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Instruction `syscall`, and the entry of 32-bit programs.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const INT_80: [u8; 2] = [0xcd, 0x80];
/// Bytes of memory for arguments.
const ROOM: u64 = 1 << 16;

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call succeeded with this result.
    Done(u64),
    /// The call failed with this error number.
    Refused(i32),
    /// The process was killed for the call.
    Died(Signal),
}

/// Process under the test's control.
pub struct Hostile {
    pid: Pid,
    memory: File,
    registers: libc::user_regs_struct,
    /// Address of an instruction that makes a system call.
    place: u64,
    /// Address of memory for arguments, and the bytes of it in use.
    room: u64,
    used: u64,
    is_alive: bool,
}

impl Hostile {
    /// Takes control of a process that waits for something. The calling thread has to make all
    /// further calls.
    pub fn take_over(pid: u32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid.cast_signed());
        ptrace::attach(pid)?;
        waitpid(pid, None)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let registers = ptrace::getregs(pid)?;
        let place = find(pid, &memory, &SYSCALL, "x")?;
        let place = place.ok_or_else(|| io::Error::other("it makes no system calls"))?;
        let mut it = Self { pid, memory, registers, place, room: 0, used: 0, is_alive: true };
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let mapped =
            it.call(libc::SYS_mmap, &[0, ROOM, access as u64, kind as u64, u64::MAX, 0])?;
        let Outcome::Done(room) = mapped else {
            return Err(io::Error::other(format!("it gets no memory: {mapped:?}")));
        };
        it.room = room;
        Ok(it)
    }

    /// Makes a system call.
    pub fn call(&mut self, number: libc::c_long, arguments: &[u64]) -> io::Result<Outcome> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let [rdi, rsi, rdx, r10, r8, r9] = all;
        let registers = libc::user_regs_struct { rdi, rsi, rdx, r10, r8, r9, ..self.registers };
        self.step(number as u64, registers)
    }

    /// Makes a system call of the 32-bit interface, with no arguments.
    pub fn call_32(&mut self, number: u64) -> io::Result<Outcome> {
        self.memory.write_all_at(&INT_80, self.place)?;
        let outcome = self.step(number, self.registers)?;
        if self.is_alive {
            self.memory.write_all_at(&SYSCALL, self.place)?;
        }
        Ok(outcome)
    }

    fn step(&mut self, number: u64, registers: libc::user_regs_struct) -> io::Result<Outcome> {
        // No call that it was stopped in is to be made again.
        let registers = libc::user_regs_struct {
            rax: number,
            orig_rax: u64::MAX,
            rip: self.place,
            ..registers
        };
        ptrace::setregs(self.pid, registers)?;
        loop {
            ptrace::step(self.pid, None)?;
            match waitpid(self.pid, None)? {
                WaitStatus::Signaled(_, signal, _) => {
                    self.is_alive = false;
                    return Ok(Outcome::Died(signal));
                }
                WaitStatus::Stopped(..) => {}
                other => return Err(io::Error::other(format!("it became {other:?}"))),
            }
            let now = ptrace::getregs(self.pid)?;
            // Another signal may come before the step.
            if now.rip != self.place {
                let error = now.rax.cast_signed();
                return Ok(match error {
                    -4095..=-1 => Outcome::Refused(-error as i32),
                    _ => Outcome::Done(now.rax),
                });
            }
        }
    }

    /// Copies bytes into its memory; returns their address.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.room + self.used;
        self.used += (bytes.len() as u64).next_multiple_of(16);
        assert!(self.used <= ROOM, "an attempt has room for its arguments");
        self.memory.write_all_at(bytes, at)?;
        Ok(at)
    }

    /// Copies a text with a final zero into its memory; returns its address.
    pub fn text(&mut self, text: &str) -> io::Result<u64> {
        self.bytes(&[text.as_bytes(), b"\0"].concat())
    }

    /// Copies words into its memory; returns their address.
    pub fn words(&mut self, words: &[u64]) -> io::Result<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.bytes(&bytes)
    }

    /// Reads its memory.
    pub fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Frees the arguments of the previous attempt.
    pub fn begin(&mut self) {
        self.used = 0;
    }

    /// Returns true if the process still runs.
    pub const fn is_alive(&self) -> bool {
        self.is_alive
    }
}

impl Drop for Hostile {
    /// Releases the process, which continues where it was.
    fn drop(&mut self) {
        if self.is_alive {
            let _ = self.call(libc::SYS_munmap, &[self.room, ROOM]);
            let _ = ptrace::setregs(self.pid, self.registers);
            let _ = ptrace::detach(self.pid, None);
        }
    }
}

/// Returns the address of these bytes in the memory of a process, in a mapping with this right.
fn find(pid: Pid, memory: &File, wanted: &[u8], right: &str) -> io::Result<Option<u64>> {
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        let Some((begin, end)) = range.split_once('-') else { continue };
        let number = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let (begin, end) = (number(begin)?, number(end)?);
        if !rights.contains(right) || !rights.contains('r') {
            continue;
        }
        // Rings and other devices cannot be read this way.
        if let Some(at) = find_between(memory, wanted, begin, end) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn find_between(memory: &File, wanted: &[u8], begin: u64, end: u64) -> Option<u64> {
    const CHUNK: usize = 1 << 20;
    let mut bytes = vec![0; CHUNK + wanted.len()];
    for at in (begin..end).step_by(CHUNK) {
        let length = bytes.len().min((end - at) as usize);
        // Of an arena only some pages are there.
        if memory.read_exact_at(&mut bytes[..length], at).is_err() {
            continue;
        }
        let found = bytes[..length].windows(wanted.len()).position(|window| window == wanted);
        if let Some(found) = found {
            return Some(at + found as u64);
        }
    }
    None
}

/// Returns the address of a secret in the memory of another process, by the rights of root.
pub fn find_secret(pid: u32, secret: &[u8]) -> io::Result<Option<u64>> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    find(Pid::from_raw(pid.cast_signed()), &memory, secret, "r")
}
