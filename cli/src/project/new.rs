//! `tam new`: a service project that builds and passes its test as it is.

use std::io;
use std::path::{Path, PathBuf};

use units::Name;

use super::sdk;

/// Template of a new project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Template {
    /// Packet service in Rust.
    #[default]
    Packet,
    /// Packet service in C.
    C,
}

/// Result of `create`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The project's directory.
    pub directory: PathBuf,
    /// Files relative to the directory, without those of the SDK's copy.
    pub files: Vec<PathBuf>,
}

/// Reason why no project was written; nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// The template does not exist.
    #[error("there is no template {0:?}; there are: packet (Rust) and c")]
    Template(String),
    /// A file or folder of that name exists already.
    #[error("{0} exists already; choose another name, or remove it first")]
    Exists(PathBuf),
    /// The name is a word that Rust or Cargo reserves.
    #[error(
        "a Rust project cannot be called '{0}': a name begins with a letter and is no word of the language; choose another, such as {0}-service or my-{0}"
    )]
    Reserved(Name),
    /// A file could not be written.
    #[error("cannot write {path}: {source}; nothing is left there")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Path and text of each file of a template; `{{name}}` becomes the project's name.
const PACKET: &[(&str, &str)] = &[
    ("Cargo.toml", include_str!("templates/packet/Cargo.toml.in")),
    ("build.rs", include_str!("templates/packet/build.rs.in")),
    ("module.toml", include_str!("templates/packet/module.toml.in")),
    ("src/lib.rs", include_str!("templates/packet/lib.rs.in")),
    ("README.md", include_str!("templates/packet/README.md.in")),
    (".gitignore", "/target\n/*.wasm\n"),
    EXPECTED,
];

/// Path and text of each file of the template in C.
const C: &[(&str, &str)] = &[
    ("service.c", include_str!("templates/c/service.c.in")),
    ("module.toml", include_str!("templates/packet/module.toml.in")),
    ("README.md", include_str!("templates/c/README.md.in")),
    (".gitignore", "/*.wasm\n"),
    EXPECTED,
];

/// Expected results of the packets of [`CAPTURE`].
const EXPECTED: (&str, &str) =
    ("captures/hops.toml", include_str!("templates/captures/hops.toml.in"));
/// Five packets, each with a verdict of its own kind.
const CAPTURE: (&str, &[u8]) =
    ("captures/hops.pcap", include_bytes!("templates/captures/hops.pcap"));

/// Words that Cargo or rustc refuse as the name of a package, and names that the project itself uses.
const RESERVED: &[&str] = &[
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "tam",
    "tamandua-sdk",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Writes the project `parent`/`name`, all or nothing.
///
/// # Errors
/// The name exists already or cannot name a Rust project, or a file cannot be written.
pub fn create(parent: &Path, name: &Name, template: Template) -> Result<Created, NewError> {
    let begins_with_letter = name.as_str().starts_with(|c: char| c.is_ascii_lowercase());
    let is_for_rust = begins_with_letter && !RESERVED.contains(&name.as_str());
    if template == Template::Packet && !is_for_rust {
        return Err(NewError::Reserved(name.clone()));
    }
    let directory = parent.join(name.as_str());
    if directory.symlink_metadata().is_ok() {
        return Err(NewError::Exists(directory));
    }
    let draft = tempfile::Builder::new()
        .prefix(".tam-new-")
        .tempdir_in(parent)
        .map_err(|source| NewError::Write { path: directory.clone(), source })?;
    // The draft directory is private; the project gets the usual permissions.
    let inside = draft.path().join("project");
    let files = match template {
        Template::Packet => PACKET,
        Template::C => C,
    };
    for (path, text) in files {
        write(&inside.join(path), text.replace("{{name}}", name.as_str()))?;
    }
    write(&inside.join(CAPTURE.0), CAPTURE.1)?;
    match template {
        Template::Packet => {
            for (path, text) in sdk::FILES {
                write(&inside.join("sdk").join(path), text)?;
            }
        }
        Template::C => write(&inside.join(sdk::C_HEADER.0), sdk::C_HEADER.1)?,
    }
    std::fs::rename(&inside, &directory)
        .map_err(|source| NewError::Write { path: directory.clone(), source })?;
    let texts = files.iter().map(|(path, _)| *path);
    let files = texts.chain([CAPTURE.0]).map(PathBuf::from).collect();
    Ok(Created { directory, files })
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), NewError> {
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|source| NewError::Write { path: path.into(), source })
}

impl core::str::FromStr for Template {
    type Err = NewError;
    fn from_str(name: &str) -> Result<Self, NewError> {
        match name {
            "packet" => Ok(Self::Packet),
            "c" => Ok(Self::C),
            other => Err(NewError::Template(other.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Name {
        Name::new(name).unwrap()
    }

    #[test]
    fn a_project_has_its_name_everywhere_and_its_sdk() {
        let parent = tempfile::tempdir().unwrap();
        let created = create(parent.path(), &name("my-service"), Template::Packet).unwrap();
        for file in &created.files {
            let bytes = std::fs::read(created.directory.join(file)).unwrap();
            assert!(!bytes.windows(2).any(|pair| pair == b"{{"), "{}", file.display());
        }
        let manifest = std::fs::read_to_string(created.directory.join("module.toml")).unwrap();
        assert_eq!(abi::Manifest::parse(&manifest).unwrap().name, name("my-service"));
        assert!(created.directory.join("sdk/src/lib.rs").exists());
        let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "the draft is gone");
    }

    #[test]
    fn existing_files_are_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("taken"), "mine").unwrap();
        let error = create(parent.path(), &name("taken"), Template::Packet).unwrap_err();
        assert!(matches!(error, NewError::Exists(_)), "{error}");
        assert_eq!(std::fs::read_to_string(parent.path().join("taken")).unwrap(), "mine");
    }

    #[test]
    fn names_that_rust_cannot_have_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        for bad in ["7up", "match", "core", "tamandua-sdk"] {
            let error = create(parent.path(), &name(bad), Template::Packet).unwrap_err();
            assert!(matches!(error, NewError::Reserved(_)), "{bad}: {error}");
        }
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
        create(parent.path(), &name("match"), Template::C).unwrap();
        assert!(matches!("go".parse::<Template>(), Err(NewError::Template(_))));
    }
}
