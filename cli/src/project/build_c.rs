//! `tam build` of a project in C: every `.c` file of the folder, compiled by clang and linked by
//! LLVM's linker.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::build_error::{BuildError, OUTPUT_LINES_MAX};
use super::sdk;
use super::toolchain::CToolchain;

const COMPILE: [&str; 6] =
    ["--target=wasm32", "-O2", "-ffreestanding", "-fvisibility=hidden", "-Wall", "-Wextra"];
/// Flag for the memory functions: clang must not turn a loop in one of them into a call of itself.
const OF_MEMORY: &str = "-fno-builtin";
/// Linker flags that keep the packet's addresses free (docs/reference/module-abi.md).
const LINK: [&str; 7] = [
    "--no-entry",
    "--stack-first",
    "-z",
    "stack-size=32768",
    "--global-base=36864",
    "--export-dynamic",
    "--strip-debug",
];

/// Returns the C files of a project, in the order of their names; none when it is no project in C.
pub(super) fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut sources: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()))
        .filter(|name| name.extension() == Some(OsStr::new("c")))
        .collect();
    sources.sort();
    sources
}

/// Compiles and links the files in a folder of its own. Warnings of the compiler go to `progress`.
///
/// # Errors
/// No compiler is installed, or the compiler refuses a file.
pub(super) fn build(
    directory: &Path,
    sources: &[PathBuf],
    into: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, BuildError> {
    let tools = CToolchain::find()?;
    // A project without a copy of its own gets the SDK of this binary.
    for (name, text) in [sdk::C_HEADER, sdk::C_MEMORY] {
        let path = into.join(name);
        std::fs::write(&path, text).map_err(|source| BuildError::Copy { path, source })?;
    }
    let mut objects = Vec::new();
    let mut compile = |source: &Path, more: Option<&str>, progress: &mut dyn FnMut(&str)| {
        let object = into.join(format!("{}.o", objects.len()));
        let mut clang = Command::new(&tools.clang);
        // In the project's folder, where the manifest lies that the source names.
        clang.current_dir(directory).args(COMPILE).args(more).arg("-isystem").arg(into);
        run(clang.arg("-c").arg(source).arg("-o").arg(&object), progress)?;
        objects.push(object);
        Ok::<(), BuildError>(())
    };
    for source in sources {
        progress(&format!("compiling {}", source.display()));
        compile(source, None, progress)?;
    }
    compile(&into.join(sdk::C_MEMORY.0), Some(OF_MEMORY), progress)?;
    progress("linking");
    let module = into.join("module.wasm");
    let mut linker = Command::new(&tools.linker[0]);
    run(
        linker.args(&tools.linker[1..]).args(LINK).args(&objects).arg("-o").arg(&module),
        progress,
    )?;
    Ok(module)
}

fn run(command: &mut Command, progress: &mut dyn FnMut(&str)) -> Result<(), BuildError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output
        .map_err(|source| BuildError::Run { program: command.get_program().into(), source })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut lines = said.lines().take(OUTPUT_LINES_MAX);
    if !output.status.success() {
        return Err(BuildError::Compile { output: lines.collect::<Vec<_>>().join("\n") });
    }
    lines.by_ref().for_each(progress);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{BuildError, Template, build, create};

    #[test]
    fn a_new_project_in_c_becomes_a_module() {
        let parent = tempfile::tempdir().unwrap();
        let name = units::Name::new("fresh-c").unwrap();
        let project = create(parent.path(), &name, Template::C).unwrap();
        let mut lines = Vec::new();
        let built = build(&project.directory, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(built.module, project.directory.join("fresh-c.wasm"));
        assert_eq!(built.checked.manifest.name, name);
        assert_eq!(built.checked.imports, [abi::HostFunction::ParamLoad]);
        assert_eq!(lines, ["compiling service.c", "linking"]);
        // Nothing is left beside the module.
        let mut files: Vec<_> = std::fs::read_dir(&project.directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let expected = [
            ".gitignore",
            "README.md",
            "captures",
            "fresh-c.wasm",
            "module.toml",
            "service.c",
            "tam.h",
        ];
        assert_eq!(files, expected);
    }

    /// Clears and copies structures, and compares them; each by a call.
    const STRUCTURES: &str = r#"#include "tam.h"
struct entry { u32 words[64]; };
struct entry first, second;
int memcmp(const void *, const void *, __SIZE_TYPE__);
void *memmove(void *, const void *, __SIZE_TYPE__);
TAM_MANIFEST_FILE("module.toml")
TAM_ON_PACKET
{
	struct entry entry = { { 0 } };

	for (u32 at = 0; at < 64; at++)
		second.words[at] = 0;
	entry.words[((volatile u32 *)first.words)[0] % 64] = 1;
	first = entry;
	memmove(&first.words[1], first.words, 63 * 4);
	return memcmp(&first, &second, sizeof(first)) ? TAM_DROP(0) : TAM_PASS;
}
"#;

    #[test]
    fn structures_are_cleared_copied_and_compared_without_a_c_library() {
        let parent = tempfile::tempdir().unwrap();
        let name = units::Name::new("structures").unwrap();
        let project = create(parent.path(), &name, Template::C).unwrap();
        std::fs::write(project.directory.join("service.c"), STRUCTURES).unwrap();
        let built = build(&project.directory, &mut |_| ()).unwrap();
        assert_eq!(built.checked.manifest.name, name);
        assert!(built.checked.imports.is_empty(), "nothing is left to somebody else");
        // A project's own is taken.
        let own = "\nvoid *memmove(void *to, const void *from, __SIZE_TYPE__ length)\n\
            { (void)from; (void)length; return to; }\n";
        std::fs::write(project.directory.join("service.c"), STRUCTURES.to_owned() + own).unwrap();
        build(&project.directory, &mut |_| ()).unwrap();
    }

    #[test]
    fn what_clang_refuses_is_said_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("service.c"), "#include \"tam.h\"\nu32 x = y;\n")
            .unwrap();
        let error = build(directory.path(), &mut |_| ()).unwrap_err();
        assert!(matches!(error, BuildError::Compile { .. }));
        assert!(error.to_string().contains("service.c:2:9: error:"), "{error}");
        std::fs::write(directory.path().join("service.c"), "#include \"tam.h\"\n").unwrap();
        let error = build(directory.path(), &mut |_| ()).unwrap_err();
        assert!(matches!(error, BuildError::Check { .. }), "{error}");
    }
}
