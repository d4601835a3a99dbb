//! `tam build` of a project in C: every `.c` file of the folder, compiled by clang
//! and put together by LLVM's linker.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::build::{BuildError, OUTPUT_LINES_MAX};
use super::sdk;
use super::toolchain::CToolchain;

const COMPILE: [&str; 6] =
    ["--target=wasm32", "-O2", "-ffreestanding", "-fvisibility=hidden", "-Wall", "-Wextra"];
/// The packet's addresses stay free (docs/module-abi.md).
const LINK: [&str; 7] = [
    "--no-entry",
    "--stack-first",
    "-z",
    "stack-size=32768",
    "--global-base=36864",
    "--export-dynamic",
    "--strip-debug",
];

/// The C files of a project, in the order of their names; none when it is no project in C.
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

/// Makes a module of them in a folder of its own. What the compiler warns of goes to `progress`.
///
/// # Errors
/// When there is no compiler, or it refuses a file.
pub(super) fn build(
    directory: &Path,
    sources: &[PathBuf],
    into: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, BuildError> {
    let tools = CToolchain::find()?;
    // A project without a copy of its own gets the SDK of this binary.
    let header = into.join(sdk::C_HEADER.0);
    std::fs::write(&header, sdk::C_HEADER.1)
        .map_err(|source| BuildError::Copy { path: header, source })?;
    let mut objects = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        progress(&format!("compiling {}", source.display()));
        let object = into.join(format!("{number}.o"));
        let mut clang = Command::new(&tools.clang);
        // In the project's folder, where the manifest lies that the source names.
        clang.current_dir(directory).args(COMPILE).arg("-isystem").arg(into);
        run(clang.arg("-c").arg(source).arg("-o").arg(&object), progress)?;
        objects.push(object);
    }
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
