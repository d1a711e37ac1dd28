//! The policy that a scenario asks for, and what is said where there is none.

use quell_policy::{Host, Policy, PolicyError, by_name, check, names_for};
use toml::Spanned;

use super::raw::Place;
use super::{FileError, Simulation};

/// Who named the policy where.
#[derive(Clone, Debug)]
pub(super) struct Named {
    file: String,
    line: Option<usize>,
    by: String,
}

impl Named {
    /// By the file, here if anywhere.
    pub fn at(place: &Place, typed: Option<&Spanned<String>>) -> Named {
        let line = typed.and_then(|typed| place.error(typed, String::new(), "").line);
        Named { file: place.file.to_owned(), line, by: "`policy` in `[host]`".to_owned() }
    }
}

impl Simulation {
    /// Another policy than the file's. `by` is who named it, for messages: an option or a key.
    pub fn choose(&mut self, policy: String, by: &str) {
        self.policy = policy;
        (self.named.line, self.named.by) = (None, format!("`{by}`"));
    }

    /// Builds the policy.
    ///
    /// # Errors
    /// When nobody has this name, or the scenario's host lacks what the policy needs; with file, line and remedy.
    pub fn driver(&self) -> Result<Box<dyn Policy>, FileError> {
        let host = &self.scenario.host;
        let built = by_name(&self.policy, host.clone(), self.config);
        built.map_err(|refused| self.refused(&refused))
    }

    /// What the host lacks for the policy; none, if the policy can run.
    ///
    /// # Errors
    /// When nobody has this name.
    pub fn lacks(&self) -> Result<Option<String>, FileError> {
        match check(&self.policy, &self.scenario.host) {
            Ok(()) => Ok(None),
            Err(lacks @ PolicyError::Host { .. }) => Ok(Some(lacks.to_string())),
            Err(unknown) => Err(self.refused(&unknown)),
        }
    }

    fn refused(&self, refused: &PolicyError) -> FileError {
        let remedy = match refused {
            PolicyError::Host { policy, .. } => remedy(policy, &self.scenario.host),
            // These list what there is.
            _ => String::new(),
        };
        let what = format!("{}: {refused}", self.named.by);
        FileError { file: self.named.file.clone(), line: self.named.line, what, remedy }
    }
}

/// The one key that would do, or the policies that can run.
fn remedy(policy: &str, host: &Host) -> String {
    let mut other = host.clone();
    other.caps.shares_cores ^= true;
    if check(policy, &other).is_ok() {
        let cores = if other.caps.shares_cores { "shared" } else { "exclusive" };
        return format!("set `cores = \"{cores}\"` in `[host]`");
    }
    format!("this host can run: {}", names_for(host).collect::<Vec<_>>().join(", "))
}
