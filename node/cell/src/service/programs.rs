//! Cache of loaded programs, for modules that run again or in several services.

use abi::HostFunctions;
use engine::{CompileError, Engine, MemoryKind, Program};
use rustix::fd::OwnedFd;
use rustix::fs::fstat;
use std::collections::VecDeque;
use std::io;
use xsk::Packet;

/// Programs that are kept: a node's usual services, and their old versions.
const KEPT_MAX: usize = 32;
/// Bytes of machine code of the kept programs: some hundred modules of 50 KB.
const BYTES_MAX: u64 = 32 << 20;

/// File of machine code. As long as it is open its inode number is not reused, and it is sealed:
/// the same file is the same code.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    number: u64,
}

struct Loaded {
    identity: Identity,
    kind: MemoryKind,
    /// Host functions that are linked.
    granted: HostFunctions,
    length: u64,
    program: Program<Packet>,
    _code: OwnedFd,
}

/// Cache of loaded programs by last use, the latest at the end.
#[derive(Default)]
pub(crate) struct Programs {
    kept: VecDeque<Loaded>,
}

impl Programs {
    /// Loads the program of this code, which the daemon passes in sealed memory, with the host
    /// functions that are granted.
    pub(crate) fn load(
        &mut self,
        engine: &Engine,
        code: &OwnedFd,
        kind: MemoryKind,
        granted: HostFunctions,
    ) -> Result<Program<Packet>, LoadError> {
        let file = fstat(code).map_err(io::Error::from)?;
        let identity = Identity { device: file.st_dev, number: file.st_ino };
        let is_it = |loaded: &Loaded| {
            (loaded.identity, loaded.kind, loaded.granted) == (identity, kind, granted)
        };
        if let Some(loaded) = self.kept.iter().position(is_it).and_then(|at| self.kept.remove(at)) {
            let program = loaded.program.clone();
            self.kept.push_back(loaded);
            return Ok(program);
        }
        let program = engine.load_from_parent(code, kind, granted)?;
        let length = u64::try_from(file.st_size).unwrap_or_default();
        let _code = code.try_clone()?;
        let kept = program.clone();
        self.kept.push_back(Loaded { identity, kind, granted, length, program: kept, _code });
        while self.kept.len() > KEPT_MAX || self.bytes() > BYTES_MAX {
            self.kept.pop_front();
        }
        Ok(program)
    }

    fn bytes(&self) -> u64 {
        self.kept.iter().map(|loaded| loaded.length).sum()
    }
}

/// Cause for which a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("examining the code that the daemon passed: {0}")]
    File(#[from] io::Error),
    #[error(transparent)]
    Code(#[from] CompileError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::HostFunction;
    use sandbox::fd_passing::sealed_memory;

    const ALL: HostFunctions = HostFunctions::ALL;

    fn code(engine: &Engine, verdict: u32) -> OwnedFd {
        let wat = format!(
            r#"(module (memory (export "memory") 1)
                 (func (export "on_packet") (result i32) (i32.const {verdict})))"#
        );
        let code = engine.compile(&wat::parse_str(wat).unwrap(), MemoryKind::Own).unwrap();
        sealed_memory("code", &code).unwrap()
    }

    #[test]
    fn what_was_loaded_is_not_loaded_again_and_the_oldest_make_room() {
        let engine = Engine::new().unwrap();
        let mut programs = Programs::default();
        let first = code(&engine, 0);
        // A duplicate of the descriptor is the same file, like one received by a socket.
        for fd in [&first, &first.try_clone().unwrap()] {
            programs.load(&engine, fd, MemoryKind::Own, ALL).unwrap();
            assert_eq!(programs.kept.len(), 1);
        }
        for other in 1..=KEPT_MAX as u32 {
            programs.load(&engine, &code(&engine, other), MemoryKind::Own, ALL).unwrap();
            if other == 1 {
                programs.load(&engine, &first, MemoryKind::Own, ALL).unwrap();
            }
        }
        assert_eq!(programs.kept.len(), KEPT_MAX);
        let number = |fd: &OwnedFd| fstat(fd).unwrap().st_ino;
        let found = programs.kept.iter().position(|kept| kept.identity.number == number(&first));
        assert_eq!(found, Some(0), "used later than the one that went");
    }

    #[test]
    fn code_that_was_loaded_for_one_is_not_loaded_for_another_who_may_not_run_it() {
        let engine = Engine::new().unwrap();
        let mut programs = Programs::default();
        let wat = r#"(module (import "tam" "now_ms" (func (result i64))) (memory (export "memory") 1)
            (func (export "on_packet") (result i32) (i32.const 0)))"#;
        let code = engine.compile(&wat::parse_str(wat).unwrap(), MemoryKind::Own).unwrap();
        let code = sealed_memory("code", &code).unwrap();
        let less = ALL.without(HostFunction::NowMs);
        programs.load(&engine, &code, MemoryKind::Own, ALL).unwrap();
        for _ in 0..2 {
            let refused = programs.load(&engine, &code, MemoryKind::Own, less).err();
            let refused = matches!(refused, Some(LoadError::Code(CompileError::NotGranted(_))));
            assert!(refused && programs.kept.len() == 1);
        }
        let more = less.with(HostFunction::NowMs).without(HostFunction::Event);
        programs.load(&engine, &code, MemoryKind::Own, more).unwrap();
        assert_eq!(programs.kept.len(), 2);
    }

    #[test]
    fn invalid_or_unsealed_code_is_refused_each_time() {
        let engine = Engine::new().unwrap();
        let mut programs = Programs::default();
        let nothing = sealed_memory("code", b"no code").unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("code", flags).unwrap();
        for fd in [&nothing, &open, &nothing] {
            assert!(programs.load(&engine, fd, MemoryKind::Own, ALL).is_err());
        }
        assert!(programs.kept.is_empty());
    }
}
