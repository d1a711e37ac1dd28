//! The crates depend on each other exactly as the list in ARCHITECTURE.md says.
//!
//! The list is the indented block below `### Dependencies between crates`:
//!
//! - `A, B → C, D`: A and B depend on C and D. `A –`: A depends on no listed crate. Entries may stand side by side.
//! - `M ← all but A, B`: every crate but A and B may depend on M; no other line names M behind an arrow.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// The crates that may have `act`, which writes to the host, among their dev-dependencies.
const ACT_IN_TESTS: [&str; 5] = ["act", "daemon", "doctor", "lane", "bench"];

type Edges = BTreeMap<String, BTreeSet<String>>;

/// The list of a page.
#[derive(Debug, Default, PartialEq)]
struct List {
    exact: Edges,
    /// What most may depend on, and the crates that must not.
    allowed: Edges,
}

fn names(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Entries that stand side by side are separated by two spaces at least, as a name is from its arrow where columns align.
fn entries(line: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for cell in line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()) {
        let continues = ['→', '←', '–'].iter().any(|arrow| cell.starts_with(*arrow));
        match entries.last_mut().filter(|_| continues) {
            Some(entry) => *entry += &format!(" {cell}"),
            None => entries.push(cell.to_owned()),
        }
    }
    entries
}

impl List {
    fn parse(page: &str) -> List {
        let (_, section) =
            page.split_once("### Dependencies between crates\n").expect("the section");
        let end = section.find("\n#").unwrap_or(section.len());
        let mut list = List::default();
        let lines = section[..end].lines().filter(|line| line.starts_with("    "));
        for entry in lines.flat_map(entries) {
            list.add(&entry);
        }
        list
    }

    fn add(&mut self, entry: &str) {
        if let Some((to, but)) = entry.split_once(" ← all but ") {
            let twice = self.allowed.insert(to.trim().to_owned(), names(but).collect());
            return assert!(twice.is_none(), "twice: {entry}");
        }
        let (from, to) = match (entry.split_once('→'), entry.strip_suffix('–')) {
            (Some(edge), _) => edge,
            (None, Some(from)) => (from, ""),
            (None, None) => panic!("neither `A → B` nor `A –` nor `A ← all but B`: {entry}"),
        };
        for name in names(from) {
            let twice = self.exact.insert(name, names(to).collect());
            assert!(twice.is_none(), "twice: {entry}");
        }
    }

    /// How the dependencies of the workspace differ from the list, in words.
    fn differences(&self, found: &Edges) -> Vec<String> {
        let mut differences = Vec::new();
        let none = BTreeSet::new();
        let crates: BTreeSet<&String> = found.keys().chain(self.exact.keys()).collect();
        for name in crates {
            if !found.contains_key(name) {
                differences.push(format!("{name} is listed and is no crate"));
            } else if !self.exact.contains_key(name) && !self.allowed.contains_key(name) {
                differences.push(format!("{name} is a crate and is not listed"));
            }
            let (listed, found) =
                (self.exact.get(name).unwrap_or(&none), found.get(name).unwrap_or(&none));
            for missing in listed.difference(found) {
                differences.push(format!("{name} → {missing} is listed and is no dependency"));
            }
            for extra in found.difference(listed) {
                match self.allowed.get(extra) {
                    Some(but) if !but.contains(name) => {}
                    _ => {
                        differences.push(format!("{name} → {extra} is a dependency and not listed"))
                    }
                }
            }
        }
        differences
    }
}

/// A crate that is reached from itself, with the others on the way.
fn cycle(edges: &Edges) -> Option<Vec<String>> {
    fn search(
        at: &str,
        edges: &Edges,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if let Some(start) = path.iter().position(|name| name == at) {
            path.drain(..start);
            return true;
        }
        path.push(at.to_owned());
        let next = edges.get(at).into_iter().flatten();
        let found =
            !done.contains(at) && next.into_iter().any(|next| search(next, edges, path, done));
        if !found {
            done.insert(at.to_owned());
            path.pop();
        }
        found
    }
    let (mut path, mut done) = (Vec::new(), BTreeSet::new());
    edges.keys().any(|name| search(name, edges, &mut path, &mut done)).then_some(path)
}

