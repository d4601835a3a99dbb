//! Measures of the code's inside: sizes of types, where they are implemented, circles of files,
//! shares of tests, openings of doc comments.
//!
//! ```text
//!  Tree ─ syn ─▶ per file: structs, inherent methods, paths to other files
//!                  └─▶ House: types by size ─▶ tidy's limits (tidy/owners.rs)
//!                             files in circles
//!                             lines of tests by crate
//!                             openings by crate (tidy/comments.rs)
//! ```
//!
//! The count knows names, not types: methods belong to the type of their name in the same file,
//! else in a file that this one names, else in the nearest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use syn::visit::{self, Visit};

use crate::tidy::comments::{self, Openings};
use crate::tidy::rust::Source;
use crate::tidy::tree::Tree;

/// Fields of a struct with methods, at most.
pub const FIELDS_MAX: usize = 20;
/// Inherent methods of a type, at most.
pub const METHODS_MAX: usize = 60;

/// A type of a crate that has inherent methods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Folder of its crate.
    pub krate: String,
    /// Name of the type.
    pub name: String,
    /// File in which it is declared.
    pub file: String,
    /// Line of its declaration.
    pub line: usize,
    /// Number of its fields; 0 for what is no struct.
    pub fields: usize,
    /// True when it mirrors a document or memory: it derives Serde's traits, or has a layout.
    pub is_record: bool,
    /// Number of its inherent methods.
    pub methods: usize,
    /// Other files with inherent methods of it.
    pub elsewhere: BTreeSet<String>,
}

/// Files that use each other, directly or by others.
pub type Circle = Vec<String>;

/// Lines of a crate with code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// Number of all lines.
    pub all: usize,
    /// Number of lines of unit tests.
    pub tests: usize,
}

/// The measures of a tree.
#[derive(Debug, Default, Serialize)]
pub struct House {
    /// Types with methods, by crate and name.
    pub owners: Vec<Owner>,
    /// Circles of files.
    pub circles: Vec<Circle>,
    /// Lines by crate.
    pub lines: BTreeMap<String, Lines>,
    /// Openings of doc comments by crate.
    pub openings: BTreeMap<String, Openings>,
}

impl House {
    /// Measures every crate of the workspace; files that are no Rust are left out.
    pub fn of(tree: &Tree) -> Self {
        let mut house = Self::default();
        for krate in tree.crates.iter().filter(|krate| krate.member) {
            let root = format!("{}/src/", krate.folder);
            let sources = tree.sources().filter(|(path, _)| path.starts_with(&root));
            let sources: BTreeMap<&str, &Source> = sources.collect();
            house.lines.insert(krate.folder.clone(), lines_of(&sources));
            let files = sources
                .iter()
                .filter(|(_, source)| !source.is_test())
                .filter_map(|(path, _)| Some((*path, File::read(tree.text(path)?)?)));
            let files: BTreeMap<&str, File> = files.collect();
            house.owners.extend(owners_of(&krate.folder, &root, &files));
            house.circles.extend(circles_of(&root, &files));
        }
        let openings = comments::by_crate(tree).into_iter();
        house.openings = openings.map(|(krate, count)| (krate.to_owned(), count)).collect();
        house
    }
}

fn lines_of(sources: &BTreeMap<&str, &Source>) -> Lines {
    let count = |tests_only: bool| sources.values().map(|it| it.lines(tests_only)).sum();
    Lines { all: count(false), tests: count(true) }
}

/// Declarations and uses of a file, without its tests.
#[derive(Debug, Default)]
struct File {
    structs: Vec<(String, usize, usize, bool)>,
    /// Types and their methods here.
    methods: BTreeMap<String, usize>,
    /// Paths that begin with `crate`, `self` or `super`.
    paths: BTreeSet<Vec<String>>,
}

impl File {
    fn read(text: &str) -> Option<Self> {
        let mut file = Self::default();
        file.visit_file(&syn::parse_file(text).ok()?);
        Some(file)
    }

