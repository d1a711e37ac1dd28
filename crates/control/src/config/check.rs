//! A configuration held against a host.

use quell_model::{CoreSet, Limits, TaskScheduler, Topology};

use super::{Config, ConfigError, Source, TaskConfig};

/// What remains to be known when a configuration fits a host.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedHost {
    /// The managed cores; at least one, and never all.
    pub managed: CoreSet,
    /// The cores that stay as they are.
    pub unmanaged: CoreSet,
}

impl Config {
    /// Holds the configuration against a host.
    ///
    /// # Errors
    /// When a core does not exist, no core would stay unmanaged, or guarantees exceed the managed cores.
    pub fn check(&self, topology: &Topology, file: &str) -> Result<CheckedHost, ConfigError> {
        let error = |what: String, remedy: &str| ConfigError {
            file: file.to_owned(),
            line: None,
            what,
            remedy: remedy.to_owned(),
        };
        let all = topology.all();
        let managed = match self.host.managed {
            Some(named) => named,
            None => topology.default_managed(),
        };
        let absent = managed.difference(&all);
        if !absent.is_empty() {
            let what = format!("`managed` names core {absent}, this host has {all}");
            return Err(error(what, "name cores that exist"));
        }
        let unmanaged = all.difference(&managed);
        if managed.is_empty() || unmanaged.is_empty() {
            let what = format!(
                "of the cores {all} of this host `{managed}` would be managed: one at least has to stay unmanaged, and one managed"
            );
            return Err(error(what, "Quell needs a core that nothing it elevates can freeze"));
        }
        let guaranteed: u64 = self.tasks.iter().map(|task| u64::from(task.guaranteed)).sum();
        if guaranteed > managed.len() as u64 {
            let what = format!(
                "{guaranteed} cores are guaranteed, but only {} are managed ({managed})",
                managed.len()
            );
            return Err(error(what, "lower `guaranteed` of a task or manage more cores"));
        }
        for task in &self.tasks {
            let allowed = task.allowed(&managed);
            if task.cores.is_some_and(|cores| !cores.is_subset(&managed)) {
                let what =
                    format!("task `{}`: its `cores` are not all managed ({managed})", task.name);
                return Err(error(what, "name managed cores, or leave `cores` out"));
            }
            if u64::from(task.guaranteed) > allowed.len() as u64 {
                let what = format!(
                    "task `{}` is guaranteed {} cores of {allowed}",
                    task.name, task.guaranteed
                );
                return Err(error(what, "allow it more cores"));
            }
        }
        Ok(CheckedHost { managed, unmanaged })
    }
}

impl TaskConfig {
    /// The managed cores that the task may use.
    pub fn allowed(&self, managed: &CoreSet) -> CoreSet {
        self.cores.map_or(*managed, |cores| cores.intersection(managed))
    }

    /// What the policy has to know.
    pub fn limits(&self, managed: &CoreSet) -> Limits {
        let allowed = self.allowed(managed);
        let (scheduler, most) = match self.source {
            Source::Lane(_) => (TaskScheduler::Lane, 1),
            _ => (TaskScheduler::Kernel, allowed.len() as u32),
        };
        Limits {
            class: self.class,
            scheduler,
            guaranteed: self.guaranteed,
            max: self.max.unwrap_or(most).min(most),
            times: self.times,
            latency_target: self
                .latency
                .as_ref()
                .and_then(|latency| latency.slo)
                .unwrap_or_default(),
            allowed,
        }
    }
}
