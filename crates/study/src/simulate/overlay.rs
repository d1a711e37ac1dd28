//! A scenario file as a table whose keys can be changed before it is read.

use anyhow::{Context as _, Result, bail};

/// Sets a key by its dotted path; `task.NAME` finds the task of this name.
///
/// # Errors
/// When there is no such task, or the path is no key of a scenario.
pub fn set(table: &mut toml::Table, path: &str, value: toml::Value) -> Result<()> {
    let parts: Vec<&str> = path.split('.').collect();
    match parts.as_slice() {
        ["task", name, key] => {
            let tasks = table.get_mut("task").and_then(toml::Value::as_array_mut);
            let mut tasks = tasks.into_iter().flatten().filter_map(toml::Value::as_table_mut);
            let task = tasks
                .find(|task| is_named(task, name))
                .with_context(|| format!("`{path}`: there is no task `{name}`"))?;
            if matches!(*key, "rate" | "load" | "diurnal") {
                ["rate", "load", "diurnal"].into_iter().for_each(|other| {
                    task.remove(other);
                });
            }
            task.insert((*key).to_owned(), value);
        }
        [sections @ .., key] if (1..=2).contains(&sections.len()) => {
            let mut section = table;
            for name in sections {
                section = section
                    .entry(*name)
                    .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                    .as_table_mut()
                    .with_context(|| format!("`{path}`: `{name}` is no table"))?;
            }
            section.insert((*key).to_owned(), value);
        }
        [key] => {
            table.insert((*key).to_owned(), value);
        }
        _ => bail!(
            "`{path}` is no key; write length_ms, host.policy, kernel.fix.group_imbalance or task.NAME.rate"
        ),
    }
    Ok(())
}

/// Takes a task out.
pub fn remove_task(table: &mut toml::Table, name: &str) {
    if let Some(tasks) = table.get_mut("task").and_then(toml::Value::as_array_mut) {
        tasks.retain(|task| !task.as_table().is_some_and(|task| is_named(task, name)));
    }
}

fn is_named(task: &toml::Table, name: &str) -> bool {
    task.get("name").and_then(toml::Value::as_str) == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::source::{Source, parameter};

    #[test]
    fn keys_of_tables_within_tables_are_set() {
        let mut table: toml::Table = toml::from_str("[kernel]\nmodel = \"linux-4.1\"\n").unwrap();
        set(&mut table, "kernel.fix.group_imbalance", "paper".into()).unwrap();
        let expected = "[kernel]\nmodel = \"linux-4.1\"\nfix.group_imbalance = \"paper\"\n";
        assert_eq!(table, toml::from_str(expected).unwrap());
        assert!(set(&mut table, "kernel.model.name", 1.into()).is_err());
        assert!(set(&mut table, "a.b.c.d", 1.into()).is_err());
    }

    /// The commands in the first lines of the examples.
    #[test]
    fn commands_of_examples_name_keys() {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sim");
        let mut commands = 0;
        for entry in std::fs::read_dir(examples).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let settings = text.lines().filter(|line| line.starts_with("#     quell sim"));
            for setting in settings.filter_map(|line| line.split("--set ").nth(1)) {
                let (key, values) = parameter(setting.trim()).unwrap();
                let source = Source::open(&path).unwrap();
                let resolved = source.resolve(&[(key.as_str(), &values[0])]).map(drop);
                resolved.unwrap_or_else(|err| panic!("{}: {setting}: {err:#}", path.display()));
                commands += 1;
            }
        }
        assert!(commands >= 4, "{commands}");
    }
}