    fn add_path(&mut self, path: &[String]) {
        if path.first().is_some_and(|first| matches!(first.as_str(), "crate" | "self" | "super")) {
            self.paths.insert(path.to_vec());
        }
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.add_path(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.add_path(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.add_path(before),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.add_use(item, before));
            }
        }
    }
}

impl<'ast> Visit<'ast> for File {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes_of(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let line = item.ident.span().start().line;
        let is_record = item.attrs.iter().any(is_of_record);
        self.structs.push((item.ident.to_string(), line, item.fields.len(), is_record));
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.structs.push((item.ident.to_string(), item.ident.span().start().line, 0, false));
        visit::visit_item_enum(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(path)) = (&item.trait_, &*item.self_ty)
            && let Some(name) = path.path.segments.last()
        {
            let is_method = |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(_));
            let methods = item.items.iter().filter(is_method).count();
            *self.methods.entry(name.ident.to_string()).or_default() += methods;
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.add_path(&names);
        visit::visit_path(self, path);
    }
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        meta => meta.path().is_ident("test"),
    }
}

/// Returns true when an attribute gives a struct the shape of a document or of memory.
fn is_of_record(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let words = list.tokens.to_string();
    let has = |word: &str| words.split(|c: char| !c.is_alphanumeric()).any(|it| it == word);
    (list.path.is_ident("derive") && ["Serialize", "Deserialize", "Pod"].into_iter().any(has))
        || (list.path.is_ident("repr") && (has("C") || has("transparent")))
}

fn owners_of(krate: &str, root: &str, files: &BTreeMap<&str, File>) -> Vec<Owner> {
    let mut owners: BTreeMap<&str, Vec<Owner>> = BTreeMap::new();
    for (file, read) in files {
        for (name, line, fields, is_record) in &read.structs {
            let named = owners.entry(name).or_default();
            if named.iter().any(|owner| owner.file == *file) {
                continue;
            }
            named.push(Owner {
                krate: krate.to_owned(),
                name: name.clone(),
                file: (*file).to_owned(),
                line: *line,
                fields: *fields,
                is_record: *is_record,
                ..Owner::default()
            });
        }
    }
    let modules = modules_of(root, files);
    for (file, read) in files {
        for (name, methods) in &read.methods {
            let Some(named) = owners.get_mut(name.as_str()) else { continue };
            let declared = declared_in(file, name, root, read, named, &modules);
            let owner = &mut named[declared];
            owner.methods += methods;
            if owner.file != *file {
                owner.elsewhere.insert((*file).to_owned());
            }
        }
    }
    owners.into_values().flatten().filter(|owner| owner.methods > 0).collect()
}

/// Returns which of the types of one name the methods in `file` belong to.
fn declared_in(
    file: &str,
    name: &str,
    root: &str,
    read: &File,
    named: &[Owner],
    modules: &BTreeMap<Vec<String>, &str>,
) -> usize {
    let in_file = |file: &str| named.iter().position(|owner| owner.file == file);
    let own = module_of(root, file);
    let by_path = || {
        let named = read.paths.iter().filter(|path| path.last().is_some_and(|last| last == name));
        named.filter_map(|path| file_of(&own, path, modules)).find_map(in_file)
    };
    let nearest = || {
        let shared = |owner: &Owner| {
            let other = module_of(root, &owner.file);
            own.iter().zip(&other).take_while(|(one, other)| one == other).count()
        };
        (0..named.len()).max_by_key(|at| (shared(&named[*at]), std::cmp::Reverse(*at)))
    };
    in_file(file).or_else(by_path).or_else(nearest).unwrap_or_default()
}

/// The module of a file below the crate's root, such as `["state", "rules"]`.
fn module_of(root: &str, file: &str) -> Vec<String> {
    let stem = file.trim_start_matches(root).trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    let is_root = matches!(stem, "lib" | "main");
    stem.split('/').filter(|_| !is_root).map(str::to_owned).collect()
}

fn modules_of<'a>(root: &str, files: &BTreeMap<&'a str, File>) -> BTreeMap<Vec<String>, &'a str> {
    files.keys().map(|file| (module_of(root, file), *file)).collect()
}

