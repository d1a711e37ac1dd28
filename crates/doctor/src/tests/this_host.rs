//! Checks on the host that runs the tests.

use super::*;

fn quick() -> Options {
    Options {
        cgroup: None,
        managed: None,
        spin: Duration::from_millis(5),
        run_dir: "/run/quell".into(),
    }
}

#[test]
fn every_finding_on_this_host_is_complete_and_survives_json() {
    let findings = examine(&quick());
    findings.iter().for_each(assert_is_complete);
    let ids: HashSet<_> = findings.iter().map(|finding| finding.id.as_str()).collect();
    assert_eq!(ids.len(), findings.len(), "an id comes twice");
    let json = serde_json::to_string(&findings).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Finding>>(&json).unwrap(), findings);
}

#[test]
fn a_cgroup_that_is_not_one_is_refused_without_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { cgroup: Some(directory.path().join("none")), ..quick() };
    let findings = examine(&options);
    let there = findings.iter().find(|finding| finding.id == "realtime_target").unwrap();
    expect(there, Status::Degraded, "could not enter");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A cgroup of this host's own, removed when the test ends.
struct Cgroup(std::path::PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Only a v1 group is born without real-time budget, so other hosts have nothing to refuse.
#[test]
fn a_cgroup_without_budget_refuses_realtime() {
    let _lock = quell_testkit::host_lock().unwrap();
    let cgroup = format!("/sys/fs/cgroup/cpu/quell-doctor-{}", std::process::id());
    let limit = fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap_or_default();
    if fs::create_dir(&cgroup).is_err() || limit.trim() == "-1" {
        let _ = fs::remove_dir(&cgroup);
        return;
    }
    let cgroup = Cgroup(cgroup.into());
    let budget = cgroup.0.join("cpu.rt_runtime_us");
    if fs::read_to_string(&budget).is_ok_and(|budget| budget.trim() == "0") {
        let findings = examine(&Options { cgroup: Some(cgroup.0.clone()), ..quick() });
        let there = findings.iter().find(|finding| finding.id == "realtime_target").unwrap();
        expect(there, Status::Absent, "was refused");
        assert!(there.remedy.contains("cpu.rt_runtime_us"), "{there:?}");
        fs::write(&budget, "10000").unwrap();
        let findings = examine(&Options { cgroup: Some(cgroup.0.clone()), ..quick() });
        assert!(
            findings.iter().any(|finding| finding.id == there.id && finding.status == Status::Pass)
        );
    }
}

/// Runs in a child of the test below, without rights. `make test-all` skips modules of this name.
mod helper {
    use super::*;

    #[test]
    #[ignore = "helper: run by `nobody_gets_findings_too`"]
    fn examine_without_rights() {
        let findings = examine(&quick());
        findings.iter().for_each(assert_is_complete);
        let nice = findings.iter().find(|finding| finding.id == "cap_sys_nice").unwrap();
        assert_eq!(nice.status, Status::Absent);
        let realtime = findings.iter().find(|finding| finding.id == "realtime").unwrap();
        assert_eq!(realtime.status, Status::Absent);
    }
}

#[test]
fn nobody_gets_findings_too() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // The test program may lie where nobody can reach it.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("tests");
    // By another process: a child that a test beside this one forks could hold the copy open for writing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    for path in [directory.path(), &program] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let test = "tests::this_host::helper::examine_without_rights";
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .args(["--exact", test, "--ignored"])
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
