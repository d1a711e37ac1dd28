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
        [section, key] => {
            let section = table
                .entry(*section)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                .as_table_mut()
                .with_context(|| format!("`{path}`: `{section}` is no table"))?;
            section.insert((*key).to_owned(), value);
        }
        [key] => {
            table.insert((*key).to_owned(), value);
        }
        _ => bail!("`{path}` is no key; write length_ms, host.policy or task.NAME.rate"),
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