/// Finds circles of files. A file and the modules below it are one story: what a file uses of those
/// is no arrow, nor is the crate's root, which names everything.
fn circles_of(root: &str, files: &BTreeMap<&str, File>) -> Vec<Circle> {
    let modules = modules_of(root, files);
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, read) in files {
        let own = module_of(root, file);
        for path in &read.paths {
            let Some(to) = file_of(&own, path, &modules) else { continue };
            let other = module_of(root, to);
            let is_below = other.starts_with(&own);
            if to != *file && !is_below && !other.is_empty() {
                arrows.entry(file).or_default().insert(to);
            }
        }
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        files.keys().map(|file| (*file, reached(file, &arrows))).collect();
    let mut circles: BTreeSet<Circle> = BTreeSet::new();
    for (file, reached) in &reach {
        let circle = reached.iter().filter(|other| reach[**other].contains(file));
        let circle: Circle = circle.map(|other| (*other).to_owned()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The file that a path leads to.
fn file_of<'a>(
    own: &[String],
    path: &[String],
    modules: &BTreeMap<Vec<String>, &'a str>,
) -> Option<&'a str> {
    let supers = path.iter().take_while(|word| *word == "super").count();
    let (mut at, rest) = match path.first().map(String::as_str) {
        Some("crate") => (Vec::new(), &path[1..]),
        Some("self") => (own.to_vec(), &path[1..]),
        _ => (own[..own.len().checked_sub(supers)?].to_vec(), &path[supers..]),
    };
    let mut found = modules.get(&at).copied();
    for word in rest {
        at.push(word.clone());
        let Some(file) = modules.get(&at) else { break };
        found = Some(file);
    }
    found
}

fn reached<'a>(from: &str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut to_do: Vec<&str> = vec![from];
    while let Some(file) = to_do.pop() {
        for next in arrows.get(file).into_iter().flatten() {
            if reached.insert(*next) {
                to_do.push(next);
            }
        }
    }
    reached
}