/// The dependencies of this kind among the workspace's crates, by `cargo metadata`.
fn dependencies(metadata: &Value, kind: &Value) -> Edges {
    // The program `quell` is the crate `cli`.
    let short = |name: &Value| match name.as_str().unwrap() {
        "quell" => "cli".to_owned(),
        name => name.trim_start_matches("quell-").to_owned(),
    };
    let packages = metadata["packages"].as_array().unwrap();
    let all: BTreeSet<String> = packages.iter().map(|package| short(&package["name"])).collect();
    let own = |dependency: &&Value| dependency["kind"] == *kind && !dependency["path"].is_null();
    packages
        .iter()
        .map(|package| {
            let of = package["dependencies"].as_array().unwrap().iter().filter(own);
            let of = of.map(|one| short(&one["name"])).filter(|name| all.contains(name));
            (short(&package["name"]), of.collect())
        })
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn crates_depend_on_each_other_as_listed() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let found = dependencies(&metadata(), &Value::Null);
    assert!(found.len() > 10, "{found:?}");
    assert_eq!(List::parse(&page).differences(&found), [""; 0]);
}

#[test]
fn dependencies_of_tests_form_no_cycle_and_keep_to_act() {
    let metadata = metadata();
    let mut edges = dependencies(&metadata, &Value::Null);
    for (name, of_tests) in dependencies(&metadata, &"dev".into()) {
        let may = ACT_IN_TESTS.contains(&name.as_str());
        assert!(may || !of_tests.contains("act"), "{name} has `act` among its dev-dependencies");
        edges.entry(name).or_default().extend(of_tests);
    }
    assert_eq!(cycle(&edges), None);
}

const PAGE: &str = "### Dependencies between crates\n\nText.\n\n    model ← all but lane\n\
    \x20   policy      –                  sim, load   → policy\n    cli → sim, load    lane –\n\nMore.\n";

fn edges(list: &[(&str, &str)]) -> Edges {
    list.iter().map(|(from, to)| ((*from).to_owned(), names(to).collect())).collect()
}

#[test]
fn list_is_parsed_in_columns_with_its_rules() {
    let exact =
        [("policy", ""), ("sim", "policy"), ("load", "policy"), ("cli", "sim, load"), ("lane", "")];
    let list = List { exact: edges(&exact), allowed: edges(&[("model", "lane")]) };
    assert_eq!(List::parse(PAGE), list);
}

#[test]
fn each_difference_from_the_list_is_named() {
    let list = List::parse(PAGE);
    let equal = [
        ("model", ""),
        ("policy", "model"),
        ("sim", "policy, model"),
        ("load", "policy"),
        ("cli", "sim, load"),
        ("lane", ""),
    ];
    assert_eq!(list.differences(&edges(&equal)), [""; 0]);
    let different = [
        ("model", ""),
        ("policy", "load"),
        ("sim", ""),
        ("load", "policy"),
        ("cli", "sim, load"),
        ("lane", "model"),
        ("net", ""),
    ];
    let expected = [
        "lane → model is a dependency and not listed",
        "net is a crate and is not listed",
        "policy → load is a dependency and not listed",
        "sim → policy is listed and is no dependency",
    ];
    assert_eq!(list.differences(&edges(&different)), expected);
    assert!(
        list.differences(&edges(&equal[..5])).contains(&"lane is listed and is no crate".into())
    );
}

#[test]
fn a_cycle_is_found_with_its_crates() {
    assert_eq!(cycle(&edges(&[("a", "b, c"), ("b", "d"), ("c", "d"), ("d", "")])), None);
    let found = cycle(&edges(&[("a", "b"), ("b", "c"), ("c", "b, d"), ("d", "")])).unwrap();
    assert_eq!(found, ["b", "c"]);
}