impl fmt::Display for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28} {:>6} {:>7} {:>10}  file", "type", "fields", "methods", "elsewhere")?;
        let mut owners: Vec<&Owner> = self.owners.iter().collect();
        owners.sort_by_key(|owner| std::cmp::Reverse((owner.methods, owner.fields)));
        for it in owners.iter().take(30) {
            let (name, elsewhere) = (&it.name, it.elsewhere.len());
            let (fields, methods, file) = (it.fields, it.methods, &it.file);
            writeln!(f, "{name:<28} {fields:>6} {methods:>7} {elsewhere:>10}  {file}")?;
        }
        let is_large = |it: &&&Owner| it.fields > FIELDS_MAX && !it.is_record;
        writeln!(
            f,
            "\n{} types with methods; {} with more than {FIELDS_MAX} fields, {} with more than \
             {METHODS_MAX} methods, {} with methods in other files",
            owners.len(),
            owners.iter().filter(is_large).count(),
            owners.iter().filter(|it| it.methods > METHODS_MAX).count(),
            owners.iter().filter(|it| !it.elsewhere.is_empty()).count(),
        )?;
        let files: usize = self.circles.iter().map(Vec::len).sum();
        writeln!(f, "\n{} circles of files, {files} files in them", self.circles.len())?;
        for circle in &self.circles {
            writeln!(f, "  {}", circle.join(" "))?;
        }
        writeln!(f, "\n{:<28} {:>8} {:>8}", "crate", "lines", "tests")?;
        for (krate, lines) in &self.lines {
            let part = 100 * lines.tests / lines.all.max(1);
            writeln!(f, "{krate:<28} {:>8} {part:>6} %", lines.all)?;
        }
        writeln!(f, "\n{:<28} {:>8} {:>8}", "crate", "comments", "hiding")?;
        for (krate, openings) in &self.openings {
            writeln!(f, "{krate:<28} {:>8} {:>8}", openings.all, openings.hiding)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: (&str, &str) = ("Cargo.toml", "[workspace]\nmembers = [\"base/a\"]\n");
    const MANIFEST: (&str, &str) = ("base/a/Cargo.toml", "[package]\nname = \"a\"\n");

    fn house(files: &[(&str, &str)]) -> House {
        House::of(&Tree::of(&[&[WORKSPACE, MANIFEST], files].concat()))
    }

    #[test]
    fn methods_count_where_they_are_and_tests_do_not() {
        let house = house(&[
            (
                "base/a/src/lib.rs",
                "mod b;\nstruct A { x: u8, y: u8 }\nimpl A { fn one(&self) {} }\n\
                 impl Clone for A { fn clone(&self) -> A { A } }\n\
                 #[cfg(test)]\nmod tests { impl super::A { fn three(&self) {} } }\n",
            ),
            ("base/a/src/b.rs", "impl crate::A { fn two(&self) {} fn more(&self) {} }\n"),
        ]);
        let [owner] = house.owners.as_slice() else { panic!("{:?}", house.owners) };
        assert_eq!((owner.fields, owner.methods, owner.line), (2, 3, 2));
        assert_eq!(owner.elsewhere, BTreeSet::from(["base/a/src/b.rs".to_owned()]));
        let lines = house.lines["base/a"];
        assert_eq!((lines.all, lines.tests), (7, 1));
    }

    #[test]
    fn two_types_of_one_name_are_two() {
        let found = house(&[
            ("base/a/src/lib.rs", "mod b;\nmod c;\n"),
            ("base/a/src/b.rs", "mod d;\nstruct A { x: u8 }\nimpl A { fn one(&self) {} }\n"),
            ("base/a/src/b/d.rs", "impl super::A { fn two(&self) {} }\n"),
            ("base/a/src/c.rs", "mod e;\nstruct A { y: u8 }\nimpl A { fn one(&self) {} }\n"),
            ("base/a/src/c/e.rs", "use crate::b::A;\nimpl A { fn three(&self) {} }\n"),
        ]);
        let [b, c] = found.owners.as_slice() else { panic!("{:?}", found.owners) };
        let beside = ["base/a/src/b/d.rs", "base/a/src/c/e.rs"].map(str::to_owned);
        assert_eq!((b.methods, &b.elsewhere), (3, &BTreeSet::from(beside)));
        assert_eq!((c.methods, c.elsewhere.len()), (1, 0));
    }

    #[test]
    fn a_struct_with_a_shape_from_outside_is_a_record() {
        for (attribute, is_record) in [
            ("#[derive(Clone, Serialize)]", true),
            ("#[derive(serde::Deserialize)]", true),
            ("#[repr(C)]", true),
            ("#[derive(Clone)]", false),
            ("#[doc(hidden)]", false),
        ] {
            let text = format!("{attribute}\nstruct A {{ x: u8 }}\nimpl A {{ fn f() {{}} }}\n");
            let house = house(&[("base/a/src/lib.rs", &text)]);
            assert_eq!(house.owners[0].is_record, is_record, "{attribute}");
        }
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let lib = ("base/a/src/lib.rs", "mod b;\nmod c;\nmod d;\npub use b::B;\n");
        let b = ("base/a/src/b.rs", "use crate::c::{C, other};\n");
        let d = ("base/a/src/d.rs", "fn f(b: super::b::B) {}\n");
        let with = |c: &str, child: &str| {
            house(&[lib, b, d, ("base/a/src/c.rs", c), ("base/a/src/c/e.rs", child)]).circles
        };
        assert_eq!(with("struct C;\n", ""), [] as [Circle; 0]);
        // A file and what is below it are one story.
        assert_eq!(with("mod e;\nuse e::E;\n", "use super::C;\n"), [] as [Circle; 0]);
        let both = ["base/a/src/b.rs", "base/a/src/c.rs"].map(str::to_owned).to_vec();
        assert_eq!(with("fn f() -> crate::b::B {}\n", ""), [both]);
        let by_child = ["base/a/src/b.rs", "base/a/src/c.rs", "base/a/src/c/e.rs"];
        let found = with("use self::e::E;\n", "use super::C;\nuse crate::b::B;\n");
        // By what is below it, too: no arrow leads down, so nobody comes back from b.rs to e.rs.
        assert_eq!(found, [] as [Circle; 0], "{by_child:?}");
    }
}
